"""Numbered pieces of work as Spark tasks, which write separate files and return no rows.

A task that is repeated writes the same files again; `whole` makes this safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession


def in_tasks(spark: SparkSession, numbers: range, work: Callable[[int], None]) -> None:
    """Run `work` for every number, each in one task; `numbers` is a range with step 1."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                work(number)
            yield batch.slice(0, 0)

    if numbers:
        numbered = spark.range(numbers.start, numbers.stop, 1, len(numbers))
        numbered.mapInArrow(each, "number bigint").collect()


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path, and rename the file to `path` if the block ends without an error."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    yield unfinished
    unfinished.replace(path)
