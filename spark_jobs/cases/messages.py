"""Cases of an order without its message, or a message without its order."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.cases.columns import (
    first_message_offset,
    flag,
    has_row,
    is_committed,
    is_covered,
    is_too_new,
    says,
)


def order_without_message() -> Column:
    """The database has the order; the log, which covers its time, has no order-created message of it, sent in
    a transaction or without one, no half that is still open and none that was ended otherwise.

    Wrong: the order service, which wrote the row outside of the message's transaction.
    Repair: send order-created for the row; consumers act on an order once.
    """
    has_half = (
        flag("has_open_created") | F.col("rollback_offset").isNotNull() | F.col("expired_offset").isNotNull()
    )
    why = says("The database has the order; the log has no message of it in %s.", "created_topic")
    holds = has_row() & ~is_committed() & ~has_half & is_covered(F.col("placed_ms"))
    return F.when(holds, why)


def message_without_order() -> Column:
    """A message of the order is committed, and older than the reading of the database, which has no such row.

    Wrong: the order service, which committed before its row was; or an operator, who deleted the row.
    Repair: look by hand; either restore the row from the message, or undo what consumers did.
    """
    first = first_message_offset()
    why = says("Its message is committed at log offset %d; the database has no such order.", first)
    holds = ~has_row() & first.isNotNull() & ~is_too_new(first)
    return F.when(holds, why)
