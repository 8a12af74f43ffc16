"""Three nodes, one shared log and the clients of `test_broker`: what clients were told holds on every leader.

A node has a disk of its own and a replica on it. One leads; its core is the one that clients talk to, so the
oracle of a single broker watches a whole cluster. The leader may be killed, lose its power, fail to write,
lose the engine, or be paused until another leads and come back as a zombie, which then must not get anything
accepted. Followers read a little at a time, die, and begin again at their newest checkpoint. In every second
seed the engine compares (`tests.memory_engine`), in the others only order decides.

Nodes tell of their checkpoints, one may be forgotten, and the leader trims the log before what all have that
are known. A disk may be lost, and the next one when the node with the first has a copy again: what is trimmed
lies on another node's disk, whose files go through the real transfer, which may end at any of its operations.
"""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from commitlog import layout
from commitlog.errors import StoreError
from commitlog.flush import Flush
from services.broker.broker import SHARED, Broker
from services.cluster import transfer
from services.cluster.copies import OwnCopy, look_for_copies
from services.cluster.errors import CopyRefused
from services.cluster.replica import Replica
from sharedlog.engine import Head
from sharedlog.engines import Beginning
from sharedlog.errors import NotAccepted, Refused, Unknown
from sharedlog.fold import Position
from sharedlog.leading import Candidate
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode
from tests.memory_disk import Death, Fault, MemoryDisk
from tests.memory_engine import MemoryEngine
from tests.simulation.second_core import differing_tables
from tests.simulation.tables import tables
from tests.simulation.test_broker import World

CLUSTER: Final = b"one cluster's id"
NOWHERE: Final = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
BEGAN: Final = Beginning(CLUSTER, {})


@dataclass
class Node:
    """A machine: its disk, and what runs on it."""

    name: str
    disk: MemoryDisk
    replica: Replica | None = None
    own_copy: OwnCopy | None = None


@dataclass
class Zombie:
    """A leader that was paused: its node, and the flush that it will try to write."""

    node: Node
    flush: Flush


class ClusterWorld(World):
    """The world of one broker, whose core is that of the leader of three nodes."""

    def __init__(self, seed: int) -> None:
        self.nodes = [Node(name, MemoryDisk()) for name in "abc"]
        self.random = Random(~seed)
        self.engine = MemoryEngine(self.random, NOWHERE if seed % 2 else None)
        genesis = SharedRecord(CLUSTER, Kind.GENESIS, 0, NOBODY, 0, CHAIN_AT_GENESIS)
        self.engine.found(encode(genesis))
        self.leader = self.nodes[0]
        self.zombies: list[Zombie] = []
        self.takeover_count = self.zombie_count = self.trim_count = self.copy_count = 0
        self._lost: Node | None = None
        """The node that has no copy, or has not told of one, since its disk was lost."""
        super().__init__(seed)
        self.faults.spares_files = True

    # What a single broker's world does with its store, done by a cluster.

    def opened(self) -> Broker:
        """Elect a leader; return its core. What a node writes need not be synced."""
        self.settings = replace(self.settings, sync_flush=False)
        return self.elect()

    def elect(self) -> Broker:
        """Let nodes stand until one leads; return its core."""
        for disk in [node.disk for node in self.nodes]:
            disk.well()
        while True:
            node = self.random.choice([one for one in self.nodes if not self._is_paused(one)])
            with suppress(Unknown, Refused, NotAccepted):
                if self._stand(node):
                    return self._lead(node)

    def _stand(self, node: Node) -> bool:
        self._read(node, self.engine.end_offset)
        replica = self._up(node)
        candidate = Candidate(replica.fold, self.random.randbytes(16), {"node": node.name})
        end = Position(replica.fold.end, replica.fold.chain)
        head = Head(replica.fold.epoch, replica.fold.holder, end)
        following = Head(candidate.epoch.epoch, candidate.epoch.holder, end)
        offset = self.engine.append_if(head, [encode(candidate.epoch)], following)
        if offset is None:
            return False
        self._read(node, offset + 1)
        return candidate.has_won(replica.fold, None)

    def _lead(self, node: Node) -> Broker:
        replica = self._up(node)
        replica.lead(self.engine, self.now_ms, lambda: self.now_ms, node.name)
        self.leader, self.disk = node, node.disk
        self.faults.move(node.disk)
        self.takeover_count += 1
        return replica.core

    def _up(self, node: Node) -> Replica:
        """The replica of a node, which is started if it is down."""
        if node.replica is None:
            node.replica = Replica.open(node.disk, self.settings, self.now_ms, CLUSTER)
            node.own_copy = OwnCopy(node.name, f"http://{node.name}", BEGAN, node.disk, str)
        return node.replica

    def _read(self, node: Node, until: int) -> None:
        replica = self._up(node)
        if replica.fold.next_offset < self.engine.first_offset:
            node.replica = None
            self._copy(node)
            replica = self._up(node)
        while replica.fold.next_offset < until:
            for one in self.engine.read(replica.fold.next_offset, 1):
                if one.offset < until:
                    replica.take(one.offset, one.stored, self.now_ms)
        replica.require_sound(has_read_all=until == self.engine.end_offset)

    # Copies.

    def _copy(self, node: Node) -> None:
        """Get the copy of another node, however often the disk fails on the way; there must be one."""
        self.copy_count += 1
        for _ in range(200):
            try:
                self._copy_once(node)
                return
            except Death:
                node.disk.crash(lambda count: self.random.randrange(count + 1))
            except OSError:
                node.disk.well()
        raise AssertionError("a copy that is to be had was not got")

    def _copy_once(self, node: Node) -> None:
        transfer.take_over(node.disk)
        first, found, *_ = look_for_copies(well(self.engine), CLUSTER, node.name)
        own_copy = OwnCopy(node.name, "", BEGAN, node.disk, str)
        for name, held in found:
            other = next(one for one in self.nodes if one.name == name)
            with suppress(Unknown):
                self.engine.note(own_copy.hold(held.next_record))
            with suppress(CopyRefused):
                sent = io.BytesIO(sent_by(other))
                if self.random.random() < 0.5:
                    node.disk.strike(self.random.randrange(1, 60), self.random.choice(list(Fault)))
                transfer.receive(sent, node.disk)
                transfer.take_over(node.disk)
                node.disk.well()
                return
        raise AssertionError(f"the log begins at {first}, and no node has a copy")

    def _announce(self, node: Node) -> None:
        """Let a node tell of its newest checkpoint."""
        replica = self._up(node)
        assert node.own_copy is not None
        stored = node.own_copy.to_tell(replica, self.now_ms)
        if stored is not None:
            with suppress(Unknown):
                self.engine.note(stored)
                is_told = replica.core.shared_in_checkpoint is not None
                self._lost = None if node is self._lost and is_told else self._lost

    def _trim(self) -> None:
        """Let the leader trim what all nodes have, as far as it has read."""
        below = self._up(self.leader).fold.holdings.trims_below
        if below > self.engine.first_offset:
            self.engine.trim(below)
            self.trim_count += 1

    def _reopen(self, acknowledged_offset: int | None) -> None:
        """The leader steps down: its core is void, and another one leads."""
        told_offset = self.broker.durable_offset
        self.leader.replica = None
        self.retirements = []
        self.flying.clear()
        self.waiting.clear()
        self.held.clear()
        self.broker = self.elect()
        assert self.broker.durable_offset >= told_offset, "what was told is gone"
        self._send_again()

    def _hear(self) -> None:
        durable = self.broker.durable_offset
        due = [news for durable_at, news in self.waiting if durable_at <= durable]
        self.waiting = [(durable_at, news) for durable_at, news in self.waiting if durable_at > durable]
        for news in due:
            news()  # type: ignore[operator]

    def checkpoint(self) -> None:
        """The leader's own; not in the flush that another step has left under way."""
        self.leader.disk.well()
        super().checkpoint()

    # What befalls the others.

    def around(self) -> None:
        """Between two steps of the leader something happens to others, or to the right to lead."""
        self.engine.now_ms = self.now_ms
        chance = self.random.random()
        if chance < 0.5:
            self._follow(self.random.choice(self.nodes))
        elif chance < 0.53:
            self._kill(self.random.choice(self.nodes))
        elif chance < 0.55:
            self._pause()
        elif chance < 0.60 and self.zombies:
            self._wake(self.zombies.pop(0))
        elif chance < 0.605:
            self._lose_disk(self.random.choice(self.nodes))
        elif chance < 0.65:
            self._beat()
        elif chance < 0.75:
            self._tell_of(self.random.choice(self.nodes))
        elif chance < 0.80:
            self._trim()
        elif chance < 0.81 and self._lost is None:
            self._beat({"forget": self.random.choice(self.nodes).name})

    def _tell_of(self, node: Node) -> None:
        if not self._is_paused(node) and node.replica is not None:
            node.disk.well()
            self._announce(node)

    def _follow(self, node: Node) -> None:
        if node is self.leader or self._is_paused(node):
            return
        if self.random.random() < 0.1:
            node.disk.strike(self.random.randrange(1, 20), self.random.choice(list(Fault)))
        try:
            replica = self._up(node)
            at = max(replica.fold.next_offset, self.engine.first_offset)
            until = self.random.randrange(at, self.engine.end_offset + 1)
            with suppress(Unknown):
                self._read(node, until)
            replica = self._up(node)
            if replica.core.is_checkpoint_due or self.random.random() < 0.1:
                replica.checkpoint(self.now_ms)
        except Death:
            self._kill(node)
        except OSError:
            node.replica = None
        node.disk.well()

    def _kill(self, node: Node) -> None:
        if node is self.leader or self._is_paused(node):
            return
        node.replica = None
        if self.random.random() < 0.5:
            node.disk.crash(lambda count: self.random.randrange(count + 1))
        else:
            node.disk.kill(lambda count: self.random.randrange(count + 1))

    def _pause(self) -> None:
        """The leader stops between two of its steps, with something to write; another takes over."""
        if self.zombies or self.flying:
            return
        self.take_flush()
        if not self.flying:
            return
        self.zombies.append(Zombie(self.leader, self.flying[0]))
        paused = self.leader
        self.waiting.clear()
        self._forget_leader()
        assert self.leader is not paused

    def change_leader(self) -> None:
        """Let the leader step down, and a node lead that may be another."""
        while not self.broker.is_quiet:
            self.flush()
        self.leader.replica = None
        self._forget_leader()

    def _forget_leader(self) -> None:
        self.retirements = []
        self.flying.clear()
        self.held.clear()
        self.broker = self.elect()
        self._send_again()

    def _wake(self, zombie: Zombie) -> None:
        """A paused leader goes on with its flush, which must not be accepted; then it begins again."""
        zombie.node.disk.well()
        try:
            zombie.flush.write()
        except NotAccepted:
            self.zombie_count += 1
        else:
            raise AssertionError("a zombie's flush was accepted")
        zombie.node.replica = None

    def _lose_disk(self, node: Node) -> None:
        if self._lost is not None or node is self.leader or self._is_paused(node):
            return
        self._lost = node
        node.replica, node.disk = None, MemoryDisk()
        if self.random.random() < 0.3:
            self._copy_if_trimmed(node)

    def _copy_if_trimmed(self, node: Node) -> None:
        if self.engine.first_offset:
            self._copy(node)

    def _beat(self, facts: dict[str, Any] | None = None) -> None:
        sink = self._up(self.leader).sink
        assert sink is not None
        if not self.flying:
            try:
                sink.beat(facts or {})
            except NotAccepted:
                self._reopen(None)

    @property
    def finalized(self) -> int:
        """The finalized version, as the leader has read it."""
        return self._up(self.leader).fold.finalized

    def finalize(self, version: int) -> None:
        """Let the leader finalize a version, unless a flush is under way."""
        self._beat({"finalize": version})

    def _is_paused(self, node: Node) -> bool:
        return any(zombie.node is node for zombie in self.zombies)

    # At the end.

    def settle(self) -> None:
        """The engine is well from now on."""
        self.engine.is_well = True
        super().settle()

    def compare(self) -> None:
        """All nodes have read all: each has the tables of the leader, and so has one from its checkpoint."""
        while self.zombies:
            self._wake(self.zombies.pop())
        while not self.broker.is_quiet:
            self.endure(self.flush)
        expected = self._seen(self.broker)
        for node in self.nodes:
            if node is self.leader:
                continue
            for _ in range(2):
                self.read_all(node)
                replica = self._up(node)
                assert replica.fold.chain == self._up(self.leader).fold.chain, "two histories"
                assert replica.fold.finalized == self.finalized, "two versions"
                assert not (differing := differing_tables(expected, self._seen(replica.core))), differing
                assert _halves(replica.core) == _halves(self.broker), "a half's bytes are another's"
                replica.checkpoint(self.now_ms)
                node.replica = None

    def read_all(self, node: Node) -> None:
        """Let a node read all that the log has, however often that takes."""
        while self._up(node).fold.next_offset < self.engine.end_offset:
            with suppress(Unknown):
                self._read(node, self.engine.end_offset)

    def _seen(self, core: Broker) -> dict[str, Any]:
        return {name: table for name, table in tables(core).items() if not name.startswith(SHARED)}


def well(engine: MemoryEngine) -> MemoryEngine:
    """The engine, as one sees it who asks until it answers."""
    seen = MemoryEngine(Random(0))
    seen.__dict__ = engine.__dict__ | {"is_well": True, "is_away": False}
    return seen


def sent_by(node: Node) -> bytes:
    """What a node sends to whoever wants its copy: its disk as a folder, and the real transfer.

    Queues and the index of keys are not in the folder, and must not be missed.
    """
    derived = (f"{layout.CONSUMEQUEUE}/", f"{layout.KEYINDEX}/")
    with TemporaryDirectory() as folder:
        for path in [one for one in node.disk.paths() if not one.startswith(derived)]:
            file = Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(node.disk.read(path, 0, node.disk.size(path)))
        try:
            return b"".join(transfer.stream(Path(folder)))
        except StoreError as error:
            raise CopyRefused(str(error)) from error


def _halves(core: Broker) -> dict[int, bytes]:
    """The bodies of the halves that somebody still may end, by log offset."""
    outcomes = core.transactions.outcomes
    return {offset: core.store.log.read(offset).body for offset in (*outcomes.open, *outcomes.expired)}
