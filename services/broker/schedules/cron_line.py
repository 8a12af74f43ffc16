"""A parser for cron lines in the format of Vixie cron, described in crontab(5).

    field    numbers                          names
    second   0-59, only in a 6-field line     -
    minute   0-59                             -
    hour     0-23                             -
    day      1-31, or L for the last day      -
    month    1-12                             jan-dec
    weekday  0-7, where 0 and 7 are Sunday    sun-sat

A field is a comma-separated list of items. An item is a number, a range, or `*` for all numbers. A range or
`*` can have a step, as in `1-9/2` and `*/5`. Names are not case-sensitive and can be abbreviated to three or
more letters. Two rules apply to a line as a whole:
1. If both the day and the weekday are restricted, a date must match at least one of the two fields. If either
   field begins with `*`, a date must match both fields. A field that begins with `*` is never considered
   restricted, even if it excludes some dates.
2. A line has a wildcard if its second, minute, or hour field begins with `*`. As in cron(8), a wildcard
   changes the behavior at clock changes (`services.broker.schedules.recurrence`).

The extensions to Vixie cron are seconds, `L`, a step after a single number (`20/5`), weekday ranges that wrap
around the end of the week (`fri-mon`), and `?` instead of `*` as the weekday. The syntax of other cron
programs is rejected with a suggested correction.

Parsed fields use the syntax of CronTrigger in APScheduler. Cost: about 20 us per line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

NAMED_LINES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


@dataclass(slots=True, frozen=True)
class CronLine:
    """A parsed cron line, with CronTrigger fields and the results of the two rules for whole lines."""

    fields: dict[str, str]
    has_wildcard: bool
    fits_either_day: bool


def parse_cron(line: str) -> CronLine:
    """Parse a cron line. Raise ValueError with a suggested correction if the line is illegal."""
    texts = _fields_of(_expand_name(line.strip()))
    fields = {name: _FIELDS[name].read(text) for name, text in texts.items()}
    return CronLine(
        fields,
        has_wildcard=any(texts[name].startswith("*") for name in ("second", "minute", "hour")),
        fits_either_day=not any(texts[name].startswith(("*", "?")) for name in ("day", "day_of_week")),
    )


def _expand_name(line: str) -> str:
    """Return the five fields of a predefined schedule such as `@daily`. Return any other line unchanged."""
    if not line.startswith("@"):
        return line
    name = line.lower().split()[0]
    if line.lower() in NAMED_LINES:
        return NAMED_LINES[name]
    known = ", ".join(NAMED_LINES)
    if name == "@reboot":
        raise ValueError(
            f"@reboot is not taken: a schedule knows no start of a machine. Write one of {known}"
        )
    if name == "@every":
        raise ValueError("@every is not cron's: write a step, such as */5 * * * * for every five minutes")
    raise ValueError(f"{line} is not known: write one of {known}, or five fields")


def _fields_of(line: str) -> dict[str, str]:
    texts = line.split()
    if texts and re.match(r"(CRON_)?TZ=", texts[0]):
        name = texts[0].split("=")[0]
        raise ValueError(
            f"{name} is not a part of the line: the time zone is a field of its own, `time_zone`"
        )
    if len(texts) not in (5, 6):
        year = (
            " A year, as in Quartz, is none of them: a schedule has a start and an end"
            if len(texts) == 7
            else ""
        )
        raise ValueError(
            f"it has {len(texts)} fields. Write 5 (minute, hour, day, month, weekday), 6 with the seconds "
            f"first, or a name such as @hourly.{year}"
        )
    return dict(zip(_FIELDS, texts if len(texts) == 6 else ["0", *texts], strict=True))


@dataclass(slots=True, frozen=True)
class _Field:
    """A field of a cron line, with its legal values."""

    word: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    first_name: int = 0
    wraps: bool = False

    def read(self, text: str) -> str:
        """Convert a field to CronTrigger syntax. Raise ValueError if the field is illegal."""
        if text == "*" or (self.wraps and text == "?"):
            return "*"
        items = [self._read_item(item) for item in text.split(",")]
        if self.wraps:
            # Weekdays are converted to names, because weekday 0 is Monday in CronTrigger.
            return ",".join(WEEKDAYS[day] for day in sorted({day % 7 for days in items for day in days}))
        return ",".join(map(_format_range, items))

    def _read_item(self, item: str) -> range:
        if self.word == "day" and item.lower() in ("l", "last"):
            return _LAST_DAY
        self._reject_foreign_syntax(item)
        found = _ITEM.fullmatch(item)
        if found is None:
            raise ValueError(
                f"{self.word} {item!r} is not {self._describe_values()}, a range or *, with a step or without"
            )
        step = int(found["step"] or 1)
        if step == 0:
            raise ValueError(f"{self.word} {item!r} has no step: write 1 or more after the stroke")
        if found["first"] == "*":
            return range(self.low, self.high + 1, step)
        first = self._parse_number(found["first"])
        last = (
            self._parse_number(found["last"]) if found["last"] else self._find_range_end(first, found["step"])
        )
        if last < first and self.wraps:
            last += 7
        if last < first:
            ends = f"{found['first']}-{self.high},{self.low}-{found['last']}"
            raise ValueError(f"{self.word} {item!r} goes backwards: write {ends}")
        return range(first, last + 1, step)

    def _find_range_end(self, first: int, step: str | None) -> int:
        if step is None:
            return first
        return max(first, 6) if self.wraps else self.high

    def _parse_number(self, word: str) -> int:
        """Return the value of a number or name. Raise ValueError if the number or name is illegal."""
        if word.isdecimal() and self.low <= int(word) <= self.high:
            return int(word)
        for number, name in enumerate(self.names, self.first_name):
            if len(word) >= 3 and name.startswith(word.lower()):
                return number
        raise ValueError(f"{self.word} {word!r} is not {self._describe_values()}")

    def _describe_values(self) -> str:
        names = f", or {self.names[0][:3]} to {self.names[-1][:3]}" if self.names else ""
        return f"{self.low} to {self.high}{names}"

    def _reject_foreign_syntax(self, item: str) -> None:
        """Raise ValueError with a suggested correction if an item uses the syntax of another cron program."""
        for pattern, words, instead in _FOREIGN:
            if re.fullmatch(words, self.word) and re.fullmatch(pattern, item, re.IGNORECASE):
                raise ValueError(f"{item!r} as {self.word} is not vixie cron's: {instead}")


_ITEM: Final = re.compile(
    r"(?P<first>\*|[0-9a-zA-Z]+)(?:(?<!\*)-(?P<last>[0-9a-zA-Z]+))?(?:/(?P<step>[0-9]+))?"
)
_LAST_DAY: Final = range(-1, 0)
_WEEKDAY_NAMES: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_MONTH_NAMES: Final = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_FIELDS: Final = {
    "second": _Field("second", 0, 59),
    "minute": _Field("minute", 0, 59),
    "hour": _Field("hour", 0, 23),
    "day": _Field("day", 1, 31),
    "month": _Field("month", 1, 12, _MONTH_NAMES, first_name=1),
    "day_of_week": _Field("weekday", 0, 7, _WEEKDAY_NAMES, wraps=True),
}
"""The fields of a cron line with seconds, in order, keyed by CronTrigger name."""
_FOREIGN: Final = (
    (
        r"\?",
        ".*",
        "write *. Weekdays are numbered 0 to 7 from Sunday, not 1 to 7 as in Quartz; their names are safe",
    ),
    (
        r"L?W|[0-9]+W",
        "day",
        "the nearest working day cannot be said. Write the days it can be, with * as the weekday, or the "
        "weekdays 1-5 alone, and let the consumer choose",
    ),
    (r"LW?-.*", "day", "days before the end of the month cannot be said. Write L alone for the last one"),
    (
        r"[0-9a-z]+L",
        "weekday",
        "the last weekday of a month cannot be said. Write the days it can be, such as 25-31, with * as the "
        "weekday, and let the consumer choose",
    ),
    ("L", "weekday", "write sat or 6 for Saturday, or the day L for the last one of the month"),
    (
        ".*#.*",
        "weekday",
        "the n-th weekday of a month cannot be said, but for the first: */31,1-7 as the day and the weekday "
        "without its #. For another write the days it can be, such as 8-14 for the second, with * as the "
        "weekday, and let the consumer choose",
    ),
    (r"H(\(.*\))?(/.*)?", ".*", "it is Jenkins' hash of a job. Write a number"),
    (r".*~.*", ".*", "a random one cannot be said. Write a number"),
)
"""Patterns of illegal items, each with the fields in which the items are illegal and a correction.
"""


def _format_range(numbers: range) -> str:
    """Return a range in CronTrigger syntax, in which a step must not be larger than the range."""
    if numbers is _LAST_DAY:
        return "last"
    if len(numbers) == 1:
        return str(numbers[0])
    return f"{numbers[0]}-{numbers[-1]}/{numbers.step}"
