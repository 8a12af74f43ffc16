"""Records as columns, by queue."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from consumequeue import entry
from services.broker.spine.encoded_batch import EncodedBatch, TimersDelivered

KEYS = [("a", 0), ("a", 1), ("b", 0), ("c", 7)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_index_entries_come_by_queue_in_log_order(queue: list[int]) -> None:
    count = len(queue)
    column = np.arange(count, dtype=np.int64)
    codes = np.array(queue)
    names = np.zeros((count, 4), np.uint64)
    copies = EncodedBatch(bytearray(50 * count), column + 50, KEYS, codes, 3 * column, names, column, column)
    places = np.array([queue[:number].count(code) for number, code in enumerate(queue)])
    found = TimersDelivered(copies, column * 1_000, places + 10, 1).entries()
    assert [key for key, _, _ in found] == [KEYS[code] for code in sorted({*queue})]
    for key, first, encoded in found:
        mine = [number for number, code in enumerate(queue) if KEYS[code] == key]
        assert first == 10
        wanted = [entry.Entry(number * 1_000, number + 50, number * 3) for number in mine]
        assert entry.decode_all(encoded) == wanted
