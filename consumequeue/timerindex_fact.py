"""A fact about a timer: 40 bytes, and the rule which of several counts.

    key (8), check (8)    its subject
    offset (8)            of the record that says so: for one (key, check) the highest is the newest
    at (8), extra (8)     what it says

Arrays of facts are in order when they are by (key, check), which is how runs hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from consumequeue.bloom_filter import Mask
from consumequeue.sorted_runs import order_of

FACT: Final = np.dtype([("key", "<u8"), ("check", "<u8"), ("offset", "<u8"), ("at", "<u8"), ("extra", "<u8")])
"""One fact, all integers little-endian."""

Facts = np.ndarray[Any, np.dtype[np.void]]
"""An array of `FACT`."""

IsExpired = Callable[[Facts, int], Mask]
"""Which of the facts are not needed any more at a time in milliseconds."""


class Said(NamedTuple):
    """What a fact says."""

    offset: int
    at: int
    extra: int


def newest_of(facts: Facts) -> Facts:
    """Return the newest fact of each (key, check), in order; of equal offsets the later fact."""
    if len(facts) == 0:
        return facts
    facts = _in_order(facts)  # facts with equal offsets stay as they came, for both sorts are stable
    keys, checks = facts["key"], facts["check"]
    is_last = np.ones(len(facts), np.bool_)
    is_last[:-1] = (keys[1:] != keys[:-1]) | (checks[1:] != checks[:-1])
    return facts if is_last.all() else facts[is_last]


def _in_order(facts: Facts) -> Facts:
    facts = facts[order_of(facts["key"])]
    keys = facts["key"]
    # Twins are few, and a sort by three fields costs several times that by one.
    is_equal = keys[1:] == keys[:-1]
    if is_equal.any():
        has_twin = np.zeros(len(facts), np.bool_)
        has_twin[1:] |= is_equal
        has_twin[:-1] |= is_equal
        twins = facts[has_twin]
        facts[has_twin] = twins[np.lexsort((twins["offset"], twins["check"], twins["key"]))]
    return facts
