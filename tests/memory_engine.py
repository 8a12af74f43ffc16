"""Implements a shared log engine in memory that simulates the failures of real engines.

An append may time out, and a record may be appended late or twice. Without a `head`, the engine accepts all
records, as Kafka does, so that the order of the records in the log determines which of them are valid. With a
`head`, the engine compares heads, as PostgreSQL does. Accepted records are lost or changed only by `lose_end`
and `spoil`. `lose_end` simulates a forced unclean leader election. `spoil` loses, duplicates, or changes a
record, as a bad disk or an operator's SQL statement might.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from sharedlog.engine import Head, Stored
from sharedlog.errors import EngineRefused, EngineUnavailable


class Answer(NamedTuple):
    """The response to an append, with the offset if it is known. After a timeout, `is_ok` is false."""

    is_ok: bool
    offset: int | None = None


TIMED_OUT: Final = Answer(False)


class MemoryEngine:
    """An engine that stores a single log. `random` determines the result of each append."""

    def __init__(self, random: Random, head: Head | None = None) -> None:
        self.records: list[bytes] = []
        self.first_offset = 0
        self.now_ms = 0
        self.is_away = False
        """True if every call times out."""
        self.is_well = False
        """True if all calls succeed."""
        self.is_dense = head is not None
        """True if offsets are contiguous."""
        self._head = head
        """The head that the next append must specify, or None if the engine does not compare heads."""
        self._taken_ms: list[int] = []
        self._heads: list[Head | None] = []
        """The head after each record, or None if further records of the same append follow."""
        self.troubles: list[str] = []
        """The messages that `check_settings` returns."""
        self.is_short = False
        """True if the end of the log was lost."""
        self.spoiled: dict[int, list[bytes]] = {}
        """The rows that the engine returns instead of the accepted record, keyed by offset."""
        self._random = random
        self._late: list[bytes] = []

    @property
    def compares(self) -> bool:
        """True if an append succeeds only if the head equals the head specified by the writer."""
        return self._head is not None

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return len(self.records)

    def create_log(self, stored: bytes) -> None:
        """Append the first record of the log."""
        self._land(stored)

    def append(self, stored: bytes) -> Answer:
        """Append a record immediately, later, twice, or never."""
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
        """Append records as specified by the engine interface (`sharedlog.engine`)."""
        if self.is_away:
            raise EngineUnavailable("The engine is away.")
        if self._head is not None:
            return self._append_compared(head, stored, following)
        offsets = []
        for one in stored:
            answer = self.append(one)
            if not answer.is_ok:
                raise EngineUnavailable("The engine did not answer.")
            offsets.append(answer.offset)
        first = offsets[0]
        is_known = first is not None and offsets == list(range(first, first + len(offsets)))
        return offsets[-1] if is_known else None

    def _append_compared(self, head: Head, stored: Sequence[bytes], following: Head) -> int:
        chance = 1.0 if self.is_well else self._random.random()
        if chance < 0.04:
            raise EngineUnavailable("The engine did not answer, and has taken nothing.")
        if head != self._head:
            raise EngineRefused("Another node has written since.")
        self._head = None
        for one in stored[:-1]:
            self._land(one)
        self._head = following
        offset = self._land(stored[-1])
        if chance < 0.08:
            raise EngineUnavailable("The engine did not answer, and has taken the records.")
        return offset

    def append_unchecked(self, stored: bytes) -> None:
        """Append a record without comparing the head."""
        if self.is_away or not self.append(stored).is_ok:
            raise EngineUnavailable("The engine did not answer.")

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        """Return a random number of records, starting at an offset."""
        if self.is_away or (not self.is_well and self._random.random() < 0.02):
            raise EngineUnavailable("The engine did not answer.")
        until, found = self._random.randrange(1, 8), list[Stored]()
        for at in range(max(offset, self.first_offset), self.end_offset):
            found += [Stored(at, one, self._taken_ms[at]) for one in self.rows(at)]
            if len(found) >= until:
                break
        return found

    def rows(self, offset: int) -> list[bytes]:
        """Return the rows at an offset. Unless the record is spoiled, there is exactly one row."""
        return self.spoiled.get(offset, [self.records[offset]])

    def spoil(self, offset: int, *rows: bytes) -> None:
        """Replace the record at an offset with the given rows, of which there may be none."""
        self.spoiled[offset] = list(rows)

    def bounds(self) -> tuple[int, int]:
        """Return the offset of the first remaining record and the offset after the last record."""
        if self.is_away:
            raise EngineUnavailable("The engine is away.")
        return self.first_offset, self.end_offset

    def trim(self, offset: int) -> None:
        """Delete all records before an offset."""
        self.first_offset = max(self.first_offset, offset)

    def check_settings(self) -> list[str]:
        """Return the messages that the test has specified."""
        if self.is_away:
            raise EngineUnavailable("The engine is away.")
        return list(self.troubles)

    def lose_end(self) -> bool:
        """Lose some of the newest accepted records, and return whether later appends are refused as a result.

        If all lost records are of kinds that do not change the head, such as BEAT, later appends are not
        refused.
        """
        head = self._head
        end = max(self.first_offset, self.end_offset - self._random.randrange(1, 6))
        if self._head is not None:  # An engine that compares heads loses only whole appends.
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
