"""The messages of the order service: an order was placed, paid or cancelled, or its payment timeout has
expired.

All are half messages of a transaction (`services.shop.orders.orders`). The deadline is a timer with the key
`order:<id>`, which is set when its half message is committed. The message of a payment or cancellation
cancels this timer when it is committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from services.shop.messaging import json_message
from services.shop.tables import OrderStatus
from services.shop.topics import ORDER_CANCELLED, ORDER_CREATED, ORDER_PAID, ORDER_TIMEOUTS

if TYPE_CHECKING:
    from rocketmq import Message
    from sqlalchemy import Row

    from services.shop.orders.new_order import NewOrder


@dataclass(slots=True, frozen=True)
class Change:
    """A change that ends the payment timeout: its expected and new status, its column and its topic."""

    expected: tuple[OrderStatus, ...]
    status: OrderStatus
    column: str
    topic: str

    def values(self, at_ms: int) -> dict[str, Any]:
        """Return the column values of the change."""
        return {"status": self.status, self.column: at_ms}

    def content(self, order: Row[Any], at_ms: int) -> dict[str, Any]:
        """Return the body of the change's message."""
        head = {
            "order_id": order.order_id,
            "customer_id": order.customer_id,
            "total_pence": order.total_pence,
        }
        return head | {self.column: at_ms}


PAYMENT = Change((OrderStatus.PLACED,), OrderStatus.PAID, "paid_ms", ORDER_PAID)
CANCELLATION = Change(
    (OrderStatus.PLACED, OrderStatus.PAID), OrderStatus.CANCELLED, "cancelled_ms", ORDER_CANCELLED
)


def created_message(order: NewOrder, placed_ms: int) -> Message:
    """Return the `order-created` message of an order."""
    return json_message(ORDER_CREATED, order.order_id, order.content(placed_ms))


def deadline_message(order_id: str, due_ms: int) -> Message:
    """Return the message that is delivered when the payment timeout expires.

    The delivery time is a property, since the official client refuses a delivery timestamp in a transaction.
    """
    properties = {"TW_TIMER_KEY": timer_key(order_id), "TIMER_DELIVER_MS": str(due_ms)}
    content = {"order_id": order_id, "due_ms": due_ms}
    return json_message(ORDER_TIMEOUTS, order_id, content, properties=properties)


def change_message(change: Change, order: Row[Any], at_ms: int) -> Message:
    """Return the message of a payment or cancellation, which cancels the deadline timer."""
    properties = {"TW_TIMER_CANCEL": timer_key(order.order_id), "TW_TIMER_TOPIC": ORDER_TIMEOUTS}
    return json_message(change.topic, order.order_id, change.content(order, at_ms), properties=properties)


def timer_key(order_id: str) -> str:
    """Return the timer key of an order's deadline."""
    return f"order:{order_id}"
