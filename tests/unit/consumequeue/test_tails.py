"""Tests which tails are written to files: full tails, and the largest tails if memory usage is too high."""

from __future__ import annotations

from contextlib import suppress
from errno import EACCES, EDQUOT, EIO, EMFILE, ENFILE, ENOSPC
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commitlog import limits
from commitlog.disk.disk import Disk, SyncFailed
from commitlog.errors import StoreDamaged
from commitlog.layout import QUEUES_WHOLE
from commitlog.log.retention import delete_some
from consumequeue import entry, tails
from consumequeue.dispatch import Dispatch, mark
from consumequeue.entry import ENTRY_BYTES, Entry
from consumequeue.queue import ConsumeQueue
from consumequeue.tails import Tails
from tests.memory_disk import Fault, MemoryDisk

ONE = entry.encode(Entry(1, 2, 3))


def delete_unneeded(dispatch: Dispatch, disk: Disk) -> None:
    """Delete files in the same way as retention."""
    dispatch.deleted(delete_some(disk, dispatch.take_deletable_files()))


def grown(some: Tails, queue: ConsumeQueue, count: int) -> None:
    """Add entries in the same way as `Dispatch`."""
    for _ in range(count):
        queue.put_many(queue.end_offset, ONE)
        if queue.tail_bytes >= 2 * queue.noted_bytes:
            some.update_size(queue)


def queues(count: int) -> list[ConsumeQueue]:
    return [ConsumeQueue(MemoryDisk(), "t", number) for number in range(count)]


def test_a_queue_is_written_once_it_is_full() -> None:
    some, (few, many) = Tails(8, 1 << 20), queues(2)
    grown(some, few, 7)
    grown(some, many, 8)
    assert some.to_write() == [many]
    many.write()
    some.update_size(many)
    assert some.to_write() == []
    grown(some, few, 1)
    assert some.to_write() == [few]


def test_the_largest_are_written_where_all_take_too_much() -> None:
    bytes_max = 1_000 * ENTRY_BYTES
    some, all_queues = Tails(256, bytes_max), queues(100)
    for number, queue in enumerate(all_queues):
        grown(some, queue, 64 if number < 5 else 1)
    assert some.to_write() == []
    for queue in all_queues[5:]:
        grown(some, queue, 7)
    chosen = some.to_write()
    assert chosen[:5] == all_queues[:5]
    left_bytes = sum(queue.tail_bytes for queue in all_queues if queue not in chosen)
    assert bytes_max // 4 < left_bytes <= bytes_max * 3 // 4


def test_tails_of_few_entries_make_no_files_however_many_they_are() -> None:
    some, all_queues = Tails(256, 1_000 * ENTRY_BYTES), queues(1_000)
    for queue in all_queues:
        grown(some, queue, 7)
    assert some.bytes == 0
    assert some.to_write() == []
    for queue in all_queues[:63]:
        grown(some, queue, 1)
    assert 0 < len(some.to_write()) <= 63


def test_queues_that_are_forgotten_take_no_bytes() -> None:
    some, (taken, refused) = Tails(8, 1 << 20), queues(2)
    grown(some, taken, 8)
    grown(some, refused, 8)
    some.refuse(refused)
    assert (some.bytes, some.refused_bytes) == (8 * ENTRY_BYTES, 8 * ENTRY_BYTES)
    some.clear()
    assert (some.bytes, some.refused_bytes, some.to_write(), some.droppable_tails()) == (0, 0, [], [])


def test_so_many_queues_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "_QUEUES_AT_ONCE", 3)
    disk = MemoryDisk()
    dispatch = Dispatch(disk, tail_entries_max=1)
    for number in range(7):
        dispatch.dispatch_runs([(("t", number), 0, ONE)])
    counts = []
    while (taken := dispatch.take()) is not None:
        counts.append(len(taken.writes))
        taken.write(disk)
        assert dispatch.written()
    assert counts == [3, 3, 1]


def test_a_full_disk_ends_a_write() -> None:
    disk = MemoryDisk()
    dispatch = Dispatch(disk, tail_entries_max=1)
    dispatch.dispatch_runs([(("t", 0), 0, ONE)])
    disk.strike(1, Fault.FAILS, ENOSPC, is_lasting=True)
    dispatch.write()
    disk.well()
    assert dispatch.queue("t", 0).tail_bytes == ENTRY_BYTES
    dispatch.write()
    assert dispatch.queue("t", 0).tail_bytes == 0


@given(st.integers(0, 1 << 30), st.sampled_from([1, 2, 7, 256]))
def test_all_tails_together_stay_within_the_bound_after_each_write(seed: int, entries_max: int) -> None:
    chance, bytes_max = Random(seed), 100 * ENTRY_BYTES
    some, all_queues = Tails(entries_max, bytes_max), queues(40)
    for _ in range(60):
        grown(some, chance.choice(all_queues), chance.choice([1, 1, 2, 5, 40]))
        while chosen := some.to_write():
            for queue in chosen:
                queue.write()
                some.update_size(queue)
        sizes = [queue.tail_bytes for queue in all_queues if queue.tail_bytes >= some.least_bytes]
        assert sum(sizes) <= bytes_max
        assert all(queue.tail_bytes < 2 * entries_max * ENTRY_BYTES for queue in all_queues)
        assert some.bytes == sum(queue.noted_bytes for queue in all_queues)


class Counting(MemoryDisk):
    """A disk that counts the operations on queue files."""

    asked = 0

    def size(self, path: str) -> int:
        self.asked += path.startswith("consumequeue/")
        return super().size(path)

    def read(self, path: str, position: int, length: int) -> bytes:
        self.asked += path.startswith("consumequeue/")
        return super().read(path, position, length)


def cut(disk: Disk, dispatch: Dispatch, log_offset: int) -> None:
    dispatch.advance_first_offsets(*dispatch.minimums(log_offset, dispatch.keys()))
    delete_unneeded(dispatch, disk)


def test_a_cut_of_the_log_looks_only_at_queues_that_begin_below_it() -> None:
    disk = Counting()
    dispatch = Dispatch(disk, tail_entries_max=1)
    for number in range(100):
        for place in range(4):
            dispatch.dispatch_runs(
                [(("t", number), place, entry.encode(Entry(1_000 * number + place, 9, 0)))]
            )
    dispatch.write()
    disk.asked = 0
    cut(disk, dispatch, 2_002)
    assert disk.asked < 40
    assert [dispatch.queue("t", number).min_offset for number in range(4)] == [4, 4, 2, 0]


class OneFolderRefuses(MemoryDisk):
    """A disk with a folder that cannot be written, for example because of its owner or a bad sector."""

    def write(self, path: str, position: int, data: bytes) -> None:
        if path.startswith("consumequeue/refused/"):
            raise OSError(EACCES, "Permission denied", path)
        super().write(path, position, data)


def test_a_queue_whose_file_cannot_be_written_keeps_no_other_from_its_file() -> None:
    dispatch = Dispatch(OneFolderRefuses(), tail_entries_max=4)
    for place in range(100):
        for topic in ("refused", "other"):
            dispatch.dispatch_runs([((topic, 0), place, ONE)])
        dispatch.write()
    assert dispatch.queue("refused", 0).tail_bytes == 100 * ENTRY_BYTES
    assert dispatch.queue("other", 0).tail_bytes < 8 * ENTRY_BYTES


@pytest.mark.parametrize("folder", ["consumequeue", "consumequeue/sick", "consumequeue/sick/0"])
def test_a_queue_whose_folder_cannot_be_synced_keeps_no_other_from_its_file(folder: str) -> None:
    dispatch, disk, told = failing()
    for topic in ("sick", "sound"):
        dispatch.dispatch_runs([((topic, 0), 0, 8 * ONE)])
    disk.error, disk.failing = SyncFailed(EIO, "Input/output error", folder), "consumequeue/sick/"
    dispatch.write()
    assert dispatch.queue("sound", 0).tail_bytes == 0
    assert dispatch.queue("sick", 0).get(0, 9) == 8 * [Entry(1, 2, 3)]
    assert told == [f"consumequeue/sick/0/{0:020}"]
    disk.error = None
    dispatch.write()
    assert dispatch.queue("sick", 0).tail_bytes == 0


@pytest.mark.parametrize("folder", [".", "consumequeue/sic", "consumequeue/other/0", "commitlog"])
def test_a_failed_sync_of_a_folder_in_which_a_queue_has_no_file_is_told_to_who_writes_it(folder: str) -> None:
    dispatch, disk, told = failing()
    dispatch.dispatch_runs([(("sick", 0), 0, ONE)])
    disk.error, disk.failing = SyncFailed(EIO, "Input/output error", folder), "consumequeue/sick/"
    with pytest.raises(SyncFailed):
        dispatch.write()
    assert told == []


class Refusing(MemoryDisk):
    """A disk that rejects writes to paths with certain prefixes, and temporarily fails to delete files."""

    refused: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.deleting: list[OSError] = []
        """The errors that the next deletions raise."""
        self.deleted: list[str] = []

    def delete(self, path: str) -> None:
        self.deleted.append(path)
        if self.deleting:
            raise self.deleting.pop(0)
        super().delete(path)

    def write(self, path: str, position: int, data: bytes) -> None:
        if path.startswith(self.refused):
            raise OSError(EIO, "Input/output error", path)
        super().write(path, position, data)


def refusing(*topics: str) -> tuple[Dispatch, Refusing, list[str]]:
    """Return queues on a disk that rejects writes for some topics, and the list of reported damage."""
    disk, told = Refusing(), list[str]()
    disk.refused = tuple(f"consumequeue/{topic}/" for topic in topics)
    dispatch = Dispatch(disk, 0, lambda path, what: told.append(path))
    return dispatch, disk, told


def put(dispatch: Dispatch, topic: str, count: int) -> None:
    first = dispatch.queue(topic, 0).end_offset
    encoded = b"".join(entry.encode(numbered(topic, first + one)) for one in range(count))
    dispatch.dispatch_runs([((topic, 0), first, encoded)])


def numbered(topic: str, number: int) -> Entry:
    return Entry(100 * number + int(topic[1:] or 0), 100, number)


def all_tails(dispatch: Dispatch) -> int:
    return sum(queue.tail_bytes for _, _, queue in dispatch.queues())


def test_a_queue_whose_file_is_refused_leaves_the_others_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refused queue was always the first full queue, so no other queue was written."""
    monkeypatch.setattr(limits, "TAILS_BYTES_MAX", 64 * 1024)
    dispatch, _, told = refusing("r")
    put(dispatch, "r", 256)
    dispatch.write()
    for number in range(1_000):
        put(dispatch, f"t{number}", 100)
        dispatch.write()
    assert all_tails(dispatch) <= 2 * 64 * 1024
    # Reporting the damage deletes the marker file and syncs a folder.
    assert told == [f"consumequeue/r/0/{0:020}"]


@pytest.mark.parametrize("failure", [OSError(EACCES, "no"), SyncFailed(EIO, "no", ".")])
def test_a_mark_that_cannot_be_taken_away_is_tried_once_however_many_files_fail(failure: OSError) -> None:
    """Each attempt syncs the folder of the store in the event loop. For 500 files, this took 6.2 seconds."""
    dispatch, disk, told = refusing("t")
    disk.write(QUEUES_WHOLE, 0, b"yes")
    disk.deleting = [failure] * 10
    dispatch.dispatch_runs([((topic, number), 0, 256 * ONE) for topic in "ts" for number in range(2_000)])
    dispatch.write()
    paths = [f"consumequeue/s/{number}/{0:020}" for number in range(2_000)]
    dispatch.mark_untrusted({path: SyncFailed(EIO, "Input/output error", path) for path in paths})
    while dispatch.has_untrusted:
        dispatch.process_untrusted()
    assert disk.deleted == [QUEUES_WHOLE]
    tried = list[int]()
    for call in range(1, 200):
        disk.deleted.clear()
        dispatch.unmark_again()
        tried += [call] * len(disk.deleted)
    assert tried == [1, 2, 4, 8, 16, 32, 64, 128, 192]
    assert disk.size(QUEUES_WHOLE) > 0
    for _ in range(64):
        dispatch.unmark_again()
    assert disk.size(QUEUES_WHOLE) < 0
    assert told.count(QUEUES_WHOLE) == 1


def test_a_mark_that_is_taken_away_is_so_once() -> None:
    dispatch, disk, told = refusing("t")
    disk.write(QUEUES_WHOLE, 0, b"yes")
    for queue_id in range(100):
        dispatch.dispatch_runs([(("t", queue_id), 0, 256 * ONE)])
    dispatch.write()
    dispatch.mark_untrusted({path: SyncFailed(EIO, "Input/output error", path) for path in told})
    dispatch.unmark_again()
    assert disk.deleted == [QUEUES_WHOLE]
    assert disk.size(QUEUES_WHOLE) < 0
    assert QUEUES_WHOLE not in told


def test_a_refused_queue_has_a_bounded_tail_and_what_it_let_go_of_is_not_passed_over() -> None:
    dispatch, disk, told = refusing("r")
    bound = limits.REFUSED_TAIL_BYTES_MAX
    most_bytes, count = 0, 4 * bound // ENTRY_BYTES
    for _ in range(0, count, 100):
        put(dispatch, "r", 100)
        dispatch.write()
        most_bytes = max(most_bytes, all_tails(dispatch))
    queue = dispatch.queue("r", 0)
    assert bound <= most_bytes <= 2 * bound + 100 * ENTRY_BYTES
    last = queue.end_offset - 1
    assert queue.get(last, 1) == [numbered("r", last)]
    for offset in (0, last - queue.tail_bytes // ENTRY_BYTES):
        with pytest.raises(StoreDamaged, match=f"consumequeue/r/0/{0:020}"):
            queue.get(offset, 9)
        with pytest.raises(StoreDamaged):
            queue.next_match(offset, np.array([1 << 40]), 9)
    disk.refused = ()  # A write after the hole does not turn the hole into a gap.
    put(dispatch, "r", 600)
    dispatch.write()
    assert queue.tail_bytes == 0
    for offset in (0, last, queue.end_offset - 1):
        with pytest.raises(StoreDamaged):
            queue.get(offset, 1)
    assert {*told} == {f"consumequeue/r/0/{0:020}"}
    assert not dispatch.needs_mark()


def test_what_was_let_go_of_a_file_that_was_compared_before_is_not_read_from_it() -> None:
    dispatch, disk, _ = refusing()
    put(dispatch, "r", 256)
    dispatch.write()
    queue = dispatch.queue("r", 0)
    assert len(queue.get(0, 1)) == 1
    disk.refused = ("consumequeue/",)
    while queue.tail_bytes < limits.REFUSED_TAIL_BYTES_MAX:
        put(dispatch, "r", 1_000)
        dispatch.write()
    dispatch.write()
    assert queue.tail_bytes == 0
    for offset in (0, 256):
        with pytest.raises(StoreDamaged):
            queue.get(offset, 1)


def test_all_refused_queues_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is a folder that no longer belongs to the broker's user."""
    monkeypatch.setattr(limits, "TAILS_BYTES_MAX", 1 << 20)
    dispatch, disk, _ = refusing()
    disk.refused = ("consumequeue/",)
    for _ in range(20):
        for number in range(200):
            put(dispatch, f"t{number}", 64)
            dispatch.write()
            assert all_tails(dispatch) <= (1 << 20) + (1 << 18)


def test_of_many_refused_queues_that_grow_at_once_some_are_let_go_of_in_each_go() -> None:
    """The number of tails dropped at a time is limited, so that the event loop is not blocked.

    Memory usage reaches its limit after several steps.
    """
    disk, count, goes = Refusing(), 6_000, list[int]()
    dispatch = Dispatch(disk, tail_entries_max=8)
    disk.refused = ("consumequeue/",)
    dispatch.dispatch_runs([((f"t{number}", 0), 0, 8 * ONE) for number in range(count)])
    for _ in range(count // 500):
        dispatch.write()
    dispatch.dispatch_runs([((f"t{number}", 0), 8, 100 * ONE) for number in range(count)])
    while all_tails(dispatch) > limits.TAILS_BYTES_MAX // 8:
        before = sum(queue.tail_bytes > 0 for _, _, queue in dispatch.queues())
        dispatch.write()
        goes.append(before - sum(queue.tail_bytes > 0 for _, _, queue in dispatch.queues()))
    assert (len(goes), max(goes)) == (3, 2_000)


def test_a_refused_queue_is_tried_again_with_few_of_its_entries() -> None:
    """A follower retries the write after each flush that it receives."""
    dispatch, disk, _ = refusing("r")
    put(dispatch, "r", 6_000)
    dispatch.write()
    taken = dispatch.take()
    assert taken is not None
    assert 0 < sum(len(one.entries) for _, one in taken.writes) <= 512 * ENTRY_BYTES
    disk.refused = ()
    taken.write(disk)
    assert dispatch.written()
    dispatch.write()
    assert all_tails(dispatch) == 0
    assert dispatch.queue("r", 0).get(5_990, 20) == [numbered("r", one) for one in range(5_990, 6_000)]


def test_a_refused_queue_is_written_once_the_disk_takes_it() -> None:
    dispatch, disk, told = refusing("r")
    put(dispatch, "r", 300)
    put(dispatch, "t1", 300)
    for _ in range(3):
        dispatch.write()
    assert (dispatch.queue("r", 0).tail_bytes, dispatch.queue("t1", 0).tail_bytes) == (300 * ENTRY_BYTES, 0)
    disk.refused = ()
    dispatch.write()
    assert all_tails(dispatch) == 0
    assert dispatch.queue("r", 0).get(0, 300) == [numbered("r", one) for one in range(300)]
    put(dispatch, "r", 100)
    dispatch.write()
    # The queue is handled like any other queue.
    assert dispatch.queue("r", 0).tail_bytes == 100 * ENTRY_BYTES
    assert {*told} == {f"consumequeue/r/0/{0:020}"}


@given(st.integers(0, 1 << 30), st.sampled_from([1, 2, 256]))
@settings(deadline=None)
def test_a_read_gives_what_was_put_or_fails_and_memory_is_bounded_whatever_the_disk_refuses(
    seed: int, entries_max: int
) -> None:
    chance, bytes_max = Random(seed), 400 * ENTRY_BYTES
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "TAILS_BYTES_MAX", bytes_max)
        patched.setattr(limits, "REFUSED_TAIL_BYTES_MAX", 40 * ENTRY_BYTES)
        patched.setattr("consumequeue.queue._FILE_BYTES", 64 * ENTRY_BYTES)
        disk = Refusing()
        dispatch = Dispatch(disk, tail_entries_max=entries_max)
        topics = [f"t{number}" for number in range(8)]
        for _ in range(60):
            if chance.random() < 0.2:
                disk.refused = tuple(f"consumequeue/{one}/" for one in topics if chance.random() < 0.4)
            put(dispatch, chance.choice(topics), chance.choice([1, 5, 40]))
            dispatch.write()
            some = dispatch._tails
            in_classes = [one for of_class in some._classes for one in of_class]
            assert some.bytes == sum(one.noted_bytes for one in in_classes)
            assert some.refused_bytes == sum(one.noted_bytes for one in some._refused)
            assert all_tails(dispatch) <= bytes_max + 8 * 7 * ENTRY_BYTES + 40 * ENTRY_BYTES
            for topic, _, queue in dispatch.queues():
                offset = chance.randrange(queue.end_offset)
                with suppress(StoreDamaged):
                    assert queue.get(offset, 1) == [numbered(topic, offset)]
        disk.refused = ()
        for _ in range(9):
            dispatch.write()
        assert not some._refused


class Failing(MemoryDisk):
    """A disk that fails to read and write files with certain path prefixes as long as an error is set."""

    error: OSError | None = None
    failing = ""

    def read(self, path: str, position: int, length: int) -> bytes:
        if self.error is not None and path.startswith(self.failing):
            raise self.error
        return super().read(path, position, length)

    def write(self, path: str, position: int, data: bytes) -> None:
        if self.error is not None and path.startswith(self.failing):
            raise self.error
        super().write(path, position, data)


def failing() -> tuple[Dispatch, Failing, list[str]]:
    """Return a queue with two entries in a file and six in memory, its disk, and the reported damage."""
    disk, told = Failing(), list[str]()
    dispatch = Dispatch(disk, 0, lambda path, what: told.append(path), tail_entries_max=1)
    dispatch.dispatch_runs([(("t", 0), 0, 2 * ONE)])
    dispatch.write()
    dispatch.dispatch_runs([(("t", 0), 2, 6 * ONE)])
    return dispatch, disk, told


@pytest.mark.parametrize("number", [EMFILE, ENFILE])
def test_a_file_is_not_damaged_because_the_process_has_no_descriptors(number: int) -> None:
    dispatch, disk, told = failing()
    disk.error = OSError(number, "Too many open files")
    dispatch.write()
    assert told == []
    disk.error = None
    dispatch.write()
    assert dispatch.queue("t", 0).tail_bytes == 0


def test_a_failed_sync_of_a_folder_that_holds_more_than_queues_is_no_damage_of_one() -> None:
    """An example is the folder of the store, in which the file of a queue is the first entry."""
    dispatch, disk, told = failing()
    disk.error = SyncFailed(EIO, "Input/output error", ".")
    for act in (dispatch.write, lambda: dispatch.queue("t", 0).get(0, 1)):
        with pytest.raises(SyncFailed):
            act()
    assert told == []


def test_a_deletion_tells_of_a_failed_sync_of_the_stores_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("consumequeue.queue._FILE_BYTES", 4 * ENTRY_BYTES)
    dispatch, disk, _ = failing()
    dispatch.advance_first_offsets([("t", 0, 7)])
    disk.error = SyncFailed(EIO, "Input/output error", ".")
    with pytest.raises(SyncFailed):
        delete_unneeded(dispatch, disk)


@pytest.mark.parametrize(
    "error",
    [
        OSError(EIO, "Input/output error"),
        OSError(ENOSPC, "No space left on device"),
        OSError(EMFILE, "Too many open files"),
        SyncFailed(EIO, "Input/output error", "consumequeue/t/0"),
    ],
)
def test_what_a_deletion_has_written_before_a_failure_is_synced_by_the_next_checkpoint(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumequeue.queue._FILE_BYTES", 4 * ENTRY_BYTES)
    dispatch, disk, _ = failing()
    dispatch.take_unsynced()
    dispatch.advance_first_offsets([("t", 0, 7)])
    disk.error, disk.failing = error, f"consumequeue/t/0/{4 * ENTRY_BYTES:020}"
    delete_unneeded(dispatch, disk)
    assert dispatch.queue("t", 0).tail_bytes == 4 * ENTRY_BYTES
    assert dispatch.take_unsynced() == [f"consumequeue/t/0/{0:020}"]


def test_a_file_that_a_worker_writes_is_deleted_only_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the write followed the deletion, the file would remain on disk without being listed anywhere."""
    monkeypatch.setattr("consumequeue.queue._FILE_BYTES", 4 * ENTRY_BYTES)
    dispatch, disk, _ = failing()
    taken = dispatch.take()
    assert taken is not None
    dispatch.advance_first_offsets([("t", 0, 7)])
    delete_unneeded(dispatch, disk)
    taken.write(disk)
    dispatch.written()
    delete_unneeded(dispatch, disk)
    assert disk.list("consumequeue/t/0") == [f"{4 * ENTRY_BYTES:020}"]
    assert dispatch.queue("t", 0).get(7, 1) == [Entry(1, 2, 3)]


def test_a_cut_back_while_a_worker_deletes_leaves_a_queue_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The queue is truncated to its first needed entry.

    Its last entry is then in a file that is being deleted.
    """
    monkeypatch.setattr("consumequeue.queue._FILE_BYTES", 4 * ENTRY_BYTES)
    disk = MemoryDisk()
    dispatch = Dispatch(disk, tail_entries_max=1)
    places = [(("t", 0), place, entry.encode(Entry(100 + place, 9, 0))) for place in range(9)]
    dispatch.dispatch_runs(places)
    dispatch.write()
    dispatch.advance_first_offsets([("t", 0, 8)])
    paths = dispatch.take_deletable_files()
    assert len(paths) == 2
    dispatch.queue("t", 0).cut(8)
    dispatch.deleted(delete_some(disk, paths))
    dispatch.dispatch_runs(places[8:])
    dispatch.write()
    assert dispatch.queue("t", 0).get(8, 1) == [Entry(108, 9, 0)]
    assert disk.list("consumequeue/t/0") == [f"{8 * ENTRY_BYTES:020}"]


def test_a_write_may_fail_of_a_queue_that_is_written_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a write is ignored if retention has deleted the file of the queue.

    Reporting the result used to end the process.
    """
    monkeypatch.setattr("consumequeue.queue._FILE_BYTES", 4 * ENTRY_BYTES)
    dispatch, disk, told = failing()
    taken = dispatch.take()
    assert taken is not None
    disk.error = OSError(EIO, "Input/output error")
    taken.write(disk)
    disk.error = None
    dispatch.advance_first_offsets([("t", 0, 7)])
    delete_unneeded(dispatch, disk)
    assert not dispatch.written()
    assert told == []


def test_a_tail_that_has_grown_long_is_written_in_parts_that_hold_the_loop_for_some_ms() -> None:
    """A full disk may cause a tail to stay in memory for a day."""
    dispatch, entries_max = Dispatch(MemoryDisk()), 100_000
    count = 7 * entries_max + 5
    dispatch.dispatch_runs([(("t", 0), 0, count * ONE), (("u", 0), 0, 300 * ONE)])
    parts = list[int]()
    while (entries := dispatch.take()) is not None:
        parts.append(sum(len(one.entries) // ENTRY_BYTES for _, one in entries.writes))
        entries.write(dispatch._disk)
        assert dispatch.written()
    assert count + 300 - sum(parts) < limits.TAIL_ENTRIES_MAX
    assert max(parts) <= entries_max
    assert dispatch.queue("t", 0).get(count - 9, 4) == 4 * entry.decode_all(ONE)


class WithoutInodes(MemoryDisk):
    """A disk that cannot create new files, but can write to existing files until it is full."""

    error: OSError | None = None
    is_full = False

    def write(self, path: str, position: int, data: bytes) -> None:
        if self.error is not None and (self.is_full or self.size(path) < 0):
            raise self.error
        super().write(path, position, data)

    def usage(self) -> tuple[int, int]:
        return (0, 1 << 30) if self.is_full else super().usage()


@pytest.mark.parametrize("number", [ENOSPC, EDQUOT])
def test_a_file_for_which_there_is_no_inode_keeps_no_other_queue_in_memory_and_is_told(number: int) -> None:
    disk, told = WithoutInodes(), list[str]()
    dispatch = Dispatch(disk, 0, lambda path, what: told.append(f"{path}: {what}"))
    put(dispatch, "t0", 512)
    dispatch.write()
    disk.error = OSError(number, "No space left on device")
    new = [f"n{number}" for number in range(3)]
    for topic in new:
        put(dispatch, topic, 512)
    for _ in range(20):
        put(dispatch, "t0", 512)
        dispatch.write()
        assert dispatch.queue("t0", 0).tail_bytes == 0
    assert [one.partition(":")[0] for one in told] == [f"consumequeue/{topic}/0/{0:020}" for topic in new]
    assert all("df -i" in one for one in told)
    assert dispatch.needs_mark()
    assert dispatch.queue("n0", 0).get(511, 1) == [numbered("n0", 511)]
    disk.error = None
    dispatch.write()
    assert all_tails(dispatch) == 0
    assert dispatch.queue("n0", 0).get(511, 1) == [numbered("n0", 511)]


def test_on_a_full_disk_no_file_is_told_of_and_all_entries_stay_in_memory() -> None:
    disk, told = WithoutInodes(), list[str]()
    dispatch = Dispatch(disk, 0, lambda path, what: told.append(path))
    disk.error, disk.is_full = OSError(ENOSPC, "No space left on device"), True
    topics = [f"t{number}" for number in range(3)]
    for _ in range(2 * limits.REFUSED_TAIL_BYTES_MAX // ENTRY_BYTES // 1_000):
        for topic in topics:
            put(dispatch, topic, 1_000)
        dispatch.write()
    assert told == []
    assert all(dispatch.queue(topic, 0).get(0, 1) == [numbered(topic, 0)] for topic in topics)
    disk.error, disk.is_full = None, False
    dispatch.write()
    assert all_tails(dispatch) == 0


def test_many_files_whose_sync_fails_in_one_checkpoint_are_doubted_in_slices_of_some_ms() -> None:
    """The sync of all files fails if the volume or folder of the queues fails.

    All failures are reported in one event loop iteration.
    """
    disk, told, count = MemoryDisk(), list[str](), 40_000
    dispatch = Dispatch(disk, 0, lambda path, what: told.append(path), tail_entries_max=1)
    dispatch.dispatch_runs([((f"t{number // 8}", number % 8), 0, ONE) for number in range(count)])
    dispatch.write()
    dispatch.made_at = 0
    failed = {path: SyncFailed(EIO, "Input/output error", path) for path in dispatch.take_unsynced()}
    before = {queue.key: queue.taken() for _, _, queue in dispatch.queues()}
    slices = list[int]()
    dispatch.mark_untrusted(failed)
    assert not dispatch.needs_mark()
    while True:
        slices.append(len(told) - sum(slices))
        if not dispatch.has_untrusted:
            break
        dispatch.process_untrusted()
    assert max(slices) <= 1_000
    assert told == [*failed]
    for key, one in before.items():
        now = dispatch.queue(*key).taken()
        assert one is not None
        assert now is not None
        assert now.crcs == {at: ~crc & 0xFFFFFFFF for at, crc in one.crcs.items()}


def test_a_snapshot_is_of_files_that_were_doubted_before_it_whichever_were_looked_at() -> None:
    dispatch, count = Dispatch(MemoryDisk(), tail_entries_max=1), 2_500
    dispatch.dispatch_runs([(("t", number), 0, ONE) for number in range(count)])
    dispatch.write()
    sound = {row[1]: row[3] for row in dispatch.freeze()}
    paths = dispatch.take_unsynced()
    dispatch.mark_untrusted({path: SyncFailed(EIO, "Input/output error", path) for path in paths})
    assert dispatch.has_untrusted
    doubted = {row[1]: row[3] for row in dispatch.freeze()}
    assert not dispatch.has_untrusted
    assert all(doubted[number] != sound[number] for number in range(count))


STEPS = st.sampled_from(["put", "write", "rise", "delete", "restart"])


@given(st.lists(st.tuples(STEPS, st.integers(0, 2), st.integers(1, 9))))
@example([("put", 0, 9), ("write", 0, 1), ("rise", 0, 5), ("restart", 0, 1), ("delete", 0, 1)])
@example([("put", 0, 8), ("write", 0, 1), ("rise", 0, 8), ("delete", 0, 1), ("put", 0, 1), ("delete", 0, 1)])
def test_every_file_goes_that_no_queue_needs(script: list[tuple[str, int, int]]) -> None:
    disk = MemoryDisk()
    dispatch = Dispatch(disk, tail_entries_max=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("consumequeue.queue._FILE_BYTES", 4 * ENTRY_BYTES)
        for action, number, count in script:
            match action:
                case "put":
                    put(dispatch, f"t{number}", count)
                case "write":
                    dispatch.write()
                case "rise":
                    dispatch.advance_first_offsets(
                        [(f"t{number}", 0, dispatch.queue(f"t{number}", 0).min_offset + count)]
                    )
                case "delete":
                    delete_unneeded(dispatch, disk)
                    assert not [one for _, _, one in dispatch.queues() if one.has_deletable_files]
                case _:
                    rows, again = [*dispatch.freeze()], Dispatch(disk, tail_entries_max=1)
                    mark(disk, 0)
                    assert again.adopt(rows, 0)
                    dispatch = again


def test_a_deletion_looks_at_queues_only_that_have_risen_past_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking 80,000 queues took 40 ms of an event loop iteration."""
    monkeypatch.setattr("consumequeue.queue._FILE_BYTES", 4 * ENTRY_BYTES)
    disk, looked_at = MemoryDisk(), list[tuple[str, int]]()
    dispatch = Dispatch(disk, tail_entries_max=1)
    dispatch.dispatch_runs([(("t", number), 0, 9 * ONE) for number in range(100)])
    dispatch.write()
    dispatch.advance_first_offsets([("t", number, 3) for number in range(100)])
    dispatch.advance_first_offsets([("t", 7, 4), ("t", 8, 9)])
    has_deletable_files = ConsumeQueue.has_deletable_files.fget
    assert has_deletable_files is not None

    def look(queue: ConsumeQueue) -> bool:
        looked_at.append(queue.key)
        return bool(has_deletable_files(queue))

    monkeypatch.setattr(ConsumeQueue, "has_deletable_files", property(look))
    delete_unneeded(dispatch, disk)
    assert looked_at == [("t", 7), ("t", 8)]
    looked_at.clear()
    delete_unneeded(dispatch, disk)
    assert looked_at == []
