"""A look at several queues for a tail comes to an end: each call reads a file, or gives all there is.

An entry that was read ahead, and is in memory only, is given without a read of its file. Counted as a read,
it made `GET /api/topics/TOPIC/arrivals` turn in the loop for as long as its client held on.
"""

from __future__ import annotations

import pytest

from commitlog import limits
from consumequeue.entry import ENTRY_BYTES
from tests.unit.services.broker.timers.test_timers import Store


def test_a_look_at_queues_whose_entries_were_read_ahead_before_they_were_written_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(segment_bytes=1 << 20, queue_count=2, tail_entries_max=6)
    for number in range(8):
        store.send(f"M{number}", None)
    places = {0: 0, 1: 0}
    assert len(store.broker.finding.read_after("t", places, 100).messages) == 8  # reads ahead, from memory
    for number in range(8, 40):
        store.send(f"M{number}", None)
    store.broker.store.dispatch.write()
    queues = [queue for _, queue in store.broker.store.dispatch.queues_of("t", 2)]
    assert not any(queue.compared_bytes for queue in queues), "files were read"
    assert all(queue.end_offset * ENTRY_BYTES > queue.tail_bytes for queue in queues), "nothing was written"
    monkeypatch.setattr(limits, "QUEUE_FILES_COMPARED_BYTES", 20 * ENTRY_BYTES)
    ids = list[str]()
    for _ in range(100):
        found, is_unfinished = store.broker.finding.read_after("t", places, 100)
        ids += [one.message.message_id for one in found]
        for one in found:
            places[one.queue_id] = one.queue_offset + 1
        if not is_unfinished:
            break
    assert ids == [f"M{number}" for number in range(40)]
