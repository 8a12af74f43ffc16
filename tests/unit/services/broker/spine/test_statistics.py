"""Columns of deliveries are counted as one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.broker.spine.statistics import LATENESS_BOUNDS_MS, Lateness, Statistics

LATE_MS = st.integers(-1_000, 400_000) | st.sampled_from([*LATENESS_BOUNDS_MS])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(LATE_MS, min_size=1, max_size=5)), min_size=1))
def test_lateness_is_counted_by_topic(runs: list[tuple[str, list[int]]]) -> None:
    statistics = Statistics()
    begins = np.cumsum([0, *(len(late) for _, late in runs)])
    late_ms = np.array([one for _, late in runs for one in late])
    statistics.count_lateness([topic for topic, _ in runs], begins, late_ms)
    wanted: dict[str, Lateness] = {}
    none = [0] * (len(LATENESS_BOUNDS_MS) + 1)
    for topic, late in runs:
        one = wanted.setdefault(topic, Lateness([*none], 0, 0, 0))
        for ms in late:
            one.counts[sum(ms > bound for bound in LATENESS_BOUNDS_MS)] += 1
            one.sum_ms, one.max_ms = one.sum_ms + ms, max(one.max_ms, ms)
            one.early_count += ms < 0
    assert statistics.lateness == wanted
