"""Bodies of requests, bounded in time and, all under way together, in bytes.

A body that has not come to its end in time ends its request, and what the requests under way have sent is
counted together: nobody fills the memory with bodies that are begun and never ended. The bound of a single
body is where it is read (`services.ops.request.body_of`). Cost: an addition for each piece that comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Message, Receive

from commitlog import limits
from services.ops.errors import BodyUnfinished, TooManyBodies


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
