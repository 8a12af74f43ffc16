"""Fault injection for pushes. Without armed faults, the behavior is that of the base class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.shop.faults import Fault
from services.shop.pushes.pushes import NewPush, Pushes, change_status, insert_push
from services.shop.tables import PushStatus

if TYPE_CHECKING:
    from rocketmq import Producer
    from sqlalchemy import Engine, Row

    from services.shop.clock import Clock
    from services.shop.faults import Faults
    from services.shop.pushes.schedules import PushSchedules


class FaultyPushes(Pushes):
    """Pushes with a fault: a push is marked as delivered without a message."""

    def __init__(
        self, engine: Engine, producer: Producer, schedules: PushSchedules, clock_ms: Clock, faults: Faults
    ) -> None:
        super().__init__(engine, producer, schedules, clock_ms)
        self._faults = faults

    def send(self, push: NewPush) -> Row[Any]:
        """Schedule a push. An armed fault marks it as delivered without a message."""
        if not self._faults.strikes(Fault.PUSH_WITHOUT_MESSAGE, push.push_id):
            return super().send(push)
        with self._engine.begin() as connection:
            insert_push(connection, push)
            change_status(connection, push.push_id, PushStatus.DELIVERED, delivered_ms=self._clock_ms())
        return self.get(push.push_id)
