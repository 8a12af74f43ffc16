"""What must be true of every transaction, as a dictionary that follows the log.

A transaction is known by the place of its half. Each end is noted with the offset of the record that says
it, so that a crash undoes exactly what the log does not hold any more. The table below is written out a
second time, apart from `txn.states`: here it is what the clients were promised.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from commitlog.message import Message
from commitlog.recovery import Damage
from services.broker.spine.values import Resolution
from tests.simulation.timer_oracle import Oracle
from txn.states import State

REFUSED: Final = "refused"
DONE: Final = "done"
AGAIN: Final = "again"
_COMMIT, _ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK

PROMISED: Final = {
    # state, how, by an operator
    (State.OPEN, _COMMIT, False): DONE,
    (State.OPEN, _ROLLBACK, False): DONE,
    (State.OPEN, _COMMIT, True): DONE,
    (State.OPEN, _ROLLBACK, True): DONE,
    (State.EXPIRED, _COMMIT, False): REFUSED,
    (State.EXPIRED, _ROLLBACK, False): REFUSED,
    (State.EXPIRED, _COMMIT, True): DONE,
    (State.EXPIRED, _ROLLBACK, True): DONE,
    (State.COMMITTED, _COMMIT, False): AGAIN,
    (State.COMMITTED, _ROLLBACK, False): REFUSED,
    (State.COMMITTED, _COMMIT, True): AGAIN,
    (State.COMMITTED, _ROLLBACK, True): REFUSED,
    (State.ROLLED_BACK, _COMMIT, False): REFUSED,
    (State.ROLLED_BACK, _ROLLBACK, False): AGAIN,
    (State.ROLLED_BACK, _COMMIT, True): REFUSED,
    (State.ROLLED_BACK, _ROLLBACK, True): AGAIN,
}


class End(NamedTuple):
    """What a transaction came to, and the record that says so."""

    state: State
    offset: int


@dataclass(slots=True)
class Transaction:
    """One half and its ends: at most an expiry and, after it or instead of it, a commit or a rollback."""

    offset: int
    transaction_id: str
    message: Message = field(repr=False)
    sent_ms: int
    verb: tuple[str, str, int] | None = None
    stored_ms: int = -1
    """When the log says it was stored; -1 until that was read."""
    check_count: int = 0
    """The checks that the log has counted."""
    ends: list[End] = field(default_factory=list)
    late: list[tuple[int, str]] = field(default_factory=list)
    """What a producer asked for after the expiry, by the offset of the record that notes it."""
    seen: list[End] = field(default_factory=list)
    """The ends whose records were found in the log."""

    @property
    def state(self) -> State:
        return self.ends[-1].state if self.ends else State.OPEN

    @property
    def is_waiting(self) -> bool:
        """Whether retention must keep the half."""
        return self.state in (State.OPEN, State.EXPIRED)

    def end(self, state: State, offset: int) -> None:
        assert self.state in (State.OPEN, State.EXPIRED), f"{self} ends twice: {state}"
        assert not (self.state is State.EXPIRED and state is State.EXPIRED), f"{self} expires twice"
        self.ends.append(End(state, offset))

    def found(self, state: State, offset: int) -> None:
        """The log says that it ended."""
        assert len(self.seen) < len(self.ends), f"{state} at {offset}, yet {self}"
        expected = self.ends[len(self.seen)]
        assert expected == End(state, offset), f"{state} at {offset}, yet {self}"
        self.seen.append(expected)


@dataclass(slots=True)
class TransactionOracle(Oracle):
    """The oracle of timers, and all transactions there ever were, less what a crash undid."""

    transactions: dict[int, Transaction] = field(default_factory=dict)

    def crash(self, end_offset: int, gaps: list[Damage]) -> None:
        """Undoes everything that the log does not hold any more: behind its end, and in its gaps."""
        Oracle.crash(self, end_offset, gaps)

        def is_gone(offset: int) -> bool:
            return offset >= end_offset or any(gap.first_offset <= offset < gap.end_offset for gap in gaps)

        for offset in [offset for offset in self.transactions if is_gone(offset)]:
            assert self.transactions[offset].stored_ms < 0, "a half that was durable is gone"
            del self.transactions[offset]
        for one in self.transactions.values():
            one.ends = [end for end in one.ends if not is_gone(end.offset)]
            one.late = [late for late in one.late if not is_gone(late[0])]
            assert len(one.ends) >= len(one.seen), f"an end that was durable is gone: {one}"

    def in_state(self, state: State) -> set[int]:
        """The halves that are durable and in a state."""
        return {at for at, one in self.transactions.items() if one.stored_ms >= 0 and one.state is state}

    def visible_ids(self) -> Counter[str]:
        """The ids of the transactions whose messages consumers see, each as often as they see it."""
        ids = {one.message.message_id for one in self.transactions.values()}
        committed = self.in_state(State.COMMITTED)
        plain = [
            one.message.message_id
            for at, one in self.transactions.items()
            if at in committed and one.message.delivery_ms is None
        ]
        timed = [
            timer.message_id
            for timer in self.timers.values()
            if timer.message_id in ids and timer.ended in ("DELIVERED", "FIRED")
        ]
        return Counter(plain + timed)
