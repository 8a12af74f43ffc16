"""Pushes: one text to one customer at a time, or again and again by cron and time zone.

The idea of a push: the row first, then the message. A row without a message id has not been sent; whatever
dies in between, `send_unsent` sends it. A recurring push is a row too, and a schedule in the broker, which
sends a message for each occurrence; the push of an occurrence is inserted when it is delivered. Whatever dies
between row and schedule, `set_schedules` makes the broker's schedules what the rows say.

Rules:
- The push id is the caller's, or `<schedule_id>@<time>`: doing it again changes nothing.
- A delivery that comes twice, or after a cancel, finds the status changed and has no effect.
- Occurrences that the broker or the shop slept through are delivered late, once: the last of them.

Cost: one call to the broker and two small transactions per push; one small transaction per occurrence.

Weak spot: a process that dies after the send and before the row has its message id sends a second message at
its next start. The second delivery finds the push DELIVERED and does nothing, but the first message can no
longer be recalled by its handle. `send_unsent` runs at a start and with each new push, not by itself.
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
from services.shop.new_order import is_message_key
from services.shop.push_schedules import PushSchedules, name_of
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
    """A text on its way to a customer at `due_ms`."""

    push_id: str
    customer_id: str
    text: str
    due_ms: int


@dataclass(slots=True, frozen=True)
class NewSchedule:
    """A text for a customer at every time that fits `cron` in `time_zone`."""

    schedule_id: str
    customer_id: str
    text: str
    cron: str
    time_zone: str


@dataclass(slots=True, frozen=True)
class Occurrence:
    """A push of a schedule that is still to come: the answer to whoever has set the schedule."""

    push_id: str
    schedule_id: str
    customer_id: str
    text: str
    due_ms: int
    status: str = PushStatus.SCHEDULED
    delivered_ms: None = None


class Pushes:
    """The verbs of the push service over one database and one broker."""

    def __init__(self, engine: Engine, producer: Producer, schedules: PushSchedules, clock_ms: Clock) -> None:
        self._engine = engine
        self._producer = producer
        self._schedules = schedules
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

    def schedule(self, schedule: NewSchedule) -> Occurrence:
        """Start a recurring push and return its first occurrence.

        Raises:
            ClientMistake: when its cron expression or time zone cannot be read, or it never occurs.
            RefusedByState: when the id belongs to another schedule, or to one that has ended.
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
        """Insert a schedule's row, or find it as it is to be."""
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
        """Make the broker's schedules what the rows say, wherever something died in between."""
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
        """Deliver a push that is still scheduled; False for a repeat."""
        with self._engine.begin() as connection:
            delivered = change_status(
                connection, push_id, PushStatus.DELIVERED, delivered_ms=self._clock_ms()
            )
        log.info("push", push_id=push_id, delivered=delivered)
        return delivered

    def occur(self, schedule_id: str, occurrence_ms: int, message_id: str) -> bool:
        """Deliver an occurrence; False for a repeat, after the schedule's end, or if a later one is due."""
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
        # An update that changes nothing takes the row's lock: `cancel_schedule` waits, or has already won.
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
        """End a schedule, here and in the broker; return its row and the count of delivered pushes.

        Raises:
            NotFound: when there is no such schedule.
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
        """Return one push's row.

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


def wanted_of(schedule: NewSchedule | Row[Any]) -> dict[str, Any]:
    """Return a schedule as the broker keeps it. Its messages are known by the schedule's id and their
    time.
    """
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
    """Return the id of an occurrence's push."""
    return f"{schedule_id}@{occurrence_ms}"


def is_overtaken(schedule: Row[Any], occurrence_ms: int, now_ms: int) -> bool:
    """Return whether the next occurrence is due as well, and not just now: the shop has slept through this
    one.
    """
    following_ms = Recurrence(schedule.cron, schedule.time_zone).next_after(occurrence_ms)
    return following_ms is not None and following_ms <= now_ms - LATE_MS_MAX


def insert_push(connection: Connection, push: NewPush) -> None:
    """Insert a push that is to be sent at the next full second of its time."""
    row = {
        "push_id": push.push_id,
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
    """Return how many pushes of a schedule were delivered."""
    mine = (pushes.c.schedule_id == schedule_id, pushes.c.status == PushStatus.DELIVERED)
    return select(func.count()).select_from(pushes).where(*mine)
