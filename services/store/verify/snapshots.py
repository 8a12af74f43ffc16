"""Verification of snapshots: the log is replayed from the previous snapshot and the resulting state is
compared.

Differences that are not recorded in the log are ignored: ends and names that expire with time, messages
skipped by a group's filter (in older logs), and messages that retention has deleted since. No comparison is
possible across damage, beyond the start of the log, or up to the end of an imported log, whose records do not
contain the state of its snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np

from commitlog.log import imported
from commitlog.log.recovery import Damage
from commitlog.snapshots import snapshot
from consumequeue.groups.offset_ranges import OffsetRanges
from services.store.findings import Finding
from services.store.read_only.opening import OpenStore
from services.store.read_only.state import GroupState, State, fold, stored_state
from services.store.read_only.timers import StoredTimers, timer_files_are_there
from services.store.verify.comparing import NO_OFFSETS, difference, unrecorded_offsets
from timingwheel.boundaries import Numbers

FirstOffsets = Mapping[tuple[str, int], int]
"""The lowest queue offset of each queue, by (topic, queue id)."""


def check_snapshots(
    store: OpenStore, damaged: Collection[Damage], first_offsets: FirstOffsets, now_ms: int
) -> Iterator[Finding]:
    """Yield all findings about the snapshots of a store.

    `first_offsets` are the first queue offsets that the log still contains.
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
        # A snapshot that could not be deleted because of a disk error may be older than the log, so it is not
        # used as a base.
        base = offset if offset >= store.first_offset else None


def differences(folded: State, stored: State, first_offsets: FirstOffsets) -> Iterator[str]:
    """Yield the contradictions between a stored state and the replayed state."""
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
    """Yield the groups that have acknowledged more messages according to the log than according to a
    snapshot.
    """
    done = {(one.group, one.topic, one.queue_id): one for one in stored}
    for one in folded:
        nothing = replace(one, committed_offset=0, done_above=())
        there = done.get((one.group, one.topic, one.queue_id), nothing)
        first_offset = first_offsets.get((one.topic, one.queue_id), one.end_offset)
        if not _covers(there, one, first_offset):
            yield f"group {one.group} has done less on {one.topic} queue {one.queue_id} than the log says"


def _covers(more: GroupState, less: GroupState, first_offset: int) -> bool:
    done = OffsetRanges(more.done_above)
    # An out-of-order range may begin at the start of the retained log, where it counts as committed.
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
