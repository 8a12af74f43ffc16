"""Orders that are no finding and not proven right either: something is to come, or can no longer be seen."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.cases.columns import first_message_offset, has_row, is_committed, is_covered, is_too_new, says


def in_flight() -> Column:
    """Undecided, and not for too long: unpaid before its deadline, a half without an outcome, a message that
    is not consumed yet, or one that is newer than the reading of the database."""
    is_placed = F.col("status") == "PLACED"
    fired = says(
        "A deadline of it fired (log offset %d), and it is neither paid nor timed out nor cancelled yet.",
        "delivered_offset",
    )
    is_given_up = F.col("is_consumed") | F.col("dead_letter_offset").isNotNull()
    is_unconsumed = is_committed() & F.col("cleared_ms").isNull() & ~is_given_up
    too_new = ~has_row() & is_too_new(first_message_offset())
    return (
        F.when(too_new, F.lit("Its message is newer than the reading of the database."))
        .when(F.col("open_half_offset").isNotNull(), F.lit("A half message of it has no outcome yet."))
        .when(is_placed & F.col("delivered_offset").isNotNull(), fired)
        .when(is_placed, F.lit("It is neither paid nor timed out nor cancelled yet."))
        .when(is_unconsumed, F.lit("Its order-created message is not acknowledged yet."))
    )


def not_covered() -> Column:
    """The order is older than what there is of the log, so whether there was a message cannot be said.

    Retention deleted that part, or there was no log yet: then by more than the grace, since the first order's
    row may have been written by a clock that is behind.
    """
    why = F.lit(
        "It was placed before what there is of the log: whether its message was there cannot be said."
    )
    is_older = has_row() & ~is_committed() & ~is_covered(F.col("placed_ms"))
    return F.when(is_older, why)
