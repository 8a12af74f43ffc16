"""Simulate nodes that use a shared log: kills, candidacies, appends, checkpoints, and trimming.

The simulation models how a cluster uses the `sharedlog` package, without a broker. The history consists of
operations of eight bytes each. The operations that leaders may acknowledge are recorded. A reader that reads
the whole log must find each of these operations exactly once, and all nodes must have the same history.

With `Rules.spoils`, the engine compares heads, as PostgreSQL does, and loses, duplicates, or changes a single
accepted record. No node may have a history that differs from the accepted history. Each node that reads the
spoiled record must halt with an error message that contains the record number. If the record is only
duplicated, no node may halt.

The simulation is based on `replication_model.py` of the shared references, but uses the real records and the
real fold.
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
"""The ways in which a record can be spoiled."""


@dataclass
class Rules:
    """The rules of the simulation. A mutant omits one of the rules."""

    trims_below_count: int = 2
    is_local_disk_believed: bool = False
    is_holder_drawn: bool = True
    spoils: bool = False
    """True if the engine spoils a record but otherwise works correctly."""


@dataclass
class Reader:
    """A fold, and the operations that have been accepted."""

    fold: Fold = field(default_factory=lambda: Fold(CLUSTER))
    operations: list[int] = field(default_factory=list)

    def read(self, engine: MemoryEngine, until: int) -> None:
        """Apply all records before an offset, or raise `Halted`."""
        if max(self.fold.next_offset, until) > engine.end_offset:
            raise Halted("The shared log has lost its end.")
        while self.fold.next_offset < until:
            offsets = range(self.fold.next_offset, until)
            found = [Stored(at, one, 0) for at in offsets for one in engine.rows(at)]
            if not found:
                raise LogDamaged(f"Record {until - 1} is missing: nothing lies from {offsets[0]} on.")
            for one in records_before_gap(engine, self.fold, found):
                step = self.fold.apply_record(one.offset, one.stored)
                if step.outcome is Outcome.READ_AGAIN:
                    break
                self._accept(step)

    def _accept(self, step: Step) -> None:
        if step.outcome is Outcome.ACCEPTED:
            self.operations += [number for one in step.flush for number in operations_of(one.body)]

    def checkpoint(self) -> str:
        """Return the encoded state, from which a node can continue."""
        return json.dumps({"fold": self.fold.freeze(), "operations": self.operations})

    @classmethod
    def of(cls, checkpoint: str) -> Reader:
        """Restore a reader from a checkpoint."""
        kept = json.loads(checkpoint)
        return cls(Fold.thaw(kept["fold"]), kept["operations"])


class Node:
    """A node with synced checkpoints, and with state in memory that is lost when the node is killed."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self._world = name, world
        self.checkpoints: list[str] = []
        self.is_up, self.has_disk, self.is_halted = True, True, False
        self.is_stuck = False
        """True if the node needs trimmed records, and no other node has a suitable checkpoint."""
        self.written: list[int] = []
        """The operations on the local disk, including those that were not accepted."""
        self.reader = Reader()
        self.candidate: Candidate | None = None
        self.epoch_offset: int | None = None
        """The offset of the candidate's EPOCH record, or None if it has not been appended."""
        self.leader: Leader | None = None

    def kill(self) -> None:
        """Stop the node without a clean shutdown."""
        self.is_up, self.leader, self.candidate = False, None, None

    def start(self) -> None:
        """Start from the newest checkpoint, or from that of another node if required records were trimmed."""
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
        """Read to the end of the log, and become a candidate."""
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
        """Append the candidate's EPOCH record, even if another node has appended one in the meantime."""
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
        """Read up to the candidate's EPOCH record, and become the leader if the candidate has won."""
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
        """Append a flush, and return the operations that may be acknowledged."""
        assert self.leader is not None
        self.written = self.reader.operations + operations
        if self._world.random.random() < 0.03:  # The node is killed after the local write.
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
        """Append a BEAT, read up to this BEAT, and return whether the fold proves the leader's records."""
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
    """A cluster of three nodes, and the operations that were acknowledged."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.random, self.rules = Random(seed), rules or Rules()
        self.engine = MemoryEngine(self.random)
        self.is_truncating = seed % 3 == 2
        names = "AAC" if seed % 3 == 1 else "ABC"
        genesis = genesis_of(CLUSTER)
        self.engine.create_log(encode(genesis))
        self.nodes = [Node(name, self) for name in names]
        self.acknowledged: list[int] = []
        self._count = 0
        self._has_lost_disk = False
        self.fault = ""
        """The way in which the record at `spoiled_at` was spoiled, or "" if no record was spoiled."""
        self.spoiled_at = -1
        self.engine.is_well = self.rules.spoils
        self.engine.is_dense = self.rules.spoils and seed % 2 == 1
        self.is_truncating &= not self.rules.spoils

    def checkpoints(self) -> list[str]:
        """Return the checkpoints of all nodes that have a disk."""
        return [one for node in self.nodes if node.has_disk for one in node.checkpoints]

    def run(self) -> None:
        """Perform all steps, and check the result regularly."""
        for number in range(STEPS):
            self.step()
            if number % 20 == 19:
                self.check()

    def step(self) -> None:
        """Perform a random action of a random node."""
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
        """True if the engine has lost or changed a record. A duplicate record does not count."""
        return self.engine.is_short or self.fault not in ("", "doubled")

    def _require_named(self, error: Halted) -> None:
        """Verify that the error message contains the number of the spoiled record.

        If the spoiled record was replaced by another record of the log, or was lost from a log whose offsets
        may have gaps, a later record reveals the fault. In these cases, the number is not verified.
        """
        said = str(error)
        assert said, "a halt without a sentence"
        if self.fault == "lost" and not self.engine.is_dense:
            return
        if self.fault in ("doubled and another", "lost", "changed"):
            assert f"Record {self.spoiled_at} " in said, f"record {self.spoiled_at} was {self.fault}: {said}"

    def _require_found(self, fold: Fold, named: int) -> None:
        """Verify that a node that has read the whole log finds the fault reported by another node."""
        found = fault_at(self.engine, fold, named)
        if self.spoiled_at < self.engine.first_offset:
            return  # trimmed
        assert f"Record {self.spoiled_at} " in found, f"record {self.spoiled_at} was {self.fault}: {found!r}"

    def refuses(self, epoch: int, position: Position) -> bool:
        """Return whether the engine compares heads and its head differs from the writer's head."""
        if not self.rules.spoils:
            return False
        truth = self.truth().fold
        return (epoch, position) != (truth.epoch, Position(truth.end, truth.chain))

    def truth(self) -> Reader:
        """Return a reader that has read all accepted records, before any of them was spoiled."""
        reader = Reader()
        for offset, stored in enumerate(self.engine.records):
            reader._accept(reader.fold.apply_record(offset, stored))
        return reader

    def _spoil(self) -> None:
        """Spoil a random accepted record in a random way."""
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
        """Lose the disk of a node, unless the disk of a node was lost before."""
        if not self._has_lost_disk:
            self._has_lost_disk = True
            node.checkpoints, node.written = [], []
            node.kill()

    def _trim(self) -> None:
        """Trim the records that are covered by the older checkpoints of enough nodes."""
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
        """Compare the acknowledged operations and all nodes with a reader of the whole log."""
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
        """Verify that a copy of a node that reads to the end has the same history or halts correctly."""
        at = node.reader.fold.next_offset
        accepted = all_of_it.operations[: len(node.reader.operations)]
        is_same = self.engine.is_short or node.reader.operations == accepted
        assert is_same, f"{node.name} has another history, in silence"
        out_of_reach = not self.engine.first_offset <= at <= self.engine.end_offset
        if not node.is_up or node.is_stuck or node.is_halted or out_of_reach:
            return
        if self.engine.is_short and node.reader.fold.epoch > all_of_it.fold.epoch:
            return  # The node's epoch was lost. The node detects the loss when it becomes a candidate.
        copy = Reader.of(node.reader.checkpoint())
        try:
            copy.read(self.engine, self.engine.end_offset)
            if self.is_broken and all_of_it.fold.epoch:
                for offset, record in enumerate(self._said_next(all_of_it.fold), self.engine.end_offset):
                    copy.fold.apply_record(offset, encode(record))
        except Halted as error:
            assert self.is_broken, f"{node.name} halts, and its engine kept its promise"
            self._require_named(error)
            if isinstance(error, LogDamaged) and not self.engine.is_short:
                named = copy.fold.next_offset if error.record is None else error.record
                self._require_found(all_of_it.fold, named)
            return
        assert copy.operations == all_of_it.operations, f"{node.name} has another history, in silence"

    def _said_next(self, fold: Fold) -> list[SharedRecord]:
        """Return the next records of the log: a BEAT of the leader, or the EPOCH and BEAT of another node.

        Raise `Halted` if a reader of the log halts at the leader's BEAT, because records were lost that the
        leader has read.
        """
        following = Fold.thaw(fold.freeze())
        for leader in [one.leader for one in self.nodes if one.leader is not None]:
            if (leader._epoch, leader._holder) == (fold.epoch, fold.holder) and not fold.gathered_count:
                beat = leader.make_beat({})
                following.apply_record(fold.next_offset, encode(beat))
                return [beat]
        epoch = Candidate(following, b"who leads next".ljust(16), {}).epoch
        following.apply_record(fold.next_offset, encode(epoch))
        return [epoch, Leader(following).make_beat({})]

    def _can_be_rebuilt(self) -> bool:
        first = self.engine.first_offset
        kept = [Reader.of(one).fold.next_offset for one in self.checkpoints()]
        running = [one.reader.fold.next_offset for one in self.nodes if one.is_up and not one.is_stuck]
        return first == 0 or any(at >= first for at in kept + running)


def operations_of(body: bytes) -> list[int]:
    """Return the numbers of the operations in a record body."""
    return [number for _, number in OPERATION.iter_unpack(body)]
