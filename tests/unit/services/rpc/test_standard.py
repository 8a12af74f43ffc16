"""Health and reflection, as probes and grpcurl ask for them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from services.rpc import standard
from services.rpc.exports import OPENCENSUS
from services.rpc.server import GrpcServer
from services.rpc.service import NAME
from services.rpc.turns import Turns

HealthReply = health_pb2.HealthCheckResponse


@pytest.mark.parametrize("name", ["", NAME])
def test_a_probe_hears_that_the_server_serves_and_that_it_leaves(play: Any, name: str) -> None:
    async def scenario(front: Any) -> None:
        server = GrpcServer()
        port = server.bind("127.0.0.1", 0)
        await server.start(front.rpcs, Turns(front.live), lambda *_: None)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert (
                await health.Check(health_pb2.HealthCheckRequest(service=name))
            ).status == HealthReply.SERVING
            watch = health.Watch(health_pb2.HealthCheckRequest(service=name))
            assert (await watch.read()).status == HealthReply.SERVING
            for is_well, said in ((False, HealthReply.NOT_SERVING), (True, HealthReply.SERVING)):
                await server.tell_health(is_well)
                assert (await watch.read()).status == said
            await server.stop(1)
            assert (await watch.read()).status == HealthReply.NOT_SERVING

    play(scenario)


def test_reflection_names_every_rpc_of_the_table(play: Any) -> None:
    async def scenario(front: Any) -> None:
        server = GrpcServer()
        port = server.bind("127.0.0.1", 0)
        await server.start(front.rpcs, Turns(front.live), lambda *_: None)
        try:
            described_here = await asyncio.to_thread(described, port)
            assert {name for name in front.rpcs if "/" not in name} <= described_here[NAME]
            named_in_full = {
                f"{service}/{name}" for service, names in described_here.items() for name in names
            }
            assert {name for name in front.rpcs if "/" in name} - {OPENCENSUS} <= named_in_full
        finally:
            await server.stop(0)

    play(scenario)


def described(port: int) -> dict[str, set[str]]:
    """The RPCs of each service, as a tool learns them."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        return {name: set(pool.FindServiceByName(name).methods_by_name) for name in database.get_services()}


def test_fields_are_described_with_their_names_in_json() -> None:
    system = standard.described().FindMessageTypeByName("apache.rocketmq.v2.SystemProperties")
    assert system.fields_by_name["message_id"].json_name == "messageId"
    proto = DescriptorProto()
    system.CopyToProto(proto)
    assert all(field.json_name for field in proto.field)
