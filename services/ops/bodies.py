"""Bodies of requests, bounded in time and in bytes: each by its route, and all under way together.

A request whose body is incomplete after a time-out is ended, and the bytes of all requests under way are
counted together, which bounds the memory of unfinished bodies. `bound_of` has the bound of a single body,
which `services.ops.request.body_of` enforces, also on a node that forwards the request. Cost: an addition for
each piece of a body.

The parser of JSON holds the interpreter, so no thread helps. Long texts are read in pieces
(`services.ops.long_texts`), all else in one call: it costs up to 2.7 ms for each MiB (texts of escapes and
characters of 4 bytes), and 0.02 ms for each value (a list of timers), 1 ms for each thousand that are wrong
(each is an error to pydantic).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from starlette.types import Message, Receive

from commitlog import limits
from services.ops.errors import BodyUnfinished, TooManyBodies


class Bound(NamedTuple):
    """How large the body of a request may be, and what to do about one that is larger.

    `values_max` is 0 for a body that is not JSON.
    """

    bytes_max: int
    values_max: int
    advice: str


def bound_of(method: str, path: str) -> Bound:
    """Return the bound of a route's bodies."""
    if method == "POST" and path in _OF_MESSAGES:
        advice = f"Send less at once. {_ESCAPED}"
        return Bound(limits.HTTP_MESSAGES_BYTES_MAX, limits.HTTP_TIMERS_VALUES_MAX, advice)
    if is_raw(method, path):
        return Bound(limits.HTTP_MESSAGES_BYTES_MAX, 0, _RAW_ADVICE)
    return Bound(limits.HTTP_BODY_BYTES_MAX, limits.HTTP_BODY_VALUES_MAX, "Send less at once.")


def is_raw(method: str, path: str) -> bool:
    """Return whether the bodies of a route are bytes of any kind: of a message, or CloudEvents."""
    return method == "POST" and _RAW.fullmatch(path) is not None


_RAW = re.compile(r"/api/topics/.+/messages")
_OF_MESSAGES = ("/api/messages", "/api/timers", "/api/transactions")
_RAW_ADVICE = f"A message has at most {limits.BODY_BYTES_MAX} bytes; send events in smaller batches."
_ESCAPED = "A text with many escapes is shorter in base64: give body_base64 instead of body."


class Bodies:
    """The bodies of all requests under way; `held_bytes` is what has come of them."""

    def __init__(
        self, bytes_max: int = limits.HTTP_BODIES_BYTES_MAX, ms_max: int = limits.HTTP_BODY_MS_MAX
    ) -> None:
        self.held_bytes = 0
        self._bytes_max, self._ms_max = bytes_max, ms_max

    @contextmanager
    def of_one(self, receive: Receive) -> Iterator[Receive]:
        """Yield a bounded `receive` for one request, which raises `BodyUnfinished` or `TooManyBodies`."""
        body = Body(self, receive, self._ms_max)
        try:
            yield body.receive
        finally:
            self.held_bytes -= body.held_bytes
            assert self.held_bytes >= 0, "more bytes were let go than were held"

    def take(self, count_bytes: int) -> None:
        """Count bytes in; raise `TooManyBodies`."""
        if self.held_bytes + count_bytes > self._bytes_max:
            raise TooManyBodies(f"That is {self._bytes_max} bytes. Try again, or send less at once.")
        self.held_bytes += count_bytes


class Body:
    """The body of one request: what of it is held, and until when it may come."""

    def __init__(self, bodies: Bodies, receive: Receive, ms_max: int) -> None:
        self.held_bytes = 0
        self._bodies, self._receive, self._seconds_max = bodies, receive, ms_max / 1000
        self._ends_at: float | None = None
        self._is_whole = False

    async def receive(self) -> Message:
        """Return the next piece; a hang-up behind the body may take any time."""
        if self._is_whole:
            return await self._receive()
        if self._ends_at is None:
            self._ends_at = asyncio.get_running_loop().time() + self._seconds_max
        try:
            async with asyncio.timeout_at(self._ends_at):
                message = await self._receive()
        except TimeoutError:
            raise BodyUnfinished(f"It may take {self._seconds_max:g} seconds. Send it in one go.") from None
        count_bytes = len(message.get("body", b""))
        self._bodies.take(count_bytes)
        self.held_bytes += count_bytes
        self._is_whole = not message.get("more_body", False)
        return message
