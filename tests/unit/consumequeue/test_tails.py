"""Which queues' entries go to files: full ones, and the largest where all take too much."""

from __future__ import annotations

from errno import EACCES, EIO, EMFILE, ENFILE, ENOSPC
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.disk import Disk, SyncFailed
from consumequeue import entry, tails
from consumequeue.dispatch import Dispatch
from consumequeue.entry import ENTRY_BYTES, Entry
from consumequeue.queue import ConsumeQueue
from consumequeue.tails import Tails
from tests.memory_disk import Fault, MemoryDisk

ONE = entry.encode(Entry(1, 2, 3))


def grown(some: Tails, queue: ConsumeQueue, count: int) -> None:
    """Adds entries as `Dispatch` does."""
    for _ in range(count):
        queue.put_many(queue.end_offset, ONE)
        if queue.tail_bytes >= 2 * queue.noted_bytes:
            some.look(queue)


def queues(count: int) -> list[ConsumeQueue]:
    return [ConsumeQueue(MemoryDisk(), "t", number) for number in range(count)]


def test_a_queue_is_written_once_it_is_full() -> None:
    some, (few, many) = Tails(8, 1 << 20), queues(2)
    grown(some, few, 7)
    grown(some, many, 8)
    assert some.to_write() == [many]
    many.write()
    some.look(many)
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
                some.look(queue)
        sizes = [queue.tail_bytes for queue in all_queues if queue.tail_bytes >= some.least_bytes]
        assert sum(sizes) <= bytes_max
        assert all(queue.tail_bytes < 2 * entries_max * ENTRY_BYTES for queue in all_queues)
        assert some.bytes == sum(queue.noted_bytes for queue in all_queues)


class Counting(MemoryDisk):
    """A disk that counts what is asked of the files of queues."""

    asked = 0

    def size(self, path: str) -> int:
        self.asked += path.startswith("consumequeue/")
        return super().size(path)

    def read(self, path: str, position: int, length: int) -> bytes:
        self.asked += path.startswith("consumequeue/")
        return super().read(path, position, length)


def cut(disk: Disk, dispatch: Dispatch, log_offset: int) -> None:
    dispatch.rise(*dispatch.minimums(log_offset, dispatch.keys()))
    dispatch.delete_unneeded()


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
    """A disk with a folder that cannot be written: its owner is another, a sector is bad."""

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


class Failing(MemoryDisk):
    """A disk that reads and writes no file while there is an error."""

    error: OSError | None = None

    def read(self, path: str, position: int, length: int) -> bytes:
        if self.error is not None:
            raise self.error
        return super().read(path, position, length)

    def write(self, path: str, position: int, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        super().write(path, position, data)


def failing() -> tuple[Dispatch, Failing, list[str]]:
    """Return a queue of two entries in a file and six in memory, its disk, and what is told of damage."""
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


def test_a_sync_of_another_file_that_failed_is_told_to_who_opens_one() -> None:
    """The file that was used least is synced and closed for it; nobody would learn of that failure again."""
    dispatch, disk, told = failing()
    disk.error = SyncFailed(EIO, "Input/output error", "commitlog/0")
    for act in (dispatch.write, lambda: dispatch.queue("t", 0).get(0, 1)):
        with pytest.raises(SyncFailed):
            act()
    assert told == []


def test_a_write_may_fail_of_a_queue_that_is_written_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the cut that deletes its file: the process ended at the sentence that was to tell of the write."""
    monkeypatch.setattr("consumequeue.queue._FILE_BYTES", 4 * ENTRY_BYTES)
    dispatch, disk, told = failing()
    taken = dispatch.take()
    assert taken is not None
    disk.error = OSError(EIO, "Input/output error")
    taken.write(disk)
    disk.error = None
    dispatch.rise([("t", 0, 7)])
    dispatch.delete_unneeded()
    assert not dispatch.written()
    assert told == []
