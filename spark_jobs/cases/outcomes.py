"""Cases of the outcomes of half messages, compared with the database."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.cases.columns import (
    TOPIC_WORDS,
    duration,
    flag,
    has_row,
    has_waited,
    is_committed,
    is_covered,
    is_too_new,
    says,
    status_word,
)


def outcome_contradicts_database() -> Column:
    """The broker and the database disagree on how a transaction ended: the half of order-created was rolled
    back or expired and the row is there; or the row says paid (or cancelled) and no such message was
    committed; or such a message was, and the row says nothing of it, or says it in one column only: it has
    the time of another end than its status. Or the row has timed out, and its deadline was not delivered
    before; or was, then set again for later, and not delivered again.

    Wrong: the order service, which answered a check-back wrongly or wrote outside of the transaction; or
    an operator, who changed the row by hand.
    Repair: the database decides; send the missing message, or undo what the wrong one has caused. An operator
    has to decide whether an order stands that timed out without its deadline.
    """
    return F.coalesce(
        F.when(_is_rolled_back() & has_row(), _rolled_back()),
        F.when(_is_paid(), _unsaid("paid")),
        F.when(_is_cancelled(), _unsaid("cancelled")),
        F.when(_is_timed_out() & ~_is_paid(), _unfired()),
        F.when(_is_timed_out() & ~_is_paid(), _cut_short()),
        F.when(~_is_paid(), _unwritten("paid")),
        F.when(~_is_cancelled(), _unwritten("cancelled")),
        F.when(
            _is_half_written(),
            says("Its status is %s, and its row has the time of another one.", status_word()),
        ),
    )


def half_unresolved() -> Column:
    """A half of the order has no outcome and is older than the limit.

    Wrong: the order service, which neither ended it nor answers the broker's check-backs.
    Repair: start the service; or resolve the half as the database says (`tidewheel txn resolve`).
    """
    names = F.element_at(F.array(*TOPIC_WORDS.values()), F.col("open_half_topic").cast("int") + 1)
    waited = duration(F.col("as_of_ms") - F.col("open_half_ms"))
    why = says(
        "The half of %s at log offset %d has no outcome after %s.", names, F.col("open_half_offset"), waited
    )
    return F.when(has_waited("open_half_ms", "undecided_limit_ms"), why)


def _is_rolled_back() -> Column:
    ended = F.coalesce("rollback_offset", "expired_offset")
    return ~is_committed() & ended.isNotNull() & ~flag("has_open_created")


def _rolled_back() -> Column:
    return F.when(
        F.col("rollback_offset").isNotNull(),
        says("Its half was rolled back at log offset %d; the database has the order.", "rollback_offset"),
    ).otherwise(says("Its half expired at log offset %d; the database has the order.", "expired_offset"))


def _is_paid() -> Column:
    return F.col("paid_ms").isNotNull() | (F.col("status") == "PAID")


def _is_cancelled() -> Column:
    return F.col("cancelled_ms").isNotNull() | (F.col("status") == "CANCELLED")


def _is_timed_out() -> Column:
    return (F.col("status") == "TIMED_OUT") | F.col("timed_out_ms").isNotNull()


def _unfired() -> Column:
    """Return why a timed-out row has no deadline before it, if the log covers the order; else null.

    The row's time and that of the delivery come from two clocks, which differ by the grace at most.
    """
    came_ms, topic = F.col("deadline_came_ms"), F.col("timeouts_topic")
    early_ms = came_ms - F.col("timed_out_ms")
    is_unfired = came_ms.isNull() | F.coalesce(early_ms > F.col("grace_ms"), F.lit(False))
    is_known = is_covered(F.coalesce("placed_ms", "due_ms", "timed_out_ms", "committed_ms")) & (topic != "")
    cancelled = "The database says timed out; its deadline in %s was cancelled, at log offset %d."
    why = (
        F.when(
            came_ms.isNotNull(),
            says(
                "The database says timed out, %s before its deadline in %s came.", duration(early_ms), topic
            ),
        )
        .when(F.col("timer_cancel_offset").isNotNull(), says(cancelled, topic, F.col("timer_cancel_offset")))
        .otherwise(says("The database says timed out; the log has no delivery of its deadline in %s.", topic))
    )
    return F.when(is_unfired & is_known, why)


def _cut_short() -> Column:
    """Return why a timed-out row had time left, else null: its deadline came, was set again, and did not come
    again before.

    The row's time and that of the log differ by the grace at most. A row without a time of its timeout had
    time left if the deadline is open and the due time of the row is more than the grace away.
    """
    set_ms, ended_ms = F.col("timer_ms"), F.col("timed_out_ms")
    is_reset = (F.coalesce("timers", F.lit(0)) > 1) & (set_ms > F.col("deadline_came_ms"))
    came_again_ms = F.when(F.col("last_delivered_ms") > set_ms, F.col("last_delivered_ms"))
    is_before = came_again_ms.isNull() | (ended_ms < came_again_ms - F.col("grace_ms"))
    is_after = (ended_ms > set_ms + F.col("grace_ms")) & is_before
    is_undated = ended_ms.isNull() & came_again_ms.isNull() & F.col("open_timer_offset").isNotNull()
    is_early = is_undated & (F.col("due_ms") > F.col("as_of_ms") + F.col("grace_ms"))
    why = says(
        "The database says timed out; its deadline in %s came, was set again at log offset %d, and had not "
        "come again.",
        "timeouts_topic",
        "timer_offset",
    )
    return F.when(is_reset & F.coalesce(is_after, is_early, F.lit(False)), why)


def _is_half_written() -> Column:
    """Return whether the row has the time of an end that does not match its status.

    An order that was paid, or had timed out, may be cancelled later. Paid and timed out is a separate case.
    """
    ended_ms = F.coalesce("paid_ms", "timed_out_ms", "cancelled_ms")
    is_still_placed = (F.col("status") == "PLACED") & ended_ms.isNotNull()
    is_undone = F.col("status").isin("PAID", "TIMED_OUT") & F.col("cancelled_ms").isNotNull()
    return is_still_placed | is_undone


def _unsaid(what: str) -> Column:
    """Return why a paid or cancelled row has no message, if the log would contain the message; else null.

    Without such a topic in the mapping, no message is expected. A row without a time is as old as the order.
    """
    at_ms = F.coalesce(f"{what}_ms", "placed_ms", "committed_ms")
    ended = F.col(f"{what}_end_offset")
    topic = F.col(f"{what}_topic")
    is_unsaid = (
        F.col(f"{what}_offset").isNull() & ~flag(f"has_open_{what}") & is_covered(at_ms) & (topic != "")
    )
    by_time = says(" by its time, with the status %s", status_word())
    how = F.when(F.col("status") == what.upper(), F.lit("")).otherwise(by_time)
    found = says(
        f"The database says {what}%s; the half of %s was ended without it at log offset %d.",
        how,
        topic,
        ended,
    )
    none = says(f"The database says {what}%s; the log has no message of it in %s.", how, topic)
    return F.when(is_unsaid, F.when(ended.isNotNull(), found).otherwise(none))


def _unwritten(what: str) -> Column:
    """Return why a row that is not paid or cancelled contradicts a committed message, if any; else null."""
    offset = F.col(f"{what}_offset")
    is_unwritten = has_row() & offset.isNotNull() & ~is_too_new(offset)
    said = f"Its message in %s is committed at log offset %d; the database does not say {what}."
    why = says(said, F.col(f"{what}_topic"), offset)
    return F.when(is_unwritten, why)
