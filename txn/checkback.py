"""Transaction check-backs: requests to a producer for the outcome of a half message.

After its immunity time, a half message triggers up to `count_max` check-backs. The interval doubles each
time, up to `interval_ms_max`. If the last check-back is not answered, the half message expires.

Only check-backs that reach a producer are counted. If the topic has no available producer, the half message
waits for one without a timer (`WaitingCheckBacks`):

    due ----> asked ----> next check after a pause
     ^  |
     |  +---> no producer -----> waits ----+
     +------ a producer connects ----------+

When a producer connects, up to `CHECKS_WOKEN_MAX` half messages of its topic are scheduled for check-backs.
Each check-back that is sent schedules another waiting half message. Even 100,000 waiting half messages thus
use no CPU time. A new producer is not flooded with requests either, because half messages return to the
waiting list if the producer's queue is full. (RocketMQ scans its half topic in a loop instead:
`TransactionalMessageServiceImpl.check`.)

Cost: about 100 bytes of memory per waiting half message. Limitation: the waiting list is not durable. After a
restart, each due half message attempts one check-back, and half messages without an available producer are
added to the list again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from commitlog import limits


@dataclass(slots=True, frozen=True)
class CheckBackPolicy:
    """Delays between check-backs in milliseconds, and the maximum number of check-backs."""

    immunity_ms: int = limits.CHECK_IMMUNITY_MS
    interval_ms: int = limits.CHECK_INTERVAL_MS
    interval_ms_max: int = limits.CHECK_INTERVAL_MS_MAX
    count_max: int = limits.CHECK_COUNT_DEFAULT

    def first_check_ms(self, stored_ms: int, immunity_ms: int | None) -> int:
        """Return the time of the first check-back, in milliseconds since the Unix epoch.

        `immunity_ms` overrides the policy's immunity time.
        """
        return stored_ms + (self.immunity_ms if immunity_ms is None else immunity_ms)

    def next_check_ms(self, asked_ms: int, check_count: int) -> int:
        """Return when the check-back that follows number `check_count`, sent at `asked_ms`, is due."""
        # The interval is doubled at most 32 times, because 10,000 doublings would result in a 10,000-bit
        # number.
        pause_ms = self.interval_ms << min(check_count - 1, 32)
        return asked_ms + min(pause_ms, self.interval_ms_max)

    def is_exhausted(self, check_count: int) -> bool:
        """Return whether a half message expires after `check_count` unanswered check-backs."""
        return check_count >= self.count_max


class WaitingCheckBacks:
    """Half messages that are due for a check-back but have no available producer.

    Each topic has a FIFO list.
    """

    def __init__(self) -> None:
        self._halves: dict[str, dict[int, None]] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._halves

    def __len__(self) -> int:
        return sum(map(len, self._halves.values()))

    def topics(self) -> list[str]:
        """Return the topics with waiting half messages."""
        return list(self._halves)

    def holds(self, topic: str, half_offset: int) -> bool:
        """Return whether the topic has a waiting half message."""
        return half_offset in self._halves.get(topic, ())

    def oldest(self) -> list[int]:
        """Return the half message that has been waiting longest for each topic."""
        return [next(iter(halves)) for halves in self._halves.values()]

    def of(self, topic: str) -> Iterator[int]:
        """Iterate over a topic's waiting half messages."""
        return iter(tuple(self._halves.get(topic, ())))

    def add(self, topic: str, half_offset: int) -> None:
        """Append a half message to its topic's list, unless it is already there."""
        self._halves.setdefault(topic, {})[half_offset] = None

    def discard(self, topic: str, half_offset: int) -> None:
        """Remove a half message from its topic's list, if it is there."""
        halves = self._halves.get(topic)
        if halves is not None:
            halves.pop(half_offset, None)
            # Topics without waiting half messages are removed, because `topics` and `in` must not include
            # them.
            if not halves:
                del self._halves[topic]

    def take(self, topic: str, count_max: int) -> list[int]:
        """Remove and return up to `count_max` half messages from the start of a topic's list."""
        taken = list(islice(self._halves.get(topic, ()), count_max))
        for half_offset in taken:
            self.discard(topic, half_offset)
        assert len(taken) == count_max or topic not in self._halves, "a half was left behind"
        return taken
