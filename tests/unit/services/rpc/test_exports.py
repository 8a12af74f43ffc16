"""What clients export of themselves: whose it is, what of it is taken, and what a hostile one achieves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as otlp

from commitlog import limits
from commitlog.message import MessageType
from services.auth.rights import Kind, Verb
from services.broker.group_values import Start
from services.live import client_metrics
from services.live.client_metrics import Key, Spread
from services.rpc.caller import Caller
from services.rpc.exports import EXPORT_BYTES_MAX, EXPORT_SERIES_MAX, OPENCENSUS, OTLP
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import opencensus_pb2 as opencensus
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.server import GrpcServer
from services.rpc.service import CallRefused
from tests.endurance.hostile import hostile
from tests.unit.services.rpc.test_guard import Watched, watch  # noqa: F401 (a fixture)

SEND, CACHED = "rocketmq_send_cost_time", "rocketmq_consumer_cached_messages"
BOUNDS = (1, 5, 10, 20, 50, 200, 500)
DELTA = 1
ROUNDS = 300
GROUPS = ("g", *(f"g{number}" for number in range(6)))
NOW_MS = 1_763_700_000_000
CLIENT = Caller("client-1", language="PYTHON", version="5.1.2")


def named(client_id: str = "client-1", topic: str = "t", **more: str) -> dict[str, str]:
    """The attributes of a series."""
    return {"client_id": client_id, "topic": topic, "invocation_status": "success", **more}


def histogram(
    attributes: dict[str, str],
    counts: Sequence[int],
    name: str = SEND,
    bounds: Sequence[float] = BOUNDS,
    total: float = 7.0,
    began_ms: int = NOW_MS + 1,
    temporality: int = 2,
) -> Any:
    """An export of one histogram."""
    request = otlp.ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=name)
    metric.histogram.aggregation_temporality = temporality
    point = metric.histogram.data_points.add(
        sum=total, bucket_counts=counts, explicit_bounds=bounds, start_time_unix_nano=began_ms * 1_000_000
    )
    add(point, attributes)
    return request


def gauge(attributes: dict[str, str], value: float) -> Any:
    """An export of one gauge."""
    request = otlp.ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name=CACHED)
    add(metric.gauge.data_points.add(as_double=value), attributes)
    return request


def add(point: Any, attributes: dict[str, str]) -> None:
    for key, value in attributes.items():
        point.attributes.add(key=key).value.string_value = value


async def there(front: Any, *callers: Caller) -> None:
    """Have clients call, and a topic and its groups be there."""
    for caller in callers or (CLIENT,):
        await front.call("Heartbeat", service.HeartbeatRequest(), caller)
    await front.live.create_topic("t", MessageType.NORMAL, 1)
    for group in GROUPS:
        if not front.live.core.receives(group, "t"):
            await front.live.groups.create(group, "t", Start())


async def exported(front: Any, request: Any, caller: Caller = CLIENT) -> int:
    """Export; returns how many series were not taken."""
    reply = await front.call(OTLP, request, caller)
    return int(reply.partial_success.rejected_data_points)


def test_what_a_client_measured_is_its_own_and_adds_up_by_topic(play: Any) -> None:
    async def scenario(front: Any) -> None:
        other = Caller("client-2")
        await there(front, CLIENT, other)
        for counts in ((1, 0, 0, 0, 0, 0, 0, 0), (1, 2, 0, 0, 0, 0, 0, 1)):
            assert await exported(front, histogram(named(), counts)) == 0
        assert await exported(front, histogram(named("client-2"), (5, *[0] * 7)), other) == 0
        key = Key(SEND, "t", "", "success")
        assert front.measured.of("client-1") == {key: Spread((1, 2, 0, 0, 0, 0, 0, 1), 7.0)}
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
        await front.live.create_topic("ours%t", MessageType.NORMAL, 1)
        assert await exported(front, histogram(named(), (1, *[0] * 7)), theirs) == 0
        assert [key.topic for key in front.measured.sums()] == ["ours%t"]

    play(scenario)


@pytest.mark.parametrize(
    "request_",
    [
        histogram(named("somebody"), (1, *[0] * 7)),
        histogram(named(topic="none"), (1, *[0] * 7)),
        histogram(named(topic=""), (1, *[0] * 7)),
        histogram(named(consumer_group="none"), (1, *[0] * 7)),
        histogram(named(topic="t" * 1_000), (1, *[0] * 7)),
        histogram(named(consumer_group="g" * 1_000), (1, *[0] * 7)),
        histogram(named(invocation_status="made up"), (1, *[0] * 7)),
        histogram(named(), (1, *[0] * 7), name="made_up"),
        histogram(named(), (1, *[0] * 7), name=CACHED),
        histogram(named(), (1,)),
        histogram(named(), ()),
        histogram(named(), [1] * 1_001, bounds=range(1_000)),
        histogram(named(), (1, *[0] * 7), total=float("nan")),
        histogram(named(), (1, *[0] * 7), total=float("inf")),
        histogram(named(), (1, *[0] * 7), total=-1.0),
        gauge(named(invocation_status=""), float("inf")),
    ],
)
def test_what_cannot_be_meant_is_left_out_and_told(play: Any, request_: Any) -> None:
    async def scenario(front: Any) -> None:
        await there(front)
        assert await exported(front, request_) == 1
        assert (front.measured.sums(), front.measured.of("client-1")) == ({}, {})

    play(scenario)


def test_other_bounds_are_held_in_those_that_clients_have(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await there(front)
        await exported(front, histogram(named(), (1, 2, 4, 8), bounds=(2, 5, 1_000)))
        [spread] = front.measured.sums().values()
        assert spread.counts == (0, 3, 0, 0, 0, 0, 0, 12)

    play(scenario)


def test_a_client_is_given_so_many_series_and_all_together_so_many(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_metrics, "CLIENT_SERIES_EACH_MAX", 4)
    monkeypatch.setattr(client_metrics, "CLIENT_SERIES_MAX", 10)

    async def scenario(front: Any) -> None:
        callers = [Caller(f"c{number}") for number in range(5)]
        await there(front, *callers)
        left_out = 0
        for caller in callers:
            for number in range(6):
                request = histogram(named(caller.client_id, consumer_group=f"g{number}"), (1, *[0] * 7))
                left_out += await exported(front, request, caller)
        assert left_out == 30 - 10
        assert sum(len(front.measured.of(caller.client_id)) for caller in callers) == 10
        assert len(front.measured.sums()) <= 10
        await front.call("NotifyClientTermination", service.NotifyClientTerminationRequest(), callers[0])
        assert await exported(front, histogram(named("c4"), (1, *[0] * 7)), callers[4]) == 0, "there is room"

    play(scenario)


def test_an_export_of_any_size_is_answered(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await there(front)
        request = histogram(named(), (1, *[0] * 7))
        request.resource_metrics[0].schema_url = "x" * EXPORT_BYTES_MAX
        with pytest.raises(CallRefused, match="at most"):
            await exported(front, request)
        assert front.observed[-1] == (OTLP, "BAD_REQUEST")

    play(scenario)


def test_no_more_of_an_export_is_looked_at_than_a_process_sends(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await there(front)
        request = histogram(named(), (1, *[0] * 7))
        points = request.resource_metrics[0].scope_metrics[0].metrics[0].histogram.data_points
        for _ in range(2 * EXPORT_SERIES_MAX):
            points.add()
        assert await exported(front, request) == EXPORT_SERIES_MAX - 1

    play(scenario)


def agent_request(attributes: dict[str, str], counts: Sequence[int]) -> Any:
    """An export to an OpenCensus agent."""
    request = opencensus.ExportMetricsServiceRequest()
    metric = request.metrics.add()
    metric.metric_descriptor.name = SEND
    for key in attributes:
        metric.metric_descriptor.label_keys.add(key=key)
    series = metric.timeseries.add()
    series.start_timestamp.seconds = NOW_MS // 1000 + 1
    for value in attributes.values():
        series.label_values.add(value=value)
    told = series.points.add().distribution_value
    told.sum = 7.0
    told.bucket_options.explicit.bounds.extend(BOUNDS)
    for count in counts:
        told.buckets.add(count=count)
    return request


def test_what_an_opencensus_agent_is_told_is_the_same_without_any_header(play: Any) -> None:
    async def requests() -> AsyncIterator[Any]:
        yield opencensus.ExportMetricsServiceRequest()
        yield agent_request(named(), (1, *[0] * 7))
        yield agent_request(named(), (1, 2, *[0] * 6))

    async def scenario(front: Any) -> None:
        await there(front)
        assert [one async for one in front.stream(OPENCENSUS, requests(), Caller(""))] == []
        key = Key(SEND, "t", "", "success")
        assert front.measured.of("client-1") == {key: Spread((1, 2, 0, 0, 0, 0, 0, 0), 7.0)}

    play(scenario)


@pytest.mark.parametrize("name", [OTLP, OPENCENSUS])
def test_hostile_values_are_answered_and_bounded(play: Any, name: str) -> None:
    chance = Random(name)

    def request(kind: Any) -> Any:
        """A hostile request that has a metric's name, and is of a client that is there."""
        made = hostile(kind, chance)
        metrics = made.metrics if name == OPENCENSUS else metrics_of(made)
        for metric in metrics:
            described = metric.metric_descriptor if name == OPENCENSUS else metric
            described.name = chance.choice((SEND, CACHED))
            if name == OPENCENSUS:
                metric.CopyFrom(
                    agent_request(named(), (1, *[0] * 7)).metrics[0] if chance.random() < 0.1 else metric
                )
            for point in metric.histogram.data_points if name == OTLP else ():
                add(point, named())
        return made

    async def scenario(front: Any) -> None:
        await there(front)
        rpc = front.rpcs[name]
        for _ in range(ROUNDS):
            if name == OTLP:
                with suppress(CallRefused):  # some are too large
                    await exported(front, request(rpc.request))
                continue

            async def once() -> AsyncIterator[Any]:
                yield request(rpc.request)

            with suppress(CallRefused):
                assert [one async for one in front.stream(name, once())] == []
        assert not any(code == "INTERNAL_SERVER_ERROR" for _, code in front.observed)
        assert len(front.measured.of("client-1")) <= limits.CLIENT_SERIES_EACH_MAX

    play(scenario)


def metrics_of(request: Any) -> list[Any]:
    """Every metric of an OTLP request."""
    scopes = (scope for part in request.resource_metrics for scope in part.scope_metrics)
    return [metric for scope in scopes for metric in scope.metrics]


def test_behind_a_guard_a_user_tells_of_its_own_clients_and_topics(watch: Any) -> None:  # noqa: F811
    async def scenario(watched: Watched) -> None:
        front = watched.front
        await watched.allow("orders", Verb.SEND, Kind.TOPIC, "t")
        for user in ("orders", "carts"):
            await front.call("Heartbeat", service.HeartbeatRequest(), watched.callers[user])
        await front.live.create_topic("t", MessageType.NORMAL, 1)
        await front.live.groups.create("g", "t", Start())
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
        await watched.access.add_user("orders", renews=True)
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


def test_a_refused_export_is_an_error_of_the_transport(play: Any) -> None:
    async def scenario(front: Any) -> None:
        server = GrpcServer()
        port = server.bind("127.0.0.1", 0)
        await server.start(front.rpcs, lambda *_: None)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            export = channel.unary_unary(
                f"/{OTLP}",
                otlp.ExportMetricsServiceRequest.SerializeToString,
                otlp.ExportMetricsServiceResponse.FromString,
            )
            await export(otlp.ExportMetricsServiceRequest())
            large = otlp.ExportMetricsServiceRequest()
            large.resource_metrics.add(schema_url="x" * EXPORT_BYTES_MAX)
            with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
                await export(large)
        await server.stop(0)

    play(scenario)
