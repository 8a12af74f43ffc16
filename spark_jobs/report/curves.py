"""Curves of lateness over time on a logarithmic axis from 1 ms, as numbers for the template.

A span without deliveries interrupts the curves. Lateness of 1 ms or less, including early deliveries, is
drawn on the base line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, log10
from typing import Final

from spark_jobs.report.charts import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, Label, each, time_of_day
from spark_jobs.report.statistics import Lateness, LogStatistics

CURVES: Final = {"p50": "p50_ms", "p99": "p99_ms", "p99.9": "p999_ms", "latest": "max_ms"}
_LABELS_MAX: Final = 7
_DECADES_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Curve:
    """A percentile or maximum over time: uninterrupted stretches as SVG points, and single points as dots."""

    name: str
    stretches: list[str]
    dots: list[tuple[float, float]]


@dataclass(slots=True)
class CurveChart:
    """A chart of curves, with labels below and horizontal lines."""

    title: str
    curves: list[Curve] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    lines: list[Label] = field(default_factory=list)
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT


def lateness_over_time(statistics: LogStatistics) -> CurveChart | None:
    """Return a chart of the percentiles and maximum of lateness, or None without deliveries.

    There is a point per minute. In a short log it is a point per 1, 5, or 15 s, in a long one a point per
    longer span.
    """
    points, width_ms = statistics.lateness_over_time, statistics.point_ms
    if not points:
        return None
    decades = max(_DECADES_MIN, ceil(log10(max(2, *(one.max_ms for one in points)))))
    first_ms = points[0].start_ms
    places = max(1, (points[-1].start_ms - first_ms) // width_ms)
    across = (WIDTH - LEFT - 10) / places

    def at(one: Lateness, name: str) -> tuple[float, float]:
        height = log10(max(1, getattr(one, name))) / decades
        x = LEFT + 5 + (one.start_ms - first_ms) // width_ms * across
        return round(x, 1), round(HEIGHT - BOTTOM - height * (HEIGHT - TOP - BOTTOM), 1)

    chart = CurveChart(f"Lateness of deliveries, a point for {each(width_ms)}")
    for name, column in CURVES.items():
        runs = [[at(one, column) for one in run] for run in _unbroken(points, width_ms)]
        stretches = [" ".join(f"{x},{y}" for x, y in run) for run in runs if len(run) > 1]
        chart.curves.append(Curve(name, stretches, [run[0] for run in runs if len(run) == 1]))
    chart.lines = [
        Label(HEIGHT - BOTTOM - place / decades * (HEIGHT - TOP - BOTTOM), _power(place))
        for place in range(decades + 1)
    ]
    chart.labels = list(_labels(first_ms, places, width_ms, across))
    return chart


def _unbroken(points: Sequence[Lateness], width_ms: int) -> Iterator[list[Lateness]]:
    run: list[Lateness] = []
    for one in points:
        if run and one.start_ms - run[-1].start_ms > width_ms:
            yield run
            run = []
        run.append(one)
    yield run


def _labels(first_ms: int, places: int, width_ms: int, across: float) -> Iterator[Label]:
    every = max(1, -(-(places + 1) // _LABELS_MAX))
    for place in range(0, places + 1, every):
        yield Label(LEFT + 5 + place * across, time_of_day(first_ms + place * width_ms, width_ms))


def _power(place: int) -> str:
    return f"{10**place} ms" if place < 3 else f"{10 ** (place - 3):,} s"
