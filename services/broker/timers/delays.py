"""Convert the delay properties of a message to an absolute delivery time.

The delay properties and their rules are described in `tidewheel.delay_properties`.

Delays are relative to real time, because front ends process the properties before the conversion to broker
time (`services.live.clock`). The maximum delay is checked later (`services.broker.spine.validation`).

Cost: one set operation for a message without delay properties.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from commitlog.records.message import Message
from services.broker.spine import verb_properties
from tidewheel.delay_properties import LEVELS_MS as LEVELS_MS
from tidewheel.delay_properties import WAYS, contradiction
from tidewheel.delay_properties import without_delay as without_delay

_TIMED: Final = frozenset({*WAYS, verb_properties.TO})


def with_absolute_times(message: Message, now_ms: int) -> Message:
    """Return a received message with all relative times converted to absolute times.

    `now_ms` is the current real time. Raise `IllegalDeliveryTime` if a time is illegal or if two times
    conflict.
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
