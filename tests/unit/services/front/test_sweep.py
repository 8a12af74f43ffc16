"""A look at all there is, in slices."""

from __future__ import annotations

import asyncio

from services.front.sweep import SLICE, ConnectionSweep


def test_each_is_looked_at_once_a_round_and_few_in_a_turn() -> None:
    there_are, looked, turns = set(range(3 * SLICE + 10)), list[int](), list[float]()

    async def scenario() -> None:
        enough = asyncio.get_running_loop().create_future()

        def look(one: int, now: float) -> None:
            looked.append(one)
            turns.append(now)
            if len(looked) == 2 * len(there_are) and not enough.done():
                enough.set_result(None)

        sweep = ConnectionSweep(0.05, there_are, look)
        sweep.start()
        await asyncio.wait_for(enough, 60)
        sweep.stop()
        count = len(looked)
        await asyncio.sleep(0.1)
        assert len(looked) == count

    asyncio.run(scenario())
    assert set(looked[: len(there_are)]) == set(looked[len(there_are) : 2 * len(there_are)]) == there_are
    assert max(map(turns.count, set(turns))) <= SLICE


def test_what_is_gone_meanwhile_is_not_looked_at_and_what_came_is_in_the_next_round() -> None:
    there_are, looked = set(range(SLICE + 5)), list[int]()

    async def scenario() -> None:
        enough = asyncio.get_running_loop().create_future()

        def look(one: int, now: float) -> None:
            looked.append(one)
            if len(looked) == SLICE:
                there_are.difference_update(set(range(SLICE + 5)) - set(looked))
                there_are.add(9_999)
            if one == 9_999 and not enough.done():
                enough.set_result(None)

        sweep = ConnectionSweep(0.05, there_are, look)
        sweep.start()
        await asyncio.wait_for(enough, 60)
        sweep.stop()

    asyncio.run(scenario())
    assert len(set(looked)) == SLICE + 1
    assert 9_999 not in looked[:SLICE]
