"""The receipt handle: a lease in words, in RocketMQ's nine fields plus a generation.

    startOffset popTime invisibleTime reviveQueueId topicType
    brokerName queueId offset commitLogOffset generation

Clients treat it as opaque. The generation is unique to one lease, so a handle is refused once its message
has been acknowledged or leased again. (RocketMQ `ReceiptHandle`.)
"""

from __future__ import annotations

from typing import Final, NamedTuple

from commitlog.errors import InvalidReceiptHandle

_FIELD_COUNT: Final = 10


class Receipt(NamedTuple):
    """What a handle says: which lease, on what."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    leased_ms: int
    invisible_ms: int
    generation: int


def encode(receipt: Receipt, broker_name: str) -> str:
    """The handle for a lease."""
    return (
        f"{receipt.queue_offset} {receipt.leased_ms} {receipt.invisible_ms} 0 0 {broker_name} "
        f"{receipt.queue_id} {receipt.queue_offset} {receipt.physical_offset} {receipt.generation}"
    )


def decode(handle: str) -> Receipt:
    """The lease that a handle names; raises `InvalidReceiptHandle` for anything we did not write."""
    fields = handle.split(" ")
    numbers = fields[:5] + fields[6:]
    if len(fields) != _FIELD_COUNT or not all(number.isascii() and number.isdigit() for number in numbers):
        raise InvalidReceiptHandle("It was not given out by this broker. Use the handle of the last receive.")
    return Receipt(
        queue_id=int(fields[6]),
        queue_offset=int(fields[7]),
        physical_offset=int(fields[8]),
        leased_ms=int(fields[1]),
        invisible_ms=int(fields[2]),
        generation=int(fields[9]),
    )
