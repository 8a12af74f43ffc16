"""Provide timing wheels for the broker's internal timers.

Delayed messages use a separate wheel in `timers.NearTimers`. An internal timer is encoded as an integer: the
subject shifted left by three bits, plus the purpose.

    purpose   subject                            action
    CHECK     the log offset of a half message   check back with the producer
    LEASE     the generation of a lease          end the lease
    HOUSE     0                                  check the free disk space
    SCHEDULE  the number of a schedule           send the message, or compute the next occurrence

Times are in milliseconds since the Unix epoch. Lease timers use elapsed time (`lease_clock.py`), and all
other timers use broker time. The wheels are not durable. Recovery sets the timers again.
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
    """The purpose of an internal timer."""

    CHECK = 1
    LEASE = 2
    HOUSE = 3
    SCHEDULE = 4


assert max(Purpose) <= _PURPOSE_MASK, "the purposes outgrow their bits"


class Scheduler:
    """The internal timers, with one wheel for leases and another wheel for all other purposes.

    A broker sets and removes thousands of lease timers while hundreds of thousands of check-backs are
    pending. With a single wheel, Python would rebuild the dictionary that contains the check-backs after
    every 150,000 leases, which takes 14 to 30 ms.
    """

    def __init__(self, now_ms: int, lease_clock: LeaseClock) -> None:
        self._leases, self._others = Wheel(lease_clock.to_elapsed_time(now_ms)), Wheel(now_ms)
        self._lease_clock = lease_clock

    def schedule(self, purpose: Purpose, subject: int, due_ms: int) -> None:
        """Set the timer of a subject, or change the due time of an existing timer."""
        self._wheel(purpose).schedule(subject << _PURPOSE_BITS | purpose, due_ms)

    def schedule_many(self, purpose: Purpose, subjects: Iterable[int], due_ms: int) -> None:
        """Set timers with the same due time for several subjects that have no timer."""
        self._wheel(purpose).schedule_many(
            [subject << _PURPOSE_BITS | purpose for subject in subjects], due_ms
        )

    def cancel(self, purpose: Purpose, subject: int) -> bool:
        """Remove the timer of a subject. Return whether the timer existed."""
        return self._wheel(purpose).cancel(subject << _PURPOSE_BITS | purpose)

    def cancel_many(self, purpose: Purpose, subjects: Iterable[int]) -> None:
        """Remove the timers of the given subjects."""
        self._wheel(purpose).cancel_many([subject << _PURPOSE_BITS | purpose for subject in subjects])

    def due_ms(self, purpose: Purpose, subject: int) -> int:
        """Return the due time of a subject's timer. Raise KeyError if no timer is set."""
        return self._wheel(purpose).due_ms(subject << _PURPOSE_BITS | purpose)

    def rewind_wheels(self, now_ms: int) -> None:
        """After the clock has been set back, set each wheel that is ahead of the clock back to `now_ms`.

        A wheel that is ahead of the clock would not fire new timers until the clock caught up. Elapsed time
        never decreases within a core, but may be lower in a new core for the same store.
        """
        self._leases = _rewind_wheel(self._leases, self._lease_clock.to_elapsed_time(now_ms))
        self._others = _rewind_wheel(self._others, now_ms)

    def advance(self, now_ms: int, count_max: int) -> list[tuple[Purpose, int]]:
        """Remove and return up to `count_max` due timers, in order of due time.

        At most half of `count_max` timers are lease timers, but one lease timer is always allowed.
        """
        due = self._leases.advance(self._lease_clock.to_elapsed_time(now_ms), max(count_max // 2, 1))
        # Each wheel may return at least one timer. Neither wheel can therefore starve the other.
        due += self._others.advance(now_ms, max(count_max - len(due), 1))
        due.sort(key=itemgetter(0))
        return [(Purpose(timer & _PURPOSE_MASK), timer >> _PURPOSE_BITS) for _, timer in due]

    def next_due_ms(self) -> int | None:
        """Return the broker time at which to call `advance` next, or None if no timers are set."""
        lease_ms = self._leases.next_due_ms()
        lease_ms = None if lease_ms is None else self._lease_clock.to_broker_time(lease_ms)
        return earlier(lease_ms, self._others.next_due_ms())

    def _wheel(self, purpose: Purpose) -> Wheel:
        return self._leases if purpose is Purpose.LEASE else self._others


def earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the earlier of two times, or None if both are None. A single None is ignored."""
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return one_ms if one_ms <= other_ms else other_ms


def _rewind_wheel(wheel: Wheel, now_ms: int) -> Wheel:
    """Return the wheel or, if its time is after `now_ms`, a copy that is set back to `now_ms`."""
    return wheel.rebased(now_ms) if wheel.now_ms > now_ms else wheel
