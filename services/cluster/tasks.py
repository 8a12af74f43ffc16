"""The asyncio tasks of a node: the current action and the concurrent tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """The running tasks of a node. The callback `broken` is called with the exception of a failed task."""

    def __init__(self, loop: asyncio.AbstractEventLoop, broken: Callable[[BaseException], None]) -> None:
        self._loop, self._broken = loop, broken
        self._all: set[asyncio.Task[None]] = set()
        self._concurrent: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[Any, Any, None], *, is_concurrent: bool) -> None:
        """Start a task. If `is_concurrent` is true, `cancel_concurrent` cancels the task."""
        task = self._loop.create_task(coroutine)
        for kept in (self._all, self._concurrent) if is_concurrent else (self._all,):
            kept.add(task)
            task.add_done_callback(kept.discard)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)

    def cancel_concurrent(self) -> None:
        """Cancel the concurrent tasks after a role change, because their results would be outdated."""
        for task in self._concurrent:
            task.cancel()

    async def wait_for_concurrent(self) -> None:
        """Wait until all concurrent tasks have ended."""
        if self._concurrent:
            await asyncio.wait(self._concurrent)

    async def end(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in self._all:
            task.cancel()
        if self._all:
            await asyncio.wait(self._all)
