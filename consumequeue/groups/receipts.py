"""Receipt handles.

A receipt handle identifies a lease. It contains RocketMQ's nine fields, an epoch, and a generation.

    startOffset popTime invisibleTime reviveQueueId topicType
    brokerName queueId offset commitLogOffset [epoch] generation

Receipt handles are opaque to clients. Each lease has a unique generation, so a handle is rejected once its
message has been acknowledged or leased again. Epoch 0 is omitted. (See `ReceiptHandle` in RocketMQ.)
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from commitlog import limits
from tidewheel.errors import InvalidReceiptHandle


class Receipt(NamedTuple):
    """The contents of a receipt handle: a lease and its message."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    leased_ms: int
    invisible_ms: int
    generation: int
    epoch: int = 0


def encode(
    queue_id: int, offset: int, physical_offset: int, leased_ms: int, invisible_ms: int, generation: int,
    epoch: int, broker_name: str,
) -> str:  # fmt: skip
    """Return the receipt handle for a lease. Times are in milliseconds since the Unix epoch."""
    lease = f"{epoch} {generation}" if epoch else generation
    return (
        f"{offset} {leased_ms} {invisible_ms} 0 0 {broker_name} {queue_id} {offset} {physical_offset} {lease}"
    )


def generation_of(handle: str) -> int:
    """Return the generation in a receipt handle, or -1 if the handle is malformed.

    The caller compares it with the current lease's generation.
    """
    try:
        return int(handle.rpartition(" ")[2])
    except ValueError:
        return -1


@lru_cache(maxsize=limits.ENTRIES_PER_REQUEST_MAX)
def decode(handle: str) -> Receipt:
    """Return the contents of a receipt handle. Raise `InvalidReceiptHandle` if it is malformed.

    Results are cached, because a receipt handle for an ended lease is decoded twice.
    """
    try:
        first, leased, invisible, revive, kind, _, queue, offset, physical, *rest = handle.split(" ")
        epoch, generation = rest if len(rest) == 2 else ("0", *rest)
        numbers = f"{first}{leased}{invisible}{queue}{offset}{physical}{epoch}{generation}"
        if not (numbers.isascii() and numbers.isdigit() and first == offset and revive == kind == "0"):
            raise ValueError
        lease = map(int, (queue, offset, physical, leased, invisible, generation, epoch))
        return Receipt(*lease)
    except ValueError:
        raise InvalidReceiptHandle(
            "It was not given out by this broker. Use the handle of the last receive."
        ) from None
