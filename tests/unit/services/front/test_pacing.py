"""The bucket of strangers, on a clock that is set."""

from __future__ import annotations

import pytest

from services.front.pacing import Pace


def test_a_burst_is_free_then_bytes_wait_for_their_second() -> None:
    clock = [100.0]
    pace = Pace(lambda: clock[0], burst_bytes=1_000, bytes_per_second=100)
    assert [pace.take(500) for _ in range(2)] == [0.0, 0.0]
    assert pace.take(200) == 0.0  # it is there when the bucket has just been emptied
    assert pace.take(100) == pytest.approx(2.0)
    assert pace.take(100) == pytest.approx(3.0)
    clock[0] += 1_000
    assert [pace.take(500) for _ in range(2)] == [0.0, 0.0]  # a bucket that stood long is full, not more
    assert pace.take(1) == 0.0
    assert pace.take(1) > 0
