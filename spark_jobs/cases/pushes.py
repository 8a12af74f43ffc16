"""The case of pushes: the ledger of pushes compared with the log, and the sums of its counts."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.cases.columns import duration, is_covered, is_held, is_late, is_too_new, says
from spark_jobs.cases.names import PUSHES_DO_NOT_SUM
from spark_jobs.inputs.mapping import NOT_OURS

KNOWN: Final = ("SCHEDULED", "DELIVERED", "CANCELLED", "FAILED")
"""The statuses of a push: left, sent, cancelled, failed."""

ONE_OFF: Final = "one-off pushes"


def pushes_do_not_sum(pushes: DataFrame) -> DataFrame:
    """Of a schedule (or of all single pushes) what was scheduled is not what was sent, left, cancelled and
    failed; or the ledger says that a push was delivered and the log does not; or its message was delivered
    and acknowledged and the ledger does not say so; or it was delivered twice; or it is still to be sent, and
    its time has passed by the limit and the grace without a delivery, or longer ago than the log tells. One
    that an operator holds is not overdue, and after the hold from the release on.

    Wrong: the push service, which did not write what it did, or wrote what it did not do, or never sent it.
    Repair: set the push's status to what the log says; nothing is to be sent again. An operator has
    to decide whether one that was never sent is still wanted.
    """
    is_delivered = F.col("status") == "DELIVERED"
    never = is_delivered & F.col("delivered_offset").isNull() & is_covered(F.col("due_ms"))
    is_done = (
        F.col("delivered_offset").isNotNull() & F.col("is_acknowledged") & ~is_too_new("delivered_offset")
    )
    unsaid = is_done & F.col("status").isin("SCHEDULED", "FAILED") & F.col("dead_letter_offset").isNull()
    waits = F.coalesce(F.col("timers") > F.coalesce("timer_ends", F.lit(0)), F.lit(False))
    held_ms = F.when(waits & (F.col("held_offset") == F.col("timer_offset")), F.col("held_ms"))
    due_ms = F.greatest("due_ms", "timer_due_ms")
    until_ms = F.greatest(due_ms, F.when(held_ms.isNotNull(), F.col("release_done_ms")))
    is_overdue = is_late(until_ms, "late_limit_ms", "grace_ms") & ~(waits & is_held(held_ms, due_ms))
    unsent = (F.col("status") == "SCHEDULED") & F.col("delivered_offset").isNull() & is_overdue
    unseen = F.when(is_covered(until_ms), F.lit("the log has no delivery of it")).otherwise(
        F.lit("the part of the log that would have its delivery is deleted")
    )
    overdue = says("It is to be sent, and overdue by %s; %s.", duration(F.col("as_of_ms") - until_ms), unseen)
    is_twice = F.col("deliveries") > 1 + F.coalesce("dead_letters", F.lit(0))
    twice = says("It was delivered %d times, first at log offset %d.", "deliveries", "delivered_offset")
    said = "Its message was delivered at log offset %d and acknowledged; the ledger says %s."
    why = (
        F.when(is_twice, twice)
        .when(never, F.lit("The ledger says delivered; the log has no delivery of it."))
        .when(unsent, overdue)
        .when(unsaid, says(said, "delivered_offset", "status"))
        .when(
            ~F.col("status").isin(*KNOWN),
            says("Its status %s is neither sent nor left.", F.rtrim("status", F.lit(NOT_OURS))),
        )
    )
    return pushes.withColumn(PUSHES_DO_NOT_SUM, why)


def sums(pushes: DataFrame) -> DataFrame:
    """Return a row per schedule whose pushes do not add up, with all one-off pushes as one: schedule, why."""
    schedule = F.coalesce("schedule_id", F.lit(ONE_OFF))
    counts = {status: F.count_if(F.col("status") == status).alias(status) for status in KNOWN}
    whole = pushes.groupBy(schedule.alias("schedule")).agg(F.count("*").alias("total"), *counts.values())
    total = F.col("SCHEDULED") + F.col("DELIVERED") + F.col("CANCELLED") + F.col("FAILED")
    why = says(
        "%d scheduled are not %d sent, %d left, %d cancelled and %d failed.",
        *("total", "DELIVERED", "SCHEDULED", "CANCELLED", "FAILED"),
    )
    return whole.filter(F.col("total") != total).select("schedule", why.alias("why"))
