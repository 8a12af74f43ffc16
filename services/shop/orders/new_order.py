"""An order request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidewheel.errors import ClientMistake

KEY_CHARACTERS_MAX = 64


@dataclass(slots=True, frozen=True)
class Line:
    """An article of an order."""

    sku: str
    quantity: int
    unit_price_pence: int


@dataclass(slots=True, frozen=True)
class NewOrder:
    """An order request. `timeout_ms` is the time limit for the payment."""

    order_id: str
    customer_id: str
    lines: tuple[Line, ...]
    timeout_ms: int

    @property
    def total_pence(self) -> int:
        """Return the order's total in pence."""
        return sum(line.quantity * line.unit_price_pence for line in self.lines)

    def content(self, placed_ms: int) -> dict[str, Any]:
        """Return the body of the `order-created` message."""
        lines = [
            {"sku": line.sku, "quantity": line.quantity, "unit_price_pence": line.unit_price_pence}
            for line in self.lines
        ]
        head = {"order_id": self.order_id, "customer_id": self.customer_id, "placed_ms": placed_ms}
        return head | {"lines": lines}

    def refuse_unsellable(self) -> None:
        """Validate the order: its id, its customer, its timeout, and the SKUs, quantities and prices of its
        lines.

        Raises:
            ClientMistake: If the order is invalid.
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
    """Return whether an id can be a message key: printable, without spaces, and not too long."""
    return 0 < len(text) <= KEY_CHARACTERS_MAX and text.isprintable() and not any(map(str.isspace, text))
