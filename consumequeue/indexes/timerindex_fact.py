"""Defines the 40-byte format of timer facts, and selects the newest facts.

    key (8), check (8)    the subject of the fact
    offset (8)            the offset of the fact's record; the fact with the highest offset is the newest
    at (8), extra (8)     the content of the fact

Arrays of facts are sorted by key and check, as in runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from consumequeue.runs.bloom_filter import Mask
from consumequeue.runs.sorted_runs import order_of

FACT: Final = np.dtype([("key", "<u8"), ("check", "<u8"), ("offset", "<u8"), ("at", "<u8"), ("extra", "<u8")])
"""A fact. Integers are little-endian."""

Facts = np.ndarray[Any, np.dtype[np.void]]
"""Array of `FACT`."""

IsExpired = Callable[[Facts, int], Mask]
"""Returns for each fact whether it has expired at a time in milliseconds."""


class FactContent(NamedTuple):
    """Content of a fact."""

    offset: int
    at: int
    extra: int


def newest_of(facts: Facts) -> Facts:
    """Return the newest fact for each (key, check), ordered by (key, check).

    Of facts with the same offset, the last one in the array is returned.
    """
    if len(facts) == 0:
        return facts
    # Facts with the same offset keep their relative order, because both sorts are stable.
    facts = _in_order(facts)
    keys, checks = facts["key"], facts["check"]
    is_last = np.ones(len(facts), np.bool_)
    is_last[:-1] = (keys[1:] != keys[:-1]) | (checks[1:] != checks[:-1])
    return facts if is_last.all() else facts[is_last]


def _in_order(facts: Facts) -> Facts:
    facts = facts[order_of(facts["key"])]
    keys = facts["key"]
    # Equal keys are rare, and sorting by three fields takes several times as long as sorting by a single
    # field.
    is_equal = keys[1:] == keys[:-1]
    if is_equal.any():
        has_twin = np.zeros(len(facts), np.bool_)
        has_twin[1:] |= is_equal
        has_twin[:-1] |= is_equal
        twins = facts[has_twin]
        facts[has_twin] = twins[np.lexsort((twins["offset"], twins["check"], twins["key"]))]
    return facts
