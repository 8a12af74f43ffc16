"""When a schedule occurs: a cron expression in a time zone, computed by APScheduler's CronTrigger.

Five fields (minute hour day month weekday) or six with the seconds first. Three customs of cron are kept
where CronTrigger differs:
1. weekdays are numbered from Sunday = 0 (7 is Sunday too);
2. when both day and weekday are restricted, a day that fits either one counts;
3. a time of a fixed hour that the clocks repeat in autumn occurs once (under hour `*` it is another hour).
A time that the clocks skip in spring occurs that day, as much later as they jump.

This is arithmetic on a calendar: no clock is read. The longest that a line can keep silent is eight years
(29 February around the year 2100), so a search ends after `limits.SCHEDULE_SEARCH_MS`, and a line that finds
nothing never occurs. Cost: 10 to 100 us for one occurrence, 2 ms for the search that finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger

from commitlog import limits
from commitlog.errors import IllegalSchedule

FIELDS = ("second", "minute", "hour", "day", "month", "day_of_week")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
WEEKDAY_ITEM = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>[1-9][0-9]*))?")
SEARCH = timedelta(milliseconds=limits.SCHEDULE_SEARCH_MS)


class Recurrence:
    """One cron expression in one time zone.

    Raises:
        IllegalSchedule: when either cannot be read.
    """

    def __init__(self, cron: str, time_zone: str) -> None:
        try:
            values = values_of(cron.split())
            self._zone = ZoneInfo(time_zone)
            self._triggers = triggers_for(values, self._zone)
        except (ValueError, ZoneInfoNotFoundError, OSError) as error:
            raise IllegalSchedule(
                f"Schedule {cron!r} in time zone {time_zone!r} cannot be read: {error}. "
                "Give 5 cron fields, or 6 with the seconds first, and a name such as Europe/London."
            ) from error
        self._any_hour = values["hour"].startswith("*")

    def next_after(self, now_ms: int) -> int | None:
        """The first occurrence after a time (milliseconds since 1970); None when there is none any more."""
        moment = self._fires_after(_moment(now_ms))
        while moment is not None and moment.fold and not self._any_hour:
            moment = self._fires_after(moment)
        return None if moment is None else round(moment.timestamp() * 1000)

    def between(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """The occurrences after one time, up to and with another."""
        at_ms = self.next_after(after_ms)
        while at_ms is not None and at_ms <= until_ms:
            yield at_ms
            at_ms = self.next_after(at_ms)

    def last_until(self, after_ms: int, until_ms: int) -> int:
        """The last occurrence after one time, up to and with another; there must be one.

        The lowest time behind which nothing is left is the occurrence itself: found by halving.
        """
        low_ms, high_ms = after_ms, until_ms
        while low_ms < high_ms:
            middle_ms = (low_ms + high_ms) // 2
            following_ms = self.next_after(middle_ms)
            if following_ms is not None and following_ms <= until_ms:
                low_ms = following_ms
            else:
                high_ms = middle_ms
        return low_ms

    def local(self, at_ms: int) -> str:
        """A time on the clocks of the zone, in ISO 8601."""
        return _moment(at_ms).astimezone(self._zone).isoformat(timespec="seconds")

    def _fires_after(self, moment: datetime) -> datetime | None:
        later = moment.astimezone(UTC) + timedelta(microseconds=1)
        fires = [found for trigger in self._triggers if (found := _fire(trigger, later)) is not None]
        return min(fires).astimezone(self._zone) if fires else None


@lru_cache(maxsize=limits.RECURRENCES_KEPT_MAX)
def recurrence(cron: str, time_zone: str) -> Recurrence:
    """The recurrence of a cron expression: many schedules share one."""
    return Recurrence(cron, time_zone)


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _fire(trigger: CronTrigger, later: datetime) -> datetime | None:
    trigger.end_date = later + SEARCH
    fires: datetime | None = trigger.get_next_fire_time(None, later)
    return None if fires is None else fires.astimezone(UTC)


def values_of(fields: list[str]) -> dict[str, str]:
    """Cron fields by CronTrigger's names for them."""
    if len(fields) not in (5, 6):
        raise ValueError(f"it has {len(fields)} fields")
    values = dict(zip(FIELDS, fields if len(fields) == 6 else ["0", *fields], strict=True))
    return values | {"day_of_week": named_weekdays(values["day_of_week"])}


def triggers_for(values: dict[str, str], zone: ZoneInfo) -> list[CronTrigger]:
    """APScheduler's triggers for cron fields: what any of them gives is an occurrence."""
    if "*" in (values["day"], values["day_of_week"]):
        return [CronTrigger(**values, timezone=zone)]
    either = [values | {"day": "*"}, values | {"day_of_week": "*"}]
    return [CronTrigger(**fields_of_one, timezone=zone) for fields_of_one in either]


def named_weekdays(field: str) -> str:
    """Cron's weekday field as a list of names, which mean the same to everybody."""
    if field in ("*", "?"):
        return "*"
    days = [day for item in field.lower().split(",") for day in expand(item)]
    return ",".join(WEEKDAYS[day] for day in sorted(set(days)))


def expand(item: str) -> list[int]:
    """The weekdays of one item of the list: a day, a range, or either with a step."""
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
    """A weekday by number or by name, Sunday being 0."""
    if word[:3] in WEEKDAYS:
        return WEEKDAYS.index(word[:3])
    if word.isdecimal() and int(word) <= 7:
        return int(word)
    raise ValueError(f"{word!r} is no weekday")
