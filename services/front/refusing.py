"""Refuses gRPC clients with an error status in the response to the first call.

A GOAWAY frame alone is insufficient, because a gRPC client treats GOAWAY as a server shutdown and retries the
call on a new connection. A status such as `RESOURCE_EXHAUSTED` ends the call, and the client reports the
status message.
"""

from __future__ import annotations

import asyncio
from typing import cast

from services.front.answers import ClientRefusal
from services.front.grpc_wire import refusal
from services.front.http2 import ConnectionLimits, HeadersTooLong, Http2Connection, RequestReceived
from services.front.http2_frames import Code

BOUNDS = ConnectionLimits(
    streams=8, stream_window_bytes=65_535, connection_window_bytes=65_535, idle_frames=100
)


class RefusalConnection(asyncio.Protocol):
    """A connection on which the server refuses the first call and then closes the connection.

    An instance must be created in the event loop.
    """

    def __init__(self, reason: ClientRefusal) -> None:
        self._reason = reason
        loop = asyncio.get_running_loop()
        self._loop, self._http2 = loop, Http2Connection(BOUNDS, {}, loop.time())
        self.closed: asyncio.Future[None] = loop.create_future()
        """Future that completes when the connection is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the server preface, for which a client waits before its first call."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._http2.take_output())

    def data_received(self, data: bytes) -> None:
        """Refuse the first call, and close the connection."""
        for event in self._http2.receive(data, self._loop.time()):
            if isinstance(event, (RequestReceived, HeadersTooLong)):
                text = self._reason.text
                self._http2.end_response(event.stream_id, refusal(self._reason.grpc_status, text))
                self._http2.end_with_reason(Code.ENHANCE_YOUR_CALM, text)
                break
        self._transport.write(self._http2.take_output())
        if self._http2.is_closed:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Complete the future `closed`."""
        if not self.closed.done():
            self.closed.set_result(None)
