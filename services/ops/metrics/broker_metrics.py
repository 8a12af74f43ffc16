"""The Prometheus metrics of the broker, under the names of RocketMQ if it has an equivalent metric.

Metrics with an equivalent in RocketMQ 5 have its names and labels. The others begin with `mq_` and have base
units, such as seconds. The core is read only at a scrape, and only calls are counted when they occur.
Labels are topics and groups, never keys, message ids or client ids.
"""

from __future__ import annotations

import platform
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from services.broker.groups.group_filters import format_filter
from services.broker.spine.statistics import LATENESS_BOUNDS_MS, Gauges, Lateness, Statistics
from services.broker.spine.values import TimerFilter
from services.live.clients.client_metrics import ClientMetrics
from services.live.clients.consumers import ConsumersOf, no_consumers
from services.live.live_broker import LiveBroker
from services.live.progress import STALLED_MS, measure_progress
from services.ops.metrics.client_metrics import families
from services.ops.metrics.group_metrics import group_families, labels_of
from services.ops.metrics.horizon import counts_within

Labels = tuple[str, ...]
Rows = Iterable[tuple[Any, ...]]
"""Rows of label values, the measured value last."""

NOBODY: Final[Mapping[str, int]] = MappingProxyType({})
ROWS_AT_ONCE = 500
NODE = ("cluster", "node_type", "node_id")
TIMER_BOUNDS_SECONDS = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
LATENCY_BUCKETS_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 1_000, 5_000, 25_000)


class Client(Protocol):
    """The attributes of a client that are used for metrics."""

    @property
    def is_producer(self) -> bool:
        """Whether the client is a producer and not a consumer."""

    @property
    def language(self) -> str:
        """The language of the client library, as reported by the library."""

    @property
    def version(self) -> str:
        """The version of the client library."""


class Connections(Protocol):
    """The attributes of the protocol port that are used for metrics."""

    @property
    def connection_count(self) -> int:
        """The number of connections."""

    @property
    def table_count(self) -> int:
        """The number of connections with an HPACK header table, whose header fields take longer to decode."""


class Metrics(Collector):
    """All metrics of the broker, in a separate registry."""

    def __init__(
        self,
        live: LiveBroker,
        clients: Iterable[Client],
        consuming: ConsumersOf = no_consumers,
        sent_away: Mapping[str, int] = NOBODY,
        measured: ClientMetrics | None = None,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client declares no types for it
        self._live, self._clients, self._consuming, self._sent_away = live, clients, consuming, sent_away
        self._measured = measured
        self._port: Connections | None = None
        self._polls: Mapping[str, int] = NOBODY
        self._more: list[Collector] = []
        self._node = ("tidewheel", "broker", live.settings.broker_name)
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._latency = Histogram(
            "rocketmq_rpc_latency",
            "Time to answer a call, in milliseconds.",
            (*NODE, "protocol_type", "request_code", "response_code"),
            buckets=LATENCY_BUCKETS_MS,
            registry=self.registry,
        )
        self._refused = Counter(
            "mq_refused", "Calls that were refused, by status.", ("reason",), registry=self.registry
        )
        self._latencies: dict[tuple[str, str], Histogram] = {}
        self._build = InfoMetricFamily("mq_build", "What this broker was built from.")
        versions = {"python": platform.python_version(), "protobuf": version("protobuf")}
        self._build.add_metric((), {"version": version("tidewheel"), **versions})

    def observe(self, rpc: str, code: str, seconds: float) -> None:
        """Count an answered call."""
        series = self._latencies.get((rpc, code))
        if series is None:
            series = self._latency.labels(*self._node, "grpc", rpc, code)
            self._latencies[rpc, code] = series
        series.observe(seconds * 1000)
        if code != "OK":
            self._refused.labels(code).inc()

    def watch(self, port: Connections) -> None:
        """Also export the number of connections of a port."""
        self._port = port

    def count_polls(self, polls: Mapping[str, int]) -> None:
        """Also export the number of open long polls of the HTTP interface, by kind."""
        self._polls = polls

    def add(self, more: Collector) -> None:
        """Also export the families of another collector."""
        self._more.append(more)

    def collect(self) -> Iterator[Metric]:
        """Yield the current counters and gauges of the core."""
        return (family for family in self._families() if family is not None)

    def in_turns(self) -> Iterator[Metric | None]:
        """Yield every metric family. Yield None where the event loop may process other calls."""
        yield from self._families()
        yield from self._latency.collect()
        yield from self._refused.collect()

    def _families(self) -> Iterator[Metric | None]:
        yield self._build
        for more in self._more:
            yield from more.collect()
        serves = not self._live.broken.done() and self._live.disk_failure is None
        yield from self._gauge("mq_ready", "1 while the broker serves, 0 while its disk fails.", int(serves))
        if not serves:
            return
        statistics, gauges = self._live.core.statistics, self._live.core.gauges()
        yield from self._traffic(statistics)
        yield from self._groups()
        yield from self._transactions(statistics, gauges)
        yield from self._timers(statistics, gauges)
        yield from self._storage(statistics, gauges)
        yield from self._progress()
        yield from self._connections()
        if self._port is not None:
            tables = self._port.table_count
            rows = [("none", self._port.connection_count - tables), ("kept", tables)]
            name, help_text = "mq_connections", "Connections, by whether the client keeps a header table."
            yield from self._gauges(name, help_text, ("header_table",), rows)
        polls = "Long polls that are open over HTTP, by what they wait for."
        yield from self._gauges("mq_http_polls", polls, ("kind",), self._polls.items())
        if self._measured is not None:
            yield from families(self._measured, dict(zip(NODE, self._node, strict=True)))
        sent_away = self._sent_away.items()
        yield from self._counters(
            "tidewheel_refused", "Callers sent away, by reason.", ("reason",), sent_away
        )

    def _traffic(self, statistics: Statistics) -> Iterator[Metric | None]:
        by_topic = ("topic", "is_system")
        by_group = ("topic", "consumer_group", "is_retry", "is_system")
        stored = statistics.stored.items()
        messages = ((topic, "false", one.messages) for topic, one in stored)
        body_bytes = ((topic, "false", one.body_bytes) for topic, one in stored)
        for name, help_text, rows in (
            ("rocketmq_messages_in", "Messages stored for producers.", messages),
            ("rocketmq_throughput_in", "Body bytes stored for producers.", body_bytes),
        ):
            yield from self._counters(name, help_text, by_topic, rows)
        for name, help_text, shared in (
            ("rocketmq_messages_out", "Messages leased to consumers.", statistics.messages_out),
            ("rocketmq_throughput_out", "Body bytes leased to consumers.", statistics.bytes_out),
            ("mq_acknowledged", "Messages acknowledged.", statistics.acknowledged),
            ("rocketmq_send_to_dlq_messages", "Messages given up as dead letters.", statistics.dead_letters),
        ):
            pairs = ((topic, group, "false", "false", count) for (topic, group), count in shared.items())
            yield from self._counters(name, help_text, by_group, pairs)

    def _groups(self) -> Iterator[Metric | None]:
        names = self._live.core.groups.unsorted_group_names()
        yield from self._gauge("rocketmq_consumer_group_number", "Consumer groups.", len(names))
        for family in group_families(self._live, names):
            if family is None:
                yield None
                continue
            name, help_text, rows = family
            yield from self._gauges(
                name, help_text, ("topic", "consumer_group", "is_retry", "is_system"), rows
            )
        kept = self._live.core.groups.missed_messages
        missed = ((topic, group, one.message_count) for group, topic, one in kept.items())
        what = "Messages that retention deleted before a group had finished them."
        yield from self._counters("mq_group_missed_messages", what, ("topic", "consumer_group"), missed)
        waiting = [
            (one.topic, group, format_filter(one.text), one.waiting)
            for group, one in self._live.core.group_views.mixed_filters()
        ]
        what = "Messages that wait for a filter, of groups whose clients have several."
        yield from self._gauges(
            "mq_filter_waiting_messages", what, ("topic", "consumer_group", "filter"), waiting
        )

    def _transactions(self, statistics: Statistics, gauges: Gauges) -> Iterator[Metric | None]:
        for name, help_text, counted in (
            ("rocketmq_commit_messages", "Transactions committed.", statistics.commits),
            ("rocketmq_rollback_messages", "Transactions rolled back.", statistics.rollbacks),
            ("mq_half_parked", "Half messages that expired unanswered.", statistics.expired),
            ("mq_checkback", "Check-backs asked of producers.", statistics.checks_asked),
        ):
            yield from self._counters(name, help_text, ("topic",), counted.items())
        yield from self._gauge("rocketmq_half_messages", "Half messages that are open.", gauges.open_halves)
        stored_ms = gauges.oldest_half_ms
        age_ms = 0 if stored_ms is None else max(0, self._live.clock.now_ms() - stored_ms)
        yield from self._gauge("mq_half_age_seconds", "Age of the oldest open half message.", age_ms / 1000)

    def _timers(self, statistics: Statistics, gauges: Gauges) -> Iterator[Metric | None]:
        yield from self._gauge("rocketmq_timing_messages", "Delayed messages pending.", gauges.pending_timers)
        verdicts = statistics.verdicts.items()
        yield from self._counters("mq_timer_verdicts", "Verbs on timers, by verdict.", ("verdict",), verdicts)
        carried = ((*labels, count) for labels, count in statistics.carried_verdicts.items())
        what = "Verbs on timers that messages of a topic carried, by verdict."
        yield from self._counters("mq_timer_carried_verdicts", what, ("topic", "verdict"), carried)
        pending = gauges.pending_by_topic.items()
        yield from self._gauges("mq_timer_pending", "Delayed messages pending.", ("topic",), pending)
        held = gauges.held_by_topic.items()
        what = "Delayed messages that are due, and that a hold of their topic keeps."
        yield from self._gauges("mq_timer_held", what, ("topic",), held)
        beside = gauges.timers_bytes
        yield from self._gauge("mq_timer_storage_bytes", "Bytes that timers take beside the log.", beside)
        yield from self._due()
        early = ((topic, late.early_count) for topic, late in statistics.lateness.items())
        yield from self._counters(
            "mq_delivery_early", "Delayed messages before their time.", ("topic",), early
        )
        yield self._lateness(statistics.lateness)
        causes = ((*labels, count) for labels, count in statistics.lateness_by_cause.items())
        late = "Delayed messages that were noticeably late, by what held them up."
        yield from self._counters("mq_lateness_cause", late, ("topic", "cause"), causes)
        jumps = statistics.clock_jumps.items()
        yield from self._counters("mq_clock_jumps", "Leaps of the system's clock.", ("direction",), jumps)

    def _due(self) -> Iterator[Metric | None]:
        now_ms, first = self._live.now_ms(), self._live.timers(TimerFilter(is_held=False), None, 1).timers
        ahead = [((one.due_ms - now_ms) / 1000,) for one in first]
        yield from self._gauges(
            "mq_timer_next_due_seconds", "Until the next one; none if none waits.", (), ahead
        )
        spans_ms = tuple(bound * 1_000 for bound in TIMER_BOUNDS_SECONDS)
        counts = []
        for bound, count in zip(TIMER_BOUNDS_SECONDS, counts_within(self._live, spans_ms), strict=True):
            yield None
            counts.append((str(bound), count))
        within = "Delayed messages due before the bound and not before the one below."
        yield from self._gauges("rocketmq_timer_message_snapshot", within, ("timer_bound_s",), counts)

    def _storage(self, statistics: Statistics, gauges: Gauges) -> Iterator[Metric | None]:
        stored = gauges.log_end_offset - gauges.log_first_offset
        behind = gauges.log_end_offset - gauges.durable_offset
        yield from self._gauge("rocketmq_storage_size", "Bytes of the log.", stored)
        yield from self._gauge("rocketmq_storage_flush_behind_bytes", "Bytes not yet on disk.", behind)
        yield from self._gauge(
            "mq_disk_used_ratio", "Used share of the store's file system.", gauges.disk_used
        )
        yield from self._gauge("mq_disk_full", "1 while new messages are refused.", int(gauges.is_full))
        yield from self._gauge("rocketmq_topic_number", "Topics.", gauges.topic_count)
        yield from self._counters("mq_flushes", "Writes of the log.", (), [(statistics.flushes,)])
        yield from self._gauge(
            "mq_store_damage",
            "Damaged places found since the start; their timers may be rebuilt.",
            gauges.damage_count,
        )
        yield from self._gauge(
            "mq_timers_unreadable",
            "Timers that ended because their records are lost.",
            gauges.unreadable_timers,
        )
        rebuilt = [(statistics.timers_rebuilt,)]
        yield from self._counters(
            "mq_timers_rebuilt", "Timers of damaged files that were rebuilt.", (), rebuilt
        )
        unreadable = [(self._live.core.damage.unreadable_records,)]
        yield from self._counters("mq_unreadable_records", "Damaged records skipped.", (), unreadable)
        colliding = [(statistics.colliding_ids,)]
        yield from self._counters(
            "mq_colliding_ids", "Messages whose id another one had lately.", (), colliding
        )

    def _progress(self) -> Iterator[Metric | None]:
        found = yield from measure_progress(self._live.core, self._live.clock.now_ms())
        for name, help_text, value in (
            (
                "mq_checkback_unasked",
                "Half messages that are due for a check-back, while no producer can be asked.",
                found.unasked_halves,
            ),
            (
                "mq_checkback_unasked_age_seconds",
                "How long the oldest of them has been due.",
                found.unasked_age_ms / 1000,
            ),
            (
                "mq_message_groups_stalled",
                f"Message groups with a message that waits, given nothing of for {STALLED_MS // 1000} s.",
                found.stalled_message_groups,
            ),
            (
                "mq_message_group_age_seconds",
                "The longest time since a message group with a message that waits was given one of.",
                found.waiting_message_group_age_ms / 1000,
            ),
            (
                "mq_beyond_checkpoint_bytes",
                "Durable bytes of the log behind the newest checkpoint.",
                found.beyond_checkpoint_bytes,
            ),
        ):
            yield from self._gauge(name, help_text, value)

    def _connections(self) -> Iterator[Metric | None]:
        producers: Tally[tuple[str, str]] = Tally()
        for number, client in enumerate(list(self._clients)):
            if client.is_producer:
                producers[client.language, client.version] += 1
            if number % ROWS_AT_ONCE == 0:
                yield None
        consumers: Tally[tuple[str, str, str, str]] = Tally()
        for number, consumer in enumerate(self._consuming("")):
            if consumer is not None:
                consumers[labels_of(consumer)] += 1
            if number % ROWS_AT_ONCE == 0:
                yield None
        for name, help_text, labels, counts in (
            ("rocketmq_producer_connections", "Producers connected.", (), producers),
            (
                "rocketmq_consumer_connections",
                "Consumers connected.",
                ("consumer_group", "consume_mode"),
                consumers,
            ),
        ):
            rows = ((*values, "grpc", "false", count) for values, count in counts.items())
            common = ("language", "version", "protocol_type", "is_system")
            yield from self._gauges(name, help_text, (*labels, *common), rows)

    def _lateness(self, lateness: dict[str, Lateness]) -> Metric:
        family = HistogramMetricFamily(
            "mq_delivery_lateness_seconds",
            "From due, or from set if a timer was set after that, to stored for delivery.",
            labels=(*NODE, "topic"),
        )
        bounds = [str(bound / 1000) for bound in LATENESS_BOUNDS_MS] + ["+Inf"]
        for topic, late in lateness.items():
            buckets = list(zip(bounds, accumulate(late.counts), strict=True))
            family.add_metric((*self._node, topic), buckets, late.sum_ms / 1000)
        return family

    def _gauge(self, name: str, help_text: str, value: float) -> Iterator[Metric | None]:
        return self._gauges(name, help_text, (), [(value,)])

    def _gauges(self, name: str, help_text: str, labels: Labels, rows: Rows) -> Iterator[Metric | None]:
        return self._filled(GaugeMetricFamily(name, help_text, labels=(*NODE, *labels)), rows)

    def _counters(self, name: str, help_text: str, labels: Labels, rows: Rows) -> Iterator[Metric | None]:
        return self._filled(CounterMetricFamily(name, help_text, labels=(*NODE, *labels)), rows)

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, rows: Rows) -> Iterator[Metric | None]:
        # The rows are copied, because other calls may change the underlying dict between turns of the event
        # loop.
        for number, (*labels, value) in enumerate(list(rows), 1):
            family.add_metric((*self._node, *labels), value)
            if number % ROWS_AT_ONCE == 0:
                yield None
        yield family
