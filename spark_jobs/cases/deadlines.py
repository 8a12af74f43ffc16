"""An order's deadline: the timer that times it out unless it is paid or cancelled before."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.cases.columns import duration, says


def paid_but_timed_out() -> Column:
    """The row says both that the order was paid and that it timed out; only one may win.

    Wrong: the order service, whose change of the status does not depend on the status.
    Repair: look by hand; the payment counts, or it is given back.
    """
    timed_out = (F.col("status") == "TIMED_OUT") | F.col("timed_out_ms").isNotNull()
    why = says("It was paid and has timed out; its status is %s.", "status")
    return F.when(F.col("paid_ms").isNotNull() & timed_out, why)


def timeout_not_fired() -> Column:
    """The order still waits for payment, and its deadline is overdue by more than the limit: not delivered,
    not cancelled, not replaced.

    Wrong: the broker, or it was down.
    Repair: fire the timer (`tidewheel timer fire`); the order service looks at the status itself.
    """
    is_waiting = (F.col("status") == "PLACED") & F.coalesce(
        "paid_ms", "timed_out_ms", "cancelled_ms"
    ).isNull()
    overdue_ms = F.col("as_of_ms") - F.col("open_timer_due_ms")
    why = says(
        "Its deadline, the timer at log offset %d, is overdue by %s.",
        F.col("open_timer_offset"),
        duration(overdue_ms),
    )
    holds = is_waiting & (overdue_ms > F.col("late_limit_ms"))
    return F.when(holds, why)


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
