"""Tests queue entries against known bytes, and tests queues with gaps and several files."""

from __future__ import annotations

import gc
import json
from errno import EIO, EMFILE, EPERM
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.disk.disk import SyncFailed
from commitlog.errors import StoreDamaged
from commitlog.layout import QUEUES_WHOLE
from commitlog.log.retention import delete_some
from commitlog.records.record import Record
from consumequeue import entry, queue
from consumequeue.dispatch import Dispatch, files_named, is_marked, mark
from consumequeue.entry import Entry
from consumequeue.queue import ConsumeQueue
from tests.memory_disk import MemoryDisk, Unyielding

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


def adopted(disk: MemoryDisk, row: queue.Row, told: list[str] | None = None) -> ConsumeQueue:
    """Return the queue that is restored from a snapshot row at startup."""
    (stored,) = queue.stored_queues([["t", 0, *row]])
    found = [] if told is None else told
    again = ConsumeQueue(disk, "t", 0, stored.written_count, lambda path, what: found.append(path))
    again.adopt(stored.crcs, stored.tail, stored.min_offset, stored.begins_at)
    return again


def places(one: ConsumeQueue) -> list[int]:
    """Return the log offsets of all entries, reading one file at a time."""
    found: list[int] = []
    while one.min_offset + len(found) < one.end_offset:
        found += [entry.physical_offset for entry in one.get(one.min_offset + len(found), 99)]
    return found


def filled(disk: MemoryDisk, written: int, gathered: int) -> ConsumeQueue:
    """Return a queue with some entries in files of three entries and other entries in memory."""
    made = ConsumeQueue(disk, "t", 0)
    for number in range(written + gathered):
        made.put(number, Entry(100 * number, 100, 0))
        if number == written - 1:
            made.write()
    return made


def kept(one: ConsumeQueue) -> queue.Row:
    taken = one.taken()
    assert taken is not None
    return queue.kept(taken)


@pytest.fixture
def _files_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_FILE_BYTES", 3 * entry.ENTRY_BYTES)


@pytest.mark.usefixtures("_files_of_three")
def test_a_start_looks_at_no_file_and_the_first_read_at_all_of_it() -> None:
    disk, told = MemoryDisk(), list[str]()
    made = filled(disk, 7, 2)
    row = kept(made)
    made.write()  # The later part of a file is invalid and is overwritten.
    disk.sync(disk_path(3))
    disk.flip_bit(disk_path(3), 5)
    operations = disk.operations
    again = adopted(disk, row, told)
    assert (again.end_offset, disk.operations, told) == (9, operations, [])
    assert [one.physical_offset for one in again.get(0, 3)] == [0, 100, 200]
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=f"{disk_path(3)} does not match its CRC"):
            again.get(4, 1)
    assert told == [disk_path(3)]
    assert [one.physical_offset for one in again.get(7, 2)] == [700, 800], "the tail is sound"
    assert not again.is_sound()
    disk.flip_bit(disk_path(3), 5)
    assert places(adopted(disk, row)) == [100 * number for number in range(9)]
    assert adopted(disk, row).is_sound()


@pytest.mark.usefixtures("_files_of_three")
@pytest.mark.parametrize("length", [None, 0, 59])
def test_a_file_that_is_missing_or_short_is_told_and_not_read(length: int | None) -> None:
    disk, told = MemoryDisk(), list[str]()
    row = kept(filled(disk, 7, 0))
    disk.delete(disk_path(3)) if length is None else disk.truncate(disk_path(3), length)
    again = adopted(disk, row, told)
    with pytest.raises(StoreDamaged, match="missing or cut short"):
        again.get(3, 1)
    assert told == [disk_path(3)]
    assert again.first_from(350) == 0, "nothing is concluded from what cannot be read"
    again.advance_first_offset(6)
    assert places(again) == [600]
    assert again.is_sound(), "nobody needs the file any more"


@pytest.mark.usefixtures("_files_of_three")
def test_a_queue_goes_on_in_the_file_that_it_took_over() -> None:
    disk = MemoryDisk()
    made = filled(disk, 4, 1)
    row = kept(made)
    made.put(5, Entry(999, 100, 0))
    made.write()  # The bytes are invalid, because another process wrote them after the snapshot.
    again = adopted(disk, row)
    for number in range(5, 8):
        again.put(number, Entry(100 * number, 100, 0))
    again.write()
    assert places(again) == [100 * number for number in range(8)]
    assert places(adopted(disk, kept(again))) == [100 * number for number in range(8)]


def test_a_queue_that_lost_all_its_records_keeps_its_end() -> None:
    disk = MemoryDisk()
    made = Dispatch(disk)
    made.complete([["t", 0, 5, [], 0, "", queue.UNKNOWN]], 900)
    mark(disk, 0)
    again = Dispatch(disk)
    assert again.adopt(made.freeze(), 0)
    assert again.queue("t", 0).end_offset == 5


def test_damage_takes_the_mark_away_by_which_a_start_believes_files() -> None:
    disk, told = MemoryDisk(), list[str]()
    made = Dispatch(disk, tail_entries_max=1)
    made.dispatch_runs([(("t", 0), 0, entry.encode(Entry(0, 90, 0)))])
    made.write()
    mark(disk, 0)
    frozen = made.freeze()
    disk.flip_bit(disk_path(0), 5)
    again = Dispatch(disk, found_damaged=lambda path, what: told.append(path))
    assert again.adopt(frozen, 0)
    with pytest.raises(StoreDamaged):
        again.queue("t", 0).get(0, 1)
    assert (told, again.needs_mark(), disk.size(QUEUES_WHOLE)) == ([disk_path(0)], False, -1)
    assert not Dispatch(disk).adopt(frozen, 0)


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


@given(st.lists(st.tuples(st.sampled_from(["rise", "advance_unrecorded", "restart"]), st.integers(0, 5))))
def test_a_queue_begins_later_than_records_say_until_one_says_so(script: list[tuple[str, int]]) -> None:
    disk, begins, recorded = MemoryDisk(), 0, 0
    made = Dispatch(disk)
    for offset in range(5):
        made.dispatch_runs([(("t", 0), offset, entry.encode(Entry(100 * offset, 90, 0)))])
    made.write()
    mark(disk, 0)
    for action, offset in script:
        if action == "restart":
            again = Dispatch(disk)
            assert again.adopt(made.freeze(), 0, recorded=made.freeze_recorded())
            made = again
        elif action == "rise":  # The new first offset has been recorded.
            made.advance_first_offsets([("t", 0, offset)])
            begins, recorded = max(begins, offset), max(recorded, offset)
        else:
            made.advance_unrecorded([("t", 0, offset)], [100 * offset])
            begins = max(begins, offset)
        assert made.queue("t", 0).min_offset == begins
        assert made.recorded_min("t", 0) == recorded
        assert made.is_unrecorded("t", 0) == made.has_unrecorded == (recorded < begins)
        assert made.freeze_recorded() == ([("t", 0, recorded)] if recorded < begins else [])
        assert made.unrecorded(9, lambda _: 0)[0] == ([("t", 0, begins)] if recorded < begins else [])


@given(st.lists(st.tuples(st.sampled_from(["put", "rise", "restart"]), st.integers(0, 12)), max_size=20))
def test_files_go_with_their_last_entry_and_the_others_stay_readable(script: list[tuple[str, int]]) -> None:
    """Each file has three entries.

    The file with the newest entry is kept even if its entries are not needed.
    """
    disk, begins, end = MemoryDisk(), 0, 0
    made = Dispatch(disk, tail_entries_max=1)
    mark(disk, 0)
    with patch.object(queue, "_FILE_BYTES", 3 * 20):
        for action, number in script:
            if action == "put":
                for offset in range(end, end + number):
                    made.dispatch_runs([(("t", 0), offset, entry.encode(Entry(100 * offset, 90, 0)))])
                end += number
                made.write()
            elif action == "rise":
                made.advance_first_offsets([("t", 0, begins + number)])
                begins = min(begins + number, end)
                made.deleted(delete_some(disk, made.take_deletable_files()))
                assert not made.queue("t", 0).has_deletable_files
                left = {int(name) for name in disk.list("consumequeue/t/0")}
                assert {at for at in left if at // 20 + 3 <= min(begins, end - 1)} == set()
            else:
                again = Dispatch(disk, tail_entries_max=1)
                assert again.adopt(made.freeze(), 0)
                made = again
            held = made.queue("t", 0)
            assert (held.min_offset, held.end_offset) == (begins, end)
            assert [held.entry(offset).physical_offset for offset in range(begins, end)] == [
                100 * offset for offset in range(begins, end)
            ]
            assert held.is_sound()


def test_where_a_queue_begins_outlives_its_files() -> None:
    disk = MemoryDisk()
    made = Dispatch(disk)
    for offset in range(5):
        made.dispatch_runs([(("t", 0), offset, entry.encode(Entry(100 * offset, 90, 0)))])
    made.write()
    made.advance_first_offsets([("t", 0, 3)])
    mark(disk, 0)
    frozen = made.freeze()
    again, anew = Dispatch(disk), Dispatch(MemoryDisk())
    assert again.adopt(frozen, 0)
    anew.dispatch_runs([(("t", 0), 2, entry.encode(Entry(200, 90, 0)))])
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
        lambda: made.advance_first_offset(3),
        lambda: made.cut(3),
        lambda: made.put(3, Entry(350, 100, 0)),
        made.write_tail_before_deletion,
        lambda: made.deleted(made.deletable_files()),
    )
    for step in steps:
        step()
        taken = made.taken()
        seen.append((taken, queue.kept(taken)))
    assert all(queue.kept(taken) == kept for taken, kept in seen)
    assert [kept[0] for _, kept in seen] == [2, 3, 3, 4, 4, 3, 3, 3, 3]
    assert [len(kept[3]) > 0 for _, kept in seen] == [
        True,
        False,
        True,
        False,
        False,
        False,
        True,
        True,
        True,
    ]
    assert [kept[2] for _, kept in seen] == [2, 2, 2, 2, 3, 3, 3, 3, 3]


def test_what_is_read_ahead_leaves_nothing_to_the_collector() -> None:
    read = ConsumeQueue(MemoryDisk(), "t", 0)
    for offset in range(100):
        read.put(offset, Entry(300 * offset, 300, offset))
    held = sum(isinstance(one, Entry) for one in gc.get_objects())
    assert [read.entry(offset).tags_code for offset in (0, 1, 63, 64, 99, 2)] == [0, 1, 63, 64, 99, 2]
    assert [one.tags_code for one in read.entries(5, 3)] == [5, 6, 7]
    assert sum(isinstance(one, Entry) for one in gc.get_objects()) == held


def test_damage_in_a_file_that_is_cut_is_told_and_stays_damage() -> None:
    disk, told = MemoryDisk(), list[str]()
    row = kept(filled(disk, 7, 0))
    disk.flip_bit(disk_path(0), 5)
    again = adopted(disk, row, told)
    again.cut(4)
    assert told == [disk_path(0)]
    with pytest.raises(StoreDamaged):
        again.get(0, 1)


class Unreadable(MemoryDisk):
    """A disk that can be set to fail all reads of queue files."""

    is_bad = False

    def read(self, path: str, position: int, length: int) -> bytes:
        if self.is_bad and path.startswith("consumequeue/"):
            raise OSError(EIO, "Input/output error", path)
        return super().read(path, position, length)


def test_a_file_with_a_bad_sector_is_damage_where_it_is_cut() -> None:
    """An imported log truncates queues at startup, which failed because of a bad sector."""
    disk, told = Unreadable(), list[str]()
    again = adopted(disk, kept(filled(disk, 7, 0)), told)
    disk.is_bad = True
    again.cut(4)
    assert told == [disk_path(0)]
    disk.is_bad = False
    again.put(4, Entry(900, 100, 0))
    again.write()
    for reader in (again, adopted(disk, kept(again))):
        with pytest.raises(StoreDamaged):
            reader.get(4, 1)


def test_a_file_that_is_doubted_stays_so_where_it_is_cut() -> None:
    disk = MemoryDisk()
    made = filled(disk, 7, 0)
    made.mark_untrusted(disk_path(0))
    made.cut(4)
    assert made.get(3, 1) == [Entry(300, 100, 0)]
    with pytest.raises(StoreDamaged):
        adopted(disk, kept(made)).get(3, 1)


@pytest.mark.parametrize("stale", [0, 5, 8])
def test_a_queue_that_is_cut_before_its_first_file_goes_on_there(
    stale: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an imported log, a topic was deleted and created again, and retention deleted its first records."""
    monkeypatch.setattr(queue, "_FILE_BYTES", 8 * entry.ENTRY_BYTES)
    disk, told = MemoryDisk(), list[str]()
    if stale:
        disk.write(disk_path(0), 0, stale * b"what lay there before"[: entry.ENTRY_BYTES])
    made = ConsumeQueue(disk, "t", 0, found_damaged=lambda path, what: told.append(path))
    made.put(20, Entry(100, 9, 0))
    made.cut(3)
    made.put(3, Entry(200, 9, 0))
    made.write()
    assert made.get(3, 1) == [Entry(200, 9, 0)]
    assert adopted(disk, kept(made), told).get(3, 1) == [Entry(200, 9, 0)]
    assert told == []


@pytest.mark.parametrize("rotten", range(3, 9))
def test_a_search_by_tag_stops_at_gaps_and_goes_on_behind_only_where_each_entry_is_sound(
    rotten: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_BLOCK_BYTES", 2 * entry.ENTRY_BYTES)
    disk = MemoryDisk()
    made = ConsumeQueue(disk, "t", 0)
    made.put(0, Entry(0, 100, 7))
    for number in range(3, 10):  # The entries follow two gaps in the log.
        made.put(number, Entry(100 * number, 100, 7))
    made.write()
    wanted = np.array([8])
    assert [made.next_match(at, wanted, 10 - at) for at in (0, 1, 2, 3)] == [1, 1, 2, 10]
    assert [made.gap_end(at) for at in (1, 2)] == [3, 3]
    disk.write(disk_path(0), rotten * entry.ENTRY_BYTES, bytes(entry.ENTRY_BYTES))
    with pytest.raises(StoreDamaged):
        made.next_match(3, wanted, 7)


Steps = st.lists(st.tuples(st.sampled_from(["put", "write", "ask", "rot"]), st.integers(0, 30)))


@given(steps=Steps)
def test_no_entry_is_read_that_differs_from_what_was_written(steps: list[tuple[str, int]]) -> None:
    with patch.multiple(queue, _FILE_BYTES=5 * entry.ENTRY_BYTES, _BLOCK_BYTES=2 * entry.ENTRY_BYTES):
        disk = MemoryDisk()
        made, put, rotten = ConsumeQueue(disk, "t", 0), list[Entry](), set[int]()
        for step, number in steps:
            written = made._written_count
            place = number % max(1, written)
            match step:
                case "put":
                    put.append(Entry(100 * made.end_offset, 100, number))
                    made.put(made.end_offset, put[-1])
                case "write":
                    made.write()
                case "ask" if made.end_offset:
                    place = number % made.end_offset
                    try:
                        assert made.get(place, 1) == [put[place]]
                    except StoreDamaged:
                        assert any(one // 5 == place // 5 for one in rotten)
                case "rot" if place < written and place not in rotten:
                    disk.flip_bit(disk_path(place // 5 * 5), 8 * entry.ENTRY_BYTES * (place % 5) + number)
                    rotten.add(place)


def test_entries_that_are_written_beside_a_checkpoint_are_synced_by_the_next() -> None:
    """This failure was found by the broker simulation with seed 170157.

    A checkpoint synced a file before its entries were written.
    """
    made = Dispatch(MemoryDisk(), tail_entries_max=1)
    made.dispatch_runs([(("t", 0), 0, entry.encode(Entry(0, 90, 0)))])
    taken = made.take()
    assert taken is not None
    assert made.take_unsynced() == []
    taken.write(made._disk)
    assert made.written()
    assert made.take_unsynced() == [disk_path(0)]


def test_queues_that_were_made_anew_are_not_taken_for_those_of_an_older_snapshot() -> None:
    """This failure was found by the broker simulation with seed 170157.

    The log lacked the first records, and the process ended before it wrote a snapshot.
    """
    disk = MemoryDisk()
    old = Dispatch(disk, tail_entries_max=1)
    for place in range(3):
        old.dispatch_runs([(("t", 0), place, entry.encode(Entry(100 * place, 90, 0)))])
    old.write()
    mark(disk, 500)
    snapshot = [*old.freeze()]
    disk.delete(QUEUES_WHOLE)
    anew = Dispatch(disk, tail_entries_max=1)
    assert not anew.adopt(snapshot, 500)
    for place in range(2, 3):  # The first entries are a hole now.
        anew.dispatch_runs([(("t", 0), place, entry.encode(Entry(100 * place, 90, 0)))])
    anew.write()
    mark(disk, 900)
    assert not Dispatch(disk).adopt(snapshot, 500)
    assert disk.list("consumequeue") == []


def held() -> Unyielding:
    """Return a disk with the files of two queues, one of which cannot be deleted."""
    disk = Unyielding()
    made = Dispatch(disk, tail_entries_max=1)
    made.dispatch_runs([((topic, 0), 0, entry.encode(Entry(0, 90, 0))) for topic in ("t", "other")])
    made.write()
    mark(disk, 500)
    disk.hold("consumequeue/t/0")
    return disk


def test_queues_are_made_anew_beside_files_that_cannot_be_deleted() -> None:
    """The broker could not start because the folder of one queue was owned by another user."""
    disk = held()
    for number in (1, 2):
        made = Dispatch(disk, tail_entries_max=1)
        made.drop()
        assert disk.list("consumequeue") == []
        assert disk.size(QUEUES_WHOLE) < 0
        aside = f"consumequeue.aside-{number}"
        assert [path for path in disk.paths() if path.startswith(aside)] == [f"{aside}/t/0/{0:020}"]
        made.dispatch_runs([(("t", 0), 0, entry.encode(Entry(number, 90, 0)))])
        made.write()
        mark(disk, 600)
        disk.crash(lambda count: count)
        again = Dispatch(disk)
        assert again.adopt(made.freeze(), 600)
        assert again.queue("t", 0).get(0, 1) == [Entry(number, 90, 0)]
        disk.hold("consumequeue/t/0")
    assert len(disk.list("")) == 4
    disk.let_go()
    assert Dispatch(disk).adopt(made.freeze(), 600)
    assert disk.list("") == ["consumequeue", QUEUES_WHOLE]


def test_a_start_says_what_to_do_where_files_can_neither_be_deleted_nor_put_aside() -> None:
    disk = held()
    disk.keeps_names = True
    with pytest.raises(OSError, match="Delete the folder consumequeue of the store") as failed:
        Dispatch(disk).drop()
    assert failed.value.errno == EPERM
    assert failed.value.filename == "consumequeue"
    assert f"consumequeue/t/0/{0:020} cannot be deleted (Permission denied)" in failed.value.strerror
    assert disk.size(QUEUES_WHOLE) < 0


@pytest.mark.parametrize("error", [SyncFailed(EIO, "sync", "."), OSError(EMFILE, "Too many open files")])
def test_files_stay_in_their_place_where_a_failure_says_nothing_of_them(error: OSError) -> None:
    disk = held()
    with patch.object(disk, "delete", side_effect=[None, error]), pytest.raises(type(error)) as failed:
        Dispatch(disk).drop()
    assert failed.value is error
    assert disk.list("consumequeue") == ["other", "t"]


def test_a_mark_that_was_torn_is_none() -> None:
    disk = MemoryDisk()
    mark(disk, 12_345)
    assert is_marked(disk, 12_345)
    disk.truncate(QUEUES_WHOLE, 3)
    assert not any(is_marked(disk, made_at) for made_at in (12_345, 123, 0))


def test_a_queue_whose_entries_are_all_cut_goes_on_in_a_copy_of_the_files_that_a_snapshot_names() -> None:
    """Another node gets only the listed files (`services.store.copying.derived`).

    On this node, the queue was idle and is used again.
    """
    disk, copy = MemoryDisk(), MemoryDisk()
    sender = Dispatch(disk, tail_entries_max=4)
    for place in range(4):
        sender.dispatch_runs([(("t", 0), place, entry.encode(Entry(100 + place, 9, 0)))])
    sender.write()
    sender.advance_first_offsets(*sender.minimums(1_000, sender.keys()))
    sender.deleted(delete_some(disk, sender.take_deletable_files()))
    frozen = [*sender.freeze()]
    for path, length, _ in files_named(frozen):
        copy.write(path, 0, disk.read(path, 0, length))
    mark(copy, 1)
    receiver = Dispatch(copy, tail_entries_max=4)
    assert receiver.adopt(frozen, 1)
    for place in range(4, 8):
        receiver.dispatch_runs([(("t", 0), place, entry.encode(Entry(1_000 + place, 9, 0)))])
    receiver.write()
    assert receiver.queue("t", 0).get(4, 4) == [Entry(1_000 + place, 9, 0) for place in range(4, 8)]


class Counting(MemoryDisk):
    """A disk that counts the bytes that are read."""

    read_bytes = 0

    def read(self, path: str, position: int, length: int) -> bytes:
        self.read_bytes += length
        return super().read(path, position, length)


@pytest.mark.parametrize("log_offset", [0, 1, 100 * 1_365, 100 * 1_365 + 1, 100 * 4_095, 100 * 4_096])
def test_a_search_reads_two_files_at_most_as_a_whole(
    log_offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_FILE_BYTES", 64 * entry.ENTRY_BYTES)
    disk = Counting()
    row = kept(filled(disk, 64 * 64, 0))
    again = adopted(disk, row, [])
    disk.read_bytes = 0
    assert again.first_from(log_offset) == -(-log_offset // 100)
    assert disk.read_bytes <= (2 * 64 + 14) * entry.ENTRY_BYTES


@pytest.mark.parametrize("bit", range(6))
def test_damage_on_the_way_of_a_search_makes_no_wrong_answer(
    bit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The damaged entry is in the middle of the search range. It may or may not mislead the search."""
    monkeypatch.setattr(queue, "_FILE_BYTES", 4 * entry.ENTRY_BYTES)
    for place in range(32):
        disk = MemoryDisk()
        row = kept(filled(disk, 32, 0))
        disk.flip_bit(disk_path(place // 4 * 4), 8 * entry.ENTRY_BYTES * (place % 4) + 8 * 6 + bit)
        for wanted in range(0, 3_300, 100):
            again = adopted(disk, row, [])
            assert again.first_from(wanted) in (wanted // 100, 0), "0: the queue begins where it did"


def test_an_entry_that_is_cut_off_is_read_as_it_was_written_or_not_at_all() -> None:
    disk = MemoryDisk()
    made = filled(disk, 9, 0)
    made.advance_first_offset(5)
    disk.flip_bit(disk_path(0), 8 * 4 * entry.ENTRY_BYTES)
    with pytest.raises(StoreDamaged):
        made.get(4, 1)
    gone = filled(MemoryDisk(), 9, 0)
    gone._crcs = {}
    gone.advance_first_offset(9)
    assert gone.get(4, 1) == []
