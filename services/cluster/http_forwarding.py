"""HTTP at a node that does not lead: it tells of itself, and all else goes on to the leader.

/livez /readyz /metrics /api/cluster    this node
anything else                           the leader, once; its answer as it is
no leader, or none that answers         503, with a sentence
"""

from __future__ import annotations

import asyncio
import http.client
import time
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.cluster.engine_check import EngineCheck
from services.cluster.errors import NoLeader
from services.cluster.metrics import ClusterMetrics
from services.cluster.node import ClusterNode, Role
from services.ops.statuses import error_shape

FORWARDED: Final = "x-tidewheel-forwarded"
WAIT_SECONDS: Final = 10.0
CALL_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 0.1
_HOP_BY_HOP: Final = frozenset(("connection", "transfer-encoding", "content-length", "host", "keep-alive"))


class ClusterHttp:
    """The application of a node: its own answers, the leader's application here, or the leader elsewhere."""

    def __init__(self, node: ClusterNode, check: EngineCheck) -> None:
        self._node = node
        self.metrics = ClusterMetrics(node, check)
        self.leading: ASGIApp | None = None
        """The application of the broker while this node leads."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        if scope["path"] == "/api/cluster":
            await JSONResponse(self._node.view() | self.metrics.view())(scope, receive, send)
        elif self.leading is not None:
            await self.leading(scope, receive, send)
        elif scope["path"] in ("/livez", "/readyz", "/metrics"):
            await self._own(scope["path"])(scope, receive, send)
        else:
            response = await self._forward(Request(scope, receive))
            await response(scope, receive, send)

    def _own(self, path: str) -> Response:
        if path == "/livez":
            return PlainTextResponse("alive\n")
        if path == "/metrics":
            return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)
        if self._node.role is Role.HALTED:
            return PlainTextResponse(f"{self._node.halted}\n", status_code=503)
        if self._node.leader is None:
            return PlainTextResponse("no node of the cluster leads\n", status_code=503)
        return PlainTextResponse(f"ready\nfollows {self._node.leader.node}\n")

    async def _forward(self, request: Request) -> Response:
        if FORWARDED in request.headers:
            return refused("This node does not lead, and the request was forwarded to it. Send it again.")
        body = await request.body()
        fields = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        until = time.monotonic() + WAIT_SECONDS
        while (left_seconds := until - time.monotonic()) > 0:
            try:
                epoch, leader = await self._node.led_by(left_seconds)
                fields[FORWARDED] = str(epoch)
                return await asyncio.to_thread(called, leader.http, request.method, target, fields, body)
            except TimeoutError:
                break
            except ConnectionRefusedError:  # it has not got the request, so another may
                await asyncio.sleep(RETRY_SECONDS)
            except (OSError, http.client.HTTPException) as error:
                return refused(f"The leader went away amid the request ({error}). See whether it was done.")
        return refused(f"None leads after {WAIT_SECONDS:.0f} s. Send the request again.")


def called(url: str, method: str, target: str, fields: dict[str, str], body: bytes) -> Response:
    """Send a request to another node and return the answer; raise OSError or HTTPException."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=CALL_SECONDS)
    try:
        connection.request(method, target, body, fields)
        answer = connection.getresponse()
        content = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
        return Response(content, answer.status, kept)
    finally:
        connection.close()


def refused(sentence: str) -> Response:
    """Return a refusal as the HTTP interface says one."""
    return JSONResponse(error_shape(NoLeader(sentence)), status_code=503)
