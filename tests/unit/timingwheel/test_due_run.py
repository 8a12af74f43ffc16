"""Tests the order in which the timers of a file are read."""

from __future__ import annotations

import numpy as np
import pytest

from timingwheel.due_run import first_in_due_order
from timingwheel.partition import ROW


@pytest.mark.parametrize("last_ms", [4, 1 << 40, 1 << 62])
@pytest.mark.parametrize("offsets", [[1, 2, 3, 4, 5], [5, 2, 1, 3, 4]], ids=["as they were set", "mixed"])
def test_timers_are_in_due_order_and_those_of_one_time_in_that_of_their_offsets(
    last_ms: int, offsets: list[int]
) -> None:
    dues_ms = [last_ms, 3, 0, 3, last_ms - 1]
    rows = np.zeros(len(dues_ms), ROW)
    rows["due_ms"], rows["timer_offset"] = dues_ms, offsets
    found, _ = first_in_due_order([rows], 4)
    expected = sorted(zip(dues_ms, offsets, strict=True))[:4]
    assert list(zip(found["due_ms"].tolist(), found["timer_offset"].tolist(), strict=True)) == expected
