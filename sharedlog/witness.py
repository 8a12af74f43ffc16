"""Detects whether an engine has lost records that this node has read.

    read up to record 9 --the engine loses 7 to 9--> its end is 7           --> HALT: 9 was read, and is gone
                                                     grown again, to 12     --> HALT: 9 is another record
                       --the engine loses 9 alone--> 10 exists              --> a copy beyond 9 (a hole)
                       --9 alone is changed-------> it does not match its CRC  --> a copy beyond 9

A node that discards its copy of the store loads its checkpoint and reads the log again from that point.
Meanwhile, the engine may have lost records that the node had read, because of an unclean leader election or
the promotion of a standby that lacked the newest records. The node could then become leader without records
that it had acknowledged. The witness therefore keeps the offset and CRC-32 of the newest record read,
separately from the copy. After a restart, they are read from a file (`restore`). The record after the
checkpoint is also checked. CHECKPOINT and HOLD records are ignored (`Fold.last_led`), because they can be
identical in two histories.

A former primary may return outdated responses, so a loss is reported only after `LOST_MS`. A read from a
lagging standby can raise `EngineUnavailable`, but a request for the log bounds would return an outdated
result. The witness therefore reads before it requests the log bounds.

The engine may lose the end of the log while a node is reading it again. The node therefore compares the
newest record that it has read with the record now stored at the same offset. A candidate repeats this check
after its EPOCH record and before it becomes leader.

Cost: two reads each time the log is opened, at each takeover, and after each lost candidacy. Limitation: a
node whose memory, file, and checkpoint contain none of the lost records cannot detect the loss and may become
leader. Nodes that have read the lost records halt when they read the records of such a leader.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from sharedlog.engine import Engine, Stored
from sharedlog.errors import EngineUnavailable, Halted, LogDamaged
from sharedlog.fold import Fold
from sharedlog.record import CorruptRecord, ForeignRecord, decode

LOST_MS: Final = 20_000
GONE: Final = 0
"""Stands for a missing record in place of a CRC-32."""


class Witness:
    """Tracks the newest leader record read by this process. `clock` is a monotonic clock in milliseconds."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.last_led: tuple[int, int] | None = None
        """Offset and CRC-32 of the newest leader record read."""
        self._missing_since_ms: int | None = None

    def record_progress(self, fold: Fold) -> None:
        """Remember the newest leader record that a fold has applied."""
        self.restore(fold.last_led)

    def restore(self, last: tuple[int, int] | None) -> None:
        """Remember a leader record's offset and CRC-32 if the record is newer."""
        if last is not None and (self.last_led is None or last[0] > self.last_led[0]):
            self.last_led = last

    def require_records(self, engine: Engine, fold: Fold) -> None:
        """Verify that the engine still has the records read by this node.

        If a record is missing or was replaced, raise `EngineUnavailable`, or `Halted` after `LOST_MS`. Raise
        `LogDamaged` if only the newest leader record is missing or corrupt and `fold` has not applied it.
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
            raise EngineUnavailable(f"{said}: asked anew.")
        raise Halted(f"{said}: the engine has lost its end, with what may have been acknowledged.")

    def is_replaced(self, one: Stored) -> bool:
        """Return whether a record differs from the newest known leader record at its offset."""
        return self.last_led is not None and (
            one.offset == self.last_led[0] and zlib.crc32(one.stored) != self.last_led[1]
        )

    def verify_last_record(self, engine: Engine, fold: Fold) -> None:
        """Verify the newest known leader record, and then remember the newest one in `fold`.

        Raise `Halted` if its offset now holds another record, because the engine has lost the end of the log.
        Raise `EngineUnavailable` if the engine does not respond. A CRC mismatch is ignored, because the scrub
        reports the damage (`sharedlog.scrub`).
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
        """Return the offset of a record that was read but is now missing or replaced, or None."""
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
    """Return whether a record exists after `offset`, which means that the end of the log is not lost.

    An unreadable record is treated as existing.
    """
    try:
        return any(one.offset > offset for one in engine.read(offset, 1))
    except LogDamaged:
        return True


def _is_corrupt(engine: Engine, cluster: bytes | None, offset: int) -> bool:
    """Return whether the record at an offset belongs to the cluster and does not match its CRC."""
    found = engine.read(offset, 1)
    if not found or found[0].offset != offset:
        return False
    try:
        decode(found[0].stored, cluster)
    except CorruptRecord:
        return True
    except ForeignRecord:
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
