"""Counts the flow of orders between stages, and orders by time, in one pass over the judged orders.

    placed -> announced -> consumed -> cleared            order, message, consumer, cart
    placed -> armed -> cancelled                          deadline: cancelled, as by a payment,
                    -> fired -> timed out                 or delivered

An arrow counts the orders that are in both of its stages. An order that is in the source stage and in none of
its target stages is left over: in red if the order is a finding. Otherwise it waits, is not covered, or needs
no further stage. A finding that is in the target stage but not in the source stage is extra. For each
branch, the count of the source stage is the sum of the arrows and the orders left over, unless an order is in
two target stages. The count of a target stage is the sum of its arrow and the extra findings, plus other
orders without the source stage.

The same pass counts the orders by case and by status. They are read in batches on the driver, without Spark.
Cost: 10 million orders take seconds and little memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark_jobs.cases.names import BALANCED, IN_FLIGHT, NOT_COVERED
from spark_jobs.log.columns.ragged import Flags, Integers
from spark_jobs.report.summary import Window

STAGES: Final = {
    "placed": "placed_ms",
    "announced": "committed_offset",
    "consumed": "is_consumed",
    "cleared": "cleared_ms",
    "armed": "timer_offset",
    "cancelled": "timer_cancel_offset",
    "fired": "delivered_offset",
    "timed out": "timed_out_ms",
}
"""Column by stage. An order has reached the stage if the column is true, or not null."""

BRANCHES: Final = (
    ("placed", ("announced",)),
    ("announced", ("consumed",)),
    ("consumed", ("cleared",)),
    ("placed", ("armed",)),
    ("armed", ("cancelled", "fired")),
    ("fired", ("timed out",)),
)
"""Branches: the source stage, and its target stages. An order normally reaches at most one of them."""

FINDING: Final = "finding"
CLASSES: Final = (BALANCED, IN_FLIGHT, NOT_COVERED, FINDING)
_EVENT_TIMES: Final = ("placed_ms", "half_ms", "committed_ms")
_WORDS: Final = ("case", "status", "currency")
_COLUMNS: Final = dict.fromkeys((*_WORDS, "total_pence", *_EVENT_TIMES, *STAGES.values()))


class Arrow(NamedTuple):
    """Arrow between stages. `passed` counts orders in both, `extra` findings in the target only."""

    source: str
    target: str
    passed: int
    extra: int


class Rest(NamedTuple):
    """The orders that are in the source stage and in none of the targets, by class (`CLASSES`)."""

    source: str
    targets: tuple[str, ...]
    by_class: dict[str, int]


@dataclass(slots=True)
class Flow:
    """Counts of orders by stage, arrow, branch, and window of event time.

    `cases` and `statuses` count all orders. `worth` is the sum of `total_pence` of the findings by
    currency, with "" for an unknown one. `in_window` counts by start (ms since 1970) and class.
    """

    cases: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str | None] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    passed: Counter[tuple[str, str]] = field(default_factory=Counter)
    extra: Counter[tuple[str, str]] = field(default_factory=Counter)
    left: Counter[tuple[str, tuple[str, ...], str]] = field(default_factory=Counter)
    worth: Counter[str] = field(default_factory=Counter)
    in_window: Counter[tuple[int, str]] = field(default_factory=Counter)

    def arrows(self) -> Iterator[Arrow]:
        """Yield all arrows with their counts."""
        for source, targets in BRANCHES:
            for target in targets:
                yield Arrow(source, target, self.passed[source, target], self.extra[source, target])

    def rests(self) -> Iterator[Rest]:
        """Yield the orders that are left over at each branch."""
        for source, targets in BRANCHES:
            yield Rest(source, targets, {name: self.left[source, targets, name] for name in CLASSES})

    def windows(self, window_ms: int) -> list[Window]:
        """Return the windows with orders, in order of time."""
        starts = sorted({start for start, _ in self.in_window})
        return [
            Window(start, start + window_ms, *(self.in_window[start, name] for name in CLASSES))
            for start in starts
        ]


def flow(orders: Path, window_ms: int) -> Flow:
    """Return the flow of the judged orders in a folder. Columns that a run does not have count as empty."""
    found = Flow()
    dataset = ds.dataset(orders, format=ds.ParquetFileFormat(dictionary_columns=set(_WORDS)))
    names = [name for name in _COLUMNS if name in dataset.schema.names]
    for batch in dataset.to_batches(columns=names):
        if batch.num_rows:
            found.cases.update(_counts(batch.column("case")))
            if "status" in names:
                found.statuses.update(_counts(batch.column("status")))
            _add(found, _Orders(batch), window_ms)
    return found


class _Orders:
    """A batch of orders as NumPy columns."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.of_class = _classes(batch.column("case"))
        self.reached = {stage: self._has(column) for stage, column in STAGES.items()}

    def worth(self, flags: Flags) -> dict[str, int]:
        """Return the sum of `total_pence` of the orders in `flags`, by currency."""
        totals = self._numbers("total_pence")[flags]
        if "currency" not in self._batch.schema.names:
            return {"": int(totals.sum())}
        currencies = self._batch.column("currency").filter(pa.array(flags)).cast(pa.string()).fill_null("")
        sums = pa.table([currencies, totals], names=["currency", "total"]).group_by("currency")
        found = sums.aggregate([("total", "sum")])
        return dict(zip(found["currency"].to_pylist(), found["total_sum"].to_pylist(), strict=True))

    def event_ms(self) -> Integers:
        """Return the event time of each order (ms since 1970): its first known time, or -1."""
        found = np.full(self._batch.num_rows, -1, np.int64)
        for name in _EVENT_TIMES:
            found = np.where(found < 0, self._numbers(name, -1), found)
        return found

    def _has(self, name: str) -> Flags:
        if name not in self._batch.schema.names:
            return np.zeros(self._batch.num_rows, np.bool_)
        column = self._batch.column(name)
        said = pc.fill_null(column, False) if pa.types.is_boolean(column.type) else pc.is_valid(column)
        flags: Flags = said.to_numpy(zero_copy_only=False)
        return flags

    def _numbers(self, name: str, missing: int = 0) -> Integers:
        if name not in self._batch.schema.names:
            return np.full(self._batch.num_rows, missing, np.int64)
        column = pc.fill_null(self._batch.column(name).cast(pa.int64()), missing)
        numbers: Integers = column.to_numpy(zero_copy_only=False)
        return numbers


def _classes(cases: pa.Array) -> Integers:
    """Return the index in `CLASSES` of each case."""
    places = pc.index_in(cases, pa.array(CLASSES[:-1]))
    numbers: Integers = pc.fill_null(places, len(CLASSES) - 1).to_numpy(zero_copy_only=False)
    return numbers


def _counts(values: pa.Array) -> dict[Any, int]:
    """Return the count of each value, including null."""
    counted = pc.value_counts(values)
    return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))


def _add(found: Flow, orders: _Orders, window_ms: int) -> None:
    is_finding: Flags = orders.of_class == CLASSES.index(FINDING)
    for stage, flags in orders.reached.items():
        found.stages[stage] += int(flags.sum())
    for source, targets in BRANCHES:
        _add_branch(found, orders, source, targets, is_finding)
    found.worth.update(orders.worth(is_finding))
    _add_windows(found, orders, window_ms)


def _add_branch(
    found: Flow, orders: _Orders, source: str, targets: tuple[str, ...], is_finding: Flags
) -> None:
    before, behind = orders.reached[source], np.zeros_like(is_finding)
    for target in targets:
        flags = orders.reached[target]
        behind |= flags
        found.passed[source, target] += int((before & flags).sum())
        found.extra[source, target] += int((flags & ~before & is_finding).sum())
    counts = np.bincount(orders.of_class[before & ~behind], minlength=len(CLASSES))
    for name, count in zip(CLASSES, counts.tolist(), strict=True):
        found.left[source, targets, name] += count


def _add_windows(found: Flow, orders: _Orders, window_ms: int) -> None:
    event_ms = orders.event_ms()
    is_known = event_ms >= 0
    codes = event_ms[is_known] // window_ms * len(CLASSES) + orders.of_class[is_known]
    for code, count in _counts(pa.array(codes)).items():
        window, place = divmod(code, len(CLASSES))
        found.in_window[window * window_ms, CLASSES[place]] += count


def merged(shown: Sequence[Window], count_max: int, window_ms: int) -> list[Window]:
    """Return consecutive windows, including empty ones, merged into at most `count_max` + 1 wider ones.

    The wider windows start at multiples of their width, so one more than `count_max` can be necessary.
    """
    if not shown:
        return []
    span_ms = shown[-1].end_ms - shown[0].first_ms
    width_ms = window_ms * -(-span_ms // (window_ms * count_max))
    sums: dict[int, Counter[str]] = {}
    for one in shown:
        counts = sums.setdefault(one.first_ms // width_ms * width_ms, Counter())
        counts.update({name: getattr(one, name) for name in _COUNTED})
    starts = range(min(sums), max(sums) + 1, width_ms)
    return [Window(start, start + width_ms, **sums.get(start, Counter())) for start in starts]


_COUNTED: Final = ("balanced", "in_flight", "not_covered", "findings")
