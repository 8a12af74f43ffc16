"""Parsing of times: 2026-11-22T09:00+08:00, milliseconds since 1970, `in 30m`, `30m ago`.

`+30m` and `30m` mean `in 30m`, and `-30m` means `30m ago`, in all commands. If only the past is possible
(such as the time when a message was stored), a span without a direction is refused with advice.

A number other than 0 is refused if it is so small that it appears to be in seconds, or to lack its unit: as a
window, it would select everything or nothing. 0 means the beginning, and so do all earlier dates and spans
(`limits.WALL_MS_MIN`).

A time without a zone is refused, because it is ambiguous, unless it refers to the user's local clock
(`is_local`).
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from commitlog import limits
from tidewheel.durations import SPAN, span_ms

MILLISECOND = timedelta(milliseconds=1)
CLOCK_TIME = re.compile(r"\d\d:\d\d(:\d\d)?")
AHEAD = re.compile(rf"(?:in\s+|\+)?({SPAN})")
BACK = re.compile(rf"-({SPAN})|({SPAN})\s+ago")
DAY = re.compile(r"\d{4}-\d\d-\d\d(?!\d)", re.ASCII)
TIME_OF_DAY = re.compile(r"\d[T ]\d")
WAYS = "in 30m, 30m ago"
PAST_WAYS = "30m ago"
LONG_AGO = (
    "that is long ago; perhaps seconds were given where milliseconds are meant, "
    "or the unit is missing, as in 30m"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment_ms(text: str, now_ms: int, is_local: bool = False, ways: str = WAYS) -> int:
    """Return a time in milliseconds since 1970. Raises ValueError with advice on the format."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return _given_ms(text)
    if ahead := AHEAD.fullmatch(text):
        return now_ms + span_ms(ahead[1])
    if back := BACK.fullmatch(text):
        return _since_first(now_ms - span_ms(back[1] or back[2]))
    return _since_first(wall_ms(text, is_local, ways))


def due_ms(text: str, now_ms: int, is_local: bool = False) -> int:
    """Return a due time: like `moment_ms`, but 0 and other times that are long ago are refused."""
    moment = moment_ms(text, now_ms, is_local)
    if moment < limits.WALL_MS_MIN:
        raise ValueError(LONG_AGO)
    return moment


def past_ms(text: str, now_ms: int, is_local: bool = False) -> int:
    """Return a time in the past in milliseconds since 1970. Raises ValueError as `moment_ms` does.

    For local times (`is_local`), 09:30 refers to today.
    """
    text = text.strip()
    if is_local and CLOCK_TIME.fullmatch(text):
        text = f"{datetime.fromtimestamp(now_ms / 1000):%Y-%m-%d}T{text}"
    if ahead := AHEAD.fullmatch(text):
        span = ahead[1]
        raise ValueError(f"that is in {span}, and the past is meant here; write '{span} ago' or -{span}")
    return moment_ms(text, now_ms, is_local, PAST_WAYS)


def whole_ms(digits: str) -> int:
    """Parse a number of milliseconds."""
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError("write it as a whole number of milliseconds")
    if len(digits) > limits.TIME_DIGITS_MAX:
        raise ValueError("no clock goes that far; the time is in milliseconds since 1970")
    return int(digits)


def wall_ms(text: str, is_local: bool, ways: str = WAYS) -> int:
    """Return a date and time such as 2026-11-22T09:00+08:00 in milliseconds since 1970."""
    try:
        wall = datetime.fromisoformat(text)
    except ValueError:
        if (day := DAY.match(text)) and not _is_day(day[0]):
            raise ValueError(f"the day {day[0]} does not exist") from None
        zone = "" if is_local else "+08:00"
        how = f"write it as 2026-11-22T09:00{zone}, {ways}, or milliseconds since 1970"
        raise ValueError(how) from None
    if wall.tzinfo is None and not is_local:
        given = text if TIME_OF_DAY.search(text) else f"{text}T00:00"
        raise ValueError(f"its zone is missing: write {given}Z for UTC, or {given}+08:00")
    try:
        moment = (wall.astimezone(UTC) - EPOCH) // MILLISECOND
    except (OverflowError, OSError):
        raise ValueError("no clock goes that far") from None
    if moment < 0:
        raise ValueError("that is before 1970")
    return moment


def _given_ms(digits: str) -> int:
    """Return a number of milliseconds since 1970, which is 0 or appears to be in milliseconds."""
    moment = whole_ms(digits)
    if 0 < moment < limits.WALL_MS_MIN:
        raise ValueError(LONG_AGO)
    return moment


def _since_first(moment: int) -> int:
    """Return a time, or 0 for a time before the first that a number can express."""
    return moment if moment >= limits.WALL_MS_MIN else 0


def _is_day(text: str) -> bool:
    """Return whether a day such as 2026-11-22 exists."""
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
