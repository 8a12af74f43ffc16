"""Which halves are open and how the others ended, by the half's place in the log.

An end is known from the moment its record is appended, so a second end in the same turn meets it; whoever
is told of it waits until that record is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from txn.states import Event, State, after


@dataclass(slots=True)
class OpenHalf:
    """A half that waits for its end: when it was stored, and how often a producer was asked."""

    stored_ms: int
    check_count: int = 0


class Ended(NamedTuple):
    """How and when a half ended, and the log offset behind the record that says so."""

    state: State
    ended_ms: int
    durable_at: int


class Outcomes:
    """Every half that this store knows."""

    def __init__(self) -> None:
        self.open: dict[int, OpenHalf] = {}
        self._ended: dict[int, Ended] = {}

    def stored(self, half_offset: int, stored_ms: int) -> None:
        """A half is durable."""
        assert half_offset not in self._ended
        self.open[half_offset] = OpenHalf(stored_ms)

    def state(self, half_offset: int) -> State | None:
        """The half's state; None if no half is known there."""
        if half_offset in self.open:
            return State.OPEN
        ended = self._ended.get(half_offset)
        return None if ended is None else ended.state

    def ended(self, half_offset: int) -> Ended:
        """How a half ended; KeyError if it did not."""
        return self._ended[half_offset]

    def end(self, half_offset: int, event: Event, now_ms: int, durable_at: int) -> None:
        """An open half ends; the caller has checked that the table allows it."""
        outcome = after(State.OPEN, event)
        assert outcome is not None
        self.open.pop(half_offset, None)
        self._ended[half_offset] = Ended(outcome, now_ms, durable_at)
