"""Layout of the flow of orders as boxes and arrows, which the template draws.

The stages are on a grid of steps and lanes. Steps run from left to right on a wide page, and from top to
bottom on a phone, so there are two drawings of one flow. The thickness of an arrow grows linearly with its
share of the placed orders, from a visible minimum.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_jobs.cases.names import BALANCED, IN_FLIGHT, NOT_COVERED
from spark_jobs.report.flow import FINDING, Arrow, Flow, Rest

TITLES: Final = {
    "placed": "order placed",
    "announced": "announced",
    "consumed": "consumed",
    "cleared": "cart cleared",
    "armed": "deadline set",
    "cancelled": "called off",
    "fired": "deadline fired",
    "timed out": "timed out",
}
_GRID: Final = {
    "placed": (0, 0.75),
    "announced": (1, 0.0),
    "consumed": (2, 0.0),
    "cleared": (3, 0.0),
    "armed": (1, 1.5),
    "cancelled": (2, 1.0),
    "fired": (2, 2.0),
    "timed out": (3, 2.0),
}
"""Step and lane of each stage."""

_REST_WORDS: Final = {
    FINDING: ("bad", "missing"),
    IN_FLIGHT: ("wait", "waiting"),
    NOT_COVERED: ("quiet", "not covered"),
    BALANCED: ("quiet", "end here"),
}
_ALONG: Final = 0.6
_THIN: Final = 2.0
_THICK: Final = 14.0
_LINE: Final = 16.0


class Shape(NamedTuple):
    """The sizes of one drawing, in SVG units."""

    name: str
    width: float
    height: float
    box_width: float
    box_height: float
    step: float
    lane: float
    is_upright: bool


WIDE: Final = Shape("wide", 990, 370, 140, 58, 283, 138, is_upright=False)
TALL: Final = Shape("tall", 358, 560, 108, 54, 166, 124, is_upright=True)


@dataclass(frozen=True, slots=True)
class Box:
    """A stage: its upper left corner, its name, and the number of orders that reached it."""

    x: float
    y: float
    title: str
    count: int


@dataclass(frozen=True, slots=True)
class Curve:
    """An arrow: an SVG path and its stroke width."""

    path: str
    thickness: float


@dataclass(frozen=True, slots=True)
class Text:
    """A text at a position. `tone` is good, bad, wait, or quiet."""

    x: float
    y: float
    text: str
    tone: str


@dataclass(frozen=True, slots=True)
class FlowChart:
    """One drawing of a flow."""

    shape: Shape
    boxes: list[Box]
    curves: list[Curve]
    texts: list[Text]


def flow_chart(flow: Flow, shape: Shape, hidden: Collection[str] = ()) -> FlowChart:
    """Return the drawing of a flow in one shape, without the `hidden` stages, which have no data."""
    titles = {stage: title for stage, title in TITLES.items() if stage not in hidden}
    boxes = [Box(*_corner(stage, shape), title, flow.stages[stage]) for stage, title in titles.items()]
    arrows, most = [one for one in flow.arrows() if one.target in titles], max(1, flow.stages["placed"])
    curves = [Curve(_path(one, shape), _thickness(one.passed / most)) for one in arrows]
    texts = [text for one in arrows for text in _arrow_texts(one, shape)]
    rests = [one for one in flow.rests() if titles.keys() & set(one.targets)]
    texts += [text for one in rests for text in _rest_texts(one, shape)]
    return FlowChart(shape, boxes, curves, texts)


def _corner(stage: str, shape: Shape) -> tuple[float, float]:
    step, lane = _GRID[stage]
    return (
        (lane * shape.lane, step * shape.step) if shape.is_upright else (step * shape.step, lane * shape.lane)
    )


def _ends(source: str, target: str, shape: Shape) -> tuple[float, float, float, float]:
    """Return the start (x, y) of an arrow at its source's box and its end (x, y) at its target's box."""
    (x1, y1), (x2, y2) = _corner(source, shape), _corner(target, shape)
    if shape.is_upright:
        half = shape.box_width / 2
        return x1 + half, y1 + shape.box_height, x2 + half, y2
    half = shape.box_height / 2
    return x1 + shape.box_width, y1 + half, x2, y2 + half


def _path(one: Arrow, shape: Shape) -> str:
    x1, y1, x2, y2 = _ends(one.source, one.target, shape)
    if shape.is_upright:
        middle = (y1 + y2) / 2
        return f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}"
    middle = (x1 + x2) / 2
    return f"M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}"


def _thickness(share: float) -> float:
    return round(_THIN + (_THICK - _THIN) * min(1.0, share), 2)


def _arrow_texts(one: Arrow, shape: Shape) -> list[Text]:
    """Return the count of orders in both stages, and in red the count of extra findings."""
    x, y = _beside(one.source, one.target, shape)
    above = y - 12 if not shape.is_upright else y - 8
    texts = [Text(x, above, f"{one.passed:,}", "good")]
    if one.extra:
        texts.append(Text(x, above - _LINE, f"{one.extra:,} extra", "bad"))
    return texts


def _beside(source: str, target: str, shape: Shape) -> tuple[float, float]:
    """Return the position of the text on an arrow, near the target, where arrows do not overlap."""
    x1, y1, x2, y2 = _ends(source, target, shape)
    eased = 3 * _ALONG**2 - 2 * _ALONG**3
    across, along = (eased, _ALONG) if shape.is_upright else (_ALONG, eased)
    return x1 + (x2 - x1) * across, y1 + (y2 - y1) * along


def _rest_texts(one: Rest, shape: Shape) -> list[Text]:
    """Return the counts of orders left over, below the arrow, or below the box if it has several arrows."""
    x, y = _rest_place(one, shape)
    shown = [
        (tone, f"{count:,} {word}")
        for name, (tone, word) in _REST_WORDS.items()
        if (count := one.by_class[name])
    ]
    return [Text(x, y + place * _LINE, text, tone) for place, (tone, text) in enumerate(shown)]


def _rest_place(one: Rest, shape: Shape) -> tuple[float, float]:
    if len(one.targets) == 1:
        x, y = _beside(one.source, one.targets[0], shape)
        return x, y + (8 if shape.is_upright else 22)
    x, y = _corner(one.source, shape)
    return x + shape.box_width / 2, y + shape.box_height + 18
