"""Policies for the missed runs of schedules.

A policy determines which missed runs are dropped. All other missed runs are sent, oldest first.

    policy  dropped runs
    skip    all runs that are more than `limits.SCHEDULE_LATE_MS_MAX` milliseconds late
    once    all runs before the last due run
    all     all runs before the newest `missed_max` due runs

Missed runs are never fully enumerated, because a schedule that runs every second may have missed years of
runs. Costs are measured in calendar searches of about 25 us each (`count_searches`). The policy `once` uses a
binary search, which requires about 45 calendar searches. The policy `all` requires about 5 calendar searches
per sent run, or up to 40 if runs occur in bursts.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from commitlog import limits
from services.broker.schedules.schedule_values import MissedRunPolicy, Schedule


def find_cutoff_ms(schedule: Schedule, cursor_ms: int, now_ms: int) -> int:
    """Return the time in milliseconds since the Unix epoch up to which runs are dropped.

    The schedule must have at least one due run after the cursor.
    """
    start_ms, end_ms = schedule.start_ms, schedule.end_ms
    after_ms = cursor_ms if start_ms is None else max(cursor_ms, start_ms - 1)
    until_ms = now_ms if end_ms is None else min(now_ms, end_ms)
    return _POLICIES[schedule.missed](schedule, after_ms, until_ms, now_ms)


def count_searches(schedule: Schedule) -> int:
    """Return the approximate number of calendar searches that `find_cutoff_ms` requires."""
    return {MissedRunPolicy.SKIP: 1, MissedRunPolicy.ONCE: 45, MissedRunPolicy.ALL: 5 * schedule.missed_max}[
        schedule.missed
    ]


def _cutoff_by_age(schedule: Schedule, after_ms: int, until_ms: int, now_ms: int) -> int:
    return now_ms - limits.SCHEDULE_LATE_MS_MAX - 1


def _cutoff_before_last(schedule: Schedule, after_ms: int, until_ms: int, now_ms: int) -> int:
    return schedule.recurrence.last_occurrence_until(after_ms, until_ms) - 1


def _cutoff_before_newest(schedule: Schedule, after_ms: int, until_ms: int, now_ms: int) -> int:
    """Return a time that separates the newest `missed_max` runs from all older runs.

    A window that ends at `until_ms` is doubled until it contains more than `missed_max` runs. If runs occur
    in bursts and the window contains more than `_ENUMERATED_MAX` times `missed_max` runs, a binary search
    finds the start of the window.
    """
    low_ms, width_ms, count_max = until_ms, 1_000, schedule.missed_max
    while low_ms > after_ms and _count_runs(schedule, low_ms, until_ms) <= count_max:
        low_ms, width_ms = max(after_ms, until_ms - width_ms), width_ms * 2
    held = [*islice(schedule.recurrence.between(low_ms, until_ms), _ENUMERATED_MAX * count_max + 1)]
    if len(held) <= count_max:
        return low_ms
    if len(held) <= _ENUMERATED_MAX * count_max:
        return held[-count_max] - 1
    return _bisect_window(schedule, low_ms, until_ms)


def _bisect_window(schedule: Schedule, low_ms: int, until_ms: int) -> int:
    high_ms = until_ms
    while high_ms - low_ms > 1:
        middle_ms = (low_ms + high_ms) // 2
        count = _count_runs(schedule, middle_ms, until_ms)
        if count == schedule.missed_max:
            return middle_ms
        low_ms, high_ms = (middle_ms, high_ms) if count > schedule.missed_max else (low_ms, middle_ms)
    return high_ms


def _count_runs(schedule: Schedule, after_ms: int, until_ms: int) -> int:
    """Count the occurrences in a window, up to `missed_max + 1`."""
    return sum(1 for _ in islice(schedule.recurrence.between(after_ms, until_ms), schedule.missed_max + 1))


_ENUMERATED_MAX: Final = 8
"""Maximum number of runs in a window that are enumerated, as a multiple of `missed_max`."""

_Policy = Callable[[Schedule, int, int, int], int]
_POLICIES: Final[dict[MissedRunPolicy, _Policy]] = {
    MissedRunPolicy.SKIP: _cutoff_by_age,
    MissedRunPolicy.ONCE: _cutoff_before_last,
    MissedRunPolicy.ALL: _cutoff_before_newest,
}
