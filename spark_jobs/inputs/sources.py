"""The stores of one audit: opened and checked before anything slow begins, then exported in order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
import pyarrow.dataset as ds

from commitlog.published_log import StoreLog, is_node, open_log
from spark_jobs.buckets import bucket_count
from spark_jobs.inputs.mapping import Mapping
from spark_jobs.inputs.stores import Inputs
from spark_jobs.inputs.tables import RowCounts

BEHIND_SECONDS: Final = 1.0
"""A node that follows is some 50 ms behind its leader, which may have had the message of a row just read."""
UNREADABLE_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Exported:
    """The stores beside the log, exported below `folder`, and the log's ends around their reading."""

    folder: Path
    books_offset: int
    log: StoreLog
    mapping: Mapping
    pushes: dict[str, int]
    unreadable_carts: list[str]
    orders: RowCounts
    bucket_count: int
    has_carts: bool = True
    left_out: tuple[str, ...] = ()
    """What was met and is not judged, a line each: repeated keys, rows without one, unreadable carts."""
    read_ms: int = 0
    """When the log's end was noted, before the carts were read, by the clock of this machine."""


class Sources:
    """The stores of one audit; making one raises what opening them does (see `main.audit`)."""

    def __init__(self, store: Path, inputs: Inputs) -> None:
        self._store = store
        self.log = open_log(store)
        """The log as it was before anything was read."""
        self.log_bytes = self.log.end_offset - self.log.first_offset
        self.bucket_count = bucket_count(self.log_bytes)
        """Into how many buckets orders and pushes are dealt (`buckets`)."""
        self.mapping = inputs.mapping
        self._has_carts = inputs.carts is not None
        self._inputs = inputs.open()

    def export(self, folder: Path) -> Exported:
        """Read them in the one order that keeps effects after causes (see `books`)."""
        orders = self._inputs.export_orders(folder, self.bucket_count)
        pushes = self._inputs.export_pushes(folder, self.bucket_count)
        if is_node(self._store):
            time.sleep(BEHIND_SECONDS)
        log, read_ms = open_log(self._store), time.time_ns() // 1_000_000
        unreadable = self._inputs.export_carts(folder)
        self._inputs.export_order_lines(folder)
        counts = _push_counts(folder) if pushes else {}
        left_out = [*orders.left_out("orders", "order_id")]
        left_out += pushes.left_out("pushes", "push_id") if pushes else []
        left_out += _unreadable(unreadable)
        return Exported(
            folder,
            self.log.end_offset,
            log,
            self.mapping,
            counts,
            unreadable,
            orders,
            self.bucket_count,
            self._has_carts,
            tuple(left_out),
            read_ms,
        )


def _unreadable(fields: list[str]) -> list[str]:
    if not fields:
        return []
    more = ", ..." if len(fields) > UNREADABLE_SHOWN_MAX else ""
    shown = "; ".join(fields[:UNREADABLE_SHOWN_MAX])
    return [f"carts: {len(fields)} that cannot be read: {shown}{more}"]


def _push_counts(folder: Path) -> dict[str, int]:
    pushes = ds.dataset(folder / "pushes.parquet", format="parquet").to_table(columns=["status"])
    counted = pc.value_counts(pushes["status"]).to_pylist()
    return {f"pushes {(row['values'] or 'without status').lower()}": row["counts"] for row in counted}
