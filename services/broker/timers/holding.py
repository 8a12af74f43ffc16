"""Holds the due timers of a topic back from delivery, until an operator releases the topic.

    wheel, partitions --due--> gate (`timer_delivery`) ----------------------------------> delivered
                                 | the topic is held                                           ^
                                 v                                                             |
                               a move to the same due time, marked TW_HELD --> `HeldTimers` ---+
                                                                                 released, at a pace

1. A hold and a release are facts of the topic (`TopicHeld`, `TopicReleased`), and are stored in its `Topic`.
   They are decided in log order like every delivery: between the records of a hold and of its release, no
   timer of the topic is delivered, unless an operator or a client fires the timer.
2. A due timer of a held topic is moved to its own due time by one record, which ends the old timer and sets
   the new one, marked TW_HELD. A crash therefore keeps the whole move or nothing, and each timer ends once.
3. A marked timer is in `HeldTimers` from the flush of its record until its end, and never in the wheel or in
   a partition. Cancels, moves, fires and replacements find the timer by its names, like any waiting timer.
   An operator's move removes the mark; if the new due time comes while the topic is held, it is held again.
4. A timer in `HeldTimers` whose topic is not held is delivered at the pace of the release, the earliest due
   time first. A release that is under way has no other state, so it continues after a crash, a restart and a
   takeover. Timers that become due after the release are delivered on time, before the held ones.
5. The record of a held timer is kept beyond retention like an open half (`commitlog.keep`), and the names and
   ends of all timers are kept from the earliest held timer on, so a held timer is never forgotten.

Rejected: a reserved, far due time in the wheel. All held timers of the store would share one partition, which
is never passed and would therefore never be deleted. A release would read the whole partition for each topic,
and names and ends would be kept until the reserved time.

Cost: each held timer is written to the log once more (about 100 us), and takes 20 bytes of memory and of a
snapshot. A tick examines held timers only of topics whose release is under way, and a release sorts the
timers of its topic once. Weak spot: the 20 bytes of a removed timer are freed when half of the table is
unused.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.bulk import Integers
from commitlog.snapshot import Rows
from timingwheel.boundaries import Numbers

_GONE: Final = -1
"""The due time of a timer that was removed from the table."""
_GONE_MIN: Final = 1_024
_ROWS_AT_ONCE: Final = 8_192
_SECOND_US: Final = 1_000_000
FOREVER_MS: Final = 1 << 62


class HeldRows(NamedTuple):
    """Held timers as columns of equal length, sorted by due time and offset."""

    due_ms: Integers
    timer_offsets: Integers
    topics: Integers
    """Numbers of topics, as indices of `names`."""
    names: list[str]


class HeldTimers:
    """The held timers, in the order of their offsets, in which they are added."""

    def __init__(self) -> None:
        self._offsets, self._due_ms, self._topics = array("q"), array("q"), array("i")
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._gone_count = 0
        self._orders: dict[str, tuple[Integers, int]] = {}
        """The offsets of a topic's timers in due order, and how many of them are done."""
        self.counts: Counter[str] = Counter()
        """The number of held timers by topic, without topics that have none."""

    def __len__(self) -> int:
        return len(self._offsets) - self._gone_count

    def __contains__(self, timer_offset: int) -> bool:
        return self._place_of(timer_offset) >= 0

    def add(self, topic: str, due_ms: int, timer_offset: int) -> None:
        """Add a timer whose record is durable."""
        assert not self._offsets or timer_offset > self._offsets[-1], "held timers are added in log order"
        number = self._numbers.get(topic)
        if number is None:
            number = self._numbers[topic] = len(self._names)
            self._names.append(topic)
        self._offsets.append(timer_offset)
        self._due_ms.append(due_ms)
        self._topics.append(number)
        self.counts[topic] += 1
        self._orders.pop(topic, None)

    def remove(self, timer_offset: int) -> bool:
        """Remove a timer that has ended, and return whether it was held."""
        place = self._place_of(timer_offset)
        if place < 0:
            return False
        self._due_ms[place] = _GONE
        self._gone_count += 1
        topic = self._names[self._topics[place]]
        self.counts[topic] -= 1
        if not self.counts[topic]:
            del self.counts[topic]
            self._orders.pop(topic, None)
        if self._gone_count > max(_GONE_MIN, len(self._offsets) // 2):
            self._compact()
        return True

    def first(self, topic: str, count_max: int) -> list[tuple[int, int]]:
        """Return up to `count_max` timers of a topic, as sorted (due time, offset) pairs."""
        found: list[tuple[int, int]] = []
        order, done = self._orders.get(topic) or (self._in_due_order(topic), 0)
        place = done
        while place < len(order) and len(found) < count_max:
            timer_offset = int(order[place])
            at = self._place_of(timer_offset)
            if at >= 0:
                found.append((self._due_ms[at], timer_offset))
            elif not found:
                done = place + 1
            place += 1
        assert found or not count_max or not self.counts[topic], "a held timer is in no order"
        if self.counts[topic]:
            self._orders[topic] = order, done
        return found

    def first_due_ms(self) -> int:
        """Return the earliest due time of a held timer, or `FOREVER_MS` if there is none."""
        due_ms = np.array(self._due_ms, np.int64)
        return int(min(due_ms[due_ms != _GONE], default=FOREVER_MS)) if len(self) else FOREVER_MS

    def between(self, first_offset: int, end_offset: int) -> list[int]:
        """Return the ascending offsets of the held timers in a part of the log."""
        first, end = bisect_left(self._offsets, first_offset), bisect_left(self._offsets, end_offset)
        return [self._offsets[place] for place in range(first, end) if self._due_ms[place] != _GONE]

    def offsets(self) -> Numbers:
        """Return the offsets of all held timers."""
        return np.array(self.between(0, FOREVER_MS), np.uint64)

    def rows(self, from_ms: int, until_ms: int) -> HeldRows:
        """Return the held timers that are due in a window, in due order."""
        due_ms = np.array(self._due_ms, np.int64)
        places = np.flatnonzero((due_ms >= max(from_ms, 0)) & (due_ms < until_ms))
        places = places[np.argsort(due_ms[places], kind="stable")]
        offsets = np.array(self._offsets, np.int64)[places]
        return HeldRows(due_ms[places], offsets, np.array(self._topics, np.int64)[places], self._names)

    def freeze(self) -> Any:
        """Return the snapshot part: rows of a topic, due times, and offsets."""
        found = self.rows(0, FOREVER_MS)
        parts: list[tuple[str, Integers, Integers]] = []
        for number, name in sorted(enumerate(found.names), key=lambda pair: pair[1]):
            places = np.flatnonzero(found.topics == number)
            for start in range(0, len(places), _ROWS_AT_ONCE):
                some = places[start : start + _ROWS_AT_ONCE]
                parts.append((name, found.due_ms[some], found.timer_offsets[some]))
        return Rows([dict(enumerate(parts))], _frozen_row)

    def thaw(self, frozen: Any) -> None:
        """Restore the snapshot part."""
        rows = (
            (timer_offset, due_ms, topic)
            for topic, due_times, offsets in frozen
            for due_ms, timer_offset in zip(due_times, offsets, strict=True)
        )
        for timer_offset, due_ms, topic in sorted(rows):
            self.add(topic, due_ms, timer_offset)

    def _place_of(self, timer_offset: int) -> int:
        """Return the index of a timer, or -1 if it is not held."""
        place = bisect_left(self._offsets, timer_offset)
        is_there = place < len(self._offsets) and self._offsets[place] == timer_offset
        return place if is_there and self._due_ms[place] != _GONE else -1

    def _in_due_order(self, topic: str) -> Integers:
        number = self._numbers.get(topic, -1)
        topics, due_ms = np.array(self._topics, np.int64), np.array(self._due_ms, np.int64)
        places = np.flatnonzero((topics == number) & (due_ms != _GONE))
        places = places[np.argsort(due_ms[places], kind="stable")]
        order: Integers = np.array(self._offsets, np.int64)[places]
        return order

    def _compact(self) -> None:
        """Drop the rows of the removed timers."""
        kept = np.array(self._due_ms, np.int64) != _GONE
        self._offsets = array("q", np.array(self._offsets, np.int64)[kept].tobytes())
        self._topics = array("i", np.array(self._topics, np.int32)[kept].tobytes())
        self._due_ms = array("q", np.array(self._due_ms, np.int64)[kept].tobytes())
        self._gone_count = 0


class Paces:
    """The paces of releases: how many timers of a topic may be delivered now.

    After a pause, such as a busy disk, a release makes up for at most one second.
    """

    def __init__(self) -> None:
        self._next_us: dict[str, int] = {}

    def allowed(self, topic: str, per_second: int, now_ms: int, count_max: int) -> int:
        """Return the number of timers to deliver now; a pace of 0 has no limit."""
        if not per_second:
            return count_max
        now_us = now_ms * 1_000
        next_us = self._next_us.get(topic, now_us)
        next_us = min(max(next_us, now_us - _SECOND_US), now_us + _SECOND_US)
        self._next_us[topic] = next_us
        return 0 if next_us > now_us else min(count_max, (now_us - next_us) * per_second // _SECOND_US + 1)

    def spend(self, topic: str, per_second: int, count: int) -> None:
        """Note that timers of a topic were delivered."""
        if per_second:
            self._next_us[topic] += count * _SECOND_US // per_second

    def next_ms(self, topic: str, per_second: int, seen_ms: int) -> int:
        """Return the time at which the next timer of a topic may be delivered."""
        next_us = self._next_us.get(topic, 0) if per_second else 0
        return max(seen_ms, -(-next_us // 1_000))


def _frozen_row(_: int, part: tuple[str, Integers, Integers]) -> Any:
    topic, due_ms, offsets = part
    return [topic, due_ms.tolist(), offsets.tolist()]
