"""What a receive answers is bounded by bytes, and what clients have not read, and what waits for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from commitlog import limits
from commitlog.records.message import MessageType
from services.broker.groups.group_values import GroupStart
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.generated.service_pb2 import ReceiveMessageRequest

BODY = b"." * 1_000


async def send(front: Any, count: int, **system: Any) -> None:
    for number in range(count):
        reply = await front.send("t", BODY, message_id=f"M{front.now_ms}-{number}", **system)
        assert reply.status.code == Code.OK


def ids(replies: list[Any]) -> list[str]:
    return [one.message.system_properties.message_id[-1] for one in replies if one.HasField("message")]


def record_bytes(front: Any) -> int:
    queue = next(queue for topic, _, queue in front.live.core.store.dispatch.queues() if topic == "t")
    return int(queue.entry(0).record_bytes)


@pytest.mark.parametrize("message_group", ["", "a"], ids=["plain", "fifo run"])
def test_an_answer_has_so_many_bytes_and_the_next_one_has_the_rest(
    play: Any, monkeypatch: pytest.MonkeyPatch, message_group: str
) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(
            front.live.core.topics.create, "t", MessageType.FIFO if message_group else MessageType.NORMAL, 1
        )
        await send(front, 5, message_group=message_group)
        if message_group:
            policy = front.live.core.groups.policy("g")
            create = partial(front.live.core.group_views.create, policy=replace(policy, fifo_run_max=32))
            await front.live.call(create, "g", "t", GroupStart())
        monkeypatch.setattr(limits, "RECEIVE_BYTES_MAX", 2 * len(BODY) + record_bytes(front))
        first = await front.receive("t")
        assert ids(first) == ["0", "1", "2"], "at the limit"
        handles = [one.message.system_properties.receipt_handle for one in first if one.HasField("message")]
        for handle in handles:
            await front.live.call(front.live.core.receiving.ack, "g", "t", handle)
        assert ids(await front.receive("t")) == ["3", "4"]

    play(scenario)


def test_one_byte_less_is_one_message_less_and_one_message_comes_in_any_case(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        await send(front, 5)
        monkeypatch.setattr(limits, "RECEIVE_BYTES_MAX", len(BODY) + record_bytes(front) - 1)
        assert ids(await front.receive("t")) == ["0"]
        monkeypatch.setattr(limits, "RECEIVE_BYTES_MAX", 1)
        assert ids(await front.receive("t")) == ["1"]

    play(scenario)


def test_whoever_waits_beside_is_woken_for_what_did_not_fit(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECEIVE_BYTES_MAX", 1)

    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        polls = [asyncio.create_task(front.receive("t")) for _ in range(3)]
        await asyncio.sleep(0)
        messages = [
            wire.Message(
                topic=wire.Resource(name="t"),
                body=BODY,
                system_properties=wire.SystemProperties(message_id=f"M{number}"),
            )
            for number in range(3)
        ]
        await front.call("SendMessage", service.SendMessageRequest(messages=messages))
        assert sorted([name for one in polls for name in ids(await one)]) == ["0", "1", "2"]

    play(scenario)


def test_what_clients_do_not_read_is_bounded_in_all(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECEIVE_BYTES_MAX", 1)
    monkeypatch.setattr(limits, "ANSWERS_BYTES_MAX", 2 * len(BODY))

    async def scenario(front: Any) -> None:
        await send(front, 4)
        unread = [await opened(front) for _ in range(2)]
        assert front.live.receivers.unread_bytes == 2 * len(BODY)
        [refused] = await front.receive("t")
        assert refused.status.code == Code.TOO_MANY_REQUESTS
        assert "TW-226" in refused.status.message
        await unread[0].aclose()
        assert front.live.receivers.unread_bytes == len(BODY)
        assert len(ids(await front.receive("t"))) == 1
        await unread[1].aclose()
        assert front.live.receivers.unread_bytes == 0

    play(scenario)


async def opened(front: Any) -> AsyncIterator[Any]:
    """A receive whose client has read the status, and reads on no more."""
    request = ReceiveMessageRequest(
        group=wire.Resource(name="g"),
        message_queue=wire.MessageQueue(topic=wire.Resource(name="t")),
        batch_size=1,
    )
    replies: AsyncIterator[Any] = front.stream("ReceiveMessage", request)
    assert (await anext(replies)).status.code == Code.OK
    return replies


def test_sends_wait_for_a_slow_disk_and_are_refused_when_too_many_wait(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CALLERS_UNFLUSHED_BYTES_MAX", 3 * len(BODY))
    monkeypatch.setattr(limits, "CALLERS_WAITING_BYTES_MAX", 4 * (len(BODY) + limits.CALLER_WAITING_BYTES))
    stuck = asyncio.Event()

    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        begin, front.live._flushing._begin_flush = front.live._flushing._begin_flush, stuck.set
        sends = [asyncio.create_task(front.send("t", BODY, message_id=f"M{number}")) for number in range(9)]
        for _ in range(200):
            await asyncio.sleep(0)
        done, waiting = [one for one in sends if one.done()], [one for one in sends if not one.done()]
        assert {one.result().status.code for one in done} == {Code.TOO_MANY_REQUESTS}
        assert all("TW-225" in one.result().status.message for one in done)
        unflushed = front.live.core.end_offset - front.live.core.durable_offset
        assert unflushed <= 3 * (len(BODY) + 300)
        assert len(waiting) == 9 - len(done)
        assert len(done) >= 3
        front.live._flushing._begin_flush = begin
        begin()
        await asyncio.gather(*waiting)
        assert {one.result().status.code for one in waiting} == {Code.OK}

    play(scenario)
