"""Receiving over gRPC, by a client process with low overhead (`parts/grpc_client.py` gives the reason)."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc

from parts.grpc_client import acknowledge, call, receive_request, sent
from parts.percentiles import figures
from parts.receive.core import TOPIC
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service

CALM_SECONDS = 0.01
POLL_SECONDS = 20


def over_grpc(endpoint: str, consumers: str, seconds: str) -> dict[str, Any]:
    """Let `consumers` receive and acknowledge batches for `seconds`; return the count and the rate."""
    return asyncio.run(_over_grpc(endpoint, int(consumers), float(seconds)))


async def _over_grpc(endpoint: str, consumers: int, seconds: float) -> dict[str, Any]:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        await consume(channel, time.perf_counter())
        began = time.perf_counter()
        ends = began + seconds
        counts = await asyncio.gather(*(consume(channel, ends) for _ in range(consumers)))
        rate = sum(counts) / (time.perf_counter() - began)
    return {"received_and_acknowledged_per_second": round(rate), "count": sum(counts)}


async def consume(channel: grpc.aio.Channel, ends: float) -> int:
    """Receive and acknowledge once, then until `ends` or an empty receive; return the message count."""
    receive, ack = call(channel, "ReceiveMessage", "unary_stream"), call(channel, "AckMessage")
    asked, count = receive_request(TOPIC), 0
    while True:
        got = [one.message async for one in receive(asked, timeout=30) if one.HasField("message")]
        if got:
            await acknowledge(ack, TOPIC, got)
        count += len(got)
        if not got or time.perf_counter() >= ends:
            return count


def wake_up(endpoint: str, rounds: str, asleep: str) -> dict[str, Any]:
    """Send repeatedly to a topic with a waiting consumer, while `asleep` polls wait on another topic.

    Return figures of the time from the send, and from its answer, to the receipt.
    """
    return asyncio.run(_wake_up(endpoint, int(rounds), int(asleep)))


async def _wake_up(endpoint: str, rounds: int, asleep: int) -> dict[str, Any]:
    async with grpc.aio.insecure_channel(endpoint) as channel, grpc.aio.insecure_channel(endpoint) as others:
        sleepers = [asyncio.create_task(polled(others, "silent")) for _ in range(asleep)]
        await asyncio.sleep(CALM_SECONDS * (1 + asleep))
        send, ack = call(channel, "SendMessage"), call(channel, "AckMessage")
        from_send, from_answer = [], []
        for number in range(rounds):
            waiting = asyncio.create_task(polled(channel, "awake"))
            await asyncio.sleep(CALM_SECONDS)
            began = time.perf_counter()
            answer = await send(service.SendMessageRequest(messages=[sent("awake", number)]))
            answered = time.perf_counter()
            assert answer.status.code == wire.Code.OK, answer.status
            got, woken = await waiting
            await acknowledge(ack, "awake", got)
            from_send.append((woken - began) * 1000)
            from_answer.append((woken - answered) * 1000)
            sleepers = [task if not task.done() else again(others) for task in sleepers]
        for task in sleepers:
            task.cancel()
        await asyncio.gather(*sleepers, return_exceptions=True)
    return {"from_the_send": figures(from_send), "from_its_answer": figures(from_answer)}


def again(channel: grpc.aio.Channel) -> asyncio.Task[Any]:
    """Open a new poll on the silent topic."""
    return asyncio.create_task(polled(channel, "silent"))


async def polled(channel: grpc.aio.Channel, topic: str) -> tuple[list[wire.Message], float]:
    """Wait for messages; return the messages, and the time of the first."""
    asked, got, woken = receive_request(topic), [], 0.0
    asked.long_polling_timeout.seconds = POLL_SECONDS
    async for one in call(channel, "ReceiveMessage", "unary_stream")(asked, timeout=2 * POLL_SECONDS):
        if one.HasField("message"):
            woken = woken or time.perf_counter()
            got.append(one.message)
    return got, woken
