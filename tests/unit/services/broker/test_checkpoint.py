"""Checkpoints: what an older snapshot names stays as long as the snapshot does."""

from __future__ import annotations

from errno import ENOSPC
from unittest.mock import patch

import pytest

from commitlog import layout, snapshot
from commitlog.errors import StoreDamaged
from commitlog.message import Message, MessageType
from commitlog.snapshot import Snapshot
from consumequeue.queue import QueueWrite
from services.broker.broker import Broker
from tests.memory_disk import Fault
from tests.unit.services.broker.test_timers import HOUR, Store


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
    store.broker.flushed(flush, store.now_ms)
    store.disk.well()
    assert waiting(store)
    store.checkpoint()
    store.crash()
    assert store.broker.made_anew == []
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
    assert store.broker.made_anew == []
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
    assert store.broker.made_anew != []
    assert store.disk.list(layout.KEYINDEX) == [first, second]
    for number in range(2):
        store.send(f"N{number}", None)
        store.checkpoint()
    assert second not in store.disk.list(layout.KEYINDEX)
    store.crash()
    assert store.broker.made_anew == []


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
    store.broker.entries_written()
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
    store.broker.entries_written()
    assert sum(len(one.entries) for one in waiting(store)) == 40
    again = store.broker.take_entries()
    assert again is not None
    store.checkpoint()
    again.write(store.disk)
    store.broker.entries_written()
    assert waiting(store) == []
    store.crash()
    assert store.broker.made_anew == []
    assert [one.message_id for one in store.delivered()] == ["first", "second"]


def test_entries_that_are_written_while_rows_are_taken_are_synced_by_that_checkpoint() -> None:
    store = Store()
    store.send("first", None)
    checkpoint = store.broker.checkpoint(store.now_ms)
    taken = store.broker.take_entries()
    assert taken is not None
    taken.write(store.disk)
    store.broker.entries_written()
    assert checkpoint.take(1_000)
    checkpoint.write(store.disk)
    store.broker.checkpointed(checkpoint)
    store.crash()
    assert store.broker.made_anew == []
    assert [one.message_id for one in store.delivered()] == ["first"]


def test_a_checkpoint_that_failed_leaves_its_files_to_the_next_one_to_sync() -> None:
    store = Store()
    store.send("first", None)
    taken = store.broker.take_entries()
    assert taken is not None
    taken.write(store.disk)
    store.broker.entries_written()
    failed = store.broker.checkpoint(store.now_ms)
    store.broker.checkpoint_failed(failed)
    store.checkpoint()
    store.crash()
    assert store.broker.made_anew == []
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
    assert store.broker.made_anew != []
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
    store.broker.finding.read("t", 0, 0, 9)
    assert [one.part for one in store.broker.damage] == ["queue"]
    checkpoint.write(store.disk)
    store.broker.checkpointed(checkpoint)
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)
    assert [one.message.message_id for one in store.broker.finding.read("t", 0, 0, 9)] == ["first"]
