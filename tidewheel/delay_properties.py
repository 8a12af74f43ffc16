"""Message properties that specify a delivery time.

These user properties can be used instead of the protocol's delivery timestamp, so that clients of any
language and version can delay messages. Names and units are those of RocketMQ and its cloud service:

| property             | value                                   | due                       |
|----------------------|-----------------------------------------|---------------------------|
| `__STARTDELIVERTIME` | milliseconds since 1970                 | at this time              |
| `TIMER_DELIVER_MS`   | milliseconds since 1970                 | at this time              |
| `TIMER_DELAY_SEC`    | seconds                                 | this long after arrival   |
| `TIMER_DELAY_MS`     | milliseconds                            | this long after arrival   |
| `DELAY`              | RocketMQ 4 delay level 1 to 18, 0: none | the delay of this level   |

Rules:
- A value consists of digits only (`whole_number`); any other value is refused.
- A level above the maximum is treated as the maximum, as in RocketMQ. A time in the past means immediate
  delivery.
- If a message has several of these properties, they must specify the same millisecond. Otherwise it is
  refused. RocketMQ uses the first of `DELAY`, `TIMER_DELAY_SEC`, `TIMER_DELAY_MS` and `TIMER_DELIVER_MS`,
  ignores `__STARTDELIVERTIME`, and does not report the conflict, so the message might be delivered at a time
  that the producer did not intend.
- The properties are removed from the message. The message is stored only with `TIMER_OUT_MS`
  (`services.broker.timers.timers`), so that a consumer that forwards it does not delay it again.

A common mistake is a time in seconds instead of milliseconds. Such a time is in the 1970s and is refused
instead of being delivered immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tidewheel.errors import IllegalDeliveryTime
from tidewheel.message_rules import TIME_DIGITS_MAX, WALL_MS_MIN

_SHOWN_CHARACTERS: Final = 40

LEVELS_MS: Final[tuple[int, ...]] = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))
)
"""Delays of the 18 levels: 1s 5s 10s 30s 1m ... 10m 20m 30m 1h 2h."""


def whole_number(name: str, value: str) -> int:
    """Return the non-negative integer value of a property. Raises `IllegalDeliveryTime`."""
    if not is_number(value):
        raise IllegalDeliveryTime(f"{name} is {shown(value)}; it must be a whole number, 0 or more.")
    return int(value)


def wall_ms(name: str, value: str) -> int:
    """Return the value of a property in milliseconds since 1970. Raises `IllegalDeliveryTime`."""
    time_ms = whole_number(name, value)
    if time_ms < WALL_MS_MIN:
        raise IllegalDeliveryTime(
            f"{name} is {time_ms}, in or before 1973. Were seconds given where milliseconds are meant?"
        )
    return time_ms


def is_number(value: str) -> bool:
    """Return whether a value consists of at most `TIME_DIGITS_MAX` digits."""
    return value.isascii() and value.isdigit() and len(value) <= TIME_DIGITS_MAX


def shown(value: str) -> str:
    """Return a value as shown in error messages, quoted and truncated to `_SHOWN_CHARACTERS`."""
    return repr(value if len(value) <= _SHOWN_CHARACTERS else f"{value[:_SHOWN_CHARACTERS]}...")


def without_delay(given: dict[str, str], now_ms: int) -> tuple[int | None, dict[str, str]]:
    """Return the delivery time in milliseconds, or None, and the properties without the delay properties.

    Raises `IllegalDeliveryTime`.
    """
    asking = WAYS.keys() & given.keys()
    if not asking:
        return None, given
    asked = {name: WAYS[name](name, given[name], now_ms) for name in sorted(asking)}
    due = {name: due_ms for name, due_ms in asked.items() if due_ms is not None}
    if len(set(due.values())) > 1:
        raise contradiction(due)
    rest = {name: value for name, value in given.items() if name not in asking}
    return next(iter(due.values()), None), rest


def contradiction(due: Mapping[str, int | None]) -> IllegalDeliveryTime:
    """Return the error for conflicting delivery times."""
    said = ", ".join(f"{name} means {due_ms} ms" for name, due_ms in due.items())
    return IllegalDeliveryTime(f"It is given in several ways: {said}. Give one of them.")


def _then(name: str, value: str, now_ms: int) -> int:
    return wall_ms(name, value)


def _in_seconds(name: str, value: str, now_ms: int) -> int:
    return now_ms + 1000 * whole_number(name, value)


def _in_ms(name: str, value: str, now_ms: int) -> int:
    return now_ms + whole_number(name, value)


def _at_level(name: str, value: str, now_ms: int) -> int | None:
    level = whole_number(name, value)
    return now_ms + LEVELS_MS[min(level, len(LEVELS_MS)) - 1] if level else None


WAYS: Final[dict[str, Callable[[str, str, int], int | None]]] = {
    "__STARTDELIVERTIME": _then,
    "TIMER_DELIVER_MS": _then,
    "TIMER_DELAY_SEC": _in_seconds,
    "TIMER_DELAY_MS": _in_ms,
    "DELAY": _at_level,
}
