"""The pushes of a run: several single pushes, a cancelled push, and a recurring schedule."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from services.shop.calls import channel_to, stub_of
from services.shop.clock import wall_clock_ms
from services.shop.generated import shop_pb2
from services.shop.tables import PushStatus, pushes

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from services.shop.demo.replay import Caller

ONE_OFF_COUNT = 5
SPACING_MS = 1_000
SCHEDULE_ID = "every-other-second"
CRON = "*/2 * * * * *"
TIME_ZONE = "Europe/London"
CALLED_OFF_ID = "called-off"
CALLED_OFF_IN_MS = 3_600_000
DELIVERIES_MIN = 3
PATIENCE_S = 30
POLL_S = 0.1


class Reminders:
    """Schedules the pushes of a run and ends the recurring push."""

    def __init__(self, caller: Caller, pushes: str) -> None:
        self._caller = caller
        self._pushes = stub_of("Pushes", channel_to(pushes))

    def set(self) -> None:
        """Schedule the single pushes, a push that is cancelled, and the recurring push."""
        now_ms = wall_clock_ms()
        for number in range(1, ONE_OFF_COUNT + 1):
            request = push_request(f"reminder-{number}", now_ms + number * SPACING_MS)
            self._caller.call(self._pushes.Send, request)
        self._caller.call(self._pushes.Send, push_request(CALLED_OFF_ID, now_ms + CALLED_OFF_IN_MS))
        self._caller.call(self._pushes.Cancel, shop_pb2.PushRequest(push_id=CALLED_OFF_ID))
        schedule = shop_pb2.ScheduleRequest(
            schedule_id=SCHEDULE_ID,
            customer_id="everybody",
            text="The sale goes on.",
            cron=CRON,
            time_zone=TIME_ZONE,
        )
        self._caller.call(self._pushes.Schedule, schedule)

    def end(self, engine: Engine) -> None:
        """End the recurring push after several deliveries."""
        deadline = time.monotonic() + PATIENCE_S
        while delivered_count(engine) < DELIVERIES_MIN and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self._caller.call(self._pushes.CancelSchedule, shop_pb2.ScheduleReference(schedule_id=SCHEDULE_ID))


def push_request(push_id: str, due_ms: int) -> shop_pb2.SendRequest:
    """Return the request for a push to all customers at `due_ms` (ms since 1970)."""
    text = f"This is {push_id}."
    return shop_pb2.SendRequest(push_id=push_id, customer_id="everybody", text=text, due_ms=due_ms)


def delivered_count(engine: Engine) -> int:
    """Return the number of delivered occurrences of the schedule."""
    mine = (pushes.c.schedule_id == SCHEDULE_ID, pushes.c.status == PushStatus.DELIVERED)
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(pushes).where(*mine)).scalar_one()
