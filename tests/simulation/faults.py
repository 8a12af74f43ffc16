"""Faults between any two disk operations, for the worlds of the simulation.

Before a step a disk operation may be chosen to be the last of the process, or to fail, once or until the disk
recovers; it may occur in the step, in its effects, or in a later step. A process dies by a kill or a power
cut. Starts may die too, several in a row; the last one has a sound disk. At the end of a process one small
file may be damaged: a flipped bit, zeros, truncated, deleted; a file of timers also by an unreadable sector,
for some reads or permanently. `KINDS` lists the files; a kind is added once its damage is survived and
reported.

    durable     the published offset: nothing is lost, the start reports it
    format      the version and the size of segments: nothing is lost, the start reports it
    snapshots   one of two: nothing is lost, the start reports it

`TIMER_KINDS` are for a world whose oracle has all timers (`timer_world`):

    timers      timers in the log are rebuilt and delivered once, the others end as UNREADABLE and are
                listed; reported once the broker has read all its files
    keyindex    rebuilt from the log: nothing is lost

and `FACT_KINDS` for one whose log is complete:

    timers-names, timers-ends   rebuilt from the log: nothing is lost
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from errno import EIO, ENOSPC
from typing import Final

from commitlog import layout, store_format
from commitlog.log.recovery import Damage, LogScan
from commitlog.snapshots import snapshot
from consumequeue.queue import CONSUMEQUEUE
from services.broker.broker import Broker
from services.store.findings import Finding
from services.store.verify.verify import Verdict
from tests.memory_disk import BLOCK_BYTES, Death, Fault, MemoryDisk

KINDS: Final = (layout.DURABLE, layout.FORMAT, layout.SNAPSHOTS)
TIMER_KINDS: Final = (*KINDS, layout.TIMERS, layout.TIMERS, layout.KEYINDEX)
FACT_KINDS: Final = (*TIMER_KINDS, layout.TIMER_NAMES, layout.TIMER_ENDS)
_LATER: Final = (layout.TIMERS, layout.KEYINDEX, layout.TIMER_NAMES, layout.TIMER_ENDS)
"""Files whose damage is reported when they are read, not at start."""
_STARTS_MAX: Final = 4


class Faults:
    """Faults of a disk, drawn from a world's random generator."""

    def __init__(self, chance: random.Random, disk: MemoryDisk, kinds: tuple[str, ...] = KINDS) -> None:
        self._chance, self._disk, self._kinds = chance, disk, kinds
        disk.choose = self.choose
        self.spares_files = False
        """Whether no file is damaged at the end of a process."""
        self.damaged = ""
        """The file that was damaged at the end of the last process; empty if none was."""
        self._is_harmless = True
        self.hit: set[str] = set()
        """All files that were ever damaged."""
        self.hit_queues: set[str] = set()
        """Queue files that were damaged since the queues were last rebuilt."""
        self._made_anew: set[str] = set()
        """Folders whose rebuild was reported by a start, because their files were unreadable."""
        self._is_over = False
        self._spares_torn = True
        self.gaps: set[int] = set()
        """First offsets of damage in the log reported by starts, in bytes that were not acknowledged."""

    def move(self, disk: MemoryDisk) -> None:
        """Apply the faults to another disk from now on."""
        self._disk, disk.choose = disk, self.choose

    def choose(self, count: int) -> int:
        """Return 0, `count`, or a number between."""
        return self._chance.choice([0, count, self._chance.randrange(count + 1)])

    def threaten(self, probability: float = 0.04) -> None:
        """With this probability, choose one of the next 24 operations to fail or to be the last."""
        if not self._is_over and self._chance.random() < probability:
            fault, error = self._chance.choice(list(Fault)), self._chance.choice([EIO, ENOSPC])
            is_lasting = self._chance.random() < 0.2
            self._disk.strike(self._chance.randrange(1, 25), fault, error, is_lasting=is_lasting)

    def cease(self) -> None:
        """Cause no further faults."""
        self._is_over = True
        self._disk.well()

    def relent(self) -> None:
        """Let the disk recover if the chosen operation has occurred, otherwise with probability 0.3."""
        if self._disk.is_struck or self._chance.random() < 0.3:
            self._disk.well()

    def end_process(self, *, is_cut: bool | None = None) -> bool:
        """End the process by a kill or a power cut; return whether it was a power cut."""
        is_cut = self._chance.random() < 0.5 if is_cut is None else is_cut
        if self._spares_torn and layout.DURABLE in self.hit and not layout.published(self._disk).is_sound:
            self._disk.kill(lambda _: 0)  # a start died before it published the offset again
            return False
        if is_cut:
            self._disk.crash(self.choose)
        else:
            self._disk.kill(self.choose)
        return is_cut

    def damage(self, probability: float = 0.15, *, spares_torn: bool = True) -> None:
        """With this probability, damage one small file.

        Without a published offset, a torn record followed by others is a gap: of a flush lost in a power cut,
        or not yet written when later ones were. For an oracle without gaps (`spares_torn`), `durable` is not
        damaged while the log is torn in this way, and the log is not torn until a start has published the
        offset again.
        """
        self.damaged, self._spares_torn = "", spares_torn
        if self.spares_files:
            return
        kind = self._chance.choice(self._kinds)
        if not self._is_over and self._chance.random() < probability and self._may_be_hit(kind):
            names = [one for one in self._disk.list(kind) if kind != layout.SNAPSHOTS or one.isdigit()]
            path = f"{kind}/{self._chance.choice(names)}" if names and names[0] else kind
            if self._disk.size(path) <= 0:
                return
            if kind == layout.TIMERS and self._chance.random() < 0.3:
                self._spoil_sector(path)
                return
            stored = self._disk.read(path, 0, self._disk.size(path)) if path == layout.DURABLE else b""
            self._hit(path)
            if path == layout.DURABLE and spares_torn and self._has_gap():
                self._disk.write(path, 0, stored)
                self._disk.sync(path)
                return
            self.damaged = path
            self.hit.add(path)
            is_published = layout.published(self._disk).is_sound
            is_deleted = self._disk.size(path) < 0
            is_empty = not self._disk.list(layout.COMMITLOG)
            self._is_harmless = (
                is_empty
                or (path == layout.DURABLE and is_published)
                or (is_deleted and path.startswith(layout.SNAPSHOTS))
                or kind in _LATER
            )

    def damage_queue(self, probability: float, *, by_bits: bool = False) -> None:
        """With this probability, damage a file of a user queue, while the broker runs or before its start.

        `by_bits`: flip one bit of it, without a disk operation.
        """
        folder = f"{CONSUMEQUEUE}/"
        paths = [one for one in self._disk.paths() if one.startswith(folder) and folder + "%" not in one]
        if self._is_over or self.spares_files or not paths or self._chance.random() >= probability:
            return
        path = self._chance.choice(paths)
        if (size := self._disk.size(path)) <= 0:
            return
        self.hit.add(path)
        self.hit_queues.add(path)
        if by_bits:
            self._disk.flip_bit(path, self._chance.randrange(size * 8))
        else:
            self._hit(path)

    def told_by(self, broker: Broker) -> str:
        """Return the damaged file, and record gaps; assert that the start has reported harmful damage."""
        if self.damaged and not broker.startup_warnings:
            assert self._is_harmless, f"{self.damaged} was damaged, and nothing was told"
        self.gaps |= {one.first_offset for one in broker.damaged}
        if any("consume queues" in what for what in broker.rebuilt_files):
            self.hit_queues.clear()
        self._made_anew |= {kind for kind in _LATER for what in broker.rebuilt_files if f" {kind}/" in what}
        was, self.damaged = self.damaged, ""
        return was

    def lost(self, broker: Broker, told_offset: int) -> list[Damage]:
        """Return the new damage below the acknowledged offset, without that reported by earlier starts."""
        new = [one for one in broker.damaged if one.first_offset not in self.gaps]
        self.told_by(broker)
        return [one for one in new if one.first_offset < told_offset]

    def unexplained(self, verdict: Verdict) -> list[Finding]:
        """Return the damage found by a verification, except the injected and the already reported damage.

        Parts rebuilt by a start are in memory until a checkpoint; a snapshot may name their files until then.
        """
        return [
            one
            for one in verdict.findings
            if one.is_damage
            and one.path not in self.hit
            and one.first_offset not in self.gaps
            and not self._is_of_timers(one)
            and one.path.partition("/")[0] not in self._made_anew
        ]

    def has_hit(self, *kinds: str) -> bool:
        """Return whether a file of one of these folders was ever damaged."""
        return any(path.startswith(f"{kind}/") for path in self.hit for kind in kinds)

    def _is_of_timers(self, one: Finding) -> bool:
        """Return whether a finding follows from a damaged file, before a checkpoint has written the repair.

        Until then a snapshot lacks timers of a file that it names, or their names.
        """
        less, names = "its pending timers are not those of the log: none more", "its names of timers"
        return (self.has_hit(layout.TIMERS) and one.what.startswith(less)) or (
            self.has_hit(layout.TIMER_NAMES) and one.what.startswith(names)
        )

    def starts_that_die(self, start: Callable[[int | None], object], acknowledged: int | None) -> int | None:
        """Make starts that die at once or midway; return the offset that is still acknowledged.

        That offset is only usable by a core that is rebuilt in the same process.
        """
        for _ in range(0 if self._is_over else self._chance.choice([0, 0, 0, 1, 1, 2, _STARTS_MAX])):
            self.threaten(0.9)
            with suppress(Death, OSError):
                start(acknowledged)
            self.end_process()
            acknowledged = None
            self._is_harmless = True  # damage repaired by a start that died is not visible to the next one
        self._disk.well()
        return acknowledged

    def _has_gap(self) -> bool:
        """Return whether a start would find a gap in the log that was not reported before."""
        scan = LogScan(self._disk, store_format.derived_segment_bytes(self._disk, 1))
        for _ in scan:
            pass
        return any(one.first_offset not in self.gaps for one in scan.damaged)

    def _may_be_hit(self, kind: str) -> bool:
        """Return whether such a file exists, with a second sound copy of the same data if one is needed."""
        if kind in _LATER:
            return bool(self._disk.list(kind))
        if kind != layout.SNAPSHOTS:
            return self._disk.size(kind) > 0
        offsets = snapshot.offsets(self._disk)
        return len(offsets) > 1 and all(snapshot.read(self._disk, offset) for offset in offsets)

    def _spoil_sector(self, path: str) -> None:
        """Make a sector of a file unreadable, for a number of reads or permanently."""
        block = self._chance.randrange((self._disk.size(path) - 1) // BLOCK_BYTES + 1)
        count = self._chance.choice([1, 2, 3, 5, 9, 1 << 60])
        self._disk.bad_sectors.setdefault(path, {})[block] = count
        self.hit.add(path)

    def _hit(self, path: str) -> None:
        size = self._disk.size(path)
        match self._chance.choice(["flip", "flip", "zero", "cut", "delete"]):
            case "flip":
                self._disk.flip_bit(path, self._chance.randrange(8 * size))
            case "zero":
                self._disk.write(path, 0, bytes(size))
                self._disk.sync(path)
            case "cut":
                self._disk.truncate(path, self._chance.randrange(size))
            case _:
                self._disk.delete(path)
