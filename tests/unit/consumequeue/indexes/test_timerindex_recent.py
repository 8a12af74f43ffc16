"""Tests that adding facts one by one and in bulk has the same result, and that the newest fact is valid."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from consumequeue.indexes.timerindex_fact import FACT, Facts
from consumequeue.indexes.timerindex_recent import Recent

SLOTS = (1 << 19) - 1
Pair = tuple[int, int]
PAIRS = st.tuples(st.sampled_from([0, 1, 2, SLOTS, SLOTS + 1, 2 * SLOTS, 2**64 - 1]), st.integers(0, 2))
BATCHES = st.lists(
    st.tuples(st.lists(st.tuples(PAIRS, st.integers(0, 99)), max_size=30), st.booleans()), max_size=8
)


def facts_of(rows: list[tuple[Pair, int]]) -> Facts:
    return np.array([(*pair, offset, 2 * offset, 3 * offset) for pair, offset in rows], FACT)


@settings(max_examples=200)
@given(BATCHES)
def test_one_by_one_or_many_at_once_the_highest_offset_counts(
    batches: list[tuple[list[tuple[Pair, int]], bool]],
) -> None:
    recent, newest = Recent(), dict[Pair, int]()
    for rows, is_bulk in batches:
        for pair, offset in rows:
            newest[pair] = max(offset, newest.get(pair, 0))
        if is_bulk:
            recent.put_many(facts_of(rows))
        else:
            for fact in facts_of(rows).tolist():
                recent.put(*fact)
    assert len(recent) == len(newest)
    expected = facts_of(sorted(newest.items()))
    assert np.array_equal(np.concatenate([facts_of([]), *recent.chunks()]), expected)
    again = Recent()
    again.take(recent)
    assert np.array_equal(np.concatenate([facts_of([]), *again.chunks()]), expected)
    for pair, offset in newest.items():
        assert recent.find(*pair) == (offset, 2 * offset, 3 * offset)
    assert recent.find(3, 0) is recent.find(1, 3) is None


def test_looking_for_many_finds_each() -> None:
    recent = Recent()
    recent.put_many(facts_of([((number * SLOTS, 0), number) for number in range(1000)]))
    keys = np.arange(1001, dtype=np.uint64) * np.uint64(SLOTS)
    is_known = recent.contains_each(keys, np.zeros(1001, np.uint64))
    assert is_known.tolist() == [True] * 1000 + [False]


def test_chunks_are_in_order_of_each_other() -> None:
    recent = Recent()
    keys = np.random.default_rng(1).permutation(40_000)
    recent.put_many(facts_of([((int(key), 0), place) for place, key in enumerate(keys)]))
    chunks = list(recent.chunks())
    assert len(chunks) == 3
    assert np.concatenate(chunks)["key"].tolist() == list(range(40_000))
