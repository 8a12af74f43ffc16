"""What machines ask of a broker: does it live, is it ready, how is it doing, what can be asked.

GET /livez           whether the process answers
GET /readyz          whether the broker serves, else 503 and why not; a full disk and damage beside it
GET /metrics         what Prometheus scrapes (`services.ops.metrics`)
GET /openapi.json    the HTTP interface in OpenAPI (`services.ops.openapi`)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from commitlog import layout
from services.broker.spine.values import Damaged
from services.live.live_broker import LiveBroker
from services.ops.answers import InParts, Parts, written
from services.ops.metrics import Metrics
from services.ops.operation import Operation
from tidewheel.errors import TidewheelError

SAMPLES_AT_ONCE: Final = 250
PLACES_SHOWN: Final = 3
PARTS_OF_TIMERS: Final = frozenset({"partition", "names", "ends"})
HEAD_LINES: Final = 2
"""What a family begins with: # HELP and # TYPE."""


@dataclass(slots=True, frozen=True)
class One(Collector):
    """One family of metrics."""

    family: Metric

    def collect(self) -> Iterator[Metric]:
        """Yield the family."""
        yield self.family


def pieces_of(family: Metric) -> Iterator[bytes]:
    """Yield a family as text, `SAMPLES_AT_ONCE` samples at a time, which takes some ms."""
    samples = family.samples
    for first in range(0, max(1, len(samples)), SAMPLES_AT_ONCE):
        part = Metric(family.name, family.documentation, family.type, family.unit)
        part.samples = samples[first : first + SAMPLES_AT_ONCE]
        text = generate_latest(One(part))
        yield text if first == 0 else text.split(b"\n", HEAD_LINES)[HEAD_LINES]


def damage_lines(found: Sequence[Damaged]) -> Iterator[str]:
    """Yield a line about damage: how many places, which, what to do, and the command that shows more."""
    if not found:
        return
    names = list(dict.fromkeys(place_of(one) for one in reversed(found)))
    more = f" and {len(names) - PLACES_SHOWN} more" if len(names) > PLACES_SHOWN else ""
    places = f"{len(found)} places, {', '.join(names[:PLACES_SHOWN])}{more}"
    parts = {one.part for one in found}
    todo = "; restart the broker, whose start makes queues anew" if "queue" in parts else ""
    command = "tidewheel timer ls --damaged" if parts <= PARTS_OF_TIMERS else "tidewheel store verify"
    yield f"damaged: {places}{todo}, see: {command}"


def place_of(one: Damaged) -> str:
    """Return the name of a damaged place: a queue by its topic and number, else a path of the store."""
    match one.path.split("/"):
        case [layout.CONSUMEQUEUE, topic, queue_id, *_]:
            return f"queue {queue_id} of topic {topic}"
    return one.path or one.part


class Probes:
    """The handlers of what is no JSON interface."""

    def __init__(self, live: LiveBroker, metrics: Metrics, describe: Callable[[], dict[str, Any]]) -> None:
        self._live, self._metrics, self._describe = live, metrics, describe

    async def alive(self, request: Request) -> Response:
        """Say whether the process answers."""
        return PlainTextResponse("alive\n")

    async def ready(self, request: Request) -> Response:
        """Say whether the broker serves, and why not; refused sends and damage are told beside it."""
        try:
            housekeeping = self._live.core.housekeeping
            refusal = housekeeping.stopped or housekeeping.refusal()
        except TidewheelError as error:
            return PlainTextResponse(f"{error.code} {error}\n", status_code=503)
        if (held := self._live.answers.held) is not None:
            return PlainTextResponse(f"{held.code} {held}\n", status_code=503)
        refuses = "" if refusal is None else f"{refusal.code} {refusal}\n"
        told = "".join(f"{one}\n" for one in damage_lines(list(self._live.core.damage)))
        warnings = "".join(f"{one}\n" for one in self._live.warnings())
        return PlainTextResponse(f"ready\n{refuses}{told}{warnings}")

    async def scrape(self, request: Request) -> Response:
        """Show what Prometheus scrapes."""
        try:
            parts = await self._scraped()
        except TidewheelError:  # the disk has failed meanwhile, which a second look tells
            parts = await self._scraped()
        return InParts(parts, media_type=CONTENT_TYPE_LATEST)

    async def _scraped(self) -> list[bytes]:
        """Return the text to scrape; a turn of the loop looks at one family, so no call waits for all.

        The text comes in parts, as long answers in JSON do.
        """
        parts = Parts()
        for family in self._metrics.in_turns():
            for piece in pieces_of(family) if family is not None else ():
                parts.add(piece)
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        return parts.whole()

    async def describe(self, request: Request) -> Response:
        """Describe the HTTP interface as OpenAPI."""
        return await written(await asyncio.to_thread(self._describe))  # 70 ms, the first time


OPERATIONS: Final = (
    Operation("GET", "/livez", Probes.alive, {200: None}, refusals=()),
    Operation("GET", "/readyz", Probes.ready, {200: None, 503: None}, refusals=()),
    Operation("GET", "/metrics", Probes.scrape, {200: None}, refusals=()),
    Operation("GET", "/openapi.json", Probes.describe, {200: dict[str, Any]}, refusals=()),
)
