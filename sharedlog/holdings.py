"""The copies of the store that nodes announce in the shared log.

The announcements determine how far the log may be trimmed.

    CHECKPOINT   node, next_record, end, http, secret,  A checkpoint was synced and verified. The node no
                 certificate                            longer needs the records before next_record.
    HOLD         node, next_record                      The node has no copy, and reads the log from
                                                        next_record on.
    both         supports, finalized                    See `sharedlog.versions`.
    BEAT         forget                                 An operator has removed a node permanently.
    either       unreached: epoch, number               The node forwards client calls to the leader of the
                                                        epoch, but the leader does not respond.
                 unreadable: record, end, why           The node has read the history up to `end`, but cannot
                                                        read the record.

Rules
1. A record is trimmed if it precedes the lowest `next_record` of all known nodes and at least two nodes have
   a copy. The contents of a trimmed record thus exist on at least two machines.
2. An offline node blocks trimming beyond its last `next_record` until an operator removes the node. A removed
   node that restarts after a trim fetches a copy from another node.
3. A node's newest announcement applies even if its `next_record` is lower, because the node may have lost its
   disk.
4. A node without an announcement does not block trimming. A new node therefore appends a HOLD record first.
   If the log was trimmed before that, the node fetches a newer copy.

Other nodes need the secret to fetch the copy over HTTP. Anyone who can read the shared log can read the
secret, but also has direct access to all its data.

Cost: one record per checkpoint. Limitation: only `NODES_MAX` nodes are tracked. Other nodes do not block
trimming.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from sharedlog.versions import OLDEST, UNSAID

NODES_MAX: Final = 64
COPIES_MIN: Final = 2
"""Number of copies required before records may be trimmed."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A node's copy of the store, with the history up to `end`.

    The copy covers all shared log records before `next_record`. If the node has no copy, `end` is None.
    """

    next_record: int
    end: int | None = None
    http: str = ""
    secret: str = ""
    begins: dict[str, Any] = field(default_factory=dict)
    """Facts of the GENESIS record, which may be trimmed."""
    certificate: str = ""
    """TLS certificate of the node in PEM format, or "" if it uses HTTP without TLS."""
    supports: int = OLDEST
    """Highest cluster version that the node supports."""
    finalized: int = OLDEST
    """Finalized version of the cluster, as far as the node has read."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Holding:
        """Return the `Holding` described by a CHECKPOINT or HOLD record."""
        unsaid = {"supports": UNSAID, "finalized": UNSAID}
        return cls(**unsaid | {name: facts[name] for name in cls.__slots__ if name in facts})

    def facts(self, node: str) -> dict[str, Any]:
        """Return the facts for a record that announces this `Holding` for `node`."""
        return {"node": node} | asdict(self)


class Unreadable(NamedTuple):
    """A record that a node cannot read, the end of the history before it, and the reason."""

    record: int
    end: int
    why: str


class Holdings:
    """The `Holding` of each node."""

    def __init__(self) -> None:
        self._by_node: dict[str, Holding] = {}
        self.unreached: dict[str, tuple[int, int]] = {}
        """Epoch and number in each node's newest report of an unreachable leader.

        This field is not included in checkpoints.
        """
        self.unreadable: dict[str, Unreadable] = {}
        """The record that each node cannot read, until its copy covers the record.

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
        """Return whether a node's copy covers `record` and all earlier records."""
        held = self._by_node[node]
        return held.end is not None and held.next_record > record

    def remove_node(self, node: str) -> None:
        """Forget a node that an operator has removed."""
        self._by_node.pop(node, None)
        self.unreadable.pop(node, None)

    def all(self) -> dict[str, Holding]:
        """Return all `Holding`s, keyed by node name."""
        return dict(sorted(self._by_node.items()))

    def of(self, node: str) -> Holding | None:
        """Return a node's `Holding`, or None if the node is unknown."""
        return self._by_node.get(node)

    def copies(self, besides: str, from_record: int) -> list[tuple[str, Holding]]:
        """Return other nodes' copies that cover all records before `from_record`, newest first."""
        found = [
            (node, one)
            for node, one in self.all().items()
            if one.end is not None and node != besides and one.next_record >= from_record
        ]
        return sorted(found, key=lambda item: -item[1].next_record)

    @property
    def first_needed_record(self) -> int:
        """First record that must be kept when the log is trimmed, or 0 if it must not be trimmed."""
        held = list(self._by_node.values())
        if sum(one.end is not None for one in held) < COPIES_MIN:
            return 0
        return min(one.next_record for one in held)

    def freeze(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {node: asdict(one) for node, one in self.all().items()}

    @classmethod
    def thaw(cls, frozen: dict[str, Any]) -> Holdings:
        """Restore the state from a checkpoint."""
        holdings = cls()
        holdings._by_node = {node: Holding.of(facts) for node, facts in frozen.items()}
        return holdings
