"""Messages that were passed over: a later one of their message group and queue is acknowledged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.events import QUEUE_BITS
from spark_jobs.exact import Acknowledged

_COLUMNS = "topic tinyint, queue bigint, message_group string, order_id string, is_done boolean"


def gaps(grouped: DataFrame, acknowledged: Acknowledged) -> DataFrame:
    """The first passed over message of each order: order_id, fifo_gap_offset (its place in its queue)."""
    asked = grouped.mapInArrow(lambda batches: _asked(batches, acknowledged), _COLUMNS)
    group = ("topic", "queue_id", "message_group")
    messages = asked.withColumn("queue_id", F.shiftright("queue", QUEUE_BITS))
    done = F.when(F.col("is_done"), F.col("queue"))
    reached = messages.groupBy(*group).agg(F.max(done).alias("reached"), F.count_if("is_done").alias("done"))
    passed = messages.join(reached, list(group)).filter(
        ~F.col("is_done") & (F.col("queue") < F.col("reached"))
    )
    offset = F.col("queue").bitwiseAND((1 << QUEUE_BITS) - 1)
    return passed.groupBy("order_id").agg(F.min(offset).alias("fifo_gap_offset"))


def _asked(batches: Iterator[pa.RecordBatch], acknowledged: Acknowledged) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        topic, queue = batch.column("topic").to_numpy(), batch.column("queue").to_numpy()
        is_done = np.zeros(len(topic), np.bool_)
        for number, places in acknowledged.items():
            here = topic == number
            is_done[here] = places.has(queue[here])
        yield batch.append_column("is_done", pa.array(is_done))
