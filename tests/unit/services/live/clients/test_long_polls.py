"""Who is notified, and who next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable

import pytest

from services.live.clients.long_polls import LongPolls

LONG = 30.0


class Waiters:
    """Receivers asleep on topic `t`; `notified` has the names of those who were woken, in order."""

    def __init__(self) -> None:
        self.polls = LongPolls()
        self.notified: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def sleep(self, name: str, line: Hashable = None, seconds: float = LONG) -> None:
        """Go to sleep, and be asleep when this returns."""
        self.tasks[name] = asyncio.create_task(self._sleep(name, line, seconds))
        await asyncio.sleep(0)

    async def settled(self) -> list[str]:
        """Who was woken so far."""
        for _ in range(5):
            await asyncio.sleep(0)
        return self.notified

    async def _sleep(self, name: str, line: Hashable, seconds: float) -> None:
        if await self.polls.wait("t", seconds, line):
            self.notified.append(name)


def play(scenario: Callable[[Waiters], Awaitable[None]]) -> None:
    async def on_stage() -> None:
        waiters = Waiters()
        await scenario(waiters)
        waiters.polls.close()
        await asyncio.gather(*waiters.tasks.values(), return_exceptions=True)

    asyncio.run(on_stage())


def test_an_arrival_notifies_the_first_of_each_line_and_everybody_without_one() -> None:
    async def scenario(waiters: Waiters) -> None:
        for name, line in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("alone", None), ("alone too", None)):
            await waiters.sleep(name, line)
        waiters.polls.notify("t")
        assert await waiters.settled() == ["a1", "b1", "alone", "alone too"]
        waiters.polls.notify("t")
        assert (await waiters.settled())[4:] == ["a2"]

    play(scenario)


def test_two_arrivals_notify_two_though_the_first_has_not_looked_yet() -> None:
    async def scenario(waiters: Waiters) -> None:
        for name in ("1", "2", "3"):
            await waiters.sleep(name, "line")
        waiters.polls.notify("t")
        waiters.polls.notify("t")
        assert await waiters.settled() == ["1", "2"]

    play(scenario)


def test_who_took_all_it_could_notifies_the_next() -> None:
    async def scenario(waiters: Waiters) -> None:
        for name in ("1", "2"):
            await waiters.sleep(name, "line")
        waiters.polls.notify("t")
        waiters.polls.notify_next("t", "line")
        waiters.polls.notify_next("t", "line")
        assert await waiters.settled() == ["1", "2"]

    play(scenario)


def test_a_notify_for_one_that_goes_away_is_handed_on() -> None:
    async def scenario(waiters: Waiters) -> None:
        for name in ("gone", "gone too", "next"):
            await waiters.sleep(name, "line")
        waiters.polls.notify("t")
        for name in ("gone", "gone too"):
            waiters.tasks[name].cancel()
        assert await waiters.settled() == ["next"]
        assert waiters.tasks["gone"].cancelled()
        assert waiters.tasks["gone too"].cancelled()

    play(scenario)


@pytest.mark.parametrize("line", [None, "line"])
def test_who_gives_up_or_is_cancelled_leaves_nothing_behind(line: Hashable) -> None:
    async def scenario(waiters: Waiters) -> None:
        await waiters.sleep("short", line, 0.001)
        await waiters.sleep("cancelled", line)
        waiters.tasks["cancelled"].cancel()
        await asyncio.wait(waiters.tasks.values())
        assert waiters.notified == []
        assert not waiters.polls._waiting

    play(scenario)


def test_closing_sends_everybody_home() -> None:
    async def scenario(waiters: Waiters) -> None:
        for number in range(5):
            await waiters.sleep(str(number), number % 2)
        waiters.polls.close()
        await asyncio.wait(waiters.tasks.values())
        assert await waiters.polls.wait("t", LONG, "late") is False
        assert waiters.notified == []

    play(scenario)
