"""The operations for monitoring, which are the probes, the metrics and the OpenAPI document.

GET /livez           returns 200 as long as the process responds
GET /readyz          returns 200 if the broker serves calls, or 503 with the reason; the text also
                     reports a full disk and damage
GET /metrics         returns the Prometheus metrics (`services.ops.metrics.broker_metrics`)
GET /openapi.json    returns the OpenAPI document of the HTTP interface (`services.ops.openapi`)
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
from services.broker.spine.values import DamagedPart
from services.live.live_broker import LiveBroker
from services.ops.metrics.broker_metrics import Metrics
from services.ops.requests.answers import InParts, Parts, written
from services.ops.requests.operation import Operation
from tidewheel.errors import TidewheelError

SAMPLES_AT_ONCE: Final = 250
PLACES_SHOWN: Final = 3
PARTS_OF_TIMERS: Final = frozenset({"partition", "names", "ends"})
HEAD_LINES: Final = 2
"""What a family begins with: # HELP and # TYPE."""


@dataclass(slots=True, frozen=True)
class One(Collector):
    """A collector of a single metric family."""

    family: Metric

    def collect(self) -> Iterator[Metric]:
        """Yield the metric family."""
        yield self.family


def pieces_of(family: Metric) -> Iterator[bytes]:
    """Yield a metric family as text in pieces of `SAMPLES_AT_ONCE` samples, each of which takes some ms."""
    samples = family.samples
    for first in range(0, max(1, len(samples)), SAMPLES_AT_ONCE):
        part = Metric(family.name, family.documentation, family.type, family.unit)
        part.samples = samples[first : first + SAMPLES_AT_ONCE]
        text = generate_latest(One(part))
        yield text if first == 0 else text.split(b"\n", HEAD_LINES)[HEAD_LINES]


def damage_lines(found: Sequence[DamagedPart]) -> Iterator[str]:
    """Yield a line about damage: the number of places, some places, the remedy, and a command for details."""
    if not found:
        return
    names = list(dict.fromkeys(place_of(one) for one in reversed(found)))
    more = f" and {len(names) - PLACES_SHOWN} more" if len(names) > PLACES_SHOWN else ""
    places = f"{len(found)} places, {', '.join(names[:PLACES_SHOWN])}{more}"
    parts = {one.part for one in found}
    todo = "; restart the broker, whose start makes queues anew" if "queue" in parts else ""
    command = "tidewheel timer ls --damaged" if parts <= PARTS_OF_TIMERS else "tidewheel store verify"
    yield f"damaged: {places}{todo}, see: {command}"


def place_of(one: DamagedPart) -> str:
    """Return the name of a damaged place, which is a topic and queue number, or a path in the store."""
    match one.path.split("/"):
        case [layout.CONSUMEQUEUE, topic, queue_id, *_]:
            return f"queue {queue_id} of topic {topic}"
    return one.path or one.part


class Probes:
    """The handlers of operations that do not return JSON."""

    def __init__(self, live: LiveBroker, metrics: Metrics, describe: Callable[[], dict[str, Any]]) -> None:
        self._live, self._metrics, self._describe = live, metrics, describe

    async def alive(self, request: Request) -> Response:
        """Return 200 as long as the process responds."""
        return PlainTextResponse("alive\n")

    async def ready(self, request: Request) -> Response:
        """Report whether the broker serves calls, with the reason if not, and refused sends and damage."""
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
        """Return the Prometheus metrics."""
        try:
            parts = await self._scraped()
        except TidewheelError:  # the disk has failed meanwhile, which the second call reports
            parts = await self._scraped()
        return InParts(parts, media_type=CONTENT_TYPE_LATEST)

    async def _scraped(self) -> list[bytes]:
        """Return the metrics as text, and encode one family in each turn of the event loop.

        The text is sent in parts, as long JSON answers are.
        """
        parts = Parts()
        for family in self._metrics.in_turns():
            for piece in pieces_of(family) if family is not None else ():
                parts.add(piece)
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        return parts.whole()

    async def describe(self, request: Request) -> Response:
        """Return the OpenAPI document of the HTTP interface."""
        return await written(await asyncio.to_thread(self._describe))  # takes 70 ms at the first call


OPERATIONS: Final = (
    Operation("GET", "/livez", Probes.alive, {200: None}, refusals=()),
    Operation("GET", "/readyz", Probes.ready, {200: None, 503: None}, refusals=()),
    Operation("GET", "/metrics", Probes.scrape, {200: None}, refusals=()),
    Operation("GET", "/openapi.json", Probes.describe, {200: dict[str, Any]}, refusals=()),
)
