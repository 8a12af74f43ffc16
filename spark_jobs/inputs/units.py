"""Numbers that are no milliseconds since 1970, although they stand where such are wanted.

As milliseconds, seconds are in January 1970, microseconds tens of thousands of years ahead, and a date that
is written as digits, 20261121153000, in the year 2612: an order would be due then, and wait until then. No
order is of such a time, so the number is refused, and the unit that it looks like is told.

    plausible    the years 1980 to 2199, and the last day of 9999, by which some mean "never"

The units' ranges do not overlap, so a number looks like one of them at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

FIRST_SECOND: Final = 315_532_800
END_SECOND: Final = 7_258_118_400
"""The years 1980 to 2199."""
NEVER_MS: Final = range(253_402_214_400_000 - 50_400_000, 253_402_300_800_000)
"""9999-12-31 in the zone of whoever wrote it."""
_YEARS: Final = range(1980, 2200)
_DAY_SECONDS: Final = 86_400

FACTORS: Final = {
    "days": (_DAY_SECONDS * 1000, 1),
    "seconds": (1000, 1),
    "microseconds": (1, 1000),
    "nanoseconds": (1, 1_000_000),
}
"""Unit -> by what its numbers are multiplied, and divided, to be milliseconds."""

_FORMS: Final = {
    8: ("%Y%m%d", "YYYYMMDD"),
    12: ("%Y%m%d%H%i", "YYYYMMDDHH24MI"),
    14: ("%Y%m%d%H%i%s", "YYYYMMDDHH24MISS"),
    17: ("%Y%m%d%H%i%s%f", "YYYYMMDDHH24MISSMS"),
}
"""Length of a date as digits -> its form to STR_TO_DATE of MySQL, and to to_timestamp of PostgreSQL."""
_SHOWN_FORM: Final = "YYYYMMDDhhmmssfff"


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number looks like; `sql`: what a view is to have in place of `{theirs}`, the column."""

    name: str
    sql: str


def is_plausible(ms: int) -> bool:
    """Return whether a number may be the milliseconds since 1970 of something in an order."""
    return FIRST_SECOND * 1000 <= ms < END_SECOND * 1000 or ms in NEVER_MS


def unit_of(number: int) -> Unit | None:
    """Return what a number that is not plausible looks like; None if that cannot be said."""
    for name, (factor, divisor) in FACTORS.items():
        if FIRST_SECOND * 1000 <= number * factor / divisor < END_SECOND * 1000:
            by = f"* {factor}" if factor > 1 else f"/ {divisor}"
            return Unit(f"{name} since 1970", f"{{theirs}} {by}")
    if number == 0:
        return Unit("a time that is not set", "NULLIF({theirs}, 0)")
    digits = str(number)
    if len(digits) not in _FORMS or not _is_date(digits):
        return None
    of_mysql, of_postgresql = _FORMS[len(digits)]
    return Unit(
        f"a date written as digits, {_SHOWN_FORM[: len(digits)]}",
        f"to_timestamp(CAST({{theirs}} AS TEXT), '{of_postgresql}') in PostgreSQL, and "
        f"STR_TO_DATE({{theirs}}, '{of_mysql}') in MySQL",
    )


def shown_as_ms(number: int) -> str:
    """Return which time a number is as milliseconds since 1970."""
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number)
    except OverflowError:
        return f"about the year {1970 + number // (365_242 * _DAY_SECONDS):,}"
    return f"{at.year:04}-{at:%m-%d}"


def _is_date(digits: str) -> bool:
    try:
        day = datetime(int(digits[:4]), int(digits[4:6]), int(digits[6:8]), tzinfo=UTC)
    except ValueError:
        return False
    clock = digits[8:].ljust(6, "0")
    is_clock = int(clock[:2]) < 24 and int(clock[2:4]) < 60 and int(clock[4:6]) < 60
    return day.year in _YEARS and is_clock
