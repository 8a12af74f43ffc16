"""Turns of a worker's consumers to have a long poll open: so many at once, for any number of consumers.

    consumer with a free slot --> waits for a turn --> polls until it is over --> the next consumer's turn
                              --> where there are turns for all, keeps its own

Rules
1. Turns are given in the order in which consumers asked for them. With more consumers than turns each lasts
   `polls_max / POLLS_PER_S` seconds, on a busy topic and on a silent one, so that none starves another.
2. Where there are turns for all, each consumer keeps its own, and a poll waits WAIT_S at the broker.
3. The polls of POLLS_PER_POOL turns share a pool of connections. The library looks at all connections of a
   pool at each request: one pool for all would cost each request as much as there are topics.

Cost: `polls_max` connections, and POLLS_PER_S requests a second while nothing comes (some 2 ms of processor
each). A message waits up to `ceil(consumers / polls_max) - 1` turns before its topic is asked about: with
`polls_max` of 200, 4 s at 500 consumers and 18 s at 2,000.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidewheel.client.clients import AsyncClient

POLLS_PER_S: Final = 100
WAIT_S: Final = 20.0
"""The longest wait that a broker takes."""
POLLS_PER_POOL: Final = 25


@dataclass(slots=True)
class Turn:
    """A turn: the client to poll by, and until when, by the loop's clock."""

    place: int
    client: AsyncClient
    ends_s: float

    def wait(self) -> timedelta | None:
        """Return how long a poll may wait now; None when the turn is over."""
        left_s = min(self.ends_s - asyncio.get_running_loop().time(), WAIT_S)
        return timedelta(seconds=left_s) if left_s >= 0.001 else None


class Turns:
    """The turns of `consumers` consumers, `polls_max` at once; `connect` opens a client for a pool."""

    def __init__(self, consumers: int, polls_max: int, connect: Callable[[], AsyncClient]) -> None:
        self._connect, self._consumers, self._polls_max = connect, consumers, polls_max
        self._are_shared = consumers > polls_max
        self._turn_s = polls_max / POLLS_PER_S if self._are_shared else float("inf")
        self._clients: dict[int, AsyncClient] = {}
        self._free = list(range(min(consumers, polls_max)))
        self._waiting: deque[asyncio.Future[int]] = deque()

    @property
    def latest_s(self) -> float:
        """How long a message may wait before its topic is asked about, where requests take no time."""
        return (-(-self._consumers // self._polls_max) - 1) * self._turn_s if self._are_shared else 0.0

    async def begin(self) -> Turn:
        """Wait for a turn and return it; `end` gives it to the next."""
        place = self._free.pop() if self._free else await self._next()
        pool = place // POLLS_PER_POOL
        if pool not in self._clients:
            self._clients[pool] = self._connect()
        ends_s = asyncio.get_running_loop().time() + self._turn_s
        return Turn(place, self._clients[pool], ends_s)

    def end(self, turn: Turn) -> None:
        """Give a turn to the consumer that has waited longest.

        At once: an asyncio.Queue only wakes that one, and who asks before it runs goes first.
        """
        self._give(turn.place)

    async def _next(self) -> int:
        given: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(given)
        try:
            return await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self._give(given.result())
            raise

    def _give(self, place: int) -> None:
        while self._waiting:
            if not (one := self._waiting.popleft()).done():
                one.set_result(place)
                return
        self._free.append(place)

    async def close(self) -> None:
        """Close all connections."""
        for one in self._clients.values():
            await one.close()
