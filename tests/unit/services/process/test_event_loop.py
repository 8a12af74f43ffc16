"""What nobody waits for any more ends without a word."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from services.process.event_loop import let_end
from tests.conftest import Unheard


def fail(future: asyncio.Future[Any]) -> None:
    future.set_exception(OSError("a disk"))


def cancel(future: asyncio.Future[Any]) -> None:
    future.cancel()


def succeed(future: asyncio.Future[Any]) -> None:
    future.set_result(None)


async def dropped(end: Callable[[asyncio.Future[Any]], None], is_let_end: bool) -> None:
    future = asyncio.get_running_loop().create_future()
    if is_let_end:
        let_end(future)
    end(future)
    del future
    await asyncio.sleep(0)
    gc.collect()


@pytest.mark.parametrize("end", [fail, cancel, succeed])
def test_what_is_let_end_ends_unheard(end: Callable[[asyncio.Future[Any]], None], unheard: Unheard) -> None:
    asyncio.run(dropped(end, is_let_end=True))
    assert not unheard.told


def test_a_failure_that_is_dropped_is_found_by_every_test(unheard: Unheard) -> None:
    asyncio.run(dropped(fail, is_let_end=False))
    assert len(unheard.told) == 1
    unheard.told.clear()


def test_a_callback_that_fails_is_found_by_every_test_unless_it_is_grpc_s_own(unheard: Unheard) -> None:
    class PollerCompletionQueue:
        """As gRPC's, which has no name of a module in what asyncio shows of it."""

        def _handle_events(self) -> None:
            raise RuntimeError("Event loop is closed")

    async def scenario(callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)
        await asyncio.sleep(0)

    asyncio.run(scenario(PollerCompletionQueue()._handle_events))
    assert not unheard.told
    asyncio.run(scenario([].pop))
    assert len(unheard.told) == 1
    unheard.told.clear()
