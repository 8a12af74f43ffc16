"""Verification of the names and ends of timers: each run that a snapshot names, block by block.

    run       exists with the head in the snapshot. Every block, the fences and the filter are sound. A run
              that only an older snapshot names may be missing, because a start deletes it
    order     the facts ascend, the fences contain the first fact of each block, and the filter contains all
              facts
    log       a name or end refers to a matching record, if the log still has it

Memory: some blocks of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from commitlog.records.kinds import End
from commitlog.snapshots.snapshot import Snapshot
from consumequeue.indexes.timerindex_fact import Facts
from consumequeue.runs.bloom_filter import probes_of
from consumequeue.runs.sorted_runs import BLOCK_BYTES, Entries, Run
from services.broker.timers.timer_ends import ENDS, KIND_SHIFT, NAMES
from services.broker.timers.timer_files import TIMER_FILES
from services.store.findings import Finding
from services.store.read_only.opening import OpenStore
from services.store.read_only.timers import runs_of
from services.store.verify.invariants import Invariants

PARTS: Final = {NAMES: "names", ENDS: "ends"}
"""The part name of a finding by folder, which is also the part name in a snapshot's `ends`."""

Untrue = Callable[[Entries], Iterator[str]]
"""Yields the contradictions between entries of a run and the log."""


def check_facts(store: OpenStore, found: Sequence[Snapshot], rules: Invariants) -> Iterator[Finding]:
    """Yield all findings. `rules` must have processed every record."""
    untrue: dict[str, Untrue] = {
        NAMES: lambda facts: _untrue_names(facts, rules),
        ENDS: lambda facts: _untrue_ends(facts, rules),
    }
    needed = {run.path for run in named_runs(found[-1:])}
    for run in named_runs(found):
        is_damage = run.path in needed or store.files.size(run.path) >= 0
        for first, end, what in RunCheck(store, run, untrue[run.folder]).problems():
            yield Finding(PARTS[run.folder], run.path, first, end, what, is_damage)


def named_runs(found: Sequence[Snapshot]) -> list[Run]:
    """Return the runs that any of the snapshots names, without duplicates."""
    runs = {
        (run.path, *run.freeze()): run
        for one in found
        for folder, part in PARTS.items()
        for run in runs_of(folder, one.parts[TIMER_FILES]["ends"][part])
    }
    return [run for _, run in sorted(runs.items())]


class RunCheck:
    """Verification of one run, block by block."""

    def __init__(self, store: OpenStore, run: Run, untrue: Untrue) -> None:
        self._run, self._disk, self._untrue = run, store.overlay(), untrue
        self._last = (-1, -1)
        self._entry_count = 0

    def problems(self) -> Iterator[tuple[int, int, str]]:
        """Yield (first byte, end, description).

        The positions are -1 if the problem does not concern specific bytes.
        """
        run = self._run
        run.load(self._disk)
        if run.lost:
            missing = "is missing, cut, or has another head than a snapshot names"
            yield -1, -1, f"cannot be read ({run.unread}); it can be made anew" if run.unread else missing
            return
        if not run.is_tail_sound:
            what = "its fences or its filter do not match their CRC; answers are right, and slow"
            yield run.tail_at, self._disk.size(run.path), what
        lost_blocks: list[int] = []
        for entries in run.readable(self._disk, lost_blocks):
            for what in (*self._disorder(entries), *self._untrue(entries)):
                yield -1, -1, what
        for number in lost_blocks:
            position = (1 + number) * BLOCK_BYTES
            how = f"cannot be read ({run.unread})" if run.unread else "does not match its CRC"
            yield position, position + BLOCK_BYTES, f"its block at byte {position} {how}"
        if not lost_blocks and self._entry_count != run.entry_count:
            yield -1, -1, f"holds {self._entry_count} entries, a snapshot counts {run.entry_count}"

    def _disorder(self, entries: Entries) -> Iterator[str]:
        run, keys, minors = self._run, entries["key"], entries[self._run.schema.minor]
        if len(entries) == 0:
            return
        first = (int(keys[0]), int(minors[0]))
        ascends = (keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & (minors[1:] > minors[:-1]))
        if first <= self._last or not ascends.all():
            yield "its entries are not in order"
        self._last = (int(keys[-1]), int(minors[-1]))
        if run.fences is not None and not np.isin(keys[:: run.schema.block_entries], run.fences).all():
            yield "its fences do not name the first entries of its blocks"
        if not run.may_hold_each(*probes_of(keys)).all():
            yield "its filter does not know an entry that it holds"
        offsets = entries["offset"]
        if int(offsets.min()) < run.first_offset or int(offsets.max()) >= run.end_offset:
            yield "it holds an entry of another part of the log"
        self._entry_count += len(entries)


def _untrue_names(facts: Facts, rules: Invariants) -> Iterator[str]:
    for timer_offset in facts["offset"].tolist():
        if rules.must_hold(timer_offset) and timer_offset not in rules.timers.stored:
            yield f"it names a timer at {timer_offset}, where there is none"


def _untrue_ends(facts: Facts, rules: Invariants) -> Iterator[str]:
    for timer_offset, _, ended_offset, _, extra in facts.tolist():
        kind = extra >> KIND_SHIFT
        if kind not in End.__members__.values():
            yield f"it says that timer {timer_offset} ended in a way that there is not: {kind}"
        elif (
            timer_offset != ended_offset  # in this case no record contains the end
            and rules.must_hold(ended_offset)
            and rules.timers.ended.get(timer_offset) != ended_offset
        ):
            yield f"it says that {ended_offset} ended timer {timer_offset}, and the log does not"
