"""Splits the ledger into buckets of order IDs (`buckets`), in tasks of about `ROWS_PER_TASK` rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from spark_jobs.books.joining import cleared
from spark_jobs.buckets import write_dealt
from spark_jobs.inputs.schemas import LEDGER, ORDER
from spark_jobs.tasks import in_tasks, whole

ROWS_PER_TASK: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Piece:
    """Some row groups of a Parquet file."""

    path: str
    row_groups: list[int]


def pieces(source: Path) -> Iterator[Piece]:
    """Yield a Parquet file or folder in pieces of about `ROWS_PER_TASK` rows."""
    for fragment in ds.dataset(source, format="parquet").get_fragments():
        numbers: list[int] = []
        rows = 0
        for group in fragment.row_groups:
            numbers.append(group.id)
            rows += group.num_rows
            if rows >= ROWS_PER_TASK:
                yield Piece(fragment.path, numbers)
                numbers, rows = [], 0
        if numbers:
            yield Piece(fragment.path, numbers)


def deal_cleared(spark: SparkSession, ledger: Path, folder: Path, count: int) -> None:
    """Write the orders that a ledger has cleared (`joining.CLEARED`) into `count` buckets."""
    folder.mkdir()
    listed = list(pieces(ledger))

    def work(number: int) -> None:
        table = cleared(_orders(listed[number]))
        with whole(folder / f"{number:06d}.parquet") as path:
            write_dealt(path, table, count, compression="lz4", use_dictionary=False)

    in_tasks(spark, range(len(listed)), work)


def _orders(piece: Piece) -> pa.Table:
    """Return the ledger's entries of orders, without those that lack an ID."""
    with pq.ParquetFile(piece.path, read_dictionary=_OFTEN_ALIKE) as file:
        ledger = file.read_row_groups(piece.row_groups, _READ.names, use_threads=False)
    is_order = pc.and_(pc.equal(ledger["entry"], ORDER), ledger["entry_id"].is_valid())
    return ledger.filter(is_order).select(_READ.names).cast(_READ)


_OFTEN_ALIKE: Final = ["entry", "customer_id"]
_READ: Final = pa.schema([LEDGER.field(name) for name in ("entry_id", "entry", "customer_id", "at_ms")])
