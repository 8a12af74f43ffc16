"""The table of RPCs behind the protocol port, over real sockets and with gRPC's own client."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hpack import Encoder
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as otlp

from commitlog import limits
from commitlog.records.message import MessageType
from services.broker.spine.settings import BrokerSettings
from services.front.admission import Limits
from services.front.connection import ServerState
from services.front.grpc_wire import frame_message
from services.front.port import Port
from services.live.clients.client_metrics import ClientMetrics
from services.live.live_broker import LiveBroker
from services.ops.metrics.broker_metrics import Metrics
from services.process.event_loop import new_event_loop
from services.rpc.clients.sessions import Sessions
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.health import Health, standard_rpcs
from services.rpc.metrics.metrics_export import EXPORT_BYTES_MAX, OPENCENSUS, OTLP
from services.rpc.rpcs import all_rpcs
from services.rpc.serving.service import NAME
from services.rpc.serving.serving import Serving
from services.rpc.serving.turns import CallScheduler
from services.rpc.wire.endpoints import Advertised
from tests.http2_client import (
    ACK,
    END_HEADERS,
    HEADERS,
    PREFACE,
    REQUEST,
    SETTINGS,
    block,
    data,
    fields_of,
    frame,
    frames,
    request,
    rst_stream,
    settings,
)
from tests.memory_disk import MemoryDisk

SCENARIO_SECONDS = 30
SETTINGS_OF_CORE = BrokerSettings(segment_bytes=limits.SEGMENT_BYTES_SMALL)
POLLS = 150
UNBOUNDED = [("grpc.max_receive_message_length", -1)]
MINE = (("x-mq-client-id", "client-1"), ("x-mq-language", "PYTHON"), ("x-mq-request-id", "1"))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Stage:
    """A broker on a disk in memory behind a port, and a channel to it."""

    def __init__(self, writer: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        self.observed: list[tuple[str, str]] = []
        self.refused: list[tuple[str, str]] = []
        self.live = LiveBroker(MemoryDisk(), SETTINGS_OF_CORE, now_ms, loop.call_later, writer)
        self.health, self.turns = Health(), CallScheduler(self.live)
        self.sessions = Sessions(now_ms)
        where, measured = Advertised("127.0.0.1", 8081, boot=0), ClientMetrics(now_ms())
        self.rpcs = all_rpcs(self.live, self.sessions, where, metrics=measured)
        served = self.rpcs | standard_rpcs(self.health, self.rpcs)
        self.serving = Serving(served, self.turns, self._observe)
        self.shared = ServerState(self.serving)
        self.port = Port(self.shared, Limits(), "http://h", self._refuse, None)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"

    def _observe(self, rpc: str, code: str, seconds: float) -> None:
        self.observed.append((rpc, code))

    def _refuse(self, why: str, host: str, detail: str) -> None:
        self.refused.append((why, host))

    def unary(self, name: str, reply: Any) -> Any:
        return self.channel.unary_unary(
            f"/{NAME}/{name}", lambda one: one.SerializeToString(), reply.FromString
        )

    async def send(self, number: int, body: bytes = b"x", **how: Any) -> Any:
        sent = wire.Message(
            topic=wire.Resource(name="t"),
            body=body,
            system_properties=wire.SystemProperties(message_id=f"M{number}"),
        )
        call = self.unary("SendMessage", service.SendMessageResponse)
        return await call(service.SendMessageRequest(messages=[sent]), metadata=MINE, **how)

    def receive(self, group: str = "g", **how: Any) -> Any:
        call = self.channel.unary_stream(
            f"/{NAME}/ReceiveMessage",
            lambda one: one.SerializeToString(),
            service.ReceiveMessageResponse.FromString,
        )
        wanted = service.ReceiveMessageRequest(
            group=wire.Resource(name=group),
            message_queue=wire.MessageQueue(topic=wire.Resource(name="t")),
            batch_size=32,
        )
        wanted.invisible_duration.seconds = 60
        return call(wanted, metadata=MINE, **how)


@asynccontextmanager
async def a_stage() -> AsyncIterator[Stage]:
    with ThreadPoolExecutor(4) as writer:
        stage = Stage(writer)
        await stage.live.call(stage.live.core.topics.create, "t", MessageType.NORMAL, 1)
        stage.port.start(stage.listening)
        try:
            async with aio.insecure_channel(stage.address, UNBOUNDED) as stage.channel:
                yield stage
        finally:
            stage.live.receivers.close()
            stage.sessions.close()
            await stage.port.shut_down(1.0)
            await stage.live.close()


@pytest.fixture(params=["uvloop", "asyncio"])
def play(request: pytest.FixtureRequest) -> Callable[[Callable[[Stage], Awaitable[None]]], None]:
    def play(scenario: Callable[[Stage], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with asyncio.timeout(SCENARIO_SECONDS), a_stage() as stage:
                await scenario(stage)

        factory = new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(whole())

    return play


Play = Callable[[Callable[[Stage], Awaitable[None]]], None]


def test_calls_of_all_kinds_are_answered_and_counted(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        replies = await asyncio.gather(*(stage.send(number, b"body %d" % number) for number in range(100)))
        assert all(reply.status.code == wire.OK for reply in replies)
        replies = [reply async for reply in stage.receive()]
        assert [one.WhichOneof("content") for one in replies] == [
            "status", *["message"] * 32, "delivery_timestamp",
        ]  # fmt: skip
        heartbeat = stage.unary("Heartbeat", service.HeartbeatResponse)
        assert (await heartbeat(service.HeartbeatRequest(), metadata=MINE)).status.code == wire.OK
        assert stage.observed.count(("SendMessage", "OK")) == 100
        assert ("Heartbeat", "OK") in stage.observed

    play(scenario)


def test_bodies_up_to_the_limit_go_in_and_come_out(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        body = bytes(range(256)) * (limits.BODY_BYTES_MAX // 256)
        assert (await stage.send(1, body)).status.code == wire.OK
        assert (await stage.send(2, body + b"x")).status.code == wire.MESSAGE_BODY_TOO_LARGE
        replies = [reply async for reply in stage.receive()]
        assert [one.message.body == body for one in replies if one.HasField("message")] == [True]

    play(scenario)


def test_a_question_whose_answer_takes_long_is_short(play: Play) -> None:
    """It is kept until the answer ends."""

    async def scenario(stage: Stage) -> None:
        with pytest.raises(aio.AioRpcError) as refused:
            async for _ in stage.receive(group="g" * limits.QUESTION_BYTES_MAX):
                pass
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    play(scenario)


def test_a_compressed_request_is_taken(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        reply = await stage.send(1, b"a" * 100_000, compression=grpc.Compression.Gzip)
        assert reply.status.code == wire.OK

    play(scenario)


@pytest.mark.parametrize("goes", [rst_stream(1), None], ids=["resets", "hangs up"])
def test_a_caller_that_goes_before_it_has_all_gives_its_leases_back(play: Play, goes: bytes | None) -> None:
    """Its window is open for all but a byte of the last message, and the end that follows it."""

    async def scenario(stage: Stage) -> None:
        await asyncio.gather(*(stage.send(number) for number in range(20)))
        whole = b"".join(
            frame_message(reply.SerializeToString()) for reply in [one async for one in stage.receive()]
        )
        _, writer = await asyncio.open_connection(*stage.address.split(":"))
        asked = service.ReceiveMessageRequest(
            group=wire.Resource(name="h"),
            message_queue=wire.MessageQueue(topic=wire.Resource(name="t")),
            batch_size=32,
        )
        asked.invisible_duration.seconds = 60
        fields = tuple((one, f"/{NAME}/ReceiveMessage" if one == ":path" else two) for one, two in REQUEST)
        writer.write(
            PREFACE
            + settings(window=len(whole) - 100)
            + frame(SETTINGS, ACK, 0)
            + request(1, fields=fields)
            + data(1, frame_message(asked.SerializeToString()), ends=True)
        )
        while not any(one.calls.http2.waiting_bytes for one in stage.shared.connections):
            await asyncio.sleep(0.005)
        assert stage.live.receivers.unread_bytes == 20
        if goes is None:
            writer.close()
        else:
            writer.write(goes)
        while stage.live.receivers.unread_bytes:
            await asyncio.sleep(0.005)
        replies = [reply async for reply in stage.receive(group="h")]
        assert sum(one.HasField("message") for one in replies) == 20
        assert {
            one.message.system_properties.delivery_attempt for one in replies if one.HasField("message")
        } == {1}
        writer.close()

    play(scenario)


def test_a_call_whose_time_is_over_is_ended(play: Play) -> None:
    """A client that does not end it itself, as gRPC's do."""

    async def scenario(stage: Stage) -> None:
        reader, writer = await asyncio.open_connection(*stage.address.split(":"))
        path = "/grpc.health.v1.Health/Watch"
        fields = tuple((one, path if one == ":path" else two) for one, two in REQUEST)
        asked = request(1, ("grpc-timeout", "50m"), fields=fields) + data(1, frame_message(b""), ends=True)
        writer.write(PREFACE + settings() + frame(SETTINGS, ACK, 0) + asked)
        told = b""
        while b"grpc-status" not in told:
            told += await reader.read(1_000)
        last = frames(told)[-1]
        assert fields_of(last.payload)["grpc-status"] == "4"
        (connection,) = stage.shared.connections
        assert connection.calls.http2.stream_count == 0
        writer.close()

    play(scenario)


@pytest.mark.parametrize(
    ("timeout", "status"), [("99999999H", "0"), ("0m", "4"), ("soon", "13"), (b"\x82\xff\xff", "13")]
)
def test_a_call_may_have_any_time(play: Play, timeout: str | bytes, status: str) -> None:
    async def scenario(stage: Stage) -> None:
        reader, writer = await asyncio.open_connection(*stage.address.split(":"))
        path = "/grpc.health.v1.Health/Check"
        fields = tuple((one, path if one == ":path" else two) for one, two in REQUEST)
        value = bytes((len(timeout),)) + timeout.encode() if isinstance(timeout, str) else timeout
        head = b"\x20" + block(fields=fields) + b"\x00\x0cgrpc-timeout" + value
        asked = frame(HEADERS, END_HEADERS, 1, head) + data(1, frame_message(b""), ends=True)
        writer.write(PREFACE + settings() + frame(SETTINGS, ACK, 0) + asked)
        told = b""
        while b"grpc-status" not in told:
            told += await reader.read(1_000)
        assert fields_of(frames(told)[-1].payload)["grpc-status"] == status
        writer.close()

    play(scenario)


def test_a_client_is_told_what_is_wrong_with_its_call(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        for path, asked, code in (
            ("/no.Such/Method", b"", grpc.StatusCode.UNIMPLEMENTED),
            ("/apache.rocketmq.v2.Admin/GetProxyRuntimeStats", b"", grpc.StatusCode.UNIMPLEMENTED),
            (f"/{NAME}/SendMessage", b"\xff\xff\xff", grpc.StatusCode.INTERNAL),
        ):
            with pytest.raises(aio.AioRpcError) as refused:
                await stage.channel.unary_unary(path)(asked, metadata=MINE)
            assert refused.value.code() is code
            assert refused.value.details()

    play(scenario)


def test_a_caller_is_known_by_its_header(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        heartbeat = stage.unary("Heartbeat", service.HeartbeatResponse)
        reply = await heartbeat(service.HeartbeatRequest())
        assert reply.status.code == wire.CLIENT_ID_REQUIRED
        assert not list(stage.sessions)
        assert (await heartbeat(service.HeartbeatRequest(), metadata=MINE)).status.code == wire.OK
        assert [(one.client_id, one.language) for one in stage.sessions] == [("client-1", "PYTHON")]

    play(scenario)


def test_a_refusal_that_no_reply_has_a_place_for_is_the_calls_status(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        export = stage.channel.unary_unary(
            f"/{OTLP}",
            otlp.ExportMetricsServiceRequest.SerializeToString,
            otlp.ExportMetricsServiceResponse.FromString,
        )
        await export(otlp.ExportMetricsServiceRequest())
        large = otlp.ExportMetricsServiceRequest()
        large.resource_metrics.add(schema_url="x" * EXPORT_BYTES_MAX)
        with pytest.raises(aio.AioRpcError) as refused:
            await export(large)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "are taken" in (refused.value.details() or "")

    play(scenario)


def test_polls_beyond_the_bound_are_refused_and_each_message_goes_to_one(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "POLLS_PER_CLIENT_MAX", POLLS)

    async def scenario(stage: Stage) -> None:
        got: list[bytes] = []
        codes: list[int] = []

        async def poll() -> None:
            async for reply in stage.receive(timeout=SCENARIO_SECONDS):
                if reply.HasField("message"):
                    got.append(reply.message.body)
                elif reply.HasField("status"):
                    codes.append(reply.status.code)

        polls = [asyncio.create_task(poll()) for _ in range(2 * POLLS)]
        while len(codes) < POLLS or sum(one.receives for one in stage.sessions) < POLLS:
            await asyncio.sleep(0.01)
        assert set(codes) == {wire.TOO_MANY_REQUESTS}
        await asyncio.gather(*(stage.send(number, b"%d" % number) for number in range(POLLS)))
        while len(got) < POLLS:
            await asyncio.sleep(0.01)
        assert sorted(map(int, got)) == list(range(POLLS))
        for task in polls:
            task.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    play(scenario)


def test_telemetry_goes_both_ways(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        call = stage.channel.stream_stream(
            f"/{NAME}/Telemetry",
            lambda one: one.SerializeToString(),
            service.TelemetryCommand.FromString,
        )(metadata=MINE)
        for _ in range(3):
            command = service.TelemetryCommand()
            command.settings.client_type = wire.PRODUCER
            command.settings.publishing.topics.add(name="t")
            await call.write(command)
            assert (await call.read()).HasField("settings")
        await call.done_writing()
        assert await call.read() is aio.EOF
        assert await call.code() is grpc.StatusCode.OK

    play(scenario)


def test_a_stream_that_the_server_ends_has_no_reader_any_more(play: Play) -> None:
    def readers() -> int:
        return sum("Clients._read" in str(task.get_coro()) for task in asyncio.all_tasks())

    async def scenario(stage: Stage) -> None:
        call = stage.channel.stream_stream(f"/{NAME}/Telemetry")(metadata=MINE)
        while not readers():
            await asyncio.sleep(0.005)
        stage.sessions.close()
        assert await call.read() is aio.EOF
        while readers():
            await asyncio.sleep(0.005)

    play(scenario)


def test_health_is_told_and_watched(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        stub = health_pb2_grpc.HealthStub(stage.channel)
        asked = health_pb2.HealthCheckRequest
        status = health_pb2.HealthCheckResponse
        assert (await stub.Check(asked())).status == status.SERVING
        assert (await stub.Check(asked(service=NAME))).status == status.SERVING
        with pytest.raises(aio.AioRpcError) as unknown:
            await stub.Check(asked(service="no.such"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        watched = stub.Watch(asked())
        assert (await watched.read()).status == status.SERVING
        stage.health.tell(False)
        assert (await watched.read()).status == status.NOT_SERVING
        stage.health.tell(True)
        assert (await watched.read()).status == status.SERVING
        stage.health.leave()
        stage.health.tell(True)
        assert (await watched.read()).status == status.NOT_SERVING
        assert (await stub.Watch(asked(service="no.such")).read()).status == status.SERVICE_UNKNOWN
        watched.cancel()

    play(scenario)


def test_so_many_may_watch_health(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WATCHES_MAX", 2)

    async def scenario(stage: Stage) -> None:
        stub = health_pb2_grpc.HealthStub(stage.channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        for one in watches:
            assert (await one.read()).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(aio.AioRpcError, match="2 watch already"):
            await anext(aiter(stub.Watch(health_pb2.HealthCheckRequest())))
        watches.pop().cancel()
        while stage.health._watch_count == 2:
            await asyncio.sleep(0.005)
        again = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await again.read()).status == health_pb2.HealthCheckResponse.SERVING

    play(scenario)


def test_reflection_describes_the_services_by_their_names_on_the_wire(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        asked = reflection_pb2.ServerReflectionRequest
        for call in (
            reflection_pb2_grpc.ServerReflectionStub(stage.channel).ServerReflectionInfo(),
            stage.channel.stream_stream(
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                lambda one: one.SerializeToString(),
                reflection_pb2.ServerReflectionResponse.FromString,
            )(),
        ):
            await call.write(asked(list_services=""))
            named = [one.name for one in (await call.read()).list_services_response.service]
            assert NAME in named
            assert "grpc.health.v1.Health" in named
            for question in (asked(file_containing_symbol=NAME), asked(file_by_filename="no.proto")):
                await call.write(question)
                answer = await call.read()
                is_known = answer.HasField("file_descriptor_response")
                assert is_known == question.HasField("file_containing_symbol")
                assert answer.original_request == question
            await call.done_writing()
            assert await call.read() is aio.EOF

    play(scenario)


def test_a_scrape_tells_how_many_connections_keep_a_table(play: Play) -> None:
    """A client lets go of its table with its first call after it has agreed to."""

    async def scenario(stage: Stage) -> None:
        metrics = Metrics(stage.live, [])
        metrics.watch(stage.port)
        reader, writer = await asyncio.open_connection(*stage.address.split(":"))
        path = "/grpc.health.v1.Health/Check"
        fields = tuple((one, path if one == ":path" else two) for one, two in REQUEST)
        encoder = Encoder()

        def counted() -> list[float]:
            (family,) = [one for one in metrics.collect() if one.name == "mq_connections"]
            return [one.value for one in family.samples]

        async def ask(stream_id: int) -> None:
            whole = frame(HEADERS, END_HEADERS, stream_id, encoder.encode(fields))
            writer.write(whole + data(stream_id, frame_message(b""), ends=True))
            told = b""
            while b"grpc-status" not in told:
                told += await reader.read(1_000)

        writer.write(PREFACE + settings() + frame(SETTINGS, ACK, 0))
        await ask(1)
        assert counted() == [0, 1]
        writer.write(frame(SETTINGS, ACK, 0))
        encoder.header_table_size = 0
        await ask(3)
        assert counted() == [1, 0]
        writer.close()

    play(scenario)


def test_reflection_describes_every_rpc_of_the_table(play: Play) -> None:
    def described(address: str) -> dict[str, set[str]]:
        """The RPCs of each service, as a tool learns them."""
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = DescriptorPool(database)
            return {
                name: set(pool.FindServiceByName(name).methods_by_name) for name in database.get_services()
            }

    async def scenario(stage: Stage) -> None:
        told = await asyncio.to_thread(described, stage.address)
        assert {name for name in stage.rpcs if "/" not in name} <= told[NAME]
        named_in_full = {f"{service}/{name}" for service, names in told.items() for name in names}
        assert {name for name in stage.rpcs if "/" in name} - {OPENCENSUS} <= named_in_full

    play(scenario)


def test_a_server_that_stops_answers_what_is_under_way(play: Play) -> None:
    async def scenario(stage: Stage) -> None:
        waiting = asyncio.ensure_future(stage.receive().read())
        await stage.send(1)
        assert (await waiting).HasField("status")
        polling = stage.receive()
        reading = asyncio.ensure_future(polling.read())
        while len(stage.observed) < 1 or not any(
            one.calls.http2.stream_count for one in stage.shared.connections
        ):
            await asyncio.sleep(0.01)
        leaving = asyncio.ensure_future(stage.port.shut_down(5.0))
        await asyncio.sleep(0)
        stage.live.receivers.close()
        assert (await reading).status.code == wire.MESSAGE_NOT_FOUND
        await leaving
        assert not stage.shared.connections

    play(scenario)


def test_a_bug_in_a_call_ends_that_call_alone(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(stage: Stage) -> None:
        def broken(*_: Any) -> Any:
            raise AssertionError("a bug")

        monkeypatch.setattr(stage.serving, "_unary", broken)
        with pytest.raises(aio.AioRpcError) as failed:
            await stage.unary("Heartbeat", service.HeartbeatResponse)(
                service.HeartbeatRequest(), metadata=MINE
            )
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert (await stage.send(1)).status.code == wire.OK

    play(scenario)
