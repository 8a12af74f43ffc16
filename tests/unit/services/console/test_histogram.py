"""Bars over time."""

from __future__ import annotations

from services.console.histogram import bars


def test_bars_lie_where_their_windows_are_and_the_fullest_fills_the_drawing() -> None:
    windows = [
        {"start_ms": "1000", "count": 4},
        {"start_ms": "1100", "count": 0},
        {"start_ms": "1300", "count": 1},
    ]
    first, last = bars(windows, 1000, 100, 4)
    assert (first.x, first.y, first.height) == (0, 0, 100)
    assert (last.x, last.y, last.height) == (75, 75, 25)
    assert first.title.endswith(": 4")


def test_windows_outside_have_no_bars() -> None:
    assert bars([{"start_ms": "2000", "count": 1}], 1000, 100, 4) == []
    assert bars([], 1000, 100, 4) == []


def test_one_of_many_can_still_be_seen() -> None:
    most, one = bars([{"start_ms": "0", "count": 100_000}, {"start_ms": "100", "count": 1}], 0, 100, 2)
    assert most.height == 100
    assert one.height == 2
