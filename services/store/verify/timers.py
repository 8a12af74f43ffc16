"""Verification of timers across the log, the partitions, names and ends, and the broker's counts.

pending timer        is stored in exactly one place, its record can be read, and it has not ended
timer of the log     is pending or has ended
timer with a name    is pending, or its end is stored as long as its name. Otherwise it would be treated as
                     pending
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Snapshot
from services.broker.timers.timer_ends import ENDS, last_ms
from services.store.findings import Finding
from services.store.read_only.opening import OpenStore
from services.store.read_only.timers import StoredTimers
from services.store.verify.comparing import ended_offsets
from services.store.verify.facts import PARTS, check_facts
from services.store.verify.invariants import Invariants
from services.store.verify.partitions import check_partitions
from timingwheel.boundaries import Numbers
from timingwheel.partition import IN_LOG


def check_timer_files(store: OpenStore, rules: Invariants) -> list[Finding]:
    """Return the findings about the timer files that snapshots name.

    `rules` must have processed every record.

    A running broker may delete a snapshot and its files in the meantime, which is not damage.
    """
    found = sound_snapshots(store)
    if not found:
        return []
    findings = [
        *check_partitions(store, found, rules.timers.stored),
        *check_facts(store, found, rules),
    ]
    is_changed = any(store.files.size(snapshot.path_of(one.offset)) < 0 for one in found)
    return check_timer_files(store, rules) if is_changed else findings


def sound_snapshots(store: OpenStore) -> list[Snapshot]:
    """Return the existing snapshots that can be read."""
    disk = store.overlay()
    there = [at for at in store.snapshot_offsets if store.files.size(snapshot.path_of(at)) >= 0]
    return [one for at in there if (one := snapshot.read(disk, at)) is not None]


def check_waiting(
    timers: StoredTimers, rules: Invariants, kept: Collection[int], now_ms: int
) -> Iterator[Finding]:
    """Yield the findings about pending timers after a replay. `now_ms` is the broker's time."""
    waiting, known = timers.offsets(), ended_offsets(timers)
    yield from _told(waiting[1:][waiting[1:] == waiting[:-1]], "waits in more than one place")
    stored, ended = _array(rules.timers.stored), _array(rules.timers.ended)
    yield from _told(np.intersect1d(waiting, ended), "waits, but the log says that it has ended")
    readable = np.union1d(stored, _array(kept))
    bare = np.setdiff1d(_in_log(timers), readable)
    yield from _told(bare, "waits, but its record cannot be read")
    gone = np.setdiff1d(np.setdiff1d(stored, waiting), np.union1d(ended, known))
    yield from _told(gone, "neither waits nor has ended")
    over = np.setdiff1d(_named(timers), np.union1d(waiting, known))
    for offset in over.tolist():
        what = f"the timer at {offset} has a name and does not wait, but its end is not known"
        yield Finding(PARTS[ENDS], ENDS, -1, -1, what)
    if len(waiting) != timers.counted_count:
        what = f"{len(waiting)} timers wait, the broker counts {timers.counted_count}"
        yield Finding("timer", "", -1, -1, what)


def _named(timers: StoredTimers) -> Numbers:
    """Return the named timers whose ends cannot have been dropped by a merge."""
    found = [np.empty(0, np.uint64)]
    for facts in timers.names.newest(timers.disk):
        found.append(facts["offset"][last_ms(facts) >= np.uint64(timers.forgotten_ms)])
    return np.concatenate(found)


def _in_log(timers: StoredTimers) -> Numbers:
    """Return the pending timers whose records are only in the log."""
    found = [np.empty(0, np.uint64)]
    for rows, path in timers.places():
        is_there = rows["record_at"] == IN_LOG if path is not None else np.ones(len(rows), np.bool_)
        found.append(rows["timer_offset"][is_there].copy())
    return np.concatenate(found)


def _array(offsets: Collection[int]) -> Numbers:
    return np.sort(np.fromiter(offsets, np.uint64, len(offsets)))


def _told(timer_offsets: Numbers, what: str) -> Iterator[Finding]:
    for offset in timer_offsets.tolist():
        yield Finding("timer", "", offset, offset, f"the timer at {offset} {what}")
