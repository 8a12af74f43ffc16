"""Turns to poll: in order, all of them in use, and none lost to a wait that is given up."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel import AsyncClient
from tidewheel.client.turns import WAIT_S, Turns


def turns_of(consumers: int, polls_max: int) -> Turns:
    return Turns(consumers, polls_max, lambda: AsyncClient("127.0.0.1:1"))


@given(consumers=st.integers(2, 12), polls_max=st.integers(1, 11), rounds=st.integers(1, 4))
def test_no_consumer_has_another_turn_before_all_that_waited(
    consumers: int, polls_max: int, rounds: int
) -> None:
    order: list[int] = []

    async def consume(turns: Turns, number: int) -> None:
        for _ in range(rounds):
            turn = await turns.begin()
            order.append(number)
            await asyncio.sleep(0)
            turns.end(turn)

    async def scenario() -> None:
        turns = turns_of(consumers, polls_max)
        await asyncio.gather(*(consume(turns, number) for number in range(consumers)))

    asyncio.run(scenario())
    if polls_max < consumers:
        assert order == [*range(consumers)] * rounds
    assert Counter(order) == dict.fromkeys(range(consumers), rounds)


def test_a_wait_that_is_given_up_costs_no_turn() -> None:
    async def scenario() -> None:
        turns = turns_of(3, 1)
        first = await turns.begin()
        given_up = [asyncio.ensure_future(turns.begin()) for _ in range(2)]
        await asyncio.sleep(0)
        given_up[0].cancel()
        turns.end(first)  # to the second, which is cancelled before it knows
        given_up[1].cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        async with asyncio.timeout(60):
            assert (await turns.begin()).place == first.place

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("consumers", "polls_max", "wait_s", "latest_s"),
    [(2, 2, WAIT_S, 0), (500, 200, 2.0, 4.0), (2_000, 200, 2.0, 18.0), (3, 2, 0.02, 0.02)],
)
def test_a_turn_is_as_long_as_the_rate_of_polls_allows(
    consumers: int, polls_max: int, wait_s: float, latest_s: float
) -> None:
    async def scenario() -> None:
        turns = turns_of(consumers, polls_max)
        assert turns.latest_s == latest_s
        wait = (await turns.begin()).wait()
        assert wait is not None
        assert wait_s - 0.01 < wait.total_seconds() <= wait_s

    asyncio.run(scenario())
