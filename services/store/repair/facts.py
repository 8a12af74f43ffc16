"""Repair of the names and ends of timers.

    damaged                                        action
    head, fences or filter, but no block           the run is rewritten without loss (`mend`)
    blocks, or the file is missing                 `give_up`, only on request

After retention has deleted the records, the content of lost blocks exists nowhere else, so it is given up
only at the operator's request. `give_up` then writes new runs from the remaining data:

1. the readable facts of the damaged runs;
2. names and ends from the log, up to the newest snapshot;
3. the names of all pending timers, from their own records, so that each key still has one timer;
4. for each other name, an end without further information, so that no delivered timer is treated as pending.

The snapshot is rewritten with these runs. The older snapshot is moved to quarantine, because it names lost
runs. Memory: up to a million facts, and 8 bytes per timer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.facts.facts import TimerEnded, TimerSet, facts_of
from commitlog.records.kinds import End
from commitlog.records.record import Record
from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Snapshot
from consumequeue.indexes.timerindex import FACTS
from consumequeue.indexes.timerindex_fact import FACT, Facts
from consumequeue.indexes.timerindex_recent import Recent
from consumequeue.runs.run_store import UNSAVED_MAX
from consumequeue.runs.sorted_runs import Run, write_run
from services.broker.timers.timer_ends import ENDS, NAMES, end_extra, words_of
from services.broker.timers.timer_files import TIMER_FILES
from services.store.keeping import set_aside
from services.store.read_only.opening import OpenStore
from services.store.read_only.state import fold
from services.store.read_only.timers import FactSource, StoredTimers, runs_of
from services.store.verify.comparing import ended_offsets
from services.store.verify.facts import PARTS

_BATCH_FACTS: Final = 4096

Fact = tuple[int, int, int, int, int]
"""key, check, offset, at, extra: see `consumequeue.indexes.timerindex_fact`."""


def is_whole(run: Run, disk: Disk) -> bool:
    """Return whether all facts of a run can be read, regardless of the rest of its file."""
    lost_blocks: list[int] = []
    count, first_offset, end_offset = 0, run.end_offset, 0
    for facts in run.readable(disk, lost_blocks):
        count += len(facts)
        first_offset = min(first_offset, int(facts["offset"].min(initial=first_offset)))
        end_offset = max(end_offset, int(facts["offset"].max(initial=0)) + 1)
    found = (count, first_offset, end_offset)
    return not lost_blocks and found == (run.entry_count, run.first_offset, run.end_offset)


def mend(run: Run, disk: Disk) -> None:
    """Rewrite a run whose facts can all be read."""
    write_run(disk, FACTS, run.folder, run.number, run.readable(disk, []), run.entry_count)


def give_up(store: OpenStore, disk: Disk, lost: Iterable[Run], now_ms: int) -> None:
    """Write names and ends without the lost runs. The store's lock must be held."""
    newest = snapshot.newest(disk)
    assert newest is not None, "without a snapshot there is no run that it names"
    lost = list(lost)
    runs = {folder: _kept(newest, folder, lost) for folder in PARTS}
    timers = fold(store, now_ms, newest.offset).timers
    runs[NAMES] += _made(disk, newest, NAMES, _names(store, newest, timers), lost)
    runs[ENDS] += _made(disk, newest, ENDS, _ends(store, newest), lost)
    timers = replace(timers, names=FactSource(tuple(runs[NAMES])), ends=FactSource(tuple(runs[ENDS])))
    runs[ENDS] += _made(disk, newest, ENDS, _over(timers), [])
    for offset in snapshot.offsets(disk):
        if offset != newest.offset:
            set_aside(disk, snapshot.path_of(offset))
    _renamed(newest, runs).write(disk)
    for run in lost:
        set_aside(disk, run.path)


def _kept(newest: Snapshot, folder: str, lost: list[Run]) -> list[Run]:
    lost_paths = {run.path for run in lost}
    named = runs_of(folder, newest.parts[TIMER_FILES]["ends"][PARTS[folder]])
    return [run for run in named if run.path not in lost_paths]


def _made(disk: Disk, newest: Snapshot, folder: str, facts: Iterator[Fact], lost: list[Run]) -> list[Run]:
    """Return new runs of facts, including the readable facts of lost runs."""
    runs: list[Run] = []
    recent = Recent()
    salvaged = (chunk for run in lost if run.folder == folder for chunk in run.readable(disk, []))
    for chunk in chain(salvaged, _batches(facts)):
        recent.put_many(chunk)
        if len(recent) >= UNSAVED_MAX:
            runs += _written(disk, newest, folder, recent)
            recent = Recent()
    return runs + _written(disk, newest, folder, recent)


def _written(disk: Disk, newest: Snapshot, folder: str, recent: Recent) -> list[Run]:
    named = runs_of(folder, newest.parts[TIMER_FILES]["ends"][PARTS[folder]])
    there = [int(name) for name in disk.list(folder) if name.isdigit()]
    number = 1 + max([-1, *there, *(run.number for run in named)])
    run = write_run(disk, FACTS, folder, number, recent.chunks(), len(recent))
    return [] if run is None else [run]


def _batches(facts: Iterator[Fact]) -> Iterator[Facts]:
    held: list[Fact] = []
    for fact in facts:
        held.append(fact)
        if len(held) == _BATCH_FACTS:
            yield np.array(held, FACT)
            held = []
    yield np.array(held, FACT)


def _names(store: OpenStore, newest: Snapshot, timers: StoredTimers) -> Iterator[Fact]:
    for found in store.scan(until=newest.offset):
        yield from _names_of(found.record)
    for waiting in timers.waiting():
        if waiting.record is not None:
            yield from _names_of(waiting.record)


def _names_of(record: Record) -> Iterator[Fact]:
    for timer in (fact for fact in facts_of(record) if isinstance(fact, TimerSet)):
        for words in words_of(timer):
            yield *words, record.physical_offset, timer.due_ms, record.store_ms


def _ends(store: OpenStore, newest: Snapshot) -> Iterator[Fact]:
    for found in store.scan(until=newest.offset):
        record = found.record
        for ended in (fact for fact in facts_of(record) if isinstance(fact, TimerEnded)):
            extra = end_extra(ended.end, ended.due_ms)
            yield ended.timer_offset, 0, record.physical_offset, record.store_ms, extra


def _over(timers: StoredTimers) -> Iterator[Fact]:
    """Yield ends for the timers that have a name, are not pending, and have no known end."""
    known = np.union1d(timers.offsets(), ended_offsets(timers))
    for facts in timers.names.newest(timers.disk):
        for _, _, timer_offset, due_ms, _ in facts[~np.isin(facts["offset"], known)].tolist():
            yield timer_offset, 0, timer_offset, due_ms, end_extra(End.UNREADABLE, due_ms)


def _renamed(newest: Snapshot, runs: dict[str, list[Run]]) -> Snapshot:
    ends: dict[str, Any] = {PARTS[folder]: [run.freeze() for run in named] for folder, named in runs.items()}
    forgotten_ms = newest.parts[TIMER_FILES]["ends"]["forgotten_ms"]
    damaged: dict[str, list[int]] = {part: [] for part in PARTS.values()}
    ends |= {"forgotten_ms": forgotten_ms, "damaged": damaged}
    files = newest.parts[TIMER_FILES] | {"ends": ends}
    return replace(newest, parts=newest.parts | {TIMER_FILES: files})
