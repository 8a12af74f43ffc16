"""Tables of the contents of records: one ledger for the accepted history, one for the dead records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stored_records import TIMER_TOPIC, Record, What, done

CANCELLED, DELIVERED, REPLACED, OTHER = "cancelled", "delivered", "replaced", "unreadable"
COMMIT, ROLLBACK, EXPIRED = "commit", "rollback", "expired"
_OUTCOMES = {"ROLLBACK": ROLLBACK, "EXPIRED": EXPIRED}


class Ending(NamedTuple):
    """The end of a timer or a half, and the record that ended it."""

    how: str
    record: Record


class Ledger:
    """Tables of records, in the order of the log."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.messages: list[Record] = []
        self.halves: list[Record] = []
        self.timers: list[Record] = []
        self.by_offset: dict[int, Record] = {}
        self.at_place: defaultdict[tuple[str, int, int], list[Record]] = defaultdict(list)
        """Messages, by topic, queue and queue offset."""
        self.half_ends: defaultdict[int, list[Ending]] = defaultdict(list)
        self.timer_ends: defaultdict[int, list[Ending]] = defaultdict(list)
        self.done: defaultdict[tuple[str, str, int], set[int]] = defaultdict(set)
        """Completed queue offsets, by group, topic and queue."""
        self._by_id: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
        for one in records:
            self._add(one)

    def of(self, topic: str, message_id: str) -> list[Record]:
        """Return the messages, timers and halves with an id."""
        return self._by_id.get((topic, message_id), [])

    def halves_of(self, topic: str, message_id: str) -> list[Record]:
        """Return the halves with an id."""
        return [one for one in self.of(topic, message_id) if one.what is What.HALF]

    def outcomes_of(self, topic: str, message_id: str) -> list[str]:
        """Return the outcomes of the transactions with an id: by half, each in the order of the log."""
        halves = self.halves_of(topic, message_id)
        return [end.how for half in halves for end in self.half_ends.get(half.offset, [])]

    def timer_ends_of(self, topic: str, message_id: str) -> list[str]:
        """Return the ends of the timers with an id."""
        timers = (one for one in self.of(topic, message_id) if one.what is What.TIMER)
        return [end.how for timer in timers for end in self.timer_ends.get(timer.offset, [])]

    def message_at(self, topic: str, queue: int, offset: int) -> Record | None:
        """Return the message at a queue offset, or None."""
        found = self.at_place.get((topic, queue, offset))
        return found[0] if found else None

    def _add(self, one: Record) -> None:
        self.by_offset[one.offset] = one
        what = one.what
        if what is What.ACK:
            for group, topic, queue_id, offsets in done(one.body):
                self.done[group, topic, queue_id].update(offsets)
        elif what is What.OUTCOME:
            how = _OUTCOMES.get(one.properties.get("TW_OUTCOME", ""), OTHER)
            self.half_ends[one.half_offset].append(Ending(how, one))
        elif what in (What.MESSAGE, What.TIMER, What.HALF):
            self._by_id[one.topic, one.message_id].append(one)
            {What.MESSAGE: self.messages, What.TIMER: self.timers, What.HALF: self.halves}[what].append(one)
        if what is What.MESSAGE:
            self.at_place[one.stored_topic, one.queue_id, one.queue_offset].append(one)
        if one.is_commit:
            self.half_ends[one.half_offset].append(Ending(COMMIT, one))
        for timer, how in _timers_ended(one):
            self.timer_ends[timer].append(Ending(how, one))


def _timers_ended(one: Record) -> Iterator[tuple[int, str]]:
    """Yield (offset of the timer, end) for each timer that a record ends."""
    if one.timer_offset is not None and one.what in (What.MESSAGE, What.VERB):
        if one.what is What.MESSAGE:
            yield one.timer_offset, DELIVERED
        else:
            yield one.timer_offset, CANCELLED if one.verb == "CANCEL" else OTHER
        return
    replaced = one.properties.get("TW_REPLACES", "")
    if replaced.isdigit() and one.stored_topic == TIMER_TOPIC:
        yield int(replaced), REPLACED
    carried = one.properties.get("TW_CANCELS", "").split()
    if len(carried) == 2:
        yield int(carried[0]), CANCELLED
