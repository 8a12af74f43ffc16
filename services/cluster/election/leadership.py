"""Determines the current leader from the EPOCH and BEAT records of the shared log.

An EPOCH record with a newer epoch makes its writer the leader. A BEAT record with the field `leaves`
announces the leader's resignation. The named successor then becomes a candidate immediately. If no successor
is named, each other node becomes a candidate after a delay that depends on its rank. Every other record of
the current epoch proves that the leader is alive. A BEAT record can also contain a renewed certificate.

This module performs no I/O. All times are monotonic clock readings in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.cluster.election.candidacy_timer import CandidacyTimer
from services.cluster.election.duplicate_name import DuplicateNameCheck
from services.cluster.identity import Member
from services.cluster.key_check import check_key
from sharedlog.fold import Outcome, Step, update_leader_facts
from sharedlog.record import Kind, SharedRecord

_SILENT = frozenset((Outcome.DEAD, Outcome.ALREADY_HAD, Outcome.NOTED))
"""The outcomes of records that do not prove that the leader is alive."""


class Leadership:
    """The leader according to the shared log records that the node `me` has read."""

    def __init__(self, me: Member, now_ms: int) -> None:
        self._me = me
        self.epoch = 0
        self.leader: Member | None = None
        """The writer of the newest EPOCH record, or None if the writer is unknown or has stepped down."""
        self.facts: Mapping[str, Any] = {}
        """The fields of the newest EPOCH record."""
        self.names = {me.node}
        """The names of this node and of all current and former leaders, without removed nodes."""
        self.candidacy_timer = CandidacyTimer(now_ms)
        self.duplicate_name = DuplicateNameCheck(me.node)
        self.has_read_all = False
        """Whether the node has reached the end of the shared log after opening the replica."""

    @property
    def is_leader_by_log(self) -> bool:
        """Whether this node is the leader according to the shared log."""
        return self.leader is not None and self.leader.node == self._me.node

    @property
    def rank(self) -> int:
        """The zero-based position of this node in the list of all known nodes sorted by name."""
        return sorted(self.names | {self._me.node}).index(self._me.node)

    @property
    def candidacy_reason(self) -> str:
        """The reason for a candidacy of this node."""
        if self.leader is not None:
            return f"silence of node {self.leader.node}"
        return "the leader left" if self.epoch else "nobody led"

    def leader_unless_own(self, *, leads: bool) -> Member | None:
        """Return the leader, or None if the leader is unknown.

        Also return None if this node is the leader according to the shared log but `leads` is false. The flag
        `leads` is true if this node actually leads.
        """
        return None if self.is_leader_by_log and not leads else self.leader

    def check(self, *, is_newest: bool) -> None:
        """Raise `DuplicateNodeName` if the leader is another process with the name of this node.

        If `is_newest` is true, also raise `KeyMismatch` when the leader has a different key for user secrets.
        """
        self.duplicate_name.check(self.leader.listen if self.leader else "")
        if is_newest:
            check_key(self._me.node, self._me.key, self.epoch, self.facts)

    def record_epoch(self, epoch: int, facts: Mapping[str, Any]) -> None:
        """Apply an EPOCH record unless a record with a newer epoch has been applied."""
        if facts and epoch >= self.epoch:
            known = {name: facts[name] for name in Member._fields if name in facts}
            self.epoch, self.leader, self.facts = epoch, Member(**known), facts
            self.names.add(self.leader.node)

    def apply_step(self, step: Step, now_ms: int) -> bool:
        """Update the state after a record was applied. Return whether the record is an EPOCH record."""
        record = step.record
        if record is None or step.outcome in _SILENT:
            return False
        beat = record.facts if record.kind == Kind.BEAT and record.epoch == self.epoch else {}
        if record.kind == Kind.EPOCH:
            self.record_epoch(record.epoch, record.facts)
        elif beat.get("leaves"):
            self._record_departure(now_ms, beat.get("to", ""))
            return False
        self._record_leader_activity(step.outcome, record, beat, now_ms)
        return record.kind == Kind.EPOCH

    def _record_leader_activity(
        self, outcome: Outcome, record: SharedRecord, beat: dict[str, Any], now_ms: int
    ) -> None:
        if self.has_read_all and outcome in (Outcome.ALIVE, Outcome.ACCEPTED):
            self.duplicate_name.record_append(self.leader.node if self.leader else "", record.holder, now_ms)
        if self.leader is not None and (anew := update_leader_facts({}, beat)):
            self.leader = self.leader._replace(**anew)
        self.candidacy_timer.record_leader_activity(now_ms)

    def _record_departure(self, now_ms: int, to: str) -> None:
        """Record the leader's resignation in favor of the node `to`, or of any node if `to` is empty."""
        may_stand = self._me.node == to if to else self._me.node != self.facts.get("node")
        self.leader = None
        self.candidacy_timer.record_leader_activity(now_ms, leaves=may_stand, is_named=may_stand and bool(to))
