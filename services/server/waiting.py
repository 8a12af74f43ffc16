"""HTTP service of a node that waits at start because the engine of its shared log is unreachable.

    /livez             200
    /api/...           503 with the last error of the engine, in the format of a node without a leader
    other paths        503 with the same error as text

An error that only a person can fix (no cluster, or a store of another cluster) ends the start immediately. A
wrong password may be in the process of being changed, so the node waits in this case as well.

Limitation: in the meantime, the gRPC port accepts connections without answering.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

import structlog
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.cluster.errors import NoLeader
from services.ops.requests.statuses import error_shape
from services.server.parts import told_to_stop
from sharedlog.errors import EngineUnavailable

AGAIN_SECONDS: Final = 2.0
DOCTOR: Final = "To look: tidewheel cluster doctor URL"

log = structlog.get_logger()
Answer = TypeVar("Answer")


class Waiting:
    """HTTP application of a waiting node."""

    def __init__(self) -> None:
        self.sentence = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            await self._answer(scope["path"])(scope, receive, send)

    def _answer(self, path: str) -> Response:
        if path == "/livez":
            return PlainTextResponse("alive\n")
        if path.startswith("/api/"):
            return JSONResponse(error_shape(NoLeader(f"This node {self.sentence}")), 503)
        return PlainTextResponse(f"{self.sentence}\n", 503)

    def told(self, error: EngineUnavailable) -> None:
        """Store the error of the engine."""
        sentence = f"waits for the shared log: {error} {DOCTOR}"
        if sentence != self.sentence:
            log.error("the shared log does not answer: this node waits for it", reason=str(error), see=DOCTOR)
        self.sentence = sentence


async def answered(
    ask: Callable[[], Answer],
    serving: Callable[[ASGIApp], AbstractAsyncContextManager[None]],
    again_seconds: float = AGAIN_SECONDS,
) -> Answer | None:
    """Return the engine's answer. It is requested repeatedly in a thread.

    Returns None if the node is stopped first.

    `serving` serves an application over HTTP in the meantime. Raises the errors of `ask`, except
    `EngineUnavailable`.
    """
    try:
        return await asyncio.to_thread(ask)
    except EngineUnavailable as error:
        waiting = Waiting()
        waiting.told(error)
    with told_to_stop() as told:
        async with serving(waiting):
            asking = asyncio.create_task(_asked_again(ask, waiting, again_seconds))
            ends: set[asyncio.Future[Any]] = {told, asking}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                log.info("the shared log answers: this node starts")
                return asking.result()
            asking.cancel()
    return None


async def _asked_again(ask: Callable[[], Answer], waiting: Waiting, again_seconds: float) -> Answer:
    while True:
        await asyncio.sleep(again_seconds)
        try:
            return await asyncio.to_thread(ask)
        except EngineUnavailable as error:
            waiting.told(error)
