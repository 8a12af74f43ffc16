"""A receive that meets damaged files of queues comes to the messages of the others (`docs/damage.md`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from services.broker.broker import Broker
from services.broker.groups.group_values import ReceivedMessages
from services.live.live_broker import LiveBroker
from tests.unit.services.broker.test_retention import Bench

QUEUE_COUNT = 4
LARGE, SMALL = 2, limits.WORK_BYTES
"""Bytes of a unit of work. With 2 a file of 40 entries costs what one of 300,000 does: all of a receive."""


def damaged(*queue_ids: int) -> Bench:
    """Return a broker with 40 messages in each of its queues, some of which are damaged on disk."""
    bench = Bench(tail_entries_max=1)
    for _ in range(40 * QUEUE_COUNT):
        bench.send()
    bench.broker.store.dispatch.write()
    done = bench.broker.checkpoint(bench.now_ms)
    done.write(bench.disk)
    bench.broker.complete_checkpoint(done)
    for queue_id in queue_ids:
        bench.disk.flip_bit(f"consumequeue/t/{queue_id}/{0:020}", 8 * 90)
    bench.broker = Broker.open(bench.disk, bench.settings, bench.now_ms)
    assert bench.broker.topics.get("t").queue_count == QUEUE_COUNT
    return bench


def receive(bench: Bench) -> ReceivedMessages:
    return bench.broker.receiving.receive("g", "t", EVERYTHING, 32, 20_000, "c", False, bench.now_ms)


@pytest.mark.parametrize("work_bytes", [LARGE, SMALL])
@pytest.mark.parametrize("damaged_ids", [(1,), (1, 2), (1, 2, 3)], ids=len)
def test_damaged_files_keep_no_other_queue_from_a_receive(
    damaged_ids: tuple[int, ...], work_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = damaged(*damaged_ids)
    monkeypatch.setattr(limits, "WORK_BYTES", work_bytes)
    looks = 0
    for _ in range(2):
        found = receive(bench)
        while not found.deliveries and found.is_unfinished:
            assert found.has_read_damage
            looks, found = looks + 1, receive(bench)
        assert found.deliveries
        assert {one.queue_id for one in found.deliveries}.isdisjoint(damaged_ids)
    assert looks <= len(damaged_ids)
    assert {one.part for one in bench.broker.damage} == {"queue"}


@pytest.mark.parametrize("work_bytes", [LARGE, SMALL])
def test_a_receive_from_queues_that_are_all_damaged_is_refused(
    work_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = damaged(*range(QUEUE_COUNT))
    monkeypatch.setattr(limits, "WORK_BYTES", work_bytes)
    for _ in range(QUEUE_COUNT + 1):
        try:
            found = receive(bench)
        except StoreDamaged:
            break
        assert found.is_unfinished
    with pytest.raises(StoreDamaged):
        receive(bench)
    assert len(bench.broker.damage) == QUEUE_COUNT


def at_callers(bench: Bench, calls: Callable[[LiveBroker], Awaitable[None]]) -> None:
    """Let callers call a live broker on the disk of a bench."""

    async def scenario() -> None:
        call_later = asyncio.get_running_loop().call_later
        with ThreadPoolExecutor(1) as writer:
            live = LiveBroker(bench.disk, bench.settings, lambda: bench.now_ms, call_later, writer)
            try:
                await calls(live)
            finally:
                await live.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("wait_seconds", [0, 10])
def test_a_caller_gets_messages_at_once_though_large_files_of_other_queues_are_damaged(
    wait_seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WORK_BYTES", LARGE)

    async def calls(live: LiveBroker) -> None:
        for _ in range(4):
            options = (32, 20_000, "c", False, wait_seconds)
            assert await live.receivers.receive("g", "t", EVERYTHING, *options)

    at_callers(damaged(1, 2), calls)


def test_a_caller_is_refused_once_all_queues_were_found_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORK_BYTES", LARGE)

    async def calls(live: LiveBroker) -> None:
        with pytest.raises(StoreDamaged):
            await live.receivers.receive("g", "t", EVERYTHING, 32, 20_000, "c", False, 0)
        await live.send(Message(topic="other", body=b"x", message_id="M"))
        assert await live.receivers.receive("g", "other", EVERYTHING, 32, 20_000, "c", False, 0)

    at_callers(damaged(*range(QUEUE_COUNT)), calls)
