"""The table served by grpc.aio on a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from commitlog.errors import PortTaken
from services.rpc import sessions
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.server import GrpcServer, peer_host
from services.rpc.service import NAME
from services.rpc.turns import Turns

TOPIC = wire.Resource(name="t")
SCENARIO_SECONDS = 25
POLLS = 100
SOMEBODY = (("x-mq-client-id", "somebody"),)
RECEIVE = service.ReceiveMessageRequest(
    group=wire.Resource(name="g"),
    message_queue=wire.MessageQueue(topic=TOPIC),
    batch_size=32,
    auto_renew=True,
)


async def served(front: Any) -> tuple[GrpcServer, grpc.aio.Channel]:
    """Serve the front's table and connect to it."""
    server = GrpcServer()
    port = server.bind("127.0.0.1", 0)
    await server.start(front.rpcs, Turns(front.live), lambda *_: None)
    return server, grpc.aio.insecure_channel(f"127.0.0.1:{port}")


def call(channel: grpc.aio.Channel, name: str, shape: str = "unary_unary") -> Any:
    codec = service.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[name]
    request, reply = (getattr(service, one.name) for one in (codec.input_type, codec.output_type))
    return getattr(channel, shape)(f"/{NAME}/{name}", request.SerializeToString, reply.FromString)


def test_a_caller_is_known_by_its_header(play: Any) -> None:
    async def scenario(front: Any) -> None:
        server, channel = await served(front)
        route = call(channel, "QueryRoute")
        request = service.QueryRouteRequest(topic=TOPIC)
        assert (await route(request)).status.code == Code.CLIENT_ID_REQUIRED
        assert (await route(request, metadata=SOMEBODY)).status.code == Code.OK
        assert [session.client_id for session in front.sessions] == ["somebody"]
        await channel.close()
        await server.stop(0)

    play(scenario)


def test_a_second_server_on_the_port_is_refused(play: Any) -> None:
    async def scenario(front: Any) -> None:
        server = GrpcServer()
        port = server.bind("127.0.0.1", 0)
        await server.start(front.rpcs, Turns(front.live), lambda *_: None)
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port}"):
            GrpcServer().bind("127.0.0.1", port)
        await server.stop(0)

    play(scenario)


def test_a_client_that_hangs_up_in_the_middle_loses_no_message(play: Any) -> None:
    async def scenario(front: Any) -> None:
        server, channel = await served(front)
        for number in range(32):
            await front.send("t", bytes(60_000), message_id=str(number))
        front.pass_time(1)  # the look at the disk is over, so that next to come are the leases
        hasty = call(channel, "ReceiveMessage", "unary_stream")(RECEIVE, metadata=SOMEBODY)
        await hasty.read()
        assert front.live.core.gauges().in_flight == {("t", "g"): 32}
        hasty.cancel()
        while front.live.core.gauges().in_flight != {("t", "g"): 0}:
            await asyncio.sleep(0)
        await channel.close()
        await server.stop(0)

    play(scenario, segment_bytes=1 << 23)


def test_polls_beyond_the_bound_are_refused_and_each_message_goes_to_one(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "POLLS_PER_CLIENT_MAX", POLLS)

    async def scenario(front: Any) -> None:
        server, channel = await served(front)
        receive = call(channel, "ReceiveMessage", "unary_stream")
        got: list[bytes] = []
        codes: list[int] = []

        async def poll() -> None:
            async for reply in receive(RECEIVE, metadata=SOMEBODY, timeout=SCENARIO_SECONDS):
                if reply.HasField("message"):
                    got.append(reply.message.body)
                elif reply.HasField("status"):
                    codes.append(reply.status.code)

        polls = [asyncio.create_task(poll()) for _ in range(POLLS + 50)]
        while len(codes) < 50 or sum(one.receives for one in front.sessions) < POLLS:
            await asyncio.sleep(0.01)
        assert set(codes) == {Code.TOO_MANY_REQUESTS}
        for number in range(100):
            await front.send("t", b"%d" % number)
        while len(got) < 100:
            await asyncio.sleep(0.01)
        assert sorted(map(int, got)) == list(range(100))
        for task in polls:
            task.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        await channel.close()
        await server.stop(0)

    play(scenario)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.9:51000", "10.0.0.9"),
        ("ipv6:%5B::1%5D:51000", "::1"),
        ("ipv6:%5B::ffff:10.0.0.9%5D:51000", "10.0.0.9"),
    ],
)
def test_a_peer_is_an_address(peer: str, host: str) -> None:
    assert peer_host(peer) == host
