"""Limit on the open long polls of a worker. Consumers beyond the limit take turns.

    consumer with a free slot --> waits for a turn --> polls until it ends --> turn of the next consumer
                              --> if there are enough turns, keeps its turn

Rules
1. Turns are granted in order of request. If there are more consumers than turns, each turn lasts `polls_max /
   POLLS_PER_S` seconds, regardless of whether its topic is busy, so that all consumers are served.
2. If there are enough turns for all consumers, each consumer keeps its turn, and a poll waits for `WAIT_S`
   seconds at the broker.
3. The polls of `POLLS_PER_POOL` turns share a connection pool. The library scans all connections of a pool
   for each request, so with a single pool the cost of a request would grow with the number of topics.

Cost: The worker opens up to `polls_max` connections and sends `POLLS_PER_S` requests per second while no
messages arrive (about 2 ms of CPU time each). A message waits up to `ceil(consumers / polls_max) - 1` turns
before its topic is polled. With a `polls_max` of 200, this is 4 s for 500 consumers and 18 s for 2,000.
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
"""The maximum wait time that a broker accepts."""
POLLS_PER_POOL: Final = 25


@dataclass(slots=True)
class Turn:
    """A turn: the client to poll with, and the end time on the event loop's clock."""

    place: int
    client: AsyncClient
    ends_s: float

    def wait(self) -> timedelta | None:
        """Return the wait time for the next poll, or None if the turn is over."""
        left_s = min(self.ends_s - asyncio.get_running_loop().time(), WAIT_S)
        return timedelta(seconds=left_s) if left_s >= 0.001 else None


class Turns:
    """Turns of `consumers` consumers, at most `polls_max` at a time. `connect` opens the client of a pool."""

    def __init__(self, consumers: int, polls_max: int, connect: Callable[[], AsyncClient]) -> None:
        self._connect, self._consumers, self._polls_max = connect, consumers, polls_max
        self._are_shared = consumers > polls_max
        self._turn_s = polls_max / POLLS_PER_S if self._are_shared else float("inf")
        self._clients: dict[int, AsyncClient] = {}
        self._free = list(range(min(consumers, polls_max)))
        self._waiting: deque[asyncio.Future[int]] = deque()

    @property
    def latest_s(self) -> float:
        """The maximum time before the topic of a new message is polled, not counting the time of the
        requests.
        """
        return (-(-self._consumers // self._polls_max) - 1) * self._turn_s if self._are_shared else 0.0

    async def begin(self) -> Turn:
        """Wait for a turn and return it. The turn must be returned with `end`."""
        place = self._free.pop() if self._free else await self._next()
        pool = place // POLLS_PER_POOL
        if pool not in self._clients:
            self._clients[pool] = self._connect()
        ends_s = asyncio.get_running_loop().time() + self._turn_s
        return Turn(place, self._clients[pool], ends_s)

    def end(self, turn: Turn) -> None:
        """Pass a turn to the consumer that has waited longest.

        The turn is assigned immediately. An asyncio.Queue would only wake the waiting consumer, and a
        consumer that runs earlier could take the turn.
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
