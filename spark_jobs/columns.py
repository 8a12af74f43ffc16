"""Rows from a database or Redis -> Parquet, a batch at a time, so that memory does not grow with the shop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_BATCH: Final = 50_000


def write_parquet(path: Path, schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> int:
    """Writes rows, each in the order of `schema`; returns how many.

    Raises `pa.ArrowInvalid` or `pa.ArrowTypeError` for a value that its column cannot hold.
    """
    count = 0
    remaining = iter(rows)
    with pq.ParquetWriter(path, schema) as writer:
        while batch := list(islice(remaining, ROWS_PER_BATCH)):
            columns = [
                pa.array([row[place] for row in batch], field.type) for place, field in enumerate(schema)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            count += len(batch)
    return count
