"""All cases of orders in the order in which they are tried, and what each finding means.

The idea: a case is a function without arguments that returns one column over a row of the books: the sentence
why the case holds, or null. It looks at no other row, so all cases of an order are judged in one pass.

Rules:
- Every order is in the first case of `ALL_CASES` that holds; others that hold stay in `also`. So the counts
  by case add up to the count of orders.
- What may still come right by itself (`in-flight`) and what nobody can see any more (`not-covered`) stand
  behind all findings, and an order in no case balances.
- A comparison with null is null, which counts as "does not hold": each case has to ask for what it needs.
- The docstring of a case is data: what it means, `Wrong:` who, `Repair:` how (`MEANINGS`).

Cost: all cases become one generated method of Java, too large for its compiler by default (`session`).

Limitation: precedence hides. An order whose first case is repaired may show its next only in the next audit,
unless somebody reads `also`.
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
"""Says of a row of the books why the case holds, or null."""

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
    """What a finding says, who is wrong, and how it is repaired: the case's docstring."""

    what: str
    wrong: str
    repair: str


def verdicts(books: DataFrame) -> DataFrame:
    """Return the books with each order's `case`, `why` (null if it is balanced), and the other cases in
    `also`.
    """
    return told(judged(books))


def judged(books: DataFrame) -> DataFrame:
    """Return the books with a column for each case: why it holds, or null.

    All at once, since Spark looks through all columns again for each that is added by itself.
    """
    return books.withColumns(_case_columns(books.sparkSession.sparkContext))


@lru_cache(maxsize=1)
def _case_columns(java: SparkContext) -> dict[str, Column]:
    """Return the column of each case; it depends on no data, and lives as long as the Java of its context.

    They are made once for each Java, since making them takes 6,000 calls of it.
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
"""By the name of the case."""
