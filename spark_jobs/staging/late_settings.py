"""Start of the lateness of a delivery: the due time of its timer, or the set time if that is later.

A delivery names its timer, whose record may be in another part of the log. A timer that is set after its due
time is delivered at once, so nearly always in the same part. The other cases are written to two small data
sets:

    set_late/    timer_offset, set_ms                      timers set after their due time, and not delivered
                                                           in their part
    carried/     timer_offset, topic, store_ms, late_ms    deliveries after the due time, with a timer of an
                                                           earlier part

`corrections` joins both by `timer_offset`. In most logs `set_late` is empty, and `carried` is not read.

Rules:
- The lateness of a moved timer starts at its due time, because a timer that is rebuilt from a damaged file is
  also moved, and was set earlier.

Cost: a comparison of two columns per batch, unless the batch has such timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from spark_jobs.log.columns.ragged import Flags, Integers
from spark_jobs.staging.events import Said

SET_LATE: Final = pa.schema([("timer_offset", pa.int64()), ("set_ms", pa.int64())])
CARRIED: Final = pa.schema([
    ("timer_offset", pa.int64()), ("topic", pa.string()), ("store_ms", pa.int64()), ("late_ms", pa.int64()),
])  # fmt: skip


class LateSettings:
    """Timers of one part of the log that were set after their due time. Add batches in log order."""

    def __init__(self) -> None:
        self._first_offset: int | None = None
        self._offsets, self._set_ms = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._has_come = np.zeros(0, np.bool_)
        self._carried: list[tuple[Integers, ...]] = []

    def add(self, said: Said) -> None:
        """Add the timers that a batch sets."""
        offsets, store_ms = said.numbers("physical_offset"), said.numbers("store_ms")
        if self._first_offset is None and len(offsets):
            self._first_offset = int(offsets[0])
        due_ms = said.numbers("due_ms")
        places = np.flatnonzero(said.is_named("timer") & (due_ms >= 0) & (store_ms > due_ms))
        places = places[~said.is_moving[places]]
        if len(places):
            self._offsets = np.append(self._offsets, offsets[places])
            self._set_ms = np.append(self._set_ms, store_ms[places])
            self._has_come = np.append(self._has_come, np.zeros(len(places), np.bool_))

    def since_ms(self, said: Said, places: Integers) -> Integers:
        """Return the start of the lateness (ms since 1970) of the deliveries at these places of a batch.

        The batch must have been added. Record which timers were delivered, and the late deliveries of timers
        of earlier parts.
        """
        if not len(places):
            return np.zeros(0, np.int64)
        assert self._first_offset is not None, "deliveries of a batch that was not added"
        due_ms, timers = said.numbers("due_ms")[places], said.numbers("timer_offset")[places]
        store_ms = said.numbers("store_ms")[places]
        self._carry(said, places[(timers < self._first_offset) & (store_ms > due_ms)])
        at, is_late = _found(self._offsets, timers)
        self._has_come[at[is_late]] = True
        since_ms = due_ms.copy()
        since_ms[is_late] = np.maximum(due_ms[is_late], self._set_ms[at[is_late]])
        return since_ms

    def tables(self, topics: list[str]) -> dict[str, pa.Table]:
        """Return both data sets by name. `topics` has the topic names by their number in the batches."""
        left = ~self._has_come
        numbers = [np.concatenate(column) for column in zip(*self._carried, strict=True)]
        carried = CARRIED.empty_table()
        if numbers:
            offsets, about, store_ms, late_ms = numbers
            names = pa.array(topics, pa.string()).take(pa.array(about))
            carried = pa.table([offsets, names, store_ms, late_ms], schema=CARRIED)
        return {
            "set_late": pa.table([self._offsets[left], self._set_ms[left]], schema=SET_LATE),
            "carried": carried,
        }

    def _carry(self, said: Said, places: Integers) -> None:
        if len(places):
            offsets, store_ms = said.numbers("timer_offset")[places], said.numbers("store_ms")[places]
            late_ms = store_ms - said.numbers("due_ms")[places]
            self._carried.append((offsets, said.about[places], store_ms, late_ms))


def corrections(set_late: pa.Table, carried: Iterable[pa.RecordBatch], bucket_ms: int) -> Iterator[pa.Table]:
    """Yield rows to add to the `lateness` counts: with `deliveries` -1 for a wrong lateness, 1 for the right.

    `bucket_ms` is the width of the buckets of the counts.
    """
    timers = set_late.sort_by("timer_offset")
    offsets, set_ms = (timers[name].to_numpy() for name in SET_LATE.names)
    for batch in carried:
        at, is_late = _found(offsets, batch["timer_offset"].to_numpy())
        found, store_ms = batch.filter(pa.array(is_late)), batch["store_ms"].to_numpy()[is_late]
        for late_ms, count in ((found["late_ms"], -1), (pa.array(store_ms - set_ms[at[is_late]]), 1)):
            yield pa.table({
                "topic": found["topic"], "minute_ms": store_ms - store_ms % bucket_ms,
                "recurs": np.zeros(len(found), np.bool_), "late_ms": late_ms,
                "deliveries": np.full(len(found), count),
            })  # fmt: skip


def _found(offsets: Integers, wanted: Integers) -> tuple[Integers, Flags]:
    """Return the index of each wanted offset in the ascending `offsets`, and whether it is there."""
    at = np.searchsorted(offsets, wanted)
    if not len(offsets):
        return at, np.zeros(len(wanted), np.bool_)
    at = np.minimum(at, len(offsets) - 1)
    is_there: Flags = offsets[at] == wanted
    return at, is_there
