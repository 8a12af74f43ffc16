"""What waits for room, and what a call is told when the disk fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from commitlog import limits
from commitlog.records.message import Message, MessageType
from services.broker.groups.group_values import GroupQueue
from services.live.errors import DiskBehind
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.serving.service import Prompt, per_call_handler
from services.rpc.serving.turns import Call, CallScheduler
from services.rpc.wire.caller import Caller
from services.rpc.wire.replies import DecidedReply
from services.rpc.wire.statuses import name_of
from tidewheel.errors import TidewheelError

BODY = b"." * 1_000
SOMEBODY = Caller("client-1", seconds_left=0.6)


def test_a_call_that_appends_a_copy_holds_no_more_than_its_request_while_it_waits(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred ends of transactions wait at once: at the size of a copy each the 17th would be refused."""

    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.TRANSACTION, 1)
        reply = await front.send("t", BODY, message_id="M", message_type=wire.TRANSACTION)
        monkeypatch.setattr(limits, "CALLERS_UNFLUSHED_BYTES_MAX", 1)
        stuck = asyncio.Event()
        begin, front.live._flushing._begin_flush = front.live._flushing._begin_flush, stuck.set
        first = asyncio.create_task(front.call("EndTransaction", end(reply.entries[0].transaction_id)))
        await asyncio.sleep(0)
        others = [asyncio.create_task(front.call("EndTransaction", end("x" * 20))) for _ in range(200)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(one.done() for one in (first, *others))
        front.live._flushing._begin_flush = begin
        begin()
        assert (await first).status.code == Code.OK
        assert {one.status.code for one in await asyncio.gather(*others)} == {Code.INVALID_TRANSACTION_ID}

    play(scenario)


def end(transaction_id: str) -> service.EndTransactionRequest:
    return service.EndTransactionRequest(
        topic=wire.Resource(name="t"), message_id="M", transaction_id=transaction_id, resolution=wire.COMMIT
    )


def test_sends_of_one_turn_are_let_in_only_as_far_as_there_is_room(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle broker takes one call, however large; of many at once that is no reason to take all."""

    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        await front.live._flushing.idle()
        monkeypatch.setattr(limits, "CALLERS_UNFLUSHED_BYTES_MAX", 3 * len(BODY))
        requests = [sending(f"M{number}") for number in range(20)]
        before = front.live.core.end_offset
        telling = asyncio.ensure_future(told(front, [("SendMessage", one, SOMEBODY) for one in requests]))
        await asyncio.sleep(0)
        assert 0 < front.live.core.end_offset - before <= 3 * len(BODY)
        assert [reply.status.code for reply in await telling] == [Code.OK] * 20

    play(scenario)


def sending(message_id: str) -> service.SendMessageRequest:
    one = wire.Message(topic=wire.Resource(name="t"), body=BODY)
    one.system_properties.message_id = message_id
    return service.SendMessageRequest(messages=[one])


def test_a_send_for_which_there_is_no_room_is_not_refused_if_it_was_stored_before(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        await front.live._flushing.idle()
        monkeypatch.setattr(limits, "CALLERS_UNFLUSHED_BYTES_MAX", 1)
        monkeypatch.setattr(limits, "CALLERS_WAITING_BYTES_MAX", 1)
        begin, front.live._flushing._begin_flush = front.live._flushing._begin_flush, asyncio.Event().set
        sends = [asyncio.ensure_future(told(front, [("SendMessage", sending("M0"), SOMEBODY)]))]
        await asyncio.sleep(0)
        end_offset = front.live.core.end_offset
        for message_id in ("M1", "M0", "M2"):
            sends.append(asyncio.ensure_future(told(front, [("SendMessage", sending(message_id), SOMEBODY)])))
            await asyncio.sleep(0)
        plain = Message(topic="t", body=BODY, message_id="M0")
        again = asyncio.ensure_future(front.live.send(plain))
        many = asyncio.ensure_future(front.live.send_many([plain, replace(plain, message_id="M3")]))
        with pytest.raises(DiskBehind):
            await front.live.send(replace(plain, message_id="M4"))
        assert front.live.core.end_offset == end_offset
        assert front.live.core.housekeeping.stopped is None
        front.live._flushing._begin_flush = begin
        begin()
        first, waited, repeated, refused = [one for [one] in await asyncio.gather(*sends)]
        assert (first.status.code, waited.status.code) == (Code.OK, Code.OK)
        assert repeated == first
        assert refused.status.code == Code.TOO_MANY_REQUESTS
        assert (await again).physical_offset == (await many)[0].physical_offset
        assert isinstance((await many)[1], DiskBehind)

    play(scenario)


def test_what_was_to_be_done_with_a_reply_is_not_done_when_the_disk_failed() -> None:
    told: list[str] = []
    done: list[str] = []
    rpc = Prompt(
        service.EndTransactionRequest,
        service.EndTransactionResponse,
        per_call_handler(lambda *_: DecidedReply(0, b"")),
    )
    call = Call(
        "EndTransaction", rpc, end("x"), 0, Caller(""), lambda _, code: told.append(code), lambda *_: None
    )
    call.then = lambda: done.append("x")
    call.refuse(TidewheelError("the disk failed"))
    assert told == [name_of(TidewheelError)]
    assert done == []


async def told(front: Any, asked: list[tuple[str, Any, Caller]]) -> list[Any]:
    """The replies to calls of one turn, in the order of the calls; and in which they were told."""
    loop = asyncio.get_running_loop()
    replies: list[asyncio.Future[bytes]] = [loop.create_future() for _ in asked]
    CallScheduler(front.live).take(
        Call(
            name,
            front.rpcs[name],
            request,
            0,
            caller,
            lambda reply, _, one=one: one.set_result(reply),
            ignored,
        )
        for (name, request, caller), one in zip(asked, replies, strict=True)
    )
    return [
        front.rpcs[name].reply.FromString(await reply)
        for (name, _, _), reply in zip(asked, replies, strict=True)
    ]


def ignored(*_: object) -> None:
    """Nobody counts the calls."""


def acknowledgement(*handles: str, topic: str = "t") -> service.AckMessageRequest:
    entries = [service.AckMessageEntry(message_id=one, receipt_handle=one) for one in handles]
    return service.AckMessageRequest(
        group=wire.Resource(name="g"), topic=wire.Resource(name=topic), entries=entries
    )


async def leased(front: Any, count: int) -> list[str]:
    """The handles of so many messages that the group has."""
    for number in range(count):
        await front.send("t", message_id=f"M{number}")
    replies = await front.receive("t")
    return [one.message.system_properties.receipt_handle for one in replies if one.HasField("message")]


def test_acknowledgements_of_one_turn_get_each_what_it_would_get_alone(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        first, second, third, fourth = await leased(front, 4)
        await front.live.call(front.live.core.topics.create, "t2", MessageType.NORMAL, 1)
        ack, change = "AckMessage", "ChangeInvisibleDuration"
        changed = service.ChangeInvisibleDurationRequest(
            group=wire.Resource(name="g"), topic=wire.Resource(name="t"), receipt_handle=fourth
        )
        changed.invisible_duration.seconds = 30
        replies = await told(
            front,
            [
                (ack, acknowledgement(first), SOMEBODY),
                (ack, acknowledgement("nonsense"), SOMEBODY),
                (ack, acknowledgement(), SOMEBODY),
                (ack, acknowledgement(second, first), SOMEBODY),
                (ack, acknowledgement(third, topic="t2"), SOMEBODY),
                (change, changed, SOMEBODY),
                (ack, acknowledgement(fourth), SOMEBODY),
                (ack, acknowledgement(third), Caller("")),
                (ack, acknowledgement(third), SOMEBODY),
            ],
        )
        invalid = Code.INVALID_RECEIPT_HANDLE
        assert [one.status.code for one in replies] == [
            Code.OK,
            invalid,
            Code.BAD_REQUEST,
            Code.MULTIPLE_RESULTS,
            invalid,
            Code.OK,
            invalid,
            Code.CLIENT_ID_REQUIRED,
            Code.OK,
        ]
        assert [one.status.code for one in replies[3].entries] == [Code.OK, invalid]
        assert [one.receipt_handle for one in replies[3].entries] == [second, first]
        flight = front.live.core.groups.in_flight(GroupQueue("g", "t", 0))
        assert [lease.queue_offset for lease in flight.leases()] == [3]

    play(scenario)


def test_a_bug_that_hits_acknowledgements_of_one_turn_is_told_to_each(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        handles = await leased(front, 2)

        def fail(*_: object) -> None:
            raise AssertionError("a bug")

        monkeypatch.setattr(front.live, "call_with_time", fail)
        replies = await told(front, [("AckMessage", acknowledgement(one), SOMEBODY) for one in handles])
        assert {one.status.code for one in replies} == {Code.INTERNAL_SERVER_ERROR}

    play(scenario)
