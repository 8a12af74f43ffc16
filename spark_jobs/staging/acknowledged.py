"""Acknowledged places in queues: the ranges of all records as one sorted list per topic.

A place contains the queue ID (`QUEUE_BITS`), so the ranges of all queues of a topic are in one list. A record
has the ranges of one iteration of the broker's event loop. The merged ranges are few, because groups read
their queues in order. They are searched by bisection, and no acknowledged message needs a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_jobs.log.columns.ragged import Flags, Integers
from spark_jobs.staging.events import QUEUE_BITS


@dataclass(frozen=True, slots=True)
class Places:
    """Places of one topic that one group acknowledged, as ascending ranges that neither touch nor overlap."""

    firsts: Integers
    ends: Integers

    @classmethod
    def merged(cls, firsts: Integers, ends: Integers) -> Places:
        """Return the union of ranges [first, end), which may be in any order, touch, and overlap."""
        if not len(firsts):
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        by_first = np.argsort(firsts, kind="stable")
        firsts, reached = firsts[by_first], np.maximum.accumulate(ends[by_first])
        is_new = np.concatenate(([True], firsts[1:] > reached[:-1]))
        last = np.append(np.flatnonzero(is_new)[1:] - 1, len(firsts) - 1)
        return cls(firsts[is_new], reached[last])

    def has(self, places: Integers) -> Flags:
        """Return which places are acknowledged."""
        if not len(self.firsts):
            return np.zeros(len(places), np.bool_)
        at = np.searchsorted(self.firsts, places, side="right") - 1
        flags: Flags = (at >= 0) & (places < self.ends[np.maximum(at, 0)])
        return flags

    def go_on_behind(self, places: Integers) -> Flags:
        """Return which places have a later range in the same queue."""
        next_queue = (places >> QUEUE_BITS) + 1 << QUEUE_BITS
        ranges_before = np.searchsorted(self.firsts, places, "right")
        flags: Flags = ranges_before < np.searchsorted(self.firsts, next_queue)
        return flags
