"""Detects whether an engine has lost records that this node has already read.

    read up to record 9 --the engine loses 7 to 9--> its end is 7           --> HALT: 9 was read, and is gone
                                                     grown again, to 12     --> HALT: 9 is another record
                       --the engine loses 9 alone--> 10 exists              --> a copy beyond 9 (a hole)
                       --9 alone is changed-------> it does not match its CRC  --> a copy beyond 9

When a node discards its copy of the store, it opens its checkpoint and reads the log again from the position
of the checkpoint. In the meantime, an unclean leader election, or the promotion of a standby that lacks the
newest records, may cause the loss of records that the node had already read. In that case, the new copy would
end earlier, and the node could become the leader without records that it had acknowledged. Therefore, the
offset and CRC-32 of the newest record that the process has read are kept outside the copy. After a restart,
they are restored from a file (`restore`). The record that follows the checkpoint is checked as well.
CHECKPOINT and HOLD records are excluded (`Fold.last_led`), because these records can be identical in two
histories.

A former primary may return outdated responses, so a loss is reported only if it persists for `LOST_MS`. A
read from a lagging standby can raise `Unknown`, whereas a request for the log bounds would return an outdated
result. Therefore, each request for the log bounds is preceded by a read.

The engine may lose the end of the log while a node is reading the log again. Therefore, the node compares the
newest record that it had read before with the record that is now stored at the same offset. A candidate
repeats this check after it has appended its EPOCH record and before it becomes the leader.

Cost: Two reads are required each time the log is opened, for each takeover, and after each unsuccessful
candidacy. Weak spot: If none of the lost records are known from the memory, file, or checkpoint of a node,
the node cannot detect the loss and may become the leader. Nodes that have read the lost records halt when
they read the records of such a leader.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from sharedlog.engine import Engine, Stored
from sharedlog.errors import Halted, LogDamaged, Unknown
from sharedlog.fold import Fold
from sharedlog.record import Foreign, Garbled, decode

LOST_MS: Final = 20_000
GONE: Final = 0
"""The value that represents a missing record instead of a CRC-32."""


class Witness:
    """Tracks the newest leader record that this process has read. `clock` is a monotonic clock in ms."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.last_led: tuple[int, int] | None = None
        """The offset and CRC-32 of the newest leader record that was read."""
        self._missing_since_ms: int | None = None

    def record_progress(self, fold: Fold) -> None:
        """Store the offset and CRC-32 of the newest leader record that a fold has applied."""
        self.restore(fold.last_led)

    def restore(self, last: tuple[int, int] | None) -> None:
        """Store the offset and CRC-32 of a leader record if the record is newer than the stored one."""
        if last is not None and (self.last_led is None or last[0] > self.last_led[0]):
            self.last_led = last

    def require_records(self, engine: Engine, fold: Fold) -> None:
        """Verify that the engine still has the records that this node has read.

        If a record is missing or was replaced, raise `Unknown`, or `Halted` after `LOST_MS`. Raise
        `LogDamaged` if only the newest leader record is missing or corrupt and `fold` has not applied this
        record.
        """
        self.record_progress(fold)
        missing = self._find_missing(engine, fold)
        if missing is None:
            self._missing_since_ms = None
            return
        now_ms = self._clock()
        if self._missing_since_ms is None:
            self._missing_since_ms = now_ms
        said = f"Record {missing} of the shared log was read before, and is gone or is another one now"
        if now_ms - self._missing_since_ms < LOST_MS:
            raise Unknown(f"{said}: asked anew.")
        raise Halted(f"{said}: the engine has lost its end, with what may have been acknowledged.")

    def is_replaced(self, one: Stored) -> bool:
        """Return whether a record differs from the newest known leader record at the same offset."""
        return self.last_led is not None and (
            one.offset == self.last_led[0] and zlib.crc32(one.stored) != self.last_led[1]
        )

    def verify_last_record(self, engine: Engine, fold: Fold) -> None:
        """Verify the newest known leader record, and then store the newest leader record of `fold`.

        Raise `Halted` if a different record is now stored at the same offset, because the engine has lost the
        end of the log. Raise `Unknown` if the engine does not respond. If the leader record does not match
        its CRC, it is ignored, because the scrub reports the damage (`sharedlog.scrub`).
        """
        if self.last_led is not None:
            offset, crc = self.last_led
            is_kept = read_crc(engine, offset) in (None, GONE, crc)
            if not is_kept and not _is_corrupt(engine, fold.cluster, offset):
                raise Halted(
                    f"Record {offset} of the shared log was read before, and is another one now: the engine "
                    "has lost its end, with what may have been acknowledged, and has grown again."
                )
        self.record_progress(fold)

    def _find_missing(self, engine: Engine, fold: Fold) -> int | None:
        """Return the offset of a previously read record that is missing or was replaced, or None."""
        if self.last_led is not None:
            offset, crc = self.last_led
            found = read_crc(engine, offset)
            if found == GONE and _has_later_records(engine, offset):
                if fold.next_offset <= offset:
                    why = f"Record {offset}, which was read before, is missing or unreadable"
                    raise LogDamaged(f"{why}, with others behind.", offset)
            elif found not in (None, GONE, crc) and _is_corrupt(engine, fold.cluster, offset):
                if fold.next_offset <= offset:
                    why = f"Record {offset} of the shared log does not match its CRC, and did when it was"
                    raise LogDamaged(f"{why} read before: the engine has changed it.", offset)
            elif found not in (None, crc):
                return offset
        if engine.read(fold.next_offset, 1):
            return None
        _, end_offset = engine.bounds()
        return fold.next_offset - 1 if fold.next_offset > end_offset else None


def _has_later_records(engine: Engine, offset: int) -> bool:
    """Return whether a record exists after `offset`.

    If a later record exists, the engine has not lost the end of the log. A record that cannot be read is
    considered to exist.
    """
    try:
        return any(one.offset > offset for one in engine.read(offset, 1))
    except LogDamaged:
        return True


def _is_corrupt(engine: Engine, cluster: bytes | None, offset: int) -> bool:
    """Return whether the record at an offset belongs to the cluster but does not match its CRC."""
    found = engine.read(offset, 1)
    if not found or found[0].offset != offset:
        return False
    try:
        decode(found[0].stored, cluster)
    except Garbled:
        return True
    except Foreign:
        return False
    return False


def read_crc(engine: Engine, offset: int) -> int | None:
    """Return the CRC-32 of a record, None if it was trimmed, or GONE if it is missing or unreadable."""
    try:
        found = engine.read(offset, 1)
    except LogDamaged:
        return GONE
    if found and found[0].offset == offset:
        return zlib.crc32(found[0].stored)
    first, _ = engine.bounds()
    return None if first > offset else GONE
