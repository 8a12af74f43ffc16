"""Figures of the whole log: records by kind and topic, lateness of deliveries, messages over time.

Lateness is the broker's store time of a timer's delivery or a schedule's run, minus the due time, or the set
time of the timer if that is later. Negative lateness is early, which must not happen. Deliveries after a hold
of their topic, and those on request, are not counted. A percentile is the smallest lateness that at least
this share of the deliveries did not exceed. It is exact, because every distinct lateness per minute or second
was counted when the log was read. The figures are computed on the driver, without Spark, from small counts
(see `staged`):

    counts     kind, topic, minute_ms, records, record_bytes, first_ms, last_ms, unreadable,
               unreadable_offset, without_key
    lateness   topic, minute_ms, recurs, late_ms, deliveries
    ends       how, timers
    damaged    physical_offset, record_bytes, why
    unreadable physical_offset, topic, body
    epochs     physical_offset, number, began_ms, node
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from commitlog.epochs import EpochRange
from spark_jobs.log.columns.ragged import Integers
from spark_jobs.staging.events import MESSAGES
from spark_jobs.staging.staged import Staged
from spark_jobs.staging.time_buckets import FINE_SPAN_MS, MINUTE_MS, SECOND_MS

LATENESS_EDGES_MS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Lower edges (ms) of the histogram's bars. Early deliveries have a bar before the first edge."""

BARS_MAX: Final = 90
POINTS_MAX: Final = 1_440
BAR_WIDTHS_MS: Final = (
    SECOND_MS,
    5_000,
    15_000,
    MINUTE_MS,
    300_000,
    900_000,
    3_600_000,
    21_600_000,
    86_400_000,
    604_800_000,
)
assert max(width for width in BAR_WIDTHS_MS if width < MINUTE_MS) * BARS_MAX <= FINE_SPAN_MS, (
    "bars lack counts"
)
DAMAGED_MAX: Final = 100
SAMPLES_MAX: Final = 20
RECURRING: Final = ", by a schedule"
"""Suffix of a topic's name in the separate line for its recurring messages."""

_PERCENTS: Final = (0.5, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Lateness:
    """Lateness (ms) of the deliveries of one topic, or of one span of time from `start_ms` on."""

    topic: str
    start_ms: int
    deliveries: int
    early: int
    p50_ms: int
    p99_ms: int
    p999_ms: int
    max_ms: int


@dataclass(slots=True)
class LogStatistics:
    """Figures of one log.

    `timer_ends` counts timers by kind of end. `bars` maps (topic, start of the bar in ms since 1970) to the
    number of messages for consumers. `lateness_over_time` has a point per `point_ms` with deliveries.
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
    unreadable_samples: list[tuple[int, str, str]] = field(default_factory=list)
    without_key: int = 0
    damaged: list[tuple[int, int, str]] = field(default_factory=list)
    damaged_bytes: int = 0
    epochs: list[EpochRange] = field(default_factory=list)
    lateness: list[Lateness] = field(default_factory=list)
    lateness_bars: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_EDGES_MS) + 1))
    lateness_over_time: list[Lateness] = field(default_factory=list)
    point_ms: int = MINUTE_MS
    bar_ms: int = MINUTE_MS
    bars: dict[tuple[str, int], int] = field(default_factory=dict)


def log_statistics(staged: Staged) -> LogStatistics:
    """Return the figures of a staged log from its counts."""
    figures = LogStatistics()
    counts = staged.table("counts").to_pylist()
    for row in counts:
        _add_count(figures, row)
    span_ms = figures.last_ms - figures.first_ms
    figures.bar_ms = _width(span_ms, BARS_MAX)
    is_short = figures.bar_ms < MINUTE_MS
    figures.point_ms = figures.bar_ms if is_short else max(MINUTE_MS, _width(span_ms, POINTS_MAX))
    for row in counts:
        _add_bar(figures, row)
    for row in staged.table("ends").to_pylist():
        figures.timer_ends[row["how"]] = figures.timer_ends.get(row["how"], 0) + row["timers"]
    _add_lateness(figures, staged.lateness())
    _add_damage(figures, staged.table("damaged"))
    figures.epochs = [EpochRange(**row) for row in staged.table("epochs").to_pylist()]
    samples = staged.table("unreadable").to_pylist()
    figures.unreadable_samples = sorted(tuple(row.values()) for row in samples)[:SAMPLES_MAX]
    return figures


def _add_count(figures: LogStatistics, row: dict[str, Any]) -> None:
    kind, count = row["kind"], row["records"]
    figures.by_kind[kind] = figures.by_kind.get(kind, 0) + count
    figures.records += count
    figures.log_bytes += row["record_bytes"]
    figures.first_ms = min(figures.first_ms or row["first_ms"], row["first_ms"])
    figures.last_ms = max(figures.last_ms, row["last_ms"])
    figures.unreadable += row["unreadable"]
    figures.without_key += row["without_key"]
    offsets = [figures.unreadable_first_offset, row["unreadable_offset"]]
    figures.unreadable_first_offset = min((one for one in offsets if one is not None), default=None)


def _add_bar(figures: LogStatistics, row: dict[str, Any]) -> None:
    if row["kind"] in MESSAGES:
        topic, count = row["topic"], row["records"]
        key = topic, row["minute_ms"] // figures.bar_ms * figures.bar_ms
        figures.bars[key] = figures.bars.get(key, 0) + count
        figures.messages_by_topic[topic] = figures.messages_by_topic.get(topic, 0) + count


def _add_damage(figures: LogStatistics, damaged: pa.Table) -> None:
    rows = sorted((row["physical_offset"], row["record_bytes"], row["why"]) for row in damaged.to_pylist())
    figures.damaged = rows[:DAMAGED_MAX]
    figures.damaged_bytes = sum(damaged_bytes for _, damaged_bytes, _ in rows)


def _add_lateness(figures: LogStatistics, table: pa.Table) -> None:
    if not table.num_rows:
        return
    late, deliveries = _integers(table, "late_ms"), _integers(table, "deliveries")
    bars = np.searchsorted(LATENESS_EDGES_MS, late, side="right")
    counts = np.bincount(bars, deliveries, len(LATENESS_EDGES_MS) + 1)
    figures.lateness_bars = [int(count) for count in counts]
    topics = table["topic"].combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    of_topic = 2 * topics.indices.to_numpy().astype(np.int64) + table["recurs"].to_numpy()
    for place, rows in _groups(of_topic):
        name = names[place // 2] + (RECURRING if place % 2 else "")
        figures.lateness.append(_lateness(name, 0, late[rows], deliveries[rows]))
    starts = _integers(table, "minute_ms") // figures.point_ms * figures.point_ms
    for start_ms, rows in _groups(starts):
        figures.lateness_over_time.append(_lateness("", start_ms, late[rows], deliveries[rows]))


def _integers(table: pa.Table, name: str) -> Integers:
    numbers: Integers = table[name].to_numpy().astype(np.int64)
    return numbers


def _groups(keys: Integers) -> Iterator[tuple[int, Integers]]:
    """Yield each distinct key, in ascending order, with the indexes of its rows."""
    order = np.argsort(keys, kind="stable")
    found, firsts = np.unique(keys[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, firsts[1:]), strict=True)


def _lateness(topic: str, start_ms: int, late: Integers, deliveries: Integers) -> Lateness:
    order = np.argsort(late)
    ranked, counted = late[order], np.cumsum(deliveries[order])
    count = int(counted[-1])
    places = np.searchsorted(counted, np.ceil(np.array(_PERCENTS) * count))
    p50_ms, p99_ms, p999_ms = ranked[places].tolist()
    early = int(deliveries[late < 0].sum())
    return Lateness(topic, start_ms, count, early, p50_ms, p99_ms, p999_ms, int(ranked[-1]))


def _width(span_ms: int, count_max: int) -> int:
    return next((width for width in BAR_WIDTHS_MS if span_ms / width <= count_max), BAR_WIDTHS_MS[-1])
