"""Run stores.

A run store is an index with recent entries in memory and older ones in sorted runs.

    put ----> recent (memory) ----> closed ----> runs (`consumequeue.runs.sorted_runs`)
              since the last to_write            written and merged by checkpoints

There are two kinds of run store, each with its own schema, memory structure, and lookup methods:

                    key index (`keyindex.py`)          timer index (`timerindex.py`)
    an entry        hash of a key, offset of a record  key, check, offset of a record, at, extra
    valid entries   every entry, newest first          the highest offset of a (key, check)
    order of puts   log order                          any order
    expired         below the log's first offset       as defined by the caller (rule 2)
    damage          the index is rebuilt (rule 3)      intact blocks remain readable (rule 3)

1. The checkpoint worker writes the files and lists them in its snapshot. Files never change, and file numbers
   are never reused. A file is deleted when neither the new nor the previous snapshot lists it, because
   recovery may start from either. A failed checkpoint may have written its snapshot. Runs it wrote are kept
   until a checkpoint succeeds.
2. A merge drops expired entries. If only a key's newest entry is valid, an expired entry is kept if a run
   outside the merge may contain an older entry for that key. Dropping the expired entry would make the older
   one valid again. A lookup may thus return expired entries, so the caller must check for them.
3. A damaged run and all older runs are never merged. A derived index can be rebuilt from the log, and is
   restored either completely or not at all. If it has a damaged run, snapshots store None instead, and the
   next startup rebuilds the index. If its folder cannot be written, the folder is set aside
   (`consumequeue.aside`). In other indexes, damaged runs are kept, because they contain the only copies of
   their entries. Lookups that need a damaged block raise `StoreDamaged`. All other lookups succeed. A read
   error (EIO) is treated as damage and does not prevent startup or checkpoints.
4. A run is merged when all later runs and the new entries together contain at least three times as many
   entries. An index thus has about three runs of each size, and an entry is only ever rewritten into a run at
   least four times as large.

A checkpoint is due when `UNSAVED_MAX` entries are in memory or in runs that no snapshot lists. Recovery may
replay more entries, so it writes runs during the replay (`spill`). Limitation: a damaged run prevents all
older runs from being merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import KEYS_ASIDE
from consumequeue.aside import is_unusable, put_aside
from consumequeue.queue import is_unrelated_error
from consumequeue.runs.bloom_filter import Mask, probes_of
from consumequeue.runs.sorted_runs import Entries, Run, Schema, passes, write_run

UNSAVED_MAX: Final = 1_000_000
_GROWTH: Final = 3

IsOver = Callable[[Entries, int], Mask]
"""Returns for each entry whether it has expired at a time or log offset."""


class Unsaved(Protocol):
    """An index's entries in memory."""

    def __len__(self) -> int:
        """Return the number of entries."""

    def chunks(self) -> Iterator[Entries]:
        """Yield all entries in order. Do not add entries during the iteration."""

    def take(self, newer: Self) -> None:
        """Take over all entries from `newer`. Do not use `newer` afterwards."""


Memory = TypeVar("Memory", bound=Unsaved)


@dataclass(slots=True, eq=False)
class RunsToWrite:
    """The run store state for a checkpoint.

    It consists of closed memory structures and runs.
    """

    schema: Schema
    folder: str
    number: int
    runs: tuple[Run, ...]
    recents: tuple[Unsaved, ...]
    named: frozenset[str]
    """Names of files that snapshots on disk may list."""
    is_over: IsOver
    until: int
    """Time or log offset for `is_over`."""
    damaged: set[int]
    written: tuple[Run, ...] | None = field(default=None, init=False)
    """Runs after `write`, or None before."""

    def write(self, disk: Disk) -> None:
        """Merge the new entries and the runs selected by rule 4 into a durable run.

        A damaged run and all older runs remain unchanged. If the folder of a derived index cannot be written,
        set it aside and treat all runs as damaged. Raise OSError on failure.
        """
        try:
            self._write(disk)
        except OSError as error:
            if not self.schema.is_derived or is_unrelated_error(error) or not is_unusable(disk, self.folder):
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
        # Each iteration either finds another damaged run or is the last one, because no run at or after
        # `kept` is known to be damaged.
        while not is_merged:
            kept = max(kept, self._sound_from())
            try:
                new = self._merge(disk, kept)
                is_merged = True
            except StoreDamaged:
                assert kept < self._sound_from(), "damage that no run has"
        self.written = self.runs[:kept] if new is None else (*self.runs[:kept], new)

    def freeze(self) -> Any:
        """Return one snapshot row per run (`Run.freeze`), or None if the index must be rebuilt."""
        assert self.written is not None, "frozen before it was written"
        is_damaged = any(run.number in self.damaged for run in self.written)
        return None if self.schema.is_derived and is_damaged else [run.freeze() for run in self.written]

    def delete_unused(self, disk: Disk) -> None:
        """Delete the files that neither the new nor the previous snapshot lists."""
        assert self.written is not None, "tidied before it was written"
        _delete_all_but(disk, self.folder, self.named | _names(self.runs) | _names(self.written))

    def _sound_from(self) -> int:
        """Return the position following the newest damaged run, or 0 if no run is damaged."""
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
        """Return all entries except expired ones that supersede no older entry."""
        # After a false positive of a filter, an expired entry is only kept until the next merge.
        is_over = self.is_over(entries, self.until)
        if self.schema.newest_only and older and is_over.any():
            probes = probes_of(entries["key"])
            for run in older:
                is_over &= ~run.may_hold_each(*probes)
        return entries[~is_over] if is_over.any() else entries


class RunStore(Generic[Memory]):
    """An index in one folder. It is initially empty."""

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
        """Whether a checkpoint is due.

        It is due if too many entries are in memory or in runs that no snapshot lists.
        """
        return len(self._recent) + self._closed_count + self._unnamed_count >= UNSAVED_MAX

    @property
    def runs(self) -> tuple[Run, ...]:
        """Current runs, from oldest to newest."""
        return self._runs

    def recents(self) -> tuple[Memory, ...]:
        """Return the entries in memory, from oldest to newest."""
        return (*self._closed, self._recent)

    @property
    def damaged_runs(self) -> list[Run]:
        """Runs known to be damaged."""
        return [run for run in self._runs if run.lost or run.number in self._damaged]

    @property
    def damage(self) -> str:
        """Description of the known damage, or "" if there is none."""
        if self._schema.is_derived:
            return " ".join(run.damage for run in self.damaged_runs)
        return " ".join(run.wrong for run in self.damaged_runs)

    def found_damaged(self, runs: Iterable[Run]) -> None:
        """Record damaged runs. Runs that are no longer in use are ignored."""
        self._damaged |= {run.number for run in runs if run in self._runs}

    def to_write(self, until: int) -> RunsToWrite:
        """Return the state to be written by a checkpoint, possibly on another thread.

        The caller must call `written` or `failed`. The entries remain in memory until then.
        """
        if len(self._recent):
            self._closed.append(self._recent)
            self._closed_count += len(self._recent)
            self._recent = self._begin()
        # Each number is used only once, even if no file is written, because a file listed in a snapshot must
        # never change.
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
        """After a checkpoint, replace the written entries and merged runs with the new runs."""
        self._take_over(done)
        self._named, self._unnamed_count = _names(self._runs), 0

    def failed(self, done: RunsToWrite) -> None:
        """Adopt the runs written by a failed checkpoint, because a snapshot may list them."""
        # The snapshot of the checkpoint may have been written before the failure, and may now be the newest
        # or the previous snapshot. Therefore, its files are kept until a checkpoint succeeds, even if they
        # have been merged.
        if done.written is not None:
            self._named |= _names(done.written)
        self._adopt_runs(done)

    def _adopt_runs(self, done: RunsToWrite) -> None:
        """Use the written runs. If there are no runs, reopen the newest closed structure."""
        if done.written is not None:
            self._unnamed_count += sum(map(len, done.recents))
            self._take_over(done)
        elif self._closed:
            # Only one structure is reopened. Otherwise, every failed checkpoint would leave another structure
            # behind, and each lookup searches all structures.
            newer, self._recent = self._recent, self._closed.pop()
            self._closed_count -= len(self._recent)
            self._recent.take(newer)

    def spill(self, until: int) -> None:
        """Write a run if too many entries are in memory.

        Used by recovery, which may add any number of entries. If the write fails, the entries stay in memory,
        and the write is retried after `UNSAVED_MAX` more entries.
        """
        if len(self._recent) + self._closed_count >= self._spill_count:
            done = self.to_write(until)
            try:
                done.write(self._disk)
                self._spill_count = UNSAVED_MAX
            except OSError:
                self._spill_count += UNSAVED_MAX
            self._adopt_runs(done)

    def adopt(self, frozen: Any, others: Iterable[Any] = ()) -> str:
        """Restore the runs from a snapshot. Return a description of any damage, or "".

        Files listed in other snapshots are kept, and all other files are deleted. A derived index is restored
        only if all runs are undamaged. In any other index, an unreadable run is kept and listed in later
        snapshots, because all other entries are still correct. Raise OSError on failure.
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
        """Delete all files not in `names`.

        Return an error message if the folder cannot be listed, or "". If a file of a derived index cannot be
        deleted, the next checkpoint tries again. For any other index, raise OSError.
        """
        try:
            _delete_all_but(self._disk, self._folder, names)
        except OSError as error:
            if not self._schema.is_derived or is_unrelated_error(error):
                raise
            with suppress(OSError):
                self._disk.list(self._folder)
                return ""
            return f"the folder {self._folder} cannot be listed ({error.strerror or error})"
        return ""

    def drop(self) -> None:
        """Delete the index.

        If a derived index cannot be deleted, set its folder aside. Raise OSError on failure.
        """
        self._clear()
        try:
            self._disk.delete(self._folder)
        except OSError as error:
            if not self._schema.is_derived or is_unrelated_error(error):
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
    """Return how many of the oldest runs to leave out of a merge with `new_count` new entries."""
    behind = new_count + sum(run.entry_count for run in runs)
    for position, run in enumerate(runs):
        behind -= run.entry_count
        if run.entry_count * _GROWTH <= behind:
            return position
    return len(runs)


def _names(runs: Iterable[Run]) -> frozenset[str]:
    return frozenset(run.name for run in runs)


def _delete_all_but(disk: Disk, folder: str, names: frozenset[str]) -> None:
    """Delete all files in a folder that are not in `names`.

    If a deletion fails, the others are still attempted. The first OSError is raised at the end.
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
