"""Answers to who looks are bounded by bytes: at the limit they are whole, above it they say how to go on."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from commitlog import limits
from commitlog.records.message import Message
from consumequeue.filters.filter import EVERYTHING
from services.broker.spine.finding import MessageLookup
from services.broker.spine.reading import ArrivedMessages
from services.ops.messages import messages

Desk = Any
AtDesk = Callable[..., None]
BODY_BYTES = 1_000
LIMITS = [(3 * BODY_BYTES, 3), (3 * BODY_BYTES - 1, 2), (1, 1)]
"""The limit, and how many messages an answer has."""


@pytest.fixture(params=LIMITS, ids=["at the limit", "above it", "one in any case"])
def shown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(limits, "QUERY_BYTES_MAX", request.param[0])
    return int(request.param[1])


async def get(desk: Desk, path: str) -> Any:
    answer = await desk.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def send(desk: Desk, count: int, queue_count: int) -> None:
    await desk.http.post("/api/topics", json={"name": "t", "queue_count": queue_count})
    for number in range(count):
        body = bytes(BODY_BYTES)
        await desk.live.send(Message(topic="t", body=body, message_id=f"M{number}", keys=("k",)))


def ids(answer: Any) -> list[str]:
    return [one["message_id"] for one in answer["messages"]]


def test_messages_of_a_queue(at_desk: AtDesk, shown: int) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, 4, 1)
        first = await get(desk, "/api/topics/t/messages?limit=1000")
        assert ids(first) == ["M0", "M1", "M2", "M3"][:shown]
        rest = await get(desk, f"/api/topics/t/messages?offset={shown}")
        assert ids(rest) == ["M0", "M1", "M2", "M3"][shown : 2 * shown]

    at_desk(scenario)


def test_what_a_tail_gets_of_all_queues_together(at_desk: AtDesk, shown: int) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, 8, 4)
        seen, after = [], "0:0,1:0,2:0,3:0"
        while len(seen) < 8:
            answer = await get(desk, f"/api/topics/t/arrivals?limit=1000&after={after}")
            assert 1 <= len(ids(answer)) <= shown
            seen, after = [*seen, *ids(answer)], answer["after"]
        assert seen == [f"M{number}" for number in range(8)]

    at_desk(scenario)


def test_messages_of_a_key_and_whether_some_were_left_out(at_desk: AtDesk, shown: int) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, 3, 1)
        answer = await get(desk, "/api/messages?topic=t&key=k&limit=1000")
        assert (ids(answer), answer["cut"]) == (["M2", "M1", "M0"][:shown], shown < 3)
        one = await get(desk, "/api/messages?topic=t&key=k&limit=1")
        assert (ids(one), one["cut"]) == (["M2"], False)

    at_desk(scenario)


def test_bodies_that_are_unpacked_in_vain_count_for_what_was_unpacked(at_desk: AtDesk) -> None:
    async def scenario(desk: Desk) -> None:
        await desk.http.post("/api/topics", json={"name": "t", "queue_count": 1})
        body = zlib.compress(bytes(limits.BODY_UNPACKED_FOR_CLIENT_BYTES_MAX + 1))
        for name in ("M0", "M1"):
            await desk.live.send(Message(topic="t", body=body, message_id=name, keys=("k",), gzip=True))
        assert ids(await get(desk, "/api/topics/t/messages")) == ["M0"]
        assert ids(await get(desk, "/api/topics/t/arrivals?after=0:0")) == ["M0"]
        answer = await get(desk, "/api/messages?topic=t&key=k")
        assert (ids(answer), answer["cut"]) == (["M1"], True)

    at_desk(scenario)


def test_dead_letters_are_looked_at_in_pieces_and_all_of_them(at_desk: AtDesk, shown: int) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, 4, 1)
        for one in await desk.live.receivers.receive("g", "t", EVERYTHING, 32, 60_000, "c", False, 0):
            await desk.live.call(
                desk.live.core.receiving.forward_to_dead_letter, "g", "t", one.receipt_handle
            )
        page = desk.live.query(desk.live.core.dead_letters.read_page, "g", None, 32)
        assert (len(page.dead_letters), page.after) == (shown, shown - 1)
        listed = await get(desk, "/api/dead-letters/groups/g")
        assert (len(listed["dead_letters"]), listed["after"]) == (4, None)

    at_desk(scenario)


def test_a_tail_reads_many_messages_in_several_turns(
    at_desk: AtDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "READ_AT_ONCE", 3)

    async def scenario(desk: Desk) -> None:
        await send(desk, 8, 4)
        turn, reads, read_after = 0, list[tuple[int, int]](), MessageLookup.read_after

        async def count_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        def noted(finding: MessageLookup, topic: str, places: Any, count: int) -> ArrivedMessages:
            reads.append((turn, count))
            return read_after(finding, topic, places, count)

        monkeypatch.setattr(MessageLookup, "read_after", noted)
        counting = asyncio.ensure_future(count_turns())
        answer = await get(desk, "/api/topics/t/arrivals?limit=7&after=0:0,1:0,2:0,3:0")
        assert ids(answer) == [f"M{number}" for number in range(7)]
        assert ids(await get(desk, f"/api/topics/t/arrivals?after={answer['after']}")) == ["M7"]
        counting.cancel()
        assert [count for _, count in reads] == [3, 3, 1, 3]
        assert len({turn for turn, _ in reads}) == len(reads)

    at_desk(scenario)


def test_a_tail_gets_the_messages_of_queues_whose_files_are_read_in_several_turns(
    at_desk: AtDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(desk: Desk) -> None:
        await send(desk, 8, 4)
        calls, read_after = list[ArrivedMessages](), MessageLookup.read_after

        def first_enough(finding: MessageLookup, topic: str, places: Any, count: int) -> ArrivedMessages:
            is_first = len(calls) < 2  # as if files had been read that took all of these calls
            found = ArrivedMessages([], True) if is_first else read_after(finding, topic, places, count)
            calls.append(found)
            return found

        monkeypatch.setattr(MessageLookup, "read_after", first_enough)
        answer = await get(desk, "/api/topics/t/arrivals?limit=7&after=0:0,1:0,2:0,3:0")
        assert ids(answer) == [f"M{number}" for number in range(7)]
        assert len(calls) == 3

    at_desk(scenario)
