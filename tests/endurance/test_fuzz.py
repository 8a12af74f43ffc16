"""Hostile values in every RPC and nonsense on the port: each call is answered, none by a bug, nothing grows.

.venv/bin/python -m pytest tests/endurance/test_fuzz.py --seconds 600 -s
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics

from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.metrics.metrics_export import OTLP
from tests.endurance.conftest import METADATA, SERVICE, BrokerProcess
from tests.endurance.hostile import hostile, nonsense

ANSWER_SECONDS = 20
POLL_SECONDS = 0.3
CALLERS = 4
LOG_CHARACTERS_SHOWN = 20_000
RESIDENT_GROWTH_BYTES_MAX = 64 << 20
STREAMS = {"ReceiveMessage": "unary_stream", "Telemetry": "stream_stream"}
NOT_SERVED = {"PullMessage", "UpdateOffset", "GetOffset", "QueryOffset"}
METHODS = service.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name
RPCS = {
    **{f"{SERVICE}{name}": (service, METHODS[name]) for name in set(METHODS) - NOT_SERVED},
    f"/{OTLP}": (metrics, metrics.DESCRIPTOR.services_by_name["MetricsService"].methods_by_name["Export"]),
}
"""The path of each, where its messages are, and its description."""


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--seconds"))


def test_hostile_callers_are_answered_and_the_others_do_not_notice(tmp_path: Path, seconds: float) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    broker = BrokerProcess(tmp_path / "store", "--segment-bytes", str(1 << 26))
    broker.start()
    lite = b'{"name": "lite", "message_type": "LITE"}'
    urlopen(Request(f"http://{broker.http}/api/topics", lite, {"Content-Type": "application/json"})).close()
    try:
        codes = asyncio.run(fuzzed(broker, seed, seconds))
        print(dict(codes.most_common()))
        assert codes["OK"] > 0
        assert len(codes) > 10, "too few refusals to have tried much"
        assert "INTERNAL_SERVER_ERROR" not in codes
        assert "bug while answering" not in broker.log()
    finally:
        assert broker.process is not None
        print(broker.log()[-LOG_CHARACTERS_SHOWN:], f"ended: {broker.process.poll()}", sep="\n")
        broker.kill()


async def fuzzed(broker: BrokerProcess, seed: int, seconds: float) -> Counter[str]:
    """Callers and nonsense side by side for so long; returns the codes of all answers."""
    codes: Counter[str] = Counter()
    warm = time.monotonic() + min(5.0, seconds / 2)
    ends = time.monotonic() + seconds
    await asyncio.gather(*everybody(broker, seed, warm, codes))
    before = resident_bytes(broker)
    await asyncio.gather(*everybody(broker, seed + 1_000, ends, codes))
    await is_fine(broker)
    grown = resident_bytes(broker) - before
    print(f"resident before {before >> 20} MiB, grown {grown >> 20} MiB")
    assert grown < RESIDENT_GROWTH_BYTES_MAX
    return codes


def everybody(broker: BrokerProcess, seed: int, ends: float, codes: Counter[str]) -> list[Any]:
    callers = [calling(broker, random.Random(seed + number), ends, codes) for number in range(CALLERS)]
    return [*callers, talking(broker, random.Random(seed - 1), ends)]


async def calling(broker: BrokerProcess, chance: random.Random, ends: float, codes: Counter[str]) -> None:
    async with grpc.aio.insecure_channel(broker.listen) as channel:
        while time.monotonic() < ends:
            codes[await called(channel, chance.choice(sorted(RPCS)), chance)] += 1


async def called(channel: grpc.aio.Channel, path: str, chance: random.Random) -> str:
    """The code of the answer to one call with hostile values."""
    messages, method = RPCS[path]
    name = method.name
    request = hostile(getattr(messages, method.input_type.name), chance)
    shape = STREAMS.get(name, "unary_unary")
    reply = getattr(messages, method.output_type.name)
    call = getattr(channel, shape)(path, type(request).SerializeToString, reply.FromString)
    if "status" not in reply.DESCRIPTOR.fields_by_name:
        return await answered_by_transport(call(request, metadata=METADATA, timeout=ANSWER_SECONDS))
    if shape == "unary_unary":
        return answered(name, await call(request, metadata=METADATA, timeout=ANSWER_SECONDS))
    asked = request if shape == "unary_stream" else iter([request])
    return await first_of(name, call(asked, metadata=METADATA, timeout=POLL_SECONDS))


def answered(name: str, reply: Any) -> str:
    assert reply.status.code != Code.CODE_UNSPECIFIED, f"{name} has no status"
    return str(Code.Name(reply.status.code))


async def answered_by_transport(call: Any) -> str:
    """The code of an answer that has no status in it."""
    try:
        await call
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        return "refused by gRPC"
    return "OK"


async def first_of(name: str, stream: Any) -> str:
    """The first status of a stream; it may also wait for longer than we do."""
    try:
        async for reply in stream:
            if reply.HasField("status"):
                return answered(name, reply)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return "refused by gRPC"
        if error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL):
            raise  # INTERNAL is what our own gRPC says when a stream ends while it still writes
    return f"{name} waits"


async def talking(broker: BrokerProcess, chance: random.Random, ends: float) -> None:
    """Say nonsense on connections of its own."""
    host, _, port = broker.listen.rpartition(":")
    while time.monotonic() < ends:
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(nonsense(chance))
            await asyncio.wait_for(reader.read(1), chance.choice((0.0, 0.05)))
        except (TimeoutError, OSError):
            pass
        writer.transport.abort()


async def is_fine(broker: BrokerProcess) -> None:
    """A well-meant message is taken at once."""
    properties = wire.SystemProperties(message_id="fine", body_encoding=wire.IDENTITY)
    message = wire.Message(topic=wire.Resource(name="fine"), system_properties=properties, body=b"fine")
    async with grpc.aio.insecure_channel(broker.listen) as channel:
        send = channel.unary_unary(
            f"{SERVICE}SendMessage",
            service.SendMessageRequest.SerializeToString,
            service.SendMessageResponse.FromString,
        )
        reply = await send(
            service.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=ANSWER_SECONDS
        )
    assert reply.status.code == Code.OK, reply.status


def resident_bytes(broker: BrokerProcess) -> int:
    assert broker.process is not None
    return int(Path(f"/proc/{broker.process.pid}/statm").read_text().split()[1]) * 4096
