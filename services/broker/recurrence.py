"""When a schedule occurs: a cron expression in a time zone.

Five fields (minute hour day month weekday) or six with the seconds first. APScheduler's CronTrigger computes
which times of the wall clock fit. Two customs of cron are kept where it differs:
1. weekdays are numbered from Sunday = 0 (7 is Sunday too);
2. when both day and weekday are restricted, a day that fits either one counts.

CronTrigger is given a wall clock that never changes (UTC), because at a change of a zone's clocks it goes
wrong: in 3.11 it skips midnight after a day of 23 hours. The way from the wall to the moment is ours:

    the hour is       the clocks skip a time        the clocks repeat a time
    a fixed one       as much later as they jump    the first time only
    any (`*`, `*/n`)  it does not occur             both times

This is arithmetic on a calendar: no clock is read. The longest that a line can keep silent is eight years
(29 February around the year 2100), so a search ends after `limits.SCHEDULE_SEARCH_MS`, and a line that finds
nothing never occurs. Cost: 20 to 100 us for one occurrence, 1 ms for one that is years away. Weak spot: two
changes of a zone's clocks within a week that undo each other would not be seen; there are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger

from commitlog import limits
from services.broker.errors import IllegalSchedule

FIELDS = ("second", "minute", "hour", "day", "month", "day_of_week")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
WEEKDAY_ITEM = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>[1-9][0-9]*))?")
SEARCH = timedelta(milliseconds=limits.SCHEDULE_SEARCH_MS)
DAY_S = 86_400
STRIDE_S = 7 * DAY_S


class Recurrence:
    """One cron expression in one time zone.

    Inside, a moment is in seconds since 1970 (`_s`); a wall is what the clocks of the zone say then, as
    seconds too: wall = moment + offset.

    Raises:
        IllegalSchedule: when either cannot be read.
    """

    def __init__(self, cron: str, time_zone: str) -> None:
        try:
            values = values_of(cron.split())
            self._zone = ZoneInfo(time_zone)
            self._triggers = triggers_for(values)
        except (ValueError, ZoneInfoNotFoundError, OSError) as error:
            raise IllegalSchedule(
                f"Schedule {cron!r} in time zone {time_zone!r} cannot be read: {error}. "
                "Give 5 cron fields, or 6 with the seconds first, and a name such as Europe/London."
            ) from error
        self._any_hour = values["hour"].startswith("*")

    def next_after(self, now_ms: int) -> int | None:
        """Return the first occurrence after a time (ms since 1970); None when there is none any more."""
        from_s = now_ms // 1000 + 1
        skipped_s = None
        # A change of the day before matters still: the times that it skipped or repeats lie up to as far
        # behind it as the clocks jump, a day at most. With any hour it does not: none is moved, both times
        # count.
        change_s = None if self._any_hour else self._change(from_s - DAY_S - 1, from_s)
        while True:
            if change_s is not None:
                from_s, skipped_s = self._cross(change_s, max(from_s, change_s))
            offset_s = self._offset(from_s)
            wall_s = self._wall_from(from_s + offset_s)
            # A wall is a moment only as long as the offset stays: where it changes before, the search goes on
            # at the change. Not if a skipped time was found: that one comes first, whatever lies behind the
            # change.
            if wall_s is None:
                return None if skipped_s is None else skipped_s * 1000
            change_s = self._change(from_s, wall_s - offset_s)
            if change_s is None or skipped_s is not None:
                found_s = wall_s - offset_s
                return 1000 * (found_s if skipped_s is None else min(found_s, skipped_s))

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """Yield the occurrences after one time, up to and with another (ms since 1970)."""
        at_ms = self.next_after(after_ms)
        while at_ms is not None and at_ms <= until_ms:
            assert at_ms > after_ms, "an occurrence is found again: the search would never end"
            yield at_ms
            after_ms, at_ms = at_ms, self.next_after(at_ms)

    def last_until(self, after_ms: int, until_ms: int) -> int:
        """Return the last occurrence after one time, up to and with another; there must be one.

        The lowest time behind which nothing is left is the occurrence itself: found by halving.
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
        """Return what the clocks of the zone say at a time (ms since 1970), in ISO 8601."""
        return datetime.fromtimestamp(at_ms // 1000, self._zone).isoformat()

    def _cross(self, change_s: int, from_s: int) -> tuple[int, int | None]:
        """Return where to go on after a change of the clocks, and the first skipped time that still occurs.

        Both are moments in seconds.
        """
        if self._any_hour:
            return from_s, None
        old_s, new_s = self._offset(change_s - 1), self._offset(change_s)
        if new_s < old_s:
            # Set back: the walls of the next `old_s - new_s` seconds were there before the change.
            return max(from_s, change_s + old_s - new_s), None
        # Set forward: a wall between `change_s + old_s` and `change_s + new_s` is never shown. By the old
        # offset it is a moment behind the change, as much later as the clocks jump.
        wall_s = self._wall_from(from_s + old_s)
        is_skipped = wall_s is not None and wall_s < change_s + new_s
        return from_s, wall_s - old_s if is_skipped and wall_s is not None else None

    def _wall_from(self, wall_s: int) -> int | None:
        """Return the first wall that fits, from one on; None if none does within the search."""
        from_wall = datetime.fromtimestamp(wall_s, UTC)
        found = [fire for trigger in self._triggers if (fire := _fire(trigger, from_wall)) is not None]
        return round(min(found).timestamp()) if found else None

    def _change(self, after_s: int, until_s: int) -> int | None:
        """Return the first moment after one, up to and with another, from which the offset is another one."""
        offset_s = self._offset(after_s)
        for low_s in range(after_s, until_s, STRIDE_S):
            high_s = min(low_s + STRIDE_S, until_s)
            if self._offset(high_s) != offset_s:
                return self._halved(offset_s, low_s, high_s)
        return None

    def _halved(self, offset_s: int, low_s: int, high_s: int) -> int:
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
    """Return the recurrence of a cron expression: many schedules share one. Raise `IllegalSchedule`."""
    return Recurrence(cron, time_zone)


def _fire(trigger: CronTrigger, from_wall: datetime) -> datetime | None:
    trigger.end_date = from_wall + SEARCH
    fires: datetime | None = trigger.get_next_fire_time(None, from_wall)
    return fires


def values_of(fields: list[str]) -> dict[str, str]:
    """Return cron fields by CronTrigger's names for them; raise ValueError."""
    if len(fields) not in (5, 6):
        raise ValueError(f"it has {len(fields)} fields")
    values = dict(zip(FIELDS, fields if len(fields) == 6 else ["0", *fields], strict=True))
    return values | {"day_of_week": named_weekdays(values["day_of_week"])}


def triggers_for(values: dict[str, str]) -> list[CronTrigger]:
    """Return APScheduler's triggers for cron fields: what any of them gives is an occurrence."""
    if "*" in (values["day"], values["day_of_week"]):
        return [CronTrigger(**values, timezone=UTC)]
    either = [values | {"day": "*"}, values | {"day_of_week": "*"}]
    return [CronTrigger(**fields_of_one, timezone=UTC) for fields_of_one in either]


def named_weekdays(field: str) -> str:
    """Return cron's weekday field as a list of names, which mean the same to cron and to APScheduler."""
    if field in ("*", "?"):
        return "*"
    days = [day for item in field.lower().split(",") for day in expand(item)]
    return ",".join(WEEKDAYS[day] for day in sorted(set(days)))


def expand(item: str) -> list[int]:
    """Return the weekdays (0 is Sunday) of one item of the list: a day, a range, or either with a step."""
    found = WEEKDAY_ITEM.fullmatch(item)
    if found is None:
        raise ValueError(f"{item!r} is no weekday")
    first = 0 if found["first"] == "*" else weekday_number(found["first"])
    last = weekday_number(found["last"]) if found["last"] else first
    if found["first"] == "*" or (found["step"] and not found["last"]):
        last = 6
    if last < first:
        last += 7
    return [day % 7 for day in range(first, last + 1, int(found["step"] or 1))]


def weekday_number(word: str) -> int:
    """Return a weekday by number or by name, Sunday being 0; raise ValueError."""
    if word[:3] in WEEKDAYS:
        return WEEKDAYS.index(word[:3])
    if word.isdecimal() and int(word) <= 7:
        return int(word)
    raise ValueError(f"{word!r} is no weekday")
