"""Tracks the copies of the store, which each node announces in the shared log.

The announcements determine how far the log can be trimmed.

    CHECKPOINT   node, next_record, end, http, secret,  a checkpoint was synced and read back, and the node
                 certificate                            needs no record before next_record again
    HOLD         node, next_record                      the node has no copy, and reads from there
    both         supports, finalized                    see `sharedlog.versions`
    BEAT         forget                                 an operator has removed a node permanently
    either       unreached: epoch, number               clients call this node, and the leader of that epoch
                                                        does not answer the forwarded calls
                 unreadable: record, end, why           the node has read the log up to `end`, and cannot
                                                        read that record

Rules
1. Records are trimmed if they precede the lowest `next_record` of all known nodes, but only while at least
   two nodes have a copy. Therefore, the content of each trimmed record exists on two machines.
2. An offline node prevents trimming beyond its last announcement until an operator removes the node. If a
   removed node restarts after the log has been trimmed, it fetches the copy of another node.
3. Only the newest announcement of a node is used, even if `next_record` has decreased, because the node may
   have lost its disk.
4. A node that is not mentioned in the log does not prevent trimming. Therefore, a new node first appends a
   HOLD record. If the log is trimmed before the HOLD is appended, the node fetches another copy.

Other nodes use the secret to fetch the copy over HTTP. Anyone who can read the shared log can read the
secret, but can also read all data in the log.

Cost: Each checkpoint requires one record. Up to `NODES_MAX` nodes are tracked. Additional nodes are ignored
when the log is trimmed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from sharedlog.versions import OLDEST, UNSAID

NODES_MAX: Final = 64
COPIES_MIN: Final = 2
"""The number of nodes that must have a copy before records can be trimmed."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The copy of the store on a node. The copy contains the history up to `end`.

    The copy includes all records of the shared log before `next_record`. If the node has no copy, `end` is
    None.
    """

    next_record: int
    end: int | None = None
    http: str = ""
    secret: str = ""
    begins: dict[str, Any] = field(default_factory=dict)
    """The contents of the GENESIS record, which are needed after the record has been trimmed."""
    certificate: str = ""
    """The TLS certificate of the node at `http` in PEM format, or "" if the node uses HTTP without TLS."""
    supports: int = OLDEST
    """The newest cluster version that is supported by the program running on the node."""
    finalized: int = OLDEST
    """The finalized version of the cluster at the last record that the node has read."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Holding:
        """Return the holding that is described by the body of a CHECKPOINT or HOLD record."""
        unsaid = {"supports": UNSAID, "finalized": UNSAID}
        return cls(**unsaid | {name: facts[name] for name in cls.__slots__ if name in facts})

    def facts(self, node: str) -> dict[str, Any]:
        """Return the body of the record with which `node` announces this holding."""
        return {"node": node} | asdict(self)


class Unreadable(NamedTuple):
    """The number of an unreadable record, the end of the history before that record, and the reason."""

    record: int
    end: int
    why: str


class Holdings:
    """The holdings of all nodes in a cluster."""

    def __init__(self) -> None:
        self._by_node: dict[str, Holding] = {}
        self.unreached: dict[str, tuple[int, int]] = {}
        """The epoch and number from the newest report of each node about an unreachable leader.

        This field is not included in checkpoints.
        """
        self.unreadable: dict[str, Unreadable] = {}
        """The record that each node cannot read. The entry is removed when the node has a later copy.

        This field is not included in checkpoints.
        """

    def apply_record(self, facts: dict[str, Any]) -> None:
        """Apply a CHECKPOINT or HOLD record."""
        node = str(facts["node"])
        if node in self._by_node or len(self._by_node) < NODES_MAX:
            self._by_node[node] = Holding.of(facts)
            if "unreached" in facts:
                epoch, number = facts["unreached"]
                self.unreached[node] = (int(epoch), int(number))
            if "unreadable" in facts:
                record, end, why = facts["unreadable"]
                self.unreadable[node] = Unreadable(int(record), int(end), str(why))
            elif (waits := self.unreadable.get(node)) is not None and self._has_copy_beyond(
                node, waits.record
            ):
                del self.unreadable[node]

    def _has_copy_beyond(self, node: str, record: int) -> bool:
        """Return whether a node's copy includes all records up to and including `record`."""
        held = self._by_node[node]
        return held.end is not None and held.next_record > record

    def remove_node(self, node: str) -> None:
        """Remove a node that an operator has permanently removed."""
        self._by_node.pop(node, None)
        self.unreadable.pop(node, None)

    def all(self) -> dict[str, Holding]:
        """Return the holding of each node, keyed by node name."""
        return dict(sorted(self._by_node.items()))

    def of(self, node: str) -> Holding | None:
        """Return the holding of a node, or None if the node is unknown."""
        return self._by_node.get(node)

    def copies(self, besides: str, from_record: int) -> list[tuple[str, Holding]]:
        """Return the copies of other nodes that include all records before `from_record`, newest first."""
        found = [
            (node, one)
            for node, one in self.all().items()
            if one.end is not None and node != besides and one.next_record >= from_record
        ]
        return sorted(found, key=lambda item: -item[1].next_record)

    @property
    def trims_below(self) -> int:
        """Return the record before which all records can be trimmed, or 0 if none can be trimmed."""
        held = list(self._by_node.values())
        if sum(one.end is not None for one in held) < COPIES_MIN:
            return 0
        return min(one.next_record for one in held)

    def freeze(self) -> dict[str, Any]:
        """Return the state to be stored in a checkpoint."""
        return {node: asdict(one) for node, one in self.all().items()}

    @classmethod
    def thaw(cls, frozen: dict[str, Any]) -> Holdings:
        """Restore the state from a checkpoint."""
        holdings = cls()
        holdings._by_node = {node: Holding.of(facts) for node, facts in frozen.items()}
        return holdings
