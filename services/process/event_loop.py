"""The event loop of a broker: uvloop (libuv) if it is available for the system, and otherwise Python's.

Measured (`benchmarks/front.py calls`): both take about the same CPU time per call. With uvloop, a single
plaintext call takes a tenth less time. The `time()` of uvloop does not advance within an iteration, so
latencies and rates are measured with the system clock.

If nothing waits for a future any more, its exception is ignored (`let_end`). Otherwise the event loop would
report that it was never retrieved.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


@asynccontextmanager
async def watched(
    coroutine: Coroutine[Any, Any, None], broken: Callable[[BaseException], None]
) -> AsyncIterator[None]:
    """Run a coroutine for the duration of the block.

    `broken` is called with an exception of the coroutine.
    """

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
    """Ignore the result and the exception of a future."""
    future.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
