"""Charts as numbers: every value is drawn to scale, inside the picture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.report import charts
from spark_jobs.report.charts import HEIGHT, LEFT, WIDTH, Group
from spark_jobs.report.statistics import LATENESS_EDGES_MS, LogStatistics

heights = st.lists(st.floats(0, 1e9), min_size=1, max_size=3)


@given(st.lists(heights, max_size=120))
def test_bars_stay_inside_and_in_proportion(values: list[list[float]]) -> None:
    groups = [Group("x", [(f"s{place}", value) for place, value in enumerate(stack)]) for stack in values]
    chart = charts.draw("title", groups, has_legend=False)
    for bar in chart.bars:
        assert bar.x >= LEFT
        assert bar.x + bar.width <= WIDTH + 0.01
        assert 0 <= bar.y <= bar.y + bar.height <= chart.base + 0.02 <= HEIGHT
    assert len(chart.bars) == sum(value > 0 for stack in values for value in stack)
    assert len(chart.labels) <= 8


def test_the_tallest_stack_sets_a_round_scale() -> None:
    chart = charts.draw(
        "title", [Group("a", [("s", 30), ("t", 5)]), Group("b", [("s", 10)])], has_legend=True
    )
    assert [line.text for line in chart.lines] == ["0", "20", "40"]
    first, second, third = chart.bars
    assert first.height == pytest.approx(3 * third.height)
    assert second.y + second.height == pytest.approx(first.y)


def test_messages_are_shown_as_a_rate_per_minute() -> None:
    statistics = LogStatistics(first_ms=10_000, last_ms=24_000, bar_ms=5_000, messages_by_topic={"t": 3})
    statistics.bars = {("t", 10_000): 2, ("t", 20_000): 1}
    chart = charts.messages_per_minute(statistics)
    assert [bar.title for bar in chart.bars] == ["00:00:10, t: 24", "00:00:20, t: 12"]
    assert len(chart.labels) == 3


def test_early_deliveries_have_a_bar_only_if_there_are_any() -> None:
    statistics = LogStatistics()
    statistics.lateness_bars = [0] + [1] * len(LATENESS_EDGES_MS)
    assert "early" not in charts.lateness(statistics).series
    statistics.lateness_bars[0] = 1
    assert charts.lateness(statistics).series[0] == "early"
