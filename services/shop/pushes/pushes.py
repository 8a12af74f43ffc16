"""Push notifications: a text for a customer at a given time, or at recurring times from a cron expression and
a time zone.

The row of a push is inserted before its message is sent. A row without a message id has not been sent, and
`send_unsent` sends it after a crash. A recurring push is a row and a schedule in the broker, which sends a
message for each occurrence. The row of an occurrence is inserted when it is delivered. After a crash,
`set_schedules` updates the broker's schedules from the rows.

Rules:
- The push id is chosen by the caller, or is `<schedule_id>@<time>` for an occurrence. Repeating a call has no
  effect.
- A repeated delivery, or a delivery after a cancellation, has no effect because the status has changed.
- If occurrences were missed while the broker or the shop was stopped, only the last of them is delivered.

Cost: one call to the broker and two small transactions per push, and one small transaction per occurrence.

Limitation: if the process crashes after the send and before the message id is stored, it sends a second
message after its restart. The second delivery has no effect, but the first message can no longer be recalled.
`send_unsent` runs only at a start and for each new push.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from services.broker.schedules.recurrence import Recurrence
from services.shop.clock import Clock, next_full_second_ms
from services.shop.messaging import json_message
from services.shop.orders.new_order import is_message_key
from services.shop.pushes.schedules import PushSchedules, name_of
from services.shop.tables import PushStatus, push_schedules, pushes
from services.shop.topics import PUSHES
from tidewheel.errors import ClientMistake, NotFound, RefusedByState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocketmq import Producer
    from sqlalchemy import Engine, Row

LATE_MS_MAX = 5_000

log = structlog.get_logger()


@dataclass(slots=True, frozen=True)
class NewPush:
    """A text for a customer, to be delivered at `due_ms`."""

    push_id: str
    customer_id: str
    text: str
    due_ms: int


@dataclass(slots=True, frozen=True)
class NewSchedule:
    """A text for a customer at every occurrence of `cron` in `time_zone`."""

    schedule_id: str
    customer_id: str
    text: str
    cron: str
    time_zone: str


@dataclass(slots=True, frozen=True)
class Occurrence:
    """A future push of a schedule."""

    push_id: str
    schedule_id: str
    customer_id: str
    text: str
    due_ms: int
    status: str = PushStatus.SCHEDULED
    delivered_ms: None = None


class Pushes:
    """The operations of the push service on a database and a broker."""

    def __init__(self, engine: Engine, producer: Producer, schedules: PushSchedules, clock_ms: Clock) -> None:
        self._engine = engine
        self._producer = producer
        self._schedules = schedules
        self._clock_ms = clock_ms
        self._sending = threading.Lock()

    def send(self, push: NewPush) -> Row[Any]:
        """Schedule a push.

        Raises:
            ClientMistake: If the push has no valid id, customer or text.
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

    def schedule(self, schedule: NewSchedule) -> Occurrence:
        """Start a recurring push and return its next occurrence.

        Raises:
            ClientMistake: If the cron expression or the time zone is invalid, or there is no future
                occurrence.
            RefusedByState: If the id belongs to another schedule or to an ended schedule.
        """
        named = is_message_key(schedule.schedule_id) and schedule.customer_id and schedule.text
        if not (named and self._schedules.occurs(schedule.cron, schedule.time_zone)):
            raise ClientMistake(
                f"Schedule {schedule.schedule_id!r} needs an id without blanks, a customer, a text "
                "and a time to come."
            )
        self._keep(schedule)
        first_ms = self._schedules.keep(schedule.schedule_id, wanted_of(schedule))
        push_id = push_id_of(schedule.schedule_id, first_ms)
        return Occurrence(push_id, schedule.schedule_id, schedule.customer_id, schedule.text, first_ms)

    def _keep(self, schedule: NewSchedule) -> None:
        """Insert the row of a schedule. Raises `RefusedByState` if a different row exists."""
        row = {name: getattr(schedule, name) for name in NewSchedule.__slots__} | {"active": True}
        mine = push_schedules.c.schedule_id == schedule.schedule_id
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(push_schedules).values(row))
        except IntegrityError as error:
            with self._engine.connect() as connection:
                known = connection.execute(select(push_schedules).where(mine)).mappings().one()
            if dict(known) != row:
                raise RefusedByState(
                    f"Schedule id {schedule.schedule_id} is taken. Choose a new id."
                ) from error

    def set_schedules(self) -> None:
        """Update the broker's schedules from the rows."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(push_schedules)).all()
        if not rows:
            return
        for row in rows:
            if row.active:
                self._schedules.keep(row.schedule_id, wanted_of(row))
        ended = {name_of(row.schedule_id): row.schedule_id for row in rows if not row.active}
        for name in self._schedules.names() & ended.keys():
            self._schedules.end(ended[name])

    def deliver(self, push_id: str) -> bool:
        """Deliver a scheduled push. Returns False if it was delivered or cancelled before."""
        with self._engine.begin() as connection:
            delivered = change_status(
                connection, push_id, PushStatus.DELIVERED, delivered_ms=self._clock_ms()
            )
        log.info("push", push_id=push_id, delivered=delivered)
        return delivered

    def occur(self, schedule_id: str, occurrence_ms: int, message_id: str) -> bool:
        """Deliver an occurrence.

        Returns False if it was delivered before, the schedule has ended, or a later occurrence is due.
        """
        push_id = push_id_of(schedule_id, occurrence_ms)
        try:
            with self._engine.begin() as connection:
                delivered = self._insert_occurrence(connection, schedule_id, occurrence_ms, message_id)
        except IntegrityError:
            delivered = False
        log.info("push", push_id=push_id, delivered=delivered)
        return delivered

    def _insert_occurrence(
        self, connection: Connection, schedule_id: str, occurrence_ms: int, message_id: str
    ) -> bool:
        mine = push_schedules.c.schedule_id == schedule_id
        # This update locks the row, so that a concurrent `cancel_schedule` waits or has already ended the
        # schedule.
        lock = update(push_schedules).where(mine, push_schedules.c.active).values(active=True)
        if connection.execute(lock).rowcount == 0:
            return False
        schedule, now_ms = connection.execute(select(push_schedules).where(mine)).one(), self._clock_ms()
        if is_overtaken(schedule, occurrence_ms, now_ms):
            return False
        row = {
            "push_id": push_id_of(schedule_id, occurrence_ms),
            "schedule_id": schedule_id,
            "customer_id": schedule.customer_id,
            "text": schedule.text,
            "status": PushStatus.DELIVERED,
            "due_ms": occurrence_ms,
            "delivered_ms": now_ms,
            "message_id": message_id,
        }
        connection.execute(insert(pushes).values(row))
        return True

    def send_unsent(self) -> None:
        """Send every scheduled push without a message. Only one thread sends at a time."""
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
        """Cancel a scheduled push and recall its message.

        Raises:
            NotFound: If the push does not exist.
            RefusedByState: If the push was delivered.
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
        """End a schedule in the database and in the broker.

        Returns its row and the number of delivered pushes.

        Raises:
            NotFound: If the schedule does not exist.
        """
        mine = push_schedules.c.schedule_id == schedule_id
        with self._engine.begin() as connection:
            connection.execute(update(push_schedules).where(mine).values(active=False))
            row = connection.execute(select(push_schedules).where(mine)).one_or_none()
            delivered_count = connection.execute(count_delivered(schedule_id)).scalar_one()
        if row is None:
            raise NotFound(f"There is no schedule {schedule_id}.")
        self._schedules.end(schedule_id)
        return row, delivered_count

    def get(self, push_id: str) -> Row[Any]:
        """Return a push's row.

        Raises:
            NotFound: If the push does not exist.
        """
        with self._engine.connect() as connection:
            found = connection.execute(select(pushes).where(pushes.c.push_id == push_id)).one_or_none()
        if found is None:
            raise NotFound(f"There is no push {push_id}.")
        return found

    def _call_off(self, push: Row[Any]) -> None:
        """Recall the message. If this fails, the delivery has no effect because the push is cancelled."""
        if push.recall_handle is None:
            return
        try:
            self._producer.recall_message(PUSHES, push.recall_handle)
        except Exception as error:  # the client raises bare Exceptions, gRPC errors and its own exceptions
            log.info("push not recalled", push_id=push.push_id, reason=str(error))


def wanted_of(schedule: NewSchedule | Row[Any]) -> dict[str, Any]:
    """Return a schedule for the broker's HTTP interface. Its messages have the schedule id as their key."""
    content = {
        "push_id": schedule.schedule_id,
        "schedule_id": schedule.schedule_id,
        "customer_id": schedule.customer_id,
        "text": schedule.text,
    }
    return {
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "topic": PUSHES,
        "keys": [schedule.schedule_id],
        "body": json.dumps(content, ensure_ascii=False),
        "missed": "once",
    }


def push_id_of(schedule_id: str, occurrence_ms: int) -> str:
    """Return the push id of an occurrence."""
    return f"{schedule_id}@{occurrence_ms}"


def is_overtaken(schedule: Row[Any], occurrence_ms: int, now_ms: int) -> bool:
    """Return whether the next occurrence has been due for at least LATE_MS_MAX."""
    following_ms = Recurrence(schedule.cron, schedule.time_zone).next_after(occurrence_ms)
    return following_ms is not None and following_ms <= now_ms - LATE_MS_MAX


def insert_push(connection: Connection, push: NewPush) -> None:
    """Insert a push that is due at the next full second."""
    row = {
        "push_id": push.push_id,
        "customer_id": push.customer_id,
        "text": push.text,
        "status": PushStatus.SCHEDULED,
        "due_ms": next_full_second_ms(push.due_ms),
    }
    connection.execute(insert(pushes).values(row))


def change_status(connection: Connection, push_id: str, status: PushStatus, **change: int) -> bool:
    """Change the status of a scheduled push. Returns False for any other status."""
    scheduled = (pushes.c.push_id == push_id, pushes.c.status == PushStatus.SCHEDULED)
    return connection.execute(update(pushes).where(*scheduled).values(status=status, **change)).rowcount == 1


def count_delivered(schedule_id: str) -> Any:
    """Return a query for the number of delivered pushes of a schedule."""
    mine = (pushes.c.schedule_id == schedule_id, pushes.c.status == PushStatus.DELIVERED)
    return select(func.count()).select_from(pushes).where(*mine)
