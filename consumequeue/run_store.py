"""A run store: an index of entries in memory and in sorted runs, with the life of both.

    put ----> recent (memory) ----> closed ----> runs (`consumequeue.sorted_runs`)
              since the last to_write            written and merged by checkpoints

Two indexes are run stores, each with its own schema, its own structure in memory and its own look-ups:

                    key index (`keyindex.py`)          timer index (`timerindex.py`)
    an entry        hash of a key, offset of a record  key, check, offset of a record, at, extra
    what counts     every entry, newest first          of a (key, check) the highest offset
    put in          log order                          any order
    goes when       below the log's first offset       expired (rule 2)
    damage          the index is made anew (rule 3)    each sound block still answers (rule 3)

1. Files are written by a checkpoint's worker and named by its snapshot. A file never changes, and its number
   is used once. It is deleted when neither the new snapshot nor the one before names it: the next start may
   be from either. The snapshot of a checkpoint that failed may be on disk all the same, so the runs of failed
   checkpoints stay until one succeeds.
2. A merge leaves out entries that are over. Where only the newest entry counts, one that is over stays as
   long as a run outside the merge may hold an older one of the same key: else that would count again. So an
   entry that is over may be found or not, and the caller judges by its own clock or offset.
3. A damaged run is never merged, and neither is any older one. A derived index (one that the log can tell
   again) is adopted whole or not at all: its snapshot part is None while a run is damaged, and the next
   start makes it anew from the log; a folder in which nothing can be written is put aside
   (`consumequeue.aside`). Any other index keeps its damaged runs, for nothing else has their entries:
   look-ups that need a damaged block raise `StoreDamaged`, the others are answered. A read
   error (EIO) is damage, too, and ends no start and no checkpoint.
4. Which runs are merged is decided by size: a run waits until those after it, new entries included, hold
   three times as much. So there are some three runs of each size, and an entry is written again only when its
   run grows fourfold.

Memory: `UNSAVED_MAX` entries. Once as many wait in memory, or in runs that no snapshot names, a checkpoint is
due; a start, which replays more than that, writes runs in between (`spill`). Weak spot: a damaged run stops
merges of all older ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import KEYS_ASIDE
from consumequeue.aside import is_unusable, put_aside
from consumequeue.bloom_filter import Mask, probes_of
from consumequeue.queue import is_of_others
from consumequeue.sorted_runs import Entries, Run, Schema, passes, write_run

UNSAVED_MAX: Final = 1_000_000
_GROWTH: Final = 3

IsOver = Callable[[Entries, int], Mask]
"""Which of the entries are not needed any more, by the time or the log offset that `to_write` was given."""


class Unsaved(Protocol):
    """Entries in memory."""

    def __len__(self) -> int:
        """Return how many there are."""

    def chunks(self) -> Iterator[Entries]:
        """Yield all entries, in order; nothing may be put until the last chunk is yielded."""

    def take(self, newer: Self) -> None:
        """Put all entries of `newer`, which is used no more."""


Memory = TypeVar("Memory", bound=Unsaved)


@dataclass(slots=True, eq=False)
class RunsToWrite:
    """A run store at one moment, for a checkpoint: entries in memory and runs, which do not change."""

    schema: Schema
    folder: str
    number: int
    runs: tuple[Run, ...]
    recents: tuple[Unsaved, ...]
    named: frozenset[str]
    """The files that a snapshot on disk may name."""
    is_over: IsOver
    until: int
    """The time or offset that `is_over` is asked with."""
    damaged: set[int]
    written: tuple[Run, ...] | None = field(default=None, init=False)
    """The runs afterwards; None until it is written."""

    def write(self, disk: Disk) -> None:
        """Make one durable run of the new entries and of older runs that are due for a merge. Raise OSError.

        A run that is found damaged is left as it is, and so are those before it. The folder of a derived
        index in which nothing can be written is put aside, and all runs in it count as damaged.
        """
        try:
            self._write(disk)
        except OSError as error:
            if not self.schema.is_derived or is_of_others(error) or not is_unusable(disk, self.folder):
                raise
            put_aside(disk, self.folder, KEYS_ASIDE)
            for run in self.runs:
                run.unread = f"{self.folder} was put aside: {error.strerror or error}"
            self.damaged |= {run.number for run in self.runs}
            self._write(disk)

    def _write(self, disk: Disk) -> None:
        new_count = sum(map(len, self.recents))
        kept = _kept_count(self.runs, new_count) if new_count else len(self.runs)
        new: Run | None = None
        is_merged = False
        # Each turn finds one more damaged run or ends, since from `kept` on no known damage is left.
        while not is_merged:
            kept = max(kept, self._sound_from())
            try:
                new = self._merge(disk, kept)
                is_merged = True
            except StoreDamaged:
                assert kept < self._sound_from(), "damage that no run has"
        self.written = self.runs[:kept] if new is None else (*self.runs[:kept], new)

    def freeze(self) -> Any:
        """Return what a snapshot keeps of each run (`Run.freeze`); None if the index is to be made anew."""
        assert self.written is not None, "frozen before it was written"
        is_damaged = any(run.number in self.damaged for run in self.written)
        return None if self.schema.is_derived and is_damaged else [run.freeze() for run in self.written]

    def tidy(self, disk: Disk) -> None:
        """Delete the files that neither the new snapshot nor the one before it names."""
        assert self.written is not None, "tidied before it was written"
        _delete_all_but(disk, self.folder, self.named | _names(self.runs) | _names(self.written))

    def _sound_from(self) -> int:
        """Return the place from which on no run is damaged: 0 if none is, `len(runs)` if the newest is."""
        places = [place for place, run in enumerate(self.runs, 1) if run.number in self.damaged or run.lost]
        return max(places, default=0)

    def _merge(self, disk: Disk, kept: int) -> Run | None:
        merged = self.runs[kept:]
        count_max = sum(run.entry_count for run in merged) + sum(map(len, self.recents))
        if count_max == 0 or not self.recents:
            return None
        sources = [self._chunks(disk, run) for run in merged] + [recent.chunks() for recent in self.recents]
        gathered = map(self.schema.merged, passes(sources, "key", self.schema.minor))
        needed = (self._needed(entries, self.runs[:kept]) for entries in gathered)
        return write_run(disk, self.schema, self.folder, self.number, needed, count_max)

    def _chunks(self, disk: Disk, run: Run) -> Iterator[Entries]:
        try:
            yield from run.chunks(disk)
        except StoreDamaged:
            self.damaged.add(run.number)
            raise

    def _needed(self, entries: Entries, older: tuple[Run, ...]) -> Entries:
        """Return the entries without those that are over and hide no older one."""
        # A run that a filter lets through by mistake costs an entry that stays until the next merge, no more.
        is_over = self.is_over(entries, self.until)
        if self.schema.newest_only and older and is_over.any():
            probes = probes_of(entries["key"])
            for run in older:
                is_over &= ~run.may_hold_each(*probes)
        return entries[~is_over] if is_over.any() else entries


class RunStore(Generic[Memory]):
    """An index in one folder; empty until runs are adopted or entries are put."""

    def __init__(
        self, disk: Disk, folder: str, schema: Schema, begin: Callable[[], Memory], is_over: IsOver
    ) -> None:
        self._disk, self._folder, self._schema = disk, folder, schema
        self._begin, self._is_over = begin, is_over
        self._clear()

    def _clear(self) -> None:
        self._recent = self._begin()
        self._closed: list[Memory] = []
        self._closed_count = 0
        self._runs: tuple[Run, ...] = ()
        self._named: frozenset[str] = frozenset()
        self._damaged: frozenset[int] = frozenset()
        self._next_number = 0
        self._unnamed_count = 0
        self._spill_count = UNSAVED_MAX

    @property
    def is_full(self) -> bool:
        """Whether so much is in memory, or in runs that no snapshot names, that a checkpoint is due."""
        return len(self._recent) + self._closed_count + self._unnamed_count >= UNSAVED_MAX

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs as they are between checkpoints, oldest first."""
        return self._runs

    def recents(self) -> tuple[Memory, ...]:
        """Return the entries in memory, oldest first."""
        return (*self._closed, self._recent)

    @property
    def damaged_runs(self) -> list[Run]:
        """The runs that are known to be damaged."""
        return [run for run in self._runs if run.lost or run.number in self._damaged]

    @property
    def damage(self) -> str:
        """The known damage as a sentence; empty if there is none."""
        if self._schema.is_derived:
            return " ".join(run.damage for run in self.damaged_runs)
        return " ".join(run.wrong for run in self.damaged_runs)

    def found_damaged(self, runs: Iterable[Run]) -> None:
        """Note that runs are damaged; of runs that are not in use any more nothing is noted."""
        self._damaged |= {run.number for run in runs if run in self._runs}

    def to_write(self, until: int) -> RunsToWrite:
        """Return everything that a checkpoint needs, which may be written by another thread.

        Report its outcome by `written` or `failed`; until then nothing in memory is dropped.
        """
        if len(self._recent):
            self._closed.append(self._recent)
            self._closed_count += len(self._recent)
            self._recent = self._begin()
        # A number is used once, also when nothing comes of it: a file that a snapshot names never changes.
        self._next_number += 1
        assert all(run.number < self._next_number - 1 for run in self._runs), "a run's number comes again"
        return RunsToWrite(
            self._schema,
            self._folder,
            self._next_number - 1,
            self._runs,
            tuple(self._closed),
            self._named,
            self._is_over,
            until,
            set(self._damaged),
        )

    def written(self, done: RunsToWrite) -> None:
        """Let the runs of a checkpoint that is durable take the place of what they were made from."""
        self._take_over(done)
        self._named, self._unnamed_count = _names(self._runs), 0

    def failed(self, done: RunsToWrite) -> None:
        """Use the runs that a failed checkpoint has written all the same; a snapshot may name them."""
        # Its snapshot may have reached the disk before it failed: while later ones fail, that is the newest
        # there, and then the one before. So its files stay until a checkpoint succeeds, whatever merges them.
        if done.written is not None:
            self._named |= _names(done.written)
        self._use(done)

    def _use(self, done: RunsToWrite) -> None:
        """Use the runs that were written; if they were not, make the newest of their entries recent again."""
        if done.written is not None:
            self._unnamed_count += sum(map(len, done.recents))
            self._take_over(done)
        elif self._closed:
            # One structure is opened again: else checkpoints that fail one after the other would leave one
            # each, and every look-up asks all of them.
            newer, self._recent = self._recent, self._closed.pop()
            self._closed_count -= len(self._recent)
            self._recent.take(newer)

    def spill(self, until: int) -> None:
        """Write a run now if memory is full: for a start, which puts more than a checkpoint's worth.

        On a full disk what is new waits in memory, and is tried again when there is as much again.
        """
        if len(self._recent) + self._closed_count >= self._spill_count:
            done = self.to_write(until)
            try:
                done.write(self._disk)
                self._spill_count = UNSAVED_MAX
            except OSError:
                self._spill_count += UNSAVED_MAX
            self._use(done)

    def adopt(self, frozen: Any, others: Iterable[Any] = ()) -> str:
        """Take over the runs that a snapshot names; return in words what is wrong with them, empty if sound.

        The files that the other snapshots name stay as well. Of a derived index nothing is taken over unless
        all of it can be, and the disk can read it. Of any other a lost run stays, and is named by the next
        snapshots too: what it said is missing, not untrue. Raise OSError.
        """
        self._clear()
        runs = tuple(Run(self._schema, self._folder, *fields) for fields in frozen or ())
        kept = [Run(self._schema, self._folder, *fields) for other in others for fields in other or ()]
        self._named = _names(runs)
        self._next_number = 1 + max((run.number for run in (*runs, *kept)), default=-1)
        if why_not := self._delete_unnamed(self._named | _names(kept)):
            return why_not
        for run in runs:
            run.load(self._disk)
        if self._schema.is_derived:
            if frozen is None:
                return "the snapshot names no sound files"
            if lost := [run.lost for run in runs if run.lost]:
                return lost[0].removesuffix(f". {self._schema.advice}")
        self._runs = runs
        return self.damage

    def _delete_unnamed(self, names: frozenset[str]) -> str:
        """Delete the files that have none of the names; return in words why the folder cannot be listed.

        Empty if it can be. Files of a derived index that cannot be deleted are left to the next checkpoint;
        of any other index raise OSError.
        """
        try:
            _delete_all_but(self._disk, self._folder, names)
        except OSError as error:
            if not self._schema.is_derived or is_of_others(error):
                raise
            with suppress(OSError):
                self._disk.list(self._folder)
                return ""
            return f"the folder {self._folder} cannot be listed ({error.strerror or error})"
        return ""

    def drop(self) -> None:
        """Delete the index; put the folder of a derived one aside where it stays. Raise OSError."""
        self._clear()
        try:
            self._disk.delete(self._folder)
        except OSError as error:
            if not self._schema.is_derived or is_of_others(error):
                raise
            put_aside(self._disk, self._folder, KEYS_ASIDE)

    def _take_over(self, done: RunsToWrite) -> None:
        assert done.written is not None, "nothing was written"
        assert len(done.recents) <= len(self._closed), "entries of a checkpoint are gone"
        self._runs = done.written
        known = self._damaged | done.damaged
        self._damaged = frozenset(run.number for run in self._runs if run.number in known)
        del self._closed[: len(done.recents)]
        self._closed_count = sum(map(len, self._closed))


def _kept_count(runs: Sequence[Run], new_count: int) -> int:
    """Return how many of the runs, oldest first, stay as they are when `new_count` entries come after."""
    behind = new_count + sum(run.entry_count for run in runs)
    for position, run in enumerate(runs):
        behind -= run.entry_count
        if run.entry_count * _GROWTH <= behind:
            return position
    return len(runs)


def _names(runs: Iterable[Run]) -> frozenset[str]:
    return frozenset(run.name for run in runs)


def _delete_all_but(disk: Disk, folder: str, names: frozenset[str]) -> None:
    """Delete the files of a folder that have none of the names, as far as the disk lets them go.

    Raise the first OSError in the end: a file that stays must not keep the others there.
    """
    failed: list[OSError] = []
    for name in disk.list(folder):
        if name not in names:
            try:
                disk.delete(f"{folder}/{name}")
            except OSError as error:
                failed.append(error)
    if failed:
        raise failed[0]
