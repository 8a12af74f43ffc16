"""Long polls over HTTP: how many are open, and what becomes of one whose caller hangs up.

    a request --> counted --> it waits ----------------------> answered
                    |           |  its caller hangs up ------> the wait is cancelled, nothing is answered
                    |           |  the broker stops ---------> `BrokerStops`
                    +-- there are too many --> `TooManyPolls`

A handler is not told when its caller hangs up: `HangUp` reads the connection in a task of its own for each
poll. What an answer gives away is given back if it was not taken (`Handed`). `HTTP_POLLS_MAX` leaves
connections to calls that do not wait; `counts` is the metric `mq_http_polls`. Cost: two tasks a poll. Weak
spot: a caller that vanishes without closing its connection is noticed at the next write to it.
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
from services.ops.answers import in_parts
from services.ops.given_times import span_in
from services.ops.request import Moment

Kind = Literal["receive", "check_back", "arrivals"]
"""What a long poll waits for: messages to lease, questions about transactions, messages to look at."""
NOBODY_READS: Final = 499
"""The status of an answer whose caller has gone."""

Answer = TypeVar("Answer")


class CallerGone(Exception):
    """Nobody waits for the answer any more."""


class HangUp:
    """Whether the caller of a request, whose body has been read, has hung up; `close` it in the end."""

    def __init__(self, request: Request) -> None:
        self._reading = asyncio.ensure_future(_read_on(request))

    @property
    def has_come(self) -> bool:
        """Whether the caller has hung up."""
        return self._reading.done()

    async def unless(self, waiting: Coroutine[Any, Any, Answer]) -> Answer:
        """Return the result of a wait; raise `CallerGone` if the caller hangs up before, which cancels it."""
        work = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait({work, self._reading}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise CallerGone
            return work.result()
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    def close(self) -> None:
        """Look no more."""
        self._reading.cancel()


class Handed(Response):
    """An answer in JSON whose handler learns in the end whether its caller took all of it."""

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
        """Return an answer. `hold` is told its bytes, `end` whether it was taken; it closes `hang_up`."""
        try:
            parts = await in_parts(content)
        except BaseException:
            end(False)
            raise
        hold(sum(map(len, parts)))
        return cls(parts, hang_up, end)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, as far as the caller is there."""
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
    """The long polls that are open, together, by kind and by address."""

    def __init__(self) -> None:
        self._of_address: Counter[str] = Counter()
        self.counts: dict[str, int] = dict.fromkeys(get_args(Kind), 0)
        """How many of each kind are open."""

    @property
    def open_count(self) -> int:
        """How many are open."""
        return self._of_address.total()

    @contextmanager
    def one(self, request: Request, kind: Kind) -> Iterator[None]:
        """Count a poll; raise `TooManyPolls`."""
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
    """Return the address of a request's caller."""
    return request.client.host if request.client else ""


def client_id(request: Request, name: str) -> str:
    """Return the id of a client that gives itself a name, or else has its address for one."""
    return f"http@{name or host_of(request)}"


def check_serves(live: LiveBroker) -> None:
    """Raise `BrokerStops` or `StoreUnwell` where that nothing has come may be untrue."""
    if live.receivers.is_closed:
        raise BrokerStops("Ask again: another node leads, or it is back soon. You were given nothing.")
    _ = live.core


def poll_seconds(wait: Moment) -> float:
    """Return how long a poll waits: a span, cut to `LONG_POLL_MS`; raise `ClientMistake`."""
    return min(span_in(wait, "wait"), limits.LONG_POLL_MS) / 1000
