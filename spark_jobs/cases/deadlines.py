"""Cases of an order's deadline: the timer that times the order out unless it is paid or cancelled before.

A late deadline went through steps, each of which may have caused the delay:

    half sent -> half committed = armed -> delivered -> received, acknowledged = the row timed out
    `--------- armed-late -----------'  fired-late     timed-out-late
               the order service        the broker     the order service, as a consumer

Rules:
- The delay of the broker is measured from the due time of the timer, or from its arming if that was later.
- If the delay exceeds the limit in total, but in neither of the first two steps alone, it is attributed to
  the longer of the two.
- A timer that the log no longer contains was armed before the beginning of the log.
- The log does not record the receipt of a message. Hence the last step is measured by the row.
- A deadline under an operator's hold of its topic is not late. After the hold, the delay of the broker is
  measured from the release, or from the time by which a release at a limited rate would have delivered all
  timers. A delivery after a hold is not late.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.cases.columns import (
    duration,
    flag,
    has_deadline_come,
    held_since,
    is_covered,
    is_held,
    is_late,
    is_released,
    is_too_new,
    moment,
    says,
    status_word,
)
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
    without a payment, or was set for a later time and not moved there. A deadline that was set after its time
    has the limit from its setting on, and one that an operator held from the release on.

    Wrong: the broker, or it was down; where no deadline is open, the order service, which did not set it; or
    the operator or client that cancelled it (`tidewheel timer cancel`, or a message that cancels a timer).
    Repair: fire the timer (`tidewheel timer fire`), or send the deadline again if none is open; the order
    service looks at the status itself.
    """
    return F.when(_is_timer_late(), _timer_late()).when(_is_own_time_over(), _own_time_over())


def is_within_its_time() -> Column:
    """Return whether an order may still wait for its deadline, or for a payment or cancellation.

    It may wait for the latter while their message is newer than the reading of the database.
    """
    told = F.least("paid_offset", "cancelled_offset")
    is_over = _is_timer_late() | _is_wait_over()
    is_undecided = _is_waiting() & ~has_deadline_come()
    return is_undecided & F.when(told.isNotNull(), is_too_new(told)).otherwise(~is_over)


def own_due_ms() -> Column:
    """Return the time until which an order may wait for its payment; null if row and log have no due time.

    The due time of the row decides, unless the deadline was replaced by a later one that is still open.
    """
    is_moved = (F.coalesce("timers", F.lit(0)) > 1) & F.col("open_timer_offset").isNotNull()
    return F.when(is_moved, F.greatest("due_ms", "timer_due_ms")).otherwise(
        F.coalesce("due_ms", "timer_due_ms")
    )


def _waits_until_ms() -> Column:
    """Return the latest of `own_due_ms`, arming and release of the open deadline; null if the first is."""
    return F.when(own_due_ms().isNotNull(), F.greatest(own_due_ms(), "open_timer_ms", _release_done_ms()))


def _is_wait_over() -> Column:
    return is_late(_waits_until_ms(), "late_limit_ms", "grace_ms") & ~is_deadline_held()


def is_deadline_held() -> Column:
    """Return whether an operator's hold keeps the open deadline."""
    return is_held(F.col("open_timer_held_ms"), _fires_ms())


def deadline_held() -> Column:
    """Return the sentence about an open deadline that is held."""
    held = "Its deadline, the timer at log offset %d, is held by an operator: the timers of %s since %s UTC."
    since = held_since(F.col("open_timer_held_ms"))
    return says(held, F.col("open_timer_offset"), F.col("timeouts_topic"), since)


def is_deadline_released() -> Column:
    """Return whether the open deadline was held, and its topic has been released."""
    return is_released(F.col("open_timer_held_ms"))


def deadline_released() -> Column:
    """Return the sentence about an open deadline that is to be delivered by a release."""
    text = "Its deadline, the timer at log offset %d, was held by an operator; %s was released at %s UTC."
    released_at = moment(F.col("released_ms"))
    return says(text, F.col("open_timer_offset"), F.col("timeouts_topic"), released_at)


def _is_waiting() -> Column:
    return (F.col("status") == "PLACED") & F.coalesce("paid_ms", "timed_out_ms", "cancelled_ms").isNull()


def _is_timer_late() -> Column:
    return _is_waiting() & is_late(_fires_ms(), "late_limit_ms") & ~is_deadline_held()


def _fires_ms() -> Column:
    """Return the time at which the broker had to deliver the open timer: when due, armed or released last."""
    return F.greatest("open_timer_due_ms", "open_timer_ms", _release_done_ms())


def _release_done_ms() -> Column:
    return F.when(F.col("open_timer_held_ms").isNotNull(), F.col("release_done_ms"))


def _timer_late() -> Column:
    waited = duration(F.col("as_of_ms") - _fires_ms())
    overdue = "Its deadline, the timer at log offset %d, is overdue by %s."
    armed_late = (
        "Its deadline, the timer at log offset %d, was set after it was due, and has waited %s since."
    )
    after_hold = (
        "Its deadline, the timer at log offset %d, was held by an operator; %s was released at %s UTC, and "
        "it is overdue by %s since."
    )
    released_at = moment(F.col("released_ms"))
    named = F.col("open_timer_offset"), F.col("timeouts_topic"), released_at, waited
    return (
        F.when(is_deadline_released(), says(after_hold, *named))
        .when(
            F.col("open_timer_ms") > F.col("open_timer_due_ms"),
            says(armed_late, F.col("open_timer_offset"), waited),
        )
        .otherwise(says(overdue, F.col("open_timer_offset"), waited))
    )


def _is_own_time_over() -> Column:
    """Return whether the order's time is over without a logged payment, cancellation or delivered deadline.

    It is false while an open half may still set the deadline.
    """
    is_decided = F.coalesce("paid_offset", "cancelled_offset").isNotNull() | has_deadline_come()
    is_to_be_set = F.coalesce(F.col("open_half_topic").isin(CREATED, TIMEOUTS), F.lit(False))
    return _is_waiting() & _is_wait_over() & ~is_decided & ~is_to_be_set


def _own_time_over() -> Column:
    overdue = duration(F.col("as_of_ms") - own_due_ms())
    cancelled = "It is overdue by %s; its deadline was cancelled at log offset %d, without a payment."
    called_off = (
        "It is overdue by %s; its deadline was cancelled by a call of its own, an operator's or a client's, "
        "at %s UTC, log offset %d, without a payment."
    )
    called_off_at = moment(F.col("last_cancel_ms"))
    later = "It is overdue by %s; its deadline, the timer at log offset %d, is set for a later time."
    ended = "It is overdue by %s; its deadline, at log offset %d, ended without a delivery or a payment."
    return (
        F.when(F.col("open_timer_offset").isNotNull(), says(later, overdue, F.col("open_timer_offset")))
        .when(flag("is_called_off"), says(called_off, overdue, called_off_at, F.col("last_cancel_offset")))
        .when(
            F.col("timer_cancel_offset").isNotNull(), says(cancelled, overdue, F.col("timer_cancel_offset"))
        )
        .when(F.col("timer_offset").isNotNull(), says(ended, overdue, F.col("timer_offset")))
        .when(
            is_covered(F.coalesce("placed_ms", "committed_ms")),
            says("It is overdue by %s; the log has no deadline of it.", overdue),
        )
        .otherwise(says("It is overdue by %s; the part of the log with its deadline is deleted.", overdue))
    )


def armed_late() -> Column:
    """The deadline was set after it was due, by more than the limit: its half had no outcome for so long, or
    its message was sent so late; or it came too late by that and by the broker together, more by that.

    Wrong: the order service, which left the half to a check-back, or sent the deadline late; the broker only
    if it was away when the outcome was to come.
    Repair: nothing to repair; look why the order service was late: whether it stopped between half and commit
    (a shorter check-back of the topic, `tidewheel txn policy`, bounds the delay), was overloaded, or its
    clock is behind.
    """
    waited_ms = F.col("late_armed_ms") - F.col("late_half_ms")
    sent_late_ms = F.col("late_half_ms") - F.col("late_due_ms")
    set_at = "Its deadline was set at log offset %d, %s after it was due: "
    named = F.col("late_timer_offset"), duration(_armed_late_ms())
    waited = says(set_at + "its half waited %s for its outcome.", *named, duration(waited_ms))
    sent_late = says(set_at + "its message was sent %s after that time.", *named, duration(sent_late_ms))
    without_half = says(set_at + "its message was sent, or the timer moved to that time, only then.", *named)
    why = (
        F.when(F.col("late_half_ms").isNull(), without_half)
        .when(waited_ms > F.greatest(sent_late_ms, F.lit(0)), waited)
        .otherwise(sent_late)
    )
    is_longer = _armed_late_ms() >= _fired_late_ms()
    return F.when(_is_too_late(_armed_late_ms(), is_longer), why)


def fired_late() -> Column:
    """The deadline was delivered later than it was due, or set if that was later, by more than the limit; or
    it came too late by that and by its setting together, more by that. A deadline that an operator held is
    late by the hold, and not in this case.

    Wrong: the broker, or it was down at that time.
    Repair: nothing to repair; look at the broker's load and stops at that time.
    """
    delivered = "Its deadline was delivered at log offset %d, %s after it was "
    named = F.col("delivered_offset"), duration(_fired_late_ms())
    armed_late = says(delivered + "set, which was %s after it was due.", *named, duration(_armed_late_ms()))
    lost = says(delivered + "due, at least; when it was set the log does not have any more.", *named)
    why = (
        F.when(_armed_late_ms() > 0, armed_late)
        .when(F.col("late_armed_ms").isNull(), lost)
        .otherwise(says(delivered + "due.", *named))
    )
    is_longer = _armed_late_ms() < _fired_late_ms()
    return F.when(_is_too_late(_fired_late_ms(), is_longer), why)


def timed_out_late() -> Column:
    """The row timed out later than the deadline was delivered, or than the row's own due time if that was
    later, by more than the limit and the grace. A redrive of its dead letter delivers it again.

    Wrong: the order service, which received the deadline late, failed on it, or was slow to act on it; the
    broker only if it was away meanwhile.
    Repair: nothing to repair; look whether the order service ran and kept up at that time, and whether it
    failed on the message before (`tidewheel group show`). The timeline says when it acknowledged the message.
    """
    came_ms = F.when(F.col("delivered_offset").isNotNull(), F.col("last_delivered_ms"))
    late_ms = F.col("timed_out_ms") - F.greatest("due_ms", came_ms)
    why = says("It timed out %s after its deadline was delivered.", duration(F.col("timed_out_ms") - came_ms))
    return F.when(came_ms.isNotNull() & (late_ms > F.col("late_limit_ms") + F.col("grace_ms")), why)


def _is_too_late(step_ms: Column, is_longer: Column) -> Column:
    """Return whether a step took longer than the limit, or both together did and it is the longer one."""
    limit_ms = F.col("late_limit_ms")
    is_late_in_all = _armed_late_ms() + _fired_late_ms() > limit_ms
    return (step_ms > limit_ms) | (is_late_in_all & is_longer)


def _armed_late_ms() -> Column:
    """Return in ms how long after its due time the deadline was armed; 0 if it was not late, or unknown.

    Of several deadlines, it is the one with the longest delay (`exact.EXACT`, late_*).
    """
    return F.greatest(F.col("late_armed_ms") - F.col("late_due_ms"), F.lit(0))


def _fired_late_ms() -> Column:
    """Return in ms how long after its due time, or its arming if that was later, the deadline was delivered.

    It is 0 if it was not delivered, or delivered by hand or after a hold.
    """
    from_ms = F.greatest("late_due_ms", F.coalesce("late_armed_ms", "covered_from_ms"))
    return F.coalesce(F.col("late_delivered_ms") - from_ms, F.lit(0))


def cancelled_yet_delivered() -> Column:
    """One and the same timer was cancelled and delivered.

    Wrong: the broker: a timer ends once.
    Repair: report the fault; the order service looks at the status itself, so the order is as it should be.
    """
    timer = F.col("cancelled_timer_delivered")
    why = says("The timer at log offset %d was cancelled, and delivered.", timer)
    return F.when(timer.isNotNull(), why)


def delivered_before_due() -> Column:
    """The deadline was delivered before its time, and no operator or client had fired it.

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
