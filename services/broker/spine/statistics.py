"""Define the counters and gauges of the core. They are read-only for front ends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from commitlog.records.bulk import Integers

LATENESS_BOUNDS_MS: Final = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000, 300_000)
LATE_BY_HOLD: Final = "held"
"""The cause in `lateness_by_cause` for timers that were delivered after a hold of their topic."""
_BUCKETS: Final = len(LATENESS_BOUNDS_MS) + 1
_BOUNDS_MS: Final = np.array(LATENESS_BOUNDS_MS, np.int64)  # Creating the array takes longer than a search.


@dataclass(slots=True)
class Lateness:
    """A histogram of the delay between the due time and the store time of delayed messages.

    If a timer was set after its due time, for example by a commit, the delay is measured from the time at
    which the timer was set. `counts` has one bucket for each bound in `LATENESS_BOUNDS_MS`, and one bucket
    for higher values.
    """

    counts: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    sum_ms: int = 0
    max_ms: int = 0
    early_count: int = 0


@dataclass(slots=True)
class TopicTraffic:
    """The message counters of a topic since startup, and the round-robin counter of its queues.

    All counters of a topic are in one object, so that a send requires only one lookup.
    """

    messages: int = 0
    body_bytes: int = 0
    turn: int = 0
    """The number of sends, including refused sends, for which a queue was chosen by round-robin."""


@dataclass(slots=True)
class Statistics:
    """The counters since startup, by topic, consumer group, cause, or result."""

    stored: defaultdict[str, TopicTraffic] = field(default_factory=lambda: defaultdict(TopicTraffic))
    """The counters of stored messages by topic."""
    messages_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    acknowledged: Counter[tuple[str, str]] = field(default_factory=Counter)
    dead_letters: Counter[tuple[str, str]] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)
    rollbacks: Counter[str] = field(default_factory=Counter)
    expired: Counter[str] = field(default_factory=Counter)
    checks_asked: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    carried_verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of timer operations in messages, by message topic and result."""
    lateness: dict[str, Lateness] = field(default_factory=dict)
    lateness_by_cause: Counter[tuple[str, str]] = field(default_factory=Counter)
    clock_jumps: Counter[str] = field(default_factory=Counter)
    colliding_ids: int = 0
    """The number of stored messages with the id of a recent message but different content."""
    timers_rebuilt: int = 0
    timers_unreadable: int = 0
    timers_unknown: int = 0
    flushes: int = 0

    def count_lateness(self, topics: Sequence[str], begins: Integers, lateness_ms: Integers) -> None:
        """Add the delays of delayed messages, `lateness_ms`, to the histograms.

        The delays at indexes `begins[n]:begins[n + 1]` belong to `topics[n]`. Every topic must have at least
        one delivery.
        """
        assert begins[0] == 0, "the first deliveries are of no topic"
        assert begins[-1] == len(lateness_ms), "the last deliveries are of no topic"
        firsts = begins[:-1]
        sums_ms = np.add.reduceat(lateness_ms, firsts).tolist()
        maxima_ms = np.maximum.reduceat(lateness_ms, firsts).tolist()
        early_counts = np.add.reduceat((lateness_ms < 0).astype(np.int64), firsts).tolist()
        of_each = [
            self.lateness.get(topic) or self.lateness.setdefault(topic, Lateness()) for topic in topics
        ]
        for one, sum_ms, max_ms, early in zip(of_each, sums_ms, maxima_ms, early_counts, strict=True):
            one.sum_ms += sum_ms
            one.max_ms = max(one.max_ms, max_ms)
            one.early_count += early
        # Each (topic, bucket) pair is encoded as a single number, so that one call to `unique` counts all
        # pairs.
        numbers = np.repeat(np.arange(len(topics)), np.diff(begins))
        pairs = numbers * _BUCKETS + _BOUNDS_MS.searchsorted(lateness_ms)
        found, counts = np.unique(pairs, return_counts=True)
        for pair, count in zip(found.tolist(), counts.tolist(), strict=True):
            of_each[pair // _BUCKETS].counts[pair % _BUCKETS] += count


@dataclass(slots=True, frozen=True)
class Gauges:
    """The current values of the gauges. Sizes are in bytes, and `disk_used` is a fraction from 0 to 1."""

    pending_timers: int
    pending_by_topic: dict[str, int]
    held_by_topic: dict[str, int]
    timers_bytes: int
    open_halves: int
    expired_halves: int
    oldest_half_ms: int | None
    topic_count: int
    log_first_offset: int
    log_end_offset: int
    durable_offset: int
    written_offset: int
    """The log offset of the newest checkpoint, from which recovery would replay the log."""
    disk_used: float
    disk_free_bytes: int
    is_full: bool
    damage_count: int
    unreadable_timers: int
