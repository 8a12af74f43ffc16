"""Metrics that clients report, as sums by topic and group, or for a single client.

The names and labels are those that official clients use. Client ids are not labels, so the number of series
depends only on the number of pairs of topics and groups. Histograms are summed over all clients since the
start, and gauges include only connected clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, HistogramMetricFamily, Metric
from typing_extensions import TypedDict

from services.live.clients.client_metrics import (
    BOUNDS_MS,
    GAUGES,
    ClientMetrics,
    Histogram,
    Key,
    Value,
    cumulate_counts,
    quantile_bound_ms,
)

HELP: Final = {
    "rocketmq_send_cost_time": "Time of a send in its client, in milliseconds.",
    "rocketmq_delivery_latency": "From the broker's answer to the consumer, in milliseconds.",
    "rocketmq_await_time": "Wait in a push consumer for a thread, in milliseconds.",
    "rocketmq_process_time": "Time in a push consumer's listener, in milliseconds.",
    "rocketmq_consumer_cached_messages": "Messages that push consumers hold.",
    "rocketmq_consumer_cached_bytes": "Body bytes that push consumers hold.",
}
LABELS: Final = {
    "rocketmq_send_cost_time": ("topic", "invocation_status"),
    "rocketmq_process_time": ("topic", "consumer_group", "invocation_status"),
}
"""Those of the others are topic and group."""
TOPIC_AND_GROUP: Final = ("topic", "consumer_group")


class MeasuredAnswer(TypedDict):
    """The last values of a series that a client reported.

    The series is a distribution with its buckets, or a gauge with its value. `counts` are the numbers of
    values by `bounds_ms`, followed by the number of values above all bounds. Numbers count the operations of
    the client since its start.
    """

    name: str
    topic: str
    group: str
    status: str
    value: float | None
    count: int | None
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None
    bounds_ms: list[float]
    counts: list[int]


def families(measured: ClientMetrics, node: Mapping[str, str]) -> Iterator[Metric]:
    """Yield every metric family, each with the labels of the broker (`node`)."""
    for name in BOUNDS_MS:
        labels = LABELS.get(name, TOPIC_AND_GROUP)
        histograms = HistogramMetricFamily(name, HELP[name], labels=(*node, *labels))
        bounds = [*(str(float(bound)) for bound in BOUNDS_MS[name]), "+Inf"]
        for key, histogram in measured.sums().items():
            if key.name == name:
                buckets = list(zip(bounds, cumulate_counts(histogram.counts), strict=True))
                histograms.add_metric((*node.values(), *named(key, labels)), buckets, histogram.total_ms)
        yield histograms
    gauges = measured.gauges()
    for name in GAUGES:
        family = GaugeMetricFamily(name, HELP[name], labels=(*node, *TOPIC_AND_GROUP))
        for key, value in gauges.items():
            if key.name == name:
                family.add_metric((*node.values(), *named(key, TOPIC_AND_GROUP)), value)
        yield family


def named(key: Key, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values of the labels of a series."""
    values = {"topic": key.topic, "consumer_group": key.group, "invocation_status": key.status}
    return tuple(values[label] for label in labels)


def shapes(series: Mapping[Key, Value]) -> list[MeasuredAnswer]:
    """Return the series of a client in JSON form, by name."""
    return [shape(key, value) for key, value in sorted(series.items(), key=lambda one: one[0])]


def shape(key: Key, value: Value) -> MeasuredAnswer:
    """Return a series of a client in JSON form."""
    answer = MeasuredAnswer(
        name=key.name,
        topic=key.topic,
        group=key.group,
        status=key.status,
        value=None,
        count=None,
        mean_ms=None,
        p50_ms=None,
        p99_ms=None,
        bounds_ms=[],
        counts=[],
    )
    if not isinstance(value, Histogram):
        answer["value"] = value
        return answer
    answer["count"], answer["counts"] = value.count, list(value.counts)
    answer["bounds_ms"] = list(BOUNDS_MS[key.name])
    if value.count:
        answer["mean_ms"] = value.total_ms / value.count
        answer["p50_ms"], answer["p99_ms"] = (
            quantile_bound_ms(key.name, value, part) for part in (0.5, 0.99)
        )
    return answer
