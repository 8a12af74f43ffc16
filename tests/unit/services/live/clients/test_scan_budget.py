"""Receives scan two slices at most in a turn of the loop, however many they are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from commitlog import limits
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from consumequeue.filters.sql_filter import SqlFilter, parse_sql
from services.broker.spine.settings import BrokerSettings
from services.live.clients.scan_budget import ScanBudget
from services.live.live_broker import LiveBroker
from tests.memory_disk import MemoryDisk

NOW_MS = 1_763_700_000_000
COUNT = 300
COSTLY = " OR ".join([*(f"p CONTAINS 'word{number}'" for number in range(99)), "wanted = 1"])


def play(scenario: Callable[[LiveBroker], Awaitable[None]]) -> None:
    async def run() -> None:
        settings = BrokerSettings(segment_bytes=1 << 26, queue_count=1)
        with ThreadPoolExecutor(1) as writer:
            call_later = asyncio.get_running_loop().call_later
            live = LiveBroker(MemoryDisk(), settings, lambda: NOW_MS, call_later, writer)
            await live.send_many([message(number, p="a" * 12_000) for number in range(COUNT)])
            await live.send_many([message(COUNT, wanted="1")])
            await scenario(live)
            await live.close()

    asyncio.run(run())


def message(number: int, **properties: str) -> Message:
    return Message(topic="t", body=b"x", message_id=f"{number}", properties=properties)


async def received(live: LiveBroker, group: str, expression: str) -> list[str]:
    wanted = parse_sql(expression) if expression else EVERYTHING
    found = await live.receivers.receive(group, "t", wanted, 1, 20_000, "c", False, 600)
    return [one.message.message_id for one in found]


def test_calls_of_others_have_their_turn_while_a_costly_receive_looks_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged, matches = [0], SqlFilter.matches

    def counted(self: SqlFilter, stored: bytes) -> bool:
        judged[0] += 1
        return matches(self, stored)

    monkeypatch.setattr(SqlFilter, "matches", counted)

    async def scenario(live: LiveBroker) -> None:
        assert await received(live, "other", "") == ["0"]  # the next one waits for no flush of its group
        costly = asyncio.create_task(received(live, "g", COSTLY))
        await asyncio.sleep(0)
        assert judged[0] <= 4
        assert await received(live, "other", "") == ["1"]
        assert judged[0] < COUNT, "the other receive was answered before the costly one had looked at all"
        assert await costly == [f"{COUNT}"]
        assert judged[0] >= COUNT

    play(scenario)


def test_many_costly_receives_share_the_slices_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    judged, matches = [0], SqlFilter.matches

    def counted(self: SqlFilter, stored: bytes) -> bool:
        judged[0] += 1
        return matches(self, stored)

    monkeypatch.setattr(SqlFilter, "matches", counted)

    async def scenario(live: LiveBroker) -> None:
        tasks = [asyncio.create_task(received(live, f"g{number}", COSTLY)) for number in range(20)]
        worst = 0
        while not all(task.done() for task in tasks):
            judged[0] = 0
            await asyncio.sleep(0)
            worst = max(worst, judged[0])
        assert [await task for task in tasks] == [[f"{COUNT}"]] * 20
        assert worst <= 10

    play(scenario)


def test_first_looks_go_in_order_and_before_more_of_others() -> None:
    async def scenario() -> None:
        slices, order = ScanBudget(), []

        async def look(name: str, times: int) -> None:
            if not slices.has_room:
                await slices.wait_for_first_scan()
            for _ in range(times):
                order.append(name)
                slices.count_work(limits.SCANNED_PER_RECEIVE_MAX)
                await slices.wait_for_next_scan()

        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(look(name, times)) for name, times in (("a", 3), ("b", 1), ("c", 1), ("d", 2))
        ]
        await asyncio.gather(*tasks)
        first = [name for number, name in enumerate(order) if name not in order[:number]]
        assert first == ["a", "b", "c", "d"]
        assert sorted(order) == ["a", "a", "a", "b", "c", "d", "d"]

    asyncio.run(scenario())


def test_a_receive_whose_caller_has_gone_holds_up_none() -> None:
    async def scenario() -> None:
        slices = ScanBudget()
        slices.count_work(limits.SCANNED_PER_RECEIVE_MAX)
        gone = [
            asyncio.create_task(slices.wait_for_first_scan()),
            asyncio.create_task(slices.wait_for_next_scan()),
        ]
        stays = [
            asyncio.create_task(slices.wait_for_first_scan()),
            asyncio.create_task(slices.wait_for_next_scan()),
        ]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*stays), 60)

    asyncio.run(scenario())
