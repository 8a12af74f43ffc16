"""When to ask a producer what became of its half message.

A half is left alone for its immunity, then asked about with growing pauses, at most `count_max` times;
after the last unanswered check it expires. Pauses: interval, doubled each time, at most `interval_ms_max`.

Only checks that reached a producer count. A half that is due, and whose topic has no producer that can be
asked, waits without a timer until one can (`Unasked`):

    due ----> asked ----> next check after a pause
     ^  |
     |  +---> nobody there ----> waits ----+
     +------ a producer can be asked ------+

Who comes wakes `CHECKS_WOKEN_MAX` halves of its topic, and each that is asked wakes one more. So a hundred
thousand halves without a producer cost nothing while nobody is there, and no burst when somebody comes: as
soon as the producer's queue is full, the rest waits again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from commitlog import limits


@dataclass(slots=True, frozen=True)
class CheckBackPolicy:
    """The pauses of check-backs in milliseconds, and how many there are at most."""

    immunity_ms: int = limits.CHECK_IMMUNITY_MS
    interval_ms: int = limits.CHECK_INTERVAL_MS
    interval_ms_max: int = limits.CHECK_INTERVAL_MS_MAX
    count_max: int = limits.CHECK_COUNT_MAX

    def first_check_ms(self, stored_ms: int, immunity_ms: int | None) -> int:
        """When a half stored at `stored_ms` is first asked about; its own immunity goes before ours."""
        return stored_ms + (self.immunity_ms if immunity_ms is None else immunity_ms)

    def next_check_ms(self, asked_ms: int, check_count: int) -> int:
        """When to look again after check number `check_count` was sent at `asked_ms`."""
        pause_ms = self.interval_ms << min(check_count - 1, 32)
        return asked_ms + min(pause_ms, self.interval_ms_max)

    def is_exhausted(self, check_count: int) -> bool:
        """Whether a half with this many checks expires instead of being asked again."""
        return check_count >= self.count_max


class Unasked:
    """Halves that are due, by topic, and wait for a producer that can be asked: first in, first out."""

    def __init__(self) -> None:
        self._halves: dict[str, dict[int, None]] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._halves

    def __len__(self) -> int:
        return sum(map(len, self._halves.values()))

    def topics(self) -> list[str]:
        """Topics of which a half waits."""
        return list(self._halves)

    def holds(self, topic: str, half_offset: int) -> bool:
        """Whether a half waits."""
        return half_offset in self._halves.get(topic, ())

    def of(self, topic: str) -> Iterator[int]:
        """The halves of a topic that wait."""
        return iter(tuple(self._halves.get(topic, ())))

    def add(self, topic: str, half_offset: int) -> None:
        """A half waits."""
        self._halves.setdefault(topic, {})[half_offset] = None

    def discard(self, topic: str, half_offset: int) -> None:
        """A half no longer waits, if it did."""
        halves = self._halves.get(topic)
        if halves is not None:
            halves.pop(half_offset, None)
            if not halves:
                del self._halves[topic]

    def take(self, topic: str, count_max: int) -> list[int]:
        """The first halves of a topic, which no longer wait."""
        taken = list(islice(self._halves.get(topic, ()), count_max))
        for half_offset in taken:
            self.discard(topic, half_offset)
        return taken
