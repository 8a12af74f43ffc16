"""Invariants between the records of a log, which must hold after any crash.

    half messages    ended at most once, and every end refers to an existing or earlier half message
    timers           ended at most once, and every end refers to an existing or earlier timer
                     (`commitlog.records.kinds` defines the records that end a timer)
    deliveries       not before the due time
    queue offsets    increase by one, except where a record is damaged
    epochs           always increase

They are checked by `verify`, and by the simulation for every log that it creates. References to records that
were damaged, deleted by retention, or imported from another broker are not checked. Memory: a few integers
per half message, timer and queue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from commitlog.facts.facts import EpochBegun, HalfEnded, HalfStored, TimerEnded, TimerSet, facts_of
from commitlog.log.recovery import Damage, FoundRecord
from commitlog.records.inner_batch import message_count
from commitlog.records.kinds import End
from commitlog.records.record import Record
from consumequeue.dispatch import is_indexed


class Breach(NamedTuple):
    """A record that violates an invariant, with a description."""

    offset: int
    what: str


@dataclass(slots=True)
class Pairs:
    """Records of one kind (half messages or timers), and the records that end them."""

    name: str
    stored: set[int] = field(default_factory=set)
    ended: dict[int, int] = field(default_factory=dict)


class Invariants:
    """The invariants of one log. Records must be passed in log order.

    `damaged` may grow while records are passed, as `LogScan.damaged` does. Records below `imported_until`
    were imported from another broker. `kept` contains the offsets of kept records of deleted segments.
    """

    def __init__(
        self, first_offset: int, damaged: Sequence[Damage], imported_until: int = 0, kept: Container[int] = ()
    ) -> None:
        self.halves = Pairs("half")
        self._expiries = Pairs("half", self.halves.stored)
        self.timers = Pairs("timer")
        self.first_offsets: dict[tuple[str, int], int] = {}
        self.next_offsets: dict[tuple[str, int], int] = {}
        self._last_places: dict[tuple[str, int], int] = {}
        self._epoch = 0
        self._known_from = max(first_offset, imported_until)
        self._imported_until = imported_until
        self._damaged = damaged
        self._kept = kept

    def see(self, record: Record) -> Iterator[Breach]:
        """Yield the invariants that this record violates, given the records before it."""
        if is_indexed(record):
            yield from self._place(record)
        if self.is_copied(record.physical_offset):
            return
        for fact in facts_of(record):
            match fact:
                case HalfStored():
                    self.halves.stored.add(record.physical_offset)
                case TimerSet():
                    self.timers.stored.add(record.physical_offset)
                case EpochBegun():
                    yield from self._begin_epoch(fact, record)
                case HalfEnded():
                    yield from self._end_half(fact, record)
                case TimerEnded():
                    yield from self._end(self.timers, fact.timer_offset, record)
                    if fact.end is End.DELIVERED:
                        yield from _early(record, fact.due_ms)

    def is_lost(self, offset: int) -> bool:
        """Return whether a log offset is in a damaged region."""
        at = bisect_left(self._damaged, offset, key=lambda one: one.end_offset - 1)
        return at < len(self._damaged) and self._damaged[at].first_offset <= offset

    def must_hold(self, offset: int) -> bool:
        """Return whether a referenced record must be in the log."""
        return offset >= self._known_from and offset not in self._kept and not self.is_lost(offset)

    def is_copied(self, offset: int) -> bool:
        """Return whether a log offset was imported from another broker."""
        return offset < self._imported_until

    def _begin_epoch(self, begun: EpochBegun, record: Record) -> Iterator[Breach]:
        before, self._epoch = self._epoch, begun.number
        if self._epoch <= before:
            yield Breach(record.physical_offset, f"begins epoch {self._epoch}, after epoch {before}")

    def _end(self, pairs: Pairs, named: int, record: Record) -> Iterator[Breach]:
        earlier = pairs.ended.setdefault(named, record.physical_offset)
        if earlier != record.physical_offset:
            yield Breach(
                record.physical_offset, f"ends the {pairs.name} at {named} again; {earlier} ended it"
            )
        if not self._may_be(pairs, named):
            yield Breach(record.physical_offset, f"ends a {pairs.name} at {named}, where there is none")

    def _end_half(self, end: HalfEnded, record: Record) -> Iterator[Breach]:
        """Check the end of a half message.

        There is one end, except that an operator may resolve an expired half message.
        """
        if end.how != "EXPIRED":
            yield from self._end(self.halves, end.half_offset, record)
            return
        yield from self._end(self._expiries, end.half_offset, record)
        if end.half_offset in self.halves.ended:
            yield Breach(record.physical_offset, f"expires the half at {end.half_offset}, which had ended")

    def _may_be(self, pairs: Pairs, named: int) -> bool:
        return named in pairs.stored or named in self._kept or named < self._known_from or self.is_lost(named)

    def _place(self, record: Record) -> Iterator[Breach]:
        key = (record.topic, record.queue_id)
        self.first_offsets.setdefault(key, record.queue_offset)
        expected = self.next_offsets.get(key)
        self.next_offsets[key] = record.queue_offset + message_count(record)
        last_place = self._last_places.get(key, -1)
        self._last_places[key] = record.physical_offset
        if expected is None or expected == record.queue_offset or self.is_copied(record.physical_offset):
            return
        if record.queue_offset < expected:
            yield Breach(record.physical_offset, f"has queue offset {record.queue_offset} {_of(key)} again")
        elif not self._damaged or self._damaged[-1].end_offset <= last_place:
            what = f"has queue offset {record.queue_offset} {_of(key)}, where {expected} comes next"
            yield Breach(record.physical_offset, what)


def breaches(
    records: Iterable[FoundRecord], first_offset: int, damaged: Sequence[Damage], imported_until: int = 0
) -> list[Breach]:
    """Return all violations in a log, given its records in order."""
    rules = Invariants(first_offset, damaged, imported_until)
    return [breach for found in records for breach in rules.see(found.record)]


def _early(record: Record, due_ms: int) -> Iterator[Breach]:
    if record.store_ms < due_ms:
        yield Breach(record.physical_offset, f"was delivered {due_ms - record.store_ms} ms early")


def _of(key: tuple[str, int]) -> str:
    return f"in {key[0]} queue {key[1]}"
