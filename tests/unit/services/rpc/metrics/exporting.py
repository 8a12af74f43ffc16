"""Exports as clients make them, for the tests of what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as otlp

from commitlog.records.message import MessageType
from services.broker.groups.group_values import GroupStart
from services.rpc.generated import opencensus_pb2 as opencensus
from services.rpc.generated import service_pb2 as service
from services.rpc.metrics.metrics_export import OTLP
from services.rpc.wire.caller import Caller

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
    await front.live.call(front.live.core.topics.create, "t", MessageType.NORMAL, 1)
    for group in GROUPS:
        if not front.live.core.groups.is_subscribed(group, "t"):
            await front.live.call(front.live.core.group_views.create, group, "t", GroupStart())


async def exported(front: Any, request: Any, caller: Caller = CLIENT) -> int:
    """Export; returns how many series were not taken."""
    reply = await front.call(OTLP, request, caller)
    return int(reply.partial_success.rejected_data_points)


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


def metrics_of(request: Any) -> list[Any]:
    """Every metric of an OTLP request."""
    scopes = (scope for part in request.resource_metrics for scope in part.scope_metrics)
    return [metric for scope in scopes for metric in scope.metrics]
