"""Contents of a few orders' messages, read from the log by log offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from commitlog.log.published_log import Segment, StoreLog
from spark_jobs.inputs.mapping import Bodies
from spark_jobs.log.columns.ragged import Integers
from spark_jobs.log.columns.records import Records
from spark_jobs.log.columns.shapes import Shapes
from spark_jobs.log.scan.decode import ALL, Wanted, chunk_batches, mapped
from spark_jobs.log.scan.walk import Chunk
from spark_jobs.staging.bodies import parsed, text_of, whole_number

CONTENTS: Final = pa.schema([
    ("order_id", pa.string()),
    ("customer_id", pa.string()),
    ("placed_ms", pa.int64()),
    ("lines", pa.list_(pa.struct([("sku", pa.string()), ("quantity", pa.int64())]))),
])  # fmt: skip
_WANTED: Final = Wanted(("physical_offset", "body"), bodies=ALL)


def contents(offsets: DataFrame, log: StoreLog, bodies: Bodies) -> DataFrame:
    """Return a row of `CONTENTS` for each row (order_id, committed_offset).

    Fields that a body lacks are null, and its lines are empty.
    """

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            stored = _bodies(log, batch.column("committed_offset").to_numpy())
            rows = [
                {"order_id": row["order_id"], **content(stored.get(row["committed_offset"]), bodies)}
                for row in batch.to_pylist()
            ]
            yield pa.RecordBatch.from_pylist(rows, CONTENTS)

    named = offsets.select("order_id", "committed_offset")
    return named.mapInArrow(read, from_arrow_schema(CONTENTS))


def _bodies(log: StoreLog, offsets: Integers) -> dict[int, bytes]:
    """Return the bodies of the records at these log offsets, by log offset. Omit missing ones."""
    found: dict[int, bytes] = {}
    for segment in log.segments:
        here = np.unique(offsets[(offsets >= segment.first_offset) & (offsets < segment.end_offset)])
        if len(here):
            found |= _bodies_in(segment, here - segment.first_offset)
    return found


def _bodies_in(segment: Segment, positions: Integers) -> dict[int, bytes]:
    records = Records.at(mapped(segment.path), positions)
    found: dict[int, bytes] = {}
    for batch in chunk_batches(Chunk(records), _WANTED, Shapes()):
        found |= dict(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
    return found


def content(body: bytes | None, bodies: Bodies) -> dict[str, Any]:
    """Return the columns of `CONTENTS` after the first, from a body.

    Missing fields are None. `lines` has the lines with a sku, and is empty without any.
    """
    told = parsed(body)
    lines = told.get(bodies.lines)
    listed = [line for line in lines if isinstance(line, dict)] if isinstance(lines, list) else []
    articles = [
        {"sku": text_of(line.get(bodies.sku)), "quantity": whole_number(line.get(bodies.quantity))}
        for line in listed
    ]
    return {
        "customer_id": text_of(told.get(bodies.customer_id)),
        "placed_ms": whole_number(told.get(bodies.placed_ms)),
        "lines": [one for one in articles if one["sku"] is not None],
    }
