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


def encode(
    queue_id: int, offset: int, physical_offset: int, leased_ms: int, invisible_ms: int, generation: int,
    broker_name: str,
) -> str:  # fmt: skip
    """The handle for a lease, which says a `Receipt`."""
    return (
        f"{offset} {leased_ms} {invisible_ms} 0 0 {broker_name} {queue_id} {offset} {physical_offset} "
        f"{generation}"
    )


def generation_of(handle: str) -> int:
    """Which lease a handle claims to be of, to be held against what was given out; -1 if of none."""
    try:
        return int(handle.rpartition(" ")[2])
    except ValueError:
        return -1


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
