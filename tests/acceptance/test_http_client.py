"""`tidewheel.Client` and `AsyncClient`, as applications use them, over a broker of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from tidewheel import AsyncClient, Client, Message, NewMessage, SomeRefused, Tidewheel, Verdict
from tidewheel.errors import (
    BrokerUnreachable,
    ClientMistake,
    InvalidReceiptHandle,
    RefusedByState,
    TidewheelError,
)

ODD_KEY = "order/7 ü 🌊?&=%"


class Order(BaseModel):
    """An order of the shop."""

    id: int
    sku: str


def test_a_message_is_sent_received_and_acknowledged(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    sent = client.send("orders", "order 7", tag="new", keys=["order-7"], properties={"by": "me"}, group="a")
    assert sent.topic == "orders"
    assert client.receive("orders", "shop", filter="paid", wait="0s") == []
    [message] = client.receive("orders", "audit", filter="new || paid")
    assert (message.id, message.topic, message.text, message.bytes) == (
        sent.id,
        "orders",
        "order 7",
        b"order 7",
    )
    assert (message.tag, message.keys, message.group, message.attempt) == ("new", ("order-7",), "a", 1)
    assert message.properties["by"] == "me"
    message.ack()
    assert client.receive("orders", "audit", wait="0s") == []
    with pytest.raises(InvalidReceiptHandle):
        message.ack()


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("text ü", lambda one: one.text),
        ("\x00" * 2_000_000, lambda one: one.text),
        (b"\xff\x00", lambda one: one.bytes),
        ({"id": 7, "price": 1.5, "tags": ["ü", None, True]}, lambda one: one.json()),
        ([1, 2], lambda one: one.json()),
        (Order(id=7, sku="22423"), lambda one: one.json(Order)),
    ],
)
def test_a_body_comes_as_it_was_given(tidewheel: Tidewheel, body: Any, read: Callable[[Any], Any]) -> None:
    tidewheel.client.send("orders", body)
    [message] = tidewheel.client.receive("orders", "shop")
    assert read(message) == body


def test_a_body_that_is_no_json_is_one_sentence(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    client.send_many([NewMessage("texts", "no json"), NewMessage("orders", "{}")])
    [text], [order] = (client.receive(topic, "shop") for topic in ("texts", "orders"))
    with pytest.raises(ClientMistake, match=r"no JSON: .*It begins b'no json'"):
        text.json()
    with pytest.raises(ClientMistake, match="no Order: id: Field required"):
        order.json(Order)


def test_a_delayed_message_is_looked_at_moved_fired_and_cancelled_by_its_key(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    timer = client.timer("deadlines", ODD_KEY)
    assert not timer.cancel()
    assert timer.get().verdict is Verdict.NEVER_SET
    client.send("deadlines", "not paid", delay="30m", key=ODD_KEY)
    pending = timer.get()
    assert pending
    assert (pending.verdict, pending.body) == (Verdict.PENDING, b"not paid")
    moved = timer.move(timedelta(hours=2))
    assert moved
    assert moved.verdict is Verdict.MOVED
    assert moved.due == pending.due
    assert timer.get().due == moved.at
    assert timer.cancel("paid").verdict is Verdict.CANCELLED
    again = timer.cancel()
    assert again, "it is cancelled, as asked"
    assert again.verdict is Verdict.ALREADY
    assert again.at is not None
    late = timer.move("1h")
    assert not late
    assert late.verdict is Verdict.ALREADY


def test_a_message_carries_a_verb_on_a_timer_and_gets_its_verdict(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    timer = client.timer("deadlines", "order:7")
    assert client.send("orders", "plain").verdict is None
    client.send("deadlines", "not paid", delay="30m", key="order:7")
    moved = client.send("orders", "more time", move=(timer, "1h")).verdict
    assert (moved and moved.verdict) is Verdict.MOVED
    for verdict in (Verdict.CANCELLED, Verdict.ALREADY):
        cancelled = client.send("orders", "paid", cancel=timer).verdict
        assert cancelled, "it is cancelled, as asked"
        assert cancelled.verdict is verdict
    fired = client.send("orders", "now", fire=timer).verdict
    assert fired is not None
    assert not fired
    with pytest.raises(ClientMistake, match="carries one of"):
        client.send("orders", "both", fire=timer, cancel=timer)
    sent = client.send_many([NewMessage("orders", "paid", cancel=client.timer("deadlines", "never"))])
    assert [one.verdict.verdict for one in sent if one.verdict is not None] == [Verdict.NEVER_SET]


def test_a_timer_that_was_delivered_is_too_late_to_cancel(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    client.send("deadlines", "a", delay="30m", key="a")
    client.send("deadlines", "b", at=datetime.now(UTC) + timedelta(days=1), key="b")
    tidewheel.advance("30m")
    [message] = client.receive("deadlines", "shop")
    assert (message.text, message.key) == ("a", "a")
    too_late = client.timer("deadlines", "a").cancel()
    assert not too_late
    assert too_late.verdict is Verdict.TOO_LATE
    assert client.timer("deadlines", "b").fire()
    [message] = client.receive("deadlines", "shop")
    assert message.text == "b"


def test_a_taken_key_is_refused_when_unique_and_replaced_otherwise(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    client.send("deadlines", "first", delay="1h", key="k")
    with pytest.raises(RefusedByState):
        client.send("deadlines", "second", delay="1h", key="k", unique=True)
    client.send("deadlines", "third", delay="1h", key="k")
    assert client.timer("deadlines", "k").get().body == b"third"


def test_a_message_comes_again_by_retry_and_dies_by_reject(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    client.send("orders", "order 7")
    [message] = client.receive("orders", "shop", lease="30s")
    message.retry(after="10m")
    assert client.receive("orders", "shop", wait="0s") == []
    tidewheel.advance("10m")
    [message] = client.receive("orders", "shop", lease="30s")
    assert message.attempt == 2
    message.extend("10m")
    tidewheel.advance("1m")
    assert client.receive("orders", "shop", wait="0s") == [], "the lease was extended"
    message.reject()
    tidewheel.advance("1h")
    assert client.receive("orders", "shop", wait="0s") == []


def test_a_lease_that_ended_refuses_each_end_and_nothing_is_lost(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    client.send("orders", "order 7")
    [message] = client.receive("orders", "shop", lease="30s")
    tidewheel.advance("1m")
    [again] = client.receive("orders", "shop", lease="30s")
    for end in (message.ack, message.retry, message.reject, lambda: message.extend("1m")):
        with pytest.raises(InvalidReceiptHandle):
            end()
    again.ack()


def test_many_messages_are_sent_and_each_refusal_is_told(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    sent = client.send_many(NewMessage("orders", str(number)) for number in range(1_201))
    assert len({one.id for one in sent}) == 1_201
    mixed = [
        NewMessage("orders", "sound"),
        NewMessage("orders", "x", delay="30"),
        NewMessage("no topic!", "x"),
        NewMessage("orders", "sound, too"),
    ]
    with pytest.raises(SomeRefused, match=r"2 of 4, the first is number 1: .*without a unit") as refused:
        client.send_many(mixed)
    kinds = [isinstance(one, TidewheelError) for one in refused.value.results]
    assert kinds == [False, True, True, False]
    assert client.send_many([]) == []


def test_the_same_send_under_an_idempotency_key_is_stored_once(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    first, second = (client.send("orders", "order 9", idempotency_key="order-9") for _ in range(2))
    assert first == second
    assert len(client.receive("orders", "shop", count=2)) == 1


def test_a_receive_of_too_many_and_a_name_with_a_slash_are_told(tidewheel: Tidewheel) -> None:
    with pytest.raises(ClientMistake, match="count is 10000: an answer has 1 to 32 messages"):
        tidewheel.client.receive("orders", "shop", count=10_000)
    with pytest.raises(ClientMistake, match="cannot be the name of a group"):
        tidewheel.client.receive("orders", "a/b", wait="0s")


def test_all_of_it_is_awaited_in_asyncio(tidewheel: Tidewheel) -> None:
    async def scenario() -> None:
        async with AsyncClient(tidewheel.http, namespace=tidewheel.namespace) as client:
            waiting = asyncio.ensure_future(client.receive("orders", "shop"))
            await client.send("orders", Order(id=7, sku="22423"))
            messages = await waiting
            while not messages:  # the topic may have been made after the receive
                messages = await client.receive("orders", "shop")
            assert messages[0].json(Order).id == 7
            await messages[0].extend("2m")
            await messages[0].ack()
            await client.send_many([NewMessage("deadlines", "x", delay="1h", key="k")])
            timer = client.timer("deadlines", "k")
            assert await timer.get()
            assert (await timer.cancel()).verdict is Verdict.CANCELLED
            assert not await timer.fire()

    for _ in range(2):
        asyncio.run(scenario())


def test_threads_share_a_client(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    with ThreadPoolExecutor(8) as threads:
        sent = list(threads.map(lambda number: client.send("orders", str(number)), range(100)))
        assert len({one.id for one in sent}) == 100
        got = [one.text for found in threads.map(lambda _: drained(client), range(8)) for one in found]
    assert sorted(got, key=int) == [str(number) for number in range(100)]


def drained(client: Client) -> list[Message[None]]:
    """Receive and acknowledge until nothing is left."""
    done = []
    while found := client.receive("orders", "shop", wait="0s"):
        for message in found:
            message.ack()
        done += found
    return done


def test_a_client_is_used_again_in_another_loop(tidewheel: Tidewheel) -> None:
    client = AsyncClient(tidewheel.http, namespace=tidewheel.namespace)
    for number in range(2):
        asyncio.run(client.send("orders", str(number)))  # type: ignore[arg-type]  # run wants a coroutine


def test_a_broker_that_is_gone_and_one_that_comes_back(tidewheel: Tidewheel) -> None:
    client = tidewheel.client
    client.send("orders", "before")
    tidewheel.crash()
    with pytest.raises(BrokerUnreachable, match="There is no Tidewheel HTTP interface at http://127") as gone:
        client.send("orders", "meanwhile")
    assert gone.value.__cause__ is None
    assert gone.value.__context__ is None, "no traceback of a library"
    tidewheel.restart()
    client.send("orders", "after")


def test_the_port_for_grpc_is_told_from_that_for_http(tidewheel: Tidewheel) -> None:
    with pytest.raises(TidewheelError, match="8081 is for gRPC") as wrong:
        Client(tidewheel.endpoint).send("orders", "x")
    assert isinstance(wrong.value, BrokerUnreachable), wrong.value
