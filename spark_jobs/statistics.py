"""What the whole log looks like: records by kind and topic, lateness of deliveries, messages over time.

Lateness is the broker's store time of a delivery minus the time it was due; below zero is early, which must
not happen. Everything comes of the counts that were made where the log was read (see `staging`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_jobs.events import MESSAGES
from spark_jobs.staging import Staged

LATENESS_EDGES_MS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Where a histogram's bars begin; the first bar is what is early."""

BARS_MAX: Final = 90
BAR_WIDTHS_MS: Final = (60_000, 300_000, 3_600_000, 86_400_000, 604_800_000)
DAMAGED_MAX: Final = 100


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


def log_statistics(staged: Staged) -> LogStatistics:
    """The figures of a staged log."""
    figures = LogStatistics()
    counts = staged.table("counts").to_pylist()
    for row in counts:
        _add_count(figures, row)
    figures.bar_ms = _bar_width(figures.last_ms - figures.first_ms)
    for row in counts:
        _add_bar(figures, row)
    for row in staged.table("ends").to_pylist():
        figures.timer_ends[row["how"]] = figures.timer_ends.get(row["how"], 0) + row["timers"]
    _add_lateness(figures, staged.table("lateness"))
    _add_damage(figures, staged.table("damaged"))
    return figures


def _add_count(figures: LogStatistics, row: dict[str, Any]) -> None:
    kind, topic, count = row["kind"], row["topic"], row["records"]
    figures.by_kind[kind] = figures.by_kind.get(kind, 0) + count
    figures.records += count
    figures.log_bytes += row["record_bytes"]
    figures.first_ms = min(figures.first_ms or row["first_ms"], row["first_ms"])
    figures.last_ms = max(figures.last_ms, row["last_ms"])
    figures.unreadable += row["unreadable"]
    figures.without_key += row["without_key"]
    places = [figures.unreadable_first_offset, row["unreadable_offset"]]
    figures.unreadable_first_offset = min((place for place in places if place is not None), default=None)
    if kind in MESSAGES:
        figures.messages_by_topic[topic] = figures.messages_by_topic.get(topic, 0) + count


def _add_bar(figures: LogStatistics, row: dict[str, Any]) -> None:
    if row["kind"] in MESSAGES:
        key = (row["topic"], row["minute_ms"] // figures.bar_ms * figures.bar_ms)
        figures.bars[key] = figures.bars.get(key, 0) + row["records"]


def _add_lateness(figures: LogStatistics, rows: pa.Table) -> None:
    late_ms, deliveries = rows["late_ms"].to_numpy(), rows["deliveries"].to_numpy()
    bars = np.searchsorted(LATENESS_EDGES_MS, late_ms, side="right")
    counted = np.bincount(bars, deliveries, len(LATENESS_EDGES_MS) + 1)
    figures.lateness_bars = counted.astype(np.int64).tolist()
    topics = np.array(rows["topic"].to_pylist())
    for topic in sorted(Counter(topics.tolist())):
        here = np.flatnonzero(topics == topic)
        here = here[np.argsort(late_ms[here], kind="stable")]
        figures.lateness.append(_lateness(str(topic), late_ms[here], deliveries[here]))


def _lateness(topic: str, late_ms: Any, deliveries: Any) -> Lateness:
    """Of ascending lateness values and how often each was met."""
    reached = np.cumsum(deliveries)
    p50_ms, p99_ms = (int(late_ms[np.searchsorted(reached, share * reached[-1])]) for share in (0.5, 0.99))
    early = int(deliveries[late_ms < 0].sum())
    return Lateness(topic, int(reached[-1]), early, p50_ms, p99_ms, int(late_ms[-1]))


def _add_damage(figures: LogStatistics, rows: pa.Table) -> None:
    found = sorted((row["physical_offset"], row["record_bytes"], row["why"]) for row in rows.to_pylist())
    figures.damaged = found[:DAMAGED_MAX]
    figures.damaged_bytes = sum(record_bytes for _, record_bytes, _ in found)


def _bar_width(span_ms: int) -> int:
    return next((width for width in BAR_WIDTHS_MS if span_ms / width <= BARS_MAX), BAR_WIDTHS_MS[-1])
