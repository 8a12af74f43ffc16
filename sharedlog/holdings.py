"""The copies of the store that nodes announce in the shared log. The announcements determine the trim offset.

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
1. Records before the lowest `next_record` of all known nodes are trimmed, but only while two nodes have a
   copy. Two machines therefore have the content of each trimmed record.
2. The last record of an offline node limits trimming until an operator removes the node. If a removed node
   restarts after the log was trimmed, it fetches the copy of another node.
3. Only the newest record of a node is used, even if `next_record` has decreased, because the node may have
   lost its disk.
4. A node without a record in the log does not prevent trimming, so a new node first appends a HOLD. If the
   log is trimmed before the HOLD is appended, the node fetches another copy.

Other nodes use the secret to fetch the copy over HTTP. Each reader of the shared log can read the secret, but
such a reader also has access to all data in the log.

Cost: one record for each checkpoint. At most NODES_MAX nodes are tracked, and trimming ignores additional
nodes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from sharedlog.versions import OLDEST, UNSAID

NODES_MAX: Final = 64
COPIES_MIN: Final = 2
"""The number of nodes that must have a copy before records are trimmed."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The copy of the store on a node. The copy contains the history up to `end`.

    The copy includes all records of the shared log before `next_record`. `end` is None if the node has no
    copy.
    """

    next_record: int
    end: int | None = None
    http: str = ""
    secret: str = ""
    begins: dict[str, Any] = field(default_factory=dict)
    """The contents of the GENESIS record, which are used after the GENESIS record was trimmed."""
    certificate: str = ""
    """The TLS certificate of the node at `http` as PEM, or "" if the node serves HTTP without TLS."""
    supports: int = OLDEST
    """The newest cluster version that the node's program supports."""
    finalized: int = OLDEST
    """The finalized version of the cluster as of the last record that the node has read."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Holding:
        """Return the holding from the body of a CHECKPOINT or HOLD."""
        unsaid = {"supports": UNSAID, "finalized": UNSAID}
        return cls(**unsaid | {name: facts[name] for name in cls.__slots__ if name in facts})

    def facts(self, node: str) -> dict[str, Any]:
        """Return the body of the record that announces this holding for `node`."""
        return {"node": node} | asdict(self)


class Unreadable(NamedTuple):
    """The number of an unreadable record, the end of the history before the record, and the reason."""

    record: int
    end: int
    why: str


class Holdings:
    """The holdings of the nodes of a cluster."""

    def __init__(self) -> None:
        self._by_node: dict[str, Holding] = {}
        self.unreached: dict[str, tuple[int, int]] = {}
        """The epoch and number of each node's newest report of an unreachable leader.

        Checkpoints omit this field.
        """
        self.unreadable: dict[str, Unreadable] = {}
        """The unreadable record of each node, until the node has a later copy.

        Checkpoints omit this field.
        """

    def apply_record(self, facts: dict[str, Any]) -> None:
        """Apply a CHECKPOINT or HOLD."""
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
        """Remove a node that an operator has removed permanently."""
        self._by_node.pop(node, None)
        self.unreadable.pop(node, None)

    def all(self) -> dict[str, Holding]:
        """Return the holding of each node, by name."""
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
        """Return the record before which all records may be trimmed, or 0 if none may be trimmed."""
        held = list(self._by_node.values())
        if sum(one.end is not None for one in held) < COPIES_MIN:
            return 0
        return min(one.next_record for one in held)

    def freeze(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores."""
        return {node: asdict(one) for node, one in self.all().items()}

    @classmethod
    def thaw(cls, frozen: dict[str, Any]) -> Holdings:
        """Restore the state from a checkpoint."""
        holdings = cls()
        holdings._by_node = {node: Holding.of(facts) for node, facts in frozen.items()}
        return holdings
