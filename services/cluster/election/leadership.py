"""The leader according to the shared log, with its EPOCH, its last sign of life and its departure.

    EPOCH of a newer epoch   its writer leads; its facts are the leader's identity
    BEAT with `leaves`       no leader; the named successor, or any other node, becomes a candidate at once
    any other live record    the leader is alive; a BEAT may contain a renewed certificate

The module performs no I/O. All times are passed as arguments, in ms of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.cluster.election.one_name import DuplicateNameCheck
from services.cluster.election.silence import CandidacyTimer
from services.cluster.identity import Member
from services.cluster.one_key import check_key
from sharedlog.fold import Outcome, Step, update_leader_facts
from sharedlog.record import Kind, SharedRecord

_SILENT = frozenset((Outcome.DEAD, Outcome.ALREADY_HAD, Outcome.NOTED))
"""The outcomes of records that do not prove that the newest leader is alive."""


class Leadership:
    """The leader according to the records that the node `me` has read from the shared log."""

    def __init__(self, me: Member, now_ms: int) -> None:
        self._me = me
        self.epoch = 0
        self.leader: Member | None = None
        """The writer of the newest EPOCH, or None without an EPOCH or after its writer has stepped down."""
        self.facts: Mapping[str, Any] = {}
        """The facts in the newest EPOCH."""
        self.names = {me.node}
        """The names of this node and of all nodes that have led, except for removed nodes."""
        self.candidacy_timer = CandidacyTimer(now_ms)
        self.duplicate_name = DuplicateNameCheck(me.node)
        self.has_read_all = False
        """Whether this node has reached the end of the shared log since it opened the replica."""

    @property
    def leads_by_log(self) -> bool:
        """Whether this node is the leader according to the shared log."""
        return self.leader is not None and self.leader.node == self._me.node

    @property
    def rank(self) -> int:
        """The zero-based position of this node among all known nodes in the order of the names."""
        return sorted(self.names | {self._me.node}).index(self._me.node)

    @property
    def candidacy_reason(self) -> str:
        """The reason for which this node becomes a candidate now."""
        if self.leader is not None:
            return f"silence of node {self.leader.node}"
        return "the leader left" if self.epoch else "nobody led"

    def leader_unless_own(self, *, leads: bool) -> Member | None:
        """Return the leader, or None if the leader is unknown.

        The argument `leads` indicates whether this node leads. The result is also None if this node is the
        leader according to the shared log but does not lead.
        """
        return None if self.leads_by_log and not leads else self.leader

    def check(self, *, is_newest: bool) -> None:
        """Raise `DuplicateNodeName` if another process with this node's name leads.

        With `is_newest`, raise `KeyMismatch` if the leader uses another key for users' secrets.
        """
        self.duplicate_name.check(self.leader.listen if self.leader else "")
        if is_newest:
            check_key(self._me.node, self._me.key, self.epoch, self.facts)

    def record_epoch(self, epoch: int, facts: Mapping[str, Any]) -> None:
        """Record an EPOCH, unless a newer EPOCH is known."""
        if facts and epoch >= self.epoch:
            known = {name: facts[name] for name in Member._fields if name in facts}
            self.epoch, self.leader, self.facts = epoch, Member(**known), facts
            self.names.add(self.leader.node)

    def record_taken(self, step: Step, now_ms: int) -> bool:
        """Update the state from an applied record, and return whether the record is an EPOCH."""
        record = step.record
        if record is None or step.outcome in _SILENT:
            return False
        beat = record.facts if record.kind == Kind.BEAT and record.epoch == self.epoch else {}
        if record.kind == Kind.EPOCH:
            self.record_epoch(record.epoch, record.facts)
        elif beat.get("leaves"):
            self._record_departure(now_ms, beat.get("to", ""))
            return False
        self._record_sign_of_life(step.outcome, record, beat, now_ms)
        return record.kind == Kind.EPOCH

    def _record_sign_of_life(
        self, outcome: Outcome, record: SharedRecord, beat: dict[str, Any], now_ms: int
    ) -> None:
        if self.has_read_all and outcome in (Outcome.ALIVE, Outcome.ACCEPTED):
            self.duplicate_name.record_append(self.leader.node if self.leader else "", record.holder, now_ms)
        if self.leader is not None and (anew := update_leader_facts({}, beat)):
            self.leader = self.leader._replace(**anew)
        self.candidacy_timer.record_sign_of_life(now_ms)

    def _record_departure(self, now_ms: int, to: str) -> None:
        """Record that the leader steps down in favor of the node `to`, or of any node if `to` is empty."""
        may_stand = self._me.node == to if to else self._me.node != self.facts.get("node")
        self.leader = None
        self.candidacy_timer.record_sign_of_life(now_ms, leaves=may_stand, is_named=may_stand and bool(to))
