"""Queue entries against golden bytes; queues made from records, with gaps and over several files."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from commitlog.layout import QUEUES_WHOLE
from commitlog.record import Record
from consumequeue import entry, queue
from consumequeue.dispatch import Dispatch
from consumequeue.entry import Entry
from consumequeue.queue import ConsumeQueue
from tests.memory_disk import MemoryDisk

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "rocketmq.json").read_text())


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if v["kind"] == "consumequeue_entry"], ids=lambda vector: vector["name"]
)
def test_entries_match_the_golden_bytes(vector: dict[str, Any]) -> None:
    fields = vector["input"]
    golden = bytes.fromhex(vector["hex"])
    one = Entry(fields["phy"], fields["size"], fields["tagsCode"])
    assert entry.encode(one) == golden
    assert entry.decode_all(golden) == [one]


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if v["kind"] == "tag_hash"], ids=lambda v: repr(v["input"])
)
def test_tag_hashes_are_those_of_java(vector: dict[str, Any]) -> None:
    assert entry.tags_code(vector["input"]) == vector["hashCode"]


def test_only_messages_and_commits_are_queued() -> None:
    dispatch = Dispatch(MemoryDisk())
    kept = Record(topic="t", body=b"", properties=b"TAGS\x01TagA\x02", queue_id=1, physical_offset=300)
    assert dispatch.dispatch(kept, 120)
    assert dispatch.dispatch(Record(topic="t", body=b"", queue_id=1, queue_offset=1, sys_flag=8), 100)
    assert not dispatch.dispatch(Record(topic="t", body=b"", queue_id=1, queue_offset=2, sys_flag=12), 100)
    assert dispatch.queue("t", 1).get(0, 9)[0] == Entry(300, 120, entry.tags_code("TagA"))
    assert dispatch.queue("t", 1).end_offset == 2


def test_a_gap_keeps_later_entries_in_their_places() -> None:
    index = ConsumeQueue(MemoryDisk(), "t", 0)
    index.put(0, Entry(0, 100, 0))
    index.put(3, Entry(900, 100, 7))
    assert [one.record_bytes for one in index.get(0, 10)] == [100, 0, 0, 100]
    assert index.get(3, 1) == [Entry(900, 100, 7)]
    with pytest.raises(AssertionError):
        index.put(3, Entry(1000, 100, 7))


def test_entries_go_on_in_the_next_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_FILE_BYTES", 60)
    disk = MemoryDisk()
    index = ConsumeQueue(disk, "t", 0)
    for offset in range(8):
        index.put(offset, Entry(offset * 100, 100, 0))
    index.write()
    assert disk.list("consumequeue/t/0") == [f"{first:020d}" for first in (0, 60, 120)]
    assert [one.physical_offset for one in index.get(4, 10)] == [400, 500]
    assert index.get(8, 1) == []


def test_offsets_that_begin_anew_replace_the_old_ones_in_an_imported_log_only() -> None:
    disk = MemoryDisk()
    dispatch = Dispatch(disk, imported_until=1000)
    for number in range(10):
        dispatch.dispatch(Record(topic="t", body=b"", queue_offset=number, physical_offset=number * 91), 91)
    dispatch.write()
    dispatch.dispatch(Record(topic="t", body=b"", queue_offset=0, physical_offset=950), 50)
    queue = dispatch.queue("t", 0)
    assert [one.physical_offset for one in queue.get(0, 10)] == [950]
    assert queue.end_offset == 1
    with pytest.raises(AssertionError, match="already given"):
        dispatch.dispatch(Record(topic="t", body=b"", queue_offset=0, physical_offset=1000), 50)


def test_files_are_taken_over_only_as_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_FILE_BYTES", 3 * entry.ENTRY_BYTES)
    disk = MemoryDisk()
    made = ConsumeQueue(disk, "t", 0)
    for number in range(7):
        made.put(number, Entry(100 * number, 100, 0))
    made.write()
    entry_count, crcs, _ = queue.kept(made.taken())
    made.put(7, Entry(700, 100, 0))
    made.write()
    assert ConsumeQueue(disk, "t", 0, entry_count).adopt(crcs), "what came later is cut"
    disk.sync(disk_path(3))
    disk.flip_bit(disk_path(3), 5)
    assert not ConsumeQueue(disk, "t", 0, entry_count).adopt(crcs)
    disk.flip_bit(disk_path(3), 5)
    disk.delete(disk_path(0))
    assert ConsumeQueue(disk, "t", 0, entry_count).adopt(crcs), "retention deletes the oldest file"
    disk.delete(disk_path(6))
    assert not ConsumeQueue(disk, "t", 0, entry_count).adopt(crcs)


def test_a_queue_that_lost_all_its_records_keeps_its_end() -> None:
    disk = MemoryDisk()
    made = Dispatch(disk)
    made.complete([["t", 0, 5, []]], 900)
    made.write()
    ((_, _, entry_count, crcs, _),) = made.freeze()
    assert entry_count == 5
    assert ConsumeQueue(disk, "t", 0, entry_count).adopt(crcs)


def disk_path(first_entry: int) -> str:
    return f"consumequeue/t/0/{first_entry * entry.ENTRY_BYTES:020d}"


def test_a_queue_knows_where_its_records_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_FILE_BYTES", 3 * 20)
    made = ConsumeQueue(MemoryDisk(), "t", 0)
    for number in range(8):
        made.put(number if number < 5 else number + 2, Entry(100 * number, 50, 0))
        if number == 4:
            made.write()
    held = [offset for offset in range(-5, 900) if made.holds(offset)]
    assert held == [0, 100, 200, 300, 400, 500, 600, 700]
    assert not ConsumeQueue(MemoryDisk(), "t", 0).holds(0)


def test_where_a_queue_begins_outlives_its_files() -> None:
    disk = MemoryDisk()
    made = Dispatch(disk)
    for offset in range(5):
        made.dispatch_many("t", 0, offset, entry.encode(Entry(100 * offset, 90, 0)))
    made.write()
    made.rise([("t", 0, 3)])
    disk.write(QUEUES_WHOLE, 0, b"yes\n")
    frozen = made.freeze()
    again, anew = Dispatch(disk), Dispatch(MemoryDisk())
    assert again.adopt(frozen)
    anew.dispatch_many("t", 0, 2, entry.encode(Entry(200, 90, 0)))
    anew.complete(frozen, 400)
    assert [one.queue("t", 0).min_offset for one in (made, again, anew)] == [3, 3, 3]


def test_what_was_taken_for_a_snapshot_stays_as_it_was() -> None:
    made = ConsumeQueue(MemoryDisk(), "t", 0)
    seen: list[tuple[object, object]] = []
    steps = (
        lambda: made.put(2, Entry(200, 100, 0)),
        made.write,
        lambda: made.put(3, Entry(300, 100, 0)),
        made.write,
        lambda: made.rise(3),
        lambda: made.cut(3),
        lambda: made.put(3, Entry(350, 100, 0)),
        made.delete_unneeded,
    )
    for step in steps:
        step()
        taken = made.taken()
        seen.append((taken, queue.kept(taken)))
    assert all(queue.kept(taken) == kept for taken, kept in seen)
    assert [kept[0] for _, kept in seen] == [3, 3, 4, 4, 4, 3, 4, 4]
    assert [kept[2] for _, kept in seen] == [2, 2, 2, 2, 3, 3, 3, 3]


def test_what_is_read_ahead_leaves_nothing_to_the_collector() -> None:
    read = ConsumeQueue(MemoryDisk(), "t", 0)
    for offset in range(100):
        read.put(offset, Entry(300 * offset, 300, offset))
    held = sum(isinstance(one, Entry) for one in gc.get_objects())
    assert [read.entry(offset).tags_code for offset in (0, 1, 63, 64, 99, 2)] == [0, 1, 63, 64, 99, 2]
    assert [one.tags_code for one in read.entries(5, 3)] == [5, 6, 7]
    assert sum(isinstance(one, Entry) for one in gc.get_objects()) == held
