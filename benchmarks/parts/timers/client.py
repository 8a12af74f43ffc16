"""A producer and a consumer as separate processes, over gRPC."""

from __future__ import annotations

import asyncio
import time

import grpc

from parts.grpc_client import acknowledge, call, receive_request, sent
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service

PATIENCE_SECONDS = 60.0
POLLS = 4


def produce(endpoint: str, topic: str, per_second: str, from_s: str, until_s: str) -> list[list[float]]:
    """Send at a constant rate, independent of the answers.

    Return (intended send time in seconds, milliseconds from then to the answer) of each.
    """
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


def consume(endpoint: str, topic: str, count: str) -> list[float]:
    """Receive and acknowledge `count` delayed messages; return the lateness of each in milliseconds."""
    return asyncio.run(_consume(endpoint, topic, int(count)))


async def _consume(endpoint: str, topic: str, count: int) -> list[float]:
    late: list[float] = []
    async with grpc.aio.insecure_channel(endpoint) as channel:
        await asyncio.gather(*(receive_all(channel, topic, count, late) for _ in range(POLLS)))
    return late


async def receive_all(channel: grpc.aio.Channel, topic: str, count: int, late: list[float]) -> None:
    """Receive until there are `count`, or none has arrived for `PATIENCE_SECONDS`."""
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
