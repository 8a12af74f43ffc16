"""A uvicorn server in the event loop of the broker, without uvicorn's signal handlers.

uvicorn has no time limit for a request head or for the reading of an answer, and no limit on the number of
connections. Therefore, this server closes a connection without a current request if no complete head arrives
within `HTTP_HEAD_MS_MAX` after its first byte or after the connect. The server also closes a connection whose
client reads no part of an answer for `UNREAD_MS_MAX`. The number of connections is limited in total and for
each address.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from commitlog import limits
from services.live.errors import ResultUnknown
from services.ops.requests.statuses import error_shape
from tidewheel.errors import ClientMistake

GRACE_SECONDS = 1
HEAD_BYTES_MAX = 64 * 1024
_TOO_LONG = "Receive buffer too long"
"""The message of h11's error for a longer head."""
HEADERS = [("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY")]
"""What every answer says to browsers: it is what it says it is, and nobody's frame."""
TOO_MANY_TEXT = b"The server has its maximum number of connections. Close some of them, or try again.\n"
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(TOO_MANY_TEXT), TOO_MANY_TEXT)
)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits on connections."""

    head_ms_max: int = limits.HTTP_HEAD_MS_MAX
    connections_max: int = limits.HTTP_CONNECTIONS_MAX
    connections_per_address_max: int = limits.HTTP_CONNECTIONS_PER_ADDRESS_MAX
    unread_ms_max: int = limits.UNREAD_MS_MAX


class HttpServer(uvicorn.Server):
    """A server for sockets that are already listening. Set `should_exit` to stop the server."""

    def __init__(
        self, app: ASGIApp, tls: ssl.SSLContext | None = None, bounds: HttpLimits | None = None
    ) -> None:
        self._bounds = bounds or HttpLimits()
        self._addresses: Counter[str] = Counter()
        config = uvicorn.Config(
            Answered(app),
            http=self._protocol,  # type: ignore[arg-type]  # uvicorn accepts any protocol factory
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            headers=HEADERS,
            timeout_graceful_shutdown=GRACE_SECONDS,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        config.load()
        config.ssl = tls
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not handle signals, because the composition root handles them."""
        yield

    def _protocol(self, *given: Any, **named: Any) -> HttpConnection:
        return HttpConnection(self._bounds, self._addresses, *given, **named)


class Answered:
    """An application whose requests are answered in JSON, even if they are cancelled by a stop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Answer a cancelled request with `ResultUnknown`, unless its answer has begun.

        A request whose connection closes before the end of the body is aborted without an answer.
        """
        has_begun = False

        async def begin(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, begin)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            if has_begun:
                raise
            error = ResultUnknown("The broker stops. Send the request again, if that is safe; or look first.")
            await JSONResponse(error_shape(error), status_code=503)(scope, receive, send)


class HttpConnection(H11Protocol):
    """A connection, which is closed if its request head does not arrive or its answer is not read in time."""

    def __init__(self, bounds: HttpLimits, addresses: Counter[str], *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._bounds, self._addresses = bounds, addresses
        self._host: str | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    # uvicorn's protocol accepts only a TCP transport, but asyncio's accepts any transport.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, unless there are too many connections."""
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        count, of_address = self._addresses.total(), self._addresses[host]
        if count >= self._bounds.connections_max or of_address >= self._bounds.connections_per_address_max:
            transport.write(TOO_MANY)
            transport.close()
            return
        self._host = host
        self._addresses[host] += 1
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Process received bytes, and record whether a request is being answered."""
        if self._host is None:
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._head_timer is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the count."""
        self._stop_waiting()
        self._stop_unread_timer()
        if self._host is not None:
            self._addresses[self._host] -= 1
            if not self._addresses[self._host]:
                del self._addresses[self._host]
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not an HTTP/1.1 request. The reason is the current exception of the parser."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # the answer has begun, so it cannot contain the error
            return
        reason = str(sys.exc_info()[1] or msg)
        if reason == _TOO_LONG:
            reason = f"its head is too long, the limit is {HEAD_BYTES_MAX} bytes"
        error = ClientMistake(f"It is no request of HTTP/1.1: {reason}.")
        body = json.dumps(error_shape(error)).encode()
        length = str(len(body)).encode()
        fields = [
            (b"content-type", b"application/json"),
            (b"content-length", length),
            (b"connection", b"close"),
        ]
        head = h11.Response(status_code=400, headers=fields, reason=b"Bad Request")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore a request to upgrade to another protocol, without a warning."""

    def pause_writing(self) -> None:
        """Start the time limit for the client to read the answer."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self._bounds.unread_ms_max / 1000, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the time limit, because the client has read data."""
        self._stop_unread_timer()
        super().resume_writing()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._bounds.head_ms_max / 1000, self._hang_up)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _hang_up(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
