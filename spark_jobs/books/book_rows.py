"""Joins the large sides of the books by bucket: log facts, database rows, and the ledger.

    working-cleared/   the orders of the ledger in buckets (`dealing`). Facts are bucketed when staged, and
                       orders and pushes when exported
    working-orders/    a row per order: `ORDERS_JOINED`
    working-special/   `SPECIAL`: orders to examine closely, because their numbers are inconsistent, or they
                       are missing in the database or the ledger
    working-pushes/    a row per push of the ledger: `PUSHES_JOINED`

A task joins one bucket by whole columns (`joining`). Cost: about 400 bytes of memory per order in the bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from commitlog.log.published_log import StoreLog
from spark_jobs.books.dealing import deal_cleared
from spark_jobs.books.exact import Acknowledged
from spark_jobs.books.joining import CLEARED, cleared_once, half_end, is_acknowledged, joined
from spark_jobs.books.order_files import write_bucket
from spark_jobs.buckets import count_of, read_bucket
from spark_jobs.inputs.mapping import Mapping
from spark_jobs.inputs.schemas import ORDERS, PUSHES
from spark_jobs.staging.events import CREATED
from spark_jobs.staging.events import PUSHES as PUSHES_TOPIC
from spark_jobs.staging.order_facts import COUNTS, ORDER_FACTS, PUSH_FACTS, is_regular, may_cancel_others
from spark_jobs.staging.staged import ROW_BITS, SCHEMAS, Staged
from spark_jobs.tasks import in_tasks, whole

_PUSHES_READ: Final = PUSHES.remove(PUSHES.get_field_index("delivered_ms"))
"""The delivery time of a push comes from the log."""


def _columns(schema: pa.Schema) -> list[pa.Field]:
    """Return all columns except the ID."""
    return list(schema)[1:]


_SENT_AS: Final = {
    "committed_offset": "sent_offset",
    "committed_ms": "sent_ms",
    "paid_offset": "paid_sent_offset",
    "paid_message_ms": "paid_sent_ms",
    "cancelled_offset": "cancelled_sent_offset",
}
"""Without a committed message of an order, one sent outside a transaction counts."""

_SETTLED: Final = {"queue_place", *_SENT_AS.values(), *COUNTS} - {"timers", "timer_ends"}
"""Facts not needed after the join, because `is_consumed` and `SPECIAL` contain them."""

ORDERS_JOINED: Final = pa.schema([
    ("order_id", pa.string()),
    *((fact.name, pa.int64()) for fact in ORDER_FACTS if fact.name not in _SETTLED),
    *_columns(ORDERS),
    ("has_row", pa.bool_()),
    *_columns(CLEARED),
    ("is_consumed", pa.bool_()),
    ("half_end", pa.string()),
    ("book_row", pa.int64()),
])  # fmt: skip
"""`book_row` is the bucket, followed by the row's place in it in `ROW_BITS` bits."""

PUSHES_JOINED: Final = pa.schema([
    ("order_id", pa.string()),
    *((fact.name, pa.int64()) for fact in PUSH_FACTS),
    *_columns(_PUSHES_READ),
    ("is_acknowledged", pa.bool_()),
])  # fmt: skip
SPECIAL: Final = pa.schema([
    ("order_id", pa.string()),
    ("committed_offset", pa.int64()),
    ("is_regular", pa.bool_()),
    ("may_cancel_others", pa.bool_()),
    ("is_orphan", pa.bool_()),
    ("is_unledgered", pa.bool_()),
    ("is_consumed", pa.bool_()),
    ("dead_letter_offset", pa.int64()),
    ("customer_id", pa.string()),
])  # fmt: skip
"""may_cancel_others: its messages may cancel the deadline of another order. is_orphan: committed, but not in
the database. is_unledgered: committed and possibly consumed, but not in the ledger."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The staged log, and the exported stores and working tables below `folder`."""

    folder: Path
    staged: Staged
    log: StoreLog
    mapping: Mapping
    has_carts: bool = True

    def path(self, name: str) -> Path:
        """Return the path of an exported table."""
        return self.folder / f"{name}.parquet"

    def working(self, name: str) -> Path:
        """Return the path of a working table."""
        return self.folder / f"working-{name}"

    def exported(self, spark: SparkSession, name: str) -> DataFrame:
        """Return an exported table."""
        return spark.read.parquet(str(self.path(name)))

    def row_count(self, name: str) -> int:
        """Return the number of rows of an exported table."""
        return int(ds.dataset(self.path(name), format="parquet").count_rows())

    def is_exported(self, name: str) -> bool:
        """Return whether a table was exported."""
        return self.path(name).exists()


@dataclass(frozen=True, slots=True)
class Working:
    """A DataFrame that was written once, and its number of rows."""

    frame: DataFrame
    rows: int


class BookRows:
    """The large sides of an audit's books. The constructor joins orders and pushes."""

    def __init__(self, spark: SparkSession, sides: Sides, acknowledged: Acknowledged) -> None:
        self._spark, self._sides = spark, sides
        self._order_buckets = count = count_of(sides.path("orders"))
        deal_cleared(spark, sides.path("ledger"), sides.working("cleared"), count)
        self._join(("orders", "special"), partial(join_orders, sides, acknowledged), count)
        if sides.is_exported("pushes"):
            count = count_of(sides.path("pushes"))
            self._join(("pushes",), partial(join_pushes, sides, acknowledged), count)

    def orders(self) -> DataFrame:
        """Return a row of `ORDERS_JOINED` per order."""
        return self._working("orders", ORDERS_JOINED).frame

    def write_orders(self, judged: Path, schema: pa.Schema, to: Path) -> None:
        """Write all orders: those in `judged` unless left out, the others as `balanced` (`order_files`)."""
        to.mkdir(parents=True, exist_ok=True)
        folder = self._sides.working("orders")

        def work(bucket: int) -> None:
            orders = folder / _file_of(bucket)
            if orders.exists():
                with whole(to / _file_of(bucket)) as path:
                    write_bucket(orders, judged, bucket << ROW_BITS, schema, path)

        in_tasks(self._spark, range(self._order_buckets), work)

    def specials(self) -> Working:
        """Return a row of `SPECIAL` per order to examine closely."""
        return self._working("special", SPECIAL)

    def pushes(self) -> DataFrame:
        """Return a row of `PUSHES_JOINED` per push."""
        return self._working("pushes", PUSHES_JOINED).frame

    def _join(self, writes: tuple[str, ...], join: JoinBucket, count: int) -> None:
        sides = self._sides
        for one in writes:
            sides.working(one).mkdir()

        def work(bucket: int) -> None:
            for name, table in join(bucket, count).items():
                if table.num_rows:
                    with whole(sides.working(name) / _file_of(bucket)) as path:
                        pq.write_table(table, path, compression="lz4", use_dictionary=["status"])

        in_tasks(self._spark, range(count), work)

    def _working(self, name: str, schema: pa.Schema) -> Working:
        path = self._sides.working(name)
        rows = ds.dataset(path, schema, format="parquet").count_rows()
        return Working(self._spark.read.schema(from_arrow_schema(schema)).parquet(str(path)), rows)


JoinBucket = Callable[[int, int], dict[str, pa.Table]]
"""Returns the working tables of a bucket by name, given the number of buckets."""


def join_orders(sides: Sides, acknowledged: Acknowledged, bucket: int, count: int) -> dict[str, pa.Table]:
    """Return the orders and the special orders of a bucket."""
    facts = read_bucket(sides.staged.path("facts"), SCHEMAS["facts"], bucket, count)
    rows = _with_row(read_bucket(sides.path("orders"), ORDERS, bucket, count))
    entries = cleared_once(read_bucket(sides.working("cleared"), CLEARED, bucket, count))
    whole = with_sent(joined(facts, ORDER_FACTS, rows, entries))
    consumed = is_acknowledged(whole["queue_place"], acknowledged[CREATED])
    rows_from = bucket << ROW_BITS
    numbers = pa.array(np.arange(whole.num_rows) + rows_from)
    for name, column in (("is_consumed", consumed), ("half_end", half_end(whole)), ("book_row", numbers)):
        whole = whole.append_column(name, column)
    return {
        "orders": whole.select(ORDERS_JOINED.names).cast(ORDERS_JOINED),
        "special": specials(whole, sides.has_carts),
    }


def with_sent(orders: pa.Table) -> pa.Table:
    """Return the orders, whose messages outside transactions count as committed if no other is.

    This applies only to orders in the database, because such a message does not imply a row and may be of
    another kind.
    """
    has_row = orders["has_row"].is_valid()
    for committed, sent in _SENT_AS.items():
        told = pc.coalesce(orders[committed], pc.if_else(has_row, orders[sent], None))
        orders = orders.set_column(orders.schema.get_field_index(committed), committed, told)
    return orders


def _with_row(rows: pa.Table) -> pa.Table:
    return rows.append_column("has_row", pa.repeat(True, rows.num_rows))


def specials(orders: pa.Table, has_carts: bool) -> pa.Table:
    """Return the orders to examine closely."""
    regular = pa.array(is_regular(orders))
    is_committed = orders["committed_offset"].is_valid()
    is_orphan = pc.and_(orders["has_row"].is_null(), is_committed)
    may_be_consumed = pc.or_(orders["is_consumed"], pc.invert(regular))
    is_unledgered = pc.and_(pc.and_(is_committed, orders["cleared_ms"].is_null()), may_be_consumed)
    flags = {
        "is_regular": regular,
        "may_cancel_others": pa.array(may_cancel_others(orders)),
        "is_orphan": is_orphan,
        "is_unledgered": pc.and_(is_unledgered, has_carts),
    }
    found = pa.table(
        [flags[name] if name in flags else orders[name] for name in SPECIAL.names], schema=SPECIAL
    )
    is_special = pc.or_(pc.or_(pc.invert(regular), is_orphan), found["is_unledgered"])
    return found.filter(is_special)


def join_pushes(sides: Sides, acknowledged: Acknowledged, bucket: int, count: int) -> dict[str, pa.Table]:
    """Return the pushes of the ledger in a bucket."""
    facts = read_bucket(sides.staged.path("pushes"), SCHEMAS["pushes"], bucket, count)
    rows = _with_row(read_bucket(sides.path("pushes"), _PUSHES_READ, bucket, count))
    whole = joined(facts, PUSH_FACTS, rows)
    whole = whole.filter(whole["has_row"])
    done = is_acknowledged(whole["queue_place"], acknowledged[PUSHES_TOPIC])
    whole = whole.append_column("is_acknowledged", done).select(PUSHES_JOINED.names)
    return {"pushes": whole.cast(PUSHES_JOINED)}


def _file_of(bucket: int) -> str:
    return f"part-{bucket:06d}.parquet"
