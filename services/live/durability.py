"""Answers that wait for the log: each is given once the log is durable up to its offset, in order of offset.

Cost: one heap entry and one future per waiting answer; an answer that rests on durable records never waits.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count

from commitlog.errors import TidewheelError


class DurableOffset:
    """The durable end of the log, and everybody who waits for it to move."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._arrival = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    async def reach(self, offset: int) -> None:
        """Return once the log is durable up to `offset`; raises what `refuse` was given."""
        if offset <= self.offset:
            return
        answer = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (offset, next(self._arrival), answer))
        await answer

    def advance(self, offset: int) -> None:
        """Move the durable offset and let go everybody it has reached."""
        self.offset = offset
        while self._waiting and self._waiting[0][0] <= offset:
            answer = heappop(self._waiting)[2]
            if not answer.done():
                answer.set_result(None)

    def refuse(self, error: TidewheelError, offset: int) -> None:
        """Fail everybody who waits, and start again from `offset`."""
        waiting, self._waiting, self.offset = self._waiting, [], offset
        for _, _, answer in waiting:
            if not answer.done():
                answer.set_exception(error)
