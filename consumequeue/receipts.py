"""The receipt handle: a lease in words, in RocketMQ's nine fields plus a generation.

    startOffset popTime invisibleTime reviveQueueId topicType
    brokerName queueId offset commitLogOffset generation

Clients treat it as opaque. The generation is unique to one lease, so a handle is refused once its message
has been acknowledged or leased again. (RocketMQ `ReceiptHandle`.)
"""

from __future__ import annotations

from typing import NamedTuple

from commitlog.errors import InvalidReceiptHandle


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
    try:
        first, leased, invisible, revive, kind, _, queue, offset, physical, generation = handle.split(" ")
        numbers = f"{first}{leased}{invisible}{queue}{offset}{physical}{generation}"
        if not (numbers.isascii() and numbers.isdigit() and first == offset and revive == kind == "0"):
            raise ValueError
        return Receipt(int(queue), int(offset), int(physical), int(leased), int(invisible), int(generation))
    except ValueError:
        raise InvalidReceiptHandle(
            "It was not given out by this broker. Use the handle of the last receive."
        ) from None
