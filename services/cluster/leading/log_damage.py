"""The actions of a leader when other nodes cannot read some records of the shared log.

    another node   cannot read a record --> reports it, with the reason, in the shared log (`holdings`)
                   repeatedly requests a copy that extends past it (`services.cluster.copies.copying`)
    the leader     reads the record again, and its own record before it, and compares both with the records
                   that it has applied (`sharedlog.faults`)

    state    entered when                                        the leader
    WHOLE    the leader finds all reported records valid         acknowledges writes: the other disk is bad
    HELD     one is damaged; no other node has later records     refuses all answers, takes a checkpoint
    COPIED   one is damaged; another node has later records      acknowledges writes, reports the record

Rules
1. The leader checks each report once. The leader refuses answers only after its own check has confirmed the
   damage, so a node with a bad disk does not stop the cluster.
2. In the state HELD, new records exist only on the leader, and in the engine after a record that no other
   node can read. The leader sends no acknowledgements in the state HELD, because the loss of the leader would
   lose these records.
3. A node has the records after a damaged record once the node announces a checkpoint past that record. A node
   is also considered to have these records while its reported log end is not lower than the leader's end at
   the time when the fault was found.
4. A node that has fetched another node's copy announces its holding again, without the report of the
   unreadable record.

Cost: one read from the engine for each reported record. Weak spot: if no other node can fetch a copy, the
leader refuses answers until an operator removes the reporting node (`tidewheel cluster forget`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from sharedlog.holdings import Holding, Unreadable

WORDS_MAX: Final = 1_000
"""The maximum number of checked reports that the leader keeps in memory."""


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
    """A report: the name of a node, and the record that the node cannot read."""

    node: str
    where: Unreadable


class LogDamage:
    """The damaged records that the leader `me` has found since its election."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.state = State.WHOLE
        self.faults: dict[int, str] = {}
        """The fault of each damaged record that a node has reported, by record number."""
        self._ends: dict[int, int] = {}
        """The end of the leader's log at the time when each fault was found, by record number."""
        self._looked: dict[UnreadableReport, None] = {}

    def unchecked_reports(self, unreadable: Mapping[str, Unreadable]) -> list[UnreadableReport]:
        """Return the reports of other nodes that the leader has not checked yet."""
        words = (UnreadableReport(node, where) for node, where in unreadable.items() if node != self._me)
        return [one for one in words if one not in self._looked]

    def record_check(self, word: UnreadableReport, fault: str, end: int) -> None:
        """Record a check's result: the fault, or "" for a valid record, and the end of the leader's log."""
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
        """Update and return the state, based on the reports, the holdings and the recently reported ends."""
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
        """Return whether this node has no announced checkpoint after the last damaged record."""
        return own is None or own.end is None or own.next_record <= max(self.faults, default=-1)

    def sentences(self) -> list[str]:
        """Return a sentence about each fault of the shared log for the output of `cluster status`."""
        return [f"the shared log is damaged: {fault} {_THEN[self.state]}" for fault in self.faults.values()]

    def _is_copied(self, record: int, held: Mapping[str, Holding], ends: Mapping[str, int]) -> bool:
        has_copy = any(
            node != self._me and one.end is not None and one.next_record > record
            for node, one in held.items()
        )
        return has_copy or any(node != self._me and end >= self._ends[record] for node, end in ends.items())
