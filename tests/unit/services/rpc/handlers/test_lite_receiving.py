"""Consumers of lite topics over the protocol: what they subscribe to, what wakes them, what they are told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from commitlog.records.message import MessageType
from services.broker.groups.group_values import GroupPolicy
from services.broker.groups.lite_subscribing import LiteSubscribing, SubscriptionResult
from services.broker.spine.values import Subscriber
from services.rpc.clients import settings
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code, LiteSubscriptionAction
from services.rpc.handlers import lite_receiving
from services.rpc.wire.caller import Caller

TOPIC, GROUP = wire.Resource(name="t"), wire.Resource(name="g")
PATIENT = Caller("client-1", seconds_left=20.0)
OTHER = Caller("client-2", seconds_left=0.6)


async def sync(front: Any, action: str, *lite_topics: str, caller: Caller = PATIENT, **more: Any) -> Any:
    """Change what a client subscribes to and return the status."""
    request = service.SyncLiteSubscriptionRequest(
        action=LiteSubscriptionAction.Value(action),
        topic=TOPIC,
        group=GROUP,
        lite_topic_set=lite_topics,
        **more,
    )
    return (await front.call("SyncLiteSubscription", request, caller)).status


async def receive(front: Any, caller: Caller = PATIENT, seconds: int = 0) -> list[Any]:
    """Receive once and return the messages."""
    request = service.ReceiveMessageRequest(
        group=GROUP, message_queue=wire.MessageQueue(topic=TOPIC), batch_size=32
    )
    request.invisible_duration.seconds, request.long_polling_timeout.seconds = 60, seconds
    replies = [reply async for reply in front.stream("ReceiveMessage", request, caller)]
    assert replies[0].status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), replies[0]
    return [reply.message for reply in replies if reply.HasField("message")]


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


@pytest.fixture
def lite(play: Any) -> Any:
    """Run a scenario against a front that has a topic of lite topics."""

    def run(scenario: Any, **options: Any) -> None:
        async def with_topic(front: Any) -> None:
            await front.live.call(front.live.core.topics.create, "t", MessageType.LITE, 4)
            await scenario(front)

        play(with_topic, **options)

    return run


def test_a_long_poll_wakes_for_its_lite_topics(lite: Any) -> None:
    async def scenario(front: Any) -> None:
        assert (await sync(front, "PARTIAL_ADD", "mine")).code == Code.OK
        waiting = asyncio.create_task(receive(front, seconds=20))
        await front.send("t", b"leave me", lite_topic="others")
        await front.send("t", b"wake up", lite_topic="mine")
        assert bodies(await waiting) == [b"wake up"]

    lite(scenario)


def test_a_long_poll_of_a_client_that_is_not_known_yet_wakes_when_it_says_its_set(lite: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t", b"waits", lite_topic="a")
        waiting = asyncio.create_task(receive(front, seconds=20))
        await front.send("t", b"of another", lite_topic="b")
        assert not waiting.done()
        assert (await sync(front, "COMPLETE_ADD", "a")).code == Code.OK
        (got,) = await waiting
        assert (got.body, got.system_properties.lite_topic) == (b"waits", "a")
        assert got.system_properties.message_type == wire.MessageType.LITE

    lite(scenario)


def test_an_acknowledgement_wakes_a_poll_for_the_next_of_its_lite_topic(lite: Any) -> None:
    async def scenario(front: Any) -> None:
        for body in (b"1", b"2"):
            await front.send("t", body, lite_topic="a")
        await sync(front, "PARTIAL_ADD", "a")
        (first,) = await receive(front)
        waiting = asyncio.create_task(receive(front, seconds=20))
        await asyncio.sleep(0)
        entry = service.AckMessageEntry(
            message_id="1", receipt_handle=first.system_properties.receipt_handle, lite_topic="a"
        )
        request = service.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[entry])
        assert (await front.call("AckMessage", request, PATIENT)).status.code == Code.OK
        assert bodies(await waiting) == [b"2"]

    lite(scenario)


@pytest.mark.parametrize(
    ("language", "sent", "subscribed"),
    [
        ("PYTHON", "session-11", ["session-11"]),
        ("PYTHON", ["session-11"], ["session-11"]),
        ("PYTHON", "a", ["a"]),
        ("PYTHON", ["a", "bc"], ["a", "bc"]),
        ("JAVA", ["a", "b"], ["a", "b"]),
    ],
)
def test_what_the_python_client_spells_is_put_together(
    lite: Any, language: str, sent: Any, subscribed: list[str]
) -> None:
    async def scenario(front: Any) -> None:
        caller = Caller("client-1", language=language)
        assert (await sync(front, "PARTIAL_ADD", *sent, caller=caller)).code == Code.OK
        assert front.live.core.lite.lite_topics_of(Subscriber("g", "t", "client-1")) == subscribed

    lite(scenario)


def test_unsubscribing_in_part_or_whole_ends_what_comes(lite: Any) -> None:
    async def scenario(front: Any) -> None:
        await sync(front, "PARTIAL_ADD", "a", "b")
        await sync(front, "PARTIAL_REMOVE", "a")
        for lite_topic in ("a", "b"):
            await front.send("t", lite_topic.encode(), lite_topic=lite_topic)
        assert bodies(await receive(front)) == [b"b"]
        await sync(front, "COMPLETE_REMOVE")
        await front.send("t", b"b2", lite_topic="b")
        assert await receive(front) == []

    lite(scenario)


def test_a_goodbye_ends_the_subscriptions_and_a_lost_connection_does_not(lite: Any) -> None:
    async def scenario(front: Any) -> None:
        await sync(front, "PARTIAL_ADD", "a")
        front.live.receivers.release_client_leases("client-1")
        await front.send("t", b"1", lite_topic="a")
        assert bodies(await receive(front)) == [b"1"]
        await front.call("NotifyClientTermination", service.NotifyClientTerminationRequest(), PATIENT)
        await front.send("t", b"2", lite_topic="a")
        assert await receive(front) == []

    lite(scenario)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({}, []),
        ({"policy": "LAST"}, []),
        ({"policy": "MIN"}, [b"1"]),
        ({"policy": "MAX"}, []),
        ({"offset": 0}, [b"1"]),
        ({"tail_n": 1}, [b"2"]),
        ({"timestamp": 0}, [b"1"]),
    ],
)
def test_a_subscription_says_where_the_group_goes_on(
    lite: Any, option: dict[str, Any], expected: list[bytes]
) -> None:
    async def scenario(front: Any) -> None:
        await sync(front, "PARTIAL_ADD", "a")
        for body in (b"1", b"2"):
            await front.send("t", body, lite_topic="a")
            (got,) = await receive(front)
            await front.live.call(
                front.live.core.receiving.ack, "g", "t", got.system_properties.receipt_handle
            )
        status = await sync(front, "PARTIAL_ADD", "a", offset_option=wire.OffsetOption(**option))
        assert status.code == Code.OK
        assert bodies(await receive(front)) == expected

    lite(scenario)


def test_a_group_is_set_to_a_place_in_many_lite_topics_in_several_turns(
    lite: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lite_receiving, "MOVED_AT_ONCE", 2)
    names = [*"abcde"]

    async def scenario(front: Any) -> None:
        await sync(front, "PARTIAL_ADD", *names)
        for name in names:
            await front.send("t", name.encode(), lite_topic=name)
        for got in await receive(front):
            handle = got.system_properties.receipt_handle
            await front.live.call(front.live.core.receiving.ack, "g", "t", handle)
        turn, subscribed, subscribe = 0, list[tuple[int, list[str]]](), LiteSubscribing.subscribe

        async def count_turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        def noted(self: LiteSubscribing, who: Subscriber, some: list[str], *more: Any) -> SubscriptionResult:
            subscribed.append((turn, some))
            return subscribe(self, who, some, *more)

        monkeypatch.setattr(LiteSubscribing, "subscribe", noted)
        counting = asyncio.ensure_future(count_turns())
        status = await sync(front, "PARTIAL_ADD", *names, offset_option=wire.OffsetOption(policy="MIN"))
        counting.cancel()
        assert status.code == Code.OK
        assert [some for _, some in subscribed] == [["a", "b"], ["c", "d"], ["e"]]
        assert len({turn for turn, _ in subscribed}) == 3
        assert sorted(bodies(await receive(front))) == [name.encode() for name in names]

    lite(scenario)


@pytest.mark.parametrize("last", ["e", "not a name"])
def test_of_many_lite_topics_with_a_place_none_is_subscribed_to_if_one_cannot_be(
    lite: Any, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    monkeypatch.setattr(lite_receiving, "MOVED_AT_ONCE", 2)

    async def scenario(front: Any) -> None:
        option = wire.OffsetOption(policy="MIN")
        status = await sync(front, "PARTIAL_ADD", *"abcd", last, offset_option=option)
        assert status.code in (Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, Code.ILLEGAL_LITE_TOPIC)
        assert front.live.core.lite.lite_topics_of(Subscriber("g", "t", "client-1")) == []

    lite(scenario, lite_subscriptions_per_client_max=4)


@pytest.mark.parametrize(
    ("lite_topics", "more", "code"),
    [
        (("a b",), {}, Code.ILLEGAL_LITE_TOPIC),
        (("x" * 65,), {}, Code.ILLEGAL_LITE_TOPIC),
        (("aa", "b", "c"), {}, Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
        (("a",), {"offset_option": wire.OffsetOption(tail_n=-1)}, Code.BAD_REQUEST),
        (("a",), {"topic": wire.Resource(name="mixed")}, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (("a",), {"group": wire.Resource(name="")}, Code.ILLEGAL_CONSUMER_GROUP),
    ],
)
def test_what_cannot_be_subscribed_to_is_refused(
    lite: Any, lite_topics: tuple[str, ...], more: dict[str, Any], code: int
) -> None:
    async def scenario(front: Any) -> None:
        request = service.SyncLiteSubscriptionRequest(
            **{"topic": TOPIC, "group": GROUP, "lite_topic_set": lite_topics} | more
        )
        assert (await front.call("SyncLiteSubscription", request)).status.code == code

    lite(scenario, lite_subscriptions_per_client_max=2)


def test_one_lite_topic_too_many_is_refused(lite: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("t", b"x", lite_topic="a")
        reply = await front.send("t", b"y", lite_topic="b")
        assert reply.entries[0].status.code == Code.LITE_TOPIC_QUOTA_EXCEEDED

    lite(scenario, lite_topics_max=1)


def test_an_ordinary_consumer_is_refused(lite: Any) -> None:
    async def scenario(front: Any) -> None:
        described = wire.Settings(client_type="PUSH_CONSUMER")
        front.sessions.seen(PATIENT).describe(described)
        (reply,) = await front.receive("t")
        assert reply.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert "LitePushConsumer" in reply.status.message

    lite(scenario)


def test_who_loses_a_lite_topic_is_told(lite: Any) -> None:
    async def scenario(front: Any) -> None:
        await sync(front, "PARTIAL_ADD", "a")
        await front.live.groups.set("g", GroupPolicy(is_lite_exclusive=True))
        stream = front.sessions.open_stream(PATIENT)
        await sync(front, "PARTIAL_ADD", "a", caller=OTHER)
        command = await stream.next()
        assert command.notify_unsubscribe_lite_command.lite_topic == "a"
        await sync(front, "COMPLETE_ADD", "a")
        command = await stream.next()
        assert command.notify_unsubscribe_lite_command.lite_topic == "a"

    lite(scenario)


@pytest.mark.parametrize("client_type", ["LITE_PUSH_CONSUMER", "LITE_SIMPLE_CONSUMER"])
def test_a_consumer_of_lite_topics_is_told_its_quotas(play: Any, client_type: str) -> None:
    async def scenario(front: Any) -> None:
        said = wire.Settings(client_type=client_type, subscription=wire.Subscription(group=GROUP))
        told = settings.answer(said, front.live).settings.subscription
        assert (told.lite_subscription_quota, told.max_lite_topic_size, told.fifo) == (7, 30, False)
        await front.live.groups.set("g", GroupPolicy(fifo_run_max=2))
        assert settings.answer(said, front.live).settings.subscription.fifo

    play(scenario, lite_subscriptions_per_client_max=7, lite_topic_bytes_max=30)
