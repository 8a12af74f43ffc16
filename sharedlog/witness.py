"""What a node has read of a shared log must stay there: an engine that has lost its end is found out.

    read up to record 9 --the engine loses 7 to 9--> its end is 7           --> HALT: 9 was read, and is gone
                                                     grown again, to 12     --> HALT: 9 is another record
                       --the engine loses 9 alone--> 10 is there            --> a copy beyond 9 (a hole)
                       --9 alone is changed-------> it does not match its CRC  --> the same

A copy that is void is opened at its checkpoint, and reads again what is there. Where the engine has lost what
this node had read (a standby that lacked it was promoted, an unclean election), the copy would come to an
older end and the node lead on, as if what it had acknowledged had never been. So what is known lies outside
of the copy: the newest record that this process has read, and after a restart what a file keeps of that
(`recall`), and where its checkpoint reads on.
Words of what nodes hold (`Fold.last_led` leaves them out) are the same in two histories, and said again.

A server that was deposed and does not know so answers of the past: nothing is concluded until that has been
so for LOST_MS. An engine that knows better, as of a standby that is behind, raises `Unknown` where it is read
on: so it is read before its bounds are believed.

The engine may lose its end while a copy reads again: so each record is held against what was read at its
place, and a candidate looks once more behind its EPOCH, before it leads.

Cost: two reads at each opening, in each takeover, and whenever a candidate has not won. Weak spot: a node
whose process, file and checkpoint know nothing of what was lost cannot tell, and leads; those that know halt
when they meet what it has written.
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
"""In the place of the CRC-32 of a record that is not there."""


class Witness:
    """The newest record that a process has read of a leader's; `clock` never goes back."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.last_led: tuple[int, int] | None = None
        """The offset and the CRC-32 of the newest record of a leader's that was read."""
        self._missing_since_ms: int | None = None

    def note(self, fold: Fold) -> None:
        """Take in how far a fold has read."""
        self.recall(fold.last_led)

    def recall(self, last: tuple[int, int] | None) -> None:
        """Take in what a file says was read: the offset and the CRC-32 of a leader's record."""
        if last is not None and (self.last_led is None or last[0] > self.last_led[0]):
            self.last_led = last

    def require_kept(self, engine: Engine, fold: Fold) -> None:
        """Raise `Unknown`, and in time `Halted`, if what this process, or `fold`, has read is not there.

        Raise `LogDamaged` if that record alone is gone or changed, and `fold` has yet to read it.
        """
        self.note(fold)
        missing = self._missing(engine, fold)
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

    def is_another(self, one: Stored) -> bool:
        """Return whether a record lies where this process has read another one, of a leader."""
        return self.last_led is not None and (
            one.offset == self.last_led[0] and zlib.crc32(one.stored) != self.last_led[1]
        )

    def look_behind(self, engine: Engine, fold: Fold) -> None:
        """Look at what a leader had written when it looked last; raise `Halted` or `Unknown`.

        What is another record now is lost for sure. One that does not match its CRC has changed alone: the
        scrub tells of that (`sharedlog.scrub`).
        """
        if self.last_led is not None:
            offset, crc = self.last_led
            is_kept = crc_at(engine, offset) in (None, GONE, crc)
            if not is_kept and not _is_changed(engine, fold.cluster, offset):
                raise Halted(
                    f"Record {offset} of the shared log was read before, and is another one now: the engine "
                    "has lost its end, with what may have been acknowledged, and has grown again."
                )
        self.note(fold)

    def _missing(self, engine: Engine, fold: Fold) -> int | None:
        """Return the offset of a record that was read and is not there; None if there is none."""
        if self.last_led is not None:
            offset, crc = self.last_led
            found = crc_at(engine, offset)
            if found == GONE and _is_hole(engine, offset):
                if fold.next_offset <= offset:
                    why = f"Record {offset}, which was read before, is missing or unreadable"
                    raise LogDamaged(f"{why}, with others behind.", offset)
            elif found not in (None, GONE, crc) and _is_changed(engine, fold.cluster, offset):
                if fold.next_offset <= offset:
                    why = f"Record {offset} of the shared log does not match its CRC, and did when it was"
                    raise LogDamaged(f"{why} read before: the engine has changed it.", offset)
            elif found not in (None, crc):
                return offset
        if engine.read(fold.next_offset, 1):
            return None
        _, end_offset = engine.bounds()
        return fold.next_offset - 1 if fold.next_offset > end_offset else None


def _is_hole(engine: Engine, offset: int) -> bool:
    """Return whether records lie behind one that is gone: then the engine has not lost its end.

    One that cannot be read is there.
    """
    try:
        return any(one.offset > offset for one in engine.read(offset, 1))
    except LogDamaged:
        return True


def _is_changed(engine: Engine, cluster: bytes | None, offset: int) -> bool:
    """Return whether a record of the cluster lies at an offset that does not match its CRC."""
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


def crc_at(engine: Engine, offset: int) -> int | None:
    """Return the CRC-32 of the record at an offset; None if it was trimmed, 0 if it is gone or unreadable."""
    try:
        found = engine.read(offset, 1)
    except LogDamaged:
        return GONE
    if found and found[0].offset == offset:
        return zlib.crc32(found[0].stored)
    first, _ = engine.bounds()
    return None if first > offset else GONE
