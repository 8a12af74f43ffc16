"""The leader according to the shared log: the newest EPOCH, the last sign of life, and whether it left.

    EPOCH of a newer epoch   its writer leads; its facts are the leader's identity
    BEAT with `leaves`       no leader; the successor it names, or any other node, need not wait for silence
    any other live record    the leader is alive; a BEAT may carry a renewed certificate

Pure state: each method takes the time as an argument, of a monotonic clock, in ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.cluster.election.one_name import OneName
from services.cluster.election.silence import Silence
from services.cluster.identity import Member
from services.cluster.one_key import check_key
from sharedlog.fold import Outcome, Step, told_anew
from sharedlog.record import Kind, SharedRecord

_SILENT = frozenset((Outcome.DEAD, Outcome.ALREADY_HAD, Outcome.NOTED))
"""Outcomes of records that do not prove that the newest leader is alive."""


class Leadership:
    """The leader, as known to the node `me` from the shared log."""

    def __init__(self, me: Member, now_ms: int) -> None:
        self._me = me
        self.epoch = 0
        self.leader: Member | None = None
        """The writer of the newest EPOCH; None if there is none, or if that node has left."""
        self.facts: Mapping[str, Any] = {}
        """The facts of the newest EPOCH."""
        self.names = {me.node}
        """All nodes that have led, and this one, without forgotten ones."""
        self.silence = Silence(now_ms)
        self.one_name = OneName(me.node)
        self.has_read_all = False
        """Whether the log was read to its end since the replica was opened."""

    @property
    def leads_by_log(self) -> bool:
        """Whether the log names this node as leader."""
        return self.leader is not None and self.leader.node == self._me.node

    @property
    def rank(self) -> int:
        """The place of this node among all known nodes, by name, from 0."""
        return sorted(self.names | {self._me.node}).index(self._me.node)

    @property
    def why_stand(self) -> str:
        """The reason to stand now."""
        if self.leader is not None:
            return f"silence of node {self.leader.node}"
        return "the leader left" if self.epoch else "nobody led"

    def known(self, *, leads: bool) -> Member | None:
        """Return the leader; None also if the log names this node and it does not lead."""
        return None if self.leads_by_log and not leads else self.leader

    def check(self, *, is_newest: bool) -> None:
        """Raise `NameTaken`, or `OtherKey` if the newest leader has another key of users' secrets."""
        self.one_name.check(self.leader.listen if self.leader else "")
        if is_newest:
            check_key(self._me.node, self._me.key, self.epoch, self.facts)

    def know(self, epoch: int, facts: Mapping[str, Any]) -> None:
        """Record the EPOCH of a leader, unless a later one is known."""
        if facts and epoch >= self.epoch:
            known = {name: facts[name] for name in Member._fields if name in facts}
            self.epoch, self.leader, self.facts = epoch, Member(**known), facts
            self.names.add(self.leader.node)

    def record_taken(self, step: Step, now_ms: int) -> bool:
        """Update the state from a record; return whether it is a new EPOCH."""
        record = step.record
        if record is None or step.outcome in _SILENT:
            return False
        beat = record.facts if record.kind == Kind.BEAT and record.epoch == self.epoch else {}
        if record.kind == Kind.EPOCH:
            self.know(record.epoch, record.facts)
        elif beat.get("leaves"):
            self._left(now_ms, beat.get("to", ""))
            return False
        self._alive(step.outcome, record, beat, now_ms)
        return record.kind == Kind.EPOCH

    def _alive(self, outcome: Outcome, record: SharedRecord, beat: dict[str, Any], now_ms: int) -> None:
        if self.has_read_all and outcome in (Outcome.ALIVE, Outcome.ACCEPTED):
            self.one_name.heard(self.leader.node if self.leader else "", record.holder, now_ms)
        if self.leader is not None and (anew := told_anew({}, beat)):
            self.leader = self.leader._replace(**anew)
        self.silence.heard(now_ms)

    def _left(self, now_ms: int, to: str) -> None:
        """Record that the leader leaves, to the node `to` or to any other; it may announce this twice."""
        may_stand = self._me.node == to if to else self._me.node != self.facts.get("node")
        self.leader = None
        self.silence.heard(now_ms, leaves=may_stand, is_named=may_stand and bool(to))
