"""The engine is lost, or restored from a backup: what was acknowledged on the nodes' disks counts."""

from __future__ import annotations

import io
from itertools import count
from pathlib import Path
from random import Random
from shutil import copytree
from typing import Any

import pytest
from structlog.testing import capture_logs

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import StoreDamaged
from commitlog.log.recovery import LogScan
from commitlog.records import properties
from commitlog.records.message import Message
from commitlog.records.record import Record
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import DamagedPart
from services.cluster import evidence_file, founding
from services.cluster.copies import transfer
from services.cluster.copies.checkpoints import OwnCopy
from services.cluster.copies.copying import StoreCopier
from services.cluster.copies.refetching import AFTER_HALT, recovery_advice, request_refetch
from services.cluster.errors import CopyRefused, LossNotAccepted
from services.cluster.evidence_file import EvidenceDamaged
from services.cluster.replica import Replica
from sharedlog.engine import Head, Stored
from sharedlog.engines import Beginning
from sharedlog.errors import ClusterExists, EngineUnavailable, Halted, RightMissing
from sharedlog.fold import Position
from sharedlog.holdings import Holding
from sharedlog.leading import Candidate
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, Kind, SharedRecord, encode, encode_facts
from sharedlog.witness import LOST_MS, Witness
from tests.genesis import genesis_of
from tests.memory_disk import MemoryDisk
from tests.memory_engine import MemoryEngine
from tidewheel import property_names

CLUSTER = b"one cluster's id"
EMPTY_HEAD = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
SETTINGS = BrokerSettings(segment_bytes=64 * 1024, queue_count=1, sync_flush=False)
WHOLE_LOG = "the shared log, from its beginning"
SENT = 300
STEP = 20
restore_cluster: Any = founding.restore_cluster
"""Without its types, because engines in memory have only the calls of an engine that tests need."""


class FoundedEngine(MemoryEngine):
    """A new shared log that `cluster restore` begins with."""

    def __init__(self) -> None:
        super().__init__(Random(1), EMPTY_HEAD)
        self.is_well = True

    def create_log(self, head: object) -> None:  # type: ignore[override]
        """Be empty: the GENESIS comes by `append_if`."""


class Pair:
    """A leader and a follower; `send` acknowledges messages."""

    def __init__(self, folder: Path) -> None:
        self.engine = MemoryEngine(Random(1), EMPTY_HEAD)
        self.engine.is_well = True
        self.engine.create_log(encode(genesis_of(CLUSTER)))
        self.roots = [folder / "leader", folder / "follower"]
        for root in self.roots:
            root.mkdir()
            (root / layout.CLUSTER).write_text("{}")
        self.disks = [RealDisk(root) for root in self.roots]
        self.leader, self.follower = self.open(0), self.open(1)
        self.lead(self.leader, b"who leads epoch1")
        self.acknowledged = 0

    def open(self, number: int) -> Replica:
        return Replica.open(self.disks[number], SETTINGS, 0, CLUSTER)

    def read_on(self, replica: Replica) -> None:
        while found := self.engine.read(replica.fold.next_offset, 1):
            for one in found:
                replica.apply_next_record(one.offset, one.stored, 0)

    def lead(self, replica: Replica, holder: bytes) -> None:
        self.read_on(replica)
        fold = replica.fold
        candidate = Candidate(fold, holder, {"node": "a"})
        head = Head(fold.epoch, fold.holder, Position(fold.end, fold.chain))
        self.engine.append_if(
            head, [encode(candidate.epoch)], Head(candidate.epoch.epoch, holder, head.position)
        )
        self.read_on(replica)
        replica.start_leading(self.engine, 0, lambda: 0)

    def send(self, number: int = SENT) -> None:
        core = self.leader.core
        for _ in range(0, number, STEP):
            for _ in range(STEP):
                message = Message(topic="t", body=b"x" * 900, message_id=f"M{self.acknowledged}")
                core.sending.send(message, 0)
                self.acknowledged += 1
            while (one := core.take_flush()) is not None:
                one.write()
                core.complete_flush(one, 0)
        self.read_on(self.follower)

    def close(self) -> None:
        for disk in self.disks:
            disk.close()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    pair = Pair(tmp_path)
    pair.send()
    return pair


class RefusingEngine(FoundedEngine):
    """A shared log in which no cluster can be begun."""

    def __init__(self, why: Exception, *, is_there: bool) -> None:
        super().__init__()
        self._why = why
        if is_there:
            MemoryEngine.create_log(self, encode(genesis_of(CLUSTER)))

    def read(self, offset: int, bytes_max: int) -> list[Stored]:
        if isinstance(self._why, EngineUnavailable):
            raise self._why
        return super().read(offset, bytes_max)

    def create_log(self, head: object) -> None:  # type: ignore[override]
        raise self._why


@pytest.mark.parametrize(
    "engine",
    [
        RefusingEngine(EngineUnavailable("wrong password"), is_there=False),
        RefusingEngine(ClusterExists("there"), is_there=True),
        RefusingEngine(RightMissing("no right on the schema"), is_there=False),
    ],
    ids=["unanswered", "taken", "no right"],
)
def test_a_restore_that_fails_takes_nothing_from_what_the_store_knows(
    pair: Pair, engine: RefusingEngine
) -> None:
    pair.close()
    root = pair.roots[1]
    with pytest.raises(LossNotAccepted) as refused:
        restore_cluster(FoundedEngine(), root, "b", 0, None)
    end, before = offered(refused.value), (root / layout.EVIDENCE).read_bytes()
    (root / layout.CLUSTER).write_text('{"node": "b"}')
    with pytest.raises((EngineUnavailable, ClusterExists, RightMissing)):
        restore_cluster(engine, root, None, 0, end)
    assert (root / layout.EVIDENCE).read_bytes() == before
    with pytest.raises(LossNotAccepted) as again:
        restore_cluster(FoundedEngine(), root, None, 0, None)
    assert str(again.value) == str(refused.value)
    restored = restore_cluster(FoundedEngine(), root, None, 0, end)
    assert restored.node == "b", "its own name, as none is given"
    assert not (root / layout.EVIDENCE).exists()


def test_a_refused_restore_tells_which_number_is_wrong_and_what_keeps_the_url_from_use(pair: Pair) -> None:
    pair.close()
    root = pair.roots[1]
    with pytest.raises(LossNotAccepted) as refused:
        restore_cluster(FoundedEngine(), root, "b", 0, None)
    end = offered(refused.value)
    assert refused.value.facts["end_offset"] == end
    assert "Nothing was changed" not in str(refused.value)
    wrong_end = f"Nothing was changed: --accept-loss-after is {end - 1}, and the log ends at {end}. "
    with pytest.raises(LossNotAccepted, match=wrong_end):
        restore_cluster(FoundedEngine(), root, "b", 0, end - 1)
    with pytest.raises(LossNotAccepted, match="--accept-damaged is 7, and 0 bytes are damaged"):
        restore_cluster(FoundedEngine(), root, "b", 0, end, 7)
    away = RefusingEngine(EngineUnavailable("wrong password"), is_there=False)
    with pytest.raises(LossNotAccepted, match="No cluster can begin at the URL yet: wrong password"):
        restore_cluster(away, root, "b", 0, None)
    taken = RefusingEngine(ClusterExists("there"), is_there=True)
    with pytest.raises(LossNotAccepted, match="give a URL that holds none"):
        restore_cluster(taken, root, "b", 0, None)


def offered(refusal: LossNotAccepted) -> int:
    """The offset that a refusal names."""
    return int(str(refusal).split("--accept-loss-after ")[1].rstrip("."))


def recovered(root: Path) -> int:
    """How many messages a cluster has that begins with a store."""
    engine = FoundedEngine()
    with pytest.raises(LossNotAccepted) as refused:
        restore_cluster(engine, root, "c", 0, None)
    end = offered(refused.value)
    restored = restore_cluster(engine, root, "c", 0, end)
    assert restored.left.missing_bytes == 0
    disk = RealDisk(root)
    replica = Replica.open(disk, SETTINGS, 0, restored.cluster)
    while found := engine.read(replica.fold.next_offset, 1):
        for one in found:
            replica.apply_next_record(one.offset, one.stored, 0)
    first, last = replica.core.finding.queue_range("t", 0)
    disk.close()
    return last - first


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("opened", [0, 1, 3])
def test_all_that_was_acknowledged_is_restored_however_often_nodes_were_opened(
    pair: Pair, number: int, opened: int
) -> None:
    for _ in range(opened):
        pair.open(number)
    pair.close()
    assert recovered(pair.roots[number]) == SENT


def test_a_node_that_reads_again_keeps_what_it_has_not_reached_yet(pair: Pair) -> None:
    again = pair.open(1)
    for one in pair.engine.read(again.fold.next_offset, 1)[:2]:
        again.apply_next_record(one.offset, one.stored, 0)
    again = pair.open(1)
    pair.read_on(again)
    assert again.fold.end == again.core.end_offset == pair.leader.fold.end
    again = pair.open(1)
    pair.close()
    assert recovered(pair.roots[1]) == SENT


def witness_of(replica: Replica) -> Witness:
    """A process that begins, and is never early to say that a record is gone."""
    witness = Witness(count(0, LOST_MS).__next__)
    witness.restore(replica.last_led)
    return witness


def look(pair: Pair, replica: Replica) -> None:
    witness = witness_of(replica)
    for _ in range(2):
        try:
            witness.require_records(pair.engine, replica.fold)
        except EngineUnavailable:
            continue


def stand(pair: Pair, replica: Replica) -> None:
    """Read all there is, and ask to lead, though no witness was asked before."""
    pair.read_on(replica)
    replica.prepare_to_lead()


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("grows", [False, True])
def test_a_restored_backup_is_found_after_a_restart_also_when_it_has_grown_again(
    pair: Pair, number: int, grows: bool
) -> None:
    before = len(pair.engine.records)
    pair.send(60)
    del pair.engine.records[before:], pair.engine._taken_ms[before:], pair.engine._heads[before:]
    pair.engine._head = pair.engine._heads[-1]
    if grows:  # under a node that knows nothing of what was lost
        other = Replica.open(MemoryDisk(), SETTINGS, 0, CLUSTER)
        pair.lead(other, b"who leads epoch2")
        while pair.engine.end_offset < before + 20:
            other.core.sending.send(Message(topic="t", body=b"y", message_id=f"N{before}"), 0)
            while (one := other.core.take_flush()) is not None:
                one.write()
                other.core.complete_flush(one, 0)
            assert other.sink is not None
            other.sink.beat({})
    again = pair.open(number)
    with pytest.raises(Halted, match="is another one now" if grows else "is gone or is another one"):
        look(pair, again)
    said = r"with byte \d+ of the log accepted|up to byte \d+"
    with pytest.raises((Halted, EngineUnavailable), match=said):
        stand(pair, again)
    pair.close()
    assert recovered(pair.roots[number]) == SENT + 60


def let_another_lead(pair: Pair) -> Replica:
    """Let the follower lead after the leader has written what nobody accepted; reopen its copy."""
    core = pair.leader.core
    core.sending.send(Message(topic="t", body=b"z", message_id="nobody's"), 0)
    pair.engine.is_away = True
    flush = core.take_flush()
    assert flush is not None
    with pytest.raises(OSError, match="away"):
        flush.write()
    pair.engine.is_away = False
    pair.lead(pair.follower, b"who leads epoch2")
    pair.leader = pair.follower
    core = pair.leader.core
    core.sending.send(Message(topic="t", body=b"w", message_id="another"), 0)
    while (one := core.take_flush()) is not None:
        one.write()
        core.complete_flush(one, 0)
    again = pair.open(0)
    pair.read_on(again)
    return again


def test_what_a_leader_wrote_and_nobody_accepted_is_set_aside_for_what_was(pair: Pair) -> None:
    accepted, next_offset = pair.leader.fold.end, pair.leader.fold.next_offset
    again = let_another_lead(pair)
    assert again.fold.next_offset > next_offset
    assert again.core.finding.queue_range("t", 0) == (0, SENT + 1)
    (aside,) = pair.disks[0].list(layout.ASIDE)
    assert int(aside) == accepted
    kept = pair.disks[0].read(f"{layout.ASIDE}/{aside}", 0, 1 << 20)
    assert b"nobody's" in kept
    pair.close()


def test_a_disk_without_room_for_what_nobody_accepted_says_so_and_the_node_reads_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RealDisk.write

    def without_room(self: RealDisk, path: str, *rest: Any) -> None:
        if path.startswith(layout.ASIDE):
            raise OSError(28, "No space left on device")
        write(self, path, *rest)

    monkeypatch.setattr(RealDisk, "write", without_room)
    with capture_logs() as logged:
        again = let_another_lead(pair)
    assert again.core.finding.queue_range("t", 0) == (0, SENT + 1)
    assert pair.disks[0].list(layout.ASIDE) == []
    assert [one["reason"] for one in logged if one["event"] == "the tail was not set aside"] == [
        "[Errno 28] No space left on device"
    ]
    pair.close()


def test_bytes_that_a_power_cut_took_below_the_evidence_are_read_again(pair: Pair) -> None:
    end, path = pair.follower.fold.end, layout.segment_path(2 * SETTINGS.segment_bytes)
    size = pair.disks[1].size(path)
    pair.disks[1].truncate(path, 3_000)
    pair.disks[1].allocate(path, size)
    again = pair.open(1)
    pair.read_on(again)
    again.prepare_to_lead()
    assert again.core.finding.queue_range("t", 0) == (0, SENT)
    assert again.core.end_offset == end
    pair.close()
    assert recovered(pair.roots[1]) == SENT


def test_a_restore_tells_what_of_the_evidence_is_missing(pair: Pair) -> None:
    path = layout.segment_path(2 * SETTINGS.segment_bytes)
    size = pair.disks[1].size(path)
    pair.disks[1].truncate(path, 3_000)
    pair.disks[1].allocate(path, size)
    pair.close()
    with pytest.raises(LossNotAccepted, match=r"[1-9]\d+ bytes that this node has seen accepted are missing"):
        restore_cluster(FoundedEngine(), pair.roots[1], "c", 0, None)


def test_another_record_below_the_accepted_end_halts_before_anything_is_overwritten(pair: Pair) -> None:
    disk = pair.disks[1]
    before = disk.read(layout.segment_path(0), 0, SETTINGS.segment_bytes)
    other = Replica.open(MemoryDisk(), SETTINGS, 0, CLUSTER)
    del pair.engine.records[1:], pair.engine._taken_ms[1:], pair.engine._heads[1:]
    pair.engine._head = EMPTY_HEAD
    pair.leader = other
    pair.lead(other, b"who leads epoch9")
    pair.follower = Replica.open(MemoryDisk(), SETTINGS, 0, CLUSTER)
    pair.send()
    again = pair.open(1)
    with pytest.raises(Halted, match=r"another record lies at byte \d+ .* up to byte \d+ "):
        pair.read_on(again)
    assert disk.read(layout.segment_path(0), 0, SETTINGS.segment_bytes) == before
    pair.close()


def test_a_copy_is_thrown_away_at_once_only_by_the_number_of_its_evidence(pair: Pair) -> None:
    disk = pair.disks[1]
    claimed = evidence_file.read(disk)
    assert claimed is not None
    assert claimed.end == pair.follower.fold.end
    with pytest.raises(LossNotAccepted, match=f"--accept-loss-of {claimed.end}"):
        request_refetch(disk, claimed.end - 1)
    request_refetch(disk, None)
    assert disk.list(layout.COMMITLOG), "another copy is not here yet"
    request_refetch(disk, claimed.end)
    assert not disk.list(layout.COMMITLOG)
    assert evidence_file.read(disk) is None
    pair.close()


def test_a_node_that_halts_names_what_it_has_seen_accepted_and_the_ways_on(pair: Pair) -> None:
    claimed = evidence_file.read(pair.disks[1])
    assert claimed is not None
    said = recovery_advice(pair.disks[1])
    pair.close()
    assert f"up to byte {claimed.end} of the log, with record {claimed.record} of the shared log" in said
    assert f"to give it up: --accept-loss-of {claimed.end}." in said
    assert "tidewheel cluster restore NEW-URL --from STORE" in said


@pytest.mark.parametrize("is_spoiled", [False, True])
def test_a_node_without_evidence_names_the_ways_on(*, is_spoiled: bool) -> None:
    disk = MemoryDisk()
    if is_spoiled:
        disk.write(layout.EVIDENCE, 0, b"spoiled")
    assert recovery_advice(disk) == AFTER_HALT


def spoil(pair: Pair, at: int, count: int = 512) -> tuple[int, int]:
    """Let a sector of the follower's log be zeros; return the offsets of the records that it hit."""
    scan = LogScan(pair.disks[0], SETTINGS.segment_bytes)
    places = [(one.record.physical_offset, one.record.physical_offset + one.record_bytes) for one in scan]
    hit = [(first, end) for first, end in places if first < at + count and at < end]
    segment = at // SETTINGS.segment_bytes * SETTINGS.segment_bytes
    pair.disks[1].write(layout.segment_path(segment), at - segment, bytes(count))
    return hit[0][0], hit[-1][1]


def served(disk: Disk, cluster: bytes, engine: MemoryEngine) -> tuple[set[str], Replica]:
    """The ids of the messages that a node serves once it leads a restored cluster, and its replica."""
    replica = Replica.open(disk, SETTINGS, 0, cluster)
    read_all(engine, replica)
    fold = replica.fold
    candidate = Candidate(fold, b"who leads epoch7", {"node": "c"})
    head = Head(fold.epoch, fold.holder, Position(fold.end, fold.chain))
    engine.append_if(
        head, [encode(candidate.epoch)], Head(candidate.epoch.epoch, b"who leads epoch7", head.position)
    )
    read_all(engine, replica)
    replica.start_leading(engine, 0, lambda: 0)
    core = replica.core
    while (one := core.take_flush()) is not None:
        one.write()
        core.complete_flush(one, 0)
    last = core.finding.queue_range("t", 0)[1]
    found = {message_id(one.record) for at in range(last) for one in core.finding.read("t", 0, at, 1)}
    return found, replica


def read_all(engine: MemoryEngine, replica: Replica) -> None:
    while found := engine.read(replica.fold.next_offset, 1):
        for one in found:
            replica.apply_next_record(one.offset, one.stored, 0)


def message_id(found: Record) -> str:
    return properties.value_of(found.properties, property_names.MESSAGE_ID) or ""


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_sound_records_behind_damage_are_restored_and_what_is_damaged_is_named(
    pair: Pair, has_checkpoint: bool
) -> None:
    """Behind the checkpoint, or before it; more than one place, and one at a segment's first byte."""
    if has_checkpoint:
        pair.follower.checkpoint(0)
    hit = [spoil(pair, 20_000), spoil(pair, SETTINGS.segment_bytes), spoil(pair, 200_000)]
    stored = [
        found.record for found in LogScan(pair.disks[0], SETTINGS.segment_bytes) if found.record.topic == "t"
    ]
    sound = {message_id(one) for one in stored if not any(a <= one.physical_offset < b for a, b in hit)}
    pair.close()
    root, engine = pair.roots[1], FoundedEngine()
    with pytest.raises(LossNotAccepted) as refused:
        restore_cluster(engine, root, "c", 0, None)
    end, lost = pair.follower.fold.end, sum(last - first for first, last in hit)
    for first, last in hit:
        assert f"{first} to {last}" in str(refused.value)
    assert f"{lost} bytes that this node has seen accepted are missing" in str(refused.value)
    assert f"--accept-loss-after {end} --accept-damaged {lost}." in str(refused.value)
    with pytest.raises(LossNotAccepted):
        restore_cluster(engine, root, "c", 0, end)
    restored = restore_cluster(engine, root, "c", 0, end, lost)
    assert restored.left.facts()["damaged"] == [[*one] for one in hit]
    disk = RealDisk(root)
    ids, replica = served(disk, restored.cluster, engine)
    assert ids == sound
    assert len(ids) < SENT
    replica.require_sound(has_read_all=True)
    began = Beginning(restored.cluster, {})
    replica.checkpoint(0)
    assert OwnCopy("c", "", began, disk, str).checkpoint_announcement(replica, 0) is not None
    other = MemoryDisk()
    copying = StoreCopier("d", OwnCopy("d", "", began, other, str), began, engine, other)
    copying._is_fetched = True
    transfer.receive_copy(copy_of(root), other)
    copied, replica = served(other, restored.cluster, engine)
    copying.verify_fetched_copy(replica)
    assert copied == sound
    replica.require_sound(has_read_all=True)
    flaw, _ = hit[2]
    segment = flaw // SETTINGS.segment_bytes * SETTINGS.segment_bytes
    other.write(layout.segment_path(segment), flaw - segment - 300, bytes(200))
    replica.core.damage.report_record(flaw - 1_000, StoreDamaged("met by a read"))
    with pytest.raises(StoreDamaged, match="met by a read"):
        replica.require_sound()


def copy_of(root: Path) -> io.BytesIO:
    """The copy that a node sends."""
    return io.BytesIO(b"".join(transfer.stream_copy(root)))


def test_what_is_restored_is_not_replaced_by_an_older_copy_that_an_operator_had_wanted(pair: Pair) -> None:
    pair.leader.checkpoint(0)
    older = copy_of(pair.roots[0])
    pair.send(60)
    request_refetch(pair.disks[1], None)
    transfer.receive_copy(older, pair.disks[1])
    pair.close()
    assert recovered(pair.roots[1]) == SENT + 60


@pytest.mark.parametrize("is_moving", [False, True])
def test_a_store_is_restored_that_a_copy_with_more_was_about_to_replace(
    pair: Pair, tmp_path: Path, *, is_moving: bool
) -> None:
    stale = copytree(pair.roots[1], tmp_path / "stale")
    pair.send(60)
    pair.leader.checkpoint(0)
    disk = RealDisk(stale)
    transfer.receive_copy(copy_of(pair.roots[0]), disk)
    if is_moving:
        for path in (layout.COMMITLOG, layout.SNAPSHOTS, layout.DURABLE):
            disk.delete(path)
        disk.rename(f"{layout.FETCHED}/whole", f"{layout.FETCHED}/moving")
    disk.close()
    pair.close()
    assert recovered(stale) == SENT + 60


@pytest.mark.parametrize("has_copy", [False, True])
def test_a_store_is_not_replaced_where_the_log_has_lost_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_copy: bool
) -> None:
    """The record of the evidence is there, and one before it is lost: the log has not the rest."""
    pair = Pair(tmp_path)
    pair.send(100)
    pair.follower.checkpoint(0)
    lost = pair.engine.end_offset
    pair.send(200)
    pair.leader.sync()
    sound = pair.engine.rows(lost)
    disk, began = pair.disks[0], Beginning(CLUSTER, {})
    if has_copy:
        end = pair.follower.core.written_offset
        held = Holding(lost, end, "http://127.0.0.1:9").facts("b")
        pair.engine.append_unchecked(
            encode(SharedRecord(CLUSTER, Kind.CHECKPOINT, 0, NOBODY, 0, 0, encode_facts(held)))
        )

        def fetch(_: str, __: str, ___: str, disk: Disk, require: transfer.Require) -> None:
            transfer.receive_copy(io.BytesIO(b"".join(transfer.stream_copy(pair.roots[1]))), disk, require)

        monkeypatch.setattr(transfer, "fetch_copy", fetch)
    copying = StoreCopier("a", OwnCopy("a", "", began, disk, str), began, pair.engine, disk)
    pair.engine.spoil(lost)
    with pytest.raises(CopyRefused, match="lacks what this node has seen accepted"):
        copying.fetch_copy(copying.find_copies())
    assert pair.open(0).core.end_offset >= 0
    pair.engine.spoil(lost, *sound)
    assert copying.fetch_copy(copying.find_copies()) == (
        "node b, http://127.0.0.1:9" if has_copy else WHOLE_LOG
    )
    pair.close()


@pytest.mark.parametrize("number", [0, 1])
def test_spoiled_evidence_is_no_reason_to_lose_a_store(pair: Pair, number: int) -> None:
    """A leader has told nobody how far its log was accepted."""
    disk, end = pair.disks[number], pair.follower.fold.end
    disk.write(layout.EVIDENCE, 0, bytes(disk.size(layout.EVIDENCE)))
    with pytest.raises(EvidenceDamaged, match="cluster restore"):
        pair.open(number)
    pair.close()
    with pytest.raises(LossNotAccepted) as refused:
        restore_cluster(FoundedEngine(), pair.roots[number], "c", 0, None)
    what = "more was accepted" if number else f"the {end} bytes behind byte 0 were accepted"
    assert f"the file evidence is spoiled, so nothing tells whether {what}" in str(refused.value)
    assert recovered(pair.roots[number]) == SENT


@pytest.mark.parametrize("gone", [[0], [1], [1, 2], [3], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_segment_that_is_gone_is_a_hole(pair: Pair, gone: list[int], has_checkpoint: bool) -> None:
    """Also the first one, the newest ones, or all of them below a checkpoint."""
    if has_checkpoint:
        pair.follower.checkpoint(0)
    end, whole = pair.follower.fold.end, len(layout.segment_offsets(pair.disks[1]))
    for number in gone:
        pair.disks[1].delete(layout.segment_path(number * SETTINGS.segment_bytes))
    pair.close()
    engine, first = FoundedEngine(), gone[0] * SETTINGS.segment_bytes
    with pytest.raises(LossNotAccepted) as refused:
        restore_cluster(engine, pair.roots[1], "c", 0, None)
    lost = min(end, (gone[-1] + 1) * SETTINGS.segment_bytes) - first
    assert f"{lost} bytes that this node has seen accepted are missing" in str(refused.value)
    is_last = len(gone) == whole and not has_checkpoint
    if not is_last:
        assert f"{first} to {first + lost}" in str(refused.value)
    end, damaged = (0, 0) if is_last else (end, lost)
    restored = restore_cluster(engine, pair.roots[1], "c", 0, end, damaged)
    assert restored.end >= end
    disk = RealDisk(pair.roots[1])
    if not is_last:
        ids, replica = served(disk, restored.cluster, engine)
        replica.require_sound(has_read_all=True)
        assert (len(ids) > 0) == (len(gone) < whole)
        assert len(layout.segment_offsets(disk)) >= whole
    disk.close()


@pytest.mark.parametrize("number", [0, 1])
def test_a_store_whose_evidence_is_missing_is_restored_whole(pair: Pair, number: int) -> None:
    pair.disks[number].delete(layout.EVIDENCE)
    pair.close()
    with pytest.raises(LossNotAccepted, match="the file evidence is missing, so nothing tells whether"):
        restore_cluster(FoundedEngine(), pair.roots[number], "c", 0, None)
    assert recovered(pair.roots[number]) == SENT


def test_damage_of_keep_files_is_accepted_by_its_number(pair: Pair) -> None:
    end = pair.follower.fold.end
    pair.disks[1].write(f"{layout.KEEP}/00000000000000065536", 0, b"spoiled")
    pair.close()
    engine, root = FoundedEngine(), pair.roots[1]
    with pytest.raises(LossNotAccepted, match=f"--accept-loss-after {end} --accept-damaged 7"):
        restore_cluster(engine, root, "c", 0, end)
    restored = restore_cluster(engine, root, "c", 0, end, 7)
    disk = RealDisk(root)
    ids, replica = served(disk, restored.cluster, engine)
    assert len(ids) == SENT
    replica.require_sound(has_read_all=True)
    replica.core.damage.report(DamagedPart("log", layout.segment_path(1 << 40), "another"))
    with pytest.raises(StoreDamaged, match="another"):
        replica.require_sound()
    disk.close()
