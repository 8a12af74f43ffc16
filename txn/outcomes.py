"""Which halves are open, which have expired, and how the newest others ended, by the half's place in the log.

What expired stays until somebody resolves it. Of what was committed or rolled back only the last
`ended_halves_max` (`commitlog.applied_limits`) are remembered here; older ends are in the log, where the key
index finds them (`services.broker.halves.transactions`). So memory and snapshots grow with what is open and
expired, not with what has passed. Each is some 175 bytes: 100,000 of them took 17 MiB, which filled for the
first million halves' messages as if something leaked, and each checkpoint wrote them all. To find an older
end costs a look-up in the key index and a read, and only who ends a half twice pays it.

An end is known from the moment its record is appended, so a second end in the same turn meets it; whoever
is told of it waits until that record is durable. Until then it is not dropped either: the index has it later.

Open halves lie in the order of their offsets, and of their times. The tables are frozen without a copy
(`commitlog.table`).

    stored --> open --> expired --> resolved by an operator
                 |                         |
                 +-- committed or rolled back: ended --> forgotten here, still in the log

A half is in one of the three tables at most. Halves come into the table of expired ones in the order of their
expiry; the order of their offsets is in `SortedOffsets` beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from commitlog.table import Row, Table
from txn.sorted_offsets import SortedOffsets
from txn.states import State


class OpenHalf(NamedTuple):
    """A half that waits for its end: when it was stored, how often a producer was asked, when again.

    `topic` and `id_crc` are those of its message, so that nobody reads it before a producer is there.
    """

    stored_ms: int
    next_check_ms: int
    check_count: int = 0
    topic: str = ""
    id_crc: int = -1


class Ended(NamedTuple):
    """How and when a half ended, and the place of the record that says so."""

    state: State
    ended_ms: int
    ended_offset: int
    topic: str = ""
    """The topic of the message, for when retention has deleted the half."""

    @property
    def durable_at(self) -> int:
        """The log offset that must be durable before a caller is told."""
        return self.ended_offset + 1


class Expired(NamedTuple):
    """A half that no producer answered for, and the producers' ends that came too late for it."""

    ended_ms: int
    ended_offset: int
    stored_ms: int = 0
    check_count: int = 0
    topic: str = ""
    late: tuple[tuple[str, int], ...] = ()
    """What was asked for, and when: the first `LATE_ENDS_MAX`."""


LATE_ENDS_MAX: Final = 10
_LOST: Final = OpenHalf(0, 0)
"""What is known of a half whose record damage took before its end was read."""


class Outcomes:
    """The halves that a store remembers: open, expired, and the newest of the others."""

    def __init__(self) -> None:
        self.open: Table[int] = Table()
        """The fields of each `OpenHalf`."""
        self.expired: Table[int] = Table()
        """The fields of each `Expired`."""
        self._expired_offsets = SortedOffsets()
        self._ended: Table[int] = Table()
        self.waiting_by_topic: Counter[str] = Counter()
        """The number of open and expired halves by the topic of their messages; "" if it is unknown."""

    def stored(self, half_offset: int, waiting: OpenHalf) -> None:
        """Open a half, whose record is durable."""
        assert half_offset not in self._ended, "a half comes after its end"
        assert half_offset not in self.expired, "a half comes after its expiry"
        self.open.put(half_offset, tuple(waiting))
        self.waiting_by_topic[waiting.topic] += 1

    def waiting(self, half_offset: int) -> OpenHalf | None:
        """Return what is known of an open half; None if it is not open."""
        row = self.open.get(half_offset)
        return None if row is None else OpenHalf(*row)

    def expiry(self, half_offset: int) -> Expired | None:
        """Return what is known of an expired half; None if it has not expired."""
        row = self.expired.get(half_offset)
        return None if row is None else Expired(*row)

    def oldest_ms(self) -> int | None:
        """Return when the first of the open halves was stored, in ms since 1970; None if there are none."""
        first = self.open.first()
        return None if first is None else OpenHalf(*first[1]).stored_ms

    def between(self, first_offset: int, end_offset: int) -> Sequence[int]:
        """Return the offsets of the open and expired halves of a part of the log, ascending."""
        expired = self._expired_offsets.between(first_offset, end_offset)
        open_halves = self.open.between(first_offset, end_offset)
        return sorted([*open_halves, *expired]) if open_halves else expired

    def some_from(self, state: State | None, first_offset: int, count: int) -> list[int]:
        """Return the offsets of up to `count` halves from an offset on, ascending; of both states if None."""
        found = list[int]()
        if state in (None, State.OPEN):
            found += self.open.some_from(first_offset, count)
        if state in (None, State.EXPIRED):
            found += self._expired_offsets.some_from(first_offset, count)
        return sorted(found)[:count]

    def state(self, half_offset: int) -> State | None:
        """Return a half's state; None if nothing is remembered of it."""
        if half_offset in self.open:
            return State.OPEN
        ended = self.ended(half_offset)
        return None if ended is None else ended.state

    def ended(self, half_offset: int) -> Ended | None:
        """Return how a half ended; None if it did not, or is not remembered."""
        expired = self.expiry(half_offset)
        if expired is not None:
            return Ended(State.EXPIRED, expired.ended_ms, expired.ended_offset, expired.topic)
        row = self._ended.get(half_offset)
        return None if row is None else Ended(State(row[0]), *row[1:])

    def asked(self, half_offset: int, check_count: int, next_check_ms: int) -> OpenHalf | None:
        """Note that a half was asked about; return what is known of it now, None if it is not open."""
        waiting = self.waiting(half_offset)
        if waiting is not None:
            # A check by hand, before its time, must not make the ones of the schedule come earlier.
            next_check_ms = max(waiting.next_check_ms, next_check_ms)
            waiting = waiting._replace(check_count=check_count, next_check_ms=next_check_ms)
            self.open.put(half_offset, tuple(waiting))
        return waiting

    def end(self, half_offset: int, outcome: State, ended_ms: int, ended_offset: int) -> None:
        """End a half, or resolve an expired one; the caller has asked the table of `txn.states`."""
        assert half_offset not in self._ended, "a half ends twice"
        assert outcome is not State.OPEN, "no end leaves a half open"
        waiting: OpenHalf | Expired = _LOST
        if (row := self.open.pop(half_offset)) is not None:
            waiting = OpenHalf(*row)
        elif (row := self.expired.pop(half_offset)) is not None:
            assert outcome is not State.EXPIRED, "a half expires twice"
            waiting = Expired(*row)
            self._expired_offsets.remove(half_offset)
        if outcome is State.EXPIRED:
            kept = (waiting.stored_ms, waiting.check_count, waiting.topic)
            self.expired.put(half_offset, (ended_ms, ended_offset, *kept, ()))
            self._expired_offsets.add(half_offset)
            self.waiting_by_topic[waiting.topic] += waiting is _LOST
        else:
            self.waiting_by_topic[waiting.topic] -= waiting is not _LOST
            self._ended.put(half_offset, (outcome.value, ended_ms, ended_offset, waiting.topic))

    def takes_late(self, half_offset: int) -> bool:
        """Return whether a producer's end of what has expired is still to be noted."""
        expired = self.expiry(half_offset)
        return expired is not None and len(expired.late) < LATE_ENDS_MAX

    def came_late(self, half_offset: int, asked_for: str, asked_ms: int) -> None:
        """Note that a producer has ended, too late, what has expired."""
        expired = self.expiry(half_offset)
        if expired is not None:
            late = (*expired.late, (asked_for, asked_ms))
            self.expired.put(half_offset, tuple(expired._replace(late=late)))

    def forget(self, published_offset: int, kept_max: int) -> None:
        """Drop the oldest ends beyond `kept_max` that are indexed: up to `published_offset`."""
        while len(self._ended) > kept_max and (first := self._ended.first()) is not None:
            half_offset, (_, _, ended_offset, _) = first
            if ended_offset > published_offset:
                return  # neither the index has it yet nor anyone else: a second end would find the half open
            self._ended.pop(half_offset)

    def freeze(self) -> Any:
        """Return what a snapshot keeps: open halves, and the ends in their order."""
        tables = {"open": self.open, "ended": self._ended, "expired": self.expired}
        return {name: table.freeze(_row) for name, table in tables.items()}

    def thaw(self, frozen: Any) -> None:
        """Take a snapshot's part over; the tables are empty before."""
        assert not any(map(len, (self.open, self.expired, self._ended))), "a snapshot meets halves"
        for half_offset, *waiting in frozen["open"]:
            self.open.put(half_offset, tuple(OpenHalf(*waiting)))
        for half_offset, *ended in frozen["ended"]:
            self._ended.put(half_offset, tuple(Ended(*ended)))
        for half_offset, *fields in frozen["expired"]:
            expired = Expired(*fields)
            late = tuple((asked_for, ms) for asked_for, ms in expired.late)
            self.expired.put(half_offset, tuple(expired._replace(late=late)))
        self._expired_offsets = SortedOffsets(self.expired)
        self.waiting_by_topic.update(OpenHalf(*row).topic for _, row in self.open.items())
        self.waiting_by_topic.update(Expired(*row).topic for _, row in self.expired.items())


def _row(half_offset: int, fields: Row) -> Row:
    return half_offset, *fields
