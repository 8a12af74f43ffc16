"""Jinja filters for untrusted text and for times.

Control characters and bidirectional marks are escaped (`tidewheel.printable`). Text is truncated, and the
templates isolate it with `<bdi>`. Jinja escapes the markup.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from services.status.callers import user_of
from services.times.display import away, exactly, span, wall
from tidewheel.durations import span_text
from tidewheel.printable import one_line

LINE_CHARACTERS_MAX: Final = 200
UNKNOWN: Final = "not known"


def line(text: object, characters_max: int = LINE_CHARACTERS_MAX) -> str:
    """Return a text as one printable line of limited length."""
    whole = str(text)
    more = len(whole) - characters_max
    return one_line(whole[:characters_max]) + (f" … and {more:,} more characters" if more > 0 else "")


def moment(at_ms: str | int | None) -> str:
    """Return the local time and its distance from now."""
    return UNKNOWN if at_ms is None else f"{wall(int(at_ms))} ({away(int(at_ms))})"


def moment_exactly(at_ms: str | int | None) -> str:
    """Return the local time to the millisecond."""
    return UNKNOWN if at_ms is None else exactly(int(at_ms))


def distance(at_ms: str | int) -> str:
    """Return the distance of a point in time from now."""
    return away(int(at_ms))


def iso(at_ms: str | int) -> str:
    """Return a point in time in UTC in ISO 8601 format."""
    return datetime.fromtimestamp(int(at_ms) / 1000, UTC).isoformat(timespec="milliseconds")


def number(value: float | None) -> str:
    """Return a number with thousands separators."""
    return UNKNOWN if value is None else f"{value:,}"


def duration(span_ms: str | int) -> str:
    """Return a time span in its two largest units."""
    return span(int(span_ms))


def exact_duration(span_ms: str | int) -> str:
    """Return a span exactly, in the form that fields accept."""
    return span_text(int(span_ms))


FILTERS: Final[dict[str, Callable[..., str]]] = {
    "user": user_of,
    "line": line,
    "moment": moment,
    "moment_exactly": moment_exactly,
    "distance": distance,
    "iso": iso,
    "number": number,
    "duration": duration,
    "exact_duration": exact_duration,
}
