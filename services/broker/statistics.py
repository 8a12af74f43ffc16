"""What the core counts while it works; the fronts only read it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from commitlog.bulk import Integers

LATENESS_BOUNDS_MS: Final = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000, 300_000)
_BOUNDS_MS: Final = np.array(LATENESS_BOUNDS_MS, np.int64)  # to make it anew takes longer than to look in it


@dataclass(slots=True)
class Lateness:
    """How late delayed messages were stored for delivery: a histogram over `LATENESS_BOUNDS_MS`.

    `counts` has one bucket more than there are bounds, for everything above the last.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BOUNDS_MS) + 1))
    sum_ms: int = 0
    max_ms: int = 0
    early_count: int = 0

    def add_many(self, lateness_ms: Integers) -> None:
        """Count deliveries by how late they were, an array of ms; at least one."""
        buckets = _BOUNDS_MS.searchsorted(lateness_ms)
        counts = np.bincount(buckets, minlength=len(self.counts)).tolist()
        self.counts = [before + new for before, new in zip(self.counts, counts, strict=True)]
        self.sum_ms += int(lateness_ms.sum())
        self.max_ms = max(self.max_ms, int(lateness_ms.max()))
        self.early_count += int((lateness_ms < 0).sum())


@dataclass(slots=True)
class Statistics:
    """Counters since start; topics and groups are the only labels."""

    messages_in: Counter[str] = field(default_factory=Counter)
    bytes_in: Counter[str] = field(default_factory=Counter)
    messages_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    acknowledged: Counter[tuple[str, str]] = field(default_factory=Counter)
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    dead_letters: Counter[tuple[str, str]] = field(default_factory=Counter)
    commits: Counter[str] = field(default_factory=Counter)
    rollbacks: Counter[str] = field(default_factory=Counter)
    expired: Counter[str] = field(default_factory=Counter)
    checks_asked: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    lateness: dict[str, Lateness] = field(default_factory=dict)
    lateness_by_cause: Counter[tuple[str, str]] = field(default_factory=Counter)
    clock_jumps: Counter[str] = field(default_factory=Counter)
    colliding_ids: int = 0
    """Messages stored although their topic had one of that id lately, with another content."""
    timers_rebuilt: int = 0
    timers_unreadable: int = 0
    timers_unknown: int = 0
    flushes: int = 0

    def late_many(self, topic: str, lateness_ms: Integers) -> None:
        """Count delayed deliveries of a topic, at least one."""
        self.lateness.setdefault(topic, Lateness()).add_many(lateness_ms)


@dataclass(slots=True, frozen=True)
class Gauges:
    """What is so at this moment; sizes in bytes, `disk_used` a part from 0 to 1."""

    pending_timers: int
    pending_by_topic: dict[str, int]
    timers_bytes: int
    open_halves: int
    expired_halves: int
    oldest_half_ms: int | None
    topic_count: int
    log_first_offset: int
    log_end_offset: int
    durable_offset: int
    written_offset: int
    """Where the newest checkpoint lies: a start reads the log from there on."""
    disk_used: float
    disk_free_bytes: int
    is_full: bool
    damage_count: int
    unreadable_timers: int
