"""Ranges of acknowledged places, merged and asked."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.staging.acknowledged import Places

ranges = st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 5_000)), max_size=12)


def merged(found: list[tuple[int, int]]) -> Places:
    firsts = np.array([first for first, _ in found], np.int64)
    return Places.merged(firsts, firsts + np.array([count for _, count in found], np.int64))


@given(ranges, st.lists(st.integers(-1, 26_000), max_size=40))
def test_a_place_is_acknowledged_if_any_range_has_it(found: list[tuple[int, int]], asked: list[int]) -> None:
    expected = [any(first <= place < first + count for first, count in found) for place in asked]
    assert merged(found).has(np.array(asked, np.int64)).tolist() == expected


@given(ranges)
def test_merged_ranges_neither_touch_nor_overlap(found: list[tuple[int, int]]) -> None:
    places = merged(found)
    assert (places.ends > places.firsts).all()
    assert (places.firsts[1:] > places.ends[:-1]).all()
