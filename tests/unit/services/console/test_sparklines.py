"""Figures of two hours: which are kept, what is drawn of them, and who is asked."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

from services.console import sparklines
from services.console.sparklines import EVERY_MS, KEPT, SPAN_MS, Samples, collect
from tidewheel.errors import AccessRefused

COUNTER, GAUGE = sparklines.FIGURES[0], sparklines.FIGURES[3]


class Clock:
    """Milliseconds, as told."""

    def __init__(self) -> None:
        self.now_ms = 1_763_700_000_000

    def __call__(self) -> int:
        return self.now_ms


def line(samples: Samples, title: str) -> Any:
    return next(one for one in samples.lines() if one["title"] == title)


def test_counters_are_drawn_as_rates_and_gauges_as_they_are() -> None:
    clock = Clock()
    samples = Samples(clock)
    for count, pending in ((100.0, 7.0), (400.0, 9.0), (1000.0, 8.0)):
        samples.add("a", {COUNTER.metric: count, GAUGE.metric: pending, "other": 1.0})
        clock.now_ms += EVERY_MS
    rates = line(samples, COUNTER.title)
    assert [value for _, value in rates["points"]] == [10.0, 20.0]
    assert (rates["now"], rates["highest"]) == (20.0, 20.0)
    assert rates["path"].count("M") == 1
    assert rates["path"].endswith(" 1.0"), "the highest is at the top"
    assert [value for _, value in line(samples, GAUGE.title)["points"]] == [7.0, 9.0, 8.0]


@pytest.mark.parametrize(("address", "count"), [("a", 5.0), ("b", 900.0)])
def test_a_restart_and_another_node_are_gaps(address: str, count: float) -> None:
    clock = Clock()
    samples = Samples(clock)
    for where, value in (("a", 100.0), ("a", 400.0), (address, count), (address, count + 30)):
        samples.add(where, {COUNTER.metric: value})
        clock.now_ms += EVERY_MS
    found = line(samples, COUNTER.title)
    assert [value for _, value in found["points"]] == [10.0, None, 1.0]
    assert found["path"].count("M") == 2


def test_what_is_kept_is_bounded_in_number_and_age() -> None:
    clock = Clock()
    samples = Samples(clock)
    for _ in range(2 * KEPT):
        samples.add("a", {GAUGE.metric: 1.0})
        samples.add("a", {GAUGE.metric: 2.0})  # one that looks at the page
        clock.now_ms += EVERY_MS
    found = line(samples, GAUGE.title)
    assert len(found["points"]) == KEPT
    assert found["highest"] == 1.0
    clock.now_ms += SPAN_MS
    assert line(samples, GAUGE.title) == {
        "title": GAUGE.title, "now": None, "highest": None, "path": "", "points": []
    }  # fmt: skip


def test_a_clock_that_went_back_stops_nothing() -> None:
    clock = Clock()
    samples = Samples(clock)
    samples.add("a", {GAUGE.metric: 1.0})
    clock.now_ms -= 3_600_000
    samples.add("a", {GAUGE.metric: 2.0})
    assert line(samples, GAUGE.title)["now"] == 2.0


def test_the_thread_ends_where_the_broker_refuses() -> None:
    def refused() -> Any:
        raise AccessRefused("a token is asked for")

    collect(Samples(), refused, Event())
