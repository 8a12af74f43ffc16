"""Line charts of the overview: metrics of the last two hours, kept in the console process.

    /metrics --(every 30 s, by a thread)--> Samples, 240 at most --> rates and levels --> inline SVG

The thread uses the console's own token. If the broker refuses it, the thread ends, and samples are only added
when a user opens the overview. A counter that decreases, or a change to another node, produces a gap. The SVG
has no inline styles, which the content policy would block. Cost: one metrics request every 30 s, and about
250 KB of memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from threading import Event, Lock
from typing import Final, NamedTuple

from services.http.api import Api
from services.status.asking import figures, metrics
from services.times.display import now_ms
from tidewheel.errors import AccessRefused, TidewheelError

EVERY_MS: Final = 30_000
SPAN_MS: Final = 2 * 3_600_000
KEPT: Final = SPAN_MS // EVERY_MS
WIDTH, HEIGHT = 240, 40
WHOLE_FROM: Final = 100
GAP_MS: Final = 4 * EVERY_MS
"""The maximum distance of samples that a line connects."""


class Figure(NamedTuple):
    """A chart: its title, its metric, and whether the metric is a counter, which is drawn as a rate per
    second.
    """

    title: str
    metric: str
    is_counter: bool


FIGURES: Final = (
    Figure("Stored a second", "rocketmq_messages_in_total", True),
    Figure("Received a second", "rocketmq_messages_out_total", True),
    Figure("Timers delivered a second", "mq_delivery_lateness_seconds_count", True),
    Figure("Timers pending", "mq_timer_pending", False),
    Figure("Messages not done", "rocketmq_consumer_lag_messages", False),
    Figure("Transactions open", "rocketmq_half_messages", False),
)


class Sample(NamedTuple):
    """Metrics of the broker at an address. The time is in ms since 1970."""

    at_ms: int
    address: str
    figures: Mapping[str, float]


class Point(NamedTuple):
    """A value at a point in time. None marks a gap."""

    at_ms: int
    value: float | None


class Samples:
    """The samples of the last two hours. The methods are thread-safe."""

    def __init__(self, clock_ms: Callable[[], int] = now_ms) -> None:
        self._clock_ms, self._lock = clock_ms, Lock()
        self._kept: deque[Sample] = deque(maxlen=KEPT)

    def add(self, address: str, found: Mapping[str, float]) -> None:
        """Add a sample if the last one is at least EVERY_MS old. A metric without series counts as 0."""
        at_ms = self._clock_ms()
        named = {one.metric: found.get(one.metric, 0.0) for one in FIGURES}
        with self._lock:
            if not self._kept or not 0 <= at_ms - self._kept[-1].at_ms < EVERY_MS * 9 // 10:
                self._kept.append(Sample(at_ms, address, named))

    def lines(self) -> list[dict[str, object]]:
        """Return each chart with its points, the latest value, the maximum and its SVG path."""
        until_ms = self._clock_ms()
        with self._lock:
            kept = [one for one in self._kept if until_ms - SPAN_MS <= one.at_ms <= until_ms]
        return [line(one, list(points(one, kept)), until_ms) for one in FIGURES]


def points(figure: Figure, kept: list[Sample]) -> Iterator[Point]:
    """Yield the points of a chart."""
    if not figure.is_counter:
        yield from (Point(one.at_ms, one.figures[figure.metric]) for one in kept)
        return
    for before, after in pairwise(kept):
        first, last = before.figures[figure.metric], after.figures[figure.metric]
        is_gap = before.address != after.address or last < first or after.at_ms <= before.at_ms
        rate = None if is_gap else 1000 * (last - first) / (after.at_ms - before.at_ms)
        yield Point(after.at_ms, rate)


def line(figure: Figure, found: list[Point], until_ms: int) -> dict[str, object]:
    """Return a chart for the page."""
    values = [one.value for one in found if one.value is not None]
    return {
        "title": figure.title,
        "now": rounded(values[-1]) if values else None,
        "highest": rounded(max(values)) if values else None,
        "path": path(found, until_ms),
        "points": [[str(one.at_ms), None if one.value is None else rounded(one.value)] for one in found],
    }


def path(found: list[Point], until_ms: int) -> str:
    """Return the SVG path of points. A new segment begins after a gap."""
    highest = max((one.value for one in found if one.value is not None), default=0.0) or 1.0
    drawn, before_ms = list[str](), -GAP_MS
    for at_ms, value in found:
        if value is None:
            before_ms = -GAP_MS
            continue
        x = WIDTH * (1 - (until_ms - at_ms) / SPAN_MS)
        y = HEIGHT - 1 - (HEIGHT - 2) * value / highest
        drawn.append(f"{'L' if at_ms - before_ms < GAP_MS else 'M'}{x:.1f} {y:.1f}")
        before_ms = at_ms
    return "".join(drawn)


def rounded(value: float) -> float:
    """Return a value rounded for display. Large values are rounded to integers."""
    return int(value) if value == int(value) or value >= WHOLE_FROM else round(value, 1)


def collect(samples: Samples, connect: Callable[[], Api], ended: Event) -> None:
    """Add a sample every EVERY_MS until `ended` is set or the broker refuses the request.

    An unreachable broker produces a gap.
    """
    while True:
        with suppress(TidewheelError):
            try:
                broker = connect()
                samples.add(broker.address, figures(metrics(broker)))
            except AccessRefused:
                return
        if ended.wait(EVERY_MS / 1000):
            return
