"""Check-backs ask a producer for the outcome of a half message, at these times.

After the immunity of a half, check-backs are sent with growing pauses, at most `count_max` times. After the
last check-back without an answer, the half expires. A pause is the interval, doubled each time, and at most
`interval_ms_max`.

Only check-backs that reached a producer count. If the topic of a due half has no producer for check-backs,
the half waits without a timer for a producer (`Unasked`):

    due ----> asked ----> next check after a pause
     ^  |
     |  +---> no producer -----> waits ----+
     +------ a producer connects ----------+

When a producer connects, it wakes `CHECKS_WOKEN_MAX` halves of its topic, and each sent check-back wakes one
more half. A hundred thousand halves without a producer therefore have no cost while they wait, and cause no
burst when a producer connects, because the rest waits again as soon as the producer's queue is full.
(RocketMQ scans its half topic in a loop instead: `TransactionalMessageServiceImpl.check`.)

Memory: some 100 bytes for each waiting half. Weak spot: the list of waiting halves is not durable. After
startup, one check-back is tried for each due half before the half waits again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from commitlog import limits


@dataclass(slots=True, frozen=True)
class CheckBackPolicy:
    """The pauses between check-backs in milliseconds, and the maximum number of check-backs."""

    immunity_ms: int = limits.CHECK_IMMUNITY_MS
    interval_ms: int = limits.CHECK_INTERVAL_MS
    interval_ms_max: int = limits.CHECK_INTERVAL_MS_MAX
    count_max: int = limits.CHECK_COUNT_DEFAULT

    def first_check_ms(self, stored_ms: int, immunity_ms: int | None) -> int:
        """Return the time of the first check-back in ms. The half's immunity overrides the policy's."""
        return stored_ms + (self.immunity_ms if immunity_ms is None else immunity_ms)

    def next_check_ms(self, asked_ms: int, check_count: int) -> int:
        """Return the next check time after check-back `check_count` (from 1) was sent at `asked_ms`."""
        # At most 32 doublings, because 10,000 check-backs would give a number of 10,000 bits.
        pause_ms = self.interval_ms << min(check_count - 1, 32)
        return asked_ms + min(pause_ms, self.interval_ms_max)

    def is_exhausted(self, check_count: int) -> bool:
        """Return whether a half with `check_count` check-backs expires without another check-back."""
        return check_count >= self.count_max


class Unasked:
    """Due halves that wait for a producer for check-backs, by topic, first in, first out."""

    def __init__(self) -> None:
        self._halves: dict[str, dict[int, None]] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._halves

    def __len__(self) -> int:
        return sum(map(len, self._halves.values()))

    def topics(self) -> list[str]:
        """Return the topics with waiting halves."""
        return list(self._halves)

    def holds(self, topic: str, half_offset: int) -> bool:
        """Return whether a half waits."""
        return half_offset in self._halves.get(topic, ())

    def oldest(self) -> list[int]:
        """Return the half of each topic that has waited for the longest time."""
        return [next(iter(halves)) for halves in self._halves.values()]

    def of(self, topic: str) -> Iterator[int]:
        """Return the waiting halves of a topic at this moment."""
        return iter(tuple(self._halves.get(topic, ())))

    def add(self, topic: str, half_offset: int) -> None:
        """Add a half at the end of its topic. A waiting half keeps its place."""
        self._halves.setdefault(topic, {})[half_offset] = None

    def discard(self, topic: str, half_offset: int) -> None:
        """Remove a half, if it waits."""
        halves = self._halves.get(topic)
        if halves is not None:
            halves.pop(half_offset, None)
            # Empty topics are removed, because `topics` and `in` are for topics with waiting halves.
            if not halves:
                del self._halves[topic]

    def take(self, topic: str, count_max: int) -> list[int]:
        """Remove and return up to `count_max` halves of a topic, the first ones."""
        taken = list(islice(self._halves.get(topic, ()), count_max))
        for half_offset in taken:
            self.discard(topic, half_offset)
        assert len(taken) == count_max or topic not in self._halves, "a half was left behind"
        return taken
