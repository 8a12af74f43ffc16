"""The log as a stream: reader and writer stop and go on, segments roll, and each record arrives once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from commitlog import layout
from tests.spark.streaming import Query, Writer


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "store")


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


def test_each_record_arrives_once_across_restarts_of_both_sides_and_rolls(
    writer: Writer, query: Query
) -> None:
    writer.append(5)
    query.drain(writer.store)
    assert query.arrived() == list(range(5))
    writer.append(20)
    writer.killed_and_restarted()
    query.drain(writer.store)
    assert query.arrived() == list(range(25))
    writer.append(30)
    query.drain(writer.store, max_bytes_per_trigger=1000)
    assert query.arrived() == list(range(55))
    assert query.damage() == []
    assert len(layout.segment_offsets(writer.disk)) > 4


def test_a_batch_that_was_planned_but_not_committed_is_read_again_alike(writer: Writer, query: Query) -> None:
    writer.append(10)
    query.drain(writer.store)
    query.forget_last_batch()
    writer.append(10)
    query.drain(writer.store)
    query.drain(writer.store)
    assert query.arrived() == list(range(20))
