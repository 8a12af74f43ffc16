"""The user's names for an order and its columns, as used in sentences about orders.

A run stores these names in its summary, since commands that read the run later have no mapping. A column that
the user has not renamed is shown as an English word, since `total_pence` is no term of accounting.
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
    """The word for an order, the words for its columns by our names, and the names of two topics."""

    order: str = "order"
    columns: dict[str, str] = field(default_factory=lambda: dict(_WORDS))
    created: str = SHOP.topics.order_created
    timeouts: str = SHOP.topics.order_timeouts

    @classmethod
    def of_mapping(cls, mapping: Mapping) -> Self:
        """Return the names of a mapping, with a word for each column that has the shop's name."""
        theirs = mapping.orders.columns
        columns = {
            ours: theirs[ours] if theirs.get(ours, ours) != ours else word for ours, word in _WORDS.items()
        }
        order = mapping.orders.name if mapping.orders.name != SHOP.orders.name else "order"
        return cls(order, columns, mapping.topics.order_created, mapping.topics.order_timeouts)

    @classmethod
    def of_json(cls, plain: dict[str, Any]) -> Self:
        """Return the names from a run's summary."""
        return cls(**plain)

    def as_json(self) -> dict[str, Any]:
        """Return the names as JSON types."""
        return asdict(self)

    def of(self, column: str) -> str:
        """Return the name of one of our columns, or of a time that is from the log or the ledger."""
        beside = {
            "committed_ms": f"message in {self.created}",
            "cleared_ms": "entry in the cart's ledger",
            "delivered_ms": f"delivery of its deadline in {self.timeouts}",
        }
        return beside.get(column) or self.columns.get(column, column)


SHOPS: Final = OrderNames()
"""The names for the shop's own tables."""
