"""ReceiveMessage, AckMessage, ChangeInvisibleDuration and dead letters without a transport."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.broker.groups.group_values import GroupPolicy
from services.rpc.clients.session import Session
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.generated.duration_pb2 import Duration
from services.rpc.handlers.receiving import poll_seconds
from services.rpc.wire.caller import Caller

GROUP, TOPIC = wire.Resource(name="g"), wire.Resource(name="t")


def kinds(replies: list[Any]) -> list[str]:
    return [reply.WhichOneof("content") for reply in replies]


async def one_handle(front: Any, **more: Any) -> str:
    replies = await front.receive("t", **more)
    [handle] = [one.message.system_properties.receipt_handle for one in replies if one.HasField("message")]
    return str(handle)


def test_the_stream_is_a_status_the_messages_and_the_time_they_left(play: Any) -> None:
    async def scenario(front: Any) -> None:
        for number in range(5):
            await front.send("t", str(number).encode())
        replies = await front.receive("t")
        assert kinds(replies) == ["status", *["message"] * 5, "delivery_timestamp"]
        assert replies[0].status.code == Code.OK
        assert sorted(reply.message.body for reply in replies[1:-1]) == [b"0", b"1", b"2", b"3", b"4"]

    play(scenario)


def test_a_call_that_finds_nothing_says_so_before_its_deadline(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("other")
        await front.call("QueryRoute", service.QueryRouteRequest(topic=TOPIC))
        [reply] = await front.receive("t", long_polling_timeout=Duration(seconds=60))
        assert reply.status.code == Code.MESSAGE_NOT_FOUND

    play(scenario)


@pytest.mark.parametrize(
    ("settled", "asked", "waits"), [(None, None, 20), (2, None, 2), (2, 3, 3), (90, None, 20)]
)
def test_a_receive_waits_as_it_says_or_else_as_the_clients_settings_say(
    settled: int | None, asked: int | None, waits: float
) -> None:
    session = Session("c", language="GO", version="5.1.4", seen_ms=0)
    session.describe(wire.Settings(subscription=wire.Subscription(long_polling_timeout=seconds(settled))))
    request = service.ReceiveMessageRequest(long_polling_timeout=seconds(asked))
    assert poll_seconds(request, session, Caller("c")) == waits
    assert poll_seconds(request, session, Caller("c", seconds_left=1.5)) == 1


def seconds(span: int | None) -> Duration | None:
    return None if span is None else Duration(seconds=span)


def test_an_sql_expression_says_what_is_received(play: Any) -> None:
    async def scenario(front: Any) -> None:
        for tag in ("paid", "sent"):
            await front.send("t", tag.encode(), tag=tag)
        sql = wire.FilterExpression(type=wire.FilterType.SQL, expression="TAGS STARTSWITH 'p'")
        replies = await front.receive("t", filter_expression=sql)
        assert [reply.message.body for reply in replies[1:-1]] == [b"paid"]

    play(scenario)


@pytest.mark.parametrize(
    ("language", "expression", "why"),
    [("SQL", "a > 1 b", "Line 1, column 7: found b, expected"), ("TAG", "a | b", "a single '|'")],
)
def test_a_wrong_expression_is_refused_with_its_place(
    play: Any, language: str, expression: str, why: str
) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t")
        wrong = wire.FilterExpression(type=language, expression=expression)
        [reply] = await front.receive("t", filter_expression=wrong)
        assert reply.status.code == Code.ILLEGAL_FILTER_EXPRESSION
        assert why in reply.status.message

    play(scenario)


def test_a_refused_receive_is_counted_and_an_empty_one_is_none(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t")
        front.observed.clear()
        assert kinds(await front.receive("t")) == ["status", "message", "delivery_timestamp"]
        assert kinds(await front.receive("t")) == ["status"]
        assert front.observed == []
        await front.receive("t", filter_expression=wire.FilterExpression(expression="||"))
        await front.receive("no such name")
        assert front.observed == [
            ("ReceiveMessage", "ILLEGAL_FILTER_EXPRESSION"),
            ("ReceiveMessage", "ILLEGAL_TOPIC"),
        ]

    play(scenario)


def test_acknowledging_answers_entry_by_entry(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t")
        good = service.AckMessageEntry(receipt_handle=await one_handle(front))
        bad = service.AckMessageEntry(receipt_handle="nonsense")
        for entries, code in (([bad], Code.INVALID_RECEIPT_HANDLE), ([good, bad], Code.MULTIPLE_RESULTS)):
            request = service.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries)
            reply = await front.call("AckMessage", request)
            assert reply.status.code == code
        assert [entry.status.code for entry in reply.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]
        assert kinds(await front.receive("t")) == ["status"]

    play(scenario)


def test_a_changed_lease_has_a_new_handle_and_the_old_one_is_void(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t")
        old = await one_handle(front)
        request = service.ChangeInvisibleDurationRequest(
            group=GROUP, topic=TOPIC, receipt_handle=old, invisible_duration=Duration(seconds=30)
        )
        changed = await front.call("ChangeInvisibleDuration", request)
        assert changed.status.code == Code.OK
        for handle, code in ((old, Code.INVALID_RECEIPT_HANDLE), (changed.receipt_handle, Code.OK)):
            entry = service.AckMessageEntry(receipt_handle=handle)
            acked = service.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[entry])
            assert (await front.call("AckMessage", acked)).status.code == code

    play(scenario)


def test_a_message_given_up_is_a_dead_letter_of_its_group(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t", b"poison")
        request = service.ForwardMessageToDeadLetterQueueRequest(
            group=GROUP, topic=TOPIC, receipt_handle=await one_handle(front), message_id="ID-poison"
        )
        assert (await front.call("ForwardMessageToDeadLetterQueue", request)).status.code == Code.OK
        assert kinds(await front.receive("t")) == ["status"]
        dead = await front.receive("%DLQ%g", group="morgue")
        assert [one.message.body for one in dead if one.HasField("message")] == [b"poison"]

    play(scenario)


def test_a_push_consumers_last_failed_attempt_makes_a_dead_letter_without_a_pause(play: Any) -> None:
    async def scenario(front: Any) -> None:
        policy = GroupPolicy(attempts_max=1, retry_after_ms=(9_000,))
        await front.live.groups.set("g", policy)
        await front.send("t", b"poison")
        request = service.ChangeInvisibleDurationRequest(
            group=GROUP,
            topic=TOPIC,
            receipt_handle=await one_handle(front, auto_renew=True),
            invisible_duration=Duration(seconds=9),
        )
        assert (await front.call("ChangeInvisibleDuration", request)).status.code == Code.OK
        front.pass_time(0)
        dead = await front.receive("%DLQ%g", group="morgue")
        assert [one.message.body for one in dead if one.HasField("message")] == [b"poison"]

    play(scenario)


@pytest.mark.parametrize(("language", "attempt", "attempts_max"), [("JAVA", 2, 3), ("PYTHON", 1, 2)])
def test_a_dead_letter_counts_the_attempts_that_its_consumer_made_by_itself(
    play: Any, language: str, attempt: int, attempts_max: int
) -> None:
    """Python's client sends the attempt that it received, and gives up after as many as it may make."""

    async def scenario(front: Any) -> None:
        await front.send("t", b"poison", message_group="a")
        request = service.ForwardMessageToDeadLetterQueueRequest(
            group=GROUP,
            topic=TOPIC,
            receipt_handle=await one_handle(front),
            delivery_attempt=attempt,
            max_delivery_attempts=attempts_max,
        )
        caller = Caller("client-1", language=language)
        told = await front.call("ForwardMessageToDeadLetterQueue", request, caller)
        assert told.status.code == Code.OK
        [letter] = front.live.core.dead_letters.read_page("g", None, 10).dead_letters
        assert letter.attempts == 2
        assert letter.last_error.endswith("given up by its consumer, consumer client-1")

    play(scenario)


async def received(front: Any, attempt_id: str) -> list[bytes]:
    replies = await front.receive("t", auto_renew=True, attempt_id=attempt_id)
    return [reply.message.body for reply in replies if reply.HasField("message")]


def test_leases_of_a_stream_that_broke_are_given_back(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t", b"unheard")
        request = service.ReceiveMessageRequest(
            group=GROUP, message_queue=wire.MessageQueue(topic=TOPIC), batch_size=1, auto_renew=True
        )
        stream = front.stream("ReceiveMessage", request)
        assert (await anext(stream)).status.code == Code.OK
        await stream.aclose()
        front.pass_time(1)
        assert await received(front, "a") == [b"unheard"]

    play(scenario)


def test_asking_again_with_the_same_attempt_id_gives_back_what_was_not_heard(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t", b"unheard")
        assert await received(front, "first") == [b"unheard"]
        assert await received(front, "second") == []
        assert await received(front, "second") == []
        front.pass_time(60_000)
        assert await received(front, "third") == [b"unheard"]
        front.later.clear()
        request = asyncio.create_task(received(front, "third"))
        while not front.later:
            await asyncio.sleep(0)
        front.pass_time(1)
        assert await request == [b"unheard"]

    play(scenario)
