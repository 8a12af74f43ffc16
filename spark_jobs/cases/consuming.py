"""Cases of the consumption of an order's messages by the groups that act on them."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.cases.columns import duration, flag, has_deadline_come, has_waited, is_committed, says


def never_delivered() -> Column:
    """order-created is committed, and for longer than the limit no consumer has acknowledged it, given it up
    or cleared the cart; or the deadline fired so long ago, was not set again, and the order still waits.

    Wrong: the service that should consume it: stopped, too slow, or subscribed to something else.
    Repair: start it; the message waits in its queue.
    """
    unacknowledged = says(
        "Its message at log offset %d is not acknowledged after %s.",
        F.col("committed_offset"),
        duration(F.col("as_of_ms") - F.col("committed_ms")),
    )
    unheard = says("Its deadline was delivered at log offset %d, and it still waits.", "delivered_offset")
    return F.when(is_unconsumed() & has_waited("committed_ms", "unconsumed_limit_ms"), unacknowledged).when(
        is_unheard() & has_waited("delivered_ms", "unconsumed_limit_ms"), unheard
    )


def is_unconsumed() -> Column:
    """Return whether order-created is committed, neither acknowledged nor given up, and not in the ledger."""
    is_open = is_committed() & ~F.col("is_consumed") & F.col("cleared_ms").isNull()
    return is_open & F.col("dead_letter_offset").isNull()


def is_unheard() -> Column:
    """Return whether the deadline was delivered and not given up (or redriven), and the order still waits."""
    is_dead = F.col("deadline_dead_offset").isNotNull() & ~flag("is_deadline_redelivered")
    return (F.col("status") == "PLACED") & has_deadline_come() & ~is_dead


def dead_lettered() -> Column:
    """order-created, or the deadline, was given up as a dead letter, and no redrive of it was acknowledged.

    Wrong: the consumer, which failed as often as it may.
    Repair: repair the consumer, then redrive the message (`tidewheel dlq redrive`).
    """
    is_dead = F.col("dead_letter_offset").isNotNull() & ~flag("is_redelivered")
    is_deadline_dead = F.col("deadline_dead_offset").isNotNull() & ~flag("is_deadline_redelivered")
    return F.when(
        is_dead, says("Its message is a dead letter, at log offset %d.", "dead_letter_offset")
    ).when(is_deadline_dead, says("Its deadline is a dead letter, at log offset %d.", "deadline_dead_offset"))


def fifo_gap() -> Column:
    """A message of the order was passed over: a later one of its message group and queue is acknowledged,
    and this one neither is nor was given up.

    Wrong: the broker, or a consumer that skipped its group's offset.
    Repair: reset the group to the message that was passed over; consumers act on an order once.
    """
    why = says("Its message at place %d of its queue was passed over by a later one.", "fifo_gap_offset")
    is_passed = F.col("fifo_gap_offset").isNotNull() & F.col("dead_letter_offset").isNull()
    return F.when(is_passed, why)
