"""A shared log in memory, which keeps what it accepts and else does what engines do.

It answers late, twice or never, and has records land late or twice. Like Kafka it accepts whatever comes, so
that everything rests on the order in its log. `lose_end` breaks it, as a forced unclean election does.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple


class Answer(NamedTuple):
    """What an append was told; `offset` is None where a success has none, `is_ok` False after a time-out."""

    is_ok: bool
    offset: int | None = None


TIMED_OUT: Final = Answer(False)


class MemoryEngine:
    """The records of one log; `random` decides what becomes of an append."""

    def __init__(self, random: Random) -> None:
        self.records: list[bytes] = []
        self.first_offset = 0
        self.is_short = False
        """Whether the log has lost its end."""
        self._random = random
        self._late: list[bytes] = []

    @property
    def end_offset(self) -> int:
        """The offset behind the last record."""
        return len(self.records)

    def append(self, stored: bytes) -> Answer:
        """Let a record land now, later, twice or never."""
        random = self._random
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

    def trim(self, offset: int) -> None:
        """Let go of the records before an offset."""
        self.first_offset = max(self.first_offset, offset)

    def lose_end(self) -> None:
        """Lose some of the newest records, which were accepted."""
        del self.records[max(self.first_offset, self.end_offset - self._random.randrange(1, 6)) :]
        self.is_short = True

    def _land(self, stored: bytes) -> int:
        self.records.append(stored)
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
