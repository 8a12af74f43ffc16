"""Who holds a copy of the store, as the shared log tells it: below what all of them have, it may be trimmed.

    CHECKPOINT   node, next_record, end, http, secret,  a checkpoint is synced and was read back: this node
                 certificate                            never needs a record before next_record again
    HOLD         node, next_record                      the node has no copy, and reads on from there
    both         supports, finalized                    see `sharedlog.versions`
    BEAT         forget                                 the leader was told that a node is gone for good
    either       unreached: epoch, number               beside what it holds a node says that clients call it,
                                                        and the leader of that epoch does not answer it
                 unreadable: record, end, why           likewise, that it has read the log up to `end`, and
                                                        cannot read on at that record

Rules
1. Records are trimmed before the least `next_record` of all nodes that are known, and only while two nodes
   have a copy: two machines hold what is let go of.
2. A node that is away counts until it is forgotten. One that was forgotten and comes back finds the log
   trimmed, and copies from another.
3. What a node said last counts, even if that is less than before: it may have lost its disk.
4. A node that the log has never heard of holds nothing: a new one says HOLD first. Where that comes too late,
   it copies again.

The secret lets another node fetch the copy over HTTP: who reads the shared log has all that the copy holds.

Cost: one record a checkpoint; at most NODES_MAX nodes are known. More than that many are not waited for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from sharedlog.versions import OLDEST, UNSAID

NODES_MAX: Final = 64
COPIES_MIN: Final = 2
"""How many nodes have a copy of what is trimmed."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a node has: all before `next_record`, in a copy up to the log offset `end` (None: it has none)."""

    next_record: int
    end: int | None = None
    http: str = ""
    secret: str = ""
    begins: dict[str, Any] = field(default_factory=dict)
    """What the GENESIS said, for a node to which that is trimmed."""
    certificate: str = ""
    """What the node shows at `http`, as PEM; of none that serves HTTP without TLS."""
    supports: int = OLDEST
    """Up to which version the node's program supports records."""
    finalized: int = OLDEST
    """The cluster's finalized version, as far as the node has read."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Holding:
        """Return what the body of a CHECKPOINT or HOLD says."""
        unsaid = {"supports": UNSAID, "finalized": UNSAID}
        return cls(**unsaid | {name: facts[name] for name in cls.__slots__ if name in facts})

    def facts(self, node: str) -> dict[str, Any]:
        """Return the body of the record that says it of `node`."""
        return {"node": node} | asdict(self)


class Unreadable(NamedTuple):
    """A record of the shared log at which a node cannot read on: it has the history up to `end`, and why."""

    record: int
    end: int
    why: str


class Holdings:
    """What the nodes of a cluster hold."""

    def __init__(self) -> None:
        self._by_node: dict[str, Holding] = {}
        self.unreached: dict[str, tuple[int, int]] = {}
        """The newest complaint of each node: of which epoch, and its number. No checkpoint has it."""
        self.unreadable: dict[str, Unreadable] = {}
        """Where a node cannot read on, until it says what it holds without that. No checkpoint has it."""

    def told(self, facts: dict[str, Any]) -> None:
        """Take in a CHECKPOINT or HOLD."""
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
        """Return whether a node has a copy that needs no record up to one."""
        held = self._by_node[node]
        return held.end is not None and held.next_record > record

    def forget(self, node: str) -> None:
        """Let go of a node that is gone for good."""
        self._by_node.pop(node, None)
        self.unreadable.pop(node, None)

    def all(self) -> dict[str, Holding]:
        """Return what each node holds, by its name."""
        return dict(sorted(self._by_node.items()))

    def of(self, node: str) -> Holding | None:
        """Return what a node holds; None if the log does not tell."""
        return self._by_node.get(node)

    def copies(self, besides: str, from_record: int) -> list[tuple[str, Holding]]:
        """Return the copies of other nodes from which `from_record` and what follows can be read on.

        The newest comes first.
        """
        found = [
            (node, one)
            for node, one in self.all().items()
            if one.end is not None and node != besides and one.next_record >= from_record
        ]
        return sorted(found, key=lambda item: -item[1].next_record)

    @property
    def trims_below(self) -> int:
        """The record before which the shared log may be trimmed; 0 if nothing may go."""
        held = list(self._by_node.values())
        if sum(one.end is not None for one in held) < COPIES_MIN:
            return 0
        return min(one.next_record for one in held)

    def freeze(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {node: asdict(one) for node, one in self.all().items()}

    @classmethod
    def thaw(cls, frozen: dict[str, Any]) -> Holdings:
        """Return what a checkpoint keeps."""
        holdings = cls()
        holdings._by_node = {node: Holding.of(facts) for node, facts in frozen.items()}
        return holdings
