"""What consumers may get wrong, by mistake or on purpose: each is told so, and nothing is done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from commitlog import limits
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.generated.duration_pb2 import Duration
from services.rpc.wire.caller import Caller

TOPIC = wire.Resource(name="t")
FORGED = [
    "",
    "nonsense",
    "0 0 0 0 0 tidewheel 0 0 0",
    "0 1 1 0 0 tidewheel 0 0 0 -1",
    "0 1 1 0 0 tidewheel 0 0 0 ¹",
    "0 1 1 0 0 tidewheel 0 0 0 1",
    f"0 1 1 0 0 tidewheel {1 << 80} {1 << 80} {1 << 80} {1 << 80}",
    "0 1 1 0 0 tidewheel 9999 0 0 1",
    " " * 10_000,
]


def group(name: str = "g") -> wire.Resource:
    return wire.Resource(name=name)


async def one_message(front: Any, name: str = "g") -> Any:
    """Send a message and let a group receive it."""
    await front.send("t")
    [message] = [one.message for one in await front.receive("t", group=name) if one.HasField("message")]
    return message


async def ack(front: Any, *handles: str, by: str = "g", topic: str = "t") -> list[int]:
    """Acknowledge; returns the answer's code and those of its entries."""
    entries = [service.AckMessageEntry(receipt_handle=handle) for handle in handles]
    request = service.AckMessageRequest(group=group(by), topic=wire.Resource(name=topic), entries=entries)
    reply = await front.call("AckMessage", request)
    return [reply.status.code, *(entry.status.code for entry in reply.entries)]


async def change(front: Any, handle: str, span: Duration, by: str = "g") -> int:
    request = service.ChangeInvisibleDurationRequest(
        group=group(by), topic=TOPIC, receipt_handle=handle, invisible_duration=span
    )
    return int((await front.call("ChangeInvisibleDuration", request)).status.code)


async def give_up(front: Any, handle: str, by: str = "g") -> int:
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=group(by), topic=TOPIC, receipt_handle=handle
    )
    return int((await front.call("ForwardMessageToDeadLetterQueue", request)).status.code)


async def refusal(front: Any, request: service.ReceiveMessageRequest) -> int:
    """Receive, which must be refused; returns the code."""
    [reply] = [reply async for reply in front.stream("ReceiveMessage", request)]
    return int(reply.status.code)


def asked(
    topic: str = "t", by: str = "g", batch_size: int = 32, **more: Any
) -> service.ReceiveMessageRequest:
    queue = wire.MessageQueue(topic=wire.Resource(name=topic))
    return service.ReceiveMessageRequest(group=group(by), message_queue=queue, batch_size=batch_size, **more)


@pytest.mark.parametrize("handle", FORGED, ids=range(len(FORGED)))
def test_a_forged_handle_is_refused_by_every_call(play: Any, handle: str) -> None:
    async def scenario(front: Any) -> None:
        message = await one_message(front)
        assert await ack(front, handle) == [Code.INVALID_RECEIPT_HANDLE] * 2
        assert await change(front, handle, Duration(seconds=60)) == Code.INVALID_RECEIPT_HANDLE
        assert await give_up(front, handle) == Code.INVALID_RECEIPT_HANDLE
        assert await ack(front, message.system_properties.receipt_handle) == [Code.OK] * 2

    play(scenario)


def test_a_handle_is_good_for_its_own_group_and_topic_only(play: Any) -> None:
    async def scenario(front: Any) -> None:
        handle = (await one_message(front)).system_properties.receipt_handle
        await front.send("other")
        assert await ack(front, handle, by="thief") == [Code.INVALID_RECEIPT_HANDLE] * 2
        assert await ack(front, handle, topic="other") == [Code.INVALID_RECEIPT_HANDLE] * 2
        assert await change(front, handle, Duration(), by="thief") == Code.INVALID_RECEIPT_HANDLE
        assert await give_up(front, handle, by="thief") == Code.INVALID_RECEIPT_HANDLE
        assert await ack(front, handle) == [Code.OK] * 2

    play(scenario)


def test_every_part_of_a_handle_counts(play: Any) -> None:
    async def scenario(front: Any) -> None:
        handle = (await one_message(front)).system_properties.receipt_handle
        fields = handle.split(" ")
        for place in (6, 7, 9):
            forged = [*fields[:place], str(int(fields[place]) + 1), *fields[place + 1 :]]
            assert await ack(front, " ".join(forged)) == [Code.INVALID_RECEIPT_HANDLE] * 2
        assert await ack(front, handle, handle) == [
            Code.MULTIPLE_RESULTS,
            Code.OK,
            Code.INVALID_RECEIPT_HANDLE,
        ]

    play(scenario)


def test_acks_of_groups_that_never_received_make_no_groups(play: Any) -> None:
    async def scenario(front: Any) -> None:
        handle = (await one_message(front)).system_properties.receipt_handle
        for number in range(100):
            assert await ack(front, handle, by=f"made-up-{number}") == [Code.INVALID_RECEIPT_HANDLE] * 2
        assert [view.name for view in front.live.core.group_views.view_all()] == ["g"]

    play(scenario)


def test_an_ack_of_nothing_and_of_far_too_much_is_refused_as_a_whole(play: Any) -> None:
    async def scenario(front: Any) -> None:
        handle = (await one_message(front)).system_properties.receipt_handle
        assert await ack(front) == [Code.BAD_REQUEST]
        assert await ack(front, *[handle] * (limits.ENTRIES_PER_REQUEST_MAX + 1)) == [Code.BAD_REQUEST]
        assert (await ack(front, *[handle] * limits.ENTRIES_PER_REQUEST_MAX))[:2] == [
            Code.MULTIPLE_RESULTS,
            Code.OK,
        ]

    play(scenario)


@pytest.mark.parametrize("size", [0, -1, -(1 << 31)])
def test_a_receive_of_nothing_is_refused(play: Any, size: int) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t")
        assert await refusal(front, asked(batch_size=size)) == Code.BAD_REQUEST

    play(scenario)


def test_a_receive_of_far_too_much_brings_as_much_as_one_may(play: Any) -> None:
    async def scenario(front: Any) -> None:
        for number in range(40):
            await front.send("t", str(number).encode())
        stream = front.stream("ReceiveMessage", asked(batch_size=(1 << 31) - 1))
        replies = [reply async for reply in stream]
        assert sum(reply.HasField("message") for reply in replies) == limits.RECEIVE_BATCH_MAX

    play(scenario)


@pytest.mark.parametrize(
    "span", [Duration(seconds=9, nanos=999_000_000), Duration(seconds=-1), Duration(seconds=12 * 3_600 + 1)]
)
def test_a_lease_too_short_or_too_long_is_refused(play: Any, span: Duration) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t")
        assert await refusal(front, asked(invisible_duration=span)) == Code.ILLEGAL_INVISIBLE_TIME
        [message] = [one.message for one in await front.receive("t") if one.HasField("message")]
        if span.seconds < 0 or span.seconds > 12 * 3_600:
            handle = message.system_properties.receipt_handle
            assert await change(front, handle, span) == Code.ILLEGAL_INVISIBLE_TIME
            assert await ack(front, handle) == [Code.OK] * 2

    play(scenario, invisible_ms_min=limits.INVISIBLE_MS_MIN)


@pytest.mark.parametrize("name", ["", " ", "a b", "ü", "g" * 121, "a/b"])
def test_an_illegal_group_is_refused(play: Any, name: str) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t")
        assert await refusal(front, asked(by=name)) == Code.ILLEGAL_CONSUMER_GROUP

    play(scenario)


@pytest.mark.parametrize("name", ["", "a b", "t" * 128, "TW_SYS_ACK", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_an_illegal_topic_is_refused(play: Any, name: str) -> None:
    async def scenario(front: Any) -> None:
        assert await refusal(front, asked(topic=name)) == Code.ILLEGAL_TOPIC

    play(scenario)


def test_an_unknown_topic_is_refused_where_topics_are_not_made_by_themselves(play: Any) -> None:
    async def scenario(front: Any) -> None:
        assert await refusal(front, asked()) == Code.TOPIC_NOT_FOUND

    play(scenario, auto_create_topics=False)


@pytest.mark.parametrize("span", [Duration(seconds=-5), Duration(seconds=10 * 366 * 86_400)])
def test_a_wait_without_sense_is_answered_in_time(play: Any, span: Duration) -> None:
    async def scenario(front: Any) -> None:
        assert await refusal(front, asked(long_polling_timeout=span)) == Code.MESSAGE_NOT_FOUND

    play(scenario)


def test_who_does_not_say_who_calls_is_refused(play: Any) -> None:
    async def scenario(front: Any) -> None:
        [reply] = [reply async for reply in front.stream("ReceiveMessage", asked(), Caller(""))]
        assert reply.status.code == Code.CLIENT_ID_REQUIRED

    play(scenario)


def test_a_client_nobody_knows_may_acknowledge_what_its_handle_proves(play: Any) -> None:
    async def scenario(front: Any) -> None:
        handle = (await one_message(front)).system_properties.receipt_handle
        entry = service.AckMessageEntry(receipt_handle=handle)
        request = service.AckMessageRequest(group=group(), topic=TOPIC, entries=[entry])
        assert (await front.call("AckMessage", request, Caller("stranger"))).status.code == Code.OK
        goodbye = service.NotifyClientTerminationRequest()
        reply = await front.call("NotifyClientTermination", goodbye, Caller("never seen"))
        assert reply.status.code == Code.OK

    play(scenario)


def test_a_client_that_opens_thousands_of_long_polls_is_told_to_stop_and_others_go_on(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("other")
        greedy = Caller("greedy", seconds_left=20)
        waiting = [
            asyncio.create_task(anext(front.stream("ReceiveMessage", asked(), greedy)))
            for _ in range(limits.POLLS_PER_CLIENT_MAX)
        ]
        while sum(session.receives for session in front.sessions) < limits.POLLS_PER_CLIENT_MAX:
            await asyncio.sleep(0)
        refused = await anext(front.stream("ReceiveMessage", asked(), greedy))
        assert refused.status.code == Code.TOO_MANY_REQUESTS
        assert len(await front.receive("other")) == 3
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        front.sessions.seen(greedy)
        assert sum(session.receives for session in front.sessions) == 0

    play(scenario)
