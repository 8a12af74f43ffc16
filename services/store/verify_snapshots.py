"""Whether each snapshot says what the log says: folding the log up to it from an earlier one leads to it.

What no record says may differ: ends and names that are forgotten with time, messages that a group's filter
passed over (before that was recorded), messages that retention has deleted since. Across damage, or where the
log no longer reaches back, nothing can be compared; nor up to where an import copied the log, whose records
do not say what its snapshot says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np

from commitlog import imported, snapshot
from commitlog.recovery import Damage
from consumequeue.offset_ranges import OffsetRanges
from services.store.comparing import NO_OFFSETS, difference, unrecorded_offsets
from services.store.findings import Finding
from services.store.opening import OpenStore
from services.store.state import GroupState, State, fold, stored_state
from services.store.timers import StoredTimers, timer_files_are_there
from timingwheel.boundaries import Numbers

FirstOffsets = Mapping[tuple[str, int], int]
"""The lowest queue offset of each queue, by (topic, queue id)."""


def check_snapshots(
    store: OpenStore, damaged: Collection[Damage], first_offsets: FirstOffsets, now_ms: int
) -> Iterator[Finding]:
    """Yield what is wrong with the snapshots of a store.

    `first_offsets` are those that the log still holds.
    """
    imported_offset = imported.read(store.overlay())
    base = 0 if store.first_offset == 0 == imported_offset else None
    for offset in store.snapshot_offsets:
        path = snapshot.path_of(offset)
        if store.files.size(path) < 0:
            continue
        stored = snapshot.read(store.overlay(offset), offset)
        if stored is None:
            yield Finding("snapshot", path, offset, offset, "does not match its CRC; the other one is used")
            continue
        if not timer_files_are_there(store, stored):
            base = None
            continue
        if base is None or any(one.first_offset < offset and one.end_offset > base for one in damaged):
            if offset != imported_offset:
                yield Finding("snapshot", path, offset, offset, "has no whole log to be compared with", False)
        else:
            folded = fold(store, now_ms, offset, newest=base)
            for what in differences(folded, stored_state(store, stored), first_offsets):
                yield Finding("snapshot", path, base, offset, what)
        # One that a failing disk did not let go may be older than the log by now: nothing follows from it.
        base = offset if offset >= store.first_offset else None


def differences(folded: State, stored: State, first_offsets: FirstOffsets) -> Iterator[str]:
    """Yield how a stored state contradicts the one that the log leads to."""
    yield from _differing("topics", set(folded.topics), set(stored.topics))
    yield from _differing("next offsets", set(folded.next_offsets.items()), set(stored.next_offsets.items()))
    yield from _differing("epochs", {folded.epoch}, {stored.epoch})
    yield from _timers(folded.timers, stored.timers)
    for state in ("OPEN", "EXPIRED"):
        waiting = [{one.half_offset for one in of.halves_in(state)} for of in (folded, stored)]
        yield from _differing(f"{state.lower()} halves", *waiting)
    halves = [{(one.half_offset, one.state) for one in of.halves} for of in (folded, stored)]
    yield from _surplus("half ends", *halves)
    yield from _differing("schedules", set(folded.schedules), set(stored.schedules))
    yield from differences_of_groups(folded.groups, stored.groups, first_offsets)


def _timers(folded: StoredTimers, stored: StoredTimers) -> Iterator[str]:
    unrecorded = unrecorded_offsets(stored)
    waiting = np.setdiff1d(folded.offsets(), unrecorded), stored.offsets()
    more, less = np.setdiff1d(waiting[1], waiting[0]), np.setdiff1d(waiting[0], waiting[1])
    if len(more) or len(less):
        yield f"its pending timers are not those of the log: {_some(more)} more, {_some(less)} less"
    names = difference(stored.names.newest(stored.disk), folded.names.newest(folded.disk))
    named = np.concatenate([NO_OFFSETS, *(facts["offset"] for facts in names)])
    if len(named):
        yield f"its names of timers are not in the log: {_some(named)}"
    ends = difference(stored.ends.newest(stored.disk), folded.ends.newest(folded.disk))
    ended = np.setdiff1d(np.concatenate([NO_OFFSETS, *(facts["key"] for facts in ends)]), unrecorded)
    if len(ended):
        yield f"its timer ends are not in the log: {_some(ended)}"


def differences_of_groups(
    folded: Collection[GroupState], stored: Collection[GroupState], first_offsets: FirstOffsets
) -> Iterator[str]:
    """Yield which groups had done more by the log than by a snapshot, of messages that the log holds."""
    done = {(one.group, one.topic, one.queue_id): one for one in stored}
    for one in folded:
        nothing = replace(one, committed_offset=0, done_above=())
        there = done.get((one.group, one.topic, one.queue_id), nothing)
        first_offset = first_offsets.get((one.topic, one.queue_id), one.end_offset)
        if not _covers(there, one, first_offset):
            yield f"group {one.group} has done less on {one.topic} queue {one.queue_id} than the log says"


def _covers(more: GroupState, less: GroupState, first_offset: int) -> bool:
    done = OffsetRanges(more.done_above)
    # What was done out of order may begin where retention ends: then it is committed as well.
    committed_offset = done.behind(max(more.committed_offset, first_offset))
    return less.committed_offset <= committed_offset and all(
        done.behind(max(first, committed_offset)) >= first + count for first, count in less.done_above
    )


def _differing(name: str, folded: AbstractSet[object], stored: AbstractSet[object]) -> Iterator[str]:
    if folded != stored:
        more, less = _some(stored - folded), _some(folded - stored)
        yield f"its {name} are not those of the log: {more} more, {less} less"


def _surplus(name: str, folded: set[tuple[int, str]], stored: set[tuple[int, str]]) -> Iterator[str]:
    if not stored <= folded:
        yield f"its {name} are not in the log: {_some(stored - folded)}"


def _some(values: Collection[object] | Numbers) -> str:
    return ", ".join(str(value) for value in list(values)[:3]) or "none"
