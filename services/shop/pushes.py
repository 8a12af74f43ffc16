"""Pushes: one text to one customer at a time, or again and again by cron and time zone.

The idea: the row first, then the message. A row without a message id has not been sent; whatever dies in
between, `send_unsent` sends it. A recurring schedule has exactly one pending occurrence, whose id is made of
the schedule's id and its time; when it is delivered, one transaction marks it and inserts the next.

Rules:
- The push id is the caller's, or `<schedule_id>@<due_ms>`: doing it again changes nothing.
- A delivery that comes twice, or after a cancel, finds the status changed and has no effect.
- An occurrence that the shop slept through is delivered late, once; the next one is computed from now.

Cost: one call to the broker and two small transactions per push; one more of each when it is delivered by a
schedule.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from commitlog.errors import ClientMistake, NotFound, RefusedByState
from services.broker.recurrence import Recurrence
from services.shop.clock import Clock, next_full_second_ms
from services.shop.messaging import json_message
from services.shop.new_order import is_message_key
from services.shop.tables import PushStatus, push_schedules, pushes
from services.shop.topics import PUSHES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketmq import Producer
    from sqlalchemy import Engine, Row

log = structlog.get_logger()


@dataclass(slots=True, frozen=True)
class NewPush:
    """A text on its way to a customer at `due_ms`."""

    push_id: str
    customer_id: str
    text: str
    due_ms: int
    schedule_id: str | None = None


@dataclass(slots=True, frozen=True)
class NewSchedule:
    """A text for a customer at every time that fits `cron` in `time_zone`."""

    schedule_id: str
    customer_id: str
    text: str
    cron: str
    time_zone: str


class Pushes:
    """The verbs of the push service over one database and one broker."""

    def __init__(self, engine: Engine, producer: Producer, clock_ms: Clock) -> None:
        self._engine = engine
        self._producer = producer
        self._clock_ms = clock_ms
        self._sending = threading.Lock()

    def send(self, push: NewPush) -> Row[Any]:
        """Schedule one push.

        Raises:
            ClientMistake: when it lacks an id, a customer or a text.
        """
        if not (is_message_key(push.push_id) and push.customer_id and push.text):
            raise ClientMistake(f"Push {push.push_id!r} needs an id without blanks, a customer and a text.")
        try:
            with self._engine.begin() as connection:
                insert_push(connection, push)
        except IntegrityError:
            log.info("push known", push_id=push.push_id)
        self.send_unsent()
        return self.get(push.push_id)

    def schedule(self, schedule: NewSchedule) -> Row[Any]:
        """Start a recurring push and return its first occurrence.

        Raises:
            ClientMistake: when its cron expression or time zone cannot be read, or it never occurs.
            RefusedByState: when the id belongs to another schedule.
        """
        first = occurrence_after(schedule, self._clock_ms())
        named = is_message_key(schedule.schedule_id) and schedule.customer_id and schedule.text
        if first is None or not named:
            raise ClientMistake(
                f"Schedule {schedule.schedule_id!r} needs an id without blanks, a customer, a text "
                "and a time to come."
            )
        row = {name: getattr(schedule, name) for name in NewSchedule.__slots__}
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(push_schedules).values(row | {"active": True}))
                insert_push(connection, first)
        except IntegrityError as error:
            raise RefusedByState(f"Schedule id {schedule.schedule_id} is taken. Choose a new id.") from error
        self.send_unsent()
        return self.get(first.push_id)

    def deliver(self, push_id: str) -> bool:
        """Deliver a push that is still scheduled, and set its schedule's next one; False for a repeat."""
        with self._engine.begin() as connection:
            delivered = change_status(
                connection, push_id, PushStatus.DELIVERED, delivered_ms=self._clock_ms()
            )
            if delivered:
                self._insert_next(connection, push_id)
        self.send_unsent()
        log.info("push", push_id=push_id, delivered=delivered)
        return delivered

    def _insert_next(self, connection: Connection, push_id: str) -> None:
        joined = push_schedules.join(pushes, pushes.c.schedule_id == push_schedules.c.schedule_id)
        of_push = select(push_schedules).select_from(joined).where(pushes.c.push_id == push_id)
        locked = of_push.where(push_schedules.c.active).with_for_update(of=push_schedules)
        row = connection.execute(locked).one_or_none()
        if row is None:
            return
        schedule = NewSchedule(row.schedule_id, row.customer_id, row.text, row.cron, row.time_zone)
        following = occurrence_after(schedule, self._clock_ms())
        if following is not None:
            insert_push(connection, following)

    def send_unsent(self) -> None:
        """Send every scheduled push that has no message yet; one thread at a time sends each once."""
        with self._sending:
            for row in self._unsent():
                self._send_message(row)

    def _unsent(self) -> Sequence[Row[Any]]:
        unsent = select(pushes).where(pushes.c.message_id.is_(None), pushes.c.status == PushStatus.SCHEDULED)
        with self._engine.connect() as connection:
            return connection.execute(unsent).all()

    def _send_message(self, row: Row[Any]) -> None:
        content = {name: getattr(row, name) for name in ("push_id", "customer_id", "text", "due_ms")}
        receipt = self._producer.send(json_message(PUSHES, row.push_id, content, row.due_ms))
        sent = {"message_id": receipt.message_id, "recall_handle": receipt.recall_handle}
        with self._engine.begin() as connection:
            connection.execute(update(pushes).where(pushes.c.push_id == row.push_id).values(sent))

    def cancel(self, push_id: str) -> Row[Any]:
        """Cancel a scheduled push and call its message off.

        Raises:
            NotFound: when there is no such push.
            RefusedByState: when it was delivered.
        """
        with self._engine.begin() as connection:
            cancelled = change_status(connection, push_id, PushStatus.CANCELLED)
        push = self.get(push_id)
        if cancelled:
            self._call_off(push)
        elif push.status != PushStatus.CANCELLED:
            raise RefusedByState(f"Push {push_id} is {push.status} and cannot be cancelled.")
        return push

    def cancel_schedule(self, schedule_id: str) -> tuple[Row[Any], int]:
        """End a schedule and cancel its pending occurrence; returns it and how many were delivered.

        Raises:
            NotFound: when there is no such schedule.
        """
        mine = push_schedules.c.schedule_id == schedule_id
        with self._engine.begin() as connection:
            connection.execute(update(push_schedules).where(mine).values(active=False))
            row = connection.execute(select(push_schedules).where(mine)).one_or_none()
            delivered_count = connection.execute(count_delivered(schedule_id)).scalar_one()
            pending = connection.execute(pending_of(schedule_id)).scalars().all()
        if row is None:
            raise NotFound(f"There is no schedule {schedule_id}.")
        for push_id in pending:
            self.cancel(push_id)
        return row, delivered_count

    def get(self, push_id: str) -> Row[Any]:
        """One push's row.

        Raises:
            NotFound: when there is no such push.
        """
        with self._engine.connect() as connection:
            found = connection.execute(select(pushes).where(pushes.c.push_id == push_id)).one_or_none()
        if found is None:
            raise NotFound(f"There is no push {push_id}.")
        return found

    def _call_off(self, push: Row[Any]) -> None:
        """Recall the message; one that cannot be recalled will find the push cancelled."""
        if push.recall_handle is None:
            return
        try:
            self._producer.recall_message(PUSHES, push.recall_handle)
        except Exception as error:  # the client raises bare Exceptions, gRPC errors and its own
            log.info("push not recalled", push_id=push.push_id, reason=str(error))


def occurrence_after(schedule: NewSchedule, now_ms: int) -> NewPush | None:
    """A schedule's next push, named after its time."""
    due_ms = Recurrence(schedule.cron, schedule.time_zone).next_after(now_ms)
    if due_ms is None:
        return None
    push_id = f"{schedule.schedule_id}@{due_ms}"
    return NewPush(push_id, schedule.customer_id, schedule.text, due_ms, schedule.schedule_id)


def insert_push(connection: Connection, push: NewPush) -> None:
    """Insert a push that is to be sent at the next full second of its time."""
    row = {
        "push_id": push.push_id,
        "schedule_id": push.schedule_id,
        "customer_id": push.customer_id,
        "text": push.text,
        "status": PushStatus.SCHEDULED,
        "due_ms": next_full_second_ms(push.due_ms),
    }
    connection.execute(insert(pushes).values(row))


def change_status(connection: Connection, push_id: str, status: PushStatus, **change: int) -> bool:
    """Change a push that is still scheduled; False when it is not."""
    scheduled = (pushes.c.push_id == push_id, pushes.c.status == PushStatus.SCHEDULED)
    return connection.execute(update(pushes).where(*scheduled).values(status=status, **change)).rowcount == 1


def count_delivered(schedule_id: str) -> Any:
    """How many pushes of a schedule were delivered."""
    mine = (pushes.c.schedule_id == schedule_id, pushes.c.status == PushStatus.DELIVERED)
    return select(func.count()).select_from(pushes).where(*mine)


def pending_of(schedule_id: str) -> Any:
    """The ids of a schedule's pushes that are still to come."""
    mine = (pushes.c.schedule_id == schedule_id, pushes.c.status == PushStatus.SCHEDULED)
    return select(pushes.c.push_id).where(*mine)
