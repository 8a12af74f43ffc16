"""Conversion of exported client metrics from two protocols to the series of `client_metrics.py`.

The clients for Java, Python and C# use OpenTelemetry (OTLP). The clients for Go and C++ use the older
OpenCensus protocol. Both contain the same data: a name, the attributes `topic`, `consumer_group`,
`invocation_status`, `client_id`, and the counts of a histogram with its bounds. Unknown metrics and invalid
values are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import nan
from typing import Any, Final, NamedTuple

from services.live.clients.client_metrics import (
    BOUNDS_MS,
    GAUGES,
    NUMBER_MAX,
    Histogram,
    Value,
    convert_histogram,
)
from services.rpc.generated.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA
from services.rpc.wire.messages import wall_ms

NAME_CHARACTERS_MAX: Final = 255
"""Longer than any topic or group with its namespace."""
STATUSES: Final = ("", "success", "failure")


class ExportedSeries(NamedTuple):
    """A time series as exported by a client. `began_ms` is 0 if it is not specified."""

    name: str
    client_id: str
    topic: str
    group: str
    status: str
    value: Value
    began_ms: int
    is_new: bool


def of_otlp(request: Any) -> Iterator[ExportedSeries | None]:
    """Yield the series of an OTLP request, and None for each skipped series."""
    scopes = (scope for part in request.resource_metrics for scope in part.scope_metrics)
    for metric in (metric for scope in scopes for metric in scope.metrics):
        name, kind = metric.name, metric.WhichOneof("data")
        if name in BOUNDS_MS and kind == "histogram":
            is_new = metric.histogram.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
            for point in metric.histogram.data_points:
                value = convert_histogram(name, point.explicit_bounds, point.bucket_counts, point.sum)
                began_ms = point.start_time_unix_nano // 1_000_000
                yield exported(name, attributes(point), value, began_ms, is_new=is_new)
        elif name in GAUGES and kind == "gauge":
            for point in metric.gauge.data_points:
                is_now = float(getattr(point, point.WhichOneof("value") or "", nan))
                yield exported(name, attributes(point), is_now)
        else:
            yield None


def of_opencensus(request: Any) -> Iterator[ExportedSeries | None]:
    """Yield the series of an OpenCensus request, and None for each skipped series."""
    for metric in request.metrics:
        name = metric.metric_descriptor.name
        labels = [label.key for label in metric.metric_descriptor.label_keys]
        for series in metric.timeseries:
            named = dict(zip(labels, (label.value for label in series.label_values), strict=False))
            began_ms = wall_ms(series.start_timestamp)
            yield exported(name, named, measured(name, series.points), began_ms)


def measured(name: str, points: Any) -> Value | None:
    """Return the newest point of an OpenCensus series."""
    if not points:
        return None
    kind, newest = points[-1].WhichOneof("value"), points[-1]
    if name in BOUNDS_MS and kind == "distribution_value":
        told = newest.distribution_value
        counts = [bucket.count for bucket in told.buckets]
        return convert_histogram(name, told.bucket_options.explicit.bounds, counts, told.sum)
    if name in GAUGES and kind in ("int64_value", "double_value"):
        return float(getattr(newest, kind))
    return None


def attributes(point: Any) -> dict[str, str]:
    """Return the text attributes of an OTLP data point."""
    return {one.key: one.value.string_value for one in point.attributes}


def exported(
    name: str, named: Mapping[str, str], value: Value | None, began_ms: int = 0, *, is_new: bool = False
) -> ExportedSeries | None:
    """Return a series, or None if it is invalid."""
    client_id, topic, group, status = (
        named.get(key, "") for key in ("client_id", "topic", "consumer_group", "invocation_status")
    )
    is_sound = topic and len(topic) <= NAME_CHARACTERS_MAX and len(group) <= NAME_CHARACTERS_MAX
    if value is None or not is_sound or status not in STATUSES:
        return None
    if not isinstance(value, Histogram) and not 0 <= value <= NUMBER_MAX:
        return None
    return ExportedSeries(name, client_id, topic, group, status, value, began_ms, is_new)
