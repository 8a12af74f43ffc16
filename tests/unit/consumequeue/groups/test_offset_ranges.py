"""Tests offset ranges against a set."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from consumequeue.groups.offset_ranges import OffsetRanges

END = 40
spans = st.tuples(st.integers(0, END), st.integers(1, 6)).map(lambda one: (one[0], one[0] + one[1]))
picks = st.sets(st.integers(0, END + 8), max_size=8).map(sorted)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), spans),
        st.tuples(st.just("cut"), st.integers(0, END)),
        st.tuples(st.just("take out"), picks),
    )
)


@given(steps)
def test_ranges_agree_with_a_set(script: list[tuple[str, object]]) -> None:
    ranges, oracle = OffsetRanges(), set()
    for action, argument in script:
        if action == "add":
            first, end = argument
            ranges.add(first, end)
            oracle |= set(range(first, end))
        elif action == "take out":
            ranges.take_out(argument)
            oracle -= set(argument)
        else:
            ranges.cut(argument)
            oracle = {offset for offset in oracle if offset >= argument}
        assert ranges.count == len(oracle)
        assert {at for first, length in ranges for at in range(first, first + length)} == oracle
        for offset in range(END + 8):
            assert (offset in ranges) == (offset in oracle)
            assert ranges.behind(offset) == next(at for at in count(offset) if at not in oracle)
    assert list(OffsetRanges(ranges)) == list(ranges)


def test_neighbours_are_one_range() -> None:
    ranges = OffsetRanges()
    for offset in range(100_000):
        ranges.add(offset, offset + 1)
    assert list(ranges) == [(0, 100_000)]
