"""The engine of a cluster is lost, or restored from a backup, and all nodes begin again; see `cluster_world`.

Three fates: it is gone; it is back as it was before its newest records; it has grown again since, under a
node that knew nothing of these. Nodes were killed, or lost their power. Then

1. no node stands whose file tells of a record that the engine lacks, or has another one of
2. the store with most left begins a new cluster: it has, byte by byte, all that was told, or after a power
   cut all that any node had taken to disk with its evidence.
"""

from __future__ import annotations

import zlib
from contextlib import suppress

import pytest

from commitlog import properties
from commitlog.errors import StoreDamaged
from services.cluster import evidence_file
from services.cluster.evidence_file import EvidenceFile
from services.cluster.founding import recover_left, what_is_left
from services.cluster.replica import SharedPart
from services.cluster.tail import Tail
from sharedlog.errors import Halted, Trimmed, Unknown
from sharedlog.fold import Fold
from sharedlog.witness import Witness
from tests.memory_disk import MemoryDisk
from tests.simulation.cluster_world import CLUSTER, ClusterWorld, NobodyLeft, Node
from tests.simulation.test_broker import TOPIC

FATES = ("lost", "restored", "grown again")
FOUND_WITHIN = 24


class Disaster:
    """A world of a seed after some steps, and what is known of it from outside."""

    def __init__(self, seed: int) -> None:
        self.world = world = ClusterWorld(seed + seed // 9)
        world.is_truncating = False
        self.fate = FATES[seed % 3]
        for _ in range(120):
            world.step()
            world.around()
        self.told = set(world.told.normal)
        self.history = {record.physical_offset: record for record, _ in world._history()}
        self.loses_power = world.random.random() < 0.5
        self.end_processes()
        if self.fate != "lost":
            self.restore_backup()

    def end_processes(self) -> None:
        """Kill all nodes, or take their power."""
        random = self.world.random
        for node in self.world.nodes:
            node.disk.well()
            self.world._end_process(node)
            end = node.disk.crash if self.loses_power else node.disk.kill
            end(lambda count: random.randrange(count + 1))

    def restore_backup(self) -> None:
        """Let the engine be as it was before; perhaps a node with an empty disk has led since."""
        world, engine = self.world, self.world.engine
        engine.is_well, before = True, engine.end_offset
        cut = engine.end_offset - world.random.randrange(1, 40)
        cut = max(1, engine.first_offset, cut)
        while engine.compares and cut > 1 and engine._heads[cut - 1] is None:
            cut -= 1
        engine.first_offset = min(engine.first_offset, cut)
        del engine.records[cut:], engine._taken_ms[cut:], engine._heads[cut:]
        engine._head = engine._heads[-1] if engine.compares else None
        if self.fate == "grown again" and engine.first_offset == 0:
            stranger = Node("d", MemoryDisk())
            with suppress(Halted):
                while not world._stand(stranger):
                    pass
                replica = world._process(stranger).acts.open_replica
                replica.lead(engine, world.now_ms, world._moments.__next__)
                assert replica.sink is not None
                while engine.end_offset < before + 5:
                    replica.sink.beat({})

    def stands(self, node: Node) -> bool:
        """Whether a node that begins again would lead, once it has read all there is."""
        engine = self.world.engine
        for _ in range(3):
            try:
                replica = self.world._up(node)
                self.world._process(node).acts.witness.require_kept(engine, replica.fold)
                while found := engine.read(replica.fold.next_offset, 1):
                    if found[0].offset > replica.fold.next_offset:
                        return False
                    for one in found:
                        replica.take(one.offset, one.stored, self.world.now_ms)
                replica.require_may_stand()
            except Unknown:
                continue
            except (Halted, Trimmed):
                return False
            return True
        return False

    def check_silence(self) -> None:
        """No node stands over an engine that lacks what the node's file tells of."""
        engine = self.world.engine
        for node in self.world.nodes:
            claimed = evidence_file.read(node.disk)
            if claimed is None or claimed.record < engine.first_offset:
                continue
            stored = engine.records[claimed.record : claimed.record + 1]
            is_there = bool(stored) and zlib.crc32(stored[0]) == claimed.crc
            if not is_there:
                assert not self.stands(node), f"{node.name} leads over {self.fate}, and says nothing"

    def check_restored(self) -> None:
        """The store with most left has all that it must have."""
        nodes = self.world.nodes
        left, node = max(((what_is_left(one.disk), one) for one in nodes), key=lambda one: one[0].end)
        synced = max(one.synced_end for one in nodes)
        assert left.end >= synced, f"{left.end} of {synced} synced bytes are left"
        core = recover_left(node.disk, left, SharedPart(Fold(CLUSTER)), self.world.now_ms)
        assert core.end_offset == left.end
        log = core.store.log
        found = {}
        for offset, record in self.history.items():
            if log.first_offset <= offset < left.end:
                kept = log.read(offset)
                assert (kept.topic, kept.body) == (record.topic, record.body), f"byte {offset} is another"
            if offset < left.end and record.topic == TOPIC:
                found[properties.value_of(record.properties, properties.MESSAGE_ID)] = offset
        if not self.loses_power:
            assert not left.missing_bytes
            assert self.told <= found.keys(), f"told, and gone: {sorted(self.told - found.keys())[:3]}"


def play(seed: int) -> None:
    try:
        disaster = Disaster(seed)
    except NobodyLeft:  # not over an engine that is well
        raise AssertionError("nobody leads") from None
    if disaster.fate != "lost":
        disaster.check_silence()
    disaster.check_restored()


def test_a_lost_engine_is_never_silent_and_nothing_that_a_disk_has_is_lost(seed: int) -> None:
    play(seed)


def nothing_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A node knows of what it has read only while its process lives."""
    patch.setattr(EvidenceFile, "write", lambda *_: None)


def restart_forgets(patch: pytest.MonkeyPatch) -> None:
    """A node that begins again believes the engine."""
    patch.setattr(EvidenceFile, "open", lambda disk: EvidenceFile(disk, None))


def tail_is_cut_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """What lies behind the checkpoint is cut when a copy is opened."""
    kept = Tail.__init__

    def cut(tail: Tail, disk: MemoryDisk, segment_bytes: int, end_offset: int) -> None:
        kept(tail, disk, segment_bytes, end_offset)
        tail.end_at(end_offset)

    patch.setattr(Tail, "__init__", cut)


@pytest.mark.parametrize("mutant", [nothing_is_kept, restart_forgets, tail_is_cut_at_a_start])
def test_a_rule_that_is_left_out_is_found(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(mutant)
    mutant(monkeypatch)
    for seed in range(FOUND_WITHIN):
        try:
            play(seed)
        except (AssertionError, StoreDamaged):  # bytes of what was cut are no records
            return
    pytest.fail(f"{FOUND_WITHIN} schedules have not found it")


def test_witnesses_are_asked_by_what_a_file_keeps() -> None:
    witness = Witness(lambda: 0)
    witness.recall((7, 1))
    witness.recall((3, 2))
    assert witness.last_led == (7, 1)
