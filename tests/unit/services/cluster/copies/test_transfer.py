"""A copy of a node's store on its way to another: whole, or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from errno import EIO
from hashlib import blake2b
from pathlib import Path
from random import Random

import pytest

from commitlog import layout
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import StoreDamaged
from commitlog.records.message import Message
from services.broker.spine.settings import BrokerSettings
from services.cluster.copies import transfer
from services.cluster.errors import CopyRefused
from services.cluster.replica import Replica
from services.store.copying.derived import ENTRIES_PER_FILE_MIN
from services.store.read_only.opening import look_at, open_store
from services.store.verify.verify import verify
from sharedlog.engine import Head
from sharedlog.fold import Position
from sharedlog.leading import Candidate
from sharedlog.record import CHAIN_AT_GENESIS, NOBODY, encode
from tests.genesis import genesis_of
from tests.memory_disk import Death, Fault, MemoryDisk, Unyielding
from tests.memory_engine import MemoryEngine

CLUSTER = b"one cluster's id"
EMPTY_HEAD = Head(0, NOBODY, Position(0, CHAIN_AT_GENESIS))
SETTINGS = BrokerSettings(segment_bytes=16 * 1024, queue_count=1, sync_flush=False)


@pytest.fixture
def engine() -> MemoryEngine:
    engine = MemoryEngine(Random(1), EMPTY_HEAD)
    engine.is_well = True
    engine.create_log(encode(genesis_of(CLUSTER)))
    return engine


@pytest.fixture
def store(tmp_path: Path, engine: MemoryEngine) -> Iterator[Path]:
    """The store of a node that has led, with plain messages and timers, and has taken a checkpoint."""
    disk = RealDisk(tmp_path / "store")
    (tmp_path / "store").mkdir()
    replica = Replica.open(disk, SETTINGS, 0, CLUSTER)
    read_on(replica, engine)
    candidate = Candidate(replica.fold, b"who leads epoch1", {"node": "a"})
    following = Head(1, candidate.epoch.holder, EMPTY_HEAD.position)
    assert engine.append_if(EMPTY_HEAD, [encode(candidate.epoch)], following) == 1
    read_on(replica, engine)
    replica.start_leading(engine, 0, lambda: 0)
    for number in range(60):
        due_ms = 10_000_000 + number if number % 3 == 0 else None
        message = Message(topic="t", body=b"x" * 900, message_id=f"M{number}", delivery_ms=due_ms)
        replica.core.sending.send(message, 0)
        flush(replica)
    replica.checkpoint(0)
    yield tmp_path / "store"
    disk.close()


def flush(replica: Replica) -> None:
    while (one := replica.core.take_flush()) is not None:
        one.write()
        replica.core.complete_flush(one, 0)


def read_on(replica: Replica, engine: MemoryEngine) -> None:
    while found := engine.read(replica.fold.next_offset, 1):
        for one in found:
            replica.apply_next_record(one.offset, one.stored, 0)


def sent(store: Path) -> bytes:
    return b"".join(transfer.stream_copy(store))


def test_a_copy_takes_the_place_of_what_was_there_and_the_node_reads_on(
    store: Path, engine: MemoryEngine
) -> None:
    disk = MemoryDisk()
    disk.write("commitlog/00000000000000000000", 0, b"of another node")
    disk.write("cluster", 0, b"whose it is")
    transfer.receive_copy(io.BytesIO(sent(store)), disk)
    assert transfer.install_copy(disk)
    assert not transfer.install_copy(disk)
    assert disk.list("fetched") == []
    replica = Replica.open(disk, SETTINGS, 0, CLUSTER)
    engine.trim(replica.fold.next_offset)
    read_on(replica, engine)
    assert replica.core.finding.queue_range("t", 0) == (0, 40)
    assert replica.core.timers.pending_count == 20
    assert disk.read("cluster", 0, 20) == b"whose it is"


@pytest.fixture
def full_store(store: Path, engine: MemoryEngine) -> Path:
    """The store, with so many messages that its queues are worth to be sent."""
    disk = RealDisk(store)
    replica = Replica.open(disk, replace(SETTINGS, tail_entries_max=1), 0, CLUSTER)
    read_on(replica, engine)
    candidate = Candidate(replica.fold, b"who leads epoch2", {"node": "a"})
    head = Head(1, replica.fold.holder, Position(replica.fold.end, replica.fold.chain))
    assert engine.append_if(head, [encode(candidate.epoch)], Head(2, candidate.epoch.holder, head.position))
    read_on(replica, engine)
    replica.start_leading(engine, 0, lambda: 0)
    for number in range(3 * ENTRIES_PER_FILE_MIN):
        replica.core.sending.send(Message(topic="t", body=b"x", message_id=f"N{number}"), 0)
    flush(replica)
    replica.core.store.dispatch.write()
    replica.checkpoint(0)
    disk.close()
    return store


def opened_copy(store: Path) -> tuple[MemoryDisk, Replica]:
    disk = MemoryDisk()
    transfer.receive_copy(io.BytesIO(sent(store)), disk)
    return disk, Replica.open(disk, SETTINGS, 0, CLUSTER)


def found_ids(replica: Replica) -> list[str]:
    """The messages that the queue holds, and the ids under which the key index finds one each."""
    finding = replica.core.finding
    first, end = finding.queue_range("t", 0)
    ids = [finding.read("t", 0, offset, 1)[0].message.message_id for offset in range(first, end)]
    return [one for one in ids if len(finding.find("t", one, 2).messages) == 1]


def test_queues_and_key_index_come_along(full_store: Path) -> None:
    disk, replica = opened_copy(full_store)
    assert replica.core.rebuilt_files == []
    assert disk.list("keyindex") == sorted(run.name for run in replica.core.store.keys.runs)
    assert disk.list("consumequeue/t/0") == [
        path.name for path in (full_store / "consumequeue/t/0").iterdir()
    ]
    assert len(found_ids(replica)) == 40 + 3 * ENTRIES_PER_FILE_MIN


@pytest.mark.parametrize("folder", ["keyindex", "consumequeue/t/0"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_derived_files_that_the_senders_disk_has_spoiled_or_lost_are_made_anew(
    full_store: Path, folder: str, is_gone: bool
) -> None:
    path = max((full_store / folder).iterdir(), key=lambda one: one.stat().st_size)
    spoiled = bytearray(path.read_bytes())
    spoiled[len(spoiled) // 2] ^= 1
    path.unlink()
    if not is_gone:
        path.write_bytes(spoiled)
    _, replica = opened_copy(full_store)
    assert len(replica.core.rebuilt_files) == 1
    assert len(found_ids(replica)) == 40 + 3 * ENTRIES_PER_FILE_MIN


@pytest.mark.parametrize("is_wiped", [False, True])
def test_a_copy_takes_the_place_of_queues_that_cannot_be_deleted(full_store: Path, is_wiped: bool) -> None:
    disk = Unyielding()
    path = f"consumequeue/t/0/{0:020}"
    disk.write(path, 0, b"of another node")
    disk.hold("consumequeue/t/0")
    if is_wiped:
        transfer.delete_store(disk)
        assert disk.list("") == ["consumequeue.aside-1"]
    transfer.receive_copy(io.BytesIO(sent(full_store)), disk)
    assert transfer.install_copy(disk)
    assert disk.read(path, 0, 100) == (full_store / path).read_bytes()[:100]
    assert Replica.open(disk, SETTINGS, 0, CLUSTER).core.rebuilt_files == []


@pytest.mark.parametrize(
    ("unreadable", "rebuilt_files"),
    [
        ("consumequeue/t/0/00000000000000000000", "the consume queues"),
        (layout.QUEUES_WHOLE, "the consume queues"),
        ("keyindex/", "the key index"),
    ],
)
def test_a_copy_is_made_where_the_senders_disk_cannot_read_a_derived_file(
    full_store: Path, unreadable: str, rebuilt_files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector under what can be made anew kept each new node from its copy."""
    pread = os.pread

    def read(descriptor: int, length: int, position: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{full_store}/{unreadable}"):
            raise OSError(EIO, "Input/output error")
        return pread(descriptor, length, position)

    monkeypatch.setattr(os, "pread", read)
    _, replica = opened_copy(full_store)
    assert [one.partition(":")[0] for one in replica.core.rebuilt_files] == [rebuilt_files]
    assert len(found_ids(replica)) == 40 + 3 * ENTRIES_PER_FILE_MIN


def test_what_came_to_a_queue_behind_the_checkpoint_is_not_sent(full_store: Path) -> None:
    [path] = (full_store / "consumequeue/t/0").iterdir()
    path.write_bytes(path.read_bytes() + b"what came since the checkpoint")
    assert opened_copy(full_store)[1].core.rebuilt_files == []


def test_many_small_files_of_queues_are_not_sent(store: Path) -> None:
    disk = MemoryDisk()
    transfer.receive_copy(io.BytesIO(sent(store)), disk)
    transfer.install_copy(disk)
    assert disk.list("consumequeue") == []
    assert disk.list("keyindex") != []


def test_a_copy_is_a_store_that_verify_knows_nothing_against(store: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    disk = RealDisk(tmp_path / "other")
    transfer.receive_copy(io.BytesIO(sent(store)), disk)
    transfer.install_copy(disk)
    disk.close()
    found = verify(open_store(tmp_path / "other"), 0)
    assert found.is_sound, found


def test_a_copy_that_was_cut_or_spoiled_on_its_way_is_none(store: Path) -> None:
    whole, random = sent(store), Random(3)
    for _ in range(60):
        spoiled = bytearray(whole)
        if random.random() < 0.5:
            del spoiled[random.randrange(len(spoiled)) :]
        else:
            spoiled[random.randrange(len(spoiled))] ^= 1 << random.randrange(8)
        disk = MemoryDisk()
        disk.write("commitlog/00000000000000000000", 0, b"mine")
        with pytest.raises(CopyRefused):
            transfer.receive_copy(io.BytesIO(bytes(spoiled)), disk)
        assert not transfer.install_copy(disk)
        assert disk.read("commitlog/00000000000000000000", 0, 9) == b"mine"


def fetched(disk: MemoryDisk, copy: bytes, *lacks: int) -> transfer.FetchedCopy:
    """A copy that has arrived, whose log lacks the segments that begin at some offsets."""
    found: list[transfer.FetchedCopy] = []
    transfer.receive_copy(io.BytesIO(copy), disk, found.append)
    for first in lacks:
        found[0]._numbers.pop(layout.segment_path(first))
    return found[0]


def own_log(disk: MemoryDisk, store: Path) -> list[int]:
    """Let a disk have the log of a store; return where its segments begin."""
    for segment in sorted((store / layout.COMMITLOG).iterdir()):
        disk.write(f"{layout.COMMITLOG}/{segment.name}", 0, segment.read_bytes())
    return layout.segment_offsets(disk)


def test_a_copy_has_the_same_bytes_only_where_both_have_them(store: Path) -> None:
    disk, copy = MemoryDisk(), sent(store)
    assert not fetched(disk, copy).has_same_bytes_before(50_000, 8_000), "this store has no log"
    firsts = own_log(disk, store)
    third = firsts[2]
    assert fetched(disk, copy).has_same_bytes_before(third + 2_000, 8_000)
    assert fetched(disk, copy, *firsts[:2]).has_same_bytes_before(third + 2_000, 8_000), "it begins later"
    assert not fetched(disk, copy, *firsts[:3]).has_same_bytes_before(third + 2_000, 8_000), (
        "it begins behind"
    )
    assert not fetched(disk, copy, third).has_same_bytes_before(third + 2_000, 8_000), "it has a gap"
    disk.write(layout.segment_path(third), 1_000, b"?")
    assert not fetched(disk, copy).has_same_bytes_before(third + 2_000, 8_000)
    assert fetched(disk, copy).has_same_bytes_before(third, 8_000)
    disk.truncate(layout.segment_path(third), 500)
    assert not fetched(disk, copy).has_same_bytes_before(third + 2_000, 8_000), "this store has lost some"
    blank = third - 1
    assert not fetched(disk, copy).has_same_bytes_before(third, third - blank), "zeros are of every history"


def test_a_file_outside_of_the_store_is_refused() -> None:
    queue_file = "0" * layout.OFFSET_DIGITS
    for path in (
        *("../users.key", "/etc/passwd", "cluster", "commitlog/../lock", "keep/", "consumequeue/t/0/x"),
        *(
            f"consumequeue/../0/{queue_file}",
            f"consumequeue/t/../{queue_file}",
            f"consumequeue//0/{queue_file}",
        ),
        *(f"consumequeue/t/u/0/{queue_file}", f"consumequeue/t/0/{queue_file}\n", "keyindex/../lock"),
    ):
        sender = transfer.MAGIC + transfer._header({"path": path, "length": 0, "room_bytes": 0})
        sender += blake2b(sender, digest_size=16).digest()
        with pytest.raises(CopyRefused, match="which no store has"):
            transfer.receive_copy(io.BytesIO(sender), MemoryDisk())


def test_a_node_without_a_checkpoint_gives_no_copy(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    Replica.open(disk, SETTINGS, 0, CLUSTER)
    with pytest.raises(CopyRefused, match="no checkpoint yet"):
        sent(tmp_path)
    disk.close()


@pytest.mark.parametrize("fault", list(Fault))
def test_whatever_ends_a_copy_on_its_way_into_place_the_store_is_the_old_one_or_the_new(
    store: Path, fault: Fault
) -> None:
    whole, random, is_over, number, both = sent(store), Random(5), False, 0, set()
    while not is_over:
        number += 1
        disk = MemoryDisk()
        disk.choose = lambda count: random.randrange(count + 1)
        disk.write("snapshots/old", 0, b"mine")
        disk.sync("snapshots/old")
        disk.strike(number, fault)
        died = False
        try:
            with suppress(OSError):
                transfer.receive_copy(io.BytesIO(whole), disk)
                transfer.install_copy(disk)
        except Death:
            died = True
        is_over = not disk.is_struck
        disk.crash(lambda count: random.randrange(count + 1)) if died else disk.well()
        transfer.install_copy(disk)
        names = disk.list("snapshots")
        both.add(tuple(names))
        assert names == ["old"] or len(names) == 1
        if names != ["old"]:
            assert Replica.open(disk, SETTINGS, 0, CLUSTER).core.finding.queue_range("t", 0) == (0, 40)
        assert disk.list(layout.FETCHED) == []
    assert len(both) == 2, "old and new, each at some of the operations"


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("is_kept", [True, False])
def test_what_an_attempt_moved_without_a_sync_is_there_after_the_next_one_and_a_power_cut(
    store: Path, fault: Fault, is_kept: bool
) -> None:
    """The sync of a folder failed, and the next attempt took the move for done (seed 160678)."""
    whole, number, is_over = sent(store), 0, False
    while not is_over:
        number += 1
        disk = MemoryDisk()
        disk.choose = lambda count: count if is_kept else 0
        disk.write("snapshots/old", 0, b"mine")
        disk.sync("snapshots/old")
        transfer.receive_copy(io.BytesIO(whole), disk)
        disk.strike(number, fault)
        with suppress(OSError, Death):
            transfer.install_copy(disk)
        is_over = not disk.is_struck
        disk.kill(lambda _: 0)
        transfer.install_copy(disk)
        disk.crash(lambda _: 0)
        transfer.install_copy(disk)
        replica = Replica.open(disk, SETTINGS, 0, CLUSTER)
        assert replica.core.finding.queue_range("t", 0) == (0, 40)
        assert [one for one in verify(look_at(disk, "the copy"), 0).findings if one.is_damage] == []
    assert number > 10


@pytest.mark.parametrize(
    "spoiled", [b"", b"[1, 2]", b'{"a": 1}', b'["../durable"]', b"\0" * 40, b'["durable']
)
def test_a_copy_whose_list_the_disk_has_spoiled_takes_nothing_over(store: Path, spoiled: bytes) -> None:
    disk = RealDisk(store)
    transfer.receive_copy(io.BytesIO(sent(store)), disk)
    before = contents_of(disk)
    (store / layout.FETCHED / "whole").write_bytes(spoiled)
    assert not transfer.install_copy(disk)
    assert contents_of(disk) == before
    disk.close()


def contents_of(disk: RealDisk) -> dict[str, bytes]:
    """The files of the log, which a store may not lose."""
    offsets = layout.segment_offsets(disk)
    return {path: disk.read(path, 0, disk.size(path)) for path in map(layout.segment_path, offsets)}


@pytest.mark.parametrize("spoiled", [b"", b"[1, 2]", b'["durable'])
def test_a_list_that_is_spoiled_amid_a_move_is_no_store_any_more(store: Path, spoiled: bytes) -> None:
    disk = half_moved(store)
    (store / layout.FETCHED / "moving").write_bytes(spoiled)
    with pytest.raises(StoreDamaged, match="moving does not list the files of the copy"):
        Replica.open(disk, SETTINGS, 0, CLUSTER)
    assert Replica.open(disk, SETTINGS, 0, CLUSTER).fold.next_offset == 0, "and begins anew"
    disk.close()


def half_moved(store: Path) -> RealDisk:
    """A store that was killed while a copy took its place."""
    disk = RealDisk(store)
    transfer.receive_copy(io.BytesIO(sent(store)), disk)
    (store / layout.FETCHED / "whole").rename(store / layout.FETCHED / "moving")
    return disk


def test_a_store_that_is_half_moved_can_be_thrown_away(store: Path) -> None:
    disk = half_moved(store)
    transfer.delete_store(disk)
    assert not (store / layout.FETCHED).exists()
    assert Replica.open(disk, SETTINGS, 0, CLUSTER).fold.next_offset == 0
    disk.close()
