"""Converts the delay properties of a message to a single absolute delivery time.

The delay properties and their rules are listed in `tidewheel.delay_properties`.

Delays are measured from the caller's real time, because the protocol front ends read the properties before
`services.live.clock` converts times to broker time. The maximum delay is checked later
(`services.broker.spine.validation`). Cost: a message without delay properties requires one set operation.
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


def with_absolute_times(message: Message, now_ms: int) -> Message:
    """Return a received message with its relative times converted to absolute times.

    `now_ms` is the caller's time. Raise `IllegalDeliveryTime` if a time is illegal or two times conflict.
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
