"""Comparison of timer facts, chunk by chunk (see `consumequeue.indexes.timerindex_fact`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from consumequeue.indexes.timerindex_fact import FACT, Facts
from consumequeue.runs import sorted_runs
from services.store.read_only.timers import StoredTimers
from timingwheel.boundaries import Numbers

NO_OFFSETS: Final = np.empty(0, np.uint64)
_SIDED: Final = np.dtype([*((name, "<u8") for name in FACT.names or ()), ("side", "u1")])
_FIELDS: Final = ("key", "check", "offset", "at", "extra")


def difference(facts: Iterator[Facts], others: Iterator[Facts]) -> Iterator[Facts]:
    """Yield the facts that do not occur among the others. Both iterators must be sorted."""
    for both in sorted_runs.passes([_sided(facts, 0), _sided(others, 1)], "key", "check"):
        ordered = both[np.lexsort([both[name] for name in ("side", *reversed(_FIELDS))])]
        is_alone = ordered["side"] == 0
        is_alone[:-1] &= np.any([ordered[name][1:] != ordered[name][:-1] for name in _FIELDS], axis=0)
        if is_alone.any():
            yield _facts(ordered[is_alone])


def unrecorded_offsets(timers: StoredTimers) -> Numbers:
    """Return the ended timers without a record of their end.

    Such an end has the timer's own offset as its offset.
    """
    found = [chunk["key"][chunk["key"] == chunk["offset"]] for chunk in timers.ends.newest(timers.disk)]
    return np.concatenate([NO_OFFSETS, *found])


def ended_offsets(timers: StoredTimers) -> Numbers:
    """Return the sorted offsets of all timers with a known end. The result takes 8 bytes per timer."""
    return np.concatenate([NO_OFFSETS, *(chunk["key"].copy() for chunk in timers.ends.newest(timers.disk))])


def _sided(chunks: Iterator[Facts], side: int) -> Iterator[Facts]:
    for chunk in chunks:
        sided = np.empty(len(chunk), _SIDED)
        for name in _FIELDS:
            sided[name] = chunk[name]
        sided["side"] = side
        yield sided


def _facts(sided: Facts) -> Facts:
    facts = np.empty(len(sided), FACT)
    for name in _FIELDS:
        facts[name] = sided[name]
    return facts
