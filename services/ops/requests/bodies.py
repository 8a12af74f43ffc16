"""Limits on the time and the size of request bodies, for each route and for all incomplete requests together.

A request whose body is incomplete after a time-out is aborted. The bytes of all incomplete requests are
counted together, which limits the memory for these bodies. `bound_of` returns the limit of a single body,
which `services.ops.requests.request.body_of` enforces, also on a node that forwards the request. Cost: an
addition for each piece of a body.

The JSON parser holds the interpreter lock, so a thread would not help. Long texts are read in pieces
(`services.ops.requests.long_texts`), and the rest of a body is parsed in a single call. This call takes up to
2.7 ms for each MiB (texts with escapes and characters of 4 bytes) and 0.02 ms for each value (a list of
timers). In addition, the call takes 1 ms for each thousand invalid values, because each is an error of
pydantic.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from starlette.types import Message, Receive

from commitlog import limits
from services.ops.requests.errors import BodyUnfinished, TooManyBodies


class Bound(NamedTuple):
    """The maximum size of the body of a request, and the handling of a larger body.

    `values_max` is 0 for a body that is not JSON.
    """

    bytes_max: int
    values_max: int
    advice: str


def bound_of(method: str, path: str) -> Bound:
    """Return the limit for the bodies of a route."""
    if method == "POST" and path in _OF_MESSAGES:
        advice = f"Send less at once. {_ESCAPED}"
        return Bound(limits.HTTP_MESSAGES_BYTES_MAX, limits.HTTP_TIMERS_VALUES_MAX, advice)
    if is_raw(method, path):
        return Bound(limits.HTTP_MESSAGES_BYTES_MAX, 0, _RAW_ADVICE)
    return Bound(limits.HTTP_BODY_BYTES_MAX, limits.HTTP_BODY_VALUES_MAX, "Send less at once.")


def is_raw(method: str, path: str) -> bool:
    """Return whether the bodies of a route are arbitrary bytes of a message, or CloudEvents."""
    return method == "POST" and _RAW.fullmatch(path) is not None


_RAW = re.compile(r"/api/topics/.+/messages")
_OF_MESSAGES = ("/api/messages", "/api/timers", "/api/transactions")
_RAW_ADVICE = f"A message has at most {limits.BODY_BYTES_MAX} bytes; send events in smaller batches."
_ESCAPED = "A text with many escapes is shorter in base64: give body_base64 instead of body."


class Bodies:
    """The bodies of all incomplete requests.

    `held_bytes` is the number of bytes received for these bodies.
    """

    def __init__(
        self, bytes_max: int = limits.HTTP_BODIES_BYTES_MAX, ms_max: int = limits.HTTP_BODY_MS_MAX
    ) -> None:
        self.held_bytes = 0
        self._bytes_max, self._ms_max = bytes_max, ms_max

    @contextmanager
    def of_one(self, receive: Receive) -> Iterator[Receive]:
        """Yield a limited `receive` for a request, which raises `BodyUnfinished` or `TooManyBodies`."""
        body = Body(self, receive, self._ms_max)
        try:
            yield body.receive
        finally:
            self.held_bytes -= body.held_bytes
            assert self.held_bytes >= 0, "more bytes were let go than were held"

    def take(self, count_bytes: int) -> None:
        """Add received bytes to the count. Raise `TooManyBodies` if the count exceeds the limit."""
        if self.held_bytes + count_bytes > self._bytes_max:
            raise TooManyBodies(f"That is {self._bytes_max} bytes. Try again, or send less at once.")
        self.held_bytes += count_bytes


class Body:
    """The body of a single request, with the number of bytes received and the deadline."""

    def __init__(self, bodies: Bodies, receive: Receive, ms_max: int) -> None:
        self.held_bytes = 0
        self._bodies, self._receive, self._seconds_max = bodies, receive, ms_max / 1000
        self._ends_at: float | None = None
        self._is_whole = False

    async def receive(self) -> Message:
        """Return the next piece. A disconnect after the end of the body has no deadline."""
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
