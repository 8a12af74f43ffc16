"""The HTTP interface of a node. A follower answers some requests itself and forwards the others.

    /livez /readyz /metrics      answered by this node (by its broker while the node leads)
    GET /api/cluster             answered by this node
    GET /api/cluster/copy        answered by this node with its newest checkpoint, if the caller sends the
                                 secret of the copy (`copies`)
    POST /api/cluster/position   a follower's report, accepted by the leader if the caller sends the
                                 secret of the epoch (`followers`, `health`)
    POST /api/cluster/move       transfers the leadership to {"node": NAME}, by default to any other node
    POST /api/cluster/forget     removes {"node": NAME} from the cluster
    POST /api/cluster/set-version    finalizes {"version": N}, by default the highest supported version
    other paths                  forwarded to the leader once; the response is returned unchanged
    no leader, or no response    answered with status 503 and an error message

The leader executes `move`, `forget` and `set-version` requests. Other nodes forward these requests to the
leader.

GET and HEAD requests are retried with the next leader if the leader fails or is replaced before it responds.
If the caller disconnects, the forwarded request is cancelled.

Each forwarded request occupies one of HTTP_FORWARDED_MAX threads until the leader responds. If all threads
are busy, further requests are refused. A follower can therefore forward only a few HTTP long polls at the
same time, but many gRPC long polls (`calls.py`).

Requests that the node answers itself pass through the same gate as requests to a broker
(`services.ops.gate`). The gate uses the users and tokens in this node's replica, which may briefly lag behind
the leader. Requests between nodes bypass the gate and are authenticated with a secret from the shared log.
For forwarded requests, the gate checks the host and the origin but not the token. Paths are forwarded byte
for byte, because decoding a path could change its meaning. A forwarded request contains the caller's token,
and the leader authorizes it like a direct request.
"""

from __future__ import annotations

import asyncio
import hmac
import http.client
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from commitlog import limits
from services.auth.errors import Unauthorized
from services.auth.refusals import Refusals
from services.cluster.copies import transfer
from services.cluster.election.table import Role
from services.cluster.errors import CommandRefused, CopyRefused, InvalidCommand, NoLeader
from services.cluster.identity import Member
from services.cluster.leading import followers, operator_commands
from services.cluster.metrics import ClusterMetrics
from services.cluster.node import ClusterNode, monotonic_ms
from services.cluster.peers import SECRET, CertificateMismatch, connect_to
from services.cluster.status import status_of
from services.cluster.watching.engine_check import EngineCheck
from services.cluster.watching.scrubbing import LogScrubber
from services.cluster.watching.sessions import SessionTrials
from services.cluster.watching.unanswered import EngineDiagnosis
from services.ops.gate import Demands, Gate
from services.ops.needs import VIEW_OF_ALL, WHOLE_BROKER
from services.ops.requests.callers import Authority, caller_of
from services.ops.requests.polls import CALLER_GONE, CallerGone, HangUp
from services.ops.requests.request import body_of
from services.ops.requests.statuses import error_shape, refuse
from services.process.event_loop import let_end
from tidewheel.errors import AccessRefused, TidewheelError

log = structlog.get_logger()

Answer = TypeVar("Answer")

FORWARDED: Final = "x-tidewheel-forwarded"
WAIT_SECONDS: Final = 10.0
CALL_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 0.1
FORMER_LEADER_SECONDS: Final[float] = 2.0
"""Time in seconds that a former leader has to respond after another node has become the leader."""
COPIES_MAX: Final = 2
"""Maximum number of nodes that can fetch a copy from this node at the same time."""
_HOP_BY_HOP: Final = frozenset(("connection", "transfer-encoding", "content-length", "host", "keep-alive"))
_NOT_FORWARDED_FIELDS: Final = frozenset(("origin", "sec-fetch-site", FORWARDED))
"""Header fields that are not forwarded, because they apply to this node or mark forwarded requests."""
_RETRYABLE_METHODS: Final = ("GET", "HEAD")
"""HTTP methods without side effects. Requests with these methods may be retried with the next leader."""
_LOCAL_PATHS: Final = ("/livez", "/readyz", "/metrics")


class ForwardedRequest(NamedTuple):
    """An HTTP request that is to be forwarded to the leader."""

    method: str
    target: str
    fields: list[tuple[bytes, bytes]]
    body: bytes


class ClusterHttp:
    """The ASGI application of a node. The store is in the folder `root`."""

    def __init__(
        self,
        node: ClusterNode,
        root: Path,
        demands: Demands,
        refusals: Refusals,
        check: EngineCheck,
        unanswered: EngineDiagnosis,
        scrubbing: LogScrubber,
        sessions: SessionTrials,
    ) -> None:
        self._node, self._root = node, root
        self.metrics = ClusterMetrics(node, check, unanswered, scrubbing, sessions)
        self._gated = Gate(self._answer, demands, refusals, self._authority)
        self._passing = Gate(self._answer_from_leader, replace(demands, token=""), refusals, self._authority)
        self._copy_count = 0
        self._callers = ThreadPoolExecutor(limits.HTTP_FORWARDED_MAX, thread_name_prefix="forward")
        self._forwarded_count = 0
        self.leading: ASGIApp | None = None
        """The HTTP application of the broker, or None if this node is not the leader."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request as an ASGI application."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path == transfer.PATH:
            await self._send_copy(Request(scope, receive), send)
        elif path == followers.PATH:
            await (await self._record_position(Request(scope, receive)))(scope, receive, send)
        elif path == "/api/cluster" or path in _COMMANDS or self._is_own_probe(path):
            await self._gated(scope, receive, send)
        elif self.leading is not None:
            await self.leading(scope, receive, send)
        else:  # the node reads the whole body before forwarding the request
            await self._passing(scope, receive, send)

    async def _answer_from_leader(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request that has passed the gate of this node, and send the response."""
        response = await self._forward_request(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that has passed the gate. A follower forwards operator commands to the leader."""
        request, path = Request(scope, receive), scope["path"]
        caller = caller_of(request)
        try:
            if caller is not None:
                caller.ask(WHOLE_BROKER if path in _COMMANDS else VIEW_OF_ALL)
        except AccessRefused as error:
            response: Response = await refuse(request, error)
            await response(scope, receive, send)
            return
        if path in _COMMANDS:
            response = await self._handle_command(request)
        elif path == "/api/cluster":
            progress = await self.metrics.progress()
            response = JSONResponse(status_of(self._node) | self.metrics.view() | progress)
        else:
            response = self._answer_probe(path)
        await response(scope, receive, send)

    def _authority(self) -> Authority:
        """Return the `Authority` for the users and tokens in this node's replica.

        Each check reads a table only once, because a worker thread may modify the table concurrently. Raise
        `NoLeader` if no replica is open.
        """
        replica, wall_ms = self._node.actions.replica, self._node.actions.clocks.wall
        if replica is None:
            raise NoLeader("This node gets a copy, and has no users yet. Ask another node, or later.")
        access = replica.core.access
        return Authority(
            lambda text: access.find_token(text, wall_ms()),
            lambda token: access.check_token(token, wall_ms()),
            lambda token: None,
            access.rights.allows,
            access.rights.allows_some,
            set(),
        )

    def _is_own_probe(self, path: str) -> bool:
        """Return whether the node, rather than its broker, answers the probe at `path`."""
        is_waiting = path == "/readyz" and bool(self.metrics.unanswered)
        return path in _LOCAL_PATHS and (self.leading is None or is_waiting)

    def _answer_probe(self, path: str) -> Response:
        if path == "/livez":
            return PlainTextResponse("alive\n")
        if path == "/metrics":
            return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)
        if self._node.role is Role.HALTED:
            return PlainTextResponse(f"{self._node.election.halted}\n", status_code=503)
        unanswered, leader = self.metrics.unanswered, self._node.known_leader
        if unanswered and self._node.role in (Role.LEADING, Role.STANDING):
            return PlainTextResponse(f"{unanswered}\n", status_code=503)
        away = f"{unanswered}\n" if unanswered else "".join(f"{one}\n" for one in self.metrics.warnings())
        if leader is None:
            return PlainTextResponse(f"no node of the cluster leads\n{away}", status_code=503)
        return PlainTextResponse(f"ready\nfollows {leader.node}\n{away}")

    # Operator commands.

    async def _handle_command(self, request: Request) -> Response:
        """Execute an operator command if this node is the leader. Otherwise, forward it."""
        if request.method != "POST":
            return PlainTextResponse("POST it\n", status_code=405)
        if self._node.role is not Role.LEADING and FORWARDED not in request.headers:
            return await self._forward_request(request)
        try:
            return JSONResponse(await _COMMANDS[request.url.path](self._node, request))
        except CommandRefused as error:
            return JSONResponse(error_shape(error), status_code=409)
        except TidewheelError as error:
            return await refuse(request, error)
        except TimeoutError:
            return refusal_response("No node leads yet. See tidewheel cluster status.")

    # Copies for other nodes.

    async def _send_copy(self, request: Request, send: Send) -> None:
        """Send the newest checkpoint of this node to a caller that sends the secret of the copy."""
        given = request.headers.get(SECRET, "")
        if not hmac.compare_digest(given.encode(), self._node.own_copy.secret.encode()):
            response: Response = await refuse(
                request, Unauthorized("A copy is for nodes of the cluster only.")
            )
        elif self._copy_count >= COPIES_MAX:
            response = refusal_response(f"{COPIES_MAX} nodes are getting a copy already. Ask again later.")
        else:
            self._copy_count += 1
            try:
                # The stream keeps files open until `aclosing` closes it.
                async with aclosing(Chunks(transfer.stream_copy(self._root))) as chunks:
                    await (await self._copy_response(chunks))(request.scope, request.receive, send)
            finally:
                self._copy_count -= 1
            return
        await response(request.scope, request.receive, send)

    async def _copy_response(self, chunks: Chunks) -> Response:
        """Return the response that streams a copy, or an error response if the copy cannot be read."""
        try:
            first = await chunks.next()
        except (OSError, TidewheelError) as error:
            why = error if isinstance(error, CopyRefused) else CopyRefused(f"It cannot be read: {error}")
            return JSONResponse(error_shape(why), status_code=503)

        async def sent() -> AsyncIterator[bytes]:
            chunk = first
            while chunk is not None:
                yield chunk
                try:
                    chunk = await chunks.next()
                except (
                    OSError,
                    TidewheelError,
                ) as error:  # the receiver detects that the stream is incomplete
                    log.warning("a copy was not given to its end", reason=str(error))
                    return

        return StreamingResponse(sent(), media_type="application/octet-stream")

    async def _record_position(self, request: Request) -> Response:
        """Record the report of a follower if the request contains the secret of the current epoch."""
        if request.method != "POST":
            return PlainTextResponse("POST it\n", status_code=405)
        try:
            # The node verifies the secret before it reads the body, because the port may be public.
            if not self._node.is_followed_by(request.headers.get(SECRET, "")):
                raise Unauthorized("A position is for the leader, from its followers.")
            told = json.loads(await body_of(request))
            self._node.record_position(str(told["node"]), int(told["end_offset"]), told.get("unfit"))
            if (skew_ms := told.get("clock_skew_ms")) is not None:
                self._node.clocks.record_skew(f"node {told['node']}", int(skew_ms))
        except (ValueError, TypeError, KeyError) as error:
            return await refuse(request, InvalidCommand(f"The body is no position of a node ({error})."))
        except TidewheelError as error:
            return await refuse(request, error)
        return JSONResponse({})

    # Forwarding to the leader.

    async def _forward_request(self, request: Request) -> Response:
        """Return the response of the leader. Cancel the request if the caller disconnects."""
        if FORWARDED in request.headers:
            return refusal_response(
                "This node does not lead, and the request was forwarded to it. Send it again."
            )
        try:
            body = await body_of(request)
        except TidewheelError as error:
            return await refuse(request, error)
        if self._forwarded_count >= limits.HTTP_FORWARDED_MAX:
            return refusal_response(
                f"{self._forwarded_count} requests wait for the leader here, as many as may. Dial the "
                "leader, which tidewheel cluster status names, or poll with fewer."
            )
        hang_up = HangUp(request)
        self._forwarded_count += 1
        try:
            return await hang_up.unless(self._forward(request_to_forward(request, body)))
        except CallerGone:
            return Response(status_code=CALLER_GONE)
        finally:
            self._forwarded_count -= 1
            hang_up.close()

    async def _forward(self, passed: ForwardedRequest) -> Response:
        until, said = time.monotonic() + WAIT_SECONDS, ""
        while (remaining_seconds := until - time.monotonic()) > 0:
            try:
                epoch, leader = await self._node.wait_for_leader(remaining_seconds)
            except TimeoutError:
                break
            began_ms = monotonic_ms()
            try:
                connection = await self._in_thread(connect_to, leader.http, leader.certificate, CALL_SECONDS)
            except OSError as error:  # nothing was sent, so the request may be sent to another leader
                said = str(error)
                if not isinstance(error, CertificateMismatch):
                    self._node.election.reachability.record_failure(epoch, began_ms, monotonic_ms())
                    said = connection_failure_text(leader, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            calling = self._in_thread(send_request, connection, passed, epoch)
            try:
                answer = await self._run_while_leader(epoch, connection, calling)
                self._node.election.reachability.record_answer(monotonic_ms())
                return answer
            except (OSError, http.client.HTTPException) as error:
                said = f"The leader went away amid the request ({error}). See whether it was done."
                if passed.method not in _RETRYABLE_METHODS:
                    return refusal_response(said)
        return refusal_response(said or f"None leads after {WAIT_SECONDS:.0f} s. Send the request again.")

    def _in_thread(self, call: Callable[..., Answer], *arguments: object) -> asyncio.Future[Answer]:
        return asyncio.get_running_loop().run_in_executor(self._callers, call, *arguments)

    async def _run_while_leader(
        self, epoch: int, connection: http.client.HTTPConnection, calling: Awaitable[Response]
    ) -> Response:
        """Return the response of a leader. Raise OSError if another node becomes the leader during the call.

        A paused leader process keeps its connections open. A leader change must therefore be detected from
        the shared log. A former leader has FORMER_LEADER_SECONDS to respond, for example to the command that
        transferred the leadership.
        """
        answering = asyncio.ensure_future(calling)
        moving = asyncio.ensure_future(self._node.wait_for_other_epoch(epoch))
        try:
            try:
                await asyncio.wait({answering, moving}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:  # the caller has disconnected
                let_end(answering)
                shut_down(connection)
                raise
            if not answering.done():
                await asyncio.wait({answering}, timeout=FORMER_LEADER_SECONDS)
            if not answering.done():
                let_end(answering)
                shut_down(connection)
                raise ConnectionAbortedError("another node leads, and this one does not answer")
            return answering.result()
        finally:
            moving.cancel()


class Chunks:
    """An asynchronous reader of a generator. Each step of the generator runs in a worker thread.

    If the waiting coroutine is cancelled, the worker thread still completes the current step. The method
    `aclose` waits for the current step before it closes the generator.
    """

    def __init__(self, stream: Generator[bytes]) -> None:
        self._stream = stream
        self._step: asyncio.Future[bytes | None] | None = None

    async def next(self) -> bytes | None:
        """Return the next item, or None if the generator is exhausted."""
        self._step = asyncio.ensure_future(asyncio.to_thread(next, self._stream, None))
        return await asyncio.shield(self._step)

    async def aclose(self) -> None:
        """Wait for the end of the current step, and close the generator."""
        if self._step is not None:
            await asyncio.wait({self._step})
        await asyncio.to_thread(self._stream.close)


async def handle_move(node: ClusterNode, request: Request) -> dict[str, Any]:
    """Transfer the leadership to another node, and return the new leader."""
    return {
        "leader": (
            await operator_commands.transfer_leadership(node, await read_node_name(request))
        ).status_fields()
    }


async def handle_forget(node: ClusterNode, request: Request) -> dict[str, Any]:
    """Remove a node from the cluster, and return the name of the node."""
    name = await read_node_name(request)
    if not name:
        raise InvalidCommand('Name the node: {"node": NAME}.')
    await operator_commands.forget_node(node, name)
    return {"forgotten": name}


async def handle_set_version(node: ClusterNode, request: Request) -> dict[str, Any]:
    """Finalize a cluster version, and return the finalized version."""
    wanted = await read_single_field(request, "version", None)
    if wanted is not None and (not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1):
        raise InvalidCommand('The body is {"version": N}, a whole number from 1 on, and no more.')
    return {"finalized_version": await operator_commands.set_version(node, wanted)}


_COMMANDS: Final[dict[str, Callable[[ClusterNode, Request], Awaitable[dict[str, Any]]]]] = {
    "/api/cluster/move": handle_move,
    "/api/cluster/forget": handle_forget,
    "/api/cluster/set-version": handle_set_version,
}


async def read_node_name(request: Request) -> str:
    """Return the node name in the request body, or "". Raise `InvalidCommand` if the body is invalid."""
    name = await read_single_field(request, "node", "")
    if not isinstance(name, str):
        raise InvalidCommand('The body is {"node": NAME}, and no more.')
    return name


async def read_single_field(request: Request, name: str, usual: Any) -> Any:
    """Return the only field that the body may contain, or `usual` if it is missing.

    Raise `InvalidCommand` if the body is invalid or contains other fields.
    """
    body = await body_of(request)
    try:
        found = json.loads(body) if body else {}
    except ValueError as error:
        raise InvalidCommand(f"The body is no JSON ({error}).") from error
    if not isinstance(found, dict) or found.keys() - {name}:
        raise InvalidCommand(f'The body is {{"{name}": {name.upper()}}}, and no more.')
    return found.get(name, usual)


def connection_failure_text(leader: Member, error: OSError) -> str:
    """Return the error message for a failed connection to the leader."""
    return f"Node {leader.node} leads, and {leader.http} is not reached from here ({error}). Send it again."


def shut_down(connection: http.client.HTTPConnection) -> None:
    """Shut down a connection to unblock the thread that waits for a response."""
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(SHUT_RDWR)


def request_to_forward(request: Request, body: bytes) -> ForwardedRequest:
    """Return the request to forward. The path keeps the caller's encoding."""
    scope = request.scope
    target = scope.get("raw_path") or quote(scope["path"]).encode()
    if query := scope["query_string"]:
        target += b"?" + query
    dropped = _HOP_BY_HOP | _NOT_FORWARDED_FIELDS
    fields = [(name, value) for name, value in request.headers.raw if name.decode("latin-1") not in dropped]
    return ForwardedRequest(request.method, target.decode("latin-1"), fields, body)


def send_request(connection: http.client.HTTPConnection, passed: ForwardedRequest, epoch: int) -> Response:
    """Send a request to another node, and return the response.

    Raise OSError or HTTPException if the node does not respond.
    """
    try:
        connection.putrequest(passed.method, passed.target, skip_accept_encoding=True)
        own = ((FORWARDED.encode(), str(epoch).encode()), (b"content-length", str(len(passed.body)).encode()))
        for name, value in (*passed.fields, *own):
            connection.putheader(name, value)
        connection.endheaders(passed.body)
        answer = connection.getresponse()
        content = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
        return Response(content, answer.status, kept)
    finally:
        connection.close()


def refusal_response(sentence: str) -> Response:
    """Return a response with status 503 and an error body in the format of the HTTP interface."""
    return JSONResponse(error_shape(NoLeader(sentence)), status_code=503)
