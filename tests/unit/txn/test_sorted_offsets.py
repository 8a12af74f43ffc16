"""Tests that a set of log offsets has the same contents as a sorted list after random changes."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from txn import sorted_offsets
from txn.sorted_offsets import SortedOffsets

OFFSET = st.integers(0, 300)


@given(st.sets(OFFSET), st.lists(OFFSET, max_size=200), OFFSET, OFFSET, st.integers(0, 40))
def test_a_set_answers_as_a_sorted_list(
    first: set[int], changed: list[int], low: int, high: int, count: int
) -> None:
    with mock.patch.object(sorted_offsets, "ARRAY_LENGTH_MAX", 4):
        offsets, expected = SortedOffsets(first), set(first)
        for one in changed:
            (offsets.remove if one in expected else offsets.add)(one)
            expected ^= {one}
            assert [*offsets] == sorted(expected)
        assert offsets.some_from(low, count) == [one for one in sorted(expected) if one >= low][:count]
        assert [*offsets.between(low, high)] == [one for one in sorted(expected) if low <= one < high]


def test_offsets_that_rise_fill_their_arrays() -> None:
    offsets = SortedOffsets()
    for one in range(3 * sorted_offsets.ARRAY_LENGTH_MAX):
        offsets.add(one)
    assert len(offsets._arrays) == 3
