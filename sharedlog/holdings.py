"""Copies of the store that nodes hold, by the shared log: records that no copy needs may be trimmed.

    CHECKPOINT   node, next_record, end, http, secret,  a checkpoint was synced and read back: this node
                 certificate                            never needs a record before next_record again
    HOLD         node, next_record                      the node has no copy, and reads on from there
    both         supports, finalized                    see `sharedlog.versions`
    BEAT         forget                                 an operator reported a node as gone for good
    either       unreached: epoch, number               clients call this node, and the leader of that epoch
                                                        does not answer the calls it forwards
                 unreadable: record, end, why           the node has read the log up to `end`, and cannot
                                                        read on at that record

Rules
1. Records are trimmed before the least `next_record` of all known nodes, and only while two nodes have a
   copy: so two machines hold the content of trimmed records.
2. An absent node counts until it is forgotten. A forgotten node that returns finds the log trimmed, and
   fetches the copy of another node.
3. The latest record of a node counts, even if its `next_record` decreased: the node may have lost its disk.
4. A node without a record in the log holds nothing: a new node appends HOLD first. If the log was trimmed
   before that, the node fetches a copy again.

The secret lets another node fetch the copy over HTTP: a reader of the shared log can read all data anyway.

Cost: one record a checkpoint; at most NODES_MAX nodes are tracked. Trimming does not wait for further nodes.
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
    """The holding of a node: all records before `next_record`, in a copy up to `end` (None: no copy)."""

    next_record: int
    end: int | None = None
    http: str = ""
    secret: str = ""
    begins: dict[str, Any] = field(default_factory=dict)
    """The facts of the GENESIS, for nodes that find it trimmed."""
    certificate: str = ""
    """The TLS certificate of the node at `http`, as PEM; "" if the node serves HTTP without TLS."""
    supports: int = OLDEST
    """The newest version of records that the node's program supports."""
    finalized: int = OLDEST
    """The cluster's finalized version, as of the records the node has read."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Holding:
        """Return the holding in the body of a CHECKPOINT or HOLD."""
        unsaid = {"supports": UNSAID, "finalized": UNSAID}
        return cls(**unsaid | {name: facts[name] for name in cls.__slots__ if name in facts})

    def facts(self, node: str) -> dict[str, Any]:
        """Return the body of the record that announces this holding for `node`."""
        return {"node": node} | asdict(self)


class Unreadable(NamedTuple):
    """The record at which a node cannot read on, the end of the history it has read, and the reason."""

    record: int
    end: int
    why: str


class Holdings:
    """The holdings of the nodes of a cluster."""

    def __init__(self) -> None:
        self._by_node: dict[str, Holding] = {}
        self.unreached: dict[str, tuple[int, int]] = {}
        """The newest complaint of each node: epoch and number. Checkpoints do not contain it."""
        self.unreadable: dict[str, Unreadable] = {}
        """The record that stops a node, until it has a copy past that. Not in checkpoints."""

    def told(self, facts: dict[str, Any]) -> None:
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
            elif (waits := self.unreadable.get(node)) is not None and self._has_beyond(node, waits.record):
                del self.unreadable[node]

    def _has_beyond(self, node: str, record: int) -> bool:
        """Return whether a node has a copy that needs no record up to and including `record`."""
        held = self._by_node[node]
        return held.end is not None and held.next_record > record

    def forget(self, node: str) -> None:
        """Remove a node that is gone for good."""
        self._by_node.pop(node, None)
        self.unreadable.pop(node, None)

    def all(self) -> dict[str, Holding]:
        """Return the holding of each node, by name."""
        return dict(sorted(self._by_node.items()))

    def of(self, node: str) -> Holding | None:
        """Return the holding of a node; None if the log has none."""
        return self._by_node.get(node)

    def copies(self, besides: str, from_record: int) -> list[tuple[str, Holding]]:
        """Return the copies of other nodes from which reading can continue at `from_record` or later.

        The newest copy comes first.
        """
        found = [
            (node, one)
            for node, one in self.all().items()
            if one.end is not None and node != besides and one.next_record >= from_record
        ]
        return sorted(found, key=lambda item: -item[1].next_record)

    @property
    def trims_below(self) -> int:
        """The record before which the shared log may be trimmed; 0 if nothing may be trimmed."""
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
