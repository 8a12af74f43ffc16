"""Leases whose answer got lost on the way.

The broker renews a push consumer's leases for as long as the client is alive. So a lease that the client
never heard of must be given back, or its message would wait until the client ends. It was not heard of when
the stream broke before its end, or when the client asks again with the attempt id of that very answer.
"""

from __future__ import annotations

from typing import NamedTuple

from services.broker.spine.values import Delivery


class Lent(NamedTuple):
    """What one answer leased to its client, by names of the store."""

    group: str
    topic: str
    attempt_id: str
    handles: list[str]


def lent(group: str, topic: str, attempt_id: str, deliveries: list[Delivery]) -> Lent:
    """Return what an answer leases."""
    return Lent(group, topic, attempt_id, [delivery.receipt_handle for delivery in deliveries])
