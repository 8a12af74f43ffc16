"""Orders: a row, a message and a deadline that agree, whatever dies in between.

Placing an order:
1. send the deadline, a message on `order-timeouts` delivered at `due_ms`; its recall handle comes back,
2. in one barrier transaction: the half of `order-created`, the order's rows (with the handle), the commit.
A death between 1 and 2 leaves a deadline without an order, which finds nothing to do; a death inside 2 is
settled by the check-back.

Rules:
- The order id is the caller's: placing it again answers with the order that is there.
- Every change is one conditional update on the status; of payment and timeout the first wins.
- A deadline may be called off only after the change is committed; one that still fires finds the order
  changed and does nothing. A deadline that is earlier than the row's own (it belongs to a placing that died)
  does nothing either.

Cost of placing: three calls to the broker and one database transaction with one fsync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from commitlog.errors import NotFound, RefusedByState
from services.shop.clock import Clock, next_full_second_ms
from services.shop.messaging import json_message
from services.shop.tables import OrderStatus, order_lines, orders
from services.shop.topics import ORDER_CREATED, ORDER_TIMEOUTS

if TYPE_CHECKING:
    from rocketmq import Producer
    from sqlalchemy import ColumnElement, Engine, Row
    from sqlalchemy.orm import Session

    from services.shop.new_order import NewOrder
    from txn.barrier import Barrier

log = structlog.get_logger()


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
        """
        order.refuse_unsellable()
        known = self._find(order.order_id)
        if known is not None:
            return refuse_other(known, order)
        placed_ms = self._clock_ms()
        due_ms = next_full_second_ms(placed_ms + order.timeout_ms)
        handle = self._set_deadline(order.order_id, due_ms)
        try:
            self._commit(order, placed_ms, due_ms, handle)
        except IntegrityError:  # a rival call with the same id was faster
            self._call_off(order.order_id, handle)
            return refuse_other(self.get(order.order_id), order)
        return self.get(order.order_id)

    def _set_deadline(self, order_id: str, due_ms: int) -> str:
        content = {"order_id": order_id, "due_ms": due_ms}
        receipt = self._producer.send(json_message(ORDER_TIMEOUTS, order_id, content, due_ms))
        handle: str = receipt.recall_handle
        return handle

    def _commit(self, order: NewOrder, placed_ms: int, due_ms: int, handle: str) -> None:
        message = json_message(ORDER_CREATED, order.order_id, order.content(placed_ms))
        with self._barrier.transaction(self._producer, message) as session:
            self._write(session, order, placed_ms, due_ms, handle)

    def _write(self, session: Session, order: NewOrder, placed_ms: int, due_ms: int, handle: str) -> None:
        head = {
            "order_id": order.order_id,
            "customer_id": order.customer_id,
            "status": OrderStatus.PLACED,
            "total_pence": order.total_pence,
            "placed_ms": placed_ms,
            "due_ms": due_ms,
            "timeout_handle": handle,
        }
        session.execute(insert(orders).values(head))
        lines = order.content(placed_ms)["lines"]
        session.execute(insert(order_lines), [{"order_id": order.order_id, **line} for line in lines])

    def pay(self, order_id: str) -> Row[Any]:
        """Mark a placed order as paid, and call its deadline off.

        Raises:
            NotFound: when there is no such order.
            RefusedByState: when it has timed out or was cancelled.
        """
        change = {"status": OrderStatus.PAID, "paid_ms": self._clock_ms()}
        return self._change(order_id, (OrderStatus.PLACED,), change)

    def cancel(self, order_id: str) -> Row[Any]:
        """Cancel an order that is placed or paid, and call its deadline off.

        Raises:
            NotFound: when there is no such order.
            RefusedByState: when it has timed out.
        """
        change = {"status": OrderStatus.CANCELLED, "cancelled_ms": self._clock_ms()}
        return self._change(order_id, (OrderStatus.PLACED, OrderStatus.PAID), change)

    def time_out(self, order_id: str, due_ms: int) -> bool:
        """Time an order out if it is still unpaid and this deadline is its own; else do nothing (False)."""
        change = {"status": OrderStatus.TIMED_OUT, "timed_out_ms": self._clock_ms()}
        changed = self._update(order_id, (OrderStatus.PLACED,), change, orders.c.due_ms <= due_ms)
        log.info("deadline", order_id=order_id, timed_out=changed)
        return changed

    def get(self, order_id: str) -> Row[Any]:
        """One order's row.

        Raises:
            NotFound: when there is no such order.
        """
        found = self._find(order_id)
        if found is None:
            raise NotFound(f"There is no order {order_id}.")
        return found

    def _change(self, order_id: str, expected: tuple[OrderStatus, ...], change: dict[str, Any]) -> Row[Any]:
        """Change the status; a change that has already happened is answered like a new one."""
        changed = self._update(order_id, expected, change)
        order = self.get(order_id)
        if changed:
            self._call_off(order_id, order.timeout_handle)
        elif order.status != change["status"]:
            raise RefusedByState(f"Order {order_id} is {order.status} and cannot become {change['status']}.")
        return order

    def _update(
        self,
        order_id: str,
        expected: tuple[OrderStatus, ...],
        change: dict[str, Any],
        *conditions: ColumnElement[bool],
    ) -> bool:
        unchanged = (orders.c.order_id == order_id, orders.c.status.in_(expected), *conditions)
        with self._engine.begin() as connection:
            return connection.execute(update(orders).where(*unchanged).values(change)).rowcount == 1

    def _call_off(self, order_id: str, handle: str) -> None:
        """Recall the deadline; one that cannot be recalled will find the order changed."""
        try:
            self._producer.recall_message(ORDER_TIMEOUTS, handle)
        except Exception as error:  # the client raises bare Exceptions, gRPC errors and its own
            log.info("deadline not recalled", order_id=order_id, reason=str(error))

    def _find(self, order_id: str) -> Row[Any] | None:
        with self._engine.connect() as connection:
            return connection.execute(select(orders).where(orders.c.order_id == order_id)).one_or_none()


def refuse_other(known: Row[Any], order: NewOrder) -> Row[Any]:
    """The known order, unless its id was used for another customer or sum."""
    if (known.customer_id, known.total_pence) != (order.customer_id, order.total_pence):
        raise RefusedByState(f"Order id {order.order_id} belongs to another order. Choose a new id.")
    return known
