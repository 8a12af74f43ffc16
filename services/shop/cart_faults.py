"""Where the faults of `faults.py` strike the carts; with none armed, these are the plain carts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.shop.carts import Carts, keys_of
from services.shop.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis import Redis

    from services.shop.clock import Clock
    from services.shop.faults import Faults


class FaultyCarts(Carts):
    """Carts that fail at an order, or take its lines out twice, where a fault is armed."""

    def __init__(self, redis: Redis, clock_ms: Clock, faults: Faults) -> None:
        super().__init__(redis, clock_ms)
        self._faults = faults

    def clear(self, customer_id: str, order_id: str, lines: Iterable[tuple[str, int]]) -> bool:
        """Take an order's lines out of a cart; where armed, again when the message comes again."""
        lines = list(lines)
        if self._faults.strikes(Fault.POISON, order_id):
            raise ValueError(f"Order {order_id} is poison to this service.")
        cleared = super().clear(customer_id, order_id, lines)
        if not cleared and self._faults.strikes(Fault.CLEAR_AGAIN, order_id):
            for sku, quantity in lines:
                self._redis.hincrby(keys_of(customer_id)[0], sku, -quantity)
        return cleared
