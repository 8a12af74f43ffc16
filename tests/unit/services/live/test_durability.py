"""Answers are let go in the order of their offsets, or refused together."""

from __future__ import annotations

import asyncio

import pytest

from commitlog.errors import ResultUnknown
from services.live.durability import DurableOffset


async def waiting(durable: DurableOffset, offset: int, answered: list[int]) -> None:
    await durable.reach(offset)
    answered.append(offset)


def test_answers_go_in_the_order_of_their_offsets() -> None:
    async def scenario() -> None:
        durable, answered = DurableOffset(100), list[int]()
        tasks = [asyncio.create_task(waiting(durable, offset, answered)) for offset in (300, 100, 200, 250)]
        await asyncio.sleep(0)
        assert answered == [100]
        durable.advance(250)
        await asyncio.gather(*tasks[1:])
        assert answered == [100, 200, 250]
        durable.advance(300)
        await tasks[0]

    asyncio.run(scenario())


def test_everybody_who_waits_is_refused_and_the_next_may_wait_again() -> None:
    async def scenario() -> None:
        durable, answered = DurableOffset(0), list[int]()
        tasks = [asyncio.create_task(waiting(durable, offset, answered)) for offset in (1, 2)]
        await asyncio.sleep(0)
        durable.refuse(ResultUnknown("lost"), 0)
        for task in tasks:
            with pytest.raises(ResultUnknown):
                await task
        later = asyncio.create_task(waiting(durable, 1, answered))
        await asyncio.sleep(0)
        durable.advance(1)
        await later
        assert answered == [1]

    asyncio.run(scenario())


def test_a_caller_that_left_does_not_hold_up_the_others() -> None:
    async def scenario() -> None:
        durable, answered = DurableOffset(0), list[int]()
        leaving, staying = (asyncio.create_task(waiting(durable, offset, answered)) for offset in (1, 2))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        durable.advance(2)
        await staying
        assert answered == [2]

    asyncio.run(scenario())
