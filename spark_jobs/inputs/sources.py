"""The stores of one audit: opened and checked before any slow work, then exported in order."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
import pyarrow.dataset as ds

from commitlog.log.published_log import StoreLog, is_node, open_log
from spark_jobs.buckets import bucket_count
from spark_jobs.inputs.mapping import Mapping
from spark_jobs.inputs.stores import Inputs
from spark_jobs.inputs.tables import RowCounts

BEHIND_SECONDS: Final = 1.0
"""A follower lags its leader, which may already have the message of a row just read, by about 50 ms."""
UNREADABLE_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Exported:
    """The exported stores, below `folder`, and the ends of the log before and after orders and pushes."""

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
    """The rows that are not judged, a line for each kind: repeated keys, null keys, unreadable carts."""
    read_ms: int = 0
    """When the end of `log` was read, before the carts: milliseconds since 1970 by this machine's clock."""


class Sources:
    """The stores of one audit; the constructor opens them, and raises what `main.audit` lists."""

    def __init__(self, store: Path, inputs: Inputs) -> None:
        self._store = store
        self.log = open_log(store)
        """The log as of the start, before any other store was read."""
        self.log_bytes = self.log.end_offset - self.log.first_offset
        self.bucket_count = bucket_count(self.log_bytes)
        """The number of buckets of the log's facts; orders and pushes have a multiple of it (`buckets`)."""
        self.mapping = inputs.mapping
        self._has_carts = inputs.carts is not None
        self._inputs = inputs.open()

    def export(self, folder: Path) -> Exported:
        """Export the stores below `folder`, in the order that `main` describes."""
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
