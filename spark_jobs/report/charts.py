"""Bar charts of the report, as numbers that the template draws in SVG.

A chart has `WIDTH` by `HEIGHT` SVG units and scales with the page. Bars may be stacked. The value axis ends
at a round number. At most eight labels are below the bars, so they remain readable on a phone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from spark_jobs.report.statistics import LATENESS_EDGES_MS, LogStatistics

WIDTH: Final = 640
HEIGHT: Final = 220
LEFT: Final = 52
TOP: Final = 14
BOTTOM: Final = 34
_GAP: Final = 0.18
_LABELS_MAX: Final = 8
_BAR_WIDTH_MAX: Final = 48.0


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle, in SVG units. `series` selects its colour, and `title` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    series: str
    title: str


@dataclass(frozen=True, slots=True)
class Label:
    """Text at a position (SVG units) of an axis."""

    at: float
    text: str


@dataclass(slots=True)
class Chart:
    """A bar chart: bars, the labels below them, and horizontal lines with their values."""

    title: str
    bars: list[Bar] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    lines: list[Label] = field(default_factory=list)
    series: list[str] = field(default_factory=list)
    has_legend: bool = False
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    base: int = HEIGHT - BOTTOM


@dataclass(frozen=True, slots=True)
class Group:
    """The stacked bars at one position of the axis, lowest first: (series, value)."""

    label: str
    values: Sequence[tuple[str, float]]

    @property
    def total(self) -> float:
        """Return the sum of the values."""
        return sum(value for _, value in self.values)


def draw(title: str, groups: Sequence[Group], has_legend: bool) -> Chart:
    """Return a chart of the groups from left to right."""
    series = list(dict.fromkeys(name for group in groups for name, _ in group.values))
    chart = Chart(title, series=series, has_legend=has_legend)
    top = _round_up(max((group.total for group in groups), default=0))
    step = (WIDTH - LEFT) / max(len(groups), 1)
    scale = (HEIGHT - TOP - BOTTOM) / top
    for place, group in enumerate(groups):
        chart.bars += _stack(group, LEFT + step * place, step, scale)
    every = max(1, -(-len(groups) // _LABELS_MAX))
    chart.labels = [
        Label(LEFT + step * (place + 0.5), groups[place].label) for place in range(0, len(groups), every)
    ]
    chart.lines = [Label(chart.base - part * top * scale / 2, _short(part * top / 2)) for part in range(3)]
    return chart


def messages_per_minute(statistics: LogStatistics) -> Chart:
    """Return a chart of the messages that became available to consumers per minute, by topic."""
    width, topics = statistics.bar_ms, sorted(statistics.messages_by_topic)
    first = statistics.first_ms // width * width
    groups = [
        Group(
            time_of_day(start, width),
            [(topic, statistics.bars.get((topic, start), 0) * 60_000 / width) for topic in topics],
        )
        for start in range(first, statistics.last_ms + 1, width)
    ]
    return draw(f"Messages per minute, a bar for {each(width)}", groups, has_legend=True)


def lateness(statistics: LogStatistics) -> Chart:
    """Return a histogram of the lateness of deliveries."""
    names = ["early", *(duration(edge) if edge else "0" for edge in LATENESS_EDGES_MS)]
    colours = ["early", *(["lateness"] * len(LATENESS_EDGES_MS))]
    bars = zip(names, colours, statistics.lateness_bars, strict=True)
    shown = [(name, colour, count) for name, colour, count in bars if count or colour != "early"]
    groups = [Group(name, [(colour, count)]) for name, colour, count in shown]
    return draw("Deliveries by lateness (each bar up to the next)", groups, has_legend=False)


def _stack(group: Group, x: float, step: float, scale: float) -> list[Bar]:
    width = min(step * (1 - _GAP), _BAR_WIDTH_MAX)
    bars, base = [], float(HEIGHT - BOTTOM)
    for name, value in group.values:
        height = value * scale
        base -= height
        if value:
            shown = f"{group.label}, {name}: {value:,.0f}"
            bars.append(
                Bar(
                    round(x + (step - width) / 2, 2),
                    round(base, 2),
                    round(width, 2),
                    round(height, 2),
                    name,
                    shown,
                )
            )
    return bars


def _round_up(value: float) -> float:
    """Return the smallest of 2, 4, 10, 20, 40, 100, ... >= `value`. Half of each is also a round number."""
    power = 1
    while power * 10 < value:
        power *= 10
    return next((power * step for step in (2, 4, 10) if power * step >= value), power * 10)


def _short(value: float) -> str:
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def each(ms: int) -> str:
    """Return a width as text, such as "each minute" or "each 5 min"."""
    return {1_000: "each second", 60_000: "each minute"}.get(ms, f"each {duration(ms)}")


def duration(ms: int) -> str:
    """Return a span as text in its largest unit, from weeks to milliseconds."""
    for limit, unit in (
        (604_800_000, "w"),
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "min"),
        (1_000, "s"),
    ):
        if ms >= limit:
            return f"{ms / limit:g} {unit}"
    return f"{ms} ms"


def time_of_day(ms: int, width_ms: int) -> str:
    """Return a time (ms since 1970) as an axis label in UTC.

    The label shows the day, minute, or second, depending on the width of the bars.
    """
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    if width_ms >= 86_400_000:
        return moment.strftime("%d %b")
    return moment.strftime("%H:%M:%S" if width_ms < 60_000 else "%H:%M")
