"""Where the faults of `faults.py` strike the order service; with none armed, these are the plain orders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import event

from services.shop.faults import Fault
from services.shop.messaging import json_message
from services.shop.orders import Orders
from services.shop.topics import ORDER_CREATED

if TYPE_CHECKING:
    from rocketmq import Producer
    from sqlalchemy import Engine, Row
    from sqlalchemy.orm import Session

    from services.shop.clock import Clock
    from services.shop.faults import Faults
    from services.shop.new_order import NewOrder
    from txn.barrier import Barrier


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
            message = json_message(ORDER_CREATED, order.order_id, order.content(placed.placed_ms))
            with self._barrier.transaction(self._producer, message):
                pass
        return placed

    def _write(self, session: Session, order: NewOrder, placed_ms: int, due_ms: int, handle: str) -> None:
        super()._write(session, order, placed_ms, due_ms, handle)
        self._faults.die_if_struck(Fault.DIE_BEFORE_COMMIT, order.order_id)
        event.listen(
            session,
            "after_commit",
            lambda _: self._faults.die_if_struck(Fault.DIE_AFTER_COMMIT, order.order_id),
        )


def repeat_sends(producer: Producer, faults: Faults) -> None:
    """Make the client repeat armed sends as it does when an answer is lost: by the same message id."""
    rpc_client = producer.rpc_client
    send_once = rpc_client.send_message_async

    def send(endpoints: Any, request: Any, *arguments: Any, **settings: Any) -> Any:
        answer = send_once(endpoints, request, *arguments, **settings)
        if not faults.strikes(Fault.REPEAT_SAME_ID, request.messages[0].system_properties.message_id):
            return answer
        answer.result()
        return send_once(endpoints, request, *arguments, **settings)

    rpc_client.send_message_async = send
