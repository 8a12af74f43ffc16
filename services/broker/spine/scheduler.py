"""The broker's own wheels and what their timers are for; delayed messages have another (`timers.Near`).

A timer of a wheel is an integer: the subject shifted left by three bits, plus the purpose.

    purpose  subject
    CHECK    physical offset of a half: ask its producer
    LEASE    generation of a lease: it ends
    HOUSE    0: look at the room on disk
    SCHEDULE number of a schedule: its next occurrence is due, or is to be computed

Times are in ms since 1970, by the broker's clock; those of leases are elapsed time (`lease_clock.py`).
Nothing here is durable: a start sets again what its tables say.
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
    """What a timer is for."""

    CHECK = 1
    LEASE = 2
    HOUSE = 3
    SCHEDULE = 4


assert max(Purpose) <= _PURPOSE_MASK, "the purposes outgrow their bits"


class Scheduler:
    """What will happen later, from `now_ms` on.

    Leases come and go by the thousand, checks of halves lie there by the hundred thousand: in one wheel the
    former made Python build the dictionary of the latter anew, 14 to 30 ms, every 150,000 leases.
    """

    def __init__(self, now_ms: int, lease_clock: LeaseClock) -> None:
        self._leases, self._others = Wheel(lease_clock.elapsed(now_ms)), Wheel(now_ms)
        self._lease_clock = lease_clock

    def schedule(self, purpose: Purpose, subject: int, due_ms: int) -> None:
        """Set or move the timer of a subject."""
        self._wheel(purpose).schedule(subject << _PURPOSE_BITS | purpose, due_ms)

    def schedule_many(self, purpose: Purpose, subjects: Iterable[int], due_ms: int) -> None:
        """Set the timers of subjects that have none, all at one time."""
        self._wheel(purpose).schedule_many(
            [subject << _PURPOSE_BITS | purpose for subject in subjects], due_ms
        )

    def cancel(self, purpose: Purpose, subject: int) -> bool:
        """Forget the timer of a subject; return False if there was none."""
        return self._wheel(purpose).cancel(subject << _PURPOSE_BITS | purpose)

    def cancel_many(self, purpose: Purpose, subjects: Iterable[int]) -> None:
        """Forget the timers of subjects."""
        self._wheel(purpose).cancel_many([subject << _PURPOSE_BITS | purpose for subject in subjects])

    def due_ms(self, purpose: Purpose, subject: int) -> int:
        """Return when the subject's timer is due; raise KeyError if it has none."""
        return self._wheel(purpose).due_ms(subject << _PURPOSE_BITS | purpose)

    def set_back(self, now_ms: int) -> None:
        """Let the wheels' present be `now_ms` where that lies before it, since the clock was set back.

        Else what is set from now on would come no earlier than the clock had been. Elapsed time goes back
        only between two cores over one store.
        """
        self._leases = _no_later(self._leases, self._lease_clock.elapsed(now_ms))
        self._others = _no_later(self._others, now_ms)

    def advance(self, now_ms: int, count_max: int) -> list[tuple[Purpose, int]]:
        """Take out what is due by `now_ms`, in due order: `count_max` at most, up to half of them leases."""
        due = self._leases.advance(self._lease_clock.elapsed(now_ms), max(count_max // 2, 1))
        # One of each kind at least, whatever `count_max`: no crowd of leases keeps the rest waiting, nor the
        # other way round.
        due += self._others.advance(now_ms, max(count_max - len(due), 1))
        due.sort(key=itemgetter(0))
        return [(Purpose(timer & _PURPOSE_MASK), timer >> _PURPOSE_BITS) for _, timer in due]

    def next_due_ms(self) -> int | None:
        """Return when to call `advance` next; None if nothing pends."""
        lease_ms = self._leases.next_due_ms()
        lease_ms = None if lease_ms is None else self._lease_clock.told(lease_ms)
        return earlier(lease_ms, self._others.next_due_ms())

    def _wheel(self, purpose: Purpose) -> Wheel:
        return self._leases if purpose is Purpose.LEASE else self._others


def earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    """Return the earlier of two moments, None standing for never."""
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return one_ms if one_ms <= other_ms else other_ms


def _no_later(wheel: Wheel, now_ms: int) -> Wheel:
    """Return a wheel whose present is `now_ms` at most."""
    return wheel.rebased(now_ms) if wheel.now_ms > now_ms else wheel
