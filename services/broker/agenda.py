"""The broker's own wheel and what its timers are for; delayed messages have theirs (`services.broker.near`).

A timer of the wheel is an integer: the subject shifted left by three bits, plus the purpose.

    purpose  subject
    CHECK    physical offset of a half: ask its producer
    LEASE    generation of a lease: it ends
    HOUSE    0: look at the room on disk
    SCHEDULE number of a schedule: its next occurrence is due, or is to be computed
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from timingwheel.wheel import Wheel

_PURPOSE_BITS: Final = 3
_PURPOSE_MASK: Final = (1 << _PURPOSE_BITS) - 1


class Purpose(IntEnum):
    """What a timer is for."""

    CHECK = 1
    LEASE = 2
    HOUSE = 3
    SCHEDULE = 4


class Agenda:
    """Everything that will happen later, from `now_ms` on."""

    def __init__(self, now_ms: int) -> None:
        self._wheel = Wheel(now_ms)
        self.is_changed = True
        """Whether anything was set or forgotten since somebody who plans ahead has said that not."""

    def place(self, purpose: Purpose, subject: int, due_ms: int) -> None:
        """Sets or moves the timer of a subject."""
        self.is_changed = True
        self._wheel.place(subject << _PURPOSE_BITS | purpose, due_ms)

    def place_many(self, purpose: Purpose, subjects: Iterable[int], due_ms: int) -> None:
        """Sets the timers of subjects that have none, all at one time."""
        self.is_changed = True
        self._wheel.place_many([subject << _PURPOSE_BITS | purpose for subject in subjects], due_ms)

    def cancel(self, purpose: Purpose, subject: int) -> bool:
        """Forgets the timer of a subject; False if there was none."""
        self.is_changed = True
        return self._wheel.cancel(subject << _PURPOSE_BITS | purpose)

    def cancel_many(self, purpose: Purpose, subjects: Iterable[int]) -> None:
        """Forgets the timers of subjects."""
        self.is_changed = True
        self._wheel.cancel_many([subject << _PURPOSE_BITS | purpose for subject in subjects])

    def due_ms(self, purpose: Purpose, subject: int) -> int:
        """When the subject's timer is due; KeyError if it has none."""
        return self._wheel.due_ms(subject << _PURPOSE_BITS | purpose)

    def advance(self, now_ms: int, count_max: int) -> list[tuple[Purpose, int]]:
        """What is due by `now_ms`, in due order, at most `count_max`."""
        due = self._wheel.advance(now_ms, count_max)
        return [(Purpose(timer & _PURPOSE_MASK), timer >> _PURPOSE_BITS) for _, timer in due]

    def next_due_ms(self) -> int | None:
        """When to call `advance` next; None if nothing pends."""
        return self._wheel.next_due_ms()
