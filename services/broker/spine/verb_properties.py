"""Define the message properties with which clients cancel, move, and fire timers.

| property          | value                                                                          |
|-------------------|--------------------------------------------------------------------------------|
| `TW_TIMER_CANCEL` | the timer to cancel, given by timer key (`TW_TIMER_KEY`) or message id         |
| `TW_TIMER_MOVE`   | the timer to move to another due time, given by timer key or message id        |
| `TW_TIMER_FIRE`   | the timer to deliver immediately, given by timer key or message id             |
| `TW_TIMER_TO`     | the new due time: milliseconds since 1970, or a time span such as `30m`        |
| `TW_TIMER_TOPIC`  | the topic of the timer; the default is the topic of the message                |
| `TW_TIMER_STRICT` | `true`: reject the message if the timer is unknown                             |

Rules:
- A message contains at most one timer operation. `TW_TIMER_TO` is required for a move, and is illegal for the
  other operations. `TW_TIMER_TOPIC` and `TW_TIMER_STRICT` are allowed for any operation.
- The front end converts a time span to an absolute time, and `services.live.clock` converts the absolute time
  to broker time. `TW_TIMER_TO` is therefore stored in broker time. In a transaction, the time span starts
  when the message is sent, not when the transaction is committed.
- The front end adds the namespace of the message to `TW_TIMER_TOPIC` (`services.rpc.wire.messages`). Clients
  therefore cannot change timers in other namespaces.
- In the stored message, `TW_TIMER_VERDICT` contains the result of the operation. Clients cannot set this
  property.

`parse_verb` parses and checks the operation, and `services.broker.timers.verb_executor` executes it. Cost:
one set operation for a message without a timer operation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final

from commitlog import limits
from commitlog.records.message import Message
from services.broker.spine.errors import IllegalDeliveryTime, IllegalProperty
from tidewheel import durations
from tidewheel.delay_properties import is_number, shown, wall_ms
from timingwheel.levels import SPAN_MS

_BEGINNING: Final = b"TW_TIMER_"
TOPIC: Final = "TW_TIMER_TOPIC"
TO: Final = "TW_TIMER_TO"
STRICT: Final = "TW_TIMER_STRICT"
VERDICT: Final = "TW_TIMER_VERDICT"
_VERDICT_TIME: Final = re.compile(r"(?<= at )\d+")


class VerbKind(Enum):
    """The timer operations. The value of each operation is the name of its message property."""

    CANCEL = "TW_TIMER_CANCEL"
    MOVE = "TW_TIMER_MOVE"
    FIRE = "TW_TIMER_FIRE"


@dataclass(slots=True, frozen=True)
class CarriedTimerVerb:
    """A timer operation specified by message properties.

    `name` is a timer key or a message id. `to_ms` is the new due time of a move, or 0 for other operations.
    If `is_strict` is true, the message is stored only if the timer is pending or in the retained history.
    """

    kind: VerbKind
    topic: str
    name: str
    to_ms: int = 0
    is_strict: bool = False


def has_verb(message: Message) -> bool:
    """Return whether a message has any property for timer operations."""
    return not _NAMES.isdisjoint(message.properties)


def may_have_verb(stored: bytes) -> bool:
    """Return whether encoded properties may contain a timer operation."""
    return _BEGINNING in stored


def parse_verb(message: Message, now_ms: int, delay_ms_max: int | None = None) -> CarriedTimerVerb | None:
    """Return the timer operation of a message, or None. Raise a `ClientMistake` if it is illegal.

    All times must be in broker time. `delay_ms_max` is None for a message whose delay was already checked
    when the message was sent. The delay is then not limited.
    """
    given = message.properties
    if _NAMES.isdisjoint(given):
        return None
    kind = _kind(given)
    to_ms = _to_ms(given[TO], now_ms, delay_ms_max) if kind is VerbKind.MOVE else 0
    is_strict = given.get(STRICT, "").lower() == "true"
    return CarriedTimerVerb(
        kind, given.get(TOPIC, message.topic), _name(kind, given[kind.value]), to_ms, is_strict
    )


def with_absolute_time(given: dict[str, str], now_ms: int) -> dict[str, str]:
    """Return the properties, with the time span of a move replaced by an absolute time.

    `now_ms` is the start of the time span. Raise `IllegalDeliveryTime` if the time is illegal.
    """
    if TO not in given:
        return given
    value = given[TO]
    to_ms = wall_ms(TO, value) if is_number(value) else now_ms + _span_ms(value)
    return given | {TO: str(to_ms)}


def with_shifted_time(given: dict[str, str], by_ms: int) -> dict[str, str]:
    """Return the properties, with the absolute times of a move and of a result shifted by `by_ms`."""
    shifted = given
    if is_number(given.get(TO, "")):
        shifted = shifted | {TO: str(max(0, int(given[TO]) + by_ms))}
    if VERDICT in given:
        shifted = shifted | {VERDICT: _VERDICT_TIME.sub(partial(_shifted, by_ms), given[VERDICT])}
    return shifted


def _shifted(by_ms: int, found: re.Match[str]) -> str:
    return str(int(found.group()) + by_ms)


def _kind(given: dict[str, str]) -> VerbKind:
    kinds = [kind for kind in VerbKind if kind.value in given]
    if VERDICT in given:
        raise IllegalProperty(f"{VERDICT} is the broker's answer; nobody else may set it.")
    if len(kinds) != 1:
        named = ", ".join(kind.value for kind in kinds) or "none"
        raise IllegalProperty(f"A message that names a timer carries one verb, this one has {named}.")
    [kind] = kinds
    if (TO in given) != (kind is VerbKind.MOVE):
        raise IllegalProperty(f"{TO} is the new time of a {VerbKind.MOVE.value}: give both or neither.")
    if not given.get(TOPIC, "-"):
        raise IllegalProperty(f"{TOPIC} is empty. Leave it out to mean the message's own topic.")
    if given.get(STRICT, "false").lower() not in ("true", "false"):
        raise IllegalProperty(f"{STRICT} is {shown(given[STRICT])}; give true or false.")
    return kind


def _name(kind: VerbKind, name: str) -> str:
    if not name.strip() or len(name) > limits.TIMER_NAME_CHARACTERS_MAX:
        raise IllegalProperty(
            f"{kind.value} is {shown(name)}; give a timer key or message id of at most "
            f"{limits.TIMER_NAME_CHARACTERS_MAX} characters."
        )
    return name


def _to_ms(value: str, now_ms: int, delay_ms_max: int | None) -> int:
    to_ms = int(value) if is_number(value) else now_ms + _span_ms(value)
    if delay_ms_max is not None and to_ms - now_ms > delay_ms_max:
        raise IllegalDeliveryTime(
            f"{TO} is {durations.away(to_ms - now_ms)}, the limit is {durations.span_text(delay_ms_max)}."
        )
    if to_ms >= SPAN_MS:  # The delivery time of an imported half message has not been checked.
        raise IllegalDeliveryTime(f"{TO} is {durations.away(to_ms - now_ms)}; no timer can be set for that.")
    return to_ms


def _span_ms(value: str) -> int:
    try:
        return durations.span_ms(value)
    except ValueError as error:
        raise IllegalDeliveryTime(
            f"{TO} is {shown(value)}; give milliseconds since 1970, or a span: {error}."
        ) from error


_NAMES: Final = frozenset({TOPIC, TO, STRICT, VERDICT, *(kind.value for kind in VerbKind)})
