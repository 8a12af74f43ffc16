"""One client's connection: what its socket says goes to the calls' core, and what that says to the socket.

    socket --bytes--> GrpcCalls --events--> Service --answers--> GrpcCalls --bytes--> socket

All that a turn of the loop has to say to a client leaves in one write (`Writes`). While the socket takes no
more, DATA waits in the core, whose bounds hold then as they do for windows.

A call that a task serves (`start`) is cancelled when its caller has gone. What a task says of a stream of
messages it may go on with when the message before has passed flow control: so `passed` returning is what
"handed over" means.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, Protocol, cast

import structlog

from services.front.grpc_calls import Began, Called, Gone, GrpcCalls, Method, Parts, Said, Silent
from services.front.grpc_wire import Status
from services.front.header_fields import Field
from services.front.http2 import Bounds, Ended, Passed
from services.front.http2_frames import Code

log = structlog.get_logger()

PING_SECONDS: Final = 30.0
PONG_SECONDS: Final = 10.0
"""When a client that says nothing is asked whether it is there, and how long it has to answer."""
LOOK_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 2.0
"""How long a client may take to read why its connection is over."""
DEAD: Final = "no answer to a ping"


class Service(Protocol):
    """Who answers calls."""

    def method_of(self, path: str) -> Method | None:
        """Return what a path means; None if nothing."""

    def called(self, connection: Connection, call: Called) -> None:
        """Answer a call, now or later."""

    def began(self, connection: Connection, call: Began) -> None:
        """Answer a call whose request is a stream."""


class Writes:
    """The connections that have something to say at the end of this turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Connection] = []

    def add(self, connection: Connection) -> None:
        """Have a connection write at the end of this turn."""
        if not self._waiting:
            self._loop.call_soon(self._write)
        self._waiting.append(connection)

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.write()


class Shared:
    """What all connections of a server share."""

    def __init__(self, service: Service, bounds: Bounds | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.service, self.bounds = service, bounds or Bounds()
        self.writes = Writes(self.loop)
        self.fields: dict[bytes, Field] = {}
        self.parts = Parts()
        self.connections: set[Connection] = set()


class Answering:
    """A call that a task serves."""

    __slots__ = ("inbox", "passed", "said", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.passed: asyncio.Future[None] | None = None
        """Awaited until what was said has passed flow control."""
        self.inbox: deque[Said | None] = deque()
        """Messages of its request; None behind the last."""
        self.said: asyncio.Future[None] | None = None
        """Awaited until there is something in it."""

    def put(self, said: Said | None) -> None:
        """More of the request has come."""
        self.inbox.append(said)
        if self.said is not None and not self.said.done():
            self.said.set_result(None)


class Connection(asyncio.Protocol):
    """A connection that speaks HTTP/2 from its first byte on."""

    def __init__(
        self,
        shared: Shared,
        host: str,
        lost: Callable[[Connection, str, str], None],
        *,
        is_encrypted: bool = False,
    ) -> None:
        self._shared, self._lost = shared, lost
        self.host, self.is_encrypted = host, is_encrypted
        self.is_let_in = False
        """Whether a call was answered otherwise than that nobody knows its caller."""
        self.is_stranger = self.is_listed = False
        """Whether it counts as one on which nobody was let in; and whether it is known why it ends."""
        self.protocol = ""
        """What the two have agreed upon in a handshake of TLS."""
        self.callers: dict[int, tuple[dict[str, str], Any]] = {}
        """What the service has made of header fields, by their identity."""
        self.calls = GrpcCalls(
            shared.service.method_of, shared.bounds, shared.fields, shared.parts, shared.loop.time()
        )
        self._answering: dict[int, Answering] = {}
        self._is_dirty = False
        self._why = "", ""
        """Why it ends otherwise than its client wanted: one of few reasons, and a sentence."""
        self._look: asyncio.TimerHandle | None = None
        self.heard_at = shared.loop.time()

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the client."""
        self.transport = cast(asyncio.Transport, transport)
        if (sealed := transport.get_extra_info("ssl_object")) is not None:
            self.protocol = sealed.selected_alpn_protocol() or ""
        self._shared.connections.add(self)
        self.stir()
        self._look = self._shared.loop.call_later(LOOK_SECONDS, self._look_after)

    def data_received(self, data: bytes) -> None:
        """Take in what the client says."""
        self.heard_at = now = self._shared.loop.time()
        self._take(self.calls.receive(data, now))
        if not self._is_dirty:
            self.stir()

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self.calls.http2.is_full = True

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._take(self.calls.resume())
        self.stir()

    def eof_received(self) -> bool:
        """The client says no more: what is under way is broken off."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End all that is under way."""
        if self._look is not None:
            self._look.cancel()
        self._shared.connections.discard(self)
        for answering in list(self._answering.values()):
            self._cancel(answering)
        self.calls.drop()
        if isinstance(error, ssl.SSLError):
            self._why = why_broken(error), str(error)
        self._lost(self, *self._why)

    def stir(self) -> None:
        """Have what the core has to say written at the end of this turn."""
        if not self._is_dirty:
            self._is_dirty = True
            self._shared.writes.add(self)

    def write(self) -> None:
        """Write what the core has to say."""
        self._is_dirty = False
        if self.transport.is_closing():
            return
        self._take(self.calls.events())
        if out := self.calls.http2.take():
            self.transport.write(out)
        while self.calls.http2.has_more:
            self._take(self.calls.resume())
            self.transport.write(self.calls.http2.take())
        if self.calls.http2.is_over:
            self.transport.close()
            self._shared.loop.call_later(CLOSE_SECONDS, self.transport.abort)  # unless it is read until then

    def leave(self) -> None:
        """Tell the client that the server leaves; calls under way go on."""
        self.calls.http2.leave()
        self.stir()

    def _look_after(self) -> None:
        """Find out whether the client is there."""
        self._look = self._shared.loop.call_later(LOOK_SECONDS, self._look_after)
        if not self.calls.http2.look(self._shared.loop.time(), PING_SECONDS, PONG_SECONDS):
            self._why = DEAD, ""
            self.transport.abort()
            return
        self.stir()

    # Calls.

    def _take(self, events: list[Any]) -> None:
        for event in events:
            match event:
                case Called():
                    self._shared.service.called(self, event)
                case Began():
                    self._answering[event.stream_id] = Answering()
                    self._shared.service.began(self, event)
                case Said(stream_id) | Silent(stream_id):
                    if (answering := self._answering.get(stream_id)) is not None:
                        answering.put(event if isinstance(event, Said) else None)
                case Gone(stream_id):
                    if (answering := self._answering.pop(stream_id, None)) is not None:
                        self._cancel(answering)
                case Passed(stream_id):
                    if (answering := self._answering.get(stream_id)) is not None:
                        _release(answering.passed)
                case Ended(code, why):
                    if code is not Code.NO_ERROR:
                        self._why = f"HTTP/2: {code.name.lower().replace('_', ' ')}", why
                    self.stir()

    def reply(self, stream_id: int, message: bytes) -> None:
        """Answer a call with one message."""
        self.calls.reply(stream_id, message)
        if not self._is_dirty:
            self.stir()

    def end(self, stream_id: int, status: Status = Status.OK, text: str = "") -> None:
        """End a call."""
        self.calls.end(stream_id, status, text)
        self.stir()

    async def say(self, stream_id: int, message: bytes) -> None:
        """Say a message of an answer; returns when all of it has passed flow control."""
        self.calls.say(stream_id, message)
        self.stir()
        if not self.calls.http2.passed(stream_id):
            answering = self._answering[stream_id]
            answering.passed = self._shared.loop.create_future()
            await answering.passed

    async def messages(self, stream_id: int) -> AsyncIterator[bytes]:
        """Yield the messages of a request, until it ends or its caller has gone."""
        answering = self._answering.get(stream_id)
        while answering is not None:
            while answering.inbox:
                said = answering.inbox.popleft()
                if said is None:
                    return
                self.calls.heard(stream_id, said.body_bytes)
                self.stir()
                yield said.message
            answering.said = self._shared.loop.create_future()
            await answering.said

    def start(self, stream_id: int, serving: Coroutine[Any, Any, None]) -> None:
        """Serve a call by a task, which is cancelled if its caller goes."""
        answering = self._answering.get(stream_id)
        if answering is None:
            answering = self._answering[stream_id] = Answering()
        answering.task = self._shared.loop.create_task(serving)
        answering.task.add_done_callback(lambda task: self._ended(stream_id, task))

    def _ended(self, stream_id: int, task: asyncio.Task[None]) -> None:
        if (answering := self._answering.pop(stream_id, None)) is not None:
            answering.put(None)  # somebody else may still read what is asked
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("bug while answering", exc_info=error)
            self.calls.abort(stream_id)
            self.stir()

    def _cancel(self, answering: Answering) -> None:
        answering.put(None)
        if answering.task is not None:
            answering.task.cancel()


def why_broken(error: ssl.SSLError) -> str:
    """Why TLS is over, in few words: an alert of the client, or what is not taken of what it says."""
    reason = (error.reason or "broken").lower().replace("_", " ")
    _, is_said, alert = reason.partition(" alert ")
    return f"TLS: the client says {alert}" if is_said else f"TLS: {reason}"


def _release(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
