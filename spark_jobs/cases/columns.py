"""Expressions of the cases over a row of the books; see `spark_jobs.books.books` for its columns."""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

TOPIC_WORDS: Final = {
    "order_created": "created_topic",
    "order_timeouts": "timeouts_topic",
    "order_paid": "paid_topic",
    "order_cancelled": "cancelled_topic",
}
"""Topic by mapping name -> the column with the user's name, in order of the topic numbers (`events`)."""

STATUS_WORDS: Final = {
    "PLACED": "placed_status",
    "PAID": "paid_status",
    "TIMED_OUT": "timed_out_status",
    "CANCELLED": "cancelled_status",
}
"""Status of an order by mapping name -> the column with the user's word."""


def has_row() -> Column:
    """Return whether the database contains the order."""
    return F.col("has_row")


def is_committed() -> Column:
    """Return whether the log contains a committed order-created message of the order."""
    return F.col("committed_offset").isNotNull()


def is_consumed() -> Column:
    """Return whether the carts' group has acknowledged order-created, and the redrive of a dead letter."""
    return F.col("is_consumed") & (F.col("dead_letter_offset").isNull() | flag("is_redelivered"))


def first_message_offset() -> Column:
    """Return the log offset of the order's first committed message: creation, payment or cancellation."""
    return F.least("committed_offset", "paid_offset", "cancelled_offset")


def is_too_new(offset: str | Column) -> Column:
    """Return whether the record at an offset may be newer than the reading of the database; null for null."""
    column = F.col(offset) if isinstance(offset, str) else offset
    return column >= F.col("books_offset")


def is_covered(ms: Column) -> Column:
    """Return whether the log covers an event at `ms` (since 1970).

    It does from the grace after `covered_from_ms` on, or always if that is 0.
    """
    covered_from_ms = F.col("covered_from_ms")
    return (covered_from_ms == 0) | (ms >= covered_from_ms + F.col("grace_ms"))


def has_waited(since_ms: str, limit_ms: str) -> Column:
    """Return whether more than the limit has passed from `since_ms` to `as_of_ms`; false for null."""
    return is_late(F.col(since_ms), limit_ms)


def is_late(due_ms: Column, *allowances: str) -> Column:
    """Return whether `as_of_ms` exceeds `due_ms` by more than the sum of the allowances; false for null.

    The allowances are names of columns in ms.
    """
    allowed = reduce(lambda one, other: one + other, (F.col(name) for name in allowances))
    return F.coalesce(F.col("as_of_ms") - due_ms > allowed, F.lit(False))


def flag(name: str) -> Column:
    """Return a boolean column that only some orders have, with null as false."""
    return F.coalesce(F.col(name), F.lit(False))


def has_deadline_come() -> Column:
    """Return whether the deadline was delivered and not set again, to extend the time, after that."""
    return F.col("delivered_offset").isNotNull() & ~flag("is_rearmed")


def status_word() -> Column:
    """Return the user's word for the status of an order."""
    words = F.lit(None)
    for status, word in STATUS_WORDS.items():
        words = F.when(F.col("status") == status, F.col(word)).otherwise(words)
    return F.coalesce(words, F.col("status"))


def says(text: str, *columns: str | Column) -> Column:
    """Return a sentence: `text` with the columns for its placeholders (`format_string`)."""
    return F.format_string(text, *columns)


def duration(ms: Column) -> Column:
    """Return milliseconds as text in seconds, such as `12.5 s`."""
    return F.format_string("%.1f s", ms / 1000)


def moment(ms: Column) -> Column:
    """Return milliseconds since 1970 as text, in UTC."""
    return F.date_format(F.timestamp_millis(ms), "yyyy-MM-dd HH:mm:ss.SSS")


def is_held(held_ms: Column, fires_ms: Column) -> Column:
    """Return whether an operator's hold of its topic keeps a waiting timer from delivery.

    `fires_ms` is the time of its delivery without the hold, and `held_ms` that of its mark as held, or null.
    A timer due since the hold is held even if the broker has not written the mark yet. If the log contains
    the mark, and neither the hold nor a release, the hold lasts.
    """
    is_marked = held_ms.isNotNull() & (F.col("hold_ms").isNotNull() | F.col("released_ms").isNull())
    is_to_be_held = (fires_ms >= F.col("hold_ms")) & (fires_ms <= F.col("as_of_ms"))
    return is_marked | F.coalesce(is_to_be_held, F.lit(False))


def is_released(held_ms: Column) -> Column:
    """Return whether a waiting timer was held, and its topic has been released."""
    return held_ms.isNotNull() & F.col("hold_ms").isNull() & F.col("released_ms").isNotNull()


def held_since(held_ms: Column) -> Column:
    """Return the time from which the topic of a timer is held, as text in UTC."""
    return moment(F.coalesce(F.col("hold_ms"), held_ms))


def held_too_much() -> Column:
    """Return the articles with more in the cart than by its ledger, as array<struct<sku, cart, ledger>>."""
    return F.filter("surplus", lambda article: article.cart > article.ledger)


def held_too_little() -> Column:
    """Return the articles with less in the cart than by its ledger, as array<struct<sku, cart, ledger>>."""
    return F.filter("surplus", lambda article: article.cart < article.ledger)
