"""What the user calls an order and its columns, as sentences about orders say it.

A run keeps these names in its summary, since who looks at it later gives no mapping. What the user has not
named is called by a word: the shop's `total_pence` is no word for an accountant.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from spark_jobs.inputs.mapping import SHOP, Mapping

_WORDS: Final = {
    "customer_id": "customer",
    "total_pence": "total",
    "placed_ms": "time of the order",
    "due_ms": "time to pay by",
    "paid_ms": "time of the payment",
    "timed_out_ms": "time of the timeout",
    "cancelled_ms": "time of the cancellation",
}


@dataclass(frozen=True, slots=True)
class OrderNames:
    """The word for an order, and those for its columns by our names of them."""

    order: str = "order"
    columns: dict[str, str] = field(default_factory=lambda: dict(_WORDS))
    created: str = SHOP.topics.order_created
    timeouts: str = SHOP.topics.order_timeouts

    @classmethod
    def of_mapping(cls, mapping: Mapping) -> Self:
        """Return the names of a mapping; a word for each that is the shop's."""
        theirs = mapping.orders.columns
        columns = {
            ours: theirs[ours] if theirs.get(ours, ours) != ours else word for ours, word in _WORDS.items()
        }
        order = mapping.orders.name if mapping.orders.name != SHOP.orders.name else "order"
        return cls(order, columns, mapping.topics.order_created, mapping.topics.order_timeouts)

    @classmethod
    def of_json(cls, plain: dict[str, Any]) -> Self:
        """Return the names that a summary holds."""
        return cls(**plain)

    def as_json(self) -> dict[str, Any]:
        """Return the names as plain values."""
        return asdict(self)

    def of(self, column: str) -> str:
        """Return the name of one of our columns, or of what the log or the ledger says of an order."""
        beside = {
            "committed_ms": f"message in {self.created}",
            "cleared_ms": "entry in the cart's ledger",
            "delivered_ms": f"delivery of its deadline in {self.timeouts}",
        }
        return beside.get(column) or self.columns.get(column, column)


SHOPS: Final = OrderNames()
"""Words for everything."""
