"""A query whose checkpoint has outlived its log fails and says why, or, if so told, goes on.

Each way in which that happens: tests/unit/spark_jobs/test_streams.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.streaming import Query, Writer


def test_a_query_over_another_log_fails_and_goes_on_when_it_is_told_to(
    spark: SparkSession, tmp_path: Path
) -> None:
    writer, query = Writer(tmp_path / "store"), Query(spark, tmp_path)
    writer.append(20)
    query.drain(writer.store)
    writer.wipe()
    writer.append(50)
    with pytest.raises(StreamingQueryException, match="has another log than the one that was read"):
        query.drain(writer.store)
    assert query.arrived() == list(range(20))
    query.drain(writer.store, failOnDataLoss="false")
    assert query.arrived() == list(range(70))
    assert "another log" in query.damage()[0].damage
    writer.append(60)
    writer.retain(2)
    with pytest.raises(StreamingQueryException, match="what lies between was deleted") as raised:
        query.drain(writer.store)
    assert "failOnDataLoss=false" in str(raised.value)
