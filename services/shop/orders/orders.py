"""Orders whose rows, messages and deadlines remain consistent after a crash.

Every operation is a barrier transaction (`tidewheel.barrier`), which commits or rolls back half messages and
a database change together.

| method | half messages                                              | database                      |
|--------|------------------------------------------------------------|-------------------------------|
| place  | `order-created`, and the deadline in `order-timeouts`      | inserts the order's rows      |
| pay    | `order-paid`, which cancels the deadline                   | PLACED -> PAID                |
| cancel | `order-cancelled`, which cancels the deadline              | PLACED or PAID -> CANCELLED   |

Rules:
- The caller chooses the order id. If the order exists already, `place` returns it. A change that was already
  made is not repeated. In both cases no message is sent.
- Every change is one conditional update of the status, so if a payment and a timeout are concurrent, the
  first update succeeds. Only the row determines the status. The payment cancels the deadline to avoid its
  delivery. A deadline that is delivered nevertheless, because the half message of the payment was ended late,
  does not change the order.
- A change that is too late rolls its transaction back, so its message and the cancellation of the deadline
  are not delivered. Its half message remains in the log, and `tidewheel txn show` shows its time and the
  rollback.

Status transitions: PLACED -> PAID | TIMED_OUT | CANCELLED, and PAID -> CANCELLED. TIMED_OUT and CANCELLED are
final.

Cost: placing an order takes four calls to the broker and one database transaction with one fsync. Paying
takes two calls and one transaction.

Limitations: `time_out` is not a barrier transaction and sends no message, so a service that must know about
timeouts has to consume `order-timeouts` and query the status. If the service crashes between the database
commit and the end of the half messages, they remain open until the next check-back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from services.shop.orders.messages import (
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
    from services.shop.orders.new_order import NewOrder
    from tidewheel.barrier import Barrier

log = structlog.get_logger()


class Overtaken(Exception):
    """Another transaction changed the order first; raised in a barrier's block to roll it back."""


class Orders:
    """The operations of the order service on a database and a broker."""

    def __init__(self, engine: Engine, barrier: Barrier, producer: Producer, clock_ms: Clock) -> None:
        self._engine = engine
        self._barrier = barrier
        self._producer = producer
        self._clock_ms = clock_ms

    def place(self, order: NewOrder) -> Row[Any]:
        """Place an order. If the order exists already, it is returned.

        Raises:
            ClientMistake: If the order has no lines or an invalid line.
            RefusedByState: If the id belongs to another order.
            TransactionEnded: If a check-back rolled the transaction back. The call can be repeated.
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
        except IntegrityError:  # a concurrent call with the same id has committed
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
        """Mark a placed order as paid and cancel its deadline.

        Raises:
            NotFound: If the order does not exist.
            RefusedByState: If the order has timed out or was cancelled.
            TransactionEnded: If a check-back rolled the transaction back. The call can be repeated.
        """
        return self._change(order_id, PAYMENT)

    def cancel(self, order_id: str) -> Row[Any]:
        """Cancel a placed or paid order and its deadline.

        Raises:
            NotFound: If the order does not exist.
            RefusedByState: If the order has timed out.
            TransactionEnded: If a check-back rolled the transaction back. The call can be repeated.
        """
        return self._change(order_id, CANCELLATION)

    def time_out(self, order_id: str, due_ms: int) -> bool:
        """Time an order out if it is unpaid and the deadline belongs to it. Returns False otherwise."""
        change = {"status": OrderStatus.TIMED_OUT, "timed_out_ms": self._clock_ms()}
        with self._engine.begin() as connection:
            # An earlier deadline belongs to another attempt to place the order.
            is_own = orders.c.due_ms <= due_ms
            changed = changes(connection, order_id, (OrderStatus.PLACED,), change, is_own)
        log.info("deadline", order_id=order_id, timed_out=changed)
        return changed

    def get(self, order_id: str) -> Row[Any]:
        """Return an order's row.

        Raises:
            NotFound: If the order does not exist.
        """
        found = self._find(order_id)
        if found is None:
            raise NotFound(f"There is no order {order_id}.")
        return found

    def _change(self, order_id: str, change: Change) -> Row[Any]:
        """Change the status. A change that was already made is not repeated."""
        order = self.get(order_id)
        if order.status == change.status:
            return order
        at_ms = self._clock_ms()
        half = self._message(change, order, at_ms)
        try:
            with self._barrier.transaction(self._producer, half) as session:
                self._update(session, order_id, change, at_ms)
        except Overtaken as overtaken:
            # A timeout or a concurrent call has changed the order. The half message is rolled back.
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
    """Change an order with an expected status. Returns False for any other status."""
    unchanged = (orders.c.order_id == order_id, orders.c.status.in_(expected), *conditions)
    changed: Any = database.execute(update(orders).where(*unchanged).values(change))
    return bool(changed.rowcount == 1)


def refuse_other(known: Row[Any], order: NewOrder) -> Row[Any]:
    """Return the existing order. Raises `RefusedByState` if its customer or total differs."""
    if (known.customer_id, known.total_pence) != (order.customer_id, order.total_pence):
        raise RefusedByState(f"Order id {order.order_id} belongs to another order. Choose a new id.")
    return known
