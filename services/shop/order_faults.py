"""Where the faults of `faults.py` strike the order service; with none armed, these are the plain orders.

Inside a barrier's block the steps are seen from the session, outside of it from the calls that the client
makes: the last half of a verb is sent, the first of two halves is ended.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocketmq.grpc_protocol import TransactionSource
from sqlalchemy import event

from services.shop.faults import Fault
from services.shop.order_messages import PAYMENT, Change, created_message
from services.shop.orders import Orders
from services.shop.topics import ORDER_CREATED, ORDER_PAID, ORDER_TIMEOUTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rocketmq import Producer
    from sqlalchemy import Engine, Row
    from sqlalchemy.orm import Session

    from services.shop.clock import Clock
    from services.shop.faults import Faults
    from services.shop.new_order import NewOrder
    from txn.barrier import Barrier


@dataclass(slots=True, frozen=True)
class Steps:
    """The faults that strike inside the block of one verb."""

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
    """Orders that die or repeat themselves where a fault is armed."""

    def __init__(
        self, engine: Engine, barrier: Barrier, producer: Producer, clock_ms: Clock, faults: Faults
    ) -> None:
        super().__init__(engine, barrier, producer, clock_ms)
        self._faults = faults

    def place(self, order: NewOrder) -> Row[Any]:
        """Place an order; where armed, announce it a second time by a new message."""
        placed = super().place(order)
        if self._faults.strikes(Fault.REPEAT_AS_NEW, order.order_id):
            message = created_message(order, placed.placed_ms)
            with self._barrier.transaction(self._producer, message):
                pass
        return placed

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
    """Let faults strike at the client's own calls to the broker."""
    rpc_client = producer.rpc_client
    rpc_client.send_message_async = sending(rpc_client.send_message_async, faults)
    rpc_client.end_transaction_async = ending(rpc_client.end_transaction_async, faults)


def sending(send_once: Callable[..., Any], faults: Faults) -> Callable[..., Any]:
    """Sends that are repeated as by a client that lost the answer (same message id), or are the last."""

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
    """Ends of halves that are the last; the answers to check-backs are not meant."""

    def end(endpoints: Any, request: Any, *arguments: Any, **settings: Any) -> Any:
        answer = end_once(endpoints, request, *arguments, **settings)
        fault = ON_ENDED.get(request.topic.name)
        if fault in faults.triggers and request.source == TransactionSource.SOURCE_CLIENT:
            answer.result()
            faults.die_if_struck(fault, request.message_id)
        return answer

    return end
