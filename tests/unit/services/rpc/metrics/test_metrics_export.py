"""What clients export of themselves: whose it is, what of it is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as otlp

from commitlog.records.message import MessageType
from services.auth.rights import Kind, Verb
from services.broker.groups.group_values import GroupStart
from services.live.clients.client_metrics import Histogram, Key
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import opencensus_pb2 as opencensus
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.metrics.metrics_export import OPENCENSUS
from services.rpc.serving.service import CallRefused
from services.rpc.wire.caller import Caller
from tests.unit.services.rpc.metrics.exporting import (
    CACHED,
    CLIENT,
    DELTA,
    NOW_MS,
    SEND,
    agent_request,
    exported,
    gauge,
    histogram,
    named,
    there,
)
from tests.unit.services.rpc.test_guard import Watched, watch  # noqa: F401 (a fixture)


def test_what_a_client_measured_is_its_own_and_adds_up_by_topic(play: Any) -> None:
    async def scenario(front: Any) -> None:
        other = Caller("client-2")
        await there(front, CLIENT, other)
        for counts in ((1, 0, 0, 0, 0, 0, 0, 0), (1, 2, 0, 0, 0, 0, 0, 1)):
            assert await exported(front, histogram(named(), counts)) == 0
        assert await exported(front, histogram(named("client-2"), (5, *[0] * 7)), other) == 0
        key = Key(SEND, "t", "", "success")
        assert front.measured.of("client-1") == {key: Histogram((1, 2, 0, 0, 0, 0, 0, 1), 7.0)}
        assert front.measured.sums()[key].counts == (6, 2, 0, 0, 0, 0, 0, 1)

    play(scenario)


def test_what_is_new_since_the_last_export_is_added(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await there(front)
        for _ in range(2):
            await exported(front, histogram(named(), (1, *[0] * 7), temporality=DELTA))
        key = Key(SEND, "t", "", "success")
        assert front.measured.of("client-1")[key].count == front.measured.sums()[key].count == 2

    play(scenario)


def test_a_client_that_began_before_the_broker_is_not_counted_again(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await there(front)
        await exported(front, histogram(named(), (100, *[0] * 7), began_ms=NOW_MS - 60_000))
        assert front.measured.sums() == {}
        await exported(front, histogram(named(), (101, *[0] * 7), began_ms=NOW_MS - 60_000))
        assert front.measured.sums()[Key(SEND, "t", "", "success")].count == 1

    play(scenario)


def test_what_a_client_holds_goes_with_it_and_what_it_did_stays(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await there(front)
        await exported(front, gauge(named(consumer_group="g", invocation_status=""), 3.0))
        await exported(front, histogram(named(), (1, *[0] * 7)))
        assert front.measured.gauges() == {}, "each export says all there is"
        await exported(front, gauge(named(consumer_group="g", invocation_status=""), 3.0))
        assert front.measured.gauges() == {Key(CACHED, "t", "g"): 3.0}
        await front.call("NotifyClientTermination", service.NotifyClientTerminationRequest(), CLIENT)
        assert (front.measured.gauges(), front.measured.of("client-1")) == ({}, {})
        key = Key(SEND, "t", "", "success")
        await exported(front, histogram(named(), (2, *[0] * 7)))
        await exported(front, gauge(named(consumer_group="g", invocation_status=""), 3.0))
        assert front.measured.sums()[key].count == 2, "what it told as it went is counted"
        assert (front.measured.gauges(), front.measured.of("client-1")) == ({}, {})
        await there(front)
        await exported(front, histogram(named(), (3, *[0] * 7)))
        assert front.measured.sums()[key].count == 3, "it was only away"
        assert front.measured.of("client-1")[key].count == 3

    play(scenario)


def test_names_in_a_namespace_are_those_of_the_store(play: Any) -> None:
    async def scenario(front: Any) -> None:
        theirs = replace(CLIENT, namespace="ours")
        await front.call("Heartbeat", service.HeartbeatRequest(), theirs)
        await front.live.call(front.live.core.topics.create, "ours%t", MessageType.NORMAL, 1)
        assert await exported(front, histogram(named(), (1, *[0] * 7)), theirs) == 0
        assert [key.topic for key in front.measured.sums()] == ["ours%t"]

    play(scenario)


def test_what_an_opencensus_agent_is_told_is_the_same_without_any_header(play: Any) -> None:
    async def requests() -> AsyncIterator[Any]:
        yield opencensus.ExportMetricsServiceRequest()
        yield agent_request(named(), (1, *[0] * 7))
        yield agent_request(named(), (1, 2, *[0] * 6))

    async def scenario(front: Any) -> None:
        await there(front)
        assert [one async for one in front.stream(OPENCENSUS, requests(), Caller(""))] == []
        key = Key(SEND, "t", "", "success")
        assert front.measured.of("client-1") == {key: Histogram((1, 2, 0, 0, 0, 0, 0, 0), 7.0)}

    play(scenario)


def test_behind_a_guard_a_user_tells_of_its_own_clients_and_topics(watch: Any) -> None:  # noqa: F811
    async def scenario(watched: Watched) -> None:
        front = watched.front
        await watched.allow("orders", Verb.SEND, Kind.TOPIC, "t")
        for user in ("orders", "carts"):
            await front.call("Heartbeat", service.HeartbeatRequest(), watched.callers[user])
        await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
        await front.live.call(front.live.core.group_views.create, "g", "t", GroupStart())
        request = histogram(named("client"), (1, *[0] * 7))
        assert await exported(front, request, watched.callers["carts"]) == 1
        assert await exported(front, request, watched.callers["orders"]) == 0
        of_group = histogram(named("client", consumer_group="g"), (1, *[0] * 7))
        assert await exported(front, of_group, watched.callers["orders"]) == 1
        assert (len(front.measured.of("orders/client")), len(front.measured.sums())) == (1, 1)

    watch(scenario)


def test_behind_a_guard_an_export_may_bear_the_date_of_its_clients_start(watch: Any) -> None:  # noqa: F811
    async def scenario(watched: Watched) -> None:
        request, known = otlp.ExportMetricsServiceRequest(), watched.callers["orders"]
        watched.front.now_ms += 30 * 86_400_000
        assert (await watched.call("Heartbeat", service.HeartbeatRequest())).code == Code.UNAUTHORIZED
        assert await exported(watched.front, request, known) == 0
        forged = replace(known, authorization=known.authorization.replace("=orders,", "=carts,"))
        for caller in (forged, replace(known, authorization="")):
            with pytest.raises(CallRefused):
                await exported(watched.front, request, caller)
        await watched.access.add_user("orders", replaces_secret=True)
        with pytest.raises(CallRefused):
            await exported(watched.front, request, known)
        assert watched.refusals.counts["unsigned"] == 1

    watch(scenario)


@pytest.mark.parametrize(
    ("language", "is_guarded", "is_encrypted", "is_on"),
    [
        ("GO", False, True, True),
        ("GO", True, True, False),
        ("PYTHON", True, False, True),
        ("PYTHON", False, True, False),
        ("JAVA", True, True, True),
    ],
)
def test_who_cannot_sign_or_encrypt_its_metrics_is_asked_for_none_where_that_matters(
    play: Any,
    watch: Any,  # noqa: F811
    language: str,
    is_guarded: bool,
    is_encrypted: bool,
    is_on: bool,
) -> None:
    async def told(front: Any, caller: Caller) -> None:
        async def commands() -> Any:
            yield service.TelemetryCommand(settings=wire.Settings(client_type=wire.ClientType.PRODUCER))
            await asyncio.Event().wait()

        caller = replace(caller, language=language, is_encrypted=is_encrypted)
        stream = front.stream("Telemetry", commands(), caller)
        assert (await anext(stream)).settings.metric.on is is_on
        await stream.aclose()

    if is_guarded:
        watch(lambda watched: told(watched.front, watched.callers["orders"]))
    else:
        play(lambda front: told(front, CLIENT))
