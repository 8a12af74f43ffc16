"""The broker's own wheels and the purposes of their timers; delayed messages have another (`timers.Near`).

A timer of a wheel is an integer: the subject shifted left by three bits, plus the purpose.

    purpose  subject
    CHECK    physical offset of a half: ask its producer
    LEASE    generation of a lease: end it
    HOUSE    0: check the free space on disk
    SCHEDULE number of a schedule: run its next occurrence, or compute it

Times are in ms since 1970, by the broker's clock; those of leases are elapsed time (`lease_clock.py`).
The wheels are not durable: a start sets the timers again from its tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from operator import itemgetter
from typing import Final

from services.broker.spine.lease_clock import LeaseClock
from timingwheel.wheel import Wheel

_PURPOSE_BITS: Final = 3
_PURPOSE_MASK: Final = (1 << _PURPOSE_BITS) - 1


class Purpose(IntEnum):
    """The purpose of a timer."""

    CHECK = 1
    LEASE = 2
    HOUSE = 3
    SCHEDULE = 4


assert max(Purpose) <= _PURPOSE_MASK, "the purposes outgrow their bits"


class Scheduler:
    """Timers due after `now_ms`, in one wheel for leases and one for the rest.

    Leases come and go by the thousand, checks of halves wait by the hundred thousand: in one wheel the leases
    made Python rebuild the dictionary of the checks, 14 to 30 ms, every 150,000 leases.
    """

    def __init__(self, now_ms: int, lease_clock: LeaseClock) -> None:
        self._leases, self._others = Wheel(lease_clock.elapsed(now_ms)), Wheel(now_ms)
        self._lease_clock = lease_clock

    def schedule(self, purpose: Purpose, subject: int, due_ms: int) -> None:
        """Set or move the timer of a subject."""
        self._wheel(purpose).schedule(subject << _PURPOSE_BITS | purpose, due_ms)

    def schedule_many(self, purpose: Purpose, subjects: Iterable[int], due_ms: int) -> None:
        """Set timers of subjects that have none, all at one time."""
        self._wheel(purpose).schedule_many(
            [subject << _PURPOSE_BITS | purpose for subject in subjects], due_ms
        )

    def cancel(self, purpose: Purpose, subject: int) -> bool:
        """Remove the timer of a subject; return False if there was none."""
        return self._wheel(purpose).cancel(subject << _PURPOSE_BITS | purpose)

    def cancel_many(self, purpose: Purpose, subjects: Iterable[int]) -> None:
        """Remove the timers of subjects."""
        self._wheel(purpose).cancel_many([subject << _PURPOSE_BITS | purpose for subject in subjects])

    def due_ms(self, purpose: Purpose, subject: int) -> int:
        """Return the due time of the subject's timer; raise KeyError if it has none."""
        return self._wheel(purpose).due_ms(subject << _PURPOSE_BITS | purpose)

    def set_back(self, now_ms: int) -> None:
        """Set the wheels back to `now_ms` if they are ahead of it, after the clock was set back.

        Otherwise new timers would not fire before the old clock time. Elapsed time goes back only between two
        cores over one store.
        """
        self._leases = _no_later(self._leases, self._lease_clock.elapsed(now_ms))
        self._others = _no_later(self._others, now_ms)

    def advance(self, now_ms: int, count_max: int) -> list[tuple[Purpose, int]]:
        """Return and remove up to `count_max` timers due by `now_ms`, in order; at most half are leases."""
        due = self._leases.advance(self._lease_clock.elapsed(now_ms), max(count_max // 2, 1))
        # At least one timer of each kind, whatever `count_max`, so that neither kind can starve the other.
        due += self._others.advance(now_ms, max(count_max - len(due), 1))
        due.sort(key=itemgetter(0))
        return [(Purpose(timer & _PURPOSE_MASK), timer >> _PURPOSE_BITS) for _, timer in due]

    def next_due_ms(self) -> int | None:
        """Return the time of the next call of `advance`; None if no timer is set."""
        lease_ms = self._leases.next_due_ms()
        lease_ms = None if lease_ms is None else self._lease_clock.told(lease_ms)
        return earlier(lease_ms, self._others.next_due_ms())

    def _wheel(self, purpose: Purpose) -> Wheel:
        return self._leases if purpose is Purpose.LEASE else self._others


def earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the earlier of two times; None means never."""
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return one_ms if one_ms <= other_ms else other_ms


def _no_later(wheel: Wheel, now_ms: int) -> Wheel:
    """Return a wheel set back to `now_ms` if it is ahead of it."""
    return wheel.rebased(now_ms) if wheel.now_ms > now_ms else wheel
