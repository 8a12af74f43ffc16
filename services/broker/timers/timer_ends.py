"""Store the names and ends of timers independently of log retention.

Names and ends are stored in two exact indexes on disk (`consumequeue.indexes.timerindex`):

    index   key                                      value
    names   topic and message id, or topic and key   newest timer with this name: offset, due and store times
    ends    offset of a timer                        kind, time, and record offset of the end

A timer is pending if it is in `names` but not in `ends`. Each entry of an index is a fact, which contains the
times of its event. Facts do not depend on the setting `history_ms`, which may change when the store is
reopened.

1. A fact expires `history_ms` after its last time (`last_ms`). The last time of a name is the later of the
   set time and the due time of the timer. The last time of an end is the later of the end time and the due
   time. An end therefore never expires before the names of its timer.
2. Names and ends are merged separately. A merge may therefore drop the end of a timer but keep one of its
   names. Ends before `forgotten_ms` may have been dropped. `forgotten_ms` never decreases and is part of the
   snapshot, because a longer history does not restore dropped ends.
3. A timer is forgotten if the last time of its name is before `forgotten_ms` or more than `history_ms` ago. A
   forgotten timer is never pending.
4. The names of a pending timer are kept even if the timer is very late, because merges expire facts relative
   to the due time of the earliest pending timer.

All facts since the last checkpoint are kept in memory, as are Bloom filters of about 12 bits per fact.

An end is a `consumequeue.indexes.timerindex_fact` fact with these u64 fields:

    field   bits   contents
    key     64     the offset of the timer
    check   64     0
    offset  64     the log offset of the record that ended the timer
    at      64     the end time, in ms since 1970
    extra   8      the kind of end (`commitlog.records.kinds.End`), in the high bits
            56     the due time, in ms since 1970

Limitation: a name is identified only by a 128-bit hash. If two hashes collided, both names would silently
refer to the same timer. With 2**40 names in a store, the probability of a collision is about 2**-49.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.facts.facts import TimerSet
from commitlog.limits import FACTS_CHECKED_AT_START_BYTES
from commitlog.records.bulk import Integers
from commitlog.records.kinds import End
from commitlog.records.message import Message
from consumequeue.indexes.timerindex import FactIndex, hashes_of
from consumequeue.indexes.timerindex_fact import FACT, Facts
from consumequeue.runs.bloom_filter import Mask, Words
from consumequeue.runs.run_store import RunsToWrite
from services.broker.spine.store import Store
from services.broker.spine.values import DamagedPart, TimerName
from tidewheel import property_names

NAMES: Final = "timers-names"
ENDS: Final = "timers-ends"
KIND_SHIFT: Final = 56
"""The bit position of the kind in the `extra` field of an end. The lower bits contain the due time."""
_TIME_MASK: Final = (1 << KIND_SHIFT) - 1
assert max(End) < 1 << 64 - KIND_SHIFT, "the kinds of ends outgrow their bits"

Times = np.ndarray[Any, np.dtype[np.uint64]]
"""An array of times in milliseconds since the Unix epoch."""
NameWords = tuple[int, int]
"""The 128-bit hash of a timer name and its topic, as two 64-bit words."""


class NamedTimer(NamedTuple):
    """A timer that was found by name. Times are in milliseconds since the Unix epoch."""

    timer_offset: int
    due_ms: int
    stored_ms: int

    @property
    def known_ms(self) -> int:
        """The time in milliseconds from which the retention of the name is measured."""
        return max(self.due_ms, self.stored_ms)


class TimerEnd(NamedTuple):
    """The end of a timer: the kind, the time, and the log offset of the record that ended the timer."""

    end: End
    ended_ms: int
    ended_offset: int


@dataclass(slots=True, eq=False)
class CheckpointTimerEnds:
    """A consistent state of both indexes for a checkpoint."""

    names: RunsToWrite
    ends: RunsToWrite
    forgotten_ms: int

    def write(self, disk: Disk) -> None:
        """Write the new facts in a worker thread. Raise OSError if the disk fails."""
        self.names.write(disk)
        self.ends.write(disk)

    def freeze(self) -> Any:
        """Return the files of both indexes and the numbers of damaged runs, for a snapshot."""
        damaged = {"names": sorted(self.names.damaged), "ends": sorted(self.ends.damaged)}
        files = {"names": self.names.freeze(), "ends": self.ends.freeze()}
        return files | {"forgotten_ms": self.forgotten_ms, "damaged": damaged}

    def delete_unused(self, disk: Disk) -> None:
        """Delete the files that are no longer needed."""
        self.names.delete_unused(disk)
        self.ends.delete_unused(disk)


class TimerEnds:
    """The names and ends of the timers in a store."""

    def __init__(self, disk: Disk, history_ms: int, store: Store) -> None:
        self._history_ms, self._damage = history_ms, store.damage
        self.forgotten_ms = 0
        """The time in milliseconds before which merges may have dropped ends."""
        self.names = FactIndex(disk, NAMES, self._is_expired)
        self.ends = FactIndex(disk, ENDS, self._is_expired)

    @property
    def is_full(self) -> bool:
        """Whether the number of facts in memory requires a checkpoint."""
        return self.names.is_full or self.ends.is_full

    def find_by_name(self, name: TimerName) -> NamedTimer | None:
        """Return the newest timer with the given name, pending or ended, or None.

        Raise `StoreDamaged` if the index is unreadable.
        """
        return self.find_by_hash(name_hash(name))

    def find_by_hash(self, words: NameWords) -> NamedTimer | None:
        """Return the newest timer whose name has the given hash (`name_hash`), or None.

        Raise `StoreDamaged` if the index is unreadable.
        """
        try:
            found = self.names.newest(*words)
        except StoreDamaged:
            self.report_damage()
            raise
        return None if found is None else NamedTimer(*found)

    def add_names(self, timer: TimerSet, timer_offset: int, stored_ms: int) -> None:
        """Add the names of a timer to the index."""
        for key, check in words_of(timer):
            self.names.put(key, check, timer_offset, timer.due_ms, stored_ms)

    def find_end(self, timer_offset: int) -> TimerEnd | None:
        """Return the end of a timer, or None if no end is stored.

        Raise `StoreDamaged` if the index is unreadable.
        """
        try:
            found = self.ends.newest(timer_offset, 0)
        except StoreDamaged:
            self.report_damage()
            raise
        if found is None:
            return None
        ended_offset, ended_ms, extra = found
        return TimerEnd(End(extra >> KIND_SHIFT), ended_ms, ended_offset)

    def ended_mask(self, timer_offsets: Words) -> Mask:
        """Return a Boolean array that is true for ended timers.

        Raise `StoreDamaged` if the index is unreadable.
        """
        try:
            return self.ends.contains_each(timer_offsets, np.zeros(len(timer_offsets), np.uint64))
        except StoreDamaged:
            self.report_damage()
            raise

    def report_damage(self) -> None:
        """Report the known damage to the two indexes."""
        for part, index in (("names", self.names), ("ends", self.ends)):
            if index.damage:
                self._damage.report(DamagedPart(part, "", index.damage))

    def add_end(self, timer_offset: int, due_ms: int, ended: TimerEnd) -> None:
        """Add the end of a timer to the index."""
        self.ends.put(timer_offset, 0, ended.ended_offset, ended.ended_ms, end_extra(ended.end, due_ms))

    def add_delivered_ends(
        self, timer_offsets: Integers, due_ms: Integers, ended_offsets: Integers, ended_ms: int
    ) -> None:
        """Add the ends of delivered timers. The arrays have equal length, with one element per timer.

        `ended_ms` is the store time of the records that ended the timers.
        """
        assert len(timer_offsets) == len(due_ms) == len(ended_offsets), "a timer without its end"
        facts = np.zeros(len(timer_offsets), FACT)
        facts["key"], facts["offset"], facts["at"] = timer_offsets, ended_offsets, ended_ms
        facts["extra"] = End.DELIVERED << KIND_SHIFT | due_ms
        self.ends.put_many(facts)

    def is_forgotten(self, known_ms: int, now_ms: int) -> bool:
        """Return whether a timer with the given `known_ms` may have ended before the retained history.

        A timer remains forgotten even if the clock is set back or the history is extended, because a merge
        may have dropped the end of the timer.
        """
        return known_ms < max(now_ms - self._history_ms, self.forgotten_ms)

    def spill(self, now_ms: int) -> None:
        """Write the facts that exceed the memory limit during log replay. For `now_ms`, see `to_write`."""
        self._advance_forgotten(now_ms)
        self.names.spill(now_ms)
        self.ends.spill(now_ms)

    def to_write(self, now_ms: int) -> CheckpointTimerEnds:
        """Return the data for a checkpoint, without the facts that expired before `now_ms`.

        `now_ms` is the earlier of the newest store time and the due time of the earliest pending timer. The
        system clock is not used, because it may be wrong.
        """
        self._advance_forgotten(now_ms)
        names, ends = self.names.to_write(now_ms), self.ends.to_write(now_ms)
        return CheckpointTimerEnds(names, ends, self.forgotten_ms)

    def complete_checkpoint(self, done: CheckpointTimerEnds) -> None:
        """Replace the facts in memory and the merged runs with the runs of a durable checkpoint."""
        self.names.written(done.names)
        self.ends.written(done.ends)

    def abandon_checkpoint(self, done: CheckpointTimerEnds) -> None:
        """Keep the runs of a failed checkpoint, because a snapshot may list them."""
        self.names.failed(done.names)
        self.ends.failed(done.ends)

    def adopt_files(self, frozen: Any, others: list[Any]) -> list[str]:
        """Use the files that a snapshot lists, and return descriptions of any damage.

        Keep the files of other snapshots (`others`).
        """
        self.forgotten_ms = frozen["forgotten_ms"]
        reasons = (
            self.names.adopt(frozen["names"], [other["names"] for other in others]),
            self.ends.adopt(frozen["ends"], [other["ends"] for other in others]),
        )
        known = frozen["damaged"]
        for index, name in ((self.names, "names"), (self.ends, "ends")):
            index.check(known[name], FACTS_CHECKED_AT_START_BYTES)
        return [reason for reason in reasons if reason]

    def delete_files(self) -> None:
        """Delete both indexes. A replay of the whole log rebuilds them."""
        self.names.drop()
        self.ends.drop()

    def _advance_forgotten(self, now_ms: int) -> None:
        """Advance `forgotten_ms`. Merges may then drop the facts that expired before `now_ms`."""
        self.forgotten_ms = max(self.forgotten_ms, now_ms - self._history_ms)

    def _is_expired(self, facts: Facts, now_ms: int) -> Any:
        return last_ms(facts) < np.uint64(max(now_ms - self._history_ms, 0))


def end_extra(end: End, due_ms: int) -> int:
    """Return the `extra` field of an end: the kind of the end, and the due time of the timer."""
    return end << KIND_SHIFT | due_ms


def last_ms(facts: Facts) -> Times:
    """Return the last time of each fact, in milliseconds. Retention is measured from this time."""
    times: Times = np.maximum(facts["at"], facts["extra"] & np.uint64(_TIME_MASK))
    return times


def name_hash(name: TimerName) -> NameWords:
    """Return the 128-bit hash of a timer name.

    A timer key and a message id with the same text have different hashes.
    """
    return hashes_of(name.topic, text_of(name.message_id, name.key))


def timer_key_hash(message: Message) -> NameWords | None:
    """Return the 128-bit hash of a message's timer key, or None if the message has no timer key."""
    key = message.properties.get(property_names.TIMER_KEY)
    return hashes_of(message.topic, text_of("", key)) if key else None


def words_of(timer: TimerSet) -> list[NameWords]:
    """Return the 128-bit hashes of a timer's names."""
    topic, message_id, key = timer.topic, timer.message_id, timer.key
    words = [] if message_id is None else [hashes_of(topic, message_id)]
    return [*words, hashes_of(topic, text_of("", key))] if key else words


def text_of(message_id: str, key: str) -> str:
    """Return the text whose hash identifies a timer name.

    The text is the message id, or the timer key with a prefix that is illegal in a message id.
    """
    return message_id or f"\x01{key}"
