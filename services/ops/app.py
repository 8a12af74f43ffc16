"""The routes of the HTTP interface."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from commitlog.errors import TidewheelError
from services.live.live_broker import LiveBroker
from services.ops.api import Api, refuse
from services.ops.metrics import Metrics
from services.ops.schedules import SchedulesApi


def make_app(live: LiveBroker, metrics: Metrics) -> Starlette:
    """Return the application that serves a broker's HTTP interface."""
    api = Api(live)
    schedules = SchedulesApi(live)

    async def alive(request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def ready(request: Request) -> Response:
        serves = not live.broken.done()
        return PlainTextResponse("ready\n" if serves else "broken\n", status_code=200 if serves else 503)

    async def scrape(request: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    routes = [
        Route("/livez", alive),
        Route("/readyz", ready),
        Route("/metrics", scrape),
        Route("/api/topics", api.topics),
        Route("/api/topics", api.create_topic, methods=["POST"]),
        Route("/api/topics/{topic}", api.topic),
        Route("/api/topics/{topic}/messages", api.messages),
        Route("/api/topics/{topic}/arrivals", api.arrivals),
        Route("/api/timers", api.timers),
        Route("/api/schedules", schedules.all),
        Route("/api/schedules/preview", schedules.preview, methods=["POST"]),
        Route("/api/schedules/{name}", schedules.get),
        Route("/api/schedules/{name}", schedules.set, methods=["PUT"]),
        Route("/api/schedules/{name}", schedules.delete, methods=["DELETE"]),
        Route("/api/schedules/{name}/pause", schedules.pause, methods=["POST"]),
        Route("/api/schedules/{name}/resume", schedules.resume, methods=["POST"]),
        Route("/api/clock", api.clock),
        Route("/api/clock/advance", api.advance, methods=["POST"]),
        Route("/api/messages", api.find),
        Route("/api/messages", api.send, methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={TidewheelError: refuse})
