"""Slices: how much receives may scan in one turn of the loop, all of them together.

One receive scans one slice at a time (`SCANNED_PER_RECEIVE_MAX`). The slices of all receives of a turn would
still hold the loop for as long as they take together, so a turn has a budget:

    first look    runs while the turn has used less than a slice; the others wait for later turns, in order
    unfinished    of the scans that found nothing yet, one goes on in a turn, in order

So a turn scans two slices at most, and one message beyond each, however many receives there are and whatever
their filters cost. Two lines, because costly scans that go on must not delay calls that have just come.

Cost: a comparison for a receive while there is room. Weak spot: the lines know no clients, so a client with
many costly receives delays the receives of others, but nothing else.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from commitlog import limits

_WOKEN_PER_TURN: Final = 64
"""First looks that a turn lets try; those that find its budget used wait on, at the front of their line."""

Waiter = asyncio.Future[None]


class Slices:
    """The budget of each turn of the running loop, and the receives that wait for one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._used = 0
        self._is_planned = False
        self._first: dict[object, Waiter] = {}
        self._unfinished: dict[object, Waiter] = {}

    @property
    def has_room(self) -> bool:
        """Whether a first look may run now."""
        return self._used < limits.SCANNED_PER_RECEIVE_MAX and not self._first

    def use(self, work: int) -> None:
        """Count the work of a slice (`limits.WORK_NS`) in this turn."""
        self._used += work
        self._plan()

    async def first_look(self) -> None:
        """Return in a turn that has room for a first look, which is not this one."""
        place = object()
        try:
            await self._wait(self._first, place)
            while self._used >= limits.SCANNED_PER_RECEIVE_MAX:
                await self._wait(self._first, place)
        finally:
            del self._first[place]

    async def go_on(self) -> None:
        """Return in the turn of an unfinished scan, a later one than this."""
        place = object()
        try:
            await self._wait(self._unfinished, place)
        finally:
            del self._unfinished[place]

    def _wait(self, line: dict[object, Waiter], place: object) -> Waiter:
        """Return what ends when the place in a line is woken; a place that waits again is the same."""
        line[place] = self._loop.create_future()
        self._plan()
        return line[place]

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._used, self._is_planned = 0, False
        for line, count in ((self._first, _WOKEN_PER_TURN), (self._unfinished, 1)):
            for waiter in islice(line.values(), count):
                if not waiter.done():
                    waiter.set_result(None)
        if self._first or self._unfinished:
            self._plan()
