"""The copies of the store, as announced by the nodes in the shared log.

The announcements determine which records of the log can be trimmed.

    record       fields                                 meaning
    CHECKPOINT   node, next_record, end, http, secret,  The node has synced and verified a checkpoint, and no
                 certificate                            longer needs the records before next_record.
    HOLD         node, next_record                      The node has no copy, and reads the log from
                                                        next_record on.
    both         supports, finalized                    See `sharedlog.versions`.
                 unreached: epoch, number               The node forwards client calls to the leader of the
                                                        epoch, but the leader does not respond.
                 unreadable: record, end, why           The node has read the history up to `end`, but cannot
                                                        read the record.
    BEAT         forget                                 An operator has permanently removed the node.

Rules
1. A record can be trimmed if it precedes the `next_record` of every known node and at least two nodes have a
   copy. The contents of a trimmed record therefore exist on at least two machines.
2. The `next_record` of an offline node limits trimming until an operator removes the node. If a removed node
   restarts after a trim, it fetches a copy from another node.
3. The newest announcement of a node replaces older ones, even if the new `next_record` is lower, because the
   node may have lost its disk.
4. A node without an announcement does not limit trimming. A new node therefore first appends a HOLD record.
   If the log was trimmed before the HOLD record was appended, the node fetches a newer copy.

A node needs another node's `secret` to fetch a copy from it over HTTP. Every user with read access to the
shared log can read the secret, but can also read all data in the log directly.

Cost: one record per checkpoint. Limitation: only `NODES_MAX` nodes are tracked, and further nodes do not
limit trimming.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from sharedlog.versions import OLDEST, UNSAID

NODES_MAX: Final = 64
COPIES_MIN: Final = 2
"""Number of copies that must exist before records can be trimmed."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The copy of the store on a node, which contains the history up to the CommitLog offset `end`.

    The copy covers all shared log records before `next_record`. If the node has no copy, `end` is None.
    """

    next_record: int
    end: int | None = None
    http: str = ""
    secret: str = ""
    begins: dict[str, Any] = field(default_factory=dict)
    """A copy of the fields in the GENESIS record, because the GENESIS record can be trimmed."""
    certificate: str = ""
    """TLS certificate of the node in PEM format, or "" if the node uses HTTP without TLS."""
    supports: int = OLDEST
    """Highest cluster version that the node supports."""
    finalized: int = OLDEST
    """Finalized version of the cluster that the node has read from the log."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Holding:
        """Return the `Holding` that is described by the fields of a CHECKPOINT or HOLD record."""
        unsaid = {"supports": UNSAID, "finalized": UNSAID}
        return cls(**unsaid | {name: facts[name] for name in cls.__slots__ if name in facts})

    def facts(self, node: str) -> dict[str, Any]:
        """Return the fields of a record that announces this `Holding` for the node `node`."""
        return {"node": node} | asdict(self)


class Unreadable(NamedTuple):
    """A record that a node cannot read, the end of the history before the record, and the reason."""

    record: int
    end: int
    why: str


class Holdings:
    """The newest `Holding` that each node has announced."""

    def __init__(self) -> None:
        self._by_node: dict[str, Holding] = {}
        self.unreached: dict[str, tuple[int, int]] = {}
        """Epoch and number in the newest report of an unreachable leader, by node name.

        Checkpoints do not include these reports.
        """
        self.unreadable: dict[str, Unreadable] = {}
        """The unreadable record that a node has reported, by node name.

        An entry is removed when the node's copy covers the record. Checkpoints do not include these entries.
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
            elif (waits := self.unreadable.get(node)) is not None and self._is_covered_by_copy(
                node, waits.record
            ):
                del self.unreadable[node]

    def _is_covered_by_copy(self, node: str, record: int) -> bool:
        """Return whether the copy of a node covers `record` and all earlier records."""
        held = self._by_node[node]
        return held.end is not None and held.next_record > record

    def remove_node(self, node: str) -> None:
        """Discard the `Holding` and the unreadable record of a node that an operator has removed."""
        self._by_node.pop(node, None)
        self.unreadable.pop(node, None)

    def all(self) -> dict[str, Holding]:
        """Return the `Holding` of each node, keyed and sorted by node name."""
        return dict(sorted(self._by_node.items()))

    def of(self, node: str) -> Holding | None:
        """Return the `Holding` of a node, or None if the node is unknown."""
        return self._by_node.get(node)

    def copies(self, besides: str, from_record: int) -> list[tuple[str, Holding]]:
        """Return each copy that covers all records before `from_record`, newest first.

        Each item consists of a node name and a `Holding`. The copy on the node `besides` is omitted.
        """
        found = [
            (node, one)
            for node, one in self.all().items()
            if one.end is not None and node != besides and one.next_record >= from_record
        ]
        return sorted(found, key=lambda item: -item[1].next_record)

    @property
    def first_needed_record(self) -> int:
        """Return the first record that a trim must keep, or 0 if the log must not be trimmed."""
        held = list(self._by_node.values())
        if sum(one.end is not None for one in held) < COPIES_MIN:
            return 0
        return min(one.next_record for one in held)

    def freeze(self) -> dict[str, Any]:
        """Return the `Holding` of each node as JSON-compatible dictionaries, for a checkpoint."""
        return {node: asdict(one) for node, one in self.all().items()}

    @classmethod
    def thaw(cls, frozen: dict[str, Any]) -> Holdings:
        """Restore the holdings from a checkpoint."""
        holdings = cls()
        holdings._by_node = {node: Holding.of(facts) for node, facts in frozen.items()}
        return holdings
