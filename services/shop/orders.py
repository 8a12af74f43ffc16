"""Orders: a row, its messages and its deadline that agree, whatever dies in between.

Every verb is one barrier transaction (`tidewheel.barrier`): half messages and a change of the database that
stand or fall together.

| verb   | half messages                                              | database                      |
|--------|------------------------------------------------------------|-------------------------------|
| place  | `order-created`; the deadline on `order-timeouts`          | the order's rows              |
| pay    | `order-paid`, which carries the cancel of the deadline     | PLACED becomes PAID           |
| cancel | `order-cancelled`, likewise                                | PLACED or PAID, CANCELLED     |

Rules:
- The order id is the caller's: placing it again answers with the order that is there, and a change that has
  already happened is answered like a new one; neither says anything to the broker.
- Every change is one conditional update on the status; of payment and timeout the first wins. The row alone
  decides. That the deadline is cancelled with the payment saves its delivery; one that fires all the same
  (the payment's half was ended late) finds the order changed and does nothing.
- A change that comes too late rolls its transaction back: no message, no cancel. Its half stays in the log,
  and `tidewheel txn show` tells when it came and that it was rolled back.

An order's status: PLACED -> PAID | TIMED_OUT | CANCELLED, and PAID -> CANCELLED; nothing leaves the last two.

Cost of placing: four calls to the broker and one database transaction with one fsync; of paying: two calls
and one transaction.

Weak spot: `time_out` is no barrier transaction and sends nothing: whoever wants to hear of a timeout has to
consume `order-timeouts` and ask for the status. A service that dies between the database commit and the ends
of the halves leaves them open until the broker asks back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from services.shop.order_messages import (
    CANCELLATION,
    PAYMENT,
    Change,
    change_message,
    created_message,
    deadline_message,
)
from services.shop.tables import OrderStatus, order_lines, orders
from tidewheel.errors import NotFound, RefusedByState

if TYPE_CHECKING:
    from rocketmq import Message, Producer
    from sqlalchemy import ColumnElement, Connection, Engine, Row
    from sqlalchemy.orm import Session

    from services.shop.clock import Clock
    from services.shop.new_order import NewOrder
    from tidewheel.barrier import Barrier

log = structlog.get_logger()


class Overtaken(Exception):
    """Another transaction changed the order first; raised in a barrier's block to roll it back."""


class Orders:
    """The verbs of the order service over one database and one broker."""

    def __init__(self, engine: Engine, barrier: Barrier, producer: Producer, clock_ms: Clock) -> None:
        self._engine = engine
        self._barrier = barrier
        self._producer = producer
        self._clock_ms = clock_ms

    def place(self, order: NewOrder) -> Row[Any]:
        """Place an order, or find it placed already.

        Raises:
            ClientMistake: when the order has no lines or a line that cannot be sold.
            RefusedByState: when the id belongs to another order.
            TransactionEnded: when a check-back rolled the placing back; it may be repeated.
        """
        order.refuse_unsellable()
        known = self._find(order.order_id)
        if known is not None:
            return refuse_other(known, order)
        placed_ms = self._clock_ms()
        due_ms = placed_ms + order.timeout_ms
        halves = created_message(order, placed_ms), deadline_message(order.order_id, due_ms)
        try:
            with self._barrier.transaction(self._producer, *halves) as session:
                self._insert(session, order, placed_ms, due_ms)
        except IntegrityError:  # a rival call with the same id was faster
            return refuse_other(self.get(order.order_id), order)
        return self.get(order.order_id)

    def _insert(self, session: Session, order: NewOrder, placed_ms: int, due_ms: int) -> None:
        head = {
            "order_id": order.order_id,
            "customer_id": order.customer_id,
            "status": OrderStatus.PLACED,
            "total_pence": order.total_pence,
            "placed_ms": placed_ms,
            "due_ms": due_ms,
        }
        session.execute(insert(orders).values(head))
        lines = order.content(placed_ms)["lines"]
        session.execute(insert(order_lines), [{"order_id": order.order_id, **line} for line in lines])

    def pay(self, order_id: str) -> Row[Any]:
        """Mark a placed order as paid; its deadline is cancelled with it.

        Raises:
            NotFound: when there is no such order.
            RefusedByState: when it has timed out or was cancelled.
            TransactionEnded: when a check-back rolled the payment back; it may be repeated.
        """
        return self._change(order_id, PAYMENT)

    def cancel(self, order_id: str) -> Row[Any]:
        """Cancel an order that is placed or paid; its deadline is cancelled with it.

        Raises:
            NotFound: when there is no such order.
            RefusedByState: when it has timed out.
            TransactionEnded: when a check-back rolled the cancellation back; it may be repeated.
        """
        return self._change(order_id, CANCELLATION)

    def time_out(self, order_id: str, due_ms: int) -> bool:
        """Time an order out if it is still unpaid and this deadline is its own; else do nothing (False)."""
        change = {"status": OrderStatus.TIMED_OUT, "timed_out_ms": self._clock_ms()}
        with self._engine.begin() as connection:
            # An earlier deadline is not this order's own: it is of another attempt to place the order.
            is_own = orders.c.due_ms <= due_ms
            changed = changes(connection, order_id, (OrderStatus.PLACED,), change, is_own)
        log.info("deadline", order_id=order_id, timed_out=changed)
        return changed

    def get(self, order_id: str) -> Row[Any]:
        """Return one order's row.

        Raises:
            NotFound: when there is no such order.
        """
        found = self._find(order_id)
        if found is None:
            raise NotFound(f"There is no order {order_id}.")
        return found

    def _change(self, order_id: str, change: Change) -> Row[Any]:
        """Change the status; a change that has already happened is answered like a new one."""
        order = self.get(order_id)
        if order.status == change.status:
            return order
        at_ms = self._clock_ms()
        half = self._message(change, order, at_ms)
        try:
            with self._barrier.transaction(self._producer, half) as session:
                self._update(session, order_id, change, at_ms)
        except Overtaken as overtaken:
            # A timeout or a rival call was faster: the half is rolled back, and the row says who has won.
            order = self.get(order_id)
            if order.status != change.status:
                raise RefusedByState(
                    f"Order {order_id} is {order.status} and cannot become {change.status}."
                ) from overtaken
            return order
        return self.get(order_id)

    def _message(self, change: Change, order: Row[Any], at_ms: int) -> Message:
        return change_message(change, order, at_ms)

    def _update(self, session: Session, order_id: str, change: Change, at_ms: int) -> None:
        if not changes(session, order_id, change.expected, change.values(at_ms)):
            raise Overtaken(order_id)

    def _find(self, order_id: str) -> Row[Any] | None:
        with self._engine.connect() as connection:
            return connection.execute(select(orders).where(orders.c.order_id == order_id)).one_or_none()


def changes(
    database: Session | Connection,
    order_id: str,
    expected: tuple[OrderStatus, ...],
    change: dict[str, Any],
    *conditions: ColumnElement[bool],
) -> bool:
    """Change an order that still stands as expected; False when it does not."""
    unchanged = (orders.c.order_id == order_id, orders.c.status.in_(expected), *conditions)
    changed: Any = database.execute(update(orders).where(*unchanged).values(change))
    return bool(changed.rowcount == 1)


def refuse_other(known: Row[Any], order: NewOrder) -> Row[Any]:
    """Return the known order, unless its id was used for another customer or sum."""
    if (known.customer_id, known.total_pence) != (order.customer_id, order.total_pence):
        raise RefusedByState(f"Order id {order.order_id} belongs to another order. Choose a new id.")
    return known
