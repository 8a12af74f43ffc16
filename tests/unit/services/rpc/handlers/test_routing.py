"""QueryRoute and QueryAssignment without a transport."""

from __future__ import annotations

from typing import Any

import pytest

from commitlog.records.message import MessageType
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.wire.caller import Caller

DIALLED = wire.Endpoints(
    scheme=wire.AddressScheme.IPv4, addresses=[wire.Address(host="10.0.0.7", port=18081)]
)


def route(topic: str, namespace: str = "") -> service.QueryRouteRequest:
    resource = wire.Resource(name=topic, resource_namespace=namespace)
    return service.QueryRouteRequest(topic=resource, endpoints=DIALLED)


@pytest.mark.parametrize(
    ("message_type", "accepted"),
    [
        (MessageType.MIXED, ["NORMAL", "FIFO", "DELAY", "TRANSACTION"]),
        (MessageType.DELAY, ["DELAY"]),
        (MessageType.PRIORITY, ["PRIORITY"]),
    ],
)
def test_a_route_names_every_queue_and_what_it_takes(
    play: Any, message_type: MessageType, accepted: list[str]
) -> None:
    async def scenario(front: Any) -> None:
        await front.live.call(front.live.core.topics.create, "t", message_type, 3)
        reply = await front.call("QueryRoute", route("t"))
        assert reply.status.code == Code.OK
        assert [queue.id for queue in reply.message_queues] == [0, 1, 2]
        for queue in reply.message_queues:
            assert [wire.MessageType.Name(kind) for kind in queue.accept_message_types] == accepted
            assert queue.permission == wire.Permission.READ_WRITE
            assert queue.broker.endpoints == DIALLED

    play(scenario)


@pytest.mark.parametrize(("language", "redials"), [("PYTHON", True), ("JAVA", False)])
def test_only_a_client_that_needs_it_is_ever_told_another_address(
    play: Any, language: str, redials: bool
) -> None:
    """Java's `close()` hung for ever when a route that came meanwhile named another address."""
    caller = Caller("client", language=language, seconds_left=0.6)

    async def scenario(front: Any) -> None:
        async def told() -> Any:
            return (await front.call("QueryRoute", route("t"), caller)).message_queues[0].broker.endpoints

        async def nothing() -> Any:
            return
            yield

        assert await told() == DIALLED
        [_ async for _ in front.stream("Telemetry", nothing(), caller)]
        assert await told() == DIALLED, "it has just been told"
        front.pass_time(60_000)
        await front.call("NotifyClientTermination", service.NotifyClientTerminationRequest(), caller)
        assert await told() == DIALLED, "it has just said goodbye"
        for _ in range(2):
            front.pass_time(60_000)
        assert (await told() != DIALLED) is redials

    play(scenario)


def test_an_assignment_is_one_queue_that_stands_for_all(play: Any) -> None:
    async def scenario(front: Any) -> None:
        request = service.QueryAssignmentRequest(topic=wire.Resource(name="t"), endpoints=DIALLED)
        [assignment] = (await front.call("QueryAssignment", request)).assignments
        assert assignment.message_queue.id == -1
        assert assignment.message_queue.broker.endpoints == DIALLED

    play(scenario)


def test_an_illegal_name_makes_no_topic(play: Any) -> None:
    async def scenario(front: Any) -> None:
        for name in ("no no", "", "RMQ_SYS_TRANS_HALF_TOPIC", "x" * 128):
            assert (await front.call("QueryRoute", route(name))).status.code == Code.ILLEGAL_TOPIC
        assert front.live.core.topics.all() == []

    play(scenario)


def test_an_unknown_topic_is_not_found_when_topics_are_not_created_by_themselves(play: Any) -> None:
    async def scenario(front: Any) -> None:
        assert (await front.call("QueryRoute", route("nope"))).status.code == Code.TOPIC_NOT_FOUND
        assert front.live.core.topics.all() == []

    play(scenario, auto_create_topics=False)


def test_the_same_topic_in_two_namespaces_is_two_topics(play: Any) -> None:
    async def scenario(front: Any) -> None:
        for namespace in ("", "shop"):
            reply = await front.call("QueryRoute", route("t", namespace))
            assert reply.message_queues[0].topic == wire.Resource(name="t", resource_namespace=namespace)
        assert [topic.name for topic in front.live.core.topics.all()] == ["shop%t", "t"]

    play(scenario)
