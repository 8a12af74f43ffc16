"""Writes the orders, one file per bucket of the books.

Most orders balance, and have no data except their book row. These are copied column by column. Spark provides
only the others: orders of a case, those with additional data, and rows to leave out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from spark_jobs.cases.names import BALANCED
from spark_jobs.encodings import encodings

COMPRESSION: Final = "zstd"
_KINDS: Final = ("case", "status", "half_end")


def write_bucket(orders: Path, judged: Path, first_row: int, schema: pa.Schema, to: Path) -> None:
    """Write a bucket with the columns of `schema` from its book rows, which begin at `first_row`.

    `judged` is the folder with Spark's orders of all buckets. Those with `is_left_out` are not written.
    """
    file = pq.ParquetFile(orders)
    known = set(file.schema_arrow.names)
    rows = file.read([name for name in schema.names if name in known], use_threads=False)
    number = ds.field("book_row")
    handed = ds.dataset(judged, format="parquet").to_table(
        filter=(number >= first_row) & (number < first_row + rows.num_rows)
    )
    is_plain = np.ones(rows.num_rows, np.bool_)
    is_plain[handed["book_row"].to_numpy() - first_row] = False
    told = handed.filter(pc.invert(handed["is_left_out"])).select(schema.names).cast(schema)
    whole = pa.concat_tables([_balanced(rows.filter(pa.array(is_plain)), schema), told])
    pq.write_table(whole, to, compression=COMPRESSION, **encodings(schema, _KINDS))


def _balanced(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return book rows as orders that balance."""
    count = rows.num_rows
    none = pa.ListArray.from_arrays(np.zeros(count + 1, np.int32), pa.array([], pa.string()))
    said = {"case": pa.repeat(BALANCED, count), "also": none.cast(schema.field("also").type)}
    columns = [
        said[field.name]
        if field.name in said
        else rows[field.name]
        if field.name in rows.column_names
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
