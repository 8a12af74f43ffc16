"""Orders' events, looked up where they lie, are what joins of everything give: of few orders and of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from commitlog.log.published_log import open_log
from services.broker.spine.values import TimerName
from spark_jobs.inputs.mapping import SHOP
from spark_jobs.staging import staged as staging
from spark_jobs.staging.events import Code
from spark_jobs.staging.lookups import ORDER_EVENTS
from spark_jobs.staging.order_events import events_of_orders, orders_of_unnamed_cancels
from spark_jobs.staging.staged import Staged, stage

PLACED = 9


def joined(spark: SparkSession, staged: Staged, ids: DataFrame) -> DataFrame:
    """The events of some orders, by joins over everything."""

    def data_set(name: str) -> DataFrame:
        schema = from_arrow_schema(staging.SCHEMAS[name])
        return spark.read.schema(schema).parquet(str(staged.path(name)))

    rows = data_set("facts").select("order_id", "order_row").join(ids, "order_id", "left_semi")
    named = data_set("events").join(rows, "order_row").select(*ORDER_EVENTS.names)
    anchors = named.filter(F.col("code").isin(int(Code.HALF), int(Code.TIMER))).select(
        F.col("physical_offset").alias("ref"), "order_id", "topic"
    )
    referring = data_set("unnamed").drop("order_row", "topic").join(anchors, "ref")
    return named.unionByName(referring.select(*ORDER_EVENTS.names))


def rows_of(frame: DataFrame) -> list[Any]:
    return sorted(tuple(row) for row in frame.select(*ORDER_EVENTS.names).collect())


def a_day(shop: Any) -> None:
    """Orders that are paid, cancelled and left alone, and deadlines ended by records that name no order."""
    for number in range(PLACED):
        shop.place(f"order-{number}", f"customer-{number % 3}", {f"sku-{number}": 1})
    shop.pay("order-1")
    for number in (2, 3):
        name = TimerName("order-timeouts", key=f"order:order-{number}")
        shop.broker.timers.cancel(name, "", shop.now_ms)
    name = TimerName("order-timeouts", key="order:order-4")
    shop.broker.timers.move(name, shop.now_ms + 90_000, shop.now_ms)
    shop.flush()
    shop.pass_deadlines()


@pytest.fixture
def staged(shop: Any, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staged:
    """A day's log, staged in many parts."""
    monkeypatch.setattr(staging, "SLICE_BYTES", 4 * 1024)
    a_day(shop)
    return stage(spark, shop.store, open_log(shop.store), SHOP, tmp_path / "staged")


@pytest.mark.parametrize("count", [0, 2, PLACED])
def test_events_of_few_orders_and_of_all_are_those_of_a_join(
    staged: Staged, spark: SparkSession, count: int
) -> None:
    wanted = [f"order-{number}" for number in range(count)]
    ids = spark.createDataFrame([(one,) for one in wanted], "order_id string")
    found = rows_of(events_of_orders(spark, staged, ids, count))
    assert found == rows_of(joined(spark, staged, ids))
    assert {row[0] for row in found} == set(wanted)


def test_deadlines_that_were_cancelled_without_their_order(staged: Staged, spark: SparkSession) -> None:
    assert staged.part_count > 3, "orders' events lie in several parts"
    found = orders_of_unnamed_cancels(spark, staged).collect()
    assert {row["order_id"] for row in found} == {"order-2", "order-3"}
