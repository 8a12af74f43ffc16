"""When a message is to arrive, in whichever way its producer says so; everything becomes one absolute time.

Beside the protocol's delivery timestamp these user properties say it, so that a client of any language and
age can. Names and units are those of RocketMQ and its cloud:

| property             | value                                   | due                       |
|----------------------|-----------------------------------------|---------------------------|
| `__STARTDELIVERTIME` | milliseconds since 1970                 | then                      |
| `TIMER_DELIVER_MS`   | milliseconds since 1970                 | then                      |
| `TIMER_DELAY_SEC`    | seconds                                 | so long after it came in  |
| `TIMER_DELAY_MS`     | milliseconds                            | so long after it came in  |
| `DELAY`              | a level of RocketMQ 4, 1 to 18; 0: none | that pause after it came  |

Rules:
- A value is plain digits (`services.broker.given_times`); anything else is refused, not guessed at.
- A level above the last means the last, as in RocketMQ. A time that has passed means at once.
- Several ways on one message must mean the same millisecond, else it is refused. RocketMQ lets `DELAY` win
  over `TIMER_DELAY_SEC`, that over `TIMER_DELAY_MS` and that over `TIMER_DELIVER_MS`, never looks at
  `__STARTDELIVERTIME`, and says nothing: a message at a time that half of its producer did not mean.
- What was read is taken off the message. It is stored with `TIMER_OUT_MS` alone (`services.broker.timers`),
  so a consumer that sends it on does not delay it again.

"Now" is the caller's real time: fronts read the properties before `services.live.clock` moves times into the
broker's. How far ahead is too far is judged later (`services.broker.validation`).
Cost: two set operations for a message that has none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from commitlog.message import Message
from services.broker import verb_properties
from services.broker.errors import IllegalDeliveryTime
from services.broker.given_times import wall_ms, whole_number

LEVELS_MS: Final[tuple[int, ...]] = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))
)
"""The pauses of the 18 levels, 1s 5s 10s 30s 1m ... 10m 20m 30m 1h 2h."""


def dated(message: Message, now_ms: int) -> Message:
    """Return a message that comes in with every time that it names made absolute.

    `now_ms` is the caller's time. Raise `IllegalDeliveryTime` for what is no time, and for times that
    contradict each other.
    """
    if _TIMED.isdisjoint(message.properties):
        return message
    delivery_ms, rest = without_delay(message.properties, now_ms)
    rest = verb_properties.with_absolute_time(rest, now_ms)
    if rest is message.properties:
        return message
    if delivery_ms is None:
        delivery_ms = message.delivery_ms
    elif message.delivery_ms not in (None, delivery_ms):
        raise _contradiction({"the delivery timestamp": message.delivery_ms, "a property": delivery_ms})
    return replace(message, delivery_ms=delivery_ms, properties=rest)


def without_delay(given: dict[str, str], now_ms: int) -> tuple[int | None, dict[str, str]]:
    """Return the time (ms) that properties ask for, or None, and the properties without the ones that ask.

    Raise `IllegalDeliveryTime`.
    """
    asking = _WAYS.keys() & given.keys()
    if not asking:
        return None, given
    asked = {name: _WAYS[name](name, given[name], now_ms) for name in sorted(asking)}
    due = {name: due_ms for name, due_ms in asked.items() if due_ms is not None}
    if len(set(due.values())) > 1:
        raise _contradiction(due)
    rest = {name: value for name, value in given.items() if name not in asking}
    return next(iter(due.values()), None), rest


def _contradiction(due: Mapping[str, int | None]) -> IllegalDeliveryTime:
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


_WAYS: Final[dict[str, Callable[[str, str, int], int | None]]] = {
    "__STARTDELIVERTIME": _then,
    "TIMER_DELIVER_MS": _then,
    "TIMER_DELAY_SEC": _in_seconds,
    "TIMER_DELAY_MS": _in_ms,
    "DELAY": _at_level,
}
_TIMED: Final = frozenset({*_WAYS, verb_properties.TO})
