"""Occurrences of a schedule, computed from a cron line and a time zone as in Vixie cron.

`services.broker.schedules.cron_line` parses the cron line, and CronTrigger from APScheduler computes the
matching wall times. `Recurrence` uses CronTrigger only with UTC, because CronTrigger returns wrong results
for time zones with clock changes. For example, APScheduler 3.11 skips midnight after a 23-hour day. Wall
times are converted to UTC as in cron(8):

    second, minute, or hour   if a clock change skips the time   if a clock change repeats the time
    no field begins with `*`  one occurrence, at the change      one occurrence, at the first time
    a field begins with `*`   no occurrence                      two occurrences

A clock change of more than three hours is treated as a correction, and the new time takes effect immediately.
If several skipped minutes match a job, Vixie cron runs the job once for each of them. Tidewheel produces only
one occurrence, at the clock change.

This module does not read the clock. A search covers a period of `limits.SCHEDULE_SEARCH_MS`, which is long
enough to find 29 February around the year 2100. A cron line without an occurrence in this period is
considered to have no occurrences. Cost: 20 to 100 us per occurrence, or up to 6 ms if the occurrence is years
ahead.

Limitations: a cron line whose day and weekday must both match may have no occurrence for 11 or 28 years, as
in `0 9 */31 3 sun`. Such schedules are rejected. A search does not detect two clock changes within one week
that cancel each other out, but no time zone has such clock changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger

from commitlog import limits
from services.broker.schedules.cron_line import CronLine, parse_cron
from services.broker.spine.errors import IllegalSchedule

SEARCH: Final = timedelta(milliseconds=limits.SCHEDULE_SEARCH_MS)
STRIDE_S: Final = 7 * 86_400
CHANGE_S_MAX: Final = 3 * 3_600
"""Largest clock change, in seconds, that is not treated as a correction (cron(8))."""


class Recurrence:
    """A cron expression in a time zone.

    The suffix `_s` denotes UTC time in seconds since the Unix epoch. `wall_s` is local time in seconds, which
    is UTC time plus the offset of the time zone.

    Raise `IllegalSchedule` if the cron expression or the time zone is invalid.
    """

    def __init__(self, cron: str, time_zone: str) -> None:
        try:
            line = parse_cron(cron)
            self._zone = _zone_of(time_zone)
        except ValueError as error:
            raise IllegalSchedule(
                f"Schedule {cron!r} in time zone {time_zone!r} cannot be read: {error}."
            ) from error
        self._triggers = _make_triggers(line)
        self._has_wildcard = line.has_wildcard

    def next_after(self, now_ms: int) -> int | None:
        """Return the first occurrence after a time in milliseconds since the Unix epoch, or None."""
        from_s = now_ms // 1000 + 1
        # A clock change before `from_s` may repeat wall times, and a clock change at `from_s` may skip wall
        # times.
        change_s = None if self._has_wildcard else self._find_change(from_s - CHANGE_S_MAX - 1, from_s)
        while True:
            if change_s is not None:
                if change_s >= from_s and self._occurs_at_clock_change(change_s):
                    return change_s * 1000
                from_s = max(from_s, change_s + self._repeated_seconds(change_s))
            offset_s = self._offset(from_s)
            wall_s = self._next_wall_time(from_s + offset_s)
            if wall_s is None:
                return None
            # The offset is valid only until the next clock change. If a clock change precedes the wall time,
            # the search continues at that clock change.
            change_s = self._find_change(from_s, wall_s - offset_s)
            if change_s is None:
                return (wall_s - offset_s) * 1000

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """Yield the occurrences, in milliseconds, after `after_ms` up to and including `until_ms`."""
        at_ms = self.next_after(after_ms)
        while at_ms is not None and at_ms <= until_ms:
            assert at_ms > after_ms, "an occurrence is found again: the search would never end"
            yield at_ms
            after_ms, at_ms = at_ms, self.next_after(at_ms)

    def last_occurrence_until(self, after_ms: int, until_ms: int) -> int:
        """Return the last occurrence after `after_ms` up to and including `until_ms`.

        At least one occurrence must exist in this period. A binary search finds the earliest time that is not
        followed by an occurrence.
        """
        low_ms, high_ms = after_ms, until_ms
        while low_ms < high_ms:
            middle_ms = (low_ms + high_ms) // 2
            following_ms = self.next_after(middle_ms)
            if following_ms is not None and following_ms <= until_ms:
                assert following_ms > middle_ms, "an occurrence is found again: the halving would never end"
                low_ms = following_ms
            else:
                high_ms = middle_ms
        return low_ms

    def local(self, at_ms: int) -> str:
        """Convert milliseconds since the Unix epoch to local time in ISO 8601 format."""
        return datetime.fromtimestamp(at_ms // 1000, self._zone).isoformat()

    def _occurs_at_clock_change(self, change_s: int) -> bool:
        """Return whether a clock change skips a matching wall time and thus produces an occurrence."""
        jump_s = self._forward_seconds(change_s)
        if jump_s <= 0:
            return False
        skipped_s = change_s + self._offset(change_s - 1)
        wall_s = self._next_wall_time(skipped_s)
        return wall_s is not None and wall_s < skipped_s + jump_s

    def _repeated_seconds(self, change_s: int) -> int:
        """Return the number of seconds after a clock change for which repeated wall times are ignored."""
        return max(0, -self._forward_seconds(change_s))

    def _forward_seconds(self, change_s: int) -> int:
        """Return the number of seconds by which a clock change sets the clock forward.

        The number is negative if the clock is set back, and 0 if wall times need no adjustment.
        """
        jump_s = self._offset(change_s) - self._offset(change_s - 1)
        return 0 if self._has_wildcard or abs(jump_s) > CHANGE_S_MAX else jump_s

    def _next_wall_time(self, wall_s: int) -> int | None:
        """Return the first matching wall time at or after `wall_s`, or None."""
        from_wall = datetime.fromtimestamp(wall_s, UTC)
        found = [fire for trigger in self._triggers if (fire := _fire(trigger, from_wall)) is not None]
        return round(min(found).timestamp()) if found else None

    def _find_change(self, after_s: int, until_s: int) -> int | None:
        """Return the first clock change after `after_s` up to and including `until_s`, or None."""
        offset_s = self._offset(after_s)
        for low_s in range(after_s, until_s, STRIDE_S):
            high_s = min(low_s + STRIDE_S, until_s)
            if self._offset(high_s) != offset_s:
                return self._bisect_change(offset_s, low_s, high_s)
        return None

    def _bisect_change(self, offset_s: int, low_s: int, high_s: int) -> int:
        while high_s - low_s > 1:
            middle_s = (low_s + high_s) // 2
            low_s, high_s = (middle_s, high_s) if self._offset(middle_s) == offset_s else (low_s, middle_s)
        return high_s

    def _offset(self, at_s: int) -> int:
        offset = datetime.fromtimestamp(at_s, self._zone).utcoffset()
        assert offset is not None, "a zone has an offset"
        return round(offset.total_seconds())


@lru_cache(maxsize=limits.RECURRENCES_KEPT_MAX)
def recurrence(cron: str, time_zone: str) -> Recurrence:
    """Return the cached recurrence for a cron expression and a time zone.

    Raise `IllegalSchedule` if the cron expression or the time zone is invalid.
    """
    return Recurrence(cron, time_zone)


def _fire(trigger: CronTrigger, from_wall: datetime) -> datetime | None:
    trigger.end_date = from_wall + SEARCH
    fires: datetime | None = trigger.get_next_fire_time(None, from_wall)
    return fires


def _make_triggers(line: CronLine) -> list[CronTrigger]:
    """Return the APScheduler triggers for a cron line. Each fire time of a trigger is an occurrence."""
    if not line.fits_either_day:
        return [CronTrigger(**line.fields, timezone=UTC)]
    either = [line.fields | {"day": "*"}, line.fields | {"day_of_week": "*"}]
    return [CronTrigger(**fields_of_one, timezone=UTC) for fields_of_one in either]


def _zone_of(name: str) -> ZoneInfo:
    """Return the time zone with a given name. Raise ValueError if the host does not provide it."""
    try:
        return ZoneInfo(name)
    except (ValueError, ZoneInfoNotFoundError, OSError) as error:
        raise ValueError("there is no such time zone; give a name such as Europe/London") from error
