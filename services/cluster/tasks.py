"""The tasks of a node: one act at a time, and concurrent tasks, which end with the role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """Tasks in a loop; a task that has ended is forgotten, and `broken` receives its error."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broken: Callable[[BaseException], None]) -> None:
        self._loop, self._broken = loop, broken
        self._all: set[asyncio.Task[None]] = set()
        self._beside: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[Any, Any, None], *, is_beside: bool) -> None:
        """Start a task; one with `is_beside` ends with the role."""
        task = self._loop.create_task(coroutine)
        for kept in (self._all, self._beside) if is_beside else (self._all,):
            kept.add(task)
            task.add_done_callback(kept.discard)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)

    def end_beside(self) -> None:
        """Cancel the tasks beside the act: their answers would be outdated."""
        for task in self._beside:
            task.cancel()

    async def beside_ended(self) -> None:
        """Wait until no task runs beside the act."""
        if self._beside:
            await asyncio.wait(self._beside)

    async def end(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        for task in self._all:
            task.cancel()
        if self._all:
            await asyncio.wait(self._all)
