"""Delivery times of messages: all properties that set one are converted to one absolute time.

`tidewheel.delay_properties` has these properties and their rules.

"Now" is the caller's real time: fronts read the properties before `services.live.clock` converts times to the
broker's. The maximum delay is checked later (`services.broker.spine.validation`).
Cost: two set operations for a message without such properties.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from commitlog.message import Message
from services.broker.spine import verb_properties
from tidewheel.delay_properties import LEVELS_MS as LEVELS_MS
from tidewheel.delay_properties import WAYS, contradiction
from tidewheel.delay_properties import without_delay as without_delay

_TIMED: Final = frozenset({*WAYS, verb_properties.TO})


def dated(message: Message, now_ms: int) -> Message:
    """Return a received message with all its times made absolute.

    `now_ms` is the caller's time. Raise `IllegalDeliveryTime` for illegal times, and for times that
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
        raise contradiction({"the delivery timestamp": message.delivery_ms, "a property": delivery_ms})
    return replace(message, delivery_ms=delivery_ms, properties=rest)
