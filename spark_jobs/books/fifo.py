"""Finds skipped messages: a later one of their message group and queue was acknowledged.

A group reads its queues in order, so few messages are unacknowledged before an acknowledged one. Only these
and the others of their message groups are examined.

Rules:
- A message is skipped if its group acknowledged a later place of the same queue and message group, but not
  this place.
- The first pass finds unacknowledged places before acknowledged ones. The second reads only the acknowledged
  messages of their message groups.

Limitation: places do not show the reason. If an operator has moved a group forward, the gap looks like a
broker fault. Cost: less than 1 s of CPU time per million messages with a message group.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.books.exact import Acknowledged
from spark_jobs.log.columns.ragged import Flags
from spark_jobs.staging.events import QUEUE_BITS
from spark_jobs.staging.lookups import are_in, columns_of, of_parts
from spark_jobs.staging.staged import SCHEMAS, Staged

GAPS: Final = pa.schema([("order_id", pa.string()), ("fifo_gap_offset", pa.int64())])
_GROUP: Final = ("topic", "queue_id", "message_group")


def gaps(spark: SparkSession, staged: Staged, acknowledged: Acknowledged) -> DataFrame:
    """Return the queue offset of the first skipped message of each order, as `GAPS`."""
    schema, folder = SCHEMAS["grouped"], Path(tempfile.mkdtemp(prefix="passed-", dir=staged.folder)) / "open"
    if staged.has("grouped"):
        find_open = partial(left_open, staged, acknowledged)
        of_parts(spark, staged, "grouped", find_open, schema).write.parquet(str(folder))
    if not folder.exists() or not ds.dataset(folder, format="parquet").count_rows():
        return spark.createDataFrame([], from_arrow_schema(GAPS))
    left = _with_queue_id(spark.read.schema(from_arrow_schema(schema)).parquet(str(folder)))
    find_done = partial(done_of_groups, staged, acknowledged, folder)
    done = _with_queue_id(of_parts(spark, staged, "grouped", find_done, schema))
    reached = done.groupBy(*_GROUP).agg(F.max("queue").alias("reached"))
    passed = left.join(reached, list(_GROUP)).filter(F.col("queue") < F.col("reached"))
    offset = F.col("queue").bitwiseAND((1 << QUEUE_BITS) - 1)
    return passed.groupBy("order_id").agg(F.min(offset).alias("fifo_gap_offset"))


def left_open(staged: Staged, acknowledged: Acknowledged, names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the unacknowledged messages of some parts that have an acknowledged place after them."""
    for name in names:
        file = staged.path("grouped") / name
        places = columns_of(file, ["topic", "queue"])
        is_open = _flags(places, acknowledged, is_done=False)
        if is_open.any():
            yield columns_of(file, SCHEMAS["grouped"].names).filter(pa.array(is_open))


def done_of_groups(
    staged: Staged, acknowledged: Acknowledged, folder: Path, names: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the acknowledged messages of some parts whose message group is in `folder`."""
    files = [staged.path("grouped") / name for name in names]
    messages = pa.concat_tables([columns_of(file, SCHEMAS["grouped"].names) for file in files])
    messages = messages.filter(are_in(messages["message_group"], folder, "message_group"))
    yield messages.filter(pa.array(_flags(messages, acknowledged, is_done=True)))


def _flags(messages: pa.Table, acknowledged: Acknowledged, is_done: bool) -> Flags:
    """Return which messages are acknowledged, or which are not although a later place of the queue is."""
    topic, queue = messages["topic"].to_numpy(), messages["queue"].to_numpy()
    flags = np.zeros(len(topic), np.bool_)
    for number, places in acknowledged.items():
        here = topic == number
        done = places.has(queue[here])
        flags[here] = done if is_done else ~done & places.go_on_behind(queue[here])
    return flags


def _with_queue_id(messages: DataFrame) -> DataFrame:
    return messages.withColumn("queue_id", F.shiftright("queue", QUEUE_BITS))
