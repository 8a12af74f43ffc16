"""The broker's time: real time, or on a virtual clock real time plus an offset that only grows.

The core lives in the broker's time. Whoever calls lives in real time, and says when something is due in real
time. So a virtual clock has a border: absolute times that come in (a message's own, and the one to which it
moves another) are moved by the offset, those that go out are moved back. A message sent "in 60 seconds" is
due in 60 seconds however far the clock was advanced. Spans of time (leases, long polls) have nothing to do
with it.

The offset is a file of the store (`commitlog.layout`). `move` changes it in memory; `keep` makes it durable,
before anything that rests on it may be: a restart never finds records from the future.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeVar

from commitlog import layout, store_format
from commitlog.disk import Disk
from commitlog.errors import WrongClock
from commitlog.message import Message
from services.broker import verb_properties
from services.broker.values import Delivery, PendingTimer, TimerVerdict

ClockKind = Literal["real", "virtual"]
Told = TypeVar("Told", Delivery, PendingTimer, TimerVerdict)


class KeptOffset:
    """How far a store's virtual clock is ahead of real time, on its disk."""

    def __init__(self, disk: Disk, offset_ms: int) -> None:
        self._disk, self.offset_ms = disk, offset_ms
        self._kept_ms, self._turn = offset_ms, 0

    def keep(self) -> None:
        """Make the offset durable, if it has moved since; raises OSError."""
        if self._kept_ms != self.offset_ms:
            layout.keep_clock(self._disk, self.offset_ms, self._turn)
            self._kept_ms, self._turn = self.offset_ms, self._turn + 1


def kept_offset(disk: Disk, kind: ClockKind) -> KeptOffset | None:
    """Return the offset of a store's clock, None for real time; raises `WrongClock` when it had the other."""
    store_format.read(disk)
    offset_ms = layout.read_clock(disk)
    if kind == "real":
        if offset_ms is not None:
            raise WrongClock(
                "Its clock is virtual: serve it with --clock virtual, or choose another --store."
            )
        return None
    if offset_ms is None:
        if layout.holds_records(disk):
            raise WrongClock("It holds records of real time: choose an empty folder for --clock virtual.")
        layout.begin_clock(disk)
    return KeptOffset(disk, offset_ms or 0)


class Clock:
    """What time it is for the core and for callers, and the way from one to the other."""

    def __init__(self, real_ms: Callable[[], int], kept: KeptOffset | None = None) -> None:
        self.real_ms, self._kept = real_ms, kept

    @property
    def is_virtual(self) -> bool:
        """Whether it can be advanced."""
        return self._kept is not None

    @property
    def offset_ms(self) -> int:
        """How far the broker's time is ahead of real time."""
        return 0 if self._kept is None else self._kept.offset_ms

    def now_ms(self) -> int:
        """Return the broker's time."""
        return self.real_ms() + self.offset_ms

    def move(self, offset_ms: int) -> None:
        """Move a virtual clock, never back."""
        assert self._kept is not None, "nobody moves real time"
        assert offset_ms >= self._kept.offset_ms, "time does not go back"
        self._kept.offset_ms = offset_ms

    def keep(self) -> None:
        """Make a moved clock durable; raises OSError."""
        if self._kept is not None:
            self._kept.keep()

    def inward(self, message: Message) -> Message:
        """Return a caller's message in the broker's time."""
        return self._shifted(message, self.offset_ms) if self.offset_ms else message

    def outward(self, told: Told) -> Told:
        """Return what the core says in the time of callers."""
        offset_ms = self.offset_ms
        if not offset_ms:
            return told
        if isinstance(told, PendingTimer):
            return replace(
                told,
                due_ms=told.due_ms - offset_ms,
                stored_ms=told.stored_ms - offset_ms,
                message=told.message and self._shifted(told.message, -offset_ms),
            )
        if isinstance(told, TimerVerdict):
            return replace(
                told,
                ended_ms=told.ended_ms and told.ended_ms - offset_ms,
                due_ms=told.due_ms and told.due_ms - offset_ms,
            )
        return told._replace(
            message=self._shifted(told.message, -offset_ms),
            store_ms=told.store_ms - offset_ms,
            visible_ms=told.visible_ms - offset_ms,
        )

    def outward_message(self, message: Message) -> Message:
        """Return a message of the core in the time of callers."""
        return self._shifted(message, -self.offset_ms) if self.offset_ms else message

    def _shifted(self, message: Message, by_ms: int) -> Message:
        due_ms = message.delivery_ms
        return replace(
            message,
            born_ms=max(0, message.born_ms + by_ms),
            delivery_ms=due_ms if due_ms is None or due_ms < 0 else due_ms + by_ms,
            properties=verb_properties.with_shifted_time(message.properties, by_ms),
        )
