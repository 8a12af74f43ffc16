"""Long polls over HTTP, their limits, and their end when the caller disconnects.

    a request --> counted --> it waits -------------------------> answered
                    |           |  the caller disconnects ------> the wait is cancelled, no answer
                    |           |  the caller loses its right --> `Unauthorized`, `Forbidden`
                    |           |  the broker stops ------------> `BrokerStops`
                    +-- there are too many --> `TooManyPolls`

ASGI reports a disconnect only to a reader. Therefore, `HangUp` reads the connection of each poll in a
separate task. Leases of an answer that was not sent completely are released (`Handed`). `HTTP_POLLS_MAX`
reserves connections for calls that do not wait. `counts` is exported as the metric `mq_http_polls`. Cost: two
tasks for each poll, and for a poll of a user a check of its rights after each change of rights. Limitation:
if a caller disappears without closing its connection, the server detects this only at the next write to the
connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from commitlog import limits
from services.live.errors import BrokerStops, TooManyPolls
from services.live.live_broker import LiveBroker
from services.ops.requests.answers import in_parts
from services.ops.requests.callers import caller_of
from services.ops.requests.given_times import span_in
from services.ops.requests.request import Span
from tidewheel.errors import AccessRefused

Kind = Literal["receive", "check_back", "arrivals"]
"""Purposes of long polls: leases, check-backs, messages read without a lease."""
CALLER_GONE: Final = 499
"""Status logged for a request whose caller has disconnected."""

Answer = TypeVar("Answer")


class CallerGone(Exception):
    """The caller has disconnected."""


class HangUp:
    """The disconnect of a caller whose request body has been read, or the loss of the caller's right to wait.

    Call `close` after the answer.
    """

    def __init__(self, request: Request) -> None:
        self._reading = asyncio.ensure_future(_read_on(request))
        self._dismissed: asyncio.Future[AccessRefused] = asyncio.get_running_loop().create_future()
        caller = caller_of(request)
        self._unwatch = None if caller is None else caller.watch(self._dismissed.set_result)

    @property
    def has_come(self) -> bool:
        """Whether the caller has disconnected."""
        return self._reading.done()

    async def unless(self, waiting: Coroutine[Any, Any, Answer]) -> Answer:
        """Return the result of a wait.

        If the caller disconnects first, cancel the wait and raise `CallerGone`. If the caller loses its right
        first, cancel the wait and raise the corresponding `AccessRefused`.
        """
        work = asyncio.ensure_future(waiting)
        ends: set[asyncio.Future[Any]] = {work, self._reading, self._dismissed}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise self._dismissed.result() if self._dismissed.done() else CallerGone
            return work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    def close(self) -> None:
        """Stop reading the connection and watching the rights."""
        self._reading.cancel()
        if self._unwatch is not None:
            self._unwatch()


class Handed(Response):
    """An answer in JSON that reports to its handler whether it was sent completely."""

    media_type = "application/json"

    def __init__(self, parts: list[bytes], hang_up: HangUp, end: Callable[[bool], None]) -> None:
        super().__init__()
        self._parts, self._hang_up, self._end = parts, hang_up, end
        self.headers["content-length"] = str(sum(map(len, parts)))

    @classmethod
    async def of(
        cls,
        content: Mapping[str, Any],
        hang_up: HangUp,
        hold: Callable[[int], None],
        end: Callable[[bool], None],
    ) -> Handed:
        """Return an answer that closes `hang_up` after it was sent.

        The answer calls `hold` with its bytes, and then `end` with whether it was sent completely.
        """
        try:
            parts = await in_parts(content)
        except BaseException:
            end(False)
            raise
        hold(sum(map(len, parts)))
        return cls(parts, hang_up, end)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Stop at a disconnect."""
        taken = False
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for part in self._parts:
                if self._hang_up.has_come:
                    return
                await send({"type": "http.response.body", "body": part, "more_body": True})
            taken = not self._hang_up.has_come
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._hang_up.close()
            self._end(taken)


async def _read_on(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Polls:
    """The open long polls, in total, by kind and by address."""

    def __init__(self) -> None:
        self._of_address: Counter[str] = Counter()
        self.counts: dict[str, int] = dict.fromkeys(get_args(Kind), 0)
        """Open polls by kind."""

    @property
    def open_count(self) -> int:
        """The number of open polls."""
        return self._of_address.total()

    @contextmanager
    def one(self, request: Request, kind: Kind) -> Iterator[None]:
        """Count a poll while it is open. Raise `TooManyPolls` if there are too many polls."""
        host, counts = host_of(request), self._of_address
        if self.open_count >= limits.HTTP_POLLS_MAX or counts[host] >= limits.HTTP_POLLS_PER_ADDRESS_MAX:
            raise TooManyPolls(
                f"{self.open_count} long polls are open over HTTP, {counts[host]} of them from {host}; the "
                f"limits are {limits.HTTP_POLLS_MAX} and {limits.HTTP_POLLS_PER_ADDRESS_MAX}. Wait for their "
                "answers, or poll with fewer."
            )
        counts[host] += 1
        self.counts[kind] += 1
        try:
            yield
        finally:
            self.counts[kind] -= 1
            counts[host] -= 1
            if not counts[host]:
                del counts[host]


def host_of(request: Request) -> str:
    """Return the address of the caller of a request."""
    return request.client.host if request.client else ""


def client_id(request: Request, name: str) -> str:
    """Return the id of a client, which is its given name or its address.

    A user's name is used as a prefix.
    """
    caller, named = caller_of(request), f"http@{name or host_of(request)}"
    return named if caller is None else f"{caller.user}/{named}"


def check_serves(live: LiveBroker) -> None:
    """Raise `BrokerStops` or `StoreUnavailable` if an empty answer could be wrong."""
    if live.receivers.is_closed:
        raise BrokerStops("Ask again: another node leads, or it is back soon. Nothing was leased.")
    _ = live.core


def poll_seconds(wait: Span) -> float:
    """Return the duration of the wait of a poll, at most `LONG_POLL_MS`. Raise `ClientMistake`."""
    return min(span_in(wait, "wait"), limits.LONG_POLL_MS) / 1000
