"""The event loop that a broker runs in: libuv's, where there is one for the system; Python's elsewhere.

Measured (`benchmarks/front.py calls`): a call takes the same of the processor with both, as far as runs
beside other work tell; with libuv's a single one takes a tenth less time in plaintext. Its `time()` stands
still within a turn: latencies and rates are measured by the system's clock.

What nobody waits for any more is let end (`let_end`), else the loop says that a failure was never retrieved.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop that runs nothing yet."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


@asynccontextmanager
async def watched(
    coroutine: Coroutine[Any, Any, None], broken: Callable[[BaseException], None]
) -> AsyncIterator[None]:
    """Run a coroutine while the block lasts; `broken` is told what it raises."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (bug := task.exception()) is not None:
            broken(bug)

    task = asyncio.create_task(coroutine)
    task.add_done_callback(ended)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def let_end(future: asyncio.Future[Any]) -> None:
    """Let a future end as it will: nobody waits for it any more, and its failure need not be told."""
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
