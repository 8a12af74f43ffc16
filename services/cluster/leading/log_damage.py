"""The leader's handling of shared log records that other nodes cannot read.

A node that cannot read a record reports the record and the reason in the shared log (`holdings`), and
repeatedly requests a copy that extends past the record (`services.cluster.copies.copying`). The leader then
rereads the record and the preceding record, and compares both with the records that it has applied
(`sharedlog.faults`).

    state    condition                                           action of the leader
    WHOLE    all reported records are valid on the leader        acknowledges writes: the other disk is bad
    HELD     one is damaged; no other node has later records     withholds all answers, takes a checkpoint
    COPIED   one is damaged; another node has later records      acknowledges writes, reports the record

Rules
1. The leader checks each report once. The leader withholds answers only after its own check has confirmed the
   damage, so a node with a bad disk does not stop the cluster.
2. In the state HELD, new records exist only on the leader and in the engine, where they follow a record that
   no other node can read. The leader sends no acknowledgements in this state, because the new records would
   be lost if the leader failed.
3. A node is considered to have the records after a damaged record once it has announced a checkpoint past
   that record. A node is also considered to have these records as long as the log end that it reports is not
   lower than the end that the leader's log had when the fault was found.
4. After fetching another node's copy, a node announces its holding again without the report of the unreadable
   record.

Cost: each reported record requires one engine read. Weak spot: if no other node can fetch a copy, the leader
withholds answers until an operator removes the reporting node (`tidewheel cluster forget`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from sharedlog.holdings import Holding, Unreadable

WORDS_MAX: Final = 1_000
"""The maximum number of checked reports to keep in memory."""


class State(StrEnum):
    """The state of the shared log, as determined by the leader."""

    WHOLE = "whole"
    HELD = "held"
    COPIED = "copied"


_THEN: Final = {
    State.HELD: "Nothing is acknowledged until another node has a copy of what follows.",
    State.COPIED: "Another node has what follows; one cannot read on yet.",
}


class UnreadableReport(NamedTuple):
    """A node's report that it cannot read a record."""

    node: str
    where: Unreadable


class LogDamage:
    """The damaged records that the leader `me` has detected since its election."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.state = State.WHOLE
        self.faults: dict[int, str] = {}
        """The fault in each damaged record that a node has reported, keyed by shared log offset."""
        self._ends: dict[int, int] = {}
        """The end of the leader's log when each fault was found, keyed by shared log offset."""
        self._looked: dict[UnreadableReport, None] = {}

    def unchecked_reports(self, unreadable: Mapping[str, Unreadable]) -> list[UnreadableReport]:
        """Return the reports of other nodes that the leader has not checked yet."""
        words = (UnreadableReport(node, where) for node, where in unreadable.items() if node != self._me)
        return [one for one in words if one not in self._looked]

    def record_check(self, word: UnreadableReport, fault: str, end: int) -> None:
        """Record the fault found by a check, or "" if it found none, and the end of the leader's log."""
        self._looked[word] = None
        while len(self._looked) > WORDS_MAX:
            del self._looked[next(iter(self._looked))]
        record = word.where.record
        if fault and record not in self.faults:
            self.faults[record], self._ends[record] = fault, end

    def update_state(
        self,
        unreadable: Mapping[str, Unreadable],
        held: Mapping[str, Holding],
        ends: Mapping[str, int],
    ) -> State:
        """Update and return the state, given the reports, the holdings and the recently reported log ends."""
        waits = {where.record for node, where in unreadable.items() if node != self._me}
        self.faults = {record: fault for record, fault in self.faults.items() if record in waits}
        self._ends = {record: end for record, end in self._ends.items() if record in waits}
        self._looked = {word: None for word in self._looked if unreadable.get(word.node) == word.where}
        ends = {node: end for node, end in ends.items() if node not in unreadable}
        if not self.faults:
            self.state = State.WHOLE
        elif all(self._is_copied(record, held, ends) for record in self.faults):
            self.state = State.COPIED
        else:
            self.state = State.HELD
        return self.state

    def needs_checkpoint(self, own: Holding | None) -> bool:
        """Return whether this node has yet to announce a checkpoint past the last damaged record."""
        return own is None or own.end is None or own.next_record <= max(self.faults, default=-1)

    def sentences(self) -> list[str]:
        """Return one sentence per shared log fault, for the output of `cluster status`."""
        return [f"the shared log is damaged: {fault} {_THEN[self.state]}" for fault in self.faults.values()]

    def _is_copied(self, record: int, held: Mapping[str, Holding], ends: Mapping[str, int]) -> bool:
        has_copy = any(
            node != self._me and one.end is not None and one.next_record > record
            for node, one in held.items()
        )
        return has_copy or any(node != self._me and end >= self._ends[record] for node, end in ends.items())
