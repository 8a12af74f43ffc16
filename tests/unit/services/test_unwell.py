"""A broker whose disk fails answers on both ports with one clear error, and goes on by itself afterwards."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from commitlog import layout, limits
from commitlog.errors import NoRoom
from commitlog.records.message import Message
from commitlog.room import choose_segment_bytes, segment_bytes_for
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import LogWarning
from services.live.errors import ResultUnknown
from services.live.live_broker import LiveBroker
from services.ops.app import make_app
from services.ops.metrics.broker_metrics import Metrics
from services.rpc.clients.sessions import Sessions
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.rpcs import all_rpcs
from services.rpc.serving.service import Prompt, Streaming, Unary, reply_to, stream_to
from services.rpc.wire.caller import Caller
from services.rpc.wire.endpoints import Advertised
from tests.memory_disk import MemoryDisk
from tests.unit.services.live.failing_disk import FailingDisk, Pauses, failing
from tests.unit.services.rpc.answered import answered

NOW_MS = 1_763_700_000_000
MIB = 1 << 20
WHO = Caller("client-1", language="PYTHON", version="5.1.2", seconds_left=0.6)
OPEN_PATHS = {"/livez", "/metrics", "/openapi.json"}
WITHOUT_CORE = {"/api/clock", "/api/clients", "/api/tasks", "/api/refused"}
MADE_UP = {"topic": "t", "group": "g", "name": "n", "queue_id": "0", "offset": "0", "task_id": "x"}


@dataclass
class Stage:
    """A live core on a disk that may fail, with both interfaces."""

    live: LiveBroker
    disk: FailingDisk
    pauses: Pauses
    http: httpx.AsyncClient
    rpcs: dict[str, Any]

    async def call(self, name: str, request: Any) -> Any:
        """Call an RPC and return its reply, of a stream the last."""
        rpc = self.rpcs[name]
        if isinstance(rpc, Prompt):
            return await answered(self.live, name, rpc, request, WHO, lambda *_: None)
        if isinstance(rpc, Unary):
            return await reply_to(name, rpc, request, WHO, lambda *_: None)
        assert isinstance(rpc, Streaming)
        return [reply async for reply in stream_to(name, rpc, request, WHO, lambda *_: None)][-1]

    async def fall_ill(self) -> None:
        self.disk.fails = failing("sync", "allocate", "delete", "read")
        with pytest.raises(ResultUnknown):
            await self.live.send(Message(topic="t", body=b"x", message_id="unknown"))

    async def recover(self) -> None:
        self.disk.heal()
        while self.live.disk_failure is not None:
            self.pauses.pass_by()
            await asyncio.sleep(0.001)


def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        disk, pauses = FailingDisk(), Pauses()
        with ThreadPoolExecutor(3) as writer:
            settings = BrokerSettings(segment_bytes=1 << 16)
            live = LiveBroker(disk, settings, lambda: NOW_MS, pauses, writer)
            sessions = Sessions(lambda: NOW_MS)
            rpcs = all_rpcs(live, sessions, Advertised("127.0.0.1", 8081, boot=0))
            transport = httpx.ASGITransport(make_app(live, Metrics(live, [])), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                await live.send(Message(topic="t", body=b"x", message_id="kept"))
                await scenario(Stage(live, disk, pauses, http, rpcs))
            await live.close()

    asyncio.run(run())


def paths(described: dict[str, Any]) -> list[tuple[str, str]]:
    """Every operation of the interface, with something made up for what its path names."""
    found = []
    for path, operations in described["paths"].items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        for name in names:
            path = path.replace(f"{{{name}}}", MADE_UP.get(name, "x"))
        found += [(method.upper(), path) for method in operations]
    return found


def test_http_says_why_nothing_is_served_and_goes_on_when_the_disk_does() -> None:
    async def scenario(stage: Stage) -> None:
        described = (await stage.http.get("/openapi.json")).json()
        await stage.fall_ill()
        served = set()
        for method, path in paths(described):
            body = {} if method in ("POST", "PUT") else None
            answer = await stage.http.request(method, path, json=body)
            if answer.status_code == 503:
                assert "TW-220 " in answer.text or answer.json()["code"] == "TW-220", path
                assert "EIO" in answer.text
            elif answer.status_code == 200:
                served.add(path)
            else:
                assert answer.status_code in (400, 404), (path, answer.text)
                assert answer.json()["code"].startswith("TW-1"), path
        assert not {path for path in served if path.startswith("/api")} & {"/api/topics", "/api/groups"}
        assert served >= OPEN_PATHS
        assert "mq_ready" in (await stage.http.get("/metrics")).text
        unready = await stage.http.get("/readyz")
        assert unready.status_code == 503
        assert unready.text.startswith("TW-220 The disk of the store fails")
        await stage.recover()
        assert (await stage.http.get("/readyz")).text == "ready\n"
        assert (await stage.http.get("/api/topics")).status_code == 200

    play(scenario)


def test_a_look_that_the_disk_does_not_let_end_is_503_and_the_core_goes_on() -> None:
    async def scenario(stage: Stage) -> None:
        core = stage.live.core
        stage.disk.fails = failing("read", under=layout.COMMITLOG)
        answers = [
            await stage.http.get("/api/topics/t/arrivals", params={"after": "0:0,1:0,2:0,3:0"}),
            await stage.http.get("/api/messages", params={"topic": "t", "key": "kept"}),
        ]
        assert [(one.status_code, one.json()["code"]) for one in answers] == [(503, "TW-220")] * 2
        stage.disk.heal()
        assert stage.live.core is core

    play(scenario)


def test_clients_are_told_a_status_that_they_retry() -> None:
    async def scenario(stage: Stage) -> None:
        topic = wire.Resource(name="t")
        properties = wire.SystemProperties(message_id="M")
        message = wire.Message(topic=topic, body=b"x", system_properties=properties)
        calls = {
            "SendMessage": service.SendMessageRequest(messages=[message]),
            "QueryRoute": service.QueryRouteRequest(topic=topic),
            "ReceiveMessage": service.ReceiveMessageRequest(
                group=wire.Resource(name="g"), message_queue=wire.MessageQueue(topic=topic), batch_size=1
            ),
            "RecallMessage": service.RecallMessageRequest(topic=topic, recall_handle="x"),
        }
        calls["ReceiveMessage"].invisible_duration.FromMilliseconds(20_000)
        await stage.fall_ill()
        for name, request in calls.items():
            reply = await stage.call(name, request)
            status = reply.entries[0].status if name == "SendMessage" and reply.entries else reply.status
            assert status.code == wire.Code.INTERNAL_SERVER_ERROR, name
            assert status.message.startswith("TW-220 "), status
        alive = await stage.call("Heartbeat", service.HeartbeatRequest())
        assert alive.status.code == wire.Code.OK
        await stage.recover()
        assert (await stage.call("SendMessage", calls["SendMessage"])).status.code == wire.Code.OK

    play(scenario)


@pytest.mark.parametrize(
    ("free_bytes", "segment_bytes"),
    [
        (1 << 40, 1 << 30),
        (80 << 30, 256 * MIB),
        (10 << 30, 32 * MIB),
        (1 << 30, limits.SEGMENT_BYTES_MIN),
        (64 * MIB, limits.SEGMENT_BYTES_MIN),
    ],
)
def test_a_new_store_takes_a_small_part_of_its_volume(free_bytes: int, segment_bytes: int) -> None:
    assert segment_bytes_for(free_bytes) == segment_bytes


class SmallDisk(MemoryDisk):
    """A disk that has only so much room, and keeps to it."""

    def __init__(self, total_bytes: int) -> None:
        super().__init__()
        self.total_bytes = total_bytes

    def allocate(self, path: str, length: int) -> None:
        if length - max(0, self.size(path)) > self.usage()[0]:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().allocate(path, length)


@pytest.mark.parametrize("wanted", [None, 1 << 30])
def test_a_volume_that_is_too_small_is_refused_at_the_start_with_the_numbers(wanted: int | None) -> None:
    with pytest.raises(NoRoom, match="20 MiB are free"):
        choose_segment_bytes(SmallDisk(20 * MIB), wanted)


def test_who_asks_for_segments_that_do_not_fit_is_told_what_fits() -> None:
    with pytest.raises(NoRoom, match="Give --segment-bytes 8388608, or leave it out"):
        choose_segment_bytes(SmallDisk(64 * MIB), 1 << 30)


def test_on_a_small_volume_messages_are_taken_until_it_is_nearly_full_and_both_ends_are_told() -> None:
    disk = SmallDisk(64 * MIB)
    settings = BrokerSettings(segment_bytes=choose_segment_bytes(disk, None), housekeeping_ms=1_000)
    broker = Broker.open(disk, settings, NOW_MS)
    assert disk.total_bytes - disk.usage()[0] <= 2 * settings.segment_bytes
    assert broker.housekeeping.refusal() is None
    body, count = bytes(4 * MIB), 0
    now_ms, warnings = NOW_MS, []
    while broker.housekeeping.refusal() is None:
        broker.sending.send(Message(topic="t", body=body, message_id=f"M{count}"), now_ms)
        flush = broker.take_flush()
        assert flush is not None
        flush.write()
        broker.complete_flush(flush, now_ms)
        count, now_ms = count + 1, now_ms + 1_000
        warnings += [one.text for one in broker.tick(now_ms) if isinstance(one, LogWarning)]
    assert count >= 4, "a small volume takes something"
    assert warnings[0].startswith("TW-172 New messages are refused because the disk is almost full")
    disk.total_bytes = 1 << 30
    warnings = [one.text for one in broker.tick(now_ms + 1_000) if isinstance(one, LogWarning)]
    assert warnings == ["there is room on the disk again: new messages are taken"]


def test_a_reserve_that_cannot_be_made_is_the_reason_that_is_told() -> None:
    disk = SmallDisk(24 * MIB)
    broker = Broker.open(disk, BrokerSettings(segment_bytes=16 * MIB), NOW_MS)
    refusal = broker.housekeeping.refusal()
    assert refusal is not None
    assert "The reserve of 16777216 bytes cannot be made: that would leave less than a segment" in str(
        refusal
    )
