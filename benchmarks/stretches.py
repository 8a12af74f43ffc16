"""Longest time for which one call holds the broker's loop: every operation at its largest size.

    python benchmarks/stretches.py FOLDER [--only NAME ...] [--topics 20000] [--timers 200000] [--profile]

In one process, over a real disk in an empty folder: a live broker with many topics, groups, clients,
schedules, timers, halves and dead letters, called through the handlers of both ports. Each operation is
called as by a client or operator, and nothing else runs. Prints JSON, for each operation:

    stretch_ms    processor time of the loop's thread in the longest callback
    ran           that callback
    turn_ms       the longest turn of the loop, in which several callbacks may run
    collector_ms  the longest run of Python's garbage collector in that time, which is included in them

`limit_ms` is the limit of a stretch. `--profile` prints a profile of each operation to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import random
import string
import sys
import time
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice, product
from pathlib import Path
from typing import Any

from parts.turns import Turns

from commitlog import limits
from commitlog.disk.real_disk import RealDisk
from commitlog.records.message import Message, MessageType
from consumequeue.filters.filter import EVERYTHING
from consumequeue.filters.sql_filter import parse_sql
from services.broker.groups.group_values import GroupPolicy, GroupStart
from services.broker.schedules.schedule_values import Schedule
from services.broker.spine.errors import TooManyFilters
from services.broker.spine.settings import BrokerSettings
from services.front.grpc_calls import CallReceived, CallStarted
from services.front.grpc_wire import Messages
from services.front.header_fields import Head
from services.live.live_broker import LiveBroker
from services.process.memory import WholeLooks, keep_little
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.wire.caller import Caller
from services.rpc.wire.endpoints import Advertised
from services.server.parts import Endpoints, share_interpreter
from services.settings.config import ServeSettings

LIMIT_MS = 25
DAY_MS = 86_400_000
GROUP, WIDE, DEEP, LARGE, LITE = "g", "wide", "deep", "large", "lite"
PIECE = 64 * 1024
ZLIB = (zlib.compress(bytes(60 << 20)), zlib.compress(bytes(random.Random(1).choices(b"abcd", k=4_190_000))))
MESSAGES = limits.HTTP_MESSAGES_BYTES_MAX
DENSE = b"[" + b"1," * (MESSAGES // 2 - 100) + b"1]"
ESCAPES = b"\\n" + "\U0001f600".encode()
TEXT = b'{"topic":"' + b"," * 200_000 + ESCAPES * ((MESSAGES - 200_100) // len(ESCAPES)) + b'"}'
NAME = b'{"' + ESCAPES * ((MESSAGES - 100) // len(ESCAPES)) + b'":1}'
WRONG = b'{"topic":"t","keys":[' + b"1," * (limits.HTTP_FIELDS_MAX - 100) + b"1]}"
WRONG_TIMERS = b'{"timers":[{' + b",".join(b'"%d":1' % n for n in range(4_900)) + b"}" + b",{}" * 900 + b"]}"
NUMBERS = b"[" + b",".join(b"%d.%d" % (n, n * 7_919) for n in range(99_000)) + b"]"
LONG_TEXT = b'"' + ESCAPES * ((limits.BODY_BYTES_MAX - 2) // len(ESCAPES)) + b'"'
EVENT = b'{"specversion":"1.0","id":"%d","source":"/","type":"t","data":%b}'
CONTAINS = " OR ".join([*(f"p CONTAINS 'word{number}'" for number in range(99)), "wanted = 1"])


def blocks(count: int) -> bytes:
    """Return gzip data of `count` deflate blocks of 28 bytes, each with its own Huffman code."""
    piece = bytes(random.Random(1).choices(range(16), [1 / (n + 1) for n in range(16)], k=28))
    packing = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block, plain = packing.compress(piece) + packing.flush(zlib.Z_FULL_FLUSH), piece * count
    tail = zlib.crc32(plain).to_bytes(4, "little") + len(plain).to_bytes(4, "little")
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + block * count + packing.flush() + tail


BLOCKS = blocks(260_000)


class Client:
    """A client's connection as seen by the protocol port; the answer to a unary call ends the call."""

    host, number, is_encrypted, is_authenticated = "127.0.0.1", 1, False, True

    def __init__(self, client_id: str) -> None:
        self.callers: dict[int, Any] = {}
        self.head = Head({"x-mq-client-id": client_id, "x-mq-language": "JAVA"}, {})
        self._loop = asyncio.get_running_loop()
        self._over: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stream_id = 0
        self.commands: list[bytes] = []

    def calls(self, serving: Any, path: str, requests: list[bytes]) -> Awaitable[Any]:
        """Make a call for each request in one turn; return an awaitable of all answers."""
        over = []
        for request in requests:
            self._stream_id += 1
            over.append(self._loop.create_future())
            self._over[self._stream_id] = over[-1]
            method = serving.method_of(path)
            assert method is not None, path
            if method.takes_stream:
                self.commands = [request]
                self._loop.call_soon(
                    serving.call_started, self, CallStarted(self._stream_id, method, self.head)
                )
            else:
                received = CallReceived(self._stream_id, method, self.head, request)
                self._loop.call_soon(serving.call_received, self, received)
        return asyncio.wait(over, timeout=120)

    def start(self, stream_id: int, call: Any) -> None:
        """Run a call as a task."""
        task = self._loop.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self.end(stream_id))
        task.add_done_callback(self._tasks.discard)

    async def messages(self, stream_id: int) -> AsyncIterator[bytes]:
        """Yield the requests of a stream."""
        for command in self.commands:
            yield command
        await asyncio.sleep(0.05)

    def reply(self, stream_id: int, reply: bytes) -> None:
        """End the call: its only answer has arrived."""
        self.end(stream_id)

    async def send_message(self, stream_id: int, reply: bytes) -> None:
        """Ignore one of the answers of a streaming call."""

    def end(self, stream_id: int, *why: Any) -> None:
        """End a call."""
        over = self._over.pop(stream_id, None)
        if over is not None and not over.done():
            over.set_result(None)


class World:
    """A filled broker and its operations."""

    def __init__(self, live: LiveBroker, endpoints: Endpoints, given: argparse.Namespace) -> None:
        self._live, self._faces, self._given = live, endpoints, given
        self._count = 0
        self.client = Client("client-1")

    async def http(
        self, method: str, target: str, body: bytes = b"", content_type: str = "application/json"
    ) -> None:
        """Call the HTTP interface; a body arrives in pieces, as from a socket."""
        path, _, query = target.partition("?")
        pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)] or [b""]
        last = len(pieces) - 1
        numbered = iter(enumerate(pieces))
        headers = [(b"host", b"127.0.0.1:8082"), (b"content-type", content_type.encode())]
        answer: list[Any] = []

        async def receive() -> Any:
            for number, piece in numbered:
                await asyncio.sleep(0)
                return {"type": "http.request", "body": piece, "more_body": number < last}
            return await asyncio.sleep(3_600)

        async def send(message: Any) -> None:
            answer.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [*headers, (b"content-length", str(len(body)).encode())],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8082),
        }
        await self._faces.app(scope, receive, send)
        self.status = answer[0]["status"]

    async def grpc(self, name: str, *requests: bytes) -> None:
        """Call an RPC, all requests in one turn."""
        path = f"/{name}" if "/" in name else f"/apache.rocketmq.v2.MessagingService/{name}"
        await self.client.calls(self._faces.serving, path, list(requests))

    async def fill(self) -> None:
        """Create the topics, groups, messages, timers, halves, schedules and clients of the operations."""
        given, live, core = self._given, self._live, self._live.core
        now_ms = live.now_ms()
        for number in range(given.topics):
            core.topics.create(f"topic-{number:06d}", MessageType.MIXED, 4, now_ms)
            if number % 5_000 == 4_999:
                await live.call(core.topics.create, "mark", MessageType.MIXED, 4)
        for name, kind, queue_count in (
            (WIDE, MessageType.MIXED, limits.QUEUE_COUNT_MAX),
            (DEEP, MessageType.MIXED, 1),
            (LARGE, MessageType.MIXED, 1),
            (LITE, MessageType.LITE, 4),
            ("prop", MessageType.MIXED, 1),
            ("packed", MessageType.MIXED, 1),
            ("most", MessageType.MIXED, 1),
            ("tags", MessageType.MIXED, 1),
            ("json", MessageType.MIXED, 1),
        ):
            await live.call(core.topics.create, name, kind, queue_count)
        for number in range(given.topics):
            core.groups.join(f"group-{number:06d}", f"topic-{number:06d}", {}, now_ms)
            if number % 5_000 == 4_999:
                await live.call(core.topics.create, "mark", MessageType.MIXED, 4)
        await self._send(min(given.topics, 20_000), lambda n: {"topic": f"topic-{n:06d}"})
        await self._send(2 * limits.QUEUE_COUNT_MAX, lambda n: {"topic": WIDE})
        await self._send(2_000, lambda n: {"topic": DEEP, "keys": ("same",)})
        await self._send(40, lambda n: {"topic": LARGE, "body": bytes(limits.BODY_BYTES_MAX)}, 8)
        await self._send(300, lambda n: {"topic": "prop", "properties": {"p": "a" * 12_000}})
        await self._send(10, lambda n: {"topic": "most", "properties": {"p": "a" * 16_000}})
        await self._send(40_000, lambda n: {"topic": "tags", "tag": f"t{n % 3000}"})
        json_type = {"content-type": "application/json"}
        bodies = NUMBERS, LONG_TEXT
        await self._send(2, lambda n: {"topic": "json", "body": bodies[n], "properties": json_type})
        await self._send(2_000, lambda n: {"topic": LITE, "lite_topic": f"one-{n:06d}"})
        await self._send(
            given.timers,
            lambda n: {"topic": DEEP, "delivery_ms": now_ms + DAY_MS + n * 7_919 % (30 * DAY_MS)},
        )
        await self._send(given.halves, lambda n: {"topic": "halves", "transactional": True})
        await self._bury(2_000)
        for number in range(given.schedules):
            schedule = Schedule(
                name=f"schedule-{number:05d}",
                cron=f"{number % 60} 3 29 2 *",
                time_zone="Europe/London",
                topic=DEEP,
                body=b"x" * 100,
            )
            core.schedules.set(schedule, now_ms)
        sessions: Any = self._faces.metrics._clients
        for number in range(given.clients):
            session = sessions.seen(Caller(f"client-{number}", "JAVA", "5.0.7", "127.0.0.1"))
            session.client_type, session.group = wire.ClientType.SIMPLE_CONSUMER, f"group-{number % 100:06d}"
        await live.call(core.topics.create, "mark", MessageType.MIXED, 4)

    async def _bury(self, count: int) -> None:
        """Move `count` messages of one group to dead letters."""
        live, core = self._live, self._live.core
        await live.call(core.group_views.set_policy, "buried", GroupPolicy(attempts_max=1))
        await live.call(core.group_views.create, "buried", DEEP, GroupStart())
        while count > 0:
            found = await live.receivers.receive("buried", DEEP, EVERYTHING, 32, 60_000, "c", False, 0.1)
            for one in found:
                forward = core.receiving.forward_to_dead_letter
                await live.call(forward, "buried", DEEP, one.receipt_handle)
            count -= len(found)
            if not found:
                return

    async def _send(self, count: int, of: Callable[[int], dict[str, Any]], at_once: int = 500) -> None:
        for first in range(0, count, at_once):
            numbers = range(first, min(first + at_once, count))
            answers = await self._live.send_many([self._message(**of(number)) for number in numbers])
            assert not isinstance(answers[0], Exception), answers[0]

    def _message(self, **given: Any) -> Message:
        self._count += 1
        return Message(**{"body": b"x" * 256, "message_id": f"M{self._count:033d}"} | given)

    async def receive(self, group: str, topic: str, expression: str) -> None:
        """Receive once with an SQL filter, with a long poll of 3 s."""
        await self._live.receivers.receive(
            group, topic, parse_sql(expression), 32, 60_000, "client-1", False, 3
        )

    def operations(self) -> dict[str, Callable[[], Awaitable[Any]]]:
        """Return every operation by name."""
        http, grpc = self.http, self.grpc
        return {
            "HTTP, a body of 6 MiB of numbers": lambda: http("POST", "/api/messages", DENSE),
            "HTTP, a text of 6 MiB of escapes": lambda: http("POST", "/api/messages", TEXT),
            "HTTP, a name of 6 MiB of escapes": lambda: http("POST", "/api/messages", NAME),
            "HTTP, the same for timers": lambda: self._both(
                http("POST", "/api/timers", TEXT), http("POST", "/api/timers", NAME)
            ),
            "HTTP, 4,900 values that are wrong": lambda: http("POST", "/api/messages", WRONG),
            "HTTP, 4,900 fields of a timer that are wrong": lambda: http("POST", "/api/timers", WRONG_TIMERS),
            "HTTP, a message of 4 MiB in base64": lambda: http("POST", "/api/messages", self._posted_bytes()),
            "HTTP, a message of 4 MiB": lambda: http("POST", "/api/messages", self._posted()),
            "HTTP, a message of 99,000 numbers in JSON": lambda: http(
                "POST", "/api/messages", b'{"topic":"deep","body_json":%b}' % NUMBERS
            ),
            "HTTP, a message of 4 MiB of text in JSON": lambda: http(
                "POST", "/api/messages", b'{"topic":"deep","body_json":%b}' % LONG_TEXT
            ),
            "HTTP, 1,000 messages": lambda: http("POST", "/api/messages", self._messages()),
            "HTTP, a CloudEvent of 4 MiB": lambda: http(
                "POST", "/api/topics/deep/messages", EVENT % (1, LONG_TEXT), "application/cloudevents+json"
            ),
            "HTTP, 1,000 CloudEvents": lambda: http(
                "POST",
                "/api/topics/deep/messages",
                b"[%b]" % b",".join(EVENT % (number, b'"%b"' % (b"x" * 4_000)) for number in range(1_000)),
                "application/cloudevents-batch+json",
            ),
            "HTTP, receive 8 MiB": lambda: http("POST", "/api/groups/http-1/receive", b'{"topic":"large"}'),
            "HTTP, receive JSON": lambda: http("POST", "/api/groups/http-1/receive", b'{"topic":"json"}'),
            "HTTP, receive 32": lambda: http(
                "POST", "/api/groups/http-1/receive", b'{"topic":"deep","count":32}'
            ),
            "HTTP, acknowledge 1,024 that are wrong": lambda: http(
                "POST", "/api/groups/http-1/ack", self._handles()
            ),
            "HTTP, refuse 1,024 that are wrong": lambda: http(
                "POST", "/api/groups/http-1/nack", self._handles()
            ),
            "HTTP, 1,000 polls for check-backs": lambda: self._gather(
                http("POST", "/api/transactions/check-backs", b'{"topics":["halves"],"wait":"100ms"}')
                for _ in range(1_000)
            ),
            "HTTP, 1,000 receives that wait": lambda: self._gather(
                http("POST", "/api/groups/http-1/receive", b'{"topic":"mark","wait":"100ms"}')
                for _ in range(1_000)
            ),
            "HTTP, 1,000 timers": lambda: http("POST", "/api/timers", self._timers()),
            "topics listed": lambda: http("GET", "/api/topics"),
            "a topic of 1,024 queues, since a time": lambda: http("GET", f"/api/topics/{WIDE}?since_ms=1"),
            "groups listed": lambda: http("GET", "/api/groups?queues=true"),
            "a group": lambda: http("GET", "/api/groups/group-000001"),
            "a group made": lambda: http(
                "POST", "/api/groups", json.dumps({"name": "new", "topic": WIDE, "start": "30m ago"}).encode()
            ),
            "a group reset": lambda: http("POST", "/api/groups/new/reset", b'{"to": "30m ago"}'),
            "a group's clients": lambda: http("GET", "/api/groups/buried/clients"),
            "a group deleted": lambda: http("DELETE", "/api/groups/new"),
            "metrics": lambda: http("GET", "/metrics"),
            "openapi": lambda: http("GET", "/openapi.json"),
            "explain": lambda: http("GET", "/api/explain?name=same"),
            "messages, 1,000": lambda: http("GET", f"/api/topics/{DEEP}/messages?limit=1000"),
            "messages, 4 MiB": lambda: http("GET", f"/api/topics/{LARGE}/messages?limit=1000"),
            "arrivals of 1,024 queues": lambda: http(
                "GET",
                f"/api/topics/{WIDE}/arrivals?limit=1000&after=" + ",".join(f"{n}:0" for n in range(1_024)),
            ),
            "messages by key": lambda: http("GET", f"/api/messages?topic={DEEP}&key=same&limit=1000"),
            "timers": lambda: http("GET", "/api/timers?limit=1000"),
            "timers of a topic": lambda: http("GET", f"/api/timers?topic={DEEP}&limit=1000"),
            "timers counted by tag": lambda: http("GET", "/api/timers/count?tag=none"),
            "timers by windows": lambda: http("GET", "/api/timers/histogram?width=10m"),
            "timers at a glance": lambda: http("GET", "/api/timers/summary"),
            "timers moved by a task": lambda: self._task(
                "/api/timers/tasks", {"verb": "move", "by": "1h", "filter": {"everything": True}}, 20_000
            ),
            "halves": lambda: http("GET", "/api/transactions?limit=1000"),
            "halves of no topic": lambda: http("GET", "/api/transactions?topic=none&limit=1000"),
            "halves at a glance": lambda: http("GET", "/api/transactions/summary"),
            "dead letters by group": lambda: http("GET", "/api/dead-letters"),
            "dead letters": lambda: http("GET", "/api/dead-letters/groups/buried?limit=1000"),
            "dead letters by reason": lambda: http(
                "GET", "/api/dead-letters/groups/buried?reason=none&limit=1000"
            ),
            "dead letters redriven by a task": lambda: self._task(
                "/api/dead-letters/tasks", {"verb": "redrive", "group": "buried"}, 2_000
            ),
            "schedules": lambda: http("GET", "/api/schedules?limit=1000"),
            "a schedule that never comes": lambda: http(
                "POST", "/api/schedules/preview", b'{"cron": "0 0 31 2,4,6 *", "count": 100}'
            ),
            "a schedule of leap days": lambda: http(
                "POST",
                "/api/schedules/preview",
                b'{"cron": "0 0 29 2 1", "time_zone": "Europe/London", "count": 100}',
            ),
            "users": lambda: http("GET", "/api/users"),
            "refusals": lambda: http("GET", "/api/refusals"),
            "clients": lambda: http("GET", "/api/clients"),
            "receive, 100 CONTAINS over 12 kB": lambda: self.receive("sql-1", "prop", CONTAINS),
            "receive, 20 such at once": lambda: self._gather(
                self.receive(f"sql-{number}", "prop", CONTAINS) for number in range(2, 22)
            ),
            "receive, costly filters of one group": lambda: self._receive_by_costly_filters(),
            "receive, filter over bodies of 4 MiB": lambda: self.receive("sql-2", LARGE, "none = 1"),
            "receive, 2,048 tags": lambda: self._receive_tags(),
            "receive, 1,024 queues, new group": lambda: self.receive("wide-1", WIDE, "none = 1"),
            "receive, 32 of 4 MiB": lambda: self._receive(LARGE),
            "receive, 256 calls in a turn": lambda: self._gather(
                self._receive_everything(f"many-{number}", DEEP) for number in range(256)
            ),
            "a filter of 4,096 characters": lambda: self._filters(),
            "send 1,024 messages": lambda: grpc("SendMessage", self._sent(1_024)),
            "send 256 x 1,024 messages": lambda: grpc(
                "SendMessage", *(self._sent(1_024) for _ in range(256))
            ),
            "send 32 MiB": lambda: grpc("SendMessage", self._sent(8, bytes(4_000_000))),
            "send 4 MiB of gzip": lambda: grpc("SendMessage", self._sent(1, self._packed(), is_gzip=True)),
            "zlib as gzip, of 4 and of 60 MiB": lambda: self._zlib(),
            "a call in gzip of 260,000 blocks": lambda: self._unpack(BLOCKS),
            "send 16 million empty messages": lambda: grpc("SendMessage", b"\x0a\x00" * (1 << 24)),
            "send 5 million properties": lambda: grpc("SendMessage", self._properties()),
            "acknowledge 16 million": lambda: grpc("AckMessage", b"\x1a\x00" * (1 << 24)),
            "acknowledge 1,024 that are wrong": lambda: grpc("AckMessage", self._acks()),
            "acknowledge 256 x 1,024": lambda: grpc("AckMessage", *(self._acks() for _ in range(256))),
            "route of 1,024 queues": lambda: grpc("QueryRoute", self._route()),
            "route of 1,024 queues, 256 calls": lambda: grpc("QueryRoute", *[self._route()] * 256),
            "heartbeats, 256 calls": lambda: grpc(
                "Heartbeat", *[service.HeartbeatRequest().SerializeToString()] * 256
            ),
            "settings of 100,000 subscriptions": lambda: grpc("Telemetry", self._settings(100_000)),
            "settings of a producer of 100,000 topics": lambda: grpc("Telemetry", self._publishing(100_000)),
            "100,000 lite topics subscribed": lambda: grpc("SyncLiteSubscription", self._lite(100_000)),
            "2,000 lite topics subscribed": lambda: grpc("SyncLiteSubscription", self._lite(2_000)),
            "2,000 lite topics from their beginning": lambda: grpc(
                "SyncLiteSubscription", self._lite(2_000, from_min=True)
            ),
            "receive of 2,000 lite topics": lambda: self._receive_everything(GROUP, LITE),
            "metrics of a client, 32 MiB": lambda: grpc(
                "opentelemetry.proto.collector.metrics.v1.MetricsService/Export", self._exported()
            ),
        }

    async def _gather(self, calls: Iterable[Awaitable[Any]]) -> None:
        await asyncio.gather(*calls)

    async def _receive_by_costly_filters(self) -> None:
        """Receive with words whose prefix and suffix occur in the values: the worst case of a search."""
        letters = string.ascii_lowercase + string.digits
        middles = ("".join(pair) for pair in product(letters, letters))
        for _ in range(limits.FILTERS_PER_GROUP_MAX):
            await asyncio.sleep(0)  # a turn for each call, even if it is refused at once
            words = [f"p CONTAINS 'aaaa{middle}aaa'" for middle in islice(middles, 100)]
            with suppress(TooManyFilters):
                await self._live.receivers.receive(
                    "costly", "most", parse_sql(" OR ".join(words)), 32, 60_000, "client-1", False, 0.2
                )

    async def _receive_everything(self, group: str, topic: str) -> None:
        await self._live.receivers.receive(group, topic, EVERYTHING, 32, 60_000, "client-1", False, 0.1)

    async def _receive(self, topic: str) -> None:
        request = service.ReceiveMessageRequest(
            group=wire.Resource(name="large"),
            message_queue=wire.MessageQueue(topic=wire.Resource(name=topic)),
            batch_size=32,
        )
        await self.grpc("ReceiveMessage", request.SerializeToString())

    async def _receive_tags(self) -> None:
        tags = "||".join(f"x{number}" for number in range(limits.FILTER_TAGS_MAX))
        request = service.ReceiveMessageRequest(
            group=wire.Resource(name="tagged"),
            message_queue=wire.MessageQueue(topic=wire.Resource(name="tags")),
            batch_size=32,
            filter_expression=wire.FilterExpression(type=wire.FilterType.TAG, expression=tags),
        )
        request.long_polling_timeout.FromMilliseconds(2_000)
        await self.grpc("ReceiveMessage", request.SerializeToString())

    async def _filters(self) -> None:
        for expression in ("a IN (" + "1," * 2_040 + "1)", "(" * 4_000, "(" * 2_000 + "a" + ")" * 2_000):
            request = service.ReceiveMessageRequest(
                group=wire.Resource(name="parsed"),
                message_queue=wire.MessageQueue(topic=wire.Resource(name=DEEP)),
                batch_size=32,
                filter_expression=wire.FilterExpression(type=wire.FilterType.SQL, expression=expression),
            )
            await self.grpc("ReceiveMessage", request.SerializeToString())

    async def _task(self, path: str, order: dict[str, Any], count: int) -> None:
        await self.http("POST", path, json.dumps(order).encode())
        for _ in range(60):
            await asyncio.sleep(0.05)

    async def _both(self, *calls: Awaitable[Any]) -> None:
        for one in calls:
            await one

    def _posted_bytes(self) -> bytes:
        body = b64encode(bytes(range(256)) * (limits.BODY_BYTES_MAX // 256)).decode()
        return json.dumps({"topic": DEEP, "body_base64": body}).encode()

    def _posted(self) -> bytes:
        return json.dumps({"topic": DEEP, "body": "x" * limits.BODY_BYTES_MAX}).encode()

    def _timers(self) -> bytes:
        one = {
            "topic": DEEP,
            "in": "10d",
            "body": "x" * 2_000,
            "properties": {f"p{n}": "v" for n in range(40)},
        }
        return json.dumps({"timers": [one] * limits.TIMER_BATCH_MAX}).encode()

    def _messages(self) -> bytes:
        one = {
            "topic": DEEP,
            "body_json": {"text": "x" * 2_000, "numbers": [*range(10)]},
            "properties": {f"p{n}": "v" for n in range(30)},
            "cancel": {"key": "none"},
        }
        return json.dumps({"messages": [one] * limits.TIMER_BATCH_MAX}).encode()

    def _handles(self) -> bytes:
        handles = [f"deep {n} 1763700000000 60000 0 0 broker 0 {n} {n} {n}" for n in range(1_024)]
        return json.dumps({"receipt_handles": handles}).encode()

    def _sent(
        self, count: int, body: bytes = b"x" * 256, *, is_gzip: bool = False, topic: str = DEEP
    ) -> bytes:
        messages = []
        for _ in range(count):
            self._count += 1
            one = wire.Message(
                topic=wire.Resource(name=topic), body=body, user_properties={"a": "b", "c": "d"}
            )
            one.system_properties.message_id = f"S{self._count:033d}"
            one.system_properties.body_encoding = wire.Encoding.GZIP if is_gzip else wire.Encoding.IDENTITY
            messages.append(one)
        return service.SendMessageRequest(messages=messages).SerializeToString()

    async def _unpack(self, packed: bytes) -> None:
        """Unpack a call in pieces, as the port does with the bytes of a connection."""
        messages = Messages(limits.REQUEST_BYTES_MAX, is_gzip=True)
        said = b"\1" + len(packed).to_bytes(4, "big") + packed
        for at in range(0, len(said), PIECE):
            await asyncio.sleep(0)
            messages.add(said[at : at + PIECE])
            messages.next()

    async def _zlib(self) -> None:
        for packed in ZLIB * 4:
            await self.grpc("SendMessage", self._sent(1, packed, is_gzip=True, topic="packed"))
        await self._receive_everything("packed", "packed")

    def _packed(self) -> bytes:
        import gzip

        return gzip.compress(bytes(60 << 20))

    def _properties(self) -> bytes:
        pairs = b"\x12\x00" * 5_000_000
        message = wire.Message(topic=wire.Resource(name=DEEP)).SerializeToString() + pairs
        return service.SendMessageRequest().SerializeToString() + b"\x0a" + _varint(len(message)) + message

    def _acks(self) -> bytes:
        handle = "49 1763700000000 20000 0 0 tidewheel 0 49 6833 115585843200000001"
        entries = [service.AckMessageEntry(message_id="M" * 34, receipt_handle=handle)] * 1_024
        request = service.AckMessageRequest(
            group=wire.Resource(name=GROUP), topic=wire.Resource(name=DEEP), entries=entries
        )
        return request.SerializeToString()

    def _route(self) -> bytes:
        endpoints = wire.Endpoints(addresses=[wire.Address(host="127.0.0.1", port=8081)])
        return service.QueryRouteRequest(
            topic=wire.Resource(name=WIDE), endpoints=endpoints
        ).SerializeToString()

    def _settings(self, count: int) -> bytes:
        told = wire.Settings(client_type=wire.ClientType.SIMPLE_CONSUMER)
        told.subscription.group.name = GROUP
        expression = wire.FilterExpression(type=wire.FilterType.TAG, expression="*")
        told.subscription.subscriptions.extend(
            wire.SubscriptionEntry(topic=wire.Resource(name=f"topic-{n:06d}"), expression=expression)
            for n in range(count)
        )
        return service.TelemetryCommand(settings=told).SerializeToString()

    def _publishing(self, count: int) -> bytes:
        told = wire.Settings(client_type=wire.ClientType.PRODUCER)
        told.publishing.topics.extend(wire.Resource(name=f"topic-{n:06d}") for n in range(count))
        return service.TelemetryCommand(settings=told).SerializeToString()

    def _lite(self, count: int, *, from_min: bool = False) -> bytes:
        request = service.SyncLiteSubscriptionRequest(
            action=wire.LiteSubscriptionAction.PARTIAL_ADD
            if from_min
            else wire.LiteSubscriptionAction.COMPLETE_ADD,
            topic=wire.Resource(name=LITE),
            group=wire.Resource(name=GROUP),
            lite_topic_set=[f"one-{number:06d}" for number in range(count)],
        )
        if from_min:
            request.offset_option.policy = wire.OffsetOption.Policy.MIN
        return request.SerializeToString()

    def _exported(self) -> bytes:
        return b"\x0a\x00" * (limits.REQUEST_BYTES_MAX // 2 - 1)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 128:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


async def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Fill a broker, run the operations one after the other, and return the figures."""
    loop = asyncio.get_running_loop()
    settings = ServeSettings(store=folder)
    with ThreadPoolExecutor(limits.FLUSHES_IN_FLIGHT_MAX + 4) as workers:
        core = BrokerSettings(housekeeping_ms=3_600_000)
        live = LiveBroker(
            RealDisk(folder), core, lambda: time.time_ns() // 1_000_000, loop.call_later, workers
        )
        world = World(live, Endpoints(live, settings, Advertised("127.0.0.1", 8081, 0)), given)
        await world.fill()
        WholeLooks(loop.call_later)
        turns = Turns(1)
        turns.watch(loop)
        told: dict[str, Any] = {}
        for name, operation in world.operations().items():
            if given.only and not any(one in name for one in given.only):
                continue
            told[name] = await measured(turns, operation, name, given)
        await world._faces.close_tasks()
        await live.close()
    worst = {name: one["stretch_ms"] for name, one in told.items() if one["stretch_ms"] > LIMIT_MS}
    return {"limit_ms": LIMIT_MS, "operations": told, "above": worst}


async def measured(
    turns: Turns, operation: Callable[[], Awaitable[Any]], name: str, given: argparse.Namespace
) -> dict[str, Any]:
    """Run one operation; return its longest stretch and turn."""
    asked = operation()  # builds the request before the measurement
    await asyncio.sleep(0.1)
    turns.restart()
    profile = cProfile.Profile() if given.profile else None
    if profile:
        profile.enable()
    error = ""
    began = time.monotonic()
    try:
        async with asyncio.timeout(150):
            await asked
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"[:200]
    await asyncio.sleep(0)
    if profile:
        profile.disable()
        print(f"== {name}", file=sys.stderr)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(
            "services|commitlog|consumequeue|timingwheel|txn|built-in", 40
        )
    took, ran = turns.longest
    found = {"stretch_ms": round(took / 1e6, 1), "ran": ran, "turn_ms": turns.told()["turn_ms"]["max"]}
    found["collector_ms"] = round(turns.collected / 1e6, 1)
    found["seconds"] = round(time.monotonic() - began, 2)
    print(name, found, error, file=sys.stderr)
    return found | ({"error": error} if error else {})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of operations")
    parser.add_argument("--topics", type=int, default=20_000, help="and as many groups")
    parser.add_argument("--timers", type=int, default=100_000)
    parser.add_argument("--halves", type=int, default=50_000)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=40_000)
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    keep_little()
    share_interpreter(is_crowded=False)
    print(json.dumps(asyncio.run(measure(arguments().folder, arguments())), indent=1))
