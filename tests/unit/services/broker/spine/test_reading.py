"""Searches of a queue by time: how much they read of its files, and what damage on the way makes of them."""

from __future__ import annotations

from contextlib import suppress

import pytest

from commitlog import limits
from commitlog.errors import StoreDamaged
from consumequeue.entry import ENTRY_BYTES
from services.broker.broker import Broker
from tests.memory_disk import MemoryDisk
from tests.unit.services.broker.timers.test_timers import NOW_MS, Store

FILE_ENTRIES, FILE_COUNT, STEP_MS = 16, 40, 10


class Counting(MemoryDisk):
    """A disk that counts the bytes that are read of files of queues."""

    read_bytes = 0

    def read(self, path: str, position: int, length: int) -> bytes:
        if path.startswith("consumequeue/"):
            self.read_bytes += length
        return super().read(path, position, length)


def path_of(number: int) -> str:
    return f"consumequeue/t/0/{number * FILE_ENTRIES * ENTRY_BYTES:020d}"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with one queue of 40 files, and 10 ms between its messages."""
    monkeypatch.setattr("consumequeue.queue._FILE_BYTES", FILE_ENTRIES * ENTRY_BYTES)
    store = Store(segment_bytes=1 << 20)
    store.disk = Counting()
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)
    for number in range(FILE_ENTRIES * FILE_COUNT):
        store.now_ms += STEP_MS
        store.broker.sending.send(store.message(f"M{number}", None), store.now_ms)
    store.flush()
    store.broker.store.dispatch.write()
    store.checkpoint()
    return store


def restart(store: Store) -> None:
    store.disk.kill(lambda _: 0)
    store.broker = Broker.open(store.disk, store.settings, store.now_ms)
    assert not store.broker.rebuilt_files


def found(store: Store, wanted: int) -> int:
    """Return the offset that a search for the moment of an offset finds."""
    return store.broker.finding.offset_at("t", 0, NOW_MS + STEP_MS * (wanted + 1))


@pytest.mark.parametrize("wanted", [0, 1, 13 * FILE_ENTRIES, 20 * FILE_ENTRIES + 1, 34 * FILE_ENTRIES - 1])
def test_a_search_by_time_reads_two_files_at_most_as_a_whole(store: Store, wanted: int) -> None:
    """Behind a start, which has read none."""
    restart(store)
    assert isinstance(store.disk, Counting)
    store.disk.read_bytes = 0
    assert found(store, wanted) == wanted
    assert store.disk.read_bytes <= (2 * FILE_ENTRIES + 12) * ENTRY_BYTES


@pytest.mark.parametrize("damage", ["gone", "another's", "nothing", "beyond the log", "negative"])
def test_damage_on_the_way_of_a_search_by_time_makes_no_wrong_answer(store: Store, damage: str) -> None:
    """And is told of the queue only, not of the log, to which it leads."""
    whole = store.disk.read(path_of(1), 0, FILE_ENTRIES * ENTRY_BYTES)
    for number in (10, 20, 30):
        match damage:
            case "gone":
                store.disk.delete(path_of(number))
            case "another's":
                store.disk.write(path_of(number), 0, whole)
            case "nothing":
                store.disk.write(path_of(number), 0, bytes(len(whole)))
            case "beyond the log":
                store.disk.write(path_of(number), 0, b"\x7f" * len(whole))
            case _:
                store.disk.write(path_of(number), 0, b"\xff" * len(whole))
    restart(store)
    for wanted in (3, 10 * FILE_ENTRIES + 1, 11 * FILE_ENTRIES, 25 * FILE_ENTRIES, 39 * FILE_ENTRIES):
        with suppress(StoreDamaged):  # of what the search has to know
            assert found(store, wanted) == wanted
    with pytest.raises(StoreDamaged):
        found(store, 30 * FILE_ENTRIES + 1)
    assert {one.part for one in store.broker.damage} == {"queue"}


def test_a_look_at_many_queues_reads_one_large_file_of_them_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tail does behind a start: it read a file of each queue, of up to 6 MB, within one turn."""
    queue_count, count = 8, 5
    store = Store(segment_bytes=1 << 20, queue_count=queue_count)
    for number in range(queue_count * count):
        store.send(f"M{number}", None)
    store.broker.store.dispatch.write()
    store.checkpoint()
    restart(store)
    monkeypatch.setattr(limits, "QUEUE_FILES_COMPARED_BYTES", 2 * count * ENTRY_BYTES - 1)
    queues = [queue for _, queue in store.broker.store.dispatch.queues_of("t", queue_count)]
    places, ids, calls = dict.fromkeys(range(queue_count), 0), list[str](), 0
    is_unfinished = True
    while is_unfinished:
        before = sum(one.compared_bytes for one in queues)
        found, is_unfinished = store.broker.finding.read_after("t", places, 100)
        calls += 1
        assert sum(one.compared_bytes for one in queues) - before == count * ENTRY_BYTES
        for one in found:
            places[one.queue_id] = one.queue_offset + 1
        ids += [one.message.message_id for one in found]
    assert calls == queue_count
    assert ids == [f"M{number}" for number in range(queue_count * count)]
