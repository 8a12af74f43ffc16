"""All cases of orders in order of precedence, and the meaning of each finding.

The idea: a case is a function without arguments that returns one column over a row of the books: the reason
for which the case holds as a sentence, or null. It reads no other row, so all cases of an order are judged in
one pass.

Rules:
- Every order is in the first case of `ALL_CASES` that holds. Other cases that hold are listed in `also`. So
  the counts by case add up to the count of orders.
- The cases of orders that may still become sound (`in-flight`), or that the log no longer covers
  (`not-covered`), follow all findings. An order in no case is balanced.
- A comparison with null is null, which counts as "does not hold". Each case must check what it needs.
- The docstring of a case is data: its meaning, the faulty party (`Wrong:`), and the repair (`Repair:`), as
  parsed into `MEANINGS`.

Cost: all cases become one generated Java method, which exceeds the size limit of the JIT compiler by default
(`session`).

Limitation: precedence hides cases. After the repair of its first case, an order may show the next one only in
the next audit. Until then, `also` is the only sign of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Final

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.cases import carts, consuming, deadlines, messages, names, outcomes, pushes, waiting

Case = Callable[[], Column]
"""Returns a column over the books: the reason for which the case holds, or null."""

ALL_CASES: Final[dict[str, Case]] = {
    names.ORDER_WITHOUT_MESSAGE: messages.order_without_message,
    names.MESSAGE_WITHOUT_ORDER: messages.message_without_order,
    names.OUTCOME_CONTRADICTS_DATABASE: outcomes.outcome_contradicts_database,
    names.HALF_UNRESOLVED: outcomes.half_unresolved,
    names.EFFECT_TWICE: carts.effect_twice,
    names.LEDGER_ENTRY_MISSING: carts.ledger_entry_missing,
    names.CART_NOT_CLEARED: carts.cart_not_cleared,
    names.PAID_BUT_TIMED_OUT: deadlines.paid_but_timed_out,
    names.TIMEOUT_NOT_FIRED: deadlines.timeout_not_fired,
    names.ARMED_LATE: deadlines.armed_late,
    names.FIRED_LATE: deadlines.fired_late,
    names.TIMED_OUT_LATE: deadlines.timed_out_late,
    names.CANCELLED_YET_DELIVERED: deadlines.cancelled_yet_delivered,
    names.DELIVERED_BEFORE_DUE: deadlines.delivered_before_due,
    names.NEVER_DELIVERED: consuming.never_delivered,
    names.DEAD_LETTERED: consuming.dead_lettered,
    names.FIFO_GAP: consuming.fifo_gap,
    names.IN_FLIGHT: waiting.in_flight,
    names.NOT_COVERED: waiting.not_covered,
}


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a finding, the faulty party, and the repair, from the docstring of the case."""

    what: str
    wrong: str
    repair: str


def verdicts(books: DataFrame) -> DataFrame:
    """Return the books with each order's `case`, `why` (null if balanced), and other cases in `also`."""
    return told(judged(books))


def judged(books: DataFrame) -> DataFrame:
    """Return the books with a column for each case: the reason for which it holds, or null.

    All columns are added at once, since Spark analyses all columns again for each single addition.
    """
    return books.withColumns(_case_columns(books.sparkSession.sparkContext))


@lru_cache(maxsize=1)
def _case_columns(java: SparkContext) -> dict[str, Column]:
    """Return the column of each case. A column depends on no data, and is valid for its SparkContext.

    The columns are cached for the current context, because creating them takes 6,000 calls to Java.
    """
    return {name: case() for name, case in ALL_CASES.items()}


def holds_any() -> Column:
    """Return whether a judged order is in any case."""
    return reduce(lambda one, other: one | other, (F.col(name).isNotNull() for name in ALL_CASES))


def told(judged: DataFrame) -> DataFrame:
    """Return `case`, `why` and `also` in place of the columns of the cases."""
    holding = F.array_compact(F.array(*(F.when(F.col(name).isNotNull(), F.lit(name)) for name in ALL_CASES)))
    return (
        judged.withColumn("holding", holding)
        .withColumn("case", F.coalesce(F.get("holding", 0), F.lit(names.BALANCED)))
        .withColumn("why", F.coalesce(*ALL_CASES))
        .withColumn("also", F.slice("holding", 2, len(ALL_CASES)))
        .drop("holding", *ALL_CASES)
    )


def meaning(function: Callable[..., object]) -> Meaning:
    """Return the three parts of a case's docstring."""
    text = " ".join((inspect.getdoc(function) or "").split())
    what, _, rest = text.partition(" Wrong: ")
    wrong, _, repair = rest.partition(" Repair: ")
    return Meaning(what, wrong, repair)


MEANINGS: Final = {
    **{name: meaning(case) for name, case in ALL_CASES.items()},
    names.PUSHES_DO_NOT_SUM: meaning(pushes.pushes_do_not_sum),
    names.CART_DIFFERENCE: Meaning(
        "A cart does not hold what its ledger says, and no order of those audited explains the difference.",
        "whatever changes carts without writing the ledger.",
        "look by hand; the ledger has every change with its time.",
    ),
    names.BALANCED: Meaning("Database, messages and cart agree.", "", ""),
}
"""Meanings of cases by name."""
