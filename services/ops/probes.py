"""What machines ask of a broker: does it live, is it ready, how is it doing, what can be asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from commitlog.errors import TidewheelError
from services.live.live_broker import LiveBroker
from services.ops.metrics import Metrics


class Probes:
    """The handlers of what is no JSON interface."""

    def __init__(self, live: LiveBroker, metrics: Metrics, describe: Callable[[], dict[str, Any]]) -> None:
        self._live, self._metrics, self._describe = live, metrics, describe

    async def alive(self, request: Request) -> Response:
        """Say whether the process answers."""
        return PlainTextResponse("alive\n")

    async def ready(self, request: Request) -> Response:
        """Say whether the broker serves, and why not; a nearly full disk and damage are told beside it."""
        try:
            refusal = self._live.core.housekeeping.refusal()
        except TidewheelError as error:
            return PlainTextResponse(f"{error.code} {error}\n", status_code=503)
        refuses = "" if refusal is None else f"{refusal.code} {refusal}\n"
        damage_count = self._live.core.damage_count
        told = f"damaged: {damage_count} places, see: tidewheel timer ls --damaged\n" if damage_count else ""
        return PlainTextResponse(f"ready\n{refuses}{told}")

    async def scrape(self, request: Request) -> Response:
        """Show what Prometheus scrapes."""
        return Response(generate_latest(self._metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def describe(self, request: Request) -> Response:
        """Describe the HTTP interface as OpenAPI."""
        return JSONResponse(self._describe())
