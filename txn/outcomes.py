"""Which halves are open and how the others ended, by the half's place in the log.

What was committed or rolled back is remembered for a while; what expired until somebody sees to it.

An end is known from the moment its record is appended, so a second end in the same turn meets it; whoever
is told of it waits until that record is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from txn.states import Event, State, after


@dataclass(slots=True)
class OpenHalf:
    """A half that waits for its end: when it was stored, how often a producer was asked, when again."""

    stored_ms: int
    next_check_ms: int
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
        self.expired: dict[int, Ended] = {}
        self._ended: dict[int, Ended] = {}

    def stored(self, half_offset: int, stored_ms: int, next_check_ms: int) -> None:
        """A half is durable."""
        assert half_offset not in self._ended
        self.open[half_offset] = OpenHalf(stored_ms, next_check_ms)

    def state(self, half_offset: int) -> State | None:
        """The half's state; None if no half is known there."""
        if half_offset in self.open:
            return State.OPEN
        ended = self._ended.get(half_offset) or self.expired.get(half_offset)
        return None if ended is None else ended.state

    def ended(self, half_offset: int) -> Ended:
        """How a half ended; KeyError if it did not."""
        return self._ended.get(half_offset) or self.expired[half_offset]

    def forget(self, before_ms: int) -> None:
        """Drops what was committed or rolled back before `before_ms`; its half is unknown from then on."""
        while self._ended:
            half_offset, ended = next(iter(self._ended.items()))
            if ended.ended_ms >= before_ms:
                return
            del self._ended[half_offset]

    def freeze(self) -> Any:
        """What a snapshot keeps: open halves, and the ends in their order."""
        waiting = [
            [offset, one.stored_ms, one.next_check_ms, one.check_count] for offset, one in self.open.items()
        ]
        ended = [[offset, one.state.value, one.ended_ms] for offset, one in self._ended.items()]
        expired = [[offset, one.ended_ms] for offset, one in self.expired.items()]
        return {"open": waiting, "ended": ended, "expired": expired}

    def thaw(self, frozen: Any) -> None:
        """Takes a snapshot's part over."""
        for half_offset, stored_ms, next_check_ms, check_count in frozen["open"]:
            self.open[half_offset] = OpenHalf(stored_ms, next_check_ms, check_count)
        for half_offset, state, ended_ms in frozen["ended"]:
            self._ended[half_offset] = Ended(State(state), ended_ms, 0)
        for half_offset, ended_ms in frozen["expired"]:
            self.expired[half_offset] = Ended(State.EXPIRED, ended_ms, 0)

    def end(self, half_offset: int, event: Event, now_ms: int, durable_at: int) -> None:
        """An open half ends; the caller has checked that the table allows it."""
        outcome = after(State.OPEN, event)
        assert outcome is not None
        self.open.pop(half_offset, None)
        ends = self.expired if outcome is State.EXPIRED else self._ended
        ends[half_offset] = Ended(outcome, now_ms, durable_at)
