"""Detection of numbers in other units in columns of milliseconds since 1970.

As milliseconds, present-day seconds are in January 1970, microseconds tens of thousands of years in the
future, and a date written as digits, 20261121153000, in the year 2612: an order would be due then, and wait
until then. No order has such a time, so the number is refused, with the unit that it suggests.

    plausible    the years 1980 to 2199, and the last day of 9999, which some systems use for "never"

The ranges of the units do not overlap, so a number suggests at most one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

FIRST_SECOND: Final = 315_532_800
END_SECOND: Final = 7_258_118_400
"""The years 1980 to 2199, in seconds since 1970; the end is exclusive."""
NEVER_MS: Final = range(253_402_214_400_000 - 50_400_000, 253_402_300_800_000)
"""9999-12-31 in UTC and in the zones up to 14 hours east of it, until the year 10000 begins in UTC."""
_YEARS: Final = range(1980, 2200)
_DAY_SECONDS: Final = 86_400

FACTORS: Final = {
    "days": (_DAY_SECONDS * 1000, 1),
    "seconds": (1000, 1),
    "microseconds": (1, 1000),
    "nanoseconds": (1, 1_000_000),
}
"""Unit -> the factor and the divisor that convert its numbers to milliseconds."""

_FORMS: Final = {
    8: ("%Y%m%d", "YYYYMMDD"),
    12: ("%Y%m%d%H%i", "YYYYMMDDHH24MI"),
    14: ("%Y%m%d%H%i%s", "YYYYMMDDHH24MISS"),
    17: ("%Y%m%d%H%i%s%f", "YYYYMMDDHH24MISSMS"),
}
"""Number of digits of a date -> its format for MySQL's STR_TO_DATE, and for PostgreSQL's to_timestamp."""
_SHOWN_FORM: Final = "YYYYMMDDhhmmssfff"


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit that a number suggests; `sql` converts the user's column, `{theirs}`, in a view."""

    name: str
    sql: str


def is_plausible(ms: int) -> bool:
    """Return whether a number is a plausible time of an order, in milliseconds since 1970."""
    return FIRST_SECOND * 1000 <= ms < END_SECOND * 1000 or ms in NEVER_MS


def unit_of(number: int) -> Unit | None:
    """Return the unit that an implausible number suggests, or None if it suggests none."""
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
    """Return the date, or the approximate year, of a number of milliseconds since 1970, as text."""
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
