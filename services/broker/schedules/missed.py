"""Which of the runs that a schedule has missed are given up; what is not is sent, the oldest first.

    policy  given up is everything
    skip    that is later than `limits.SCHEDULE_LATE_MS_MAX`
    once    before the last one that is due
    all     before the newest `missed_max` that are due

Years may have been missed of a schedule of seconds, so runs are never counted from the cursor on. Cost in
searches of the calendar, 25 us each (`searches`): `once` some 45, by halving; `all` about 5 for each run
that is made up, or up to 40 for schedules that occur in bursts.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from commitlog import limits
from services.broker.schedules.schedule_values import Missed, Schedule


def given_up_until(schedule: Schedule, cursor_ms: int, now_ms: int) -> int:
    """Return up to when runs (ms since 1970) after the cursor are given up; a run must be due by now."""
    start_ms, end_ms = schedule.start_ms, schedule.end_ms
    after_ms = cursor_ms if start_ms is None else max(cursor_ms, start_ms - 1)
    until_ms = now_ms if end_ms is None else min(now_ms, end_ms)
    return _POLICIES[schedule.missed](schedule, after_ms, until_ms, now_ms)


def searches(schedule: Schedule) -> int:
    """Return about how many searches of the calendar a decision takes."""
    return {Missed.SKIP: 1, Missed.ONCE: 45, Missed.ALL: 5 * schedule.missed_max}[schedule.missed]


def _all_but_late(schedule: Schedule, after_ms: int, until_ms: int, now_ms: int) -> int:
    return now_ms - limits.SCHEDULE_LATE_MS_MAX - 1


def _all_but_last(schedule: Schedule, after_ms: int, until_ms: int, now_ms: int) -> int:
    return schedule.recurrence.last_until(after_ms, until_ms) - 1


def _all_but_newest(schedule: Schedule, after_ms: int, until_ms: int, now_ms: int) -> int:
    """Double the window that ends now until it holds too many runs, and count off the newest.

    Where runs come in bursts the window may hold far too many: it is then halved until it holds enough.
    """
    low_ms, width_ms, count_max = until_ms, 1_000, schedule.missed_max
    while low_ms > after_ms and _count(schedule, low_ms, until_ms) <= count_max:
        low_ms, width_ms = max(after_ms, until_ms - width_ms), width_ms * 2
    held = [*islice(schedule.recurrence.between(low_ms, until_ms), _BURST * count_max + 1)]
    if len(held) <= count_max:
        return low_ms
    if len(held) <= _BURST * count_max:
        return held[-count_max] - 1
    return _halved(schedule, low_ms, until_ms)


def _halved(schedule: Schedule, low_ms: int, until_ms: int) -> int:
    high_ms = until_ms
    while high_ms - low_ms > 1:
        middle_ms = (low_ms + high_ms) // 2
        count = _count(schedule, middle_ms, until_ms)
        if count == schedule.missed_max:
            return middle_ms
        low_ms, high_ms = (middle_ms, high_ms) if count > schedule.missed_max else (low_ms, middle_ms)
    return high_ms


def _count(schedule: Schedule, after_ms: int, until_ms: int) -> int:
    """Return how many occurrences lie in a window; counted to one more than are made up."""
    return sum(1 for _ in islice(schedule.recurrence.between(after_ms, until_ms), schedule.missed_max + 1))


_BURST: Final = 8
"""Up to this many times `missed_max` the runs of a window are listed; beyond, the window is halved."""

_Policy = Callable[[Schedule, int, int, int], int]
_POLICIES: Final[dict[Missed, _Policy]] = {
    Missed.SKIP: _all_but_late,
    Missed.ONCE: _all_but_last,
    Missed.ALL: _all_but_newest,
}
