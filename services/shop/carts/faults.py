"""Fault injection for carts. Without armed faults, the behavior is that of the base class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.shop.carts.carts import Carts, keys_of
from services.shop.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis

    from services.shop.clock import Clock
    from services.shop.faults import Faults


class FaultyCarts(Carts):
    """Carts with faults: a failure while an order is processed, or a second removal of its lines."""

    def __init__(self, redis: Redis, clock_ms: Clock, faults: Faults) -> None:
        super().__init__(redis, clock_ms)
        self._faults = faults

    def clear(self, customer_id: str, order_id: str, lines: Iterable[tuple[str, int]]) -> bool:
        """Remove an order's lines from a cart.

        An armed fault removes them again when the message is redelivered.
        """
        lines = list(lines)
        if self._faults.strikes(Fault.POISON, order_id):
            raise ValueError(f"Order {order_id} is poison to this service.")
        cleared = super().clear(customer_id, order_id, lines)
        if not cleared and self._faults.strikes(Fault.CLEAR_AGAIN, order_id):
            for sku, quantity in lines:
                self._redis.hincrby(keys_of(customer_id)[0], sku, -quantity)
        return cleared
