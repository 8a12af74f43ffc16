"""Detects the loss of records that this node has already read from the engine.

The following table shows the reaction of a node that has read all records up to record 9.

    event                                  state of the log             reaction
    records 7 to 9 were lost               ends before record 9         HALT: record 9 is missing
    records 7 to 9 were lost, and records  a different record 9         HALT: record 9 was replaced
      7 to 12 were appended
    only record 9 was lost                 record 10 exists (a hole)    fetch a copy that covers record 9
    only record 9 was changed              CRC mismatch in record 9     fetch a copy that covers record 9

A node that reopens its replica loads the checkpoint and reads the log again from there. In the meantime, the
engine may have lost records that the node had read, because of an unclean leader election or the promotion of
a standby without the newest records. The node could then become the leader without records that it had
acknowledged. The witness therefore stores, separately from the replica, the offset and CRC-32 of the newest
leader record that the node has read. After a restart, they are read from a file (`restore`). The witness also
verifies that the log does not end before the checkpoint. CHECKPOINT and HOLD records are not used
(`Fold.last_led`), because two histories can contain identical ones.

A former primary may return outdated responses. A loss is therefore reported only after `LOST_MS`. A read from
a lagging standby can raise `EngineUnavailable`, but a request for the log bounds would return outdated
bounds. The witness therefore reads records before requesting the log bounds.

The engine may also lose the end of the log while a node reads the log again. The node therefore compares the
newest leader record that it has read with the record now stored at the same offset. A candidate repeats this
comparison between the append of the EPOCH record and the takeover.

Cost: two reads each time the log is opened, at each takeover, and after each lost candidacy. Limitation: a
node cannot detect the loss and may become the leader if its memory, file, and checkpoint contain none of the
lost records. Nodes that have read the lost records halt at the records of the new leader.
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
"""Result of `read_crc` for a record that is missing or unreadable."""


class Witness:
    """The newest leader record that was read. `clock` returns monotonic time in milliseconds."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.last_led: tuple[int, int] | None = None
        """Offset and CRC-32 of the newest leader record that was read."""
        self._missing_since_ms: int | None = None

    def record_progress(self, fold: Fold) -> None:
        """Store the offset and CRC-32 of the newest leader record that `fold` has applied."""
        self.restore(fold.last_led)

    def restore(self, last: tuple[int, int] | None) -> None:
        """Store the offset and CRC-32 of a leader record, unless a newer record is already stored."""
        if last is not None and (self.last_led is None or last[0] > self.last_led[0]):
            self.last_led = last

    def require_records(self, engine: Engine, fold: Fold) -> None:
        """Verify that the log still contains the records that this node has read.

        If a record is missing or was replaced, raise `EngineUnavailable`, or `Halted` after `LOST_MS`. Raise
        `LogDamaged` if only the newest known leader record is missing or corrupt, and `fold` has not applied
        it.
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
        """Return whether a record has the offset of the newest known leader record but a different CRC-32."""
        return self.last_led is not None and (
            one.offset == self.last_led[0] and zlib.crc32(one.stored) != self.last_led[1]
        )

    def verify_last_record(self, engine: Engine, fold: Fold) -> None:
        """Verify the newest known leader record, and then record the progress of `fold`.

        Raise `Halted` if another record has replaced it, because the engine has then lost the end of the log.
        Raise `EngineUnavailable` if the engine does not respond. A missing record or a CRC mismatch raises no
        exception, because the scrub reports the damage (`sharedlog.scrub`).
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
        """Return the offset of a record that was read before and is now missing or replaced, or None."""
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
    """Return whether a record exists after `offset`, which proves that the end of the log was not lost.

    An unreadable record counts as an existing record.
    """
    try:
        return any(one.offset > offset for one in engine.read(offset, 1))
    except LogDamaged:
        return True


def _is_corrupt(engine: Engine, cluster: bytes | None, offset: int) -> bool:
    """Return whether the record at an offset is a record of the cluster with a CRC mismatch."""
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
    """Return the CRC-32 of a record, None if trimmed, or GONE if missing or unreadable."""
    try:
        found = engine.read(offset, 1)
    except LogDamaged:
        return GONE
    if found and found[0].offset == offset:
        return zlib.crc32(found[0].stored)
    first, _ = engine.bounds()
    return None if first > offset else GONE
