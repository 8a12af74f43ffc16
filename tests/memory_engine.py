"""A shared log in memory, which keeps what it accepts and else does what engines do.

It answers late, twice or never, and has records land late or twice. Like Kafka it accepts whatever comes, so
that everything rests on the order in its log; with a `head` it compares, as PostgreSQL does. `lose_end`
breaks it, as a forced unclean election does; `spoil` loses, doubles or changes one record, as a bad disk or
an operator's statement does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from sharedlog.engine import Head, Stored
from sharedlog.errors import Refused, Unknown


class Answer(NamedTuple):
    """What an append was told; `offset` is None where a success has none, `is_ok` False after a time-out."""

    is_ok: bool
    offset: int | None = None


TIMED_OUT: Final = Answer(False)


class MemoryEngine:
    """The records of one log; `random` decides what becomes of an append."""

    def __init__(self, random: Random, head: Head | None = None) -> None:
        self.records: list[bytes] = []
        self.first_offset = 0
        self.now_ms = 0
        self.is_away = False
        """Whether every call times out."""
        self.is_well = False
        """Whether nothing befalls calls any more."""
        self.is_dense = head is not None
        """Whether offsets leave no gap; a Kafka's may."""
        self._head = head
        """What the next record must follow; None: the engine does not compare."""
        self._taken_ms: list[int] = []
        self._heads: list[Head | None] = []
        """The head behind each record; None behind one of an append that goes on."""
        self.troubles: list[str] = []
        """What is wrong with its settings."""
        self.is_short = False
        """Whether the log has lost its end."""
        self.spoiled: dict[int, list[bytes]] = {}
        """What the engine returns at an offset instead of the record that it accepted there."""
        self._random = random
        self._late: list[bytes] = []

    @property
    def compares(self) -> bool:
        """Whether an append lands only behind the head that its writer names."""
        return self._head is not None

    @property
    def end_offset(self) -> int:
        """The offset behind the last record."""
        return len(self.records)

    def found(self, stored: bytes) -> None:
        """Begin with a record."""
        self._land(stored)

    def append(self, stored: bytes) -> Answer:
        """Let a record land now, later, twice or never."""
        random = self._random
        if self.is_well:
            return Answer(True, self._land(stored))
        if self._late and random.random() < 0.3:
            self._land(self._late.pop(random.randrange(len(self._late))))
        outcomes: list[tuple[float, Callable[[], Answer]]] = [
            (0.80, lambda: Answer(True, self._land(stored))),
            (0.84, lambda: Answer(True, self._twice(stored)[0])),
            (0.87, lambda: Answer(True, self._twice(stored)[1])),
            (0.91, lambda: self._without_offset(stored)),
            (0.94, lambda: self._in_silence(stored)),
            (0.97, lambda: self._later(stored)),
            (1.00, lambda: TIMED_OUT),
        ]
        chance = random.random()
        return next(outcome for until, outcome in outcomes if chance < until)()

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        """Append records as an engine of the port does (`sharedlog.engine`)."""
        if self.is_away:
            raise Unknown("The engine is away.")
        if self._head is not None:
            return self._append_compared(head, stored, following)
        offsets = []
        for one in stored:
            answer = self.append(one)
            if not answer.is_ok:
                raise Unknown("The engine did not answer.")
            offsets.append(answer.offset)
        first = offsets[0]
        is_known = first is not None and offsets == list(range(first, first + len(offsets)))
        return offsets[-1] if is_known else None

    def _append_compared(self, head: Head, stored: Sequence[bytes], following: Head) -> int:
        chance = 1.0 if self.is_well else self._random.random()
        if chance < 0.04:
            raise Unknown("The engine did not answer, and has taken nothing.")
        if head != self._head:
            raise Refused("Another node has written since.")
        self._head = None
        for one in stored[:-1]:
            self._land(one)
        self._head = following
        offset = self._land(stored[-1])
        if chance < 0.08:
            raise Unknown("The engine did not answer, and has taken the records.")
        return offset

    def note(self, stored: bytes) -> None:
        """Append a record whoever leads."""
        if self.is_away or not self.append(stored).is_ok:
            raise Unknown("The engine did not answer.")

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return some records from an offset on."""
        if self.is_away or (not self.is_well and self._random.random() < 0.02):
            raise Unknown("The engine did not answer.")
        until, found = self._random.randrange(1, 8), list[Stored]()
        for at in range(max(offset, self.first_offset), self.end_offset):
            found += [Stored(at, one, self._taken_ms[at]) for one in self.rows(at)]
            if len(found) >= until:
                break
        return found

    def rows(self, offset: int) -> list[bytes]:
        """Return what lies at an offset: one record, unless it is spoiled."""
        return self.spoiled.get(offset, [self.records[offset]])

    def spoil(self, offset: int, *rows: bytes) -> None:
        """Let these rows, none, one or more, lie at an offset from now on."""
        self.spoiled[offset] = list(rows)

    def bounds(self) -> tuple[int, int]:
        """Return the first offset that is left, and the one behind the last record."""
        if self.is_away:
            raise Unknown("The engine is away.")
        return self.first_offset, self.end_offset

    def trim(self, offset: int) -> None:
        """Let go of the records before an offset."""
        self.first_offset = max(self.first_offset, offset)

    def check_settings(self) -> list[str]:
        """Return what is wrong with its settings."""
        if self.is_away:
            raise Unknown("The engine is away.")
        return list(self.troubles)

    def lose_end(self) -> bool:
        """Lose some of the newest records, which were accepted; return whether writers are refused for that.

        What a writer has in hand is refused unless it names the head that is left: a BEAT moves none.
        """
        head = self._head
        end = max(self.first_offset, self.end_offset - self._random.randrange(1, 6))
        if self._head is not None:  # it compares, and loses appends as wholes
            end = max(1, end)
            while self._heads[end - 1] is None:
                end -= 1
            self._head = self._heads[end - 1]
        del self.records[end:], self._taken_ms[end:], self._heads[end:]
        self.spoiled = {at: rows for at, rows in self.spoiled.items() if at < end}
        self.is_short = True
        return head is None or head != self._head

    def _land(self, stored: bytes) -> int:
        self.records.append(stored)
        self._taken_ms.append(self.now_ms)
        self._heads.append(self._head)
        return self.end_offset - 1

    def _twice(self, stored: bytes) -> tuple[int, int]:
        return self._land(stored), self._land(stored)

    def _without_offset(self, stored: bytes) -> Answer:
        self._land(stored)
        return Answer(True)

    def _in_silence(self, stored: bytes) -> Answer:
        self._land(stored)
        return TIMED_OUT

    def _later(self, stored: bytes) -> Answer:
        self._late.append(stored)
        return TIMED_OUT
