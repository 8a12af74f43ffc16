"""Limits the scanning work of receives per event loop iteration.

A receive scans one slice of at most `SCANNED_PER_RECEIVE_MAX` units of work at a time. Many slices in one
iteration would block the event loop, so each iteration has a scan budget:

    first scan    runs if less than a slice was scanned in the iteration; other first scans are queued
    unfinished    in each iteration, the first unfinished scan in the queue continues

At most two slices are scanned in each iteration, regardless of the number of receives and the cost of the
filters. Each slice may exceed its limit by one message. First scans and unfinished scans wait in separate
queues, so that long scans do not delay new calls.

Cost: one comparison for each receive within the budget. Limitation: all clients share the two queues. A
client with many costly receives delays the receives of other clients, but no other calls.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from commitlog import limits

_WOKEN_PER_TURN: Final = 64
"""Maximum number of first scans woken per iteration.

A first scan that exceeds the budget keeps its position in the queue.
"""

Waiter = asyncio.Future[None]


class ScanBudget:
    """The scan budget of the event loop, and the receives that wait for budget."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._used = 0
        self._is_planned = False
        self._first: dict[object, Waiter] = {}
        self._unfinished: dict[object, Waiter] = {}

    @property
    def has_room(self) -> bool:
        """Return whether a first scan may run in this iteration without waiting."""
        return self._used < limits.SCANNED_PER_RECEIVE_MAX and not self._first

    def count_work(self, work: int) -> None:
        """Deduct `work`, in units of `limits.WORK_NS`, from the scan budget of this iteration."""
        self._used += work
        self._schedule_turn()

    async def wait_for_first_scan(self) -> None:
        """Wait for an event loop iteration with enough budget for a first scan."""
        place = object()
        try:
            await self._wait(self._first, place)
            while self._used >= limits.SCANNED_PER_RECEIVE_MAX:
                await self._wait(self._first, place)
        finally:
            del self._first[place]

    async def wait_for_next_scan(self) -> None:
        """Wait for an event loop iteration in which an unfinished scan may continue."""
        place = object()
        try:
            await self._wait(self._unfinished, place)
        finally:
            del self._unfinished[place]

    def _wait(self, line: dict[object, Waiter], place: object) -> Waiter:
        """Return a future that completes when the queue entry `place` is woken.

        If the entry already exists, its position in the queue is kept.
        """
        line[place] = self._loop.create_future()
        self._schedule_turn()
        return line[place]

    def _schedule_turn(self) -> None:
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
            self._schedule_turn()
