"""Nodes over one shared log, each of which may be killed, stand, lead, write, take checkpoints and trim.

A model of what a cluster does with `sharedlog`, without the broker: the history is made of operations of
eight bytes. What a leader was told is accepted is noted; a reader that reads the whole log afterwards must
find each of them once, and every node the same history.

With `Rules.spoils` the engine keeps its promises but for one: a record is lost, doubled or changed where it
lies. It compares heads then, as PostgreSQL does. No node may differ from what was accepted, and each that
meets the record halts with an error that names it; where it was only doubled, none does.

After `replication_model.py` of the shared references, over the real records and the real fold.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from random import Random
from typing import Final

from sharedlog.engine import Stored
from sharedlog.errors import Halted, LogDamaged
from sharedlog.faults import fault_at
from sharedlog.fold import Fold, Outcome, Position, Step
from sharedlog.leading import Candidate, Leader, Proof
from sharedlog.reading import records_before_gap
from sharedlog.record import SharedRecord, encode
from tests.genesis import genesis_of
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
OPERATION = struct.Struct(">II")
STEPS = 200
FAULTS: Final = ("doubled", "doubled and another", "lost", "changed", "another's")
"""What may become of a record where it lies."""


@dataclass
class Rules:
    """What a mutant leaves out; the world keeps all of it."""

    trims_below_count: int = 2
    is_local_disk_believed: bool = False
    is_holder_drawn: bool = True
    spoils: bool = False
    """Whether the engine spoils a record, and else does all that it should."""


@dataclass
class Reader:
    """A fold, and the operations that it has accepted."""

    fold: Fold = field(default_factory=lambda: Fold(CLUSTER))
    operations: list[int] = field(default_factory=list)

    def read(self, engine: MemoryEngine, until: int) -> None:
        """Take what the log has up to an offset; raise `Halted`."""
        if max(self.fold.next_offset, until) > engine.end_offset:
            raise Halted("The shared log has lost its end.")
        while self.fold.next_offset < until:
            offsets = range(self.fold.next_offset, until)
            found = [Stored(at, one, 0) for at in offsets for one in engine.rows(at)]
            if not found:
                raise LogDamaged(f"Record {until - 1} is missing: nothing lies from {offsets[0]} on.")
            for one in records_before_gap(engine, self.fold, found):
                step = self.fold.take(one.offset, one.stored)
                if step.outcome is Outcome.READ_AGAIN:
                    break
                self._accept(step)

    def _accept(self, step: Step) -> None:
        if step.outcome is Outcome.ACCEPTED:
            self.operations += [number for one in step.flush for number in operations_of(one.body)]

    def checkpoint(self) -> str:
        """Return all that a node needs to go on from here, as it would lie on a disk."""
        return json.dumps({"fold": self.fold.freeze(), "operations": self.operations})

    @classmethod
    def of(cls, checkpoint: str) -> Reader:
        """Return what a checkpoint keeps."""
        kept = json.loads(checkpoint)
        return cls(Fold.thaw(kept["fold"]), kept["operations"])


class Node:
    """One machine: its checkpoints, which are synced, and what a kill takes."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self._world = name, world
        self.checkpoints: list[str] = []
        self.is_up, self.has_disk, self.is_halted = True, True, False
        self.is_stuck = False
        """Whether the log begins behind what the node has, and no other has a checkpoint."""
        self.written: list[int] = []
        """Operations that lie on the local disk, accepted or not."""
        self.reader = Reader()
        self.candidate: Candidate | None = None
        self.epoch_offset: int | None = None
        """Where the candidate's EPOCH lies, once it is appended."""
        self.leader: Leader | None = None

    def kill(self) -> None:
        """End without a word."""
        self.is_up, self.leader, self.candidate = False, None, None

    def start(self) -> None:
        """Begin again from the newest checkpoint, or a peer's where the log begins behind it."""
        self.is_up, self.leader, self.candidate = True, None, None
        self.reader = Reader.of(self.checkpoints[-1]) if self.checkpoints else Reader()
        if self._world.rules.is_local_disk_believed and len(self.written) > len(self.reader.operations):
            self.reader.operations = list(self.written)
            self.reader.fold.end = len(self.written) * OPERATION.size
        if self._is_behind() and (copies := self._world.checkpoints()):
            self.checkpoints = [max(copies, key=lambda one: Reader.of(one).fold.next_offset)]
            self.reader = Reader.of(self.checkpoints[0])
        self.is_stuck = self._is_behind()

    def stand(self) -> None:
        """Read to the end, to lead."""
        engine = self._world.engine
        if self._is_behind():
            self.is_stuck = True
            return
        self.reader.read(engine, engine.end_offset)
        if not self.reader.fold.is_founded:
            return
        drawn = self._world.random.randbytes(16)
        holder = drawn if self._world.rules.is_holder_drawn else self.name.encode().ljust(16)
        self.candidate, self.epoch_offset = Candidate(self.reader.fold, holder, {"node": self.name}), None

    def begin_epoch(self) -> None:
        """Append the EPOCH; others may have done so since the log was read."""
        assert self.candidate is not None
        epoch = self.candidate.epoch
        if self._world.refuses(epoch.epoch - 1, Position(epoch.start, epoch.chain)):
            self.candidate = None
            return
        answer = self._world.engine.append(encode(self.candidate.epoch))
        self.epoch_offset = answer.offset
        if answer.offset is None:
            self.candidate = None

    def decide(self) -> None:
        """Read up to the EPOCH; lead if the log says so."""
        assert self.candidate is not None
        assert self.epoch_offset is not None
        candidate, offset, self.candidate = self.candidate, self.epoch_offset, None
        engine = self._world.engine
        if self._is_behind():
            self.is_stuck = True
            return
        if self.reader.fold.next_offset <= offset:
            self.reader.read(engine, offset + 1)
        if candidate.has_won(self.reader.fold, self._crc_again(candidate)):
            self.leader = Leader(self.reader.fold)

    def write(self, operations: list[int]) -> list[int]:
        """Write a flush; return the operations that may be acknowledged."""
        assert self.leader is not None
        self.written = self.reader.operations + operations
        if self._world.random.random() < 0.03:  # after the local write
            self.kill()
            return []
        if self._world.refuses(self.reader.fold.epoch, self.leader.position):
            self.start()
            return []
        proof = Proof.ACCEPTED
        for one in self.leader.make_flush([OPERATION.pack(OPERATION.size, number) for number in operations]):
            answer = self._world.engine.append(encode(one))
            if not answer.is_ok:
                self.start()
                return []
            proof = self.leader.record_answer(answer.offset)
        if proof is Proof.NOTHING and not self._prove():
            self.start()
            return []
        return operations

    def _prove(self) -> bool:
        """Append a BEAT, read up to it, and ask the fold."""
        assert self.leader is not None
        answer = self._world.engine.append(encode(self.leader.make_beat({})))
        if not answer.is_ok or answer.offset is None:
            return False
        self.reader.read(self._world.engine, answer.offset + 1)
        return self.leader.check_proof(self.reader.fold)

    def _is_behind(self) -> bool:
        return self.reader.fold.next_offset < self._world.engine.first_offset

    def _crc_again(self, candidate: Candidate) -> int | None:
        offset, engine = candidate.record_to_verify, self._world.engine
        if offset is None or offset < engine.first_offset:
            return None
        rows = engine.rows(offset) if offset < engine.end_offset else []
        return zlib.crc32(rows[0]) if rows else 0


class World:
    """Three nodes, and an oracle of what was acknowledged."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.random, self.rules = Random(seed), rules or Rules()
        self.engine = MemoryEngine(self.random)
        self.is_truncating = seed % 3 == 2
        names = "AAC" if seed % 3 == 1 else "ABC"
        genesis = genesis_of(CLUSTER)
        self.engine.found(encode(genesis))
        self.nodes = [Node(name, self) for name in names]
        self.acknowledged: list[int] = []
        self._count = 0
        self._has_lost_disk = False
        self.fault = ""
        """What became of a record, and of which: `spoiled_at`."""
        self.spoiled_at = -1
        self.engine.is_well = self.rules.spoils
        self.engine.is_dense = self.rules.spoils and seed % 2 == 1
        self.is_truncating &= not self.rules.spoils

    def checkpoints(self) -> list[str]:
        """Return the checkpoints that can be had from a machine."""
        return [one for node in self.nodes if node.has_disk for one in node.checkpoints]

    def run(self) -> None:
        """Take all steps; look now and then."""
        for number in range(STEPS):
            self.step()
            if number % 20 == 19:
                self.check()

    def step(self) -> None:
        """Let one node do something."""
        node = self.random.choice(self.nodes)
        if node.is_halted:
            return
        try:
            self._act(node, self.random.random())
        except Halted as error:
            assert self.is_broken, "a node halted over an engine that kept its promise"
            self._require_named(error)
            node.is_halted, node.leader = True, None

    @property
    def is_broken(self) -> bool:
        """Whether the engine has lost or changed something; what is only doubled is all there."""
        return self.engine.is_short or self.fault not in ("", "doubled")

    def _require_named(self, error: Halted) -> None:
        """Require that an error names the record that was spoiled.

        One that is another record of the log now is found out by those behind it, and so is one that is lost
        where offsets may have gaps.
        """
        said = str(error)
        assert said, "a halt without a sentence"
        if self.fault == "lost" and not self.engine.is_dense:
            return
        if self.fault in ("doubled and another", "lost", "changed"):
            assert f"Record {self.spoiled_at} " in said, f"record {self.spoiled_at} was {self.fault}: {said}"

    def _require_found(self, fold: Fold, named: int) -> None:
        """Let who has read all look where another cannot read on: by its own look it finds what is wrong."""
        found = fault_at(self.engine, fold, named)
        if self.spoiled_at < self.engine.first_offset:
            return  # trimmed
        assert f"Record {self.spoiled_at} " in found, f"record {self.spoiled_at} was {self.fault}: {found!r}"

    def refuses(self, epoch: int, position: Position) -> bool:
        """Return whether the engine, if it compares, has another head than a writer."""
        if not self.rules.spoils:
            return False
        truth = self.truth().fold
        return (epoch, position) != (truth.epoch, Position(truth.end, truth.chain))

    def truth(self) -> Reader:
        """Return a reader of all that was accepted, whatever became of it since."""
        reader = Reader()
        for offset, stored in enumerate(self.engine.records):
            reader._accept(reader.fold.take(offset, stored))
        return reader

    def _spoil(self) -> None:
        """Let a record that was accepted be lost, doubled or changed where it lies."""
        engine, random = self.engine, self.random
        at = random.randrange(engine.first_offset, engine.end_offset)
        stored, other = engine.records[at], random.choice(engine.records[:at] or [b"nothing"])
        self.fault, self.spoiled_at = random.choice(FAULTS), at
        rows = {
            "doubled": [stored, stored],
            "doubled and another": random.sample([stored, other], 2),
            "lost": [],
            "changed": [stored[:-1] + bytes([stored[-1] ^ 1])],
            "another's": [other],
        }
        engine.spoil(at, *rows[self.fault])

    def _act(self, node: Node, chance: float) -> None:
        engine = self.engine
        long_enough = engine.end_offset > engine.first_offset + 5
        if self.is_truncating and not engine.is_short and long_enough and self.random.random() < 0.01:
            engine.lose_end()
        elif self.rules.spoils and not self.fault and long_enough and self.random.random() < 0.02:
            self._spoil()
        elif not node.is_up:
            if chance < 0.5:
                node.start()
        elif node.candidate is not None and not node.is_stuck and chance > 0.13:
            node.begin_epoch() if node.epoch_offset is None else node.decide()
        elif node.is_stuck:
            node.start()
        else:
            self._work(node, chance)

    def _work(self, node: Node, chance: float) -> None:
        if chance < 0.06:
            node.kill()
        elif chance < 0.07:
            self._lose_disk(node)
        elif chance < 0.17:
            node.stand()
        elif chance < 0.60 and node.leader is not None:
            count = self.random.randrange(1, 4)
            operations = list(range(self._count, self._count + count))
            self._count += count
            self.acknowledged += node.write(operations)
        elif chance < 0.80 and node.leader is None:
            self._follow(node)
        elif chance < 0.88 and node.leader is None:
            node.checkpoints = [*node.checkpoints, node.reader.checkpoint()][-2:]
        elif chance < 0.93:
            self._trim()

    def _follow(self, node: Node) -> None:
        at, engine = node.reader.fold.next_offset, self.engine
        if at > engine.end_offset:
            raise Halted("The shared log has lost its end.")
        if at >= engine.first_offset:
            node.reader.read(engine, self.random.randrange(at, engine.end_offset + 1))

    def _lose_disk(self, node: Node) -> None:
        """One machine's disk may be lost."""
        if not self._has_lost_disk:
            self._has_lost_disk = True
            node.checkpoints, node.written = [], []
            node.kill()

    def _trim(self) -> None:
        """Let go of what enough machines hold in two checkpoints."""
        held = sorted(
            (
                Reader.of(one.checkpoints[0]).fold.next_offset
                for one in self.nodes
                if len(one.checkpoints) == 2
            ),
            reverse=True,
        )
        if len(held) >= self.rules.trims_below_count:
            self.engine.trim(held[self.rules.trims_below_count - 1])

    def check(self) -> None:
        """Compare what was acknowledged, and every node, with a reader of the whole log."""
        all_of_it = self.truth() if self.rules.spoils else Reader()
        try:
            all_of_it.read(self.engine, self.engine.end_offset)
        except Halted:
            assert self.engine.is_short, "the log of an engine that kept its promise halts a reader"
            return
        if not self.is_broken and not self.engine.is_short and self.engine.is_well:
            faults = [fault_at(self.engine, all_of_it.fold, one) for one in range(self.engine.end_offset)]
            assert not any(faults), f"a fault of a sound log: {faults}"
        operations = all_of_it.operations
        lost = set(self.acknowledged).difference(operations)
        assert self.engine.is_short or not lost, f"acknowledged and lost: {sorted(lost)[:3]}"
        assert len(operations) == len(set(operations)), "an operation is in the history twice"
        for node in self.nodes:
            self._compare(node, all_of_it)
        assert self.engine.is_short or self._can_be_rebuilt(), "nobody can rebuild what was trimmed"

    def _compare(self, node: Node, all_of_it: Reader) -> None:
        """Let a copy of a node read on to the end: it has the same history, or halts where it may."""
        at = node.reader.fold.next_offset
        accepted = all_of_it.operations[: len(node.reader.operations)]
        is_same = self.engine.is_short or node.reader.operations == accepted
        assert is_same, f"{node.name} has another history, in silence"
        out_of_reach = not self.engine.first_offset <= at <= self.engine.end_offset
        if not node.is_up or node.is_stuck or node.is_halted or out_of_reach:
            return
        if self.engine.is_short and node.reader.fold.epoch > all_of_it.fold.epoch:
            return  # it knows an epoch that is gone; it hears nobody, stands, and finds out
        copy = Reader.of(node.reader.checkpoint())
        try:
            copy.read(self.engine, self.engine.end_offset)
            if self.is_broken and all_of_it.fold.epoch:
                for offset, record in enumerate(self._said_next(all_of_it.fold), self.engine.end_offset):
                    copy.fold.take(offset, encode(record))
        except Halted as error:
            assert self.is_broken, f"{node.name} halts, and its engine kept its promise"
            self._require_named(error)
            if isinstance(error, LogDamaged) and not self.engine.is_short:
                named = copy.fold.next_offset if error.record is None else error.record
                self._require_found(all_of_it.fold, named)
            return
        assert copy.operations == all_of_it.operations, f"{node.name} has another history, in silence"

    def _said_next(self, fold: Fold) -> list[SharedRecord]:
        """Return what readers of the log hear next: a BEAT of its leader, or the EPOCH and BEAT of another.

        Raise `Halted` where whoever has read the log halts at the BEAT, as the leader knows of lost records.
        """
        following = Fold.thaw(fold.freeze())
        for leader in [one.leader for one in self.nodes if one.leader is not None]:
            if (leader._epoch, leader._holder) == (fold.epoch, fold.holder) and not fold.gathered_count:
                beat = leader.make_beat({})
                following.take(fold.next_offset, encode(beat))
                return [beat]
        epoch = Candidate(following, b"who leads next".ljust(16), {}).epoch
        following.take(fold.next_offset, encode(epoch))
        return [epoch, Leader(following).make_beat({})]

    def _can_be_rebuilt(self) -> bool:
        first = self.engine.first_offset
        kept = [Reader.of(one).fold.next_offset for one in self.checkpoints()]
        running = [one.reader.fold.next_offset for one in self.nodes if one.is_up and not one.is_stuck]
        return first == 0 or any(at >= first for at in kept + running)


def operations_of(body: bytes) -> list[int]:
    """Return the numbers of the operations in a body."""
    return [number for _, number in OPERATION.iter_unpack(body)]
