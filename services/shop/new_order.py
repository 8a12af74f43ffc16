"""An order as a customer asks for it, before it is placed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidewheel.errors import ClientMistake

KEY_CHARACTERS_MAX = 64


@dataclass(slots=True, frozen=True)
class Line:
    """One article of an order."""

    sku: str
    quantity: int
    unit_price_pence: int


@dataclass(slots=True, frozen=True)
class NewOrder:
    """An order as the customer asks for it; `timeout_ms` is how long there is to pay."""

    order_id: str
    customer_id: str
    lines: tuple[Line, ...]
    timeout_ms: int

    @property
    def total_pence(self) -> int:
        """Return the order's total in pence."""
        return sum(line.quantity * line.unit_price_pence for line in self.lines)

    def content(self, placed_ms: int) -> dict[str, Any]:
        """Return the body of its `order-created` message."""
        lines = [
            {"sku": line.sku, "quantity": line.quantity, "unit_price_pence": line.unit_price_pence}
            for line in self.lines
        ]
        head = {"order_id": self.order_id, "customer_id": self.customer_id, "placed_ms": placed_ms}
        return head | {"lines": lines}

    def refuse_unsellable(self) -> None:
        """Refuse an order that names nothing, or an article less than once, below nothing, or twice.

        Raises:
            ClientMistake: in these cases.
        """
        skus = [line.sku for line in self.lines]
        sellable = all(line.sku and line.quantity > 0 and line.unit_price_pence >= 0 for line in self.lines)
        named = is_message_key(self.order_id) and self.customer_id and skus
        if not (named and sellable and len(set(skus)) == len(skus) and self.timeout_ms > 0):
            raise ClientMistake(
                f"Order {self.order_id!r} needs an id without blanks, a customer, a time to pay, and lines "
                "of different SKUs, each with a quantity above zero and a price of zero or more."
            )


def is_message_key(text: str) -> bool:
    """Return whether an id can be a message's key: printable, without blanks, short."""
    return 0 < len(text) <= KEY_CHARACTERS_MAX and text.isprintable() and not any(map(str.isspace, text))
