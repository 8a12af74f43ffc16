"""Which parts of a log are of which epoch of a cluster (`services.broker.spine.epoch`); none of a lone one.

An epoch begins with a record of the log, so these records divide it. What lies before the first of them is
of epoch 0, stored by a broker alone, if the log is whole or that first one is epoch 1. Else retention has
deleted the record of an epoch before: which one is not known, unless no such record is left: the end's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from commitlog.facts.facts import EpochBegun, facts_of
from commitlog.record import Record


class EpochRange(NamedTuple):
    """One epoch, from a log offset on; `number` and `began_ms` are None where they are not known.

    `node` is who led in it; "" where that is not known.
    """

    physical_offset: int
    number: int | None
    began_ms: int | None = None
    node: str = ""


def begun_by(one: Record) -> EpochRange:
    """Return the epoch that an epoch record begins."""
    (fact,) = facts_of(one)
    assert isinstance(fact, EpochBegun), "a record that begins no epoch"
    return EpochRange(one.physical_offset, fact.number, one.store_ms, fact.node)


def epochs_of(begun: Iterable[EpochRange], first_offset: int, end_epoch: int) -> list[EpochRange]:
    """Return the epochs of a log, in order, given those whose record is left, and the end's."""
    found = sorted(begun)
    if not found:
        return [EpochRange(first_offset, end_epoch)] if first_offset and end_epoch else []
    if found[0].physical_offset == first_offset:
        return found
    is_alone = not first_offset or found[0].number == 1
    return [EpochRange(first_offset, 0 if is_alone else None), *found]


def epoch_at(epochs: list[EpochRange], physical_offset: int) -> int | None:
    """Return the epoch of a record, 0 where a broker alone stored it; None where that is not known."""
    found = _around(epochs, physical_offset)
    if found is not None:
        return found.number
    return 0 if epochs and epochs[0].number == 0 else None


def leader_at(epochs: list[EpochRange], physical_offset: int) -> str:
    """Return the node that led when a record was stored; "" where none did, or that is not known."""
    found = _around(epochs, physical_offset)
    return "" if found is None else found.node


def _around(epochs: list[EpochRange], physical_offset: int) -> EpochRange | None:
    at = bisect_right(epochs, physical_offset, key=lambda one: one.physical_offset) - 1
    return epochs[at] if at >= 0 else None
