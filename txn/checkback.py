"""When to ask a producer what became of its half message.

A half is left alone for its immunity, then asked about with growing pauses, at most `count_max` times;
after the last unanswered check it expires. Pauses: interval, doubled each time, at most `interval_ms_max`.

Only checks that reached a producer count. A half that is due, and whose topic has no producer that can be
asked, waits without a timer until one can (`Unasked`):

    due ----> asked ----> next check after a pause
     ^  |
     |  +---> nobody there ----> waits ----+
     +------ a producer can be asked ------+

A producer that comes wakes `CHECKS_WOKEN_MAX` halves of its topic, and each half that is asked about wakes
one more. So a hundred thousand halves without a producer cost nothing while nobody is there, and no burst
when a producer comes: as soon as its queue is full, the rest waits again. (RocketMQ goes through its half
topic in a loop instead: `TransactionalMessageServiceImpl.check`.)

Memory: some 100 bytes a half that waits. Weak spot: which halves wait is not durable; after a start each that
is due tries once to be asked about before it waits again.
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
    count_max: int = limits.CHECK_COUNT_DEFAULT

    def first_check_ms(self, stored_ms: int, immunity_ms: int | None) -> int:
        """Return when a half is first asked about, in ms; its own immunity goes before the policy's."""
        return stored_ms + (self.immunity_ms if immunity_ms is None else immunity_ms)

    def next_check_ms(self, asked_ms: int, check_count: int) -> int:
        """Return when to look again after check number `check_count`, from 1, was sent at `asked_ms`."""
        # At most 32 doublings: an operator may allow 10,000 checks, and the number would get as many bits.
        pause_ms = self.interval_ms << min(check_count - 1, 32)
        return asked_ms + min(pause_ms, self.interval_ms_max)

    def is_exhausted(self, check_count: int) -> bool:
        """Return whether a half with `check_count` checks expires instead of being asked about again."""
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
        """Return the topics of which a half waits."""
        return list(self._halves)

    def holds(self, topic: str, half_offset: int) -> bool:
        """Return whether a half waits."""
        return half_offset in self._halves.get(topic, ())

    def oldest(self) -> list[int]:
        """Return the half of each topic that has waited longest."""
        return [next(iter(halves)) for halves in self._halves.values()]

    def of(self, topic: str) -> Iterator[int]:
        """Return the halves of a topic that wait, as they are at this moment."""
        return iter(tuple(self._halves.get(topic, ())))

    def add(self, topic: str, half_offset: int) -> None:
        """Let a half wait, at its topic's end; a half that waits keeps its place."""
        self._halves.setdefault(topic, {})[half_offset] = None

    def discard(self, topic: str, half_offset: int) -> None:
        """Let a half wait no longer, if it did."""
        halves = self._halves.get(topic)
        if halves is not None:
            halves.pop(half_offset, None)
            # No empty topics: `topics` and `in` tell where a producer can help.
            if not halves:
                del self._halves[topic]

    def take(self, topic: str, count_max: int) -> list[int]:
        """Return up to `count_max` halves of a topic, the first ones, which wait no longer."""
        taken = list(islice(self._halves.get(topic, ()), count_max))
        for half_offset in taken:
            self.discard(topic, half_offset)
        assert len(taken) == count_max or topic not in self._halves, "a half was left behind"
        return taken
