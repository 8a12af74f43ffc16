"""Cases of orders that are neither findings nor proven sound: an event is outstanding or out of the log."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.cases.columns import (
    first_message_offset,
    has_row,
    has_waited,
    is_committed,
    is_covered,
    is_too_new,
    says,
)
from spark_jobs.cases.consuming import is_unconsumed, is_unheard
from spark_jobs.cases.deadlines import (
    deadline_held,
    deadline_released,
    is_deadline_held,
    is_deadline_released,
    is_within_its_time,
    own_due_ms,
)


def in_flight() -> Column:
    """Undecided, and not for too long: unpaid within its time, or while an operator holds its deadline; a
    half without an outcome, a message that is not consumed yet, or one that is newer than the reading of the
    database.

    Each waits only up to the bound that makes it a finding (`deadlines`, the limits); a hold has none.
    """
    too_new = ~has_row() & is_too_new(first_message_offset())
    fired = says(
        "A deadline of it fired (log offset %d), and it is neither paid nor timed out nor cancelled yet.",
        "delivered_offset",
    )
    unbounded = F.lit(
        "It is neither paid nor timed out nor cancelled yet; neither its row nor the log says until when it "
        "may wait."
    )
    unread = F.lit("Its entry in the ledger may be newer than the reading of the log and the database.")
    return (
        F.when(too_new, F.lit("Its message is newer than the reading of the database."))
        .when(is_entry_alone() & _is_unread(), unread)
        .when(_is_half_young(), F.lit("A half message of it has no outcome yet."))
        .when(is_unheard() & ~has_waited("delivered_ms", "unconsumed_limit_ms"), fired)
        .when(is_within_its_time() & is_deadline_held(), deadline_held())
        .when(is_within_its_time() & is_deadline_released(), deadline_released())
        .when(is_within_its_time() & own_due_ms().isNull() & ~_is_unknown(), unbounded)
        .when(
            is_within_its_time() & own_due_ms().isNotNull(),
            F.lit("It is neither paid nor timed out nor cancelled yet."),
        )
        .when(
            is_unconsumed() & ~has_waited("committed_ms", "unconsumed_limit_ms"),
            says("Its message in %s is not acknowledged yet.", "created_topic"),
        )
    )


def _is_unknown() -> Column:
    """Return whether the row has no time of placing and the log has no committed order-created message."""
    return F.col("placed_ms").isNull() & ~is_committed()


def _is_half_young() -> Column:
    return F.col("open_half_offset").isNotNull() & ~has_waited("open_half_ms", "undecided_limit_ms")


def not_covered() -> Column:
    """The order is older than what there is of the log, so whether there was a message cannot be said.

    Retention deleted that part, or there was no log yet: then by more than the grace, since the first order's
    row may have been written by a clock that is behind. Or its row does not say when it was placed. Or a
    ledger has an entry of it, and neither the database nor the log has the order: a view or an archive may
    leave it out.
    """
    entry = says(
        "The ledger of customer %s has an entry of it; the database has no such order, and the log no "
        "message of it: a view or an archive may leave it out.",
        "cleared_customer_first",
    )
    older = "It was placed before what there is of the log: whether its message was there cannot be said."
    undated = (
        "Its row does not say when it was placed, and the log has no message of it: whether one was there "
        "before what there is of the log cannot be said."
    )
    why = F.when(F.col("placed_ms").isNull(), undated).otherwise(F.lit(older))
    is_known = F.coalesce(is_covered(F.col("placed_ms")), F.lit(False))
    is_unknown = has_row() & ~is_committed() & ~is_known
    return F.when(is_unknown, why).when(is_entry_alone() & ~_is_unread(), entry)


def is_entry_alone() -> Column:
    """Return whether only the ledger contains the order; halves rolled back or expired do not count."""
    is_told = first_message_offset().isNotNull() | F.col("open_half_offset").isNotNull()
    return ~has_row() & ~is_told & F.col("cleared_ms").isNotNull()


def _is_unread() -> Column:
    """Return whether a ledger entry may be newer than the log's end and the database, by its writer's clock.

    Carts are read after both.
    """
    return F.col("cleared_ms") >= F.col("read_ms") - F.col("grace_ms")
