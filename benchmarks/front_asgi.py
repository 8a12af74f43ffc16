"""The broker's table of RPCs as an ASGI application, for servers that do HTTP/2 and trailers themselves.

The answer to a request is one body, a receive of 32 as well: what ASGI sends is a message each time. A client
that goes away is `http.disconnect`; only what may wait long looks out for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import quote

from front_grpc import (
    HEADERS,
    INTERNAL,
    OK,
    UNIMPLEMENTED,
    BadCall,
    Frames,
    Route,
    caller_of,
)

from services.rpc.caller import Caller

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

START: Final = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/grpc")],
    "trailers": True,
}

LEAVING: Final[set[asyncio.Future[None]]] = set()
"""A loop holds its tasks weakly."""


class Application:
    """Answers calls; `routes` and `host_of` are set when the broker serves."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.host_of: Callable[[str], str] = lambda peer: peer.partition(":")[2].rpartition(":")[0]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        if scope["type"] == "lifespan":
            await alive(receive, send)
            return
        route = self.routes.get(scope["path"])
        try:
            if route is None:
                raise BadCall(UNIMPLEMENTED, "There is no such RPC here.")
            await send(START)
            await self._answer(route, self._caller(scope), receive, send)
        except BadCall as error:
            if route is None:
                await send(START)
            await finish(send, b"", error.status, str(error))

    async def _answer(self, route: Route, caller: Caller, receive: Receive, send: Send) -> None:
        if route.is_unary:
            await finish(send, await route.answer(await only_message(receive), caller))
        elif route.is_both_ways:
            await both_ways(route, caller, receive, send)
        else:
            await streamed(route, caller, receive, send)

    def _caller(self, scope: Scope) -> Caller:
        headers = {
            text: value.decode("latin-1")
            for name, value in scope["headers"]
            if (text := name.decode()) in HEADERS
        }
        host, port = scope.get("client") or ("127.0.0.1", 0)
        return caller_of(headers, self.host_of(f"ipv4:{host}:{port}"))


async def alive(receive: Receive, send: Send) -> None:
    """Let the server start and stop."""
    while True:
        asked = (await receive())["type"]
        await send({"type": f"{asked}.complete"})
        if asked == "lifespan.shutdown":
            return


async def only_message(receive: Receive) -> bytes:
    """Return the message of a request that has one; raises `BadCall`."""
    frames, messages = Frames(), []
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise asyncio.CancelledError
        messages += frames.feed(event.get("body", b""))
        if not event.get("more_body"):
            break
    if len(messages) != 1:
        raise BadCall(INTERNAL, "The request is not one message.")
    return messages[0]


async def streamed(route: Route, caller: Caller, receive: Receive, send: Send) -> None:
    """Answer with all replies at once, unless the client goes away before."""
    message = await only_message(receive)

    async def joined() -> bytes:
        return b"".join([reply async for reply in route.answers(message, caller)])

    answering = asyncio.ensure_future(joined())
    leaving = asyncio.ensure_future(
        left(receive)
    )  # ends with the call; pyvoy cannot bear that it is cancelled
    LEAVING.add(leaving)
    leaving.add_done_callback(LEAVING.discard)
    try:
        await asyncio.wait([answering, leaving], return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            await finish(send, answering.result())
    finally:
        answering.cancel()


async def left(receive: Receive) -> None:
    """Return when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def both_ways(route: Route, caller: Caller, receive: Receive, send: Send) -> None:
    """Answer a stream with a stream."""
    async for reply in route.answers(coming(receive), caller):
        await send({"type": "http.response.body", "body": reply, "more_body": True})
    await finish(send, b"")


async def coming(receive: Receive) -> AsyncIterator[bytes]:
    """Yield a client's messages until it ends its stream or goes away."""
    frames = Frames()
    while (event := await receive())["type"] == "http.request":
        for message in frames.feed(event.get("body", b"")):
            yield message
        if not event.get("more_body"):
            return


async def finish(send: Send, body: bytes, status: int = OK, why: str = "") -> None:
    """Send the last of an answer, and how the call went."""
    said = [(b"grpc-message", quote(why).encode())] if why else []
    await send({"type": "http.response.body", "body": body, "more_body": False})
    headers = [(b"grpc-status", b"%d" % status), *said]
    await send({"type": "http.response.trailers", "headers": headers, "more_trailers": False})
