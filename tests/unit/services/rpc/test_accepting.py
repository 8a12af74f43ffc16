"""More accepts than grpc.aio's own, on a real socket."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import grpc
import pytest

from services.rpc import accepting
from services.rpc.accepting import ACCEPTS, Accepting
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.server import GrpcServer
from services.rpc.service import NAME
from services.rpc.turns import Turns

SOMEBODY = (("x-mq-client-id", "somebody"),)
PATH = f"/{NAME}/QueryRoute"
ASKED = service.QueryRouteRequest(topic=wire.Resource(name="t"))


def route_of(port: int) -> tuple[grpc.aio.Channel, Any]:
    """A connection, and the RPC that asks for a topic's route."""
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    reply = service.QueryRouteResponse.FromString
    return channel, channel.unary_unary(PATH, service.QueryRouteRequest.SerializeToString, reply)


@pytest.mark.parametrize("release", ["1.85.", "none that there is"])
def test_all_of_many_calls_at_once_are_answered(
    play: Any, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.setattr(accepting, "KNOWN_RELEASE", release)

    async def scenario(front: Any) -> None:
        server = GrpcServer()
        port = server.bind("127.0.0.1", 0)
        await server.start(front.rpcs, Turns(front.live), lambda *_: None)
        channel, route = route_of(port)
        answers = await asyncio.gather(*(route(ASKED, metadata=SOMEBODY) for _ in range(20 * ACCEPTS)))
        assert {answer.status.code for answer in answers} == {Code.OK}
        await channel.close()
        await server.stop(0)

    play(scenario)


def test_accepts_end_with_the_server_and_leave_nothing_behind() -> None:
    async def scenario() -> None:
        async def answer(_: bytes, __: Any) -> bytes:
            return b""

        server = grpc.aio.server()
        more = Accepting(server, {"/service/method": grpc.unary_unary_rpc_method_handler(answer)})
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        more.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            calls = (channel.unary_unary("/service/method")(b"") for _ in range(3 * ACCEPTS))
            assert set(await asyncio.gather(*calls)) == {b""}
            with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
                await channel.unary_unary("/service/other")(b"")
        await server.stop(None)
        gc.collect()
        async with asyncio.timeout(5):
            while more._tasks:  # a task that is done is forgotten in the loop's next turn
                await asyncio.sleep(0)

    asyncio.run(scenario())


def test_another_release_of_grpc_is_left_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "KNOWN_RELEASE", "none that there is")
    Accepting(object(), {PATH: None}).start()  # nothing of the server is touched
