"""All nodes of a cluster have one key of users' secrets: what a leader seals, the next one must open.

An EPOCH and each BEAT tell the id of their writer's key (`services.auth.vault.id_of`), which says nothing of
the key itself; no key has the id "". A node with another one than who led last halts, before it stands.

A cluster changes its key, or gets its first, when all nodes were stopped and who led last comes first: that
one may differ from itself.

Weak spot: a checkpoint does not hold the id: a node that was away learns of it with the next EPOCH or BEAT.
"""

from __future__ import annotations

from services.cluster.errors import OtherKey
from sharedlog.record import Kind, SharedRecord


class OneKey:
    """The key of this node, by its id, beside that of the newest leader."""

    def __init__(self, node: str, key: str) -> None:
        self._node, self._key = node, key
        self._leader, self._leaders_key, self._epoch = node, key, 0

    @property
    def facts(self) -> dict[str, str]:
        """What a leader's BEAT says."""
        return {"node": self._node, "key": self._key}

    def note(self, record: SharedRecord) -> None:
        """Take in a record of who leads."""
        if record.kind == Kind.EPOCH or "key" in record.facts:
            facts = record.facts
            self._leader, self._leaders_key, self._epoch = facts["node"], facts.get("key", ""), record.epoch

    def check(self) -> None:
        """Raise `OtherKey` if who led last has another key."""
        if self._leader == self._node or self._leaders_key == self._key:
            return
        leader = f"node {self._leader}, which leads epoch {self._epoch}"
        if not self._key:
            said = f"{leader}, has an --auth-key, and this node has none: give it the same file."
        elif not self._leaders_key:
            said = f"This node has an --auth-key, and {leader}, has none: take it away here."
        else:
            said = f"This node has another --auth-key than {leader}: give it the same file."
        raise OtherKey(
            f"{said[0].upper()}{said[1:]} To change the key of all, stop all nodes and start {self._leader} "
            "first."
        )
