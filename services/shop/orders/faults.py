"""Fault injection for the order service. Without armed faults, the behavior is that of the base class.

Faults inside a barrier transaction are injected by the session methods. Faults outside it are injected by
wrapped client calls, for example after the last half message was sent or after the first of two half messages
was ended.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rocketmq.grpc_protocol import TransactionSource
from sqlalchemy import event, update
from sqlalchemy.orm import Session

from services.shop.faults import Fault
from services.shop.messaging import json_message
from services.shop.orders.messages import PAYMENT, Change, created_message, deadline_message
from services.shop.orders.orders import Orders, changes
from services.shop.tables import OrderStatus, orders
from services.shop.topics import ORDER_CREATED, ORDER_PAID, ORDER_TIMEOUTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocketmq import Message, Producer
    from sqlalchemy import Engine, Row

    from services.shop.clock import Clock
    from services.shop.faults import Faults
    from services.shop.orders.new_order import NewOrder
    from tidewheel.barrier import Barrier


@dataclass(slots=True, frozen=True)
class Steps:
    """The faults inside the transaction of an operation."""

    after_row: Fault
    before_commit: Fault
    after_commit: Fault


PLACING = Steps(Fault.DIE_AFTER_ROW, Fault.DIE_BEFORE_COMMIT, Fault.DIE_AFTER_COMMIT)
PAYING = Steps(Fault.DIE_PAYING_AFTER_ROW, Fault.DIE_PAYING_BEFORE_COMMIT, Fault.DIE_PAYING_AFTER_COMMIT)
ON_SENT = {
    ORDER_CREATED: Fault.DIE_BETWEEN_HALVES,
    ORDER_TIMEOUTS: Fault.DIE_AFTER_HALVES,
    ORDER_PAID: Fault.DIE_PAYING_AFTER_HALF,
}
ON_ENDED = {ORDER_CREATED: Fault.DIE_BETWEEN_ENDS}


class FaultyOrders(Orders):
    """Orders with faults: crashes, repeated messages and incorrect operations."""

    def __init__(
        self, engine: Engine, barrier: Barrier, producer: Producer, clock_ms: Clock, faults: Faults
    ) -> None:
        super().__init__(engine, barrier, producer, clock_ms)
        self._faults = faults

    def place(self, order: NewOrder) -> Any:
        """Place an order.

        Armed faults omit the message or the rows, or send a second `order-created` message.
        """
        if self._faults.strikes(Fault.ROW_WITHOUT_MESSAGE, order.order_id):
            return self._place_silently(order)
        if self._faults.strikes(Fault.MESSAGE_WITHOUT_ROW, order.order_id):
            return self._announce_only(order)
        placed = super().place(order)
        if self._faults.strikes(Fault.REPEAT_AS_NEW, order.order_id):
            message = created_message(order, placed.placed_ms)
            with self._barrier.transaction(self._producer, message):
                pass
        return placed

    def _place_silently(self, order: NewOrder) -> Row[Any]:
        placed_ms = self._clock_ms()
        with Session(self._engine) as session, session.begin():
            super()._insert(session, order, placed_ms, placed_ms + order.timeout_ms)
        return self.get(order.order_id)

    def _announce_only(self, order: NewOrder) -> Any:
        placed_ms = self._clock_ms()
        due_ms = placed_ms + order.timeout_ms
        halves = created_message(order, placed_ms), deadline_message(order.order_id, due_ms)
        with self._barrier.transaction(self._producer, *halves):
            pass
        return SimpleNamespace(
            order_id=order.order_id,
            customer_id=order.customer_id,
            status=OrderStatus.PLACED,
            total_pence=order.total_pence,
            placed_ms=placed_ms,
            due_ms=due_ms,
        )

    def pay(self, order_id: str) -> Row[Any]:
        """Mark an order as paid. An armed fault omits the message."""
        if self._faults.strikes(Fault.PAY_WITHOUT_MESSAGE, order_id):
            with self._engine.begin() as connection:
                changes(connection, order_id, PAYMENT.expected, PAYMENT.values(self._clock_ms()))
            return self.get(order_id)
        return super().pay(order_id)

    def time_out(self, order_id: str, due_ms: int) -> bool:
        """Time an order out. If a fault is armed, the status is ignored."""
        if not self._faults.strikes(Fault.TIME_OUT_PAID, order_id):
            return super().time_out(order_id, due_ms)
        change = {"status": OrderStatus.TIMED_OUT, "timed_out_ms": self._clock_ms()}
        with self._engine.begin() as connection:
            connection.execute(update(orders).where(orders.c.order_id == order_id).values(change))
        return True

    def _message(self, change: Change, order: Row[Any], at_ms: int) -> Message:
        if change is PAYMENT and self._faults.strikes(Fault.KEEP_DEADLINE, order.order_id):
            return json_message(change.topic, order.order_id, change.content(order, at_ms))
        return super()._message(change, order, at_ms)

    def _insert(self, session: Session, order: NewOrder, placed_ms: int, due_ms: int) -> None:
        with self._dying(session, PLACING, order.order_id):
            super()._insert(session, order, placed_ms, due_ms)

    def _update(self, session: Session, order_id: str, change: Change, at_ms: int) -> None:
        if change is not PAYMENT:
            super()._update(session, order_id, change, at_ms)
            return
        with self._dying(session, PAYING, order_id):
            super()._update(session, order_id, change, at_ms)

    @contextmanager
    def _dying(self, session: Session, steps: Steps, order_id: str) -> Iterator[None]:
        die = self._faults.die_if_struck
        die(steps.after_row, order_id)
        yield
        die(steps.before_commit, order_id)
        event.listen(session, "after_commit", lambda _: die(steps.after_commit, order_id))


def watch_calls(producer: Producer, faults: Faults) -> None:
    """Wrap the client's calls to the broker to inject faults."""
    rpc_client = producer.rpc_client
    rpc_client.send_message_async = sending(rpc_client.send_message_async, faults)
    rpc_client.end_transaction_async = ending(rpc_client.end_transaction_async, faults)


def sending(send_once: Callable[..., Any], faults: Faults) -> Callable[..., Any]:
    """Return a send function with faults: a send is repeated with the same message id, or the process exits
    after the send.
    """

    def send(endpoints: Any, request: Any, *arguments: Any, **settings: Any) -> Any:
        message = request.messages[0]
        answer = send_once(endpoints, request, *arguments, **settings)
        if faults.strikes(Fault.REPEAT_SAME_ID, message.system_properties.message_id):
            answer.result()
            answer = send_once(endpoints, request, *arguments, **settings)
        fault = ON_SENT.get(message.topic.name)
        if fault in faults.triggers:
            answer.result()
            faults.die_if_struck(fault, message.system_properties.keys[0])
        return answer

    return send


def ending(end_once: Callable[..., Any], faults: Faults) -> Callable[..., Any]:
    """Return a function that ends half messages, after which an armed fault exits the process.

    Answers to check-backs are not affected.
    """

    def end(endpoints: Any, request: Any, *arguments: Any, **settings: Any) -> Any:
        answer = end_once(endpoints, request, *arguments, **settings)
        fault = ON_ENDED.get(request.topic.name)
        if fault in faults.triggers and request.source == TransactionSource.SOURCE_CLIENT:
            answer.result()
            faults.die_if_struck(fault, request.message_id)
        return answer

    return end
