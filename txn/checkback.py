"""Schedules transaction check-backs, which are requests to a producer for the outcome of a half message.

When the immunity time of a half message has elapsed, up to `count_max` check-backs are sent at increasing
intervals. If the last check-back remains unanswered, the half message expires. The delay doubles after each
check-back, up to `interval_ms_max`.

Only check-backs that reach a producer are counted. If a check-back is due but the topic has no available
producer, the half message waits for a producer without using a timer (`WaitingCheckBacks`):

    due ----> asked ----> next check after a pause
     ^  |
     |  +---> no producer -----> waits ----+
     +------ a producer connects ----------+

When a producer connects, up to `CHECKS_WOKEN_MAX` half messages of its topic are scheduled for check-backs.
Each time a check-back is sent, another waiting half message is scheduled. Therefore, even 100,000 half
messages use no CPU time while they are waiting for a producer. A newly connected producer does not receive a
burst of check-backs, because half messages return to the waiting list if the producer's queue is full. (In
contrast, RocketMQ scans its half topic in a loop: `TransactionalMessageServiceImpl.check`.)

Cost: Each waiting half message uses about 100 bytes of memory. Weak spot: The list of waiting half messages
is not durable. After a restart, one check-back is attempted for each due half message, and the list is
rebuilt from the half messages that have no available producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from commitlog import limits


@dataclass(slots=True, frozen=True)
class CheckBackPolicy:
    """The delays between transaction check-backs, in milliseconds, and the maximum number of check-backs."""

    immunity_ms: int = limits.CHECK_IMMUNITY_MS
    interval_ms: int = limits.CHECK_INTERVAL_MS
    interval_ms_max: int = limits.CHECK_INTERVAL_MS_MAX
    count_max: int = limits.CHECK_COUNT_DEFAULT

    def first_check_ms(self, stored_ms: int, immunity_ms: int | None) -> int:
        """Return the time of the first check-back, in milliseconds since 1970.

        If `immunity_ms` is given, it overrides the immunity time of the policy.
        """
        return stored_ms + (self.immunity_ms if immunity_ms is None else immunity_ms)

    def next_check_ms(self, asked_ms: int, check_count: int) -> int:
        """Return the time of the check-back after check-back number `check_count`, sent at `asked_ms`."""
        # The interval is doubled at most 32 times, because 10,000 doublings would result in a 10,000-bit
        # number.
        pause_ms = self.interval_ms << min(check_count - 1, 32)
        return asked_ms + min(pause_ms, self.interval_ms_max)

    def is_exhausted(self, check_count: int) -> bool:
        """Return whether a half message expires after `check_count` unanswered check-backs."""
        return check_count >= self.count_max


class WaitingCheckBacks:
    """The half messages that are due for a check-back but have no available producer.

    The half messages of each topic are in FIFO order.
    """

    def __init__(self) -> None:
        self._halves: dict[str, dict[int, None]] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._halves

    def __len__(self) -> int:
        return sum(map(len, self._halves.values()))

    def topics(self) -> list[str]:
        """Return the topics that have waiting half messages."""
        return list(self._halves)

    def holds(self, topic: str, half_offset: int) -> bool:
        """Return whether a half message is in the waiting list of its topic."""
        return half_offset in self._halves.get(topic, ())

    def oldest(self) -> list[int]:
        """Return, for each topic, the half message that has been waiting longest."""
        return [next(iter(halves)) for halves in self._halves.values()]

    def of(self, topic: str) -> Iterator[int]:
        """Return an iterator over the waiting half messages of a topic."""
        return iter(tuple(self._halves.get(topic, ())))

    def add(self, topic: str, half_offset: int) -> None:
        """Append a half message to the waiting list of its topic, unless the list already contains it."""
        self._halves.setdefault(topic, {})[half_offset] = None

    def discard(self, topic: str, half_offset: int) -> None:
        """Remove a half message from the waiting list, if present."""
        halves = self._halves.get(topic)
        if halves is not None:
            halves.pop(half_offset, None)
            # Topics without waiting half messages are removed, because `topics` and `in` must not include
            # them.
            if not halves:
                del self._halves[topic]

    def take(self, topic: str, count_max: int) -> list[int]:
        """Remove and return up to `count_max` half messages from the start of a topic's waiting list."""
        taken = list(islice(self._halves.get(topic, ()), count_max))
        for half_offset in taken:
            self.discard(topic, half_offset)
        assert len(taken) == count_max or topic not in self._halves, "a half was left behind"
        return taken
