"""States of open and expired half messages, and the outcomes of recently ended ones.

An expired half message is kept until an operator resolves it. For committed or rolled-back half messages,
memory holds only the newest `ended_halves_max` outcomes (`commitlog.applied_limits`). The key index finds
older ones in the log (`services.broker.halves.transactions`). Memory and snapshot size thus do not depend on
the number of ended half messages. Each outcome uses about 175 bytes. With a limit of 100,000, outcomes occupy
17 MiB in memory and in each checkpoint. Finding an older outcome requires a key index lookup and a read, but
only if a half message is ended twice.

An outcome is added to the table when its record is appended, so that a second end request is detected even
before the flush. A response that depends on an outcome waits until the outcome record is durable. An outcome
is dropped only after its record is durable, because the key index does not contain it before then.

Open half messages are ordered by offset, and thus by store time. A snapshot captures the tables without
copying them (`commitlog.snapshots.table`).

    stored --> open --> expired --> resolved by an operator
                 |                         |
                 +-- committed or rolled back: ended --> dropped from memory, still in the log

A half message is in at most one of the three tables. Expired half messages are ordered by expiry time, and
their offsets are kept in a `SortedOffsets`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from commitlog.snapshots.table import Row, Table
from txn.sorted_offsets import SortedOffsets
from txn.states import State


class OpenHalf(NamedTuple):
    """An open half message: store time, next check-back, and number of check-backs.

    `topic` and `id_crc` come from the message, so that its record is read only when a producer is available.
    """

    stored_ms: int
    next_check_ms: int
    check_count: int = 0
    topic: str = ""
    id_crc: int = -1


class Ended(NamedTuple):
    """A half message's outcome, its end time, and the offset of its outcome record."""

    state: State
    ended_ms: int
    ended_offset: int
    topic: str = ""
    """Topic of the message, needed even after retention has deleted the half message."""

    @property
    def durable_at(self) -> int:
        """Offset up to which the log must be durable before a caller learns the outcome."""
        return self.ended_offset + 1


class Expired(NamedTuple):
    """An expired half message, and producers' subsequent attempts to end it."""

    ended_ms: int
    ended_offset: int
    stored_ms: int = 0
    check_count: int = 0
    topic: str = ""
    late: tuple[tuple[str, int], ...] = ()
    """Requested outcomes and times of the first `LATE_ENDS_MAX` late attempts."""


LATE_ENDS_MAX: Final = 10
_LOST: Final = OpenHalf(0, 0)
"""State of an ended half message whose own record is damaged."""


class Outcomes:
    """The open, expired, and recently ended half messages of a store."""

    def __init__(self) -> None:
        self.open: Table[int] = Table()
        """`OpenHalf` fields of each open half message, by offset."""
        self.expired: Table[int] = Table()
        """`Expired` fields of each expired half message, by offset."""
        self._expired_offsets = SortedOffsets()
        self._ended: Table[int] = Table()
        self.waiting_by_topic: Counter[str] = Counter()
        """Number of open and expired half messages by topic. "" stands for an unknown topic."""

    def open_half(self, half_offset: int, waiting: OpenHalf) -> None:
        """Add an open half message whose record is durable."""
        assert half_offset not in self._ended, "a half comes after its end"
        assert half_offset not in self.expired, "a half comes after its expiry"
        self.open.put(half_offset, tuple(waiting))
        self.waiting_by_topic[waiting.topic] += 1

    def waiting(self, half_offset: int) -> OpenHalf | None:
        """Return the `OpenHalf` of a half message, or None if it is not open."""
        row = self.open.get(half_offset)
        return None if row is None else OpenHalf(*row)

    def expiry(self, half_offset: int) -> Expired | None:
        """Return the `Expired` of a half message, or None if it has not expired."""
        row = self.expired.get(half_offset)
        return None if row is None else Expired(*row)

    def oldest_ms(self) -> int | None:
        """Return the store time of the oldest open half message in milliseconds, or None."""
        first = self.open.first()
        return None if first is None else OpenHalf(*first[1]).stored_ms

    def between(self, first_offset: int, end_offset: int) -> Sequence[int]:
        """Return the offsets of open and expired half messages in a log range, in ascending order."""
        expired = self._expired_offsets.between(first_offset, end_offset)
        open_halves = self.open.between(first_offset, end_offset)
        return sorted([*open_halves, *expired]) if open_halves else expired

    def some_from(self, state: State | None, first_offset: int, count: int) -> list[int]:
        """Return up to `count` sorted offsets of half messages in `state`, starting at `first_offset`.

        If `state` is None, both open and expired half messages are returned.
        """
        found = list[int]()
        if state in (None, State.OPEN):
            found += self.open.some_from(first_offset, count)
        if state in (None, State.EXPIRED):
            found += self._expired_offsets.some_from(first_offset, count)
        return sorted(found)[:count]

    def state(self, half_offset: int) -> State | None:
        """Return the state of a half message, or None if it is unknown."""
        if half_offset in self.open:
            return State.OPEN
        ended = self.ended(half_offset)
        return None if ended is None else ended.state

    def ended(self, half_offset: int) -> Ended | None:
        """Return the outcome of a half message, or None if it has not ended or was dropped."""
        expired = self.expiry(half_offset)
        if expired is not None:
            return Ended(State.EXPIRED, expired.ended_ms, expired.ended_offset, expired.topic)
        row = self._ended.get(half_offset)
        return None if row is None else Ended(State(row[0]), *row[1:])

    def record_check_back(self, half_offset: int, check_count: int, next_check_ms: int) -> OpenHalf | None:
        """Record a check-back. Return the new state of the half message, or None if it is not open."""
        waiting = self.waiting(half_offset)
        if waiting is not None:
            # An early check-back that is triggered by an operator must not make the scheduled check-backs
            # earlier.
            next_check_ms = max(waiting.next_check_ms, next_check_ms)
            waiting = waiting._replace(check_count=check_count, next_check_ms=next_check_ms)
            self.open.put(half_offset, tuple(waiting))
        return waiting

    def end(self, half_offset: int, outcome: State, ended_ms: int, ended_offset: int) -> None:
        """End an open half message or resolve an expired one, as permitted by the table in `txn.states`."""
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

    def accepts_late_request(self, half_offset: int) -> bool:
        """Return whether a late attempt to end a half message must be recorded."""
        expired = self.expiry(half_offset)
        return expired is not None and len(expired.late) < LATE_ENDS_MAX

    def record_late_request(self, half_offset: int, asked_for: str, asked_ms: int) -> None:
        """Record that a producer tried to end an expired half message."""
        expired = self.expiry(half_offset)
        if expired is not None:
            late = (*expired.late, (asked_for, asked_ms))
            self.expired.put(half_offset, tuple(expired._replace(late=late)))

    def forget(self, published_offset: int, kept_max: int) -> None:
        """Drop the oldest outcomes until at most `kept_max` remain.

        Outcomes after `published_offset` are kept, because the key index does not contain them yet.
        """
        while len(self._ended) > kept_max and (first := self._ended.first()) is not None:
            half_offset, (_, _, ended_offset, _) = first
            if ended_offset > published_offset:
                # The key index does not contain this outcome yet. If the outcome were dropped, a second
                # attempt to end the half message would treat the half message as open.
                return
            self._ended.pop(half_offset)

    def freeze(self) -> Any:
        """Return the rows of all three tables for a snapshot."""
        tables = {"open": self.open, "ended": self._ended, "expired": self.expired}
        return {name: table.freeze(_row) for name, table in tables.items()}

    def thaw(self, frozen: Any) -> None:
        """Restore the rows from a snapshot. The tables must be empty."""
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
