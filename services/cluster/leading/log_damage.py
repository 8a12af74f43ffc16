"""The actions of a leader if other nodes cannot read some records of the shared log.

    another node   cannot read on at a record --> reports it, with the reason, in the shared log (`holdings`)
                   repeatedly requests a copy that reaches past it (`services.cluster.copies.copying`)
    the leader     reads the record again, and its own record before it, and compares both with the records
                   that it has applied (`sharedlog.faults`)

    state    entered when                                        the leader
    WHOLE    the leader finds all reported records sound         acknowledges: the other node's disk is bad
    HELD     one is broken, and no node has the later records    refuses all answers, and takes a checkpoint
    COPIED   one is broken, and another node has the later ones  acknowledges, and reports the record

Rules
1. The leader checks each report once. Answers are refused only after the leader's check has confirmed the
   damage, so a node with a bad disk does not stop the cluster.
2. In HELD, new records exist only on this node, and in the engine after a record that no other node can read.
   Therefore, clients get no acknowledgement in this state.
3. A node has the later records once it announces a checkpoint past the broken record, or while it reports
   over HTTP an end that is at least the leader's end at the time when the fault was found.
4. A node that has fetched its copy announces its holding without the report, and no longer waits.

Cost: one read of the engine for each record that a node reports. Weak spot: if no other node is left to fetch
a copy, answers are refused until the reporting node is forgotten (`tidewheel cluster forget`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from sharedlog.holdings import Holding, Unreadable

WORDS_MAX: Final = 1_000
"""The maximum number of checked reports that the leader remembers."""


class State(StrEnum):
    """The state of the shared log according to the leader."""

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
    """The broken records that the leader `me` has found since it began to lead."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.state = State.WHOLE
        self.faults: dict[int, str] = {}
        """The faults of the broken records at which nodes wait, by number of the record."""
        self._ends: dict[int, int] = {}
        """The end of the leader's history at the time when a fault was found, by number of the record."""
        self._looked: dict[UnreadableReport, None] = {}

    def unchecked_reports(self, unreadable: Mapping[str, Unreadable]) -> list[UnreadableReport]:
        """Return the reports of other nodes that the leader has not checked yet."""
        words = (UnreadableReport(node, where) for node, where in unreadable.items() if node != self._me)
        return [one for one in words if one not in self._looked]

    def record_check(self, word: UnreadableReport, fault: str, end: int) -> None:
        """Record the result of a check: the fault, or "" for a sound record, and the end of the history."""
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
        """Update and return the state, from the reports, the holdings and the recently reported ends."""
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
        """Return whether this node needs a new checkpoint, from which other nodes can read on."""
        return own is None or own.end is None or own.next_record <= max(self.faults, default=-1)

    def sentences(self) -> list[str]:
        """Return a sentence for `cluster status` about each fault of the log."""
        return [f"the shared log is damaged: {fault} {_THEN[self.state]}" for fault in self.faults.values()]

    def _is_copied(self, record: int, held: Mapping[str, Holding], ends: Mapping[str, int]) -> bool:
        has_copy = any(
            node != self._me and one.end is not None and one.next_record > record
            for node, one in held.items()
        )
        return has_copy or any(node != self._me and end >= self._ends[record] for node, end in ends.items())
