"""Times that a producer writes into properties, read with care: plain decimal digits, never guessed at.

A time in seconds where milliseconds are meant is the classic mistake; it lies in the seventies, and is
refused instead of being delivered at once.
"""

from __future__ import annotations

from typing import Final

from commitlog import limits
from services.broker.errors import IllegalDeliveryTime

_SHOWN_CHARACTERS: Final = 40


def whole_number(name: str, value: str) -> int:
    """Return the number, 0 or more, that the property `name` gives; raise `IllegalDeliveryTime`."""
    if not is_number(value):
        raise IllegalDeliveryTime(f"{name} is {shown(value)}; it must be a whole number, 0 or more.")
    return int(value)


def wall_ms(name: str, value: str) -> int:
    """Return the time in ms since 1970 that the property `name` gives; raise `IllegalDeliveryTime`."""
    time_ms = whole_number(name, value)
    if time_ms < limits.WALL_MS_MIN:
        raise IllegalDeliveryTime(
            f"{name} is {time_ms}, in or before 1973. Were seconds given where milliseconds are meant?"
        )
    return time_ms


def is_number(value: str) -> bool:
    """Return whether a value is plain digits, and so few that they are a time."""
    return value.isascii() and value.isdigit() and len(value) <= limits.TIME_DIGITS_MAX


def shown(value: str) -> str:
    """Return a value as an error's message shows it: quoted, and cut to `_SHOWN_CHARACTERS`."""
    return repr(value if len(value) <= _SHOWN_CHARACTERS else f"{value[:_SHOWN_CHARACTERS]}...")
