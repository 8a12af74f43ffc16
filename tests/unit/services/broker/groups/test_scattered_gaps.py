"""Gaps of damage that lie scattered cost a receive as little as messages do.

A gap of one message reads some entries of its queue, not a block of 8,192 with their CRCs (300 such gaps held
the loop for 200 ms); a receive of lite topics counts each gap that it passes as a message that it looks at.
"""

from __future__ import annotations

from commitlog import limits
from consumequeue.entry import Entry
from consumequeue.filters.filter import EVERYTHING
from consumequeue.queue import ConsumeQueue
from services.broker.groups.group_values import GroupQueue
from services.broker.groups.lite_subscribing import LiteStart
from services.broker.spine.values import Subscriber
from tests.memory_disk import MemoryDisk
from tests.unit.services.broker.spine.test_gaps import lose, sent


class Counting(MemoryDisk):
    """A disk that counts what is read."""

    read_bytes = 0

    def read(self, path: str, position: int, length: int) -> bytes:
        found = super().read(path, position, length)
        self.read_bytes += len(found)
        return found


def test_the_end_of_a_short_gap_is_found_in_few_bytes() -> None:
    disk = Counting()
    queue = ConsumeQueue(disk, "t", 0)
    for number in range(20_000):
        queue.put(number, Entry(1000 * number, 0 if number % 2 else 100, 0))
    queue.write()
    queue.entry(0)
    disk.read_bytes = 0
    gaps = range(1, 2 * limits.SCANNED_PER_RECEIVE_MAX, 2)
    assert [queue.gap_end(gap) for gap in gaps] == [gap + 1 for gap in gaps]
    assert disk.read_bytes < 4 * limits.QUEUE_FILES_COMPARED_BYTES


def test_a_receive_of_lite_topics_passes_a_bounded_number_of_gaps() -> None:
    count = 2 * limits.SCANNED_PER_RECEIVE_MAX
    store, places = sent("a" * (2 * count + 1), lite_topics=True)
    lose(store, places[1::2])
    store.broker.lite.subscribe(Subscriber("g", "t", "c"), ["a"], LiteStart(), store.now_ms)
    passed, turns, ids = 0, 0, list[str]()
    while True:
        found = store.broker.receiving.receive("g", "t", EVERYTHING, 1, 20_000, "c", False, store.now_ms)
        flight = store.broker.groups.in_flight(GroupQueue("g", "t", 0))
        before, passed = passed, flight.offsets.done_above_count + flight.offsets.committed_offset
        turns += 1
        assert passed - before <= limits.SCANNED_PER_RECEIVE_MAX
        ids += [one.message.message_id for one in found.deliveries]
        if not found.is_unfinished or found.deliveries:
            break
        store.flush()
    assert (ids, turns > 1) == (["M0"], True)
