"""Checkpoints: what an older snapshot names stays as long as the snapshot does."""

from __future__ import annotations

import os
from errno import EACCES, EIO, EMFILE, ENOSPC
from pathlib import Path
from unittest.mock import patch

import pytest

from commitlog import layout, limits
from commitlog.disk.disk import SyncFailed
from commitlog.disk.real_disk import RealDisk
from commitlog.errors import StoreDamaged
from commitlog.records.message import Message, MessageType
from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Snapshot
from consumequeue import dispatch
from consumequeue.entry import ENTRY_BYTES, Entry, encode
from consumequeue.queue import QueueWrite
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from tests.memory_disk import Fault, MemoryDisk, Unyielding
from tests.unit.services.broker.timers.test_timers import HOUR, Store


def test_a_checkpoint_of_the_same_offset_leaves_what_the_older_snapshot_names() -> None:
    store = Store()
    for count in (1, 8):  # the second run of names takes the first one in
        for number in range(count):
            store.send(f"M{count}{number}", HOUR)
        store.checkpoint()
    store.checkpoint()  # nothing was appended since: it takes the newer snapshot's place
    _, newer = snapshot.offsets(store.disk)
    store.disk.flip_bit(snapshot.path_of(newer), 8 * (store.disk.size(snapshot.path_of(newer)) - 1))
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)
    assert store.broker.lost == []
    assert len(store.waiting()) == 9


def waiting(store: Store) -> list[QueueWrite]:
    """What queues have in memory, as it would be written."""
    return [one for _, _, queue in store.broker.store.dispatch.queues() for one in queue.unwritten()]


def test_a_checkpoint_keeps_the_queue_entries_that_a_full_disk_kept_in_memory() -> None:
    store = Store()
    store.send("first", None)
    store.broker.sending.send(store.message("second", None), store.now_ms)
    flush = store.broker.take_flush()
    assert flush is not None
    flush.write()
    store.disk.strike(1, Fault.FAILS, ENOSPC, is_lasting=True)
    store.broker.complete_flush(flush, store.now_ms)
    store.disk.well()
    assert waiting(store)
    store.checkpoint()
    store.crash()
    assert store.broker.rebuilt_files == []
    assert [one.message_id for one in store.delivered()] == ["first", "second"]


def test_a_start_from_the_older_snapshot_finds_its_key_index() -> None:
    store = Store()
    for count in (1, 8):  # the second run takes the first one in
        for number in range(count):
            store.send(f"M{count}{number}", None)
        store.checkpoint()
    store.crash()
    _, newer = snapshot.offsets(store.disk)
    store.disk.delete(snapshot.path_of(newer))
    store.crash()
    assert store.broker.rebuilt_files == []
    assert [
        len(store.broker.finding.find("t", message_id, 9).messages) for message_id in ("M10", "M80", "M87")
    ] == [1, 1, 1]


def test_an_index_that_is_made_anew_leaves_what_the_snapshot_names_until_another_one_is_there() -> None:
    store = Store()
    for number in range(50):
        store.send(f"M{number}", None)
    store.checkpoint()
    store.send("M50", None)
    store.checkpoint()
    first, second = store.disk.list(layout.KEYINDEX)
    store.disk.flip_bit(f"{layout.KEYINDEX}/{second}", 70)
    store.crash()
    assert store.broker.rebuilt_files != []
    assert store.disk.list(layout.KEYINDEX) == [first, second]
    for number in range(2):
        store.send(f"N{number}", None)
        store.checkpoint()
    assert second not in store.disk.list(layout.KEYINDEX)
    store.crash()
    assert store.broker.rebuilt_files == []


def test_queue_entries_are_written_by_themselves_and_can_be_read_before() -> None:
    store = Store()
    store.send("first", None)
    (path,) = {one.path for one in waiting(store)}
    assert store.disk.size(path) == -1
    assert [one.message_id for one in store.delivered()] == ["first"]
    taken = store.broker.take_entries()
    assert taken is not None
    store.send("second", None)
    taken.write(store.disk)
    store.broker.complete_entries()
    assert (store.disk.size(path), len(waiting(store))) == (20, 1)
    assert [one.message_id for one in store.delivered()] == ["first", "second"]


def test_entries_are_taken_by_one_writer_at_a_time_and_wait_where_there_is_no_room() -> None:
    store = Store()
    store.send("first", None)
    taken = store.broker.take_entries()
    assert taken is not None
    assert store.broker.take_entries() is None
    store.send("second", None)
    store.disk.strike(1, Fault.FAILS, ENOSPC, is_lasting=True)
    taken.write(store.disk)
    store.disk.well()
    store.broker.complete_entries()
    assert sum(len(one.entries) for one in waiting(store)) == 40
    again = store.broker.take_entries()
    assert again is not None
    store.checkpoint()
    again.write(store.disk)
    store.broker.complete_entries()
    assert waiting(store) == []
    store.crash()
    assert store.broker.rebuilt_files == []
    assert [one.message_id for one in store.delivered()] == ["first", "second"]


def test_entries_that_are_written_while_rows_are_taken_are_synced_by_that_checkpoint() -> None:
    store = Store()
    store.send("first", None)
    checkpoint = store.broker.checkpoint(store.now_ms)
    taken = store.broker.take_entries()
    assert taken is not None
    taken.write(store.disk)
    store.broker.complete_entries()
    assert checkpoint.take(1_000)
    checkpoint.write(store.disk)
    store.broker.complete_checkpoint(checkpoint)
    store.crash()
    assert store.broker.rebuilt_files == []
    assert [one.message_id for one in store.delivered()] == ["first"]


def test_a_checkpoint_that_failed_leaves_its_files_to_the_next_one_to_sync() -> None:
    store = Store()
    store.send("first", None)
    taken = store.broker.take_entries()
    assert taken is not None
    taken.write(store.disk)
    store.broker.complete_entries()
    failed = store.broker.checkpoint(store.now_ms)
    store.broker.abandon_checkpoint(failed)
    store.checkpoint()
    store.crash()
    assert store.broker.rebuilt_files == []
    assert [one.message_id for one in store.delivered()] == ["first"]


def test_files_of_queues_made_anew_are_not_taken_for_those_of_a_snapshot_of_the_same_offset() -> None:
    """Nothing came since the snapshot, so its offset names the old files and the new ones."""
    store = Store(tail_entries_max=4, segment_bytes=1 << 20)
    for name in ("a", "b"):
        store.broker.topics.create(name, MessageType.NORMAL, 1, store.now_ms)
    for number in range(995):  # a start that makes queues anew writes them after 1,000 records
        store.broker.sending.send(Message(topic="a", body=b"x", message_id=f"a{number}"), store.now_ms)
    for number in range(6):
        store.broker.sending.send(Message(topic="b", body=b"x", message_id=f"b{number}"), store.now_ms)
    store.flush()
    store.broker.store.dispatch.write()
    store.checkpoint()
    store.disk.flip_bit(f"consumequeue/b/0/{0:020}", 4 * 8)
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)
    with pytest.raises(StoreDamaged):
        store.broker.finding.read("b", 0, 0, 9)
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)
    assert store.broker.rebuilt_files != []
    checkpoint = store.broker.checkpoint(store.now_ms)
    with (
        patch.object(Snapshot, "write", side_effect=OSError(ENOSPC, "no room")),
        pytest.raises(OSError, match="room"),
    ):
        checkpoint.write(store.disk)
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)
    assert [one.message.message_id for one in store.broker.finding.read("b", 0, 0, 9)] == [
        f"b{number}" for number in range(6)
    ]


def test_damage_that_is_met_while_the_first_mark_is_written_has_the_next_start_make_the_queues_anew() -> None:
    """What is told of a damaged file is to restart the broker: once is enough."""
    store = Store()
    store.broker.topics.create("t", MessageType.NORMAL, 1, store.now_ms)
    store.send("first", None)
    store.broker.store.dispatch.write()
    checkpoint = store.broker.checkpoint(store.now_ms)  # its worker comes later
    path = f"consumequeue/t/0/{0:020}"
    store.disk.write(path, 0, bytes(store.disk.size(path)))
    with pytest.raises(StoreDamaged):
        store.broker.finding.read("t", 0, 0, 9)
    assert [one.part for one in store.broker.damage] == ["queue"]
    checkpoint.write(store.disk)
    store.broker.complete_checkpoint(checkpoint)
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)
    assert [one.message.message_id for one in store.broker.finding.read("t", 0, 0, 9)] == ["first"]


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_mark_that_damage_could_not_take_away_while_it_was_written_goes_once_it_can(
    has_failed: bool,
) -> None:
    store, disk = Store(), Sick()
    store.disk = disk
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    store.send("first", None)
    store.broker.store.dispatch.write()
    checkpoint = store.broker.checkpoint(store.now_ms)
    disk.write(FILE, 0, bytes(disk.size(FILE)))
    marked = dispatch.mark

    def meanwhile(disk: Sick, made_at: int) -> None:
        with pytest.raises(StoreDamaged):
            store.broker.finding.read("t", 0, 0, 9)
        marked(disk, made_at)
        disk.undeletable = layout.QUEUES_WHOLE

    with patch.object(dispatch, "mark", meanwhile):
        checkpoint.write(disk)
    assert disk.size(layout.QUEUES_WHOLE) > 0
    disk.undeletable = "none"
    (store.broker.abandon_checkpoint if has_failed else store.broker.complete_checkpoint)(checkpoint)
    assert disk.size(layout.QUEUES_WHOLE) < 0
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    assert store.broker.rebuilt_files == ["the consume queues: their files are not whole"]
    store.checkpoint()  # another core than the one that met the damage marks them
    assert disk.size(layout.QUEUES_WHOLE) > 0


class Sick(MemoryDisk):
    """A disk that cannot sync the files whose paths begin so, cannot write them, or cannot delete them."""

    unsyncable = unwritable = undeletable = "none"
    error: OSError | None = None
    """What a sync raises instead."""

    def sync(self, path: str) -> None:
        if not path.startswith(self.unsyncable):
            super().sync(path)
        elif self.error is not None:
            raise self.error
        else:
            self._give_up(self._existing(path))
            raise SyncFailed(EIO, "Input/output error", path)

    def write(self, path: str, position: int, data: bytes) -> None:
        if path.startswith(self.unwritable):
            raise OSError(EACCES, "Permission denied", path)
        super().write(path, position, data)

    def delete(self, path: str) -> None:
        if path.startswith((self.unwritable, self.undeletable)):
            raise OSError(EACCES, "Permission denied", path)
        super().delete(path)


FILE = f"consumequeue/t/0/{0:020}"


def sick() -> tuple[Store, Sick]:
    """Return a store with a mark, and a message behind its snapshot whose entry is in a file."""
    store, disk = Store(), Sick()
    disk.choose = lambda _: 0
    store.disk = disk
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    store.send("first", None)
    store.broker.store.dispatch.write()
    store.checkpoint()
    assert disk.size(layout.QUEUES_WHOLE) > 0
    store.send("second", None)
    store.broker.store.dispatch.write()
    return store, disk


def ids(store: Store) -> list[str]:
    return [one.message_id for one in store.delivered()]


def told(store: Store) -> list[tuple[str, str]]:
    return [(one.part, one.path) for one in store.broker.damage]


def test_a_queue_file_that_cannot_be_synced_keeps_no_snapshot_from_being_written() -> None:
    """Each checkpoint failed, so the log to replay grew without end, and the core went each time."""
    store, disk = sick()
    disk.unsyncable = FILE
    for number in range(3):
        before = snapshot.offsets(disk)[-1]
        store.checkpoint()
        assert snapshot.offsets(disk)[-1] > before
        assert told(store) == [("queue", FILE)]
        store.send(f"later {number}", None)
        store.broker.store.dispatch.write()
    assert disk.size(layout.QUEUES_WHOLE) < 0


def test_a_real_queue_file_that_cannot_be_synced_is_known_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, settings = RealDisk(tmp_path), BrokerSettings(segment_bytes=1 << 16, tail_entries_max=1)
    broker = Broker.open(disk, settings, 1)
    broker.topics.create("t", MessageType.NORMAL, 1, 1)
    broker.sending.send(Message(topic="t", body=b"x", message_id="first"), 1)
    flush = broker.take_flush()
    assert flush is not None
    flush.write()
    broker.complete_flush(flush, 1)
    broker.store.dispatch.write()
    checkpoint = broker.checkpoint(1)

    def sync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(FILE):
            raise OSError(EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", sync)
    checkpoint.write(disk)
    broker.complete_checkpoint(checkpoint)
    assert [(one.part, one.path) for one in broker.damage] == [("queue", FILE)]
    assert len(snapshot.offsets(disk)) == 1
    assert disk.size(layout.QUEUES_WHOLE) < 0
    disk.close()


def flushed(broker: Broker) -> None:
    """Take to disk all that was sent."""
    while (flush := broker.take_flush()) is not None:
        flush.write()
        broker.complete_flush(flush, 1)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_queues_file_whose_sync_fails_where_it_is_closed_for_another_is_told_by_the_next_checkpoint(
    is_restarted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opened the other was told, in the name of the log: that ended the core, and then each start."""
    fdatasync, bad = os.fdatasync, f"consumequeue/t/1/{0:020d}"
    is_bad = False

    def sync(descriptor: int) -> None:
        if is_bad and os.readlink(f"/proc/self/fd/{descriptor}").endswith(bad):
            raise OSError(EIO, "Input/output error")
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    settings = BrokerSettings(segment_bytes=1 << 16, queue_count=8, tail_entries_max=1)
    disk = RealDisk(tmp_path, open_max=4)
    broker = Broker.open(disk, settings, 1)
    broker.topics.create("t", MessageType.NORMAL, 8, 1)
    for message_ids in ("M", "N"):
        for number in range(64):
            broker.sending.send(Message(topic="t", body=b"x", message_id=f"{message_ids}{number}"), 1)
        flushed(broker)
        is_bad = message_ids == "N"  # a sector of one file of one queue
        broker.store.dispatch.write()
        if not is_bad:
            written(broker, disk)
    for _ in range(2):
        if is_restarted:
            disk.close()
            disk = RealDisk(tmp_path, open_max=4)
        broker = Broker.open(disk, settings, 1, broker.durable_offset)
        assert broker.rebuilt_files == []
        assert [len(broker.finding.read("t", queue_id, 0, 99)) for queue_id in range(8)] == 8 * [16]
    written(broker, disk)
    assert [(one.part, one.path) for one in broker.damage] == [("queue", bad)]
    assert disk.size(layout.QUEUES_WHOLE) < 0
    is_bad = False
    written(broker, disk)
    assert disk.size(layout.QUEUES_WHOLE) < 0
    broker = Broker.open(disk, settings, 1)
    assert broker.rebuilt_files == ["the consume queues: their files are not whole"]
    disk.close()


def written(broker: Broker, disk: RealDisk) -> None:
    """Write a checkpoint."""
    checkpoint = broker.checkpoint(1)
    checkpoint.write(disk)
    broker.complete_checkpoint(checkpoint)


@pytest.mark.parametrize("folder", ["consumequeue/t/0", "consumequeue/t", "consumequeue"])
@pytest.mark.parametrize("is_relative", [False, True])
def test_a_real_folder_of_queues_that_cannot_be_synced_ends_neither_core_nor_start(
    folder: str, is_relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each checkpoint failed, and the core went each time; a start failed, too."""
    monkeypatch.chdir(tmp_path)
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path / folder):
            raise OSError(EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    disk = RealDisk(Path() if is_relative else tmp_path)
    settings = BrokerSettings(segment_bytes=1 << 16, tail_entries_max=1)
    broker = Broker.open(disk, settings, 1)
    broker.topics.create("t", MessageType.NORMAL, 1, 1)
    broker.topics.create("sound", MessageType.NORMAL, 1, 1)
    for count in range(1, 3):
        for topic in ("t", "sound"):
            broker.sending.send(Message(topic=topic, body=b"x", message_id=f"{topic} {count}"), 1)
        while (flush := broker.take_flush()) is not None:
            flush.write()
            broker.complete_flush(flush, 1)
        broker.store.dispatch.write()
        checkpoint = broker.checkpoint(1)
        checkpoint.write(disk)
        broker.complete_checkpoint(checkpoint)
        assert broker.written_offset == snapshot.offsets(disk)[-1] == checkpoint.snapshot.offset
        assert ("queue", FILE) in [(one.part, one.path) for one in broker.damage]
        assert disk.size(layout.QUEUES_WHOLE) < 0
        disk.close()
        broker = Broker.open(disk, settings, 1)
        assert broker.rebuilt_files == ["the consume queues: their files are not whole"]
        found = broker.finding.read("t", 0, 0, 9)
        assert [one.message.message_id for one in found] == [f"t {one + 1}" for one in range(count)]
    disk.close()


@pytest.mark.parametrize("path", [".", layout.QUEUES_WHOLE, layout.COMMITLOG])
def test_a_failed_sync_of_a_folder_that_holds_more_than_queues_ends_the_core(path: str) -> None:
    store, disk = sick()
    disk.unsyncable, disk.error = FILE, SyncFailed(EIO, "Input/output error", path)
    with pytest.raises(SyncFailed):
        store.broker.checkpoint(store.now_ms).write(disk)
    assert told(store) == []


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_store_opens_where_the_folder_of_a_queue_is_anothers(has_snapshot: bool) -> None:
    store, disk = Store(), Unyielding()
    store.disk = disk
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    store.send("first", None)
    store.broker.store.dispatch.write()
    disk.sync(FILE)
    if has_snapshot:
        store.checkpoint()
    disk.hold("consumequeue/t/0")
    store.send("second", None)
    store.broker.store.dispatch.write()
    for _ in range(3):
        store.crash()
        assert ids(store) == ["first", "second"]
        store.checkpoint()
    assert store.broker.rebuilt_files == []
    assert disk.list("consumequeue.aside-1") == ["t"]
    disk.let_go()
    store.crash()
    assert disk.list("consumequeue.aside-1") == []
    assert ids(store) == ["first", "second"]


class Unlistable(MemoryDisk):
    """A disk that can neither list nor empty a folder: a bad sector, or another owner."""

    folder = "none"
    error = EIO

    def list(self, folder: str) -> list[str]:
        self._refuse(folder)
        return super().list(folder)

    def delete(self, path: str) -> None:
        self._refuse(path)
        super().delete(path)

    def _refuse(self, folder: str) -> None:
        if folder == self.folder and any(path.startswith(f"{folder}/") for path in self.paths()):
            raise OSError(self.error, "fails by the test", folder)


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize("error", [EIO, EACCES])
def test_a_store_opens_where_the_folder_of_all_queues_cannot_be_listed(error: int, is_marked: bool) -> None:
    """No start was possible with the mark; without it the folder is renamed aside."""
    store, disk = Store(), Unlistable()
    store.disk = disk
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    for number in range(3):
        store.send(f"M{number}", None)
    store.broker.store.dispatch.write()
    store.checkpoint()
    if not is_marked:
        disk.delete(layout.QUEUES_WHOLE)
    disk.folder, disk.error = "consumequeue", error
    for _ in range(3):
        disk.kill(lambda _: 0)
        store.broker = Broker.open(disk, store.settings, store.now_ms)
        assert ids(store) == ["M0", "M1", "M2"]
        store.checkpoint()


@pytest.mark.parametrize("error", [EIO, EMFILE])
def test_a_store_opens_where_a_file_of_the_key_index_cannot_be_read(error: int) -> None:
    store, disk = Store(), Unreadable()
    store.disk = disk
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    store.send("M0", None)
    store.checkpoint()
    disk.path, disk.error = f"keyindex/{0:020}", error
    disk.kill(lambda _: 0)
    if error == EMFILE:  # says nothing of the file
        with pytest.raises(OSError, match="fails by the test"):
            Broker.open(disk, store.settings, store.now_ms)
        return
    for _ in range(3):
        store.broker = Broker.open(disk, store.settings, store.now_ms)
        assert len(store.broker.finding.find("t", "M0", 9).messages) == 1
        store.checkpoint()
        disk.kill(lambda _: 0)
    assert store.broker.rebuilt_files == []


class Unreadable(MemoryDisk):
    """A disk that cannot read a file."""

    path = "none"
    error = EIO

    def read(self, path: str, position: int, length: int) -> bytes:
        if path == self.path:
            raise OSError(self.error, "fails by the test", path)
        return super().read(path, position, length)


def test_a_folder_that_is_not_listed_for_want_of_descriptors_says_nothing_of_queues() -> None:
    store, disk = Store(), Unlistable()
    store.disk = disk
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    store.send("M0", None)
    store.broker.store.dispatch.write()
    store.checkpoint()
    disk.folder, disk.error = "consumequeue", EMFILE
    disk.kill(lambda _: 0)
    with pytest.raises(OSError, match="fails by the test"):
        Broker.open(disk, store.settings, store.now_ms)
    assert disk.size(layout.QUEUES_WHOLE) > 0


def test_a_store_opens_where_a_file_has_the_name_of_the_folder_of_all_queues(tmp_path: Path) -> None:
    store, disk = Store(), RealDisk(tmp_path)
    store.disk = disk  # type: ignore[assignment]
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    store.send("M0", None)
    store.broker.store.dispatch.write()
    store.checkpoint()
    disk.close()
    disk.delete("consumequeue")
    (tmp_path / "consumequeue").write_bytes(b"no folder")
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    assert ids(store) == ["M0"]
    store.broker.store.dispatch.write()
    assert (tmp_path / FILE).stat().st_size == ENTRY_BYTES
    disk.close()


@pytest.mark.parametrize("ends", ["killed", "killed, given up", "power cut"])
def test_a_sync_that_succeeds_after_one_that_failed_is_not_believed(ends: str) -> None:
    store, disk = sick()
    disk.unsyncable = FILE
    store.checkpoint()
    disk.unsyncable = "none"
    store.send("third", None)
    store.broker.store.dispatch.write()
    store.checkpoint()  # syncs the file, which lacks the second entry, without an error
    assert disk.size(layout.QUEUES_WHOLE) < 0
    if ends == "power cut":
        disk.crash(lambda count: count)
    else:
        disk.kill(lambda count: count if ends == "killed, given up" else 0)
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    assert store.broker.rebuilt_files == ["the consume queues: their files are not whole"]
    assert ids(store) == ["first", "second", "third"]
    store.checkpoint()
    store.crash()
    assert store.broker.rebuilt_files == []
    assert ids(store) == ["first", "second", "third"]


def test_what_a_failed_sync_has_lost_is_passed_over_by_nobody_in_the_same_run() -> None:
    """A file that was compared before is not taken for sound: its pages go when memory is short."""
    store, disk = sick()
    assert len(store.broker.store.dispatch.queue("t", 0).get(1, 1)) == 1
    disk.unsyncable = FILE
    for number in range(2):  # to doubt a file twice is to doubt it
        store.checkpoint()
        store.send(f"later {number}", None)
        store.broker.store.dispatch.write()
    assert disk.size(FILE) == 4 * ENTRY_BYTES
    disk._files[FILE].forget()
    queue = store.broker.store.dispatch.queue("t", 0)
    for offset in range(4):
        with pytest.raises(StoreDamaged, match=FILE):
            queue.get(offset, 1)
    assert not queue.is_sound()
    assert told(store) == [("queue", FILE)]


def test_a_sync_that_failed_is_told_where_the_checkpoint_fails_later() -> None:
    store, disk = sick()
    disk.unsyncable = FILE
    checkpoint = store.broker.checkpoint(store.now_ms)
    with (
        patch.object(Snapshot, "write", side_effect=OSError(ENOSPC, "no room")),
        pytest.raises(OSError, match="room"),
    ):
        checkpoint.write(disk)
    store.broker.abandon_checkpoint(checkpoint)
    assert told(store) == [("queue", FILE)]
    disk.unsyncable = "none"
    store.checkpoint()
    assert disk.size(layout.QUEUES_WHOLE) < 0


def test_the_first_mark_is_not_written_where_a_file_cannot_be_synced() -> None:
    store, disk = Store(), Sick()
    store.disk = disk
    store.broker = Broker.open(disk, store.settings, store.now_ms)
    store.send("first", None)
    store.broker.store.dispatch.write()
    disk.unsyncable = FILE
    store.checkpoint()
    disk.unsyncable = "none"
    store.checkpoint()
    assert disk.size(layout.QUEUES_WHOLE) < 0
    store.crash()
    assert store.broker.rebuilt_files != []
    assert ids(store) == ["first"]


@pytest.mark.parametrize("path", [layout.SNAPSHOTS, "keyindex/"])
def test_a_failed_sync_of_another_file_ends_the_core_as_before(path: str) -> None:
    store, disk = sick()
    disk.unsyncable = path
    with pytest.raises(SyncFailed, match=path):
        store.broker.checkpoint(store.now_ms).write(disk)


def test_a_failed_sync_that_names_another_file_than_a_queues_ends_the_core() -> None:
    store, disk = sick()
    disk.unsyncable, disk.error = FILE, SyncFailed(EIO, "Input/output error", "commitlog/0")
    with pytest.raises(SyncFailed, match="commitlog/0"):
        store.broker.checkpoint(store.now_ms).write(disk)
    assert told(store) == []


def test_a_failed_sync_of_a_queues_file_ends_the_core_where_the_mark_stays() -> None:
    store, disk = sick()
    disk.unsyncable, disk.unwritable = FILE, layout.QUEUES_WHOLE
    offsets = snapshot.offsets(disk)
    with pytest.raises(SyncFailed, match=FILE):
        store.broker.checkpoint(store.now_ms).write(disk)
    assert snapshot.offsets(disk) == offsets


def test_a_checkpoint_without_descriptors_tells_nothing_of_a_queue() -> None:
    store, disk = sick()
    disk.unsyncable, disk.error = FILE, OSError(EMFILE, "Too many open files", FILE)
    checkpoint = store.broker.checkpoint(store.now_ms)
    with pytest.raises(OSError, match="Too many"):
        checkpoint.write(disk)
    store.broker.abandon_checkpoint(checkpoint)
    disk.unsyncable = "none"
    store.checkpoint()
    assert told(store) == []
    store.crash()
    assert store.broker.rebuilt_files == []
    assert ids(store) == ["first", "second"]


def test_files_of_queues_that_fail_together_are_told_in_the_ticks_that_follow() -> None:
    (store, disk), one = sick(), encode(Entry(0, 100, 0))
    store.broker.store.dispatch.dispatch_runs([(("t", number), 0, one) for number in range(1, 2_500)])
    store.broker.store.dispatch.write()
    disk.unsyncable = "consumequeue/"
    store.checkpoint()
    assert disk.size(layout.QUEUES_WHOLE) < 0
    turns = 0
    while store.broker.store.dispatch.has_untrusted:
        assert store.broker.next_due_ms() == store.now_ms
        store.broker.tick(store.now_ms)
        turns += 1
    assert turns == 2
    due_ms = store.broker.next_due_ms()
    assert due_ms is None or due_ms > store.now_ms
    assert len(store.broker.damage) == limits.DAMAGE_KEPT_MAX + 1


def test_a_mark_that_damage_could_not_take_away_is_told_and_goes_with_the_housekeeping_that_can() -> None:
    store, disk = sick()
    disk.write(FILE, 0, bytes(disk.size(FILE)))
    disk.undeletable = layout.QUEUES_WHOLE
    for _ in range(2):
        with pytest.raises(StoreDamaged):
            store.broker.finding.read("t", 0, 0, 9)
        store.now_ms += store.settings.housekeeping_ms
        store.broker.tick(store.now_ms)
    assert sorted(told(store)) == [("queue", layout.QUEUES_WHOLE), ("queue", FILE)]
    assert disk.size(layout.QUEUES_WHOLE) > 0
    disk.undeletable = "none"
    for _ in range(2):
        store.now_ms += store.settings.housekeeping_ms
        store.broker.tick(store.now_ms)
    assert disk.size(layout.QUEUES_WHOLE) < 0
    store.crash()
    assert store.broker.rebuilt_files != []
    assert ids(store) == ["first", "second"]
