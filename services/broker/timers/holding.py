"""Hold the due timers of a topic until an operator releases the topic.

    wheel, partitions --due--> check (`timer_delivery`) ---------------------------------> delivered
                                 | the topic is held                                           ^
                                 v                                                             |
                               a move to the same due time, marked TW_HELD --> `HeldTimers` ---+
                                                                        released, at the release rate

1. Holds and releases are facts about a topic (`TopicHeld`, `TopicReleased`), and are stored in the `Topic`.
   Holds, releases, and deliveries take effect in log order. Between the hold record and the release record, a
   timer of the topic is delivered only if an operator or a client fires it.
2. When a timer of a held topic becomes due, it is moved without changing its due time. A single record ends
   the old timer and sets the new timer, which is marked TW_HELD. The move is therefore atomic: a crash
   preserves either the old timer or the new timer, and each timer ends only once.
3. A marked timer is in `HeldTimers` from the flush of its record until the timer ends, and is never in the
   wheel or a partition. A held timer can be cancelled, moved, fired, or replaced by name, like any other
   pending timer. A move by an operator removes the mark. If the topic is still held at the new due time, the
   timer is held again.
4. After a release, the timers in `HeldTimers` are delivered at the release rate, in order of due time. A
   release has no other state, and therefore continues after a crash, a restart, or a takeover. Timers that
   become due after the release are delivered on time, before the remaining held timers.
5. The record of a held timer is kept beyond the retention time, as is the record of an open half message
   (`commitlog.log.keep`). The names and ends of all timers from the earliest held timer onward are also kept.
   A held timer is therefore never lost.
6. The TW_HELD mark of a timer proves that its topic was held. If damage has destroyed the record of the hold
   or of the topic, the topic is held again until an operator releases it.

Rejected alternative: a reserved due time in the distant future for held timers. All held timers would then be
in one partition that never becomes due and is never deleted. Each release would have to read this partition,
and the names and ends of all timers would be kept until the reserved time.

Cost: each held timer is written to the log again (about 100 us) and occupies 20 bytes in memory and in each
snapshot. A tick examines only the held timers of released topics. A release sorts the held timers of the
topic once. Limitation: the memory of removed timers is freed only when more than half of the table is unused.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.records.bulk import Integers
from commitlog.snapshots.snapshot import Rows
from timingwheel.boundaries import Numbers

_GONE: Final = -1
"""The value that replaces the due time of a removed timer in the table."""
_GONE_MIN: Final = 1_024
_ROWS_AT_ONCE: Final = 8_192
_SECOND_US: Final = 1_000_000
FOREVER_MS: Final = 1 << 62


class HeldRows(NamedTuple):
    """Held timers as arrays of equal length, sorted by due time and offset."""

    due_ms: Integers
    timer_offsets: Integers
    topics: Integers
    """The topic of each timer, as an index into `names`."""
    names: list[str]


class HeldTimers:
    """The held timers, sorted by log offset. Timers are added in this order."""

    def __init__(self) -> None:
        self._offsets, self._due_ms, self._topics = array("q"), array("q"), array("i")
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._gone_count = 0
        self._orders: dict[str, tuple[Integers, int]] = {}
        """The timer offsets in order of due time, and the number of processed offsets, by topic."""
        self.counts: Counter[str] = Counter()
        """The number of held timers, by topic."""

    def __len__(self) -> int:
        return len(self._offsets) - self._gone_count

    def __contains__(self, timer_offset: int) -> bool:
        return self._place_of(timer_offset) >= 0

    def add(self, topic: str, due_ms: int, timer_offset: int) -> None:
        """Add a held timer whose record is durable."""
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
        """Remove an ended timer. Return whether the timer was held."""
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
        """Return the first `count_max` held timers of a topic, as sorted (due time, offset) pairs."""
        found: list[tuple[int, int]] = []
        order, done = self._orders.get(topic) or (self._sort_by_due_time(topic), 0)
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
        """Return the earliest due time, or `FOREVER_MS` if no timer is held."""
        due_ms = np.array(self._due_ms, np.int64)
        return int(due_ms[due_ms != _GONE].min()) if len(self) else FOREVER_MS

    def between(self, first_offset: int, end_offset: int) -> list[int]:
        """Return the offsets of the held timers in a range of log offsets, in ascending order."""
        first, end = bisect_left(self._offsets, first_offset), bisect_left(self._offsets, end_offset)
        return [self._offsets[place] for place in range(first, end) if self._due_ms[place] != _GONE]

    def offsets(self) -> Numbers:
        """Return the offsets of all held timers."""
        return np.array(self.between(0, FOREVER_MS), np.uint64)

    def rows(self, from_ms: int, until_ms: int) -> HeldRows:
        """Return the held timers with `from_ms` <= due time < `until_ms`, in order of due time."""
        due_ms = np.array(self._due_ms, np.int64)
        places = np.flatnonzero((due_ms >= max(from_ms, 0)) & (due_ms < until_ms))
        places = places[np.argsort(due_ms[places], kind="stable")]
        offsets = np.array(self._offsets, np.int64)[places]
        return HeldRows(due_ms[places], offsets, np.array(self._topics, np.int64)[places], self._names)

    def freeze(self) -> Any:
        """Return rows of (topic, due times, offsets) for a snapshot."""
        found = self.rows(0, FOREVER_MS)
        parts: list[tuple[str, Integers, Integers]] = []
        for number, name in sorted(enumerate(found.names), key=lambda pair: pair[1]):
            places = np.flatnonzero(found.topics == number)
            for start in range(0, len(places), _ROWS_AT_ONCE):
                some = places[start : start + _ROWS_AT_ONCE]
                parts.append((name, found.due_ms[some], found.timer_offsets[some]))
        return Rows([dict(enumerate(parts))], _frozen_row)

    def thaw(self, frozen: Any) -> None:
        """Restore the state from a snapshot."""
        rows = (
            (timer_offset, due_ms, topic)
            for topic, due_times, offsets in frozen
            for due_ms, timer_offset in zip(due_times, offsets, strict=True)
        )
        for timer_offset, due_ms, topic in sorted(rows):
            self.add(topic, due_ms, timer_offset)

    def _place_of(self, timer_offset: int) -> int:
        """Return the index of a timer in the table, or -1 if the timer is not held."""
        place = bisect_left(self._offsets, timer_offset)
        is_there = place < len(self._offsets) and self._offsets[place] == timer_offset
        return place if is_there and self._due_ms[place] != _GONE else -1

    def _sort_by_due_time(self, topic: str) -> Integers:
        number = self._numbers.get(topic, -1)
        topics, due_ms = np.array(self._topics, np.int64), np.array(self._due_ms, np.int64)
        places = np.flatnonzero((topics == number) & (due_ms != _GONE))
        places = places[np.argsort(due_ms[places], kind="stable")]
        order: Integers = np.array(self._offsets, np.int64)[places]
        return order

    def _compact(self) -> None:
        """Delete the rows of removed timers."""
        kept = np.array(self._due_ms, np.int64) != _GONE
        self._offsets = array("q", np.array(self._offsets, np.int64)[kept].tobytes())
        self._topics = array("i", np.array(self._topics, np.int32)[kept].tobytes())
        self._due_ms = array("q", np.array(self._due_ms, np.int64)[kept].tobytes())
        self._gone_count = 0


class ReleasePaces:
    """Limit the delivery rate of released timers.

    After an interruption, for example because of a busy disk, a release delivers a burst of at most one
    second's worth of timers.
    """

    def __init__(self) -> None:
        self._next_us: dict[str, int] = {}

    def allowed(self, topic: str, per_second: int, now_ms: int, count_max: int) -> int:
        """Return the number of timers of a topic that may be delivered now, at most `count_max`.

        `per_second` is the release rate, or 0 for no limit.
        """
        if not per_second:
            return count_max
        now_us = now_ms * 1_000
        next_us = self._next_us.get(topic, now_us)
        next_us = min(max(next_us, now_us - _SECOND_US), now_us + _SECOND_US)
        self._next_us[topic] = next_us
        return 0 if next_us > now_us else min(count_max, (now_us - next_us) * per_second // _SECOND_US + 1)

    def spend(self, topic: str, per_second: int, count: int) -> None:
        """Charge the delivery of `count` timers against the release rate of a topic."""
        if per_second:
            self._next_us[topic] += count * _SECOND_US // per_second

    def next_ms(self, topic: str, per_second: int, seen_ms: int) -> int:
        """Return the time in milliseconds at which the next timer of a topic may be delivered.

        The result is never before `seen_ms`.
        """
        next_us = self._next_us.get(topic, 0) if per_second else 0
        return max(seen_ms, -(-next_us // 1_000))


def _frozen_row(_: int, part: tuple[str, Integers, Integers]) -> Any:
    topic, due_ms, offsets = part
    return [topic, due_ms.tolist(), offsets.tolist()]
