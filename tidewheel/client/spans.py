"""Conversion of time spans and datetimes to milliseconds.

A time span is a text with units ("500ms", "30s", "1h30m", "2d") or a timedelta. A point in time is a
timezone-aware datetime. A number without a unit is refused, because libraries differ in whether 30 means
seconds or milliseconds. Fractions of a millisecond are rounded up, so that no message is due before its time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from tidewheel.durations import span_ms as written_ms
from tidewheel.errors import ClientMistake

Span = str | timedelta

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
MOMENT_MS_MAX: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
SPAN_MS_MAX: Final = 10**15
"""About 31,000 years. The broker's limits are lower."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
_WAYS: Final = "write it as '500ms', '30s', '1h30m' or '2d', or as a timedelta"


def span_ms(span: Span, field: str) -> int:
    """Return a time span in milliseconds. `field` is the name used in error messages.

    Raises:
        ClientMistake: If the span is a number, negative, or unreadable.
    """
    if isinstance(span, timedelta):
        count_ms = _whole_ms(span)
    elif isinstance(span, str):
        count_ms = _written_ms(span, field)
    elif isinstance(span, datetime):
        raise ClientMistake(f"{field} is a datetime: it is a span of time, {_WAYS}.")
    elif isinstance(span, int | float):
        raise ClientMistake(f"{field} is {span!r}, without a unit: {_WAYS}.")
    else:
        raise ClientMistake(f"{field} is a {type(span).__name__}: {_WAYS}.")
    if not 0 <= count_ms <= SPAN_MS_MAX:
        raise ClientMistake(f"{field} is {span!s:.80}: a span of time is 0s to {SPAN_MS_MAX}ms.")
    return count_ms


def span_text(span: Span, field: str) -> str:
    """Return a time span with its unit, as used in requests. Raises `ClientMistake` as `span_ms` does."""
    return f"{span_ms(span, field)}ms"


def _whole_ms(span: timedelta) -> int:
    whole_ms, rest = divmod(span, MILLISECOND)
    return whole_ms + bool(rest)


def _written_ms(span: str, field: str) -> int:
    try:
        return written_ms(span)
    except ValueError:
        unit = ", without a unit" if _NUMBER.fullmatch(span) else ""
        raise ClientMistake(f"{field} is {span[:80]!r}{unit}: {_WAYS}.") from None


def moment_ms(moment: datetime, field: str) -> int:
    """Return a datetime in milliseconds since 1970. `field` is the name used in error messages.

    Raises:
        ClientMistake: If the value is not a timezone-aware datetime, or is before 1970.
    """
    if not isinstance(moment, datetime):
        raise ClientMistake(f"{field} is a {type(moment).__name__}: it is a moment, a datetime with a zone.")
    if moment.utcoffset() is None:
        raise ClientMistake(
            f"{field} is {moment.isoformat()}, without a zone: use datetime.now(UTC), or .astimezone()."
        )
    since = moment - EPOCH
    if since < timedelta(0):
        raise ClientMistake(f"{field} is {moment.isoformat()}: that is before 1970.")
    return _whole_ms(since)


def moment_of(count_ms: int) -> datetime:
    """Return milliseconds since 1970 as a datetime in UTC.

    Values beyond the range of datetime are clamped to its maximum.
    """
    return EPOCH + timedelta(milliseconds=min(count_ms, MOMENT_MS_MAX))
