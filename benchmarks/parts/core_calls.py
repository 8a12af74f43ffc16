"""Cost of a call to a broker without a transport: parsed from its bytes, served, and answered in bytes.

Run by `core.py` in a process whose imports come from one tree of sources; prints JSON: processor microseconds
of the whole process for each message of each row, flushes included, on a real disk with syncs. Requests are
built before the measurement. Calls are passed in lists (`services.rpc.serving.turns`): all that are ready in
a turn of the loop form one list, or (row `alone`) one call per turn. Further rows count the calls, functions
and files of the broker's sources that one message passes.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, cast

from services.live.live_broker import LiveBroker
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.rpcs import all_rpcs

try:
    from commitlog.disk.real_disk import RealDisk
except ImportError:  # older commits, which are measured too, have another package layout
    from commitlog.real_disk import RealDisk  # type: ignore[import-not-found, no-redef]
try:
    from services.broker.spine.settings import BrokerSettings
    from services.rpc.clients.sessions import Sessions
    from services.rpc.serving.service import stream_to
    from services.rpc.serving.turns import Call, CallScheduler
    from services.rpc.wire.caller import Caller
    from services.rpc.wire.endpoints import Advertised
except ImportError:
    from services.broker.settings import BrokerSettings  # type: ignore[import-not-found, no-redef]
    from services.rpc.caller import Caller  # type: ignore[import-not-found, no-redef]
    from services.rpc.endpoints import Advertised  # type: ignore[import-not-found, no-redef]
    from services.rpc.service import stream_to  # type: ignore[import-not-found, no-redef]
    from services.rpc.sessions import Sessions  # type: ignore[import-not-found, no-redef]
    from services.rpc.turns import Call  # type: ignore[import-not-found, no-redef]
    from services.rpc.turns import Turns as CallScheduler  # type: ignore[no-redef]

HAS_BYTES = "request_bytes" in Call.__slots__
"""Whether a call takes the size of its request: in older commits it does not."""
TOPIC, GROUP = "orders", "carts"
IN_FLIGHT, BATCH, RECEIVED = 64, 16, 32
BODY = bytes(range(256))
LEASE_SECONDS = 600
FLUSH_THREADS = 4
CALLER = Caller("bench-1", language="JAVA", version="5.0.7", seconds_left=60)


class Front:
    """The table of RPCs over a live broker."""

    def __init__(self, folder: Path, writer: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        settings = BrokerSettings(segment_bytes=1 << 26, queue_count=4)
        self.live = LiveBroker(RealDisk(folder), settings, now_ms, loop.call_later, writer)
        self.rpcs = all_rpcs(self.live, Sessions(now_ms), Advertised("127.0.0.1", 8081, boot=0))

    async def unary(
        self, name: str, requests: Sequence[bytes], in_flight: int, *, alone: bool
    ) -> list[bytes]:
        """Return the replies to calls, of which `in_flight` are open at once."""
        return await Lists(self, name, requests, alone=alone).played(in_flight)

    async def stream(self, name: str, request: bytes) -> list[bytes]:
        """Return the replies to a streaming call."""
        rpc: Any = self.rpcs[name]
        replies = stream_to(name, rpc, rpc.request.FromString(request), CALLER, *OBSERVED)
        return [one if isinstance(one, bytes) else one.SerializeToString() async for one in replies]


class Lists:
    """Calls of one RPC, passed in lists: all that are ready in a turn of the loop, or one."""

    def __init__(self, front: Front, name: str, requests: Sequence[bytes], *, alone: bool) -> None:
        self._name, self._rpc = name, cast(Any, front.rpcs[name])
        self._turns, self._loop = CallScheduler(front.live), asyncio.get_running_loop()
        self._requests, self._replies = iter(requests), list[bytes]()
        self._count, self._alone = len(requests), alone
        self._ready: deque[bytes] = deque()
        self._planned = False
        self._ended = self._loop.create_future()

    async def played(self, in_flight: int) -> list[bytes]:
        """Make all calls; return the replies in order of arrival."""
        for _, request in zip(range(in_flight), self._requests, strict=False):
            self._add(request)
        await self._ended
        return self._replies

    def _add(self, request: bytes) -> None:
        self._ready.append(request)
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        count = 1 if self._alone else len(self._ready)
        parse = self._rpc.request.FromString
        calls = []
        for _ in range(count):
            came = self._ready.popleft()
            call_bytes: list[Any] = [len(came)] if HAS_BYTES else []
            given = [self._name, self._rpc, parse(came), *call_bytes, CALLER, self._told, unobserved]
            calls.append(Call(*given))
        self._turns.take(calls)
        self._planned = bool(self._ready)
        if self._planned:
            self._loop.call_soon(self._turn)

    def _told(self, reply: bytes, _: str) -> None:
        self._replies.append(reply)
        following = next(self._requests, None)
        if following is not None:
            self._add(following)
        elif len(self._replies) == self._count:
            self._ended.set_result(None)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def unobserved(*_: Any) -> None:
    """Record nothing: the figures exclude the front's metrics."""


OBSERVED = [unobserved] * ("observe" in inspect.signature(stream_to).parameters)


def message(number: int, prefix: str, **system: Any) -> wire.Message:
    """Return a message of 256 bytes with a key and two properties."""
    marks = wire.SystemProperties(message_id=f"{prefix}{number:028d}", keys=[f"order-{number}"])
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


def sends_of(prefix: str, count: int, each: int = 1, **system: Any) -> list[bytes]:
    """Return the bytes of `count` requests with `each` messages each."""
    return [
        service.SendMessageRequest(
            messages=[message(number * each + place, prefix, **system) for place in range(each)]
        ).SerializeToString()
        for number in range(count)
    ]


class Clock:
    """Processor microseconds of the process for each message, since the clock was created."""

    def __init__(self) -> None:
        self._began = time.process_time_ns()

    def each(self, count: int) -> float:
        return (time.process_time_ns() - self._began) / 1_000 / count


async def timed(
    front: Front, name: str, requests: list[bytes], in_flight: int, each: int = 1, *, alone: bool = False
) -> float:
    """Return the cost of a message of these calls, in microseconds."""
    clock = Clock()
    replies = await front.unary(name, requests, in_flight, alone=alone)
    cost = clock.each(len(requests) * each)
    reply: Any = front.rpcs[name].reply
    assert all(reply.FromString(one).status.code == wire.OK for one in replies), "a call was refused"
    return cost


async def sends(front: Front, count: int) -> dict[str, float]:
    """Return the figures of producers, by row."""
    due = now_ms() // 1_000 + 86_400
    delayed = {"message_type": wire.DELAY, "delivery_timestamp": due}
    send = "SendMessage"
    await timed(front, send, sends_of("W", 500), IN_FLIGHT)
    return {
        "send_1_of_64_in_flight": await timed(front, send, sends_of("A", count), IN_FLIGHT),
        "send_1_alone_in_a_turn": await timed(front, send, sends_of("B", count), IN_FLIGHT, alone=True),
        "send_1_and_wait_for_it": await timed(front, send, sends_of("E", count // 8), 1),
        "send_16_in_a_request": await timed(front, send, sends_of("C", count // BATCH, BATCH), 4, BATCH),
        "delayed_set": await timed(front, send, sends_of("D", count, **delayed), IN_FLIGHT),
        "half_and_commit": await halves(front, count // 2),
    }


async def halves(front: Front, count: int) -> float:
    """Return the cost of a half and its commit together, in microseconds."""
    requests = sends_of("H", count, message_type=wire.TRANSACTION)
    clock = Clock()
    replies = await front.unary("SendMessage", requests, IN_FLIGHT, alone=False)
    cost = clock.each(count)
    return cost + await timed(front, "EndTransaction", commits_of(replies), IN_FLIGHT)


def commits_of(replies: list[bytes]) -> list[bytes]:
    """Return the requests that commit the halves of these replies."""
    entries = [service.SendMessageResponse.FromString(reply).entries[0] for reply in replies]
    return [
        service.EndTransactionRequest(
            topic=wire.Resource(name=TOPIC),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=wire.COMMIT,
        ).SerializeToString()
        for entry in entries
    ]


async def passed(front: Front) -> dict[str, float]:
    """Count the calls, functions and files of the broker's sources that a message passes, flush included."""
    calls: list[tuple[str, int]] = []
    ours = str(Path(inspect.getfile(LiveBroker)).parents[2])

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ours) and "benchmarks" not in code.co_filename:
            calls.append((code.co_filename, code.co_firstlineno))

    async def sent(requests: list[bytes]) -> list[bytes]:
        return await front.unary("SendMessage", requests, 1, alone=False)

    async def delivered(requests: list[bytes]) -> None:
        await sent(requests)
        front.live.tick()
        await front.live._flushing.idle()

    async def committed(requests: list[bytes]) -> None:
        await front.unary("EndTransaction", commits_of(await sent(requests)), 1, alone=False)

    async def received(_: list[bytes]) -> None:
        taken.extend(messages_of(await front.stream("ReceiveMessage", receive_of(1))))

    async def acknowledged(_: list[bytes]) -> None:
        await front.unary("AckMessage", [acknowledgement([taken.pop()])], 1, alone=False)

    taken: list[wire.Message] = []
    due = now_ms() // 1_000
    ways: dict[str, tuple[Callable[[list[bytes]], Awaitable[object]], dict[str, Any]]] = {
        "send": (sent, {}),
        "delayed": (sent, {"message_type": wire.DELAY, "delivery_timestamp": due + 86_400}),
        "delayed_and_its_delivery": (delivered, {"message_type": wire.DELAY, "delivery_timestamp": due - 1}),
        "half_and_commit": (committed, {"message_type": wire.TRANSACTION}),
        "receive": (received, {}),
        "acknowledge": (acknowledged, {}),
    }
    found: dict[str, float] = {}
    threading.setprofile(note)
    with ThreadPoolExecutor(1) as writer:
        front.live._flushing._executor = writer
        for number, (way, (play, system)) in enumerate(ways.items()):
            for prefix in "YZ":  # initialisation at the first use is not counted
                requests = sends_of(f"{prefix}{number}", 1, **system)
                calls.clear()
                sys.setprofile(note)
                await play(requests)
                await front.live._flushing.idle()
                sys.setprofile(None)
            found[f"calls_of_a_lone_{way}"] = len(calls)
            found[f"functions_of_a_lone_{way}"] = len(set(calls))
            found[f"files_of_a_lone_{way}"] = len({file for file, _ in calls})
    threading.setprofile(None)
    return found


async def receives(front: Front, count: int) -> dict[str, float]:
    """Return the figures of consumers, by row."""
    request, calls = receive_of(RECEIVED), count // RECEIVED
    clock = Clock()
    answers = [await front.stream("ReceiveMessage", request) for _ in range(calls)]
    received = clock.each(calls * RECEIVED)
    taken = [messages_of(replies) for replies in answers]
    assert all(len(batch) == RECEIVED for batch in taken), "a receive was not full"
    half = len(taken) // 2
    many = [acknowledgement(batch) for batch in taken[:half]]
    ones = [acknowledgement([one]) for batch in taken[half:] for one in batch]
    return {
        "receive_32_each": received,
        "acknowledge_32_in_a_call_each": await timed(front, "AckMessage", many, 4, RECEIVED),
        "acknowledge_1_in_a_call": await timed(front, "AckMessage", ones, IN_FLIGHT),
    }


def receive_of(count: int) -> bytes:
    """Return the bytes of a request for `count` messages."""
    wanted = service.ReceiveMessageRequest(
        group=wire.Resource(name=GROUP),
        message_queue=wire.MessageQueue(topic=wire.Resource(name=TOPIC)),
        batch_size=count,
    )
    wanted.invisible_duration.seconds = LEASE_SECONDS
    return wanted.SerializeToString()


def messages_of(replies: list[bytes]) -> list[wire.Message]:
    parsed = map(service.ReceiveMessageResponse.FromString, replies)
    return [reply.message for reply in parsed if reply.WhichOneof("content") == "message"]


def acknowledgement(batch: list[wire.Message]) -> bytes:
    entries = [
        service.AckMessageEntry(
            message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
        )
        for one in batch
    ]
    return service.AckMessageRequest(
        group=wire.Resource(name=GROUP), topic=wire.Resource(name=TOPIC), entries=entries
    ).SerializeToString()


async def measure(folder: Path, count: int) -> dict[str, float]:
    with ThreadPoolExecutor(FLUSH_THREADS) as writer:
        front = Front(folder, writer)
        figures = await sends(front, count) | await receives(front, count) | await passed(front)
    return {name: round(value, 1) for name, value in figures.items()}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(Path(sys.argv[1]), int(sys.argv[2])))))
