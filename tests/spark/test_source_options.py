"""What a user meets who misspells an option, or whose window holds nothing; in a session.

Each option and window: tests/unit/spark_jobs/test_source_options.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.streaming import Query, Writer

START_MS = 1_763_700_000_000


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """A log of ten records, six seconds apart."""
    written = Writer(tmp_path / "store")
    for number in range(10):
        written.append(1, store_ms=START_MS + number * 6_000)
    return written


def test_a_batch_and_a_stream_from_a_time_have_the_same_rows(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    query, since = Query(spark, tmp_path), {"from": "2025-11-21T04:40:30Z"}
    frame = spark.read.format("tidewheel").schema("queue_offset bigint").options(**since)
    expected = sorted(row.queue_offset for row in frame.load(str(writer.store)).collect())
    assert expected == list(range(5, 10))
    query.drain(writer.store, **since)
    writer.append(1, store_ms=START_MS)
    query.drain(writer.store, **since)
    assert query.arrived() == expected


def test_an_option_that_there_is_not_is_refused_with_the_ones_there_are(
    spark: SparkSession, writer: Writer
) -> None:
    for source in (spark.read, spark.readStream):
        with pytest.raises(Exception, match="'topic' is no option of the format"):
            source.format("tidewheel").option("topic", "t").load(str(writer.store))
    with pytest.raises(Exception, match="slice_bytes='64m' is no number of bytes from 1 on"):
        spark.read.format("tidewheel").option("slice_bytes", "64m").load(str(writer.store)).collect()


def test_a_window_in_which_nothing_lies_has_no_rows(spark: SparkSession, writer: Writer) -> None:
    windows = [
        {"from": "2026-01-01", "to": "2026-01-01"},
        {"to": "2020-01-01"},
        {"startingTimestamp": START_MS + 3_600_000},
    ]
    for window in windows:
        frame = spark.read.format("tidewheel").options(**window).load(str(writer.store))  # type: ignore[arg-type]
        assert frame.count() == 0
