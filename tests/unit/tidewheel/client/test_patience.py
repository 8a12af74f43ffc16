"""Pauses, and waits that an event ends."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest

from tidewheel.client.patience import PAUSES_S, pauses, unless


def test_pauses_grow_to_the_last_which_repeats() -> None:
    assert list(islice(pauses(), 8)) == [*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]]


def test_a_wait_ends_with_its_result_or_with_the_event() -> None:
    async def scenario() -> None:
        stop, cancelled = asyncio.Event(), asyncio.Event()

        async def wait_for_ever() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        assert await unless(stop, asyncio.sleep(0, "done")) == "done"
        asyncio.get_running_loop().call_soon(stop.set)
        assert await unless(stop, wait_for_ever()) is None
        assert cancelled.is_set()

    asyncio.run(scenario())


def test_the_error_of_a_wait_goes_on() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        await unless(asyncio.Event(), fail())

    with pytest.raises(ZeroDivisionError):
        asyncio.run(scenario())
