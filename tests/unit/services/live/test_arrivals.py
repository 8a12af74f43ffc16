"""Who is rung, and who next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

import pytest

from services.live.arrivals import Arrivals

LONG = 30.0


class Sleepers:
    """Receivers asleep on topic `t`; `rung` has the names of those who were woken, in order."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.rung: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def sleep(self, name: str, line: Hashable = None, seconds: float = LONG) -> None:
        """Go to sleep, and be asleep when this returns."""
        self.tasks[name] = asyncio.create_task(self._sleep(name, line, seconds))
        await asyncio.sleep(0)

    async def settled(self) -> list[str]:
        """Who was woken so far."""
        for _ in range(5):
            await asyncio.sleep(0)
        return self.rung

    async def _sleep(self, name: str, line: Hashable, seconds: float) -> None:
        if await self.arrivals.wait("t", seconds, line):
            self.rung.append(name)


def play(scenario: Callable[[Sleepers], Awaitable[None]]) -> None:
    async def on_stage() -> None:
        sleepers = Sleepers()
        await scenario(sleepers)
        sleepers.arrivals.close()
        await asyncio.gather(*sleepers.tasks.values(), return_exceptions=True)

    asyncio.run(on_stage())


def test_an_arrival_rings_the_first_of_each_line_and_everybody_without_one() -> None:
    async def scenario(sleepers: Sleepers) -> None:
        for name, line in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("alone", None), ("alone too", None)):
            await sleepers.sleep(name, line)
        sleepers.arrivals.wake("t")
        assert await sleepers.settled() == ["a1", "b1", "alone", "alone too"]
        sleepers.arrivals.wake("t")
        assert (await sleepers.settled())[4:] == ["a2"]

    play(scenario)


def test_two_arrivals_ring_two_though_the_first_has_not_looked_yet() -> None:
    async def scenario(sleepers: Sleepers) -> None:
        for name in ("1", "2", "3"):
            await sleepers.sleep(name, "line")
        sleepers.arrivals.wake("t")
        sleepers.arrivals.wake("t")
        assert await sleepers.settled() == ["1", "2"]

    play(scenario)


def test_who_took_all_it_could_rings_the_next() -> None:
    async def scenario(sleepers: Sleepers) -> None:
        for name in ("1", "2"):
            await sleepers.sleep(name, "line")
        sleepers.arrivals.wake("t")
        sleepers.arrivals.ring("t", "line")
        sleepers.arrivals.ring("t", "line")
        assert await sleepers.settled() == ["1", "2"]

    play(scenario)


def test_a_ring_for_one_that_goes_away_is_handed_on() -> None:
    async def scenario(sleepers: Sleepers) -> None:
        for name in ("gone", "gone too", "next"):
            await sleepers.sleep(name, "line")
        sleepers.arrivals.wake("t")
        for name in ("gone", "gone too"):
            sleepers.tasks[name].cancel()
        assert await sleepers.settled() == ["next"]
        assert sleepers.tasks["gone"].cancelled()
        assert sleepers.tasks["gone too"].cancelled()

    play(scenario)


@pytest.mark.parametrize("line", [None, "line"])
def test_who_gives_up_or_is_cancelled_leaves_nothing_behind(line: Hashable) -> None:
    async def scenario(sleepers: Sleepers) -> None:
        await sleepers.sleep("short", line, 0.001)
        await sleepers.sleep("cancelled", line)
        sleepers.tasks["cancelled"].cancel()
        await asyncio.wait(sleepers.tasks.values())
        assert sleepers.rung == []
        assert not sleepers.arrivals._asleep

    play(scenario)


def test_closing_sends_everybody_home() -> None:
    async def scenario(sleepers: Sleepers) -> None:
        for number in range(5):
            await sleepers.sleep(str(number), number % 2)
        sleepers.arrivals.close()
        await asyncio.wait(sleepers.tasks.values())
        assert await sleepers.arrivals.wait("t", LONG, "late") is False
        assert sleepers.rung == []

    play(scenario)
