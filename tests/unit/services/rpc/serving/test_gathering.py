"""Calls of a turn of the loop are bounded in messages; a large call is answered as if it were taken whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog import limits
from commitlog.records.message import MessageType
from services.live.append_quota import AppendQuota
from services.live.durability import Answers
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.serving.gathering import CallGatherer, split_call
from services.rpc.serving.service import Entries, Prompt, acknowledgement_refused, body_bytes, send_refused
from services.rpc.serving.turns import Call, CallScheduler
from services.rpc.wire.caller import Caller
from services.rpc.wire.errors import TooManyClients
from services.rpc.wire.replies import DecidedReply

SOMEBODY = Caller("client-1", seconds_left=0.6)
ACKNOWLEDGE = Prompt(
    service.AckMessageRequest,
    service.AckMessageResponse,
    lambda _: [],
    entries=Entries("entries", acknowledgement_refused),
)


def ignored(*_: object) -> None:
    """Nobody counts or hears the calls."""


def acknowledging(count: int) -> Call:
    request = service.AckMessageRequest(entries=[service.AckMessageEntry() for _ in range(count)])
    return Call("AckMessage", ACKNOWLEDGE, request, 0, SOMEBODY, ignored, ignored)


async def gathered(front: Any, name: str, *requests: Any) -> list[Any]:
    """The replies to calls that came in one turn."""
    gathering, rpc = CallGatherer(CallScheduler(front.live)), front.rpcs[name]
    replies: list[asyncio.Future[bytes]] = []
    for request in requests:
        replies.append(told := asyncio.get_running_loop().create_future())
        tell = lambda reply, _, told=told: told.set_result(reply)  # noqa: E731
        gathering.add(Call(name, rpc, request, request.ByteSize(), SOMEBODY, tell, front._observe))
    return [rpc.reply.FromString(await one) for one in replies]


def sending(count: int, wrong: int = -1, prefix: str = "M", body: bytes = b"x") -> service.SendMessageRequest:
    """A request of messages, one of them with a tag that is refused."""
    messages = []
    for number in range(count):
        marks = wire.SystemProperties(message_id=f"{prefix}{number}", tag="a|b" if number == wrong else "")
        messages.append(wire.Message(topic=wire.Resource(name="t"), body=body, system_properties=marks))
    return service.SendMessageRequest(messages=messages)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([1, 1, 1, 1, 1], [[1, 1], [1, 1], [1]]),
        ([0, 2, 1, 1, 5, 1], [[0], [2], [1, 1], [2], [2], [1, 1]]),
        ([3, 3], [[2], [1], [2], [1]]),
        ([9, 1], [[9], [1]]),
    ],
)
def test_calls_beyond_those_of_a_turn_wait_for_the_next(
    monkeypatch: pytest.MonkeyPatch, entries: list[int], expected: list[list[int]]
) -> None:
    monkeypatch.setattr("services.rpc.serving.gathering.CALLS_PER_TURN_MAX", 2)
    monkeypatch.setattr("services.rpc.serving.gathering.ENTRIES_PER_REQUEST_MAX", 8)

    class Taking(CallScheduler):
        def __init__(self) -> None:
            self.taken: list[list[Any]] = []

        def take(self, calls: Any) -> None:
            self.taken.append([len(call.request.entries) for call in calls])

    async def scenario() -> None:
        turns = Taking()
        gathering = CallGatherer(turns)
        for count in entries:
            gathering.add(acknowledging(count))
        for turn in range(len(expected) + 1):
            await asyncio.sleep(0)
            assert turns.taken == expected[: turn + 1]

    asyncio.run(scenario())


def test_a_request_of_many_messages_is_stored_in_turns_and_answered_as_a_whole(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        stored, statistics = list[int](), front.live.core.statistics
        loop = asyncio.get_running_loop()

        def look() -> None:
            stored.append(statistics.stored["t"].messages)
            if not asked.done():
                loop.call_soon(look)

        asked = asyncio.ensure_future(
            gathered(front, "SendMessage", sending(1_000, wrong=700), sending(1, prefix="N"))
        )
        loop.call_soon(look)
        many, one = await asked
        assert many.status.code == Code.MULTIPLE_RESULTS
        assert [entry.message_id for entry in many.entries] == [f"M{number}" for number in range(1_000)]
        codes = [entry.status.code for entry in many.entries]
        assert codes[700] == Code.ILLEGAL_MESSAGE_TAG
        assert codes[:700] + codes[701:] == [Code.OK] * 999
        assert [entry.offset for entry in many.entries if entry.status.code == Code.OK] == [*range(999)]
        assert (one.status.code, one.entries[0].offset) == (Code.OK, 999)
        assert max(after - before for before, after in pairwise(stored)) <= 257
        assert [called for called, _ in front.observed] == ["SendMessage"] * 2

    play(scenario)


def test_a_request_of_large_messages_is_stored_in_turns_and_answered_as_a_whole(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        stored, statistics = list[int](), front.live.core.statistics
        loop = asyncio.get_running_loop()

        def look() -> None:
            stored.append(statistics.stored["t"].messages)
            if not asked.done():
                loop.call_soon(look)

        large = sending(8, body=bytes(4_000_000))
        others = [sending(1, prefix=f"N{number}-", body=bytes(3_000_000)) for number in range(4)]
        asked = asyncio.ensure_future(gathered(front, "SendMessage", large, *others))
        loop.call_soon(look)
        replies = await asked
        assert [reply.status.code for reply in replies] == [Code.OK] * 5
        assert [entry.offset for reply in replies for entry in reply.entries] == [*range(12)]
        assert max(after - before for before, after in pairwise(stored)) == 2
        assert [called for called, _ in front.observed] == ["SendMessage"] * 5

    play(scenario)


@given(
    lengths=st.lists(st.integers(0, 6_000_000), min_size=1, max_size=12),
    beside=st.integers(0, 1_000_000),
)
def test_parts_have_all_messages_in_order_and_no_more_than_a_turn_takes(
    lengths: list[int], beside: int
) -> None:
    request = SimpleNamespace(messages=[SimpleNamespace(body=range(length)) for length in lengths])
    request_bytes = sum(lengths) + beside
    rpc = SimpleNamespace(entries=Entries("messages", send_refused))
    call = Call("SendMessage", rpc, request, request_bytes, SOMEBODY, ignored, ignored)  # type: ignore[arg-type]
    parts = [*split_call(call)]
    assert [one for part, _ in parts for one in part] == request.messages
    assert request_bytes <= sum(part_bytes for _, part_bytes in parts) <= request_bytes + len(lengths)
    for part, part_bytes in parts:
        assert len(part) == 1 or part_bytes <= limits.CALLS_PER_TURN_BYTES_MAX


def test_many_deliveries_are_acknowledged_as_a_whole(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        await gathered(front, "SendMessage", sending(32))
        received = [reply.message for reply in await front.receive("t") if reply.HasField("message")]
        handles = [one.system_properties.receipt_handle for one in received]
        entries = [service.AckMessageEntry(message_id=one, receipt_handle=one) for one in handles]
        wrong = [service.AckMessageEntry(message_id="none", receipt_handle="none")] * 600
        group, topic = wire.Resource(name="g"), wire.Resource(name="t")
        request = service.AckMessageRequest(group=group, topic=topic, entries=wrong + entries)
        (reply,) = await gathered(front, "AckMessage", request)
        assert [one.receipt_handle for one in reply.entries] == ["none"] * 600 + handles
        codes = [one.status.code for one in reply.entries]
        assert set(codes[:600]) == {Code.INVALID_RECEIPT_HANDLE}
        assert set(codes[600:]) == {Code.OK}

    play(scenario)


def test_a_part_for_which_there_is_no_room_has_entries_that_say_so(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        await front.live._flushing.idle()
        monkeypatch.setattr(limits, "CALLERS_UNFLUSHED_BYTES_MAX", 1)
        monkeypatch.setattr(limits, "CALLERS_WAITING_BYTES_MAX", 1)
        begin, front.live._flushing._begin_flush = front.live._flushing._begin_flush, asyncio.Event().set
        asked = asyncio.ensure_future(gathered(front, "SendMessage", sending(1_000)))
        for _ in range(10):
            await asyncio.sleep(0)
        front.live._flushing._begin_flush = begin
        begin()
        (reply,) = await asked
        codes = [entry.status.code for entry in reply.entries]
        assert [entry.message_id for entry in reply.entries] == [f"M{number}" for number in range(1_000)]
        assert reply.status.code == Code.MULTIPLE_RESULTS
        assert codes == [Code.OK] * 512 + [Code.TOO_MANY_REQUESTS] * 488
        (again,) = await gathered(front, "SendMessage", sending(1_000))
        assert again.status.code == Code.OK
        assert [entry.offset for entry in again.entries] == [*range(1_000)]
        assert {entry.status.code for entry in again.entries} == {Code.OK}

    play(scenario)


def test_a_caller_who_is_refused_is_told_once(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_: Caller) -> None:
        raise TooManyClients("There are too many.")

    async def scenario(front: Any) -> None:
        monkeypatch.setattr(front.sessions, "seen", no_room)
        (reply,) = await gathered(front, "SendMessage", sending(1_000))
        assert (reply.status.code, len(reply.entries)) == (Code.TOO_MANY_REQUESTS, 0)

    play(scenario)


@pytest.mark.parametrize("count", [limits.ENTRIES_PER_REQUEST_MAX + 1, 5_000])
def test_too_many_messages_are_refused_and_none_is_stored(play: Any, count: int) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        (reply,) = await gathered(front, "SendMessage", sending(count))
        assert (reply.status.code, len(reply.entries)) == (Code.BAD_REQUEST, 0)
        assert front.live.core.statistics.stored["t"].messages == 0

    play(scenario)


def test_the_parts_of_a_call_are_stored_in_order_where_the_first_has_to_wait_for_room() -> None:
    unflushed, stored = [limits.CALLERS_UNFLUSHED_BYTES_MAX - 3 * 1024 * 1024], list[str]()

    def decide(calls: Sequence[Any]) -> list[DecidedReply]:
        stored.extend(one.system_properties.message_id for request, _ in calls for one in request.messages)
        return [DecidedReply(0, b"") for _ in calls]

    async def scenario() -> None:
        room = AppendQuota(lambda: unflushed[0])
        gathering = CallGatherer(CallScheduler(SimpleNamespace(room=room, answers=Answers(0))))  # type: ignore[arg-type]
        rpc = Prompt(
            service.SendMessageRequest,
            service.SendMessageResponse,
            decide,
            body_bytes,
            Entries("messages", send_refused),
        )
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        request = sending(300)  # the second part has room, the first one has not
        gathering.add(
            Call("SendMessage", rpc, request, 0, SOMEBODY, lambda _, code: told.set_result(code), ignored)
        )
        for _ in range(5):
            await asyncio.sleep(0)
        assert stored == []
        unflushed[0] = 0
        room.admit_waiting()
        assert await told == "OK"
        assert stored == [f"M{number}" for number in range(300)]

    asyncio.run(scenario())
