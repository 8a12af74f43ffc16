"""A record of the shared log that another node cannot read: what the leader does until a node is beyond it.

    another node   cannot read on at a record --> says so, with the reason, in the shared log (`holdings`)
                   asks for a copy that reaches beyond it, again and again (`services.cluster.copies.copying`)
    the leader     reads the record again, and its own one before, and holds both to what it has taken
                   (`sharedlog.faults`)

    state    entered when                                        the leader
    WHOLE    the leader finds each record that is named sound    acknowledges: the other node's disk is bad
    HELD     one is broken, and no node has what follows it      refuses all answers, and takes a checkpoint
    COPIED   one is broken, and another node has what follows    acknowledges, and tells of the record

Rules
1. The word of a node is looked into once for each record. Nothing but the leader's own look can hold answers:
   a node with a bad disk stops nobody.
2. In HELD what was accepted lies on the engine behind a record that no other node can pass, and on this node
   alone. So nobody is told that anything was accepted.
3. A node has what follows once it tells of a checkpoint behind the record, or while it tells, beside the log,
   that it has read up to where the leader was when the fault was found.
4. A node that has got its copy says what it holds, without the word: the record is broken for nobody then.

Cost: one read of the engine for each record that a node names. Weak spot: where no other node is left to get
a copy, answers are refused until that node is forgotten (`tidewheel cluster forget`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from sharedlog.holdings import Holding, Unreadable

WORDS_MAX: Final = 1_000
"""How many words of nodes are remembered as looked into."""


class State(StrEnum):
    """What the leader knows of the shared log."""

    WHOLE = "whole"
    HELD = "held"
    COPIED = "copied"


_THEN: Final = {
    State.HELD: "Nothing is acknowledged until another node has a copy of what follows.",
    State.COPIED: "Another node has what follows; one cannot read on yet.",
}


class Word(NamedTuple):
    """A node, and where it cannot read on."""

    node: str
    where: Unreadable


class LogDamage:
    """What the leader `me` knows of broken records since it began to lead."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.state = State.WHOLE
        self.faults: dict[int, str] = {}
        """What is wrong with each broken record that a node waits behind."""
        self._ends: dict[int, int] = {}
        """How far the leader's history went when it found the fault of a record."""
        self._looked: dict[Word, None] = {}

    def to_look_into(self, unreadable: Mapping[str, Unreadable]) -> list[Word]:
        """Return the words of other nodes that were not looked into."""
        words = (Word(node, where) for node, where in unreadable.items() if node != self._me)
        return [one for one in words if one not in self._looked]

    def looked_into(self, word: Word, fault: str, end: int) -> None:
        """Take in what is wrong with the record of a word ("": nothing), and where the history ends."""
        self._looked[word] = None
        while len(self._looked) > WORDS_MAX:
            del self._looked[next(iter(self._looked))]
        record = word.where.record
        if fault and record not in self.faults:
            self.faults[record], self._ends[record] = fault, end

    def compare(
        self,
        unreadable: Mapping[str, Unreadable],
        held: Mapping[str, Holding],
        ends: Mapping[str, int],
    ) -> State:
        """Return the state by what nodes say, what they hold, and how far each is that told so just now."""
        waits = {where.record for node, where in unreadable.items() if node != self._me}
        self.faults = {record: fault for record, fault in self.faults.items() if record in waits}
        self._ends = {record: end for record, end in self._ends.items() if record in waits}
        self._looked = {word: None for word in self._looked if unreadable.get(word.node) == word.where}
        ends = {node: end for node, end in ends.items() if node not in unreadable}
        if not self.faults:
            self.state = State.WHOLE
        elif all(self._is_copied(record, held, ends) for record in self.faults):
            self.state = State.COPIED
        else:
            self.state = State.HELD
        return self.state

    def needs_checkpoint(self, own: Holding | None) -> bool:
        """Return whether this node has told of no checkpoint yet from which others can read on."""
        return own is None or own.end is None or own.next_record <= max(self.faults, default=-1)

    def sentences(self) -> list[str]:
        """Return what `cluster status` says; nothing of a log that is whole."""
        return [f"the shared log is damaged: {fault} {_THEN[self.state]}" for fault in self.faults.values()]

    def _is_copied(self, record: int, held: Mapping[str, Holding], ends: Mapping[str, int]) -> bool:
        has_copy = any(
            node != self._me and one.end is not None and one.next_record > record
            for node, one in held.items()
        )
        return has_copy or any(node != self._me and end >= self._ends[record] for node, end in ends.items())
