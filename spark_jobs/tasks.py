"""Work in numbered pieces as Spark tasks, each of which leaves files of its own and returns nothing.

A task that is done again writes the same files again; `whole` makes that safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession


def in_tasks(spark: SparkSession, numbers: range, work: Callable[[int], None]) -> None:
    """Do `work` for every number, a task for each; `numbers` is a range without steps."""

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
    """Yield where to write a file that gets its name only when it is whole."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    yield unfinished
    unfinished.replace(path)
