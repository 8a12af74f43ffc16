"""An oracle with the expected state of each transaction.

A transaction is identified by the offset of its half message. Each outcome is stored with the offset of its
record, so that a crash reverts exactly the outcomes whose records are lost. The state table below is
independent of the table in `txn.states`, and specifies the behavior that clients may expect.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from commitlog.log.recovery import Damage
from commitlog.records.message import Message
from services.broker.spine.values import Resolution
from tests.simulation.timer_oracle import Oracle
from txn.states import State

REFUSED: Final = "refused"
DONE: Final = "done"
AGAIN: Final = "again"
_COMMIT, _ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK

PROMISED: Final = {
    # The keys consist of the state, the resolution, and whether an operator has requested it.
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
    """The state after an outcome of a transaction, and the offset of the outcome record."""

    state: State
    offset: int


@dataclass(slots=True)
class Transaction:
    """A transaction and its outcomes: an expiry, a commit or rollback, or an expiry and then a resolution."""

    offset: int
    transaction_id: str
    message: Message = field(repr=False)
    sent_ms: int
    verb: tuple[str, str, int] | None = None
    stored_ms: int = -1
    """The store time of the half message record, or -1 if the record has not been read yet."""
    check_count: int = 0
    """The number of check-back records in the log."""
    ends: list[End] = field(default_factory=list)
    late: list[tuple[int, str]] = field(default_factory=list)
    """The outcomes that producers requested after the expiry, with the offsets of their records."""
    seen: list[End] = field(default_factory=list)
    """The outcomes whose records were found in the log."""

    @property
    def state(self) -> State:
        return self.ends[-1].state if self.ends else State.OPEN

    @property
    def is_waiting(self) -> bool:
        """True if retention must keep the half message."""
        return self.state in (State.OPEN, State.EXPIRED)

    def end(self, state: State, offset: int) -> None:
        assert self.state in (State.OPEN, State.EXPIRED), f"{self} ends twice: {state}"
        assert not (self.state is State.EXPIRED and state is State.EXPIRED), f"{self} expires twice"
        self.ends.append(End(state, offset))

    def found(self, state: State, offset: int) -> None:
        """Verify an outcome record that was found in the log."""
        assert len(self.seen) < len(self.ends), f"{state} at {offset}, yet {self}"
        expected = self.ends[len(self.seen)]
        assert expected == End(state, offset), f"{state} at {offset}, yet {self}"
        self.seen.append(expected)


@dataclass(slots=True)
class TransactionOracle(Oracle):
    """The timer oracle, extended with all transactions except those reverted by a crash."""

    transactions: dict[int, Transaction] = field(default_factory=dict)

    def crash(self, end_offset: int, gaps: list[Damage]) -> None:
        """Revert all events whose records are after the end of the log or in a gap."""
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
        """Return the offsets of the durable half messages in a state."""
        return {at for at, one in self.transactions.items() if one.stored_ms >= 0 and one.state is state}

    def visible_ids(self) -> Counter[str]:
        """Count how often consumers receive the message of each transaction, keyed by message ID."""
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
