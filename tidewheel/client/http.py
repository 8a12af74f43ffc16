"""HTTP transports for threads and for asyncio.

The HTTP library is httpx2 or httpx, which have the same API. The library is imported when a client is
created.

Rules
1. A connection pool belongs to the process that opened it (which matters after a fork) and to the event loop
   that opened it. A different process or event loop opens a new pool and does not close the old pool.
2. Requests go to one address until a connection attempt fails, and then to the next address.
3. An idle connection is closed after `KEEP_SECONDS`, before the broker closes it (5 s).
4. An answer has at most `ANSWER_BYTES_MAX` bytes, and must be complete within the timeout of the request.
5. Proxies from the environment are used, except for loopback addresses.
6. In an event loop, requests beyond `CONNECTIONS_MAX` wait in this module. The library would scan all
   connections for each of its waiting requests whenever a request begins or ends.

Cost: the overhead of the library. Limitation: a hostile server can send an answer of `ANSWER_BYTES_MAX`
bytes. A server that sends the response header byte by byte can exceed the timeout of rule 4, up to the
library's limit for a header.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import ssl
import time
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidewheel.client.address import WITHOUT_PROXY
from tidewheel.client.exchange import Answer, Failure, Fault, Pause, Reply, Request, Steps
from tidewheel.errors import ConfigurationError, LibraryMissing

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidewheel.client.address import Broker

T = TypeVar("T")

LIBRARIES: Final = ("httpx2", "httpx")
CONNECT_SECONDS: Final = 5.0
KEEP_SECONDS: Final = 3.0
TIMEOUT_SECONDS_MAX: Final = 86_400
CONNECTIONS_MAX: Final = 100
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Enough for 8 MiB of bodies with every character escaped, plus the other fields."""


def library() -> Any:
    """Return httpx2 or httpx. Raises `LibraryMissing` if neither is installed."""
    for name in LIBRARIES:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:  # a namespace package has no origin
            return importlib.import_module(name)
    raise LibraryMissing("httpx (or httpx2) is missing, install it with: pip install httpx")


def arguments_of(httpx: Any, broker: Broker) -> dict[str, Any]:
    """Return the constructor arguments of the library's clients."""
    authorization = {"Authorization": f"Bearer {broker.token}"} if broker.token else {}
    return {
        "headers": {"User-Agent": "tidewheel", **authorization},
        "verify": broker.tls() if broker.is_tls else False,
        "limits": httpx.Limits(max_connections=CONNECTIONS_MAX, keepalive_expiry=KEEP_SECONDS),
        "trust_env": len(broker.direct_urls) < len(broker.urls),  # use the proxies from the environment
        "mounts": dict.fromkeys(broker.direct_urls),  # no proxy for these URLs
    }


def opened(kind: Callable[..., Any], httpx: Any, broker: Broker) -> Any:
    """Open a connection pool. Raises `ConfigurationError` if a proxy from the environment cannot be used."""
    arguments = arguments_of(httpx, broker)
    try:
        return kind(**arguments)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        reason = str(error).rstrip(".")
        raise ConfigurationError(
            f"A proxy of the environment (http_proxy, https_proxy, all_proxy) cannot be used: {reason}. "
            f"{WITHOUT_PROXY.capitalize()}."
        ) from error


def failure_of(httpx: Any, error: Exception, where: str, begun_s: float) -> Failure:
    """Return an exception of the library as a `Failure`."""
    ended_s = time.monotonic()
    reason = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError):
        return Failure(Fault.UNTAKEN, _with_trust(error, reason), where, begun_s, ended_s)
    if isinstance(error, httpx.PoolTimeout):
        return crowded(where, begun_s)
    if isinstance(error, httpx.ConnectTimeout):
        return Failure(
            Fault.UNTAKEN, f"no connection within {CONNECT_SECONDS:.0f} s", where, begun_s, ended_s
        )
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return Failure(Fault.UNTAKEN, reason, where, begun_s, ended_s)
    fault = Fault.LATE if isinstance(error, httpx.TimeoutException) else Fault.CUT
    return Failure(fault, reason, where, begun_s, ended_s)


def crowded(where: str, begun_s: float) -> Failure:
    """Return the failure for a request that got no free connection."""
    ended_s = time.monotonic()
    reason = f"all {CONNECTIONS_MAX} connections of this client were in use for {ended_s - begun_s:.0f} s"
    return Failure(Fault.CROWDED, reason, where, begun_s, ended_s)


def _with_trust(error: BaseException | None, reason: str) -> str:
    """Return the reason for a failed connection. TLS errors include a remedy."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not trusted: {error.verify_message}; if it is your broker's, set "
                "TIDEWHEEL_HTTP_CA to certificate.pem in the folder tls of its store"
            )
        if isinstance(error, ssl.SSLError):
            return f"{reason}: perhaps it speaks http://, not https://"
        error = error.__cause__ or error.__context__
    return reason


class Incoming:
    """An answer that arrives in pieces."""

    def __init__(self, where: str, begun_s: float, seconds: float) -> None:
        self._where, self._begun_s, self._ends_s = where, begun_s, begun_s + seconds
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    def add(self, piece: bytes) -> Failure | None:
        """Add a piece. Returns a failure if the answer is too long or too late."""
        self._pieces.append(piece)
        self._size_bytes += len(piece)
        now_s = time.monotonic()
        if self._size_bytes > ANSWER_BYTES_MAX:
            reason = f"its answer has more than {ANSWER_BYTES_MAX} bytes"
            return Failure(Fault.CUT, reason, self._where, self._begun_s, now_s)
        if now_s > self._ends_s:
            return Failure(Fault.LATE, "the answer did not end", self._where, self._begun_s, now_s)
        return None

    def whole(self, status: int) -> Answer:
        """Return the complete answer."""
        return Answer(status, b"".join(self._pieces), self._where, self._begun_s, time.monotonic())


class Line:
    """State of a transport: the current broker address and the request parameters."""

    def __init__(self, broker: Broker, timeout_s: float) -> None:
        """Create the state. Raises `ConfigurationError` if the timeout is out of range."""
        is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if not (is_number and 0 < timeout_s <= TIMEOUT_SECONDS_MAX):
            raise ConfigurationError(
                f"timeout is {timeout_s!r:.80}: give seconds, more than 0 and at most {TIMEOUT_SECONDS_MAX}."
            )
        self.broker, self.timeout_s = broker, timeout_s
        self._turn = 0

    @property
    def where(self) -> str:
        """The address that requests are sent to."""
        return self.broker.urls[self._turn % len(self.broker.urls)]

    def turn(self, reply: Reply, where: str) -> Reply:
        """Switch to the next address if the connection to `where` failed, and return the reply."""
        if not isinstance(reply, Failure) or reply.fault is not Fault.UNTAKEN:
            return reply
        if where == self.where:
            self._turn += 1
        proxy = self.broker.proxy_of(where)
        return reply if proxy is None else replace(reply, reason=f"{reply.reason}, by {proxy.shown}")

    def seconds(self, request: Request) -> float:
        """Return the time limit for an answer in seconds."""
        return self.timeout_s + request.wait_s

    def arguments(self, httpx: Any, request: Request, where: str) -> dict[str, Any]:
        """Return a request as arguments of the library."""
        seconds = self.seconds(request)
        return {
            "method": request.method,
            "url": f"{where}{request.path}",
            "content": request.body,
            "headers": {} if request.body is None else {"Content-Type": "application/json"},
            "timeout": httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds)),
        }


class ThreadShell:
    """Transport that runs operations in the calling thread. It can be shared between threads."""

    def __init__(self, broker: Broker, timeout_s: float) -> None:
        self._httpx, self._line = library(), Line(broker, timeout_s)
        self._pool: Any = None
        self._process = 0

    def run(self, steps: Steps[T]) -> T:
        """Run an operation and return its value."""
        reply: Reply | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                value: T = end.value
                return value
            reply = None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                reply = self._ask(step)

    def close(self) -> None:
        """Close the connections. A later request opens new connections."""
        pool, self._pool = self._pool, None
        if pool is not None and self._process == os.getpid():
            pool.close()

    def _ask(self, request: Request) -> Reply:
        where, begun_s = self._line.where, time.monotonic()
        try:
            reply = self._answer(request, where, begun_s)
        except (self._httpx.HTTPError, self._httpx.InvalidURL, self._httpx.StreamError) as error:
            reply = failure_of(self._httpx, error, where, begun_s)
        return self._line.turn(reply, where)

    def _answer(self, request: Request, where: str, begun_s: float) -> Reply:
        incoming = Incoming(where, begun_s, self._line.seconds(request))
        with self._connections().stream(**self._line.arguments(self._httpx, request, where)) as answer:
            for piece in answer.iter_bytes():
                if failure := incoming.add(piece):
                    return failure
            return incoming.whole(answer.status_code)

    def _connections(self) -> Any:
        if self._pool is None or self._process != os.getpid():
            self._process = os.getpid()
            self._pool = opened(self._httpx.Client, self._httpx, self._line.broker)
        return self._pool


class LoopShell:
    """Transport that runs operations in an event loop."""

    def __init__(self, broker: Broker, timeout_s: float) -> None:
        self._httpx, self._line = library(), Line(broker, timeout_s)
        self._pool: Any = None
        self._free = asyncio.Semaphore(CONNECTIONS_MAX)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, steps: Steps[T]) -> T:
        """Run an operation and return its value."""
        reply: Reply | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                value: T = end.value
                return value
            reply = None
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                reply = await self._ask(step)

    async def close(self) -> None:
        """Close the connections. A later request opens new connections."""
        pool, self._pool = self._pool, None
        if pool is not None and self._loop is asyncio.get_running_loop():
            await pool.aclose()

    async def wait_for_room(self) -> None:
        """Wait until a connection is free for one more request. Requests are served in order of arrival."""
        async with self._room():
            pass

    async def _ask(self, request: Request) -> Reply:
        begun_s, free = time.monotonic(), self._room()
        try:
            async with asyncio.timeout(self._line.seconds(request)):
                await free.acquire()
        except TimeoutError:
            return crowded(self._line.where, begun_s)
        try:
            return await self._tried(request)
        finally:
            free.release()

    async def _tried(self, request: Request) -> Reply:
        where, begun_s = self._line.where, time.monotonic()
        try:
            reply = await self._answer(request, where, begun_s)
        except (self._httpx.HTTPError, self._httpx.InvalidURL, self._httpx.StreamError) as error:
            reply = failure_of(self._httpx, error, where, begun_s)
        return self._line.turn(reply, where)

    async def _answer(self, request: Request, where: str, begun_s: float) -> Reply:
        incoming = Incoming(where, begun_s, self._line.seconds(request))
        sent = self._connections().stream(**self._line.arguments(self._httpx, request, where))
        async with sent as answer:
            async for piece in answer.aiter_bytes():
                if failure := incoming.add(piece):
                    return failure
            return incoming.whole(answer.status_code)

    def _room(self) -> asyncio.Semaphore:
        """Return the semaphore that limits the concurrent requests of the current event loop."""
        if self._loop is not asyncio.get_running_loop():
            self._loop, self._pool = asyncio.get_running_loop(), None
            self._free = asyncio.Semaphore(CONNECTIONS_MAX)
        return self._free

    def _connections(self) -> Any:
        if self._pool is None:
            self._pool = opened(self._httpx.AsyncClient, self._httpx, self._line.broker)
        return self._pool
