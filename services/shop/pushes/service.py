"""The push service: the gRPC interface of `pushes.py` and the consumer that delivers pushes.

A delivery changes the row to DELIVERED and writes a log line. A real shop would call its push gateway
instead.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from services.shop.calls import attach
from services.shop.clock import wall_clock_ms
from services.shop.database import open_database
from services.shop.faults import Faults
from services.shop.generated import shop_pb2
from services.shop.messaging import JsonListener, open_consumer, open_producer
from services.shop.pushes.faults import FaultyPushes
from services.shop.pushes.pushes import NewPush, NewSchedule, Occurrence, Pushes
from services.shop.pushes.schedules import PushSchedules
from services.shop.serving import answering, serve
from services.shop.tables import push_metadata
from services.shop.topics import PUSHES, PUSHES_GROUP
from tidewheel import property_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import grpc
    from rocketmq import Message
    from sqlalchemy import Row


class PushService:
    """The gRPC interface of the pushes."""

    def __init__(self, pushes: Pushes) -> None:
        self._pushes = pushes

    @answering
    def Send(self, request: shop_pb2.SendRequest, context: grpc.ServicerContext) -> shop_pb2.Push:  # noqa: N802
        """Schedule a push."""
        push = NewPush(request.push_id, request.customer_id, request.text, request.due_ms)
        return as_answer(self._pushes.send(push))

    @answering
    def Cancel(self, request: shop_pb2.PushRequest, context: grpc.ServicerContext) -> shop_pb2.Push:  # noqa: N802
        """Cancel a push."""
        return as_answer(self._pushes.cancel(request.push_id))

    @answering
    def Get(self, request: shop_pb2.PushRequest, context: grpc.ServicerContext) -> shop_pb2.Push:  # noqa: N802
        """Return a push."""
        return as_answer(self._pushes.get(request.push_id))

    @answering
    def Schedule(  # noqa: N802
        self, request: shop_pb2.ScheduleRequest, context: grpc.ServicerContext
    ) -> shop_pb2.Push:
        """Start a recurring push."""
        schedule = NewSchedule(
            request.schedule_id, request.customer_id, request.text, request.cron, request.time_zone
        )
        return as_answer(self._pushes.schedule(schedule))

    @answering
    def CancelSchedule(  # noqa: N802
        self, request: shop_pb2.ScheduleReference, context: grpc.ServicerContext
    ) -> shop_pb2.PushSchedule:
        """End a recurring push."""
        row, delivered_count = self._pushes.cancel_schedule(request.schedule_id)
        return shop_pb2.PushSchedule(
            schedule_id=row.schedule_id,
            cron=row.cron,
            time_zone=row.time_zone,
            active=row.active,
            delivered_count=delivered_count,
        )


def as_answer(row: Row[Any] | Occurrence) -> shop_pb2.Push:
    """Return a push's row as a protocol message."""
    return shop_pb2.Push(
        push_id=row.push_id,
        schedule_id=row.schedule_id or "",
        customer_id=row.customer_id,
        text=row.text,
        status=row.status,
        due_ms=row.due_ms,
        delivered_ms=row.delivered_ms or 0,
    )


@contextlib.contextmanager
def open_pushes(broker: str, http: str, database: str, faults: Faults) -> Iterator[Pushes]:
    """Yield the pushes of a database and a broker and deliver them until the block ends."""
    engine = open_database(database, push_metadata)
    with open_producer(broker, [PUSHES]) as producer:
        pushes = FaultyPushes(engine, producer, PushSchedules(http), wall_clock_ms, faults)
        pushes.send_unsent()
        pushes.set_schedules()
        with open_consumer(broker, PUSHES_GROUP, PUSHES, PushListener(pushes)):
            yield pushes
    engine.dispose()


class PushListener(JsonListener):
    """Delivers pushes, including the occurrences of schedules."""

    def __init__(self, pushes: Pushes) -> None:
        super().__init__(lambda content: pushes.deliver(content["push_id"]))
        self._pushes = pushes

    def act(self, message: Message) -> None:
        """Deliver a push."""
        occurrence_ms = message.properties.get(property_names.OCCURRENCE_MS)
        if occurrence_ms is None:
            super().act(message)
            return
        content = json.loads(message.body)
        self._pushes.occur(content["schedule_id"], int(occurrence_ms), message.message_id)


def run(broker: str, http: str, database: str, listen: str, ready_file: Path | None) -> None:
    """Run the push service until SIGTERM or SIGINT."""
    with open_pushes(broker, http, database, Faults.from_environment()) as pushes:
        service = PushService(pushes)
        serve(lambda server: attach("Pushes", service, server), listen, ready_file)
