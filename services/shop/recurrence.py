"""When a recurring push is due: a cron expression in a time zone, computed by APScheduler's CronTrigger.

Five fields (minute hour day month weekday) or six with the seconds first. Three customs of cron are kept
where CronTrigger differs:
1. weekdays are numbered from Sunday = 0 (7 is Sunday too);
2. when both day and weekday are restricted, a day that fits either one counts;
3. a time of a fixed hour that the clocks repeat in autumn occurs once (under hour `*` it is another hour).
A time that the clocks skip in spring occurs that day, as much later as they jump.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger

from commitlog.errors import ClientMistake

FIELDS = ("second", "minute", "hour", "day", "month", "day_of_week")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
WEEKDAY_ITEM = re.compile(r"(?P<first>\*|\w+)(?:-(?P<last>\w+))?(?:/(?P<step>[1-9][0-9]*))?")


class Recurrence:
    """One cron expression in one time zone.

    Raises:
        ClientMistake: when either cannot be read.
    """

    def __init__(self, cron: str, time_zone: str) -> None:
        try:
            values = values_of(cron.split())
            self._zone = ZoneInfo(time_zone)
            self._trigger = trigger_for(values, self._zone)
        except (ValueError, ZoneInfoNotFoundError, OSError) as error:
            raise ClientMistake(
                f"Schedule {cron!r} in time zone {time_zone!r} cannot be read: {error}. "
                "Give 5 cron fields, or 6 with the seconds first, and a name such as Europe/London."
            ) from error
        self._any_hour = values["hour"].startswith("*")

    def next_after(self, now_ms: int) -> int | None:
        """The first occurrence after a time (milliseconds since 1970); None when there is none any more."""
        moment = self._fires_after(datetime.fromtimestamp(now_ms / 1000, UTC))
        while moment is not None and moment.fold and not self._any_hour:
            moment = self._fires_after(moment)
        return None if moment is None else round(moment.timestamp() * 1000)

    def _fires_after(self, moment: datetime) -> datetime | None:
        later = moment.astimezone(UTC) + timedelta(microseconds=1)
        fires: datetime | None = self._trigger.get_next_fire_time(None, later)
        return None if fires is None else fires.astimezone(self._zone)


def values_of(fields: list[str]) -> dict[str, str]:
    """Cron fields by CronTrigger's names for them."""
    if len(fields) not in (5, 6):
        raise ValueError(f"it has {len(fields)} fields")
    values = dict(zip(FIELDS, fields if len(fields) == 6 else ["0", *fields], strict=True))
    return values | {"day_of_week": named_weekdays(values["day_of_week"])}


def trigger_for(values: dict[str, str], zone: ZoneInfo) -> Any:
    """APScheduler's trigger for cron fields."""
    if "*" in (values["day"], values["day_of_week"]):
        return CronTrigger(**values, timezone=zone)
    either = [values | {"day": "*"}, values | {"day_of_week": "*"}]
    return OrTrigger([CronTrigger(**fields_of_one, timezone=zone) for fields_of_one in either])


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
