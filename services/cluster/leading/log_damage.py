"""Handles damaged records of the shared log that other nodes cannot read.

A node that cannot read a record reports it in the shared log (`holdings`). The node then repeatedly requests
a copy that extends past the record (`services.cluster.copies.copying`). The leader rereads the record and the
preceding record, and compares both with the records that it has applied (`sharedlog.faults`).

    state    condition                                           action of the leader
    WHOLE    the leader can read all reported records            acknowledges writes: the other node is faulty
    HELD     one is damaged; no other node has later records     withholds all answers, writes a checkpoint
    COPIED   one is damaged; another node has later records      acknowledges writes, reports the record

Rules
1. The leader checks each report once. The leader withholds answers only if its own check confirms the damage.
   A node with a faulty disk therefore cannot stop the cluster.
2. In the state HELD, the records after the damaged record exist only on the leader and in the engine, because
   no other node can read past the damaged record. These records would be lost if the leader failed. The
   leader therefore sends no acknowledgements.
3. A node has the records after a damaged record if it has announced a checkpoint past that record. The same
   holds for a node whose reported log end is at least the leader's log end at the time when the fault was
   found.
4. A node that has fetched a copy announces its `Holding` without the report.

Cost: one engine read per reported record. Limitation: if no other node can fetch a copy, the leader withholds
all answers until an operator removes the node that reported the damage (`tidewheel cluster forget`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from sharedlog.holdings import Holding, Unreadable

REPORTS_MAX: Final = 1_000
"""Maximum number of checked reports kept in memory."""


class LogState(StrEnum):
    """The state of the shared log from the leader's perspective."""

    WHOLE = "whole"
    HELD = "held"
    COPIED = "copied"


_CONSEQUENCES: Final = {
    LogState.HELD: "Nothing is acknowledged until another node has a copy of what follows.",
    LogState.COPIED: "Another node has what follows; one cannot read on yet.",
}


class UnreadableReport(NamedTuple):
    """A node's report of an unreadable record."""

    node: str
    where: Unreadable


class LogDamage:
    """The damaged records that were found since the leader `me` was elected."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.state = LogState.WHOLE
        self.faults: dict[int, str] = {}
        """The fault of each damaged record that was reported, by shared log offset."""
        self._ends: dict[int, int] = {}
        """The leader's log end at the time when each fault was found, by shared log offset."""
        self._checked: dict[UnreadableReport, None] = {}

    def unchecked_reports(self, unreadable: Mapping[str, Unreadable]) -> list[UnreadableReport]:
        """Return the reports of other nodes that the leader has not checked yet."""
        reports = (UnreadableReport(node, where) for node, where in unreadable.items() if node != self._me)
        return [one for one in reports if one not in self._checked]

    def record_check(self, report: UnreadableReport, fault: str, end: int) -> None:
        """Record the fault that a check has found, or "", and the leader's current log end."""
        self._checked[report] = None
        while len(self._checked) > REPORTS_MAX:
            del self._checked[next(iter(self._checked))]
        record = report.where.record
        if fault and record not in self.faults:
            self.faults[record], self._ends[record] = fault, end

    def update_state(
        self,
        unreadable: Mapping[str, Unreadable],
        held: Mapping[str, Holding],
        ends: Mapping[str, int],
    ) -> LogState:
        """Compute and return the state from the damage reports, the holdings, and the reported log ends."""
        waits = {where.record for node, where in unreadable.items() if node != self._me}
        self.faults = {record: fault for record, fault in self.faults.items() if record in waits}
        self._ends = {record: end for record, end in self._ends.items() if record in waits}
        self._checked = {
            report: None for report in self._checked if unreadable.get(report.node) == report.where
        }
        ends = {node: end for node, end in ends.items() if node not in unreadable}
        if not self.faults:
            self.state = LogState.WHOLE
        elif all(self._is_copied(record, held, ends) for record in self.faults):
            self.state = LogState.COPIED
        else:
            self.state = LogState.HELD
        return self.state

    def needs_checkpoint(self, own: Holding | None) -> bool:
        """Return whether this node must still announce a checkpoint past the last damaged record."""
        return own is None or own.end is None or own.next_record <= max(self.faults, default=-1)

    def sentences(self) -> list[str]:
        """Return one sentence for each fault, for the output of `cluster status`."""
        return [
            f"the shared log is damaged: {fault} {_CONSEQUENCES[self.state]}"
            for fault in self.faults.values()
        ]

    def _is_copied(self, record: int, held: Mapping[str, Holding], ends: Mapping[str, int]) -> bool:
        has_copy = any(
            node != self._me and one.end is not None and one.next_record > record
            for node, one in held.items()
        )
        return has_copy or any(node != self._me and end >= self._ends[record] for node, end in ends.items())
