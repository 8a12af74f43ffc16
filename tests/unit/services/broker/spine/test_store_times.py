"""Store times lead to an offset from which on all records are at least as young."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.broker.spine.store_times import KEPT_COUNT, STEP_MS, StoreTimes

STEPS = st.lists(st.integers(0, 3 * STEP_MS), max_size=60)


@given(STEPS, st.integers(0, 60 * STEP_MS))
def test_no_record_that_is_as_young_lies_below(steps: list[int], asked_ms: int) -> None:
    times, store_ms, records = StoreTimes(), 0, list[tuple[int, int]]()
    for number, step in enumerate(steps):
        store_ms += step
        times.add_record(store_ms, number)
        records.append((store_ms, number))
    offset = times.offset_at(asked_ms)
    assert offset is None or all(ms < asked_ms for ms, number in records if number < offset)
    if offset is None and records:
        assert records[0][0] > asked_ms or len(times.freeze()) == KEPT_COUNT


@given(STEPS)
def test_what_a_snapshot_keeps_is_taken_over(steps: list[int]) -> None:
    times, store_ms = StoreTimes(), 0
    for number, step in enumerate(steps):
        store_ms += step
        times.add_record(store_ms, number)
    thawed = StoreTimes()
    thawed.thaw(times.freeze())
    assert (thawed.freeze(), thawed.next_ms) == (times.freeze(), times.next_ms)
