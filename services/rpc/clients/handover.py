"""Leases whose answer was lost in transit.

The broker renews the leases of a push consumer as long as the client is alive. A lease that the client never
received must therefore be released. Otherwise its message would remain leased until the client ends. An
answer is considered lost if its stream broke before the end, or if the client repeats the request with the
same attempt id.
"""

from __future__ import annotations

from typing import NamedTuple

from services.broker.spine.values import Delivery


class PendingLease(NamedTuple):
    """The leases of one answer, by stored names."""

    group: str
    topic: str
    attempt_id: str
    handles: list[str]


def lent(group: str, topic: str, attempt_id: str, deliveries: list[Delivery]) -> PendingLease:
    """Return the leases of an answer."""
    return PendingLease(group, topic, attempt_id, [delivery.receipt_handle for delivery in deliveries])
