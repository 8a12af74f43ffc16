"""What the whole log looks like: records by kind and topic, lateness of deliveries, messages over time.

Lateness is the broker's store time of a delivery minus the time it was due; below zero is early, which must
not happen. Percentiles are exact up to 10,000 distinct values, else within 0.01 %.
Three passes over the staged records, each one small aggregation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.facts import MESSAGE_KINDS, timer_ends

LATENESS_EDGES_MS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Where a histogram's bars begin; the first bar is what is early."""

BARS_MAX: Final = 90
BAR_WIDTHS_MS: Final = (1_000, 5_000, 15_000, 60_000, 300_000, 3_600_000, 86_400_000, 604_800_000)


@dataclass(slots=True)
class Lateness:
    """How late the deliveries of one topic were, in milliseconds."""

    topic: str
    deliveries: int
    early: int
    p50_ms: int
    p99_ms: int
    max_ms: int


@dataclass(slots=True)
class LogStatistics:
    """Figures of one log; `timer_ends` counts timers by how they ended; `bars` maps (topic, start of bar in
    ms) to messages that consumers could get.
    """

    records: int = 0
    log_bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    timer_ends: dict[str, int] = field(default_factory=dict)
    messages_by_topic: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0
    unreadable_first_offset: int | None = None
    without_key: int = 0
    damaged: list[tuple[int, int, str]] = field(default_factory=list)
    damaged_bytes: int = 0
    lateness: list[Lateness] = field(default_factory=list)
    lateness_bars: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_EDGES_MS) + 1))
    bar_ms: int = BAR_WIDTHS_MS[0]
    bars: dict[tuple[str, int], int] = field(default_factory=dict)


def log_statistics(records: DataFrame) -> LogStatistics:
    """The figures of classified records."""
    figures = LogStatistics()
    for row in _by_kind(records).collect():
        _add_kind(figures, row.asDict())
    figures.bar_ms = _bar_width(figures.last_ms - figures.first_ms)
    for row in timer_ends(records).groupBy("kind").count().collect():
        figures.timer_ends[row["kind"]] = row["count"]
    for row in _over_time(records, figures.bar_ms).collect():
        _add_bar(figures, row.asDict())
    if figures.damaged_bytes:
        figures.damaged = _damaged(records)
    return figures


def _by_kind(records: DataFrame) -> DataFrame:
    lateness = F.when(F.col("kind") == "delivered", F.col("store_ms") - F.col("due_ms"))
    is_unreadable = ~F.col("readable")
    return (
        records.withColumn("lateness", lateness)
        .groupBy("kind", "about")
        .agg(
            F.count("*").alias("records"),
            F.sum("record_bytes").alias("log_bytes"),
            F.min("store_ms").alias("first_ms"),
            F.max("store_ms").alias("last_ms"),
            F.count_if(is_unreadable).alias("unreadable"),
            F.min(F.when(is_unreadable, F.col("physical_offset"))).alias("unreadable_first_offset"),
            F.count_if(F.col("readable").isNotNull() & F.col("order_id").isNull()).alias("without_key"),
            F.count_if(F.col("lateness") < 0).alias("early"),
            F.percentile_approx("lateness", [0.5, 0.99], 10_000).alias("percentiles"),
            F.max("lateness").alias("max_ms"),
        )
    )


def _add_kind(figures: LogStatistics, row: dict[str, Any]) -> None:
    kind, topic, count = row["kind"], row["about"], row["records"]
    figures.by_kind[kind] = figures.by_kind.get(kind, 0) + count
    if kind == "damage":
        figures.damaged_bytes += row["log_bytes"]
        return
    figures.records += count
    figures.log_bytes += row["log_bytes"]
    figures.first_ms = min(figures.first_ms or row["first_ms"], row["first_ms"])
    figures.last_ms = max(figures.last_ms, row["last_ms"])
    figures.unreadable += row["unreadable"]
    figures.without_key += row["without_key"]
    places = [figures.unreadable_first_offset, row["unreadable_first_offset"]]
    figures.unreadable_first_offset = min((place for place in places if place is not None), default=None)
    if kind in MESSAGE_KINDS:
        figures.messages_by_topic[topic] = figures.messages_by_topic.get(topic, 0) + count
    if row["percentiles"]:
        p50_ms, p99_ms = row["percentiles"]
        figures.lateness.append(Lateness(topic, count, row["early"], p50_ms, p99_ms, row["max_ms"]))


def _over_time(records: DataFrame, bar_ms: int) -> DataFrame:
    lateness = F.when(F.col("kind") == "delivered", F.col("store_ms") - F.col("due_ms"))
    edges = F.array(*(F.lit(edge) for edge in LATENESS_EDGES_MS))
    reached = F.size(F.filter(edges, lambda edge: edge <= F.col("lateness")))
    return (
        records.filter(F.col("kind").isin(*MESSAGE_KINDS))
        .withColumn("lateness", lateness)
        .groupBy(
            F.col("about").alias("topic"),
            (F.floor(F.col("store_ms") / bar_ms) * bar_ms).alias("bar"),
            F.when(F.col("lateness").isNotNull(), reached).alias("lateness_bar"),
        )
        .agg(F.count("*").alias("messages"))
    )


def _add_bar(figures: LogStatistics, row: dict[str, Any]) -> None:
    key = (row["topic"], row["bar"])
    figures.bars[key] = figures.bars.get(key, 0) + row["messages"]
    if row["lateness_bar"] is not None:
        figures.lateness_bars[row["lateness_bar"]] += row["messages"]


def _bar_width(span_ms: int) -> int:
    return next((width for width in BAR_WIDTHS_MS if span_ms / width <= BARS_MAX), BAR_WIDTHS_MS[-1])


def _damaged(records: DataFrame) -> list[tuple[int, int, str]]:
    """The first damaged regions as (log offset, bytes, why)."""
    rows = records.filter(F.col("kind") == "damage").orderBy("physical_offset").limit(100)
    return [(row.physical_offset, row.record_bytes, row.damage) for row in rows.collect()]
