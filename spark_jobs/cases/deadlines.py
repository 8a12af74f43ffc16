"""An order's deadline: the timer that times it out unless it is paid or cancelled before."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.cases.columns import duration, is_covered, is_late, is_too_new, says, status_word
from spark_jobs.staging.events import CREATED, TIMEOUTS


def paid_but_timed_out() -> Column:
    """The row says both that the order was paid and that it timed out, by its status or a time; only one may
    win.

    Wrong: the order service, whose change of the status does not depend on the status.
    Repair: look by hand; the payment counts, or it is given back.
    """
    paid = (F.col("status") == "PAID") | F.col("paid_ms").isNotNull()
    timed_out = (F.col("status") == "TIMED_OUT") | F.col("timed_out_ms").isNotNull()
    why = says("It was paid and has timed out; its status is %s.", status_word())
    return F.when(paid & timed_out, why)


def timeout_not_fired() -> Column:
    """The order still waits for payment and is overdue: its deadline is not delivered within the limit; or
    its own due time has passed by the limit and the grace, and its deadline was never set, was cancelled
    without a payment, or was set for a later time and not moved there.

    Wrong: the broker, or it was down; where no deadline is open, whoever failed to set it or cancelled it.
    Repair: fire the timer (`tidewheel timer fire`), or send the deadline again if none is open; the order
    service looks at the status itself.
    """
    return F.when(_is_timer_late(), _timer_late()).when(_is_own_time_over(), _own_time_over())


def is_within_its_time() -> Column:
    """Return whether an order may still wait: for its deadline, or for a payment or cancellation of which the
    message is newer than the reading of the database.
    """
    told = F.least("paid_offset", "cancelled_offset")
    is_over = _is_timer_late() | is_late(own_due_ms(), "late_limit_ms", "grace_ms")
    is_undecided = _is_waiting() & F.col("delivered_offset").isNull()
    return is_undecided & F.when(told.isNotNull(), is_too_new(told)).otherwise(~is_over)


def own_due_ms() -> Column:
    """Return until when an order may wait for its payment; null if neither its row nor a deadline says it.

    The row decides, unless the deadline was replaced by a later one.
    """
    is_moved = F.coalesce("timers", F.lit(0)) > 1
    return F.when(is_moved, F.greatest("due_ms", "timer_due_ms")).otherwise(
        F.coalesce("due_ms", "timer_due_ms")
    )


def _is_waiting() -> Column:
    return (F.col("status") == "PLACED") & F.coalesce("paid_ms", "timed_out_ms", "cancelled_ms").isNull()


def _is_timer_late() -> Column:
    return _is_waiting() & is_late(F.col("open_timer_due_ms"), "late_limit_ms")


def _timer_late() -> Column:
    return says(
        "Its deadline, the timer at log offset %d, is overdue by %s.",
        F.col("open_timer_offset"),
        duration(F.col("as_of_ms") - F.col("open_timer_due_ms")),
    )


def _is_own_time_over() -> Column:
    """Return whether the order's time is over and nothing that the log has is going to end its waiting."""
    is_decided = F.coalesce("paid_offset", "cancelled_offset", "delivered_offset").isNotNull()
    is_to_be_set = F.coalesce(F.col("open_half_topic").isin(CREATED, TIMEOUTS), F.lit(False))
    return _is_waiting() & is_late(own_due_ms(), "late_limit_ms", "grace_ms") & ~is_decided & ~is_to_be_set


def _own_time_over() -> Column:
    overdue = duration(F.col("as_of_ms") - own_due_ms())
    cancelled = "It is overdue by %s; its deadline was cancelled at log offset %d, without a payment."
    later = "It is overdue by %s; its deadline, the timer at log offset %d, is set for a later time."
    ended = "It is overdue by %s; its deadline, at log offset %d, ended without a delivery or a payment."
    return (
        F.when(F.col("open_timer_offset").isNotNull(), says(later, overdue, F.col("open_timer_offset")))
        .when(
            F.col("timer_cancel_offset").isNotNull(), says(cancelled, overdue, F.col("timer_cancel_offset"))
        )
        .when(F.col("timer_offset").isNotNull(), says(ended, overdue, F.col("timer_offset")))
        .when(
            is_covered(F.col("placed_ms")),
            says("It is overdue by %s; the log has no deadline of it.", overdue),
        )
        .otherwise(says("It is overdue by %s; the part of the log with its deadline is deleted.", overdue))
    )


def fired_late() -> Column:
    """The deadline was delivered later than it was due by more than the limit.

    Wrong: the broker, or it was down at that time.
    Repair: nothing to repair; look at the broker's load and stops at that time.
    """
    late_ms = F.col("late_ms_max")
    why = says(
        "Its deadline was delivered at log offset %d, %s after it was due.",
        F.col("delivered_offset"),
        duration(late_ms),
    )
    return F.when(late_ms > F.col("late_limit_ms"), why)


def cancelled_yet_delivered() -> Column:
    """One and the same timer was cancelled and delivered.

    Wrong: the broker: a timer ends once.
    Repair: report the fault; the order service looks at the status itself, so the order is as it should be.
    """
    timer = F.col("cancelled_timer_delivered")
    why = says("The timer at log offset %d was cancelled, and delivered.", timer)
    return F.when(timer.isNotNull(), why)


def delivered_before_due() -> Column:
    """The deadline was delivered before its time, and nobody had asked for that.

    Wrong: the broker, or its clock was set back.
    Repair: report the fault; give the customer the rest of the time.
    """
    early_ms = -F.col("late_ms_min")
    why = says(
        "Its deadline was delivered at log offset %d, %s before it was due.",
        F.col("delivered_offset"),
        duration(early_ms),
    )
    return F.when(early_ms > 0, why)
