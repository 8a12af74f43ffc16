"""Cluster epochs (`services.broker.spine.epoch`) of the records in a log.

The log of a broker that is not in a cluster has no epochs.

Each epoch begins with an epoch record. Records before the first epoch record belong to epoch 0 if the start
of the log still exists or if the record begins epoch 1. They were stored by a broker outside a cluster.
Otherwise retention has deleted an older epoch record, and their epoch is unknown. If the log has no epoch
record, all its records belong to the epoch at its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from commitlog.facts.facts import EpochBegun, facts_of
from commitlog.records.record import Record


class EpochRange(NamedTuple):
    """An epoch and the log offset where it begins.

    `number` and `began_ms` are None if unknown. `node` is the leader, or "" if unknown.
    """

    physical_offset: int
    number: int | None
    began_ms: int | None = None
    node: str = ""


def begun_by(one: Record) -> EpochRange:
    """Return the epoch begun by an epoch record."""
    (fact,) = facts_of(one)
    assert isinstance(fact, EpochBegun), "a record that begins no epoch"
    return EpochRange(one.physical_offset, fact.number, one.store_ms, fact.node)


def epochs_of(begun: Iterable[EpochRange], first_offset: int, end_epoch: int) -> list[EpochRange]:
    """Return the epochs of a log in ascending order.

    They are derived from the remaining epoch records and the epoch at the end of the log.
    """
    found = sorted(begun)
    if not found:
        return [EpochRange(first_offset, end_epoch)] if first_offset and end_epoch else []
    if found[0].physical_offset == first_offset:
        return found
    is_alone = not first_offset or found[0].number == 1
    return [EpochRange(first_offset, 0 if is_alone else None), *found]


def epoch_at(epochs: list[EpochRange], physical_offset: int) -> int | None:
    """Return the epoch of a record, or None if unknown. Outside a cluster, it is 0."""
    found = _around(epochs, physical_offset)
    if found is not None:
        return found.number
    return 0 if epochs and epochs[0].number == 0 else None


def leader_at(epochs: list[EpochRange], physical_offset: int) -> str:
    """Return the leader at the store time of a record.

    Return "" if the leader is unknown or the store was not in a cluster.
    """
    found = _around(epochs, physical_offset)
    return "" if found is None else found.node


def _around(epochs: list[EpochRange], physical_offset: int) -> EpochRange | None:
    at = bisect_right(epochs, physical_offset, key=lambda one: one.physical_offset) - 1
    return epochs[at] if at >= 0 else None
