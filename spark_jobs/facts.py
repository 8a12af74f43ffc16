"""What the log says: every record's kind, every order's events, and one row of facts per order.

    kind          records                                                         names its order by
    half          of the half topic                                               key
    committed     type commit, of a user topic; names its half                    key
    rolled back   outcome records; name their half                                key
    expired       outcome records, when nobody ever answered; name their half     key
    timer         of the timer topic; type commit names its half, and ends it     key
    delivered     of a user topic, naming its timer                               key
    fired         likewise, before its time because somebody wanted it            key
    cancelled     verb records naming their timer                                 its timer's key
    asked         check-back counters naming their half                           its half's key
    acknowledged  ranges of queue offsets of a group                              the message's key
    dead letter   of a group's dead letter topic                                  key
    normal, topic, other, damage                                                  not used

A record may end a timer beside being what it is: a timer record the one that it moves or replaces, a message
(also the committed one of a half) the one that it cancels. `timer_ends` has each end of a timer with how it
ended, whatever record tells it.

An order is whatever a message's first key says. Records may be met in any order and more than once; a fact
is the first place in the log where something happened, and `timeline` holds all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from commitlog.record import TYPE_COMMIT, TYPE_MASK
from consumequeue import acks
from spark_jobs import shop
from txn.half import CHECK_TOPIC, HALF_TOPIC, OUTCOME_TOPIC

TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
VERB_TOPIC: Final = "TW_SYS_VERB"
ACK_TOPIC: Final = "TW_SYS_ACK"
TOPIC_TOPIC: Final = "TW_SYS_TOPIC"
DEAD_LETTER_PREFIX: Final = "%DLQ%"

MESSAGE_KINDS: Final = ("normal", "committed", "delivered", "fired")
"""The kinds of record that a consumer gets."""

RECORDS: Final = (
    "physical_offset bigint, record_bytes bigint, topic string, queue_id int, queue_offset bigint, "
    "sys_flag int, store_ms bigint, half_offset bigint, body binary, keys string, real_topic string, "
    "due_ms bigint, timer_offset bigint, outcome string, verb string, replaces bigint, cancels string, "
    "dead_letter_topic string, damage string"
)
"""The columns of the data source that the audit works on."""

_RANGES: Final = (
    "physical_offset bigint, store_ms bigint, group string, topic string, queue_id int, "
    "first_offset bigint, offset_count bigint"
)
_EVENT: Final = ("order_id", "kind", "topic", "physical_offset", "store_ms", "half_offset")


def classified(records: DataFrame) -> DataFrame:
    """Records with `kind`, `order_id` (the first key) and `about`: the user topic that they are about.

    Messages of the shop that reached their topic also have `readable`: whether the body is what the topic
    promises; then `message` is its content.
    """
    about = F.coalesce(
        "real_topic", F.when(F.col("kind") == "dead letter", F.col("dead_letter_topic")), "topic"
    )
    return (
        records.withColumn("kind", _kind())
        .withColumn("about", about)
        .withColumn("order_id", F.substring_index("keys", " ", 1))
        .withColumn(
            "message", F.when(_is_shop_message(), F.from_json(F.col("body").cast("string"), shop.BODY))
        )
        .withColumn(
            "readable",
            F.when(_is_shop_message(), shop.readable(F.col("topic"), F.col("order_id"), F.col("message"))),
        )
        .withColumn("message", F.when(F.col("readable"), F.col("message")))
    )


def order_events(records: DataFrame) -> DataFrame:
    """Everything that happened to every order, one row each; `records` are classified.

    Columns: order_id, kind, topic, physical_offset, store_ms, half_offset, message.
    """
    about_orders = records.filter(F.col("about").isin(*shop.ORDER_TOPICS))
    named = _named(about_orders)
    return (
        named.unionByName(_referring(records, about_orders), allowMissingColumns=True)
        .unionByName(_acknowledged(records, about_orders), allowMissingColumns=True)
        .filter(F.col("order_id").isNotNull())
    )


def order_facts(events: DataFrame) -> DataFrame:
    """One row per order that the log speaks of: first log offset of each kind, and its timeline."""
    created = F.col("topic") == shop.ORDER_CREATED
    deadline = F.col("topic") == shop.ORDER_TIMEOUTS
    return events.groupBy("order_id").agg(
        _first("half", created).alias("half_offset"),
        _first("committed", created).alias("committed_offset"),
        F.sort_array(F.collect_list(_offset_of("committed", created))).alias("committed_offsets"),
        _has_open_half(created).alias("has_open_half"),
        _first("acknowledged", created).alias("ack_offset"),
        _first("dead letter", created).alias("dead_letter_offset"),
        _first("timer", deadline).alias("timer_offset"),
        F.least(_first("delivered", deadline), _first("fired", deadline)).alias("delivered_offset"),
        _first("cancelled", deadline).alias("cancel_offset"),
        F.first(F.when(created, F.col("message")), ignorenulls=True).alias("message"),
        F.sort_array(F.collect_list(F.struct("physical_offset", "store_ms", "kind", "topic"))).alias(
            "timeline"
        ),
    )


def _kind() -> Column:
    topic, outcome = F.col("topic"), F.col("outcome")
    is_commit = F.col("sys_flag").bitwiseAND(TYPE_MASK) == TYPE_COMMIT
    return (
        F.when(F.col("damage").isNotNull(), "damage")
        .when(topic == HALF_TOPIC, "half")
        .when(topic == TIMER_TOPIC, "timer")
        .when((topic == OUTCOME_TOPIC) & (outcome == "ROLLBACK"), "rolled back")
        .when((topic == OUTCOME_TOPIC) & (outcome == "EXPIRED"), "expired")
        .when((topic == VERB_TOPIC) & (F.col("verb") == "CANCEL"), "cancelled")
        .when(topic == CHECK_TOPIC, "asked")
        .when(topic == ACK_TOPIC, "acknowledged")
        .when(topic == TOPIC_TOPIC, "topic")
        .when(topic.startswith("TW_SYS_"), "other")
        .when(topic.startswith(DEAD_LETTER_PREFIX), "dead letter")
        .when(F.col("timer_offset").isNotNull() & (F.col("verb") == "FIRE"), "fired")
        .when(F.col("timer_offset").isNotNull(), "delivered")
        .when(is_commit, "committed")
        .otherwise("normal")
    )


def _is_shop_message() -> Column:
    return F.col("topic").isin(*shop.TOPICS) & F.col("kind").isin(*MESSAGE_KINDS)


def _named(about_orders: DataFrame) -> DataFrame:
    """Events whose records carry their order's id themselves."""
    kinds = ("half", "committed", "rolled back", "expired", "timer", "delivered", "fired", "dead letter")
    return (
        about_orders.filter(F.col("kind").isin(*kinds))
        .withColumn("topic", F.col("about"))
        .select(*_EVENT, "message")
    )


def _referring(records: DataFrame, about_orders: DataFrame) -> DataFrame:
    """Events that name the half or timer which they are about by its log offset."""
    anchors = about_orders.filter(F.col("kind").isin("half", "timer")).select(
        F.col("physical_offset").alias("anchor"), "order_id", F.col("about").alias("topic")
    )
    asked = records.filter(F.col("kind") == "asked").withColumn("anchor", F.col("half_offset"))
    ends = timer_ends(records).filter(~F.col("kind").isin("delivered", "fired"))
    return (
        asked.unionByName(ends.withColumnRenamed("ended_timer", "anchor"))
        .drop("order_id", "topic")
        .join(anchors, "anchor")
        .select(*_EVENT)
    )


def timer_ends(records: DataFrame) -> DataFrame:
    """Each end of a timer: the record that tells it, `ended_timer`, and as `kind` how that timer ended.

    The kinds are delivered, fired, cancelled, moved and replaced. A delivered message may still carry the
    cancel of its timer record, which did that.
    """
    own = records.filter(F.col("timer_offset").isNotNull()).withColumn("ended_timer", F.col("timer_offset"))
    placed = records.filter((F.col("kind") == "timer") & F.col("replaces").isNotNull())
    carrying = records.filter(F.col("timer_offset").isNull() & F.col("cancels").isNotNull())
    cancelled_timer = F.substring_index("cancels", " ", 1).cast("bigint")
    return (
        own.filter(F.col("kind").isin("delivered", "fired", "cancelled"))
        .unionByName(
            placed.withColumn("ended_timer", F.col("replaces")).withColumn(
                "kind", F.when(F.col("verb") == "MOVE", "moved").otherwise("replaced")
            )
        )
        .unionByName(
            carrying.withColumn("ended_timer", cancelled_timer).withColumn("kind", F.lit("cancelled"))
        )
    )


def _acknowledged(records: DataFrame, about_orders: DataFrame) -> DataFrame:
    """An event per acknowledged message of the group that acts on its topic."""
    messages = about_orders.filter(F.col("kind").isin(*MESSAGE_KINDS))
    return (
        acknowledged_offsets(records)
        .join(
            messages.select("topic", "queue_id", "queue_offset", "order_id"),
            ["topic", "queue_id", "queue_offset"],
        )
        .select("order_id", F.lit("acknowledged").alias("kind"), "topic", "physical_offset", "store_ms")
    )


def acknowledged_offsets(records: DataFrame) -> DataFrame:
    """Each queue offset that the group acting on its topic has acknowledged, with the record that says so.

    Columns: topic, queue_id, queue_offset, physical_offset, store_ms.
    """
    acting = F.create_map(*(F.lit(text) for pair in shop.CONSUMERS.items() for text in pair))
    last = F.col("first_offset") + F.col("offset_count") - 1
    return (
        records.filter(F.col("kind") == "acknowledged")
        .select("physical_offset", "store_ms", "body")
        .mapInArrow(_ranges, _RANGES)
        .filter(F.col("group") == acting[F.col("topic")])
        .withColumn("queue_offset", F.explode(F.sequence("first_offset", last)))
        .select("topic", "queue_id", "queue_offset", "physical_offset", "store_ms")
    )


def _ranges(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [
            (row["physical_offset"], row["store_ms"], group, topic, queue_id, first, count)
            for row in batch.to_pylist()
            for group, topic, queue_id, ranges in acks.decode(row["body"])
            for first, count in ranges
        ]
        yield pa.RecordBatch.from_pylist(
            [dict(zip(_RANGES_SCHEMA.names, row, strict=True)) for row in rows], _RANGES_SCHEMA
        )


_RANGES_SCHEMA: Final = pa.schema([
    ("physical_offset", pa.int64()),
    ("store_ms", pa.int64()),
    ("group", pa.string()),
    ("topic", pa.string()),
    ("queue_id", pa.int32()),
    ("first_offset", pa.int64()),
    ("offset_count", pa.int64()),
])  # fmt: skip


def _offset_of(kind: str, among: Column) -> Column:
    return F.when((F.col("kind") == kind) & among, F.col("physical_offset"))


def _first(kind: str, among: Column) -> Column:
    return F.min(_offset_of(kind, among))


def _has_open_half(among: Column) -> Column:
    """Whether a half has neither been committed nor ended: its check-backs go on, nothing is decided yet.

    The commit of a half with a delivery time is its timer.
    """
    ends = F.col("kind").isin("committed", "timer", "rolled back", "expired")
    ended = F.when(ends & among, F.col("half_offset"))
    return F.size(F.array_except(F.collect_set(_offset_of("half", among)), F.collect_set(ended))) > 0
