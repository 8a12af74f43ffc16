"""Three nodes, one shared log and the clients of `test_broker`: answers to clients hold on every leader.

A node has a disk and a replica on it. One node leads; its core serves the clients, so the oracle of a single
broker verifies a whole cluster. The leader may be killed, lose its power, fail to write, lose the engine, or
be paused until another leads and return as a zombie, whose appends must not be accepted. Followers read a few
records at a time, die, and restart at their newest checkpoint. With odd seeds the engine compares heads
(`tests.memory_engine`), with even seeds only the order of appends decides.

The election of a node (`services.cluster.election`) decides its next action; actions are executed one by one
(`cluster_process`). The world decides which node continues, how far, and which node reads nothing for so long
that it becomes a candidate. No two nodes lead in one epoch.

Answers wait as in the product (`services.live.durability`); clients also call a zombie that has not yet
detected the other leader, and every answer, including a refusal, must be true. In half of the seeds the
nodes' clocks differ, by seconds or an hour, and step: `now_ms` is the leader's, and early deliveries are
determined by the clock of the leader that delivered. In every tenth seed the engine, one that compares, loses
its end: no node that had read the lost records leads or answers any more; nodes halt, or have one history.
(An engine that only orders may grow again to exactly the offset that a leader expects, which is detected
later: `sharedlog.witness`.)

Where new messages are refused (`test_broker`), a client without an answer also calls a zombie, which may be
full as well: its refusal is answered only after a proof that it leads, which fails.

Nodes announce their checkpoints, one may be forgotten, and the leader trims the log up to the oldest of the
known checkpoints. A disk may be lost, and the next one when the first node has a copy again: trimmed records
are on another node's disk, whose files are copied by the real transfer, which may fail at any operation.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.errors import StoreError
from commitlog.log.flush import Flush
from commitlog.records import properties
from commitlog.records.record import Record, decode
from commitlog.snapshots import snapshot
from consumequeue.entry import ENTRY_BYTES
from services.broker.broker import SHARED, Broker
from services.broker.deduplication import WINDOW_MS
from services.broker.spine.errors import DiskFull
from services.cluster import evidence_file
from services.cluster.copies import transfer
from services.cluster.copies.checkpoints import ANNOUNCEMENT_INTERVAL_MS
from services.cluster.election.inputs import BeatRequest, ProofRequested
from services.cluster.election.table import CANDIDATE_STAGES, ActionType, Stage
from services.cluster.errors import CopyRefused
from services.cluster.replica import Replica
from services.live.durability import Answers, LeadershipProofs, required_offset
from services.live.errors import ResultUnknown
from sharedlog.bodies import split_records
from sharedlog.engine import Head
from sharedlog.engines import Beginning
from sharedlog.errors import EngineUnavailable, NotAccepted
from sharedlog.fold import Fold, Outcome, Position
from sharedlog.holdings import COPIES_MIN
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, encode
from sharedlog.record import decode as decode_shared
from tests.genesis import genesis_of
from tests.memory_disk import Death, Fault, MemoryDisk
from tests.memory_engine import MemoryEngine
from tests.simulation.cluster_process import Process
from tests.simulation.second_core import differing_tables
from tests.simulation.tables import tables
from tests.simulation.test_broker import GROUP, HOUR_MS, START_MS, TOPIC, World
from tests.simulation.tries import tried
from tidewheel import property_names
from tidewheel.errors import TidewheelError

CLUSTER: Final = b"one cluster's id"
EMPTY_HEAD: Final = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
BEGAN: Final = Beginning(CLUSTER, {})


@dataclass
class Node:
    """A machine: its disk, its clock, and the process that runs on it."""

    name: str
    disk: MemoryDisk
    process: Process | None = None
    ahead_ms: int = 0
    """The offset of its clock from the true time."""
    has_read_before_loss: int = 0
    """The record up to which it had read when the engine lost its end, as known by the process; else 0."""
    is_refusing: bool = False
    """Whether the copies of others lack records that this node has seen accepted and the engine has lost."""
    synced_end: int = 0
    """The end of its log that survives a power cut, together with the evidence of it."""

    @property
    def replica(self) -> Replica | None:
        """The replica of the process, or None if it is not open."""
        return None if self.process is None else self.process.replica

    @property
    def is_halted(self) -> bool:
        """Whether the process has halted, or refuses copies without the records that only it has seen."""
        return self.is_refusing or (self.process is not None and self.process.stage is Stage.HALTED)


@dataclass
class Zombie:
    """A leader that was paused: its node, the flush that it will try to write, and the waiting answers."""

    node: Node
    flush: Flush
    answers: Answers


class Caller:
    """A caller that waits for an answer, and records it as true."""

    def __init__(self, changed_facts: Callable[[], object]) -> None:
        self._changed_facts = changed_facts

    def answer(self, answer: Any) -> None:
        """Record the answer."""
        self._changed_facts()

    def refuse(self, error: TidewheelError) -> None:
        """Ignore an unknown result."""


ACTS_MAX: Final = 10_000
"""The maximum of actions of a node for one goal; engines and disks fail some of them."""
ATTEMPTS_MAX: Final = 1_000
"""The maximum of candidacies in an election; three faults in a row are rare."""


class NobodyLeft(Exception):
    """All nodes have halted."""


class ClockedEngine(MemoryEngine):
    """A memory engine that records the time of the leader's clock at each append."""

    written_ms: dict[bytes, int]
    clock: Callable[[], int]

    def append_if(self, head: Head, stored: Sequence[bytes], following: Head) -> int | None:
        for one in stored:
            self.written_ms.setdefault(one, self.clock())
        return super().append_if(head, stored, following)


class ClusterWorld(World):
    """The world of one broker, whose core is that of the leader of three nodes."""

    def __init__(self, seed: int) -> None:
        self.nodes = [Node(name, MemoryDisk()) for name in "abc"]
        self.random = Random(~seed)
        self.engine = ClockedEngine(self.random, EMPTY_HEAD if seed % 2 else None)
        self.engine.written_ms, self.engine.clock = {}, lambda: self.now_ms
        genesis = genesis_of(CLUSTER)
        self.engine.create_log(encode(genesis))
        self.leader = self.nodes[0]
        self.clocks_differ, self.is_truncating = seed % 4 in (1, 2), seed % 10 == 9
        self.patience_ms = WINDOW_MS // 2 if self.clocks_differ else WINDOW_MS
        self.lost_from: int | None = None
        """The first accepted record that the engine has lost, or None."""
        self._moments = count(1)
        self._drawn: dict[bytes, str] = {}
        """The name of the node that has drawn each holder."""
        self._wants_proof = False
        self.zombies: list[Zombie] = []
        self.asked_count = self.halt_count = 0
        self.takeover_count = self.zombie_count = self.trim_count = self.copy_count = 0
        self._lost: Node | None = None
        """The node without an announced copy since the loss of its disk."""
        self.now_ms = START_MS
        for node in self.nodes:
            self._set_clock(node)
        super().__init__(seed)
        self.faults.spares_files = True

    # Operations of a single broker's world, done by a cluster.

    def opened(self) -> Broker:
        """Elect a leader; return its core. The writes of a node need no sync."""
        self.settings = replace(self.settings, sync_flush=False)
        return self.elect()

    def elect(self) -> Broker:
        """Make nodes candidates until one leads; return its core. Raise `NobodyLeft` if all have halted.

        If the engine has lost its end and grown again, no node may be able to fold its head: then no node
        leads any more, and the nodes that had read the lost records have halted.
        """
        for node in self.nodes:
            node.disk.well()
            if not self._is_paused(node) and node.process is not None and node.process.has_stood:
                self._end_process(node)  # an earlier candidate, which may have won meanwhile
        attempts = count()
        while candidates := [one for one in self.nodes if not one.is_halted and not self._is_paused(one)]:
            if next(attempts) == ATTEMPTS_MAX:
                assert self.lost_from is not None, "nodes stand again and again, and none leads"
                break
            node = self.random.choice(candidates)
            rival = self.random.choice(candidates)
            for one in (node, rival) if self._race(node, rival) else (node,):
                if not one.is_halted and self._stand(one):
                    return self._lead(one)
        raise NobodyLeft

    def _race(self, node: Node, rival: Node) -> bool:
        """In 30 % of the cases, append the rival's EPOCH before the node's; return whether this happened."""
        if node is rival or self.random.random() < 0.7:
            return False
        self._stand(node, ActionType.APPEND_EPOCH)
        if self._stand(rival, ActionType.APPEND_EPOCH):
            self._act(rival)
        return True

    def _stand(self, node: Node, until: ActionType = ActionType.SERVE_CLIENTS) -> bool:
        """Let a node read nothing until it is a candidate; return whether it reaches an action."""
        has_stood = False
        for _ in range(ACTS_MAX):
            process = self._process(node)
            stage, has_stood = process.stage, has_stood or process.stage in CANDIDATE_STAGES
            if process.due in (until, ActionType.SERVE_CLIENTS) or stage is Stage.HALTED:
                return process.due is until
            is_reading = stage in (Stage.READING, Stage.IDLE)
            if is_reading:
                process.hear_nothing()
            is_unanswered = isinstance(self._act(node), EngineUnavailable) and is_reading
            if is_unanswered or (has_stood and stage not in CANDIDATE_STAGES):
                return False  # without an answer or the lead: another node may be chosen
        raise AssertionError(f"{node.name} does not come to stand")

    def _lead(self, node: Node) -> Broker:
        assert self.lost_from is None or node.has_read_before_loss <= self.lost_from, (
            f"{node.name} leads, though it has read what the engine has lost"
        )
        process = self._process(node)
        replica = process.actions.open_replica
        assert self._drawn[replica.fold.holder] == node.name, "a node leads by the right of another"
        self.now_ms = self._clock(node)
        self.leader, self.disk = node, node.disk
        replica.start_leading(self.engine, self.now_ms, self._moments.__next__, node.name)
        process.lead()
        self._wants_proof = False
        self.answers = Answers(
            replica.core.durable_offset, LeadershipProofs(self._moments.__next__, self._want_proof)
        )
        self.faults.move(node.disk)
        self.takeover_count += 1
        return replica.core

    def _process(self, node: Node) -> Process:
        """Return the process of a node; start one if there is none."""
        if node.process is None:
            clock, draw = partial(self._clock, node), partial(self._draw, node.name)
            node.process = Process(node.name, BEGAN, self.engine, node.disk, self.settings, clock, draw)
            node.process.actions.copying.fetch = self._fetch
        return node.process

    def _draw(self, name: str) -> bytes:
        holder = self.random.randbytes(16)
        self._drawn[holder] = name
        return holder

    def _act(self, node: Node) -> Exception | None:
        """Execute the next action of a node; it may die and restart. Return the failure, or None."""
        process = self._process(node)
        if process.due is ActionType.WAIT:
            node.disk.well()
        is_copying = process.stage is Stage.COPYING
        if is_copying:
            node.synced_end = 0  # the copy may replace its own data, now or at its next start
        try:
            error = process.carry_out()
        except Death:
            self._end_process(node)
            node.disk.crash(lambda count: self.random.randrange(count + 1))
            return None
        if is_copying and error is None:
            self.copy_count += 1
            node.is_refusing = False
        if self.lost_from is not None and "has seen accepted" in str(error):
            node.is_refusing = isinstance(error, CopyRefused)
        elif isinstance(error, CopyRefused):
            self._tell_all_again()
        if node.is_halted:
            assert self.lost_from is not None, f"a node halted over an engine that kept its promise: {error}"
            self.halt_count += 1
        return error

    def _forget_win(self, node: Node) -> None:
        """End the process of a node that had won an election before another node took the lead."""
        if node.process is not None and node.process.due is ActionType.SERVE_CLIENTS:
            self._end_process(node)

    def _act_until(self, node: Node, is_done: Callable[[], bool]) -> None:
        """Execute the actions of a node until a condition holds."""
        for _ in range(ACTS_MAX):
            if is_done():
                return
            self._forget_win(node)
            self._act(node)
        raise AssertionError(f"{node.name} stands still: {self._process(node).stage}")

    def _up(self, node: Node) -> Replica:
        """Return the replica of a node; start the node if it is down."""
        self._act_until(node, lambda: node.replica is not None)
        assert node.replica is not None
        return node.replica

    def _next_offset(self, node: Node) -> int:
        """Return the next record that a node reads; -1 if its replica is not open."""
        return -1 if node.replica is None else node.replica.fold.next_offset

    def _read(self, node: Node, until: int) -> None:
        """Execute the actions of a node until it has read up to a record or has halted."""
        self._act_until(node, lambda: node.is_halted or self._next_offset(node) >= until)
        if node.replica is not None:
            node.replica.require_sound(has_read_all=until == self.engine.end_offset)

    # Copies.

    def _tell_all_again(self) -> None:
        """Announce each copy again, as after ANNOUNCEMENT_INTERVAL_MS, because an older one arrived late.

        A leader reads such an announcement with its next BEAT.
        """
        leader = self.leader
        self._act_until(leader, lambda: leader.is_halted or leader.replica is not None)
        sink = None if leader.is_halted or leader.replica is None else leader.replica.sink
        with suppress(NotAccepted):
            if sink is not None and not self.flying:
                sink.beat({})
        for node in self.nodes:
            if node.replica is not None and node.process is not None and not self._is_paused(node):
                replica = node.replica
                if replica.sink is None and replica.fold.next_offset >= self.engine.first_offset:
                    self._read(node, self.engine.end_offset)
                stored = node.process.actions.own_copy.checkpoint_announcement(
                    replica, self.now_ms + ANNOUNCEMENT_INTERVAL_MS
                )
                if stored is not None:
                    well(self.engine).append_unchecked(stored)

    def _fetch(self, url: str, _: str, __: str, disk: Disk, require: transfer.Require) -> None:
        """Copy the store of another node by the real transfer, in which any disk operation may fail."""
        assert isinstance(disk, MemoryDisk)
        sent = io.BytesIO(sent_by(next(one for one in self.nodes if f"http://{one.name}" == url)))
        if self.random.random() < 0.5:
            disk.strike(self.random.randrange(1, 60), self.random.choice(list(Fault)))
        transfer.receive_copy(sent, disk, require)

    def _announce(self, node: Node) -> None:
        """Announce a node's newest checkpoint."""
        replica = self._up(node)
        stored = self._process(node).actions.own_copy.checkpoint_announcement(replica, self.now_ms)
        if stored is not None:
            with suppress(EngineUnavailable):
                self.engine.append_unchecked(stored)
                is_told = replica.core.shared_in_checkpoint is not None
                self._lost = None if node is self._lost and is_told else self._lost

    def _trim(self) -> None:
        """Trim the records that all known checkpoints cover, according to the leader's fold."""
        below = self._up(self.leader).fold.holdings.first_needed_record
        if below > self.engine.first_offset:
            having = sum(checkpointed(node) >= below for node in self.nodes) + (self._lost is not None)
            assert having >= COPIES_MIN, f"what lies before {below} is let go, and {having} nodes have it"
            self.engine.trim(below)
            self.trim_count += 1

    def _reopen(self, acknowledged_offset: int | None) -> None:
        """Discard the leader's core, and elect a leader."""
        told_offset = self.broker.durable_offset
        if acknowledged_offset is None:
            self._end_process(self.leader)
        else:
            self._process(self.leader).step_down(NotAccepted("the core is void"))
        self._forget_leader()
        assert self.lost_from is not None or self.broker.durable_offset >= told_offset, (
            "what was told is gone"
        )

    def _tell(self, durable_at: int, changed_facts: object) -> None:
        """Answer a client as a node does: an answer without a new record waits for a proof."""
        self._give(self.answers, durable_at, self._if_kept(changed_facts))

    def _give(self, answers: Answers, durable_at: int, changed_facts: Callable[[], object]) -> None:
        """Answer a caller of a leader or a zombie as soon as the answer is allowed."""
        answers.send_when_durable(durable_at, Caller(changed_facts), None)

    def _if_kept(self, changed_facts: Any) -> Callable[[], object]:
        """Return the answer, with an assertion that the log has not lost records read by the leader."""

        def told() -> None:
            is_void = self.lost_from is not None and self.leader.has_read_before_loss > self.lost_from
            assert not is_void, "a client was answered though the engine has lost its end"
            changed_facts()

        return told

    def _hear(self) -> None:
        sink = self._up(self.leader).sink
        assert sink is not None, "a leader has a sink"
        self.answers.advance(self.broker.durable_offset)
        self.answers.confirm_leadership(sink.proven_ms)

    def _want_proof(self) -> None:
        self._wants_proof = True

    def flush(self) -> None:
        """Flush; then, with probability 0.5 or over a sound engine, make the proof that answers wait for."""
        super().flush()
        if self._wants_proof and (self.engine.is_well or self.random.random() < 0.5):
            self._beat()

    def checkpoint(self) -> None:
        """Write a checkpoint of the leader, on a sound disk."""
        self.leader.disk.well()
        super().checkpoint()

    # Events of the other nodes.

    def around(self) -> None:
        """Do something to the other nodes, or to the lead, between two steps of the leader."""
        self.engine.now_ms = self.client_ms
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
            self.leader.disk.well()
            self._beat()
        elif chance < 0.75:
            self._tell_of(self.random.choice(self.nodes))
        elif chance < 0.80:
            self._trim()
        elif chance < 0.81 and self._lost is None:
            self.leader.disk.well()
            self._beat({"forget": self.random.choice(self.nodes).name})
        elif chance < 0.85:
            self._ask(self.broker, self.answers)
        elif chance < 0.90 and self.zombies:
            self._call(self.zombies[0])
        elif chance < 0.91 and self.clocks_differ:
            self._set_clock(self.random.choice(self.nodes))
        elif chance < 0.915 and self.is_truncating and self.lost_from is None:
            self._truncate()

    @property
    def client_ms(self) -> int:
        """The true time."""
        return self.now_ms - self.leader.ahead_ms

    @property
    def reign(self) -> int:
        """The number of takeovers: each leader has another clock."""
        return self.takeover_count

    def _clock(self, node: Node) -> int:
        return self.client_ms + node.ahead_ms

    def _set_clock(self, node: Node) -> None:
        """Let a clock step: by up to 3 seconds, or by an hour unless its node leads.

        Before the first election the true time follows: the world begins at START_MS by its leader's clock.
        """
        true_ms, leads = self.client_ms, self.takeover_count > 0 and node is self.leader
        if not self.clocks_differ or (leads and not self.broker.is_quiet):
            return  # unwritten records of a leader would be verified by another clock than decided them
        node.ahead_ms = self.random.choice([0, 0, 40, -40, 900, -900, 3_000, -3_000])
        if not leads and self.random.random() < 0.1:
            node.ahead_ms += self.random.choice([-HOUR_MS, HOUR_MS])
        if self.takeover_count:
            self.now_ms = true_ms + self.leader.ahead_ms

    def _ask(self, core: Broker, answers: Answers) -> None:
        """Query a message whose store was recently acknowledged to another client."""
        known = sorted(self.told.normal, key=lambda one: int(one[1:]))[-3:]
        if not known or self.settings.retention.deletes or self.lost_from is not None:
            return
        message_id = self.random.choice(known)
        is_there = bool(core.finding.find(TOPIC, message_id, 99).messages)

        def judge() -> None:
            self.asked_count += 1
            assert is_there, f"{message_id} was acknowledged, and another client told that it is not there"

        answers.send_when_durable(0, Caller(judge), None)

    def _call(self, zombie: Zombie) -> None:
        """Send to a paused leader that has not detected the new one."""
        core = self._up(zombie.node).core
        self._ask(core, zombie.answers)
        message = self._message()
        if self.trouble is not None and self.unanswered and self.trouble.random() < 0.7:
            message = self.trouble.choice([one for one, *_ in self.unanswered.values()])
        call = self._calls[message.message_id] = self._calls[message.message_id] + 1
        try:
            receipt = core.sending.send(tried(message, call), self._clock(zombie.node))
        except DiskFull as refusal:
            self._give(
                zombie.answers, required_offset(refusal), lambda: self._refused(message.message_id, call)
            )
        else:
            self._give(zombie.answers, receipt.durable_at, lambda: self._sent(message, receipt))

    def _truncate(self) -> None:
        """Let the engine lose accepted records, as in an unclean leader election.

        A follower that has read only records of leadership among them has read no lost bytes.
        """
        before = list(self.engine.records)
        refuses_writers = self.engine.lose_end()
        self.lost_from = self.engine.end_offset
        for node in self.nodes:
            witness = self._process(node).actions.witness
            if node.replica is not None:
                witness.record_progress(node.replica.fold)
            end = 0 if witness.last_led is None else witness.last_led[0] + 1
            lost = [decode_shared(one, CLUSTER).kind for one in before[self.lost_from : end]]
            has_read_lost = refuses_writers and (node is self.leader or Kind.BYTES in lost)
            node.has_read_before_loss = end if has_read_lost else 0

    def _tell_of(self, node: Node) -> None:
        if not self._is_paused(node) and node.replica is not None:
            node.disk.well()
            end = node.replica.fold.end if node.replica.last_led is not None else 0
            node.replica.sync()
            node.synced_end = end if self._has_evidence_to(node, end) else node.synced_end
            self._announce(node)

    def _has_evidence_to(self, node: Node, end: int) -> bool:
        """Return whether a node's evidence file proves the log up to an end."""
        claimed = evidence_file.read(node.disk)
        return claimed is not None and claimed.end == end

    def _follow(self, node: Node) -> None:
        if node is self.leader or node.is_halted or self._is_paused(node):
            return
        if self.random.random() < 0.1:
            node.disk.strike(self.random.randrange(1, 20), self.random.choice(list(Fault)))
        at = max(self._next_offset(node), self.engine.first_offset)
        self._read_some(node, self.random.randrange(at, max(at, self.engine.end_offset) + 1))
        if node.replica is not None and self.random.random() < 0.1:
            try:
                node.replica.checkpoint(self._clock(node))
            except (Death, OSError):
                self._kill(node)
        node.disk.well()

    def _read_some(self, node: Node, until: int) -> None:
        """Execute a follower's actions until it has read up to a record, waits, or would be a candidate."""
        for _ in range(ACTS_MAX):
            self._forget_win(node)
            process, at = self._process(node), self._next_offset(node)
            is_silent = process.is_silent and at == self.engine.end_offset
            if node.is_halted or at >= until or is_silent:
                return
            self._act(node)
            if self._process(node).due is ActionType.WAIT:
                return
        raise AssertionError(f"{node.name} does not follow")

    def _kill(self, node: Node) -> None:
        if node is self.leader or self._is_paused(node):
            return
        self._end_process(node)
        if self.random.random() < 0.5:
            node.disk.crash(lambda count: self.random.randrange(count + 1))
        else:
            node.disk.kill(lambda count: self.random.randrange(count + 1))

    def _pause(self) -> None:
        """Pause the leader between two steps, with a flush to write; another node takes over."""
        if self.zombies or self.flying:
            return
        self.take_flush()
        if not self.flying:
            return
        self.zombies.append(Zombie(self.leader, self.flying[0], self.answers))
        paused = self.leader
        self._forget_leader()
        assert self.leader is not paused

    def change_leader(self) -> None:
        """Let the leader step down, and elect a leader, possibly the same."""
        while not self.broker.is_quiet:
            self.flush()
        self._process(self.leader).step_down()
        self._forget_leader()

    def _end_process(self, node: Node) -> None:
        """End a process, with its state in memory."""
        node.process, node.has_read_before_loss = None, 0

    def _join_again(self) -> None:
        """Subscribe the group again if retention may delete the log, as its polling consumer would."""
        if self.settings.retention.deletes and not self.broker.groups.is_subscribed(GROUP, TOPIC):
            self.broker.groups.join(GROUP, TOPIC, {0: 0, 1: 0}, self.now_ms)

    def _forget_leader(self) -> None:
        self.retirements = []
        self.flying.clear()
        self.held.clear()
        self.broker = self.elect()
        self._join_again()
        self.meet_trouble(0.5)
        self._send_again()

    def _wake(self, zombie: Zombie) -> None:
        """Resume a paused leader: its flush must not be accepted; then it steps down."""
        zombie.node.disk.well()
        sink = self._up(zombie.node).sink
        assert sink is not None, "a leader has a sink"
        if self.random.random() < 0.3:
            with suppress(NotAccepted):
                sink.beat({})
                zombie.answers.confirm_leadership(sink.proven_ms)
        try:
            zombie.flush.write()
        except NotAccepted:
            self.zombie_count += 1
        else:
            raise AssertionError("a zombie's flush was accepted")
        zombie.answers.refuse(ResultUnknown(), 0)
        self._process(zombie.node).step_down(NotAccepted("another node leads"))

    def _lose_disk(self, node: Node) -> None:
        if self._lost is not None or node is self.leader or self._is_paused(node):
            return
        self._lost = node
        self._end_process(node)
        node.disk, node.synced_end, node.is_refusing = MemoryDisk(), 0, False
        if self.random.random() < 0.3 and self.engine.first_offset:
            self._read(node, self.engine.first_offset)

    def _beat(self, facts: dict[str, Any] | None = None) -> None:
        process, sink = self._process(self.leader), self._up(self.leader).sink
        assert sink is not None
        if self.flying:
            return
        process.apply_record(ProofRequested() if facts is None else BeatRequest(facts, facts))
        while (beat := process.beat) is not None:
            try:
                sink.beat(dict(beat.facts))
            except NotAccepted:
                self._reopen(self.broker.durable_offset)
                return
            process.beaten()
        self._wants_proof = False
        self._hear()

    @property
    def finalized(self) -> int:
        """The finalized version, as the leader has read it."""
        return self._up(self.leader).fold.finalized

    def finalize(self, version: int) -> None:
        """Let the leader finalize a version, unless a flush is in flight."""
        self._beat({"finalize": version})

    def _is_paused(self, node: Node) -> bool:
        return any(zombie.node is node for zombie in self.zombies)

    def check_not_early(self, message_id: str) -> None:
        """Verify the due time here only if clocks agree; otherwise `check` uses the leader's clock."""
        if not self.clocks_differ:
            super().check_not_early(message_id)

    # After the engine has lost its end, the only promise is to give no more answers.

    def step(self) -> None:
        """Do one action; after a loss only those without an oracle."""
        if self.lost_from is None:
            super().step()
        else:
            self.endure(self.random.choice([self.send, self.flush, self.pass_time, self.change_leader]))

    # At the end.

    def settle(self) -> None:
        """Settle with a sound engine and equal clocks, which are those of the one furthest ahead."""
        self.engine.is_well = True
        true_ms = self.client_ms
        for node in self.nodes if self.clocks_differ else ():
            node.ahead_ms = HOUR_MS + 3_000
        self.now_ms = true_ms + self.leader.ahead_ms
        super().settle()

    def compare(self) -> None:
        """Let all nodes read the whole log; compare their tables with the leader's, also after a restart."""
        while self.zombies:
            self._wake(self.zombies.pop())
        while not self.broker.is_quiet:
            self.endure(self.flush)
        expected = self._seen(self.broker)
        for node in self.nodes:
            if node is self.leader or node.is_halted:
                continue
            for _ in range(2):
                before, end = self._up(node).core, self._up(node).core.end_offset
                self.read_all(node)
                if node.is_halted:
                    break
                replica = self._up(node)
                if replica.core is not before or replica.core.end_offset > end:
                    self._check_tails(replica.core)
                assert replica.fold.chain == self._up(self.leader).fold.chain, "two histories"
                assert replica.fold.finalized == self.finalized, "two versions"
                assert not (differing := differing_tables(expected, self._seen(replica.core))), differing
                assert _halves(replica.core) == _halves(self.broker), "a half's bytes are another's"
                replica.checkpoint(self._clock(node))
                self._end_process(node)

    def _check_tails(self, core: Broker) -> None:
        """Verify that a core that has just followed on a sound disk has few queue entries in memory."""
        bound = 2 * self.settings.tail_entries_max * ENTRY_BYTES
        kept = {queue.key: queue.tail_bytes for _, _, queue in core.store.dispatch.queues()}
        assert max(kept.values(), default=0) < bound, f"tails that nothing writes: {kept}"

    def check(self) -> None:
        """Verify the answers to clients, and the whole history, including trimmed records."""
        self.faults.told_by(self.broker)  # a copy has no key index; its snapshot names it until the next one
        super().check()
        count_of: Counter[str] = Counter()
        for record, written_ms in self._history():
            if record.topic == TOPIC:
                message_id = properties.value_of(record.properties, property_names.MESSAGE_ID)
                count_of[message_id] += 1
                assert written_ms >= self.due_ms.get(message_id, 0), f"{message_id} was delivered early"
        assert all(count_of[one] == 1 for one in self.told.normal), "acknowledged, not once in the history"
        doubled = [one for one in count_of if count_of[one] > 1]
        assert not doubled, f"twice in the history: {doubled}"

    def _history(self) -> Iterator[tuple[Record, int]]:
        """Yield (record, time by its leader's clock in ms) for all accepted records."""
        fold = Fold()
        for offset, stored in enumerate(self.engine.records):
            step = fold.apply_record(offset, stored)
            if step.outcome is Outcome.ACCEPTED:
                for part in step.flush:
                    for encoded in split_records(part.body):
                        yield decode(encoded), self.engine.written_ms[stored]

    def read_all(self, node: Node) -> None:
        """Let a node read the whole log."""
        self._read(node, self.engine.end_offset)

    def _seen(self, core: Broker) -> dict[str, Any]:
        return {name: table for name, table in tables(core).items() if not name.startswith(SHARED)}


def well(engine: MemoryEngine) -> MemoryEngine:
    """Return a view of the engine without failures."""
    seen = MemoryEngine(Random(0))
    seen.__dict__ = engine.__dict__ | {"is_well": True, "is_away": False}
    return seen


def checkpointed(node: Node) -> int:
    """Return the next record to read after a node's newest checkpoint, 0 without one."""
    start = snapshot.newest(node.disk)
    return 0 if start is None or SHARED not in start.parts else int(start.parts[SHARED]["next_offset"])


def sent_by(node: Node) -> bytes:
    """Return the bytes of a node's copy as sent by the real transfer, from its disk written to a folder.

    Queues and the key index are not in the folder, and must not be needed. Raise `CopyRefused`.
    """
    derived = (f"{layout.CONSUMEQUEUE}/", f"{layout.KEYINDEX}/")
    with TemporaryDirectory() as folder:
        for path in [one for one in node.disk.paths() if not one.startswith(derived)]:
            file = Path(folder) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(node.disk.read(path, 0, node.disk.size(path)))
        try:
            return b"".join(transfer.stream_copy(Path(folder)))
        except StoreError as error:
            raise CopyRefused(str(error)) from error


def _halves(core: Broker) -> dict[int, bytes]:
    """Return the bodies of the halves that may still end, by log offset."""
    outcomes = core.transactions.outcomes
    return {offset: core.store.log.read(offset).body for offset in (*outcomes.open, *outcomes.expired)}
