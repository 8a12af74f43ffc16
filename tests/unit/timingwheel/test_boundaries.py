"""Tests the boundaries and slots of the upper levels, for single timers and for arrays of timers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timingwheel.boundaries import SHIFTS, Boundaries, Slot, boundary_ms, containing, slot_named

times = st.integers(0, 10**13)


@given(times, st.lists(st.tuples(st.integers(0, 5), times), max_size=3), st.lists(times, max_size=30))
def test_many_are_split_as_each_alone(now_ms: int, past: list[tuple[int, int]], dues_ms: list[int]) -> None:
    boundaries = Boundaries.at(now_ms)
    for level, due_ms in past:
        slot = containing(level, due_ms)
        passing = boundaries.passing
        apart = all(slot.end_ms <= other.start_ms or other.end_ms <= slot.start_ms for other in passing)
        if apart and slot.end_ms <= now_ms:
            boundaries.passing.append(slot)
            dues_ms = [*dues_ms, due_ms]
    found: dict[int, Slot] = {}
    for slot, places in boundaries.split(np.array(dues_ms, np.uint64)):
        found |= dict.fromkeys(places.tolist(), slot)
    assert found == {place: boundaries.slot_of(due_ms) for place, due_ms in enumerate(dues_ms)}


@given(times)
def test_boundaries_ascend_and_are_between_a_half_and_one_and_a_half_slots_ahead(now_ms: int) -> None:
    starts_ms = Boundaries.at(now_ms).starts_ms
    assert starts_ms == sorted(starts_ms)
    for level, start_ms in enumerate(starts_ms):
        size_ms = 1 << SHIFTS[level]
        assert start_ms == boundary_ms(level, now_ms)
        assert start_ms % size_ms == 0
        assert size_ms // 2 < start_ms - now_ms <= size_ms * 3 // 2


def test_a_file_is_named_by_its_slot() -> None:
    assert slot_named("2-00000001763758473216") == Slot(2, 1_763_758_473_216)
    for name in ("unfinished", "2-17", "9-00000000000000000000", "x-00000000000000000000"):
        with pytest.raises(ValueError, match=r".*"):
            slot_named(name)
