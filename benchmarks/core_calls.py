"""What a call costs a broker without a transport: parsed from its bytes, served, and answered in bytes.

Run by `core.py` in a process whose imports come from one tree of sources; prints JSON: processor microseconds
of the whole process for each message of each row, flushes included, on a real disk that is really synced.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from commitlog.real_disk import RealDisk
from services.broker.settings import BrokerSettings
from services.live.live_broker import LiveBroker
from services.rpc.caller import Caller
from services.rpc.endpoints import Advertised
from services.rpc.everything import all_rpcs
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.service import reply_to, stream_to
from services.rpc.sessions import Sessions

TOPIC, GROUP = "orders", "carts"
IN_FLIGHT, BATCH, RECEIVED = 64, 16, 32
BODY = bytes(range(256))
LEASE_SECONDS = 600
FLUSH_THREADS = 4
Call = Callable[[int], Awaitable[None]]


class Front:
    """The table of RPCs over a live broker."""

    def __init__(self, folder: Path, writer: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        settings = BrokerSettings(segment_bytes=1 << 26, queue_count=4)
        self.live = LiveBroker(RealDisk(folder), settings, now_ms, loop.call_later, writer)
        self._rpcs = all_rpcs(self.live, Sessions(now_ms), Advertised("127.0.0.1", 8081, boot=0))
        self._caller = Caller("bench-1", language="JAVA", version="5.0.7", seconds_left=60)
        self._observed = [_pass] * ("observe" in inspect.signature(stream_to).parameters)

    async def call(self, name: str, request: Any) -> bytes:
        """Serves a call from its bytes to those of its answer."""
        parsed = type(request).FromString(request.SerializeToString())
        reply = await reply_to(name, self._rpcs[name], parsed, self._caller, _pass)
        return bytes(reply.SerializeToString())

    async def stream(self, name: str, request: Any) -> AsyncIterator[Any]:
        """The answers of a call that has several, each made bytes too."""
        parsed = type(request).FromString(request.SerializeToString())
        async for reply in stream_to(name, self._rpcs[name], parsed, self._caller, *self._observed):
            reply.SerializeToString()
            yield reply


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _pass(*_: Any) -> None:
    """Nobody counts the calls."""


def message(number: int, prefix: str, **system: Any) -> wire.Message:
    """256 bytes with a key and two properties."""
    marks = wire.SystemProperties(
        message_id=f"{prefix}{number:028d}", keys=[f"order-{number}"], born_timestamp=system.pop("born", None)
    )
    for name, value in system.items():
        if name == "delivery_timestamp":
            marks.delivery_timestamp.seconds = value
        else:
            setattr(marks, name, value)
    return wire.Message(
        topic=wire.Resource(name=TOPIC),
        body=BODY,
        system_properties=marks,
        user_properties={"shop": "north", "colour": "blue"},
    )


def request_of(*messages: wire.Message) -> service.SendMessageRequest:
    return service.SendMessageRequest(messages=messages)


async def many(call: Call, count: int, in_flight: int) -> None:
    """So many calls, so many at once."""
    numbers = iter(range(count))

    async def one_after_another() -> None:
        for number in numbers:
            await call(number)

    await asyncio.gather(*(one_after_another() for _ in range(in_flight)))


async def timed(call: Call, count: int, in_flight: int, messages_each: int = 1) -> float:
    """Processor microseconds of the process for each message."""
    began = time.process_time_ns()
    await many(call, count, in_flight)
    return (time.process_time_ns() - began) / 1_000 / (count * messages_each)


async def sends(front: Front, count: int) -> dict[str, float]:
    """The rows of producers."""

    def sender(prefix: str, each: int = 1, **system: Any) -> Call:
        async def send(number: int) -> None:
            batch = [message(number * each + place, prefix, **system) for place in range(each)]
            await front.call("SendMessage", request_of(*batch))

        return send

    due = now_ms() // 1_000 + 86_400
    delayed = {"message_type": wire.DELAY, "delivery_timestamp": due}
    await many(sender("W"), 500, IN_FLIGHT)
    return {
        "send_1_of_64_in_flight": await timed(sender("A"), count, IN_FLIGHT),
        "send_1_alone_in_a_turn": await timed(sender("B"), count // 8, 1),
        "send_16_in_a_request": await timed(sender("C", BATCH), count // BATCH, 4, BATCH),
        "delayed_set": await timed(sender("D", **delayed), count, IN_FLIGHT),
        "half_and_commit": await timed(committer(front), count // 2, IN_FLIGHT),
        "of_which_a_message_is_made_and_serialized": await timed(making, count, 1),
    }


async def making(number: int) -> None:
    """What the client's side costs of each row above, once for each message."""
    request_of(message(number, "M")).SerializeToString()


def committer(front: Front) -> Call:
    async def commit(number: int) -> None:
        half = message(number, "H", message_type=wire.TRANSACTION)
        reply = service.SendMessageResponse.FromString(await front.call("SendMessage", request_of(half)))
        ended = service.EndTransactionRequest(
            topic=half.topic,
            message_id=half.system_properties.message_id,
            transaction_id=reply.entries[0].transaction_id,
            resolution=wire.COMMIT,
        )
        await front.call("EndTransaction", ended)

    return commit


async def receives(front: Front, count: int) -> dict[str, float]:
    """The rows of consumers."""
    taken: list[list[wire.Message]] = []
    wanted = service.ReceiveMessageRequest(
        group=wire.Resource(name=GROUP),
        message_queue=wire.MessageQueue(topic=wire.Resource(name=TOPIC)),
        batch_size=RECEIVED,
    )
    wanted.invisible_duration.seconds = LEASE_SECONDS

    async def receive(_: int) -> None:
        replies = [reply async for reply in front.stream("ReceiveMessage", wanted)]
        taken.append([reply.message for reply in replies if reply.WhichOneof("content") == "message"])

    def acknowledger(batches: list[list[wire.Message]]) -> Call:
        async def acknowledge(number: int) -> None:
            await front.call("AckMessage", acknowledgement(batches[number]))

        return acknowledge

    received = await timed(receive, count // RECEIVED, 1, RECEIVED)
    assert all(len(batch) == RECEIVED for batch in taken), "a receive was not full"
    half = len(taken) // 2
    ones = [[one] for batch in taken[half:] for one in batch]
    return {
        "receive_32_each": received,
        "acknowledge_32_in_a_call_each": await timed(acknowledger(taken[:half]), half, 4, RECEIVED),
        "acknowledge_1_in_a_call": await timed(acknowledger(ones), len(ones), IN_FLIGHT),
    }


def acknowledgement(batch: list[wire.Message]) -> service.AckMessageRequest:
    entries = [
        service.AckMessageEntry(
            message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
        )
        for one in batch
    ]
    return service.AckMessageRequest(
        group=wire.Resource(name=GROUP), topic=wire.Resource(name=TOPIC), entries=entries
    )


async def measure(folder: Path, count: int) -> dict[str, float]:
    with ThreadPoolExecutor(FLUSH_THREADS) as writer:
        front = Front(folder, writer)
        figures = await sends(front, count) | await receives(front, count)
    return {name: round(value, 1) for name, value in figures.items()}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(Path(sys.argv[1]), int(sys.argv[2])))))
