"""A producer and a consumer as processes of their own, over gRPC, with as little of their own as possible.

An official client's own share of a call is as large as the server's, and both share the machine here, so the
calls are made by grpc.aio with the protocol's own messages: a send each, receives of 32, acks of 32.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.service import NAME

GROUP = wire.Resource(name="stopwatch")
PATIENCE_SECONDS = 60.0
POLLS = 4


def call(channel: grpc.aio.Channel, name: str, shape: str = "unary_unary") -> Any:
    """Return one call of the service."""
    codec = service.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[name]
    request, reply = (getattr(service, one.name) for one in (codec.input_type, codec.output_type))
    made = getattr(channel, shape)(f"/{NAME}/{name}", request.SerializeToString, reply.FromString)
    metadata = (("x-mq-client-id", f"bench-{name}"),)
    return lambda asked, **options: made(asked, metadata=metadata, **options)


def produce(endpoint: str, topic: str, per_second: str, from_s: str, until_s: str) -> list[list[float]]:
    """Send at a steady rate whatever the answers do; return (when it was to go, milliseconds it took)."""
    return asyncio.run(_produce(endpoint, topic, int(per_second), float(from_s), float(until_s)))


async def _produce(
    endpoint: str, topic: str, per_second: int, from_s: float, until_s: float
) -> list[list[float]]:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        send, took = call(channel, "SendMessage"), []

        async def one(number: int, due_s: float) -> None:
            answer = await send(service.SendMessageRequest(messages=[sent(topic, number)]))
            assert answer.status.code == wire.Code.OK, answer.status
            took.append([due_s, (time.time() - due_s) * 1000])

        await one(-1, time.time())
        took.clear()
        under_way = []
        for number in range(int((until_s - from_s) * per_second)):
            due_s = from_s + number / per_second
            await asyncio.sleep(max(0.0, due_s - time.time()))
            under_way.append(asyncio.create_task(one(number, due_s)))
        await asyncio.gather(*under_way)
        return took


def sent(topic: str, number: int) -> wire.Message:
    """Return a message of 256 bytes."""
    system = wire.SystemProperties(message_id=f"P{number:033d}", message_type=wire.MessageType.NORMAL)
    system.born_timestamp.GetCurrentTime()
    return wire.Message(topic=wire.Resource(name=topic), system_properties=system, body=bytes(256))


def consume(endpoint: str, topic: str, count: str) -> list[float]:
    """Receive and acknowledge so many delayed messages; return each one's milliseconds after its due time."""
    return asyncio.run(_consume(endpoint, topic, int(count)))


async def _consume(endpoint: str, topic: str, count: int) -> list[float]:
    late: list[float] = []
    async with grpc.aio.insecure_channel(endpoint) as channel:
        await asyncio.gather(*(receive_all(channel, topic, count, late) for _ in range(POLLS)))
    return late


async def receive_all(channel: grpc.aio.Channel, topic: str, count: int, late: list[float]) -> None:
    """Receive until there are enough, or nothing comes any more."""
    receive, ack = call(channel, "ReceiveMessage", "unary_stream"), call(channel, "AckMessage")
    asked, heard_s = receive_request(topic), time.monotonic()
    while len(late) < count and time.monotonic() - heard_s < PATIENCE_SECONDS:
        got = [one.message async for one in receive(asked, timeout=10) if one.HasField("message")]
        now_ms = time.time() * 1000
        for message in got:
            due = message.system_properties.delivery_timestamp
            late.append(now_ms - (due.seconds * 1000 + due.nanos / 1_000_000))
        if got:
            heard_s = time.monotonic()
            await acknowledge(ack, topic, got)


def receive_request(topic: str) -> service.ReceiveMessageRequest:
    """Ask for as many as one call may bring, and wait for them."""
    asked = service.ReceiveMessageRequest(
        group=GROUP,
        message_queue=wire.MessageQueue(topic=wire.Resource(name=topic)),
        batch_size=32,
    )
    asked.invisible_duration.seconds = 60
    asked.long_polling_timeout.seconds = 2
    return asked


async def acknowledge(ack: Any, topic: str, got: list[wire.Message]) -> None:
    """Acknowledge a batch in one call."""
    entries = [
        service.AckMessageEntry(
            message_id=message.system_properties.message_id,
            receipt_handle=message.system_properties.receipt_handle,
        )
        for message in got
    ]
    asked = service.AckMessageRequest(group=GROUP, topic=wire.Resource(name=topic), entries=entries)
    answer = await ack(asked)
    assert answer.status.code == wire.Code.OK, answer.status
