"""Histogram bars as SVG.

The SVG has no inline styles and no scripts, which the content policy would block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from services.times.display import wall


class Bar(NamedTuple):
    """A time window: its position in the drawing, from 0 to 100, and its title."""

    x: float
    y: float
    width: float
    height: float
    title: str


def bars(windows: Sequence[Mapping[str, Any]], from_ms: int, width_ms: int, count: int) -> list[Bar]:
    """Return the bars of `count` windows from `from_ms`. Empty windows have no bar."""
    most = max((window["count"] for window in windows), default=0)
    drawn = []
    for window in windows:
        place = (int(window["start_ms"]) - from_ms) / width_ms
        if window["count"] and -1 < place < count:
            height = max(2.0, 100 * window["count"] / most)
            title = f"{wall(int(window['start_ms']))}: {window['count']:,}"
            drawn.append(
                Bar(round(100 * max(0, place) / count, 3), round(100 - height, 3), 90 / count, height, title)
            )
    return drawn
