"""Rows that the cases called `balanced`, or `in-flight`, and that are not.

Each is an order of `tests.spark.test_cases` with a few changes, judged together with the others.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.cases.table import verdicts
from tests.spark.test_cases import (
    AS_OF_MS,
    CALLED_OFF,
    DUE_MS,
    MINUTE_MS,
    NO_MESSAGE,
    NO_TIMER,
    PLACED,
    PLACED_MS,
    TIMED_OUT,
    UNCONSUMED,
    UNDELIVERED,
    UNPAID,
    Changes,
    frame,
)

CONTRADICTS = "outcome-contradicts-database"
UNDATED: Changes = {"placed_ms": None, "due_ms": None, "paid_ms": None}
WHOLE_LOG: Changes = {"covered_from_ms": PLACED_MS - 120_000}
"""The log of a store of which nothing was deleted."""
LATER_MS = AS_OF_MS + 60 * MINUTE_MS
REARMED: Changes = (
    TIMED_OUT
    | {"status": "PLACED", "timed_out_ms": None, "timers": 2, "is_rearmed": True, "timer_due_ms": LATER_MS}
    | {"open_timer_offset": 900, "open_timer_due_ms": LATER_MS, "open_timer_ms": PLACED_MS + 2 * MINUTE_MS}
)
SET_AGAIN_MS = PLACED_MS + 2 * MINUTE_MS
CUT_SHORT_MS = SET_AGAIN_MS + 2 * MINUTE_MS
CUT_SHORT: Changes = REARMED | {
    "status": "TIMED_OUT",
    "timed_out_ms": CUT_SHORT_MS,
    "timer_ms": SET_AGAIN_MS,
}
NO_OPEN_TIMER: Changes = dict.fromkeys(("open_timer_offset", "open_timer_due_ms", "open_timer_ms"))

ROWS: dict[str, tuple[str, Changes]] = {
    # Somebody wrote the status alone. The page: "paid (cancelled) by one of row and message alone".
    "cancelled by its status, no message": (CONTRADICTS, UNPAID | {"status": "CANCELLED"}),
    "cancelled by its status after a payment": (CONTRADICTS, {"status": "CANCELLED"}),
    "cancelled by its status, placed before the log": (
        "balanced",
        UNPAID | {"status": "CANCELLED", "covered_from_ms": PLACED_MS + 1},
    ),
    "cancelled by its status, and told": (
        "balanced",
        UNPAID | {"status": "CANCELLED", "cancelled_offset": 500},
    ),
    "cancelled by its status, where nobody sends cancellations": (
        "balanced",
        UNPAID | {"status": "CANCELLED", "cancelled_topic": ""},
    ),
    # The cancellation is told and its time is in the row; the status was put back: it counts as paid again.
    "cancelled, and paid again by its status": (
        CONTRADICTS,
        {"cancelled_ms": PLACED_MS + 9_000, "cancelled_offset": 700},
    ),
    "cancelled, and timed out by its status": (
        CONTRADICTS,
        TIMED_OUT | {"cancelled_ms": PLACED_MS + 9_000, "cancelled_offset": 700},
    ),
    "paid, then cancelled": (
        "balanced",
        {"status": "CANCELLED", "cancelled_ms": PLACED_MS + 9_000, "cancelled_offset": 700},
    ),
    "timed out, with the time of a payment that is not told": (
        CONTRADICTS,
        TIMED_OUT | {"paid_ms": PLACED_MS + 5_000},
    ),
    # A row without the time of its placing, and no message at all: nobody can say that it balances.
    "no times, no message, paid": (
        "not-covered",
        NO_MESSAGE | UNCONSUMED | UNDATED | WHOLE_LOG | {"paid_offset": None},
    ),
    "no times, no message, timed out": (
        "not-covered",
        NO_MESSAGE | UNCONSUMED | TIMED_OUT | UNDELIVERED | NO_TIMER | UNDATED | WHOLE_LOG
        | {"timed_out_ms": None},
    ),
    "no times, no message, placed": (
        "not-covered",
        NO_MESSAGE | UNCONSUMED | PLACED | NO_TIMER | UNDATED | WHOLE_LOG,
    ),
    # The message says when it began, so the log has what came after.
    "no times, paid without a message": (CONTRADICTS, UNDATED | WHOLE_LOG | {"paid_offset": None}),
    "no times, timed out without a deadline": (
        CONTRADICTS,
        TIMED_OUT | UNDELIVERED | NO_TIMER | UNDATED | WHOLE_LOG | {"timed_out_ms": None},
    ),
    "no times, and all is told": ("balanced", UNDATED | WHOLE_LOG),
    # The order service heard the deadline, gave the customer more time, and set another one.
    "deadline came, set again for later": ("in-flight", REARMED | {"due_ms": LATER_MS}),
    "deadline came, set again, overdue": (
        "timeout-not-fired",
        REARMED | {"open_timer_due_ms": AS_OF_MS - MINUTE_MS - 1},
    ),
    "deadline came, set again, cancelled, overdue": (
        "timeout-not-fired",
        REARMED | CALLED_OFF | dict.fromkeys(("open_timer_offset", "open_timer_due_ms", "open_timer_ms"))
        | dict.fromkeys(("due_ms", "timer_due_ms"), AS_OF_MS - 3 * MINUTE_MS),
    ),
    # Moved to tomorrow by mistake, then cancelled by a call: nothing is going to end its waiting.
    "deadline moved to later, then called off": (
        "timeout-not-fired",
        PLACED | CALLED_OFF | {"timers": 2, "timer_due_ms": LATER_MS},
    ),
    # Somebody wrote the status while the second deadline was still to come.
    "deadline came, set again, timed out by hand": (CONTRADICTS, CUT_SHORT),
    "deadline came, set again, timed out by hand, came then": (
        CONTRADICTS,
        CUT_SHORT | NO_OPEN_TIMER | {"is_rearmed": False, "last_delivered_ms": CUT_SHORT_MS + 2 * MINUTE_MS},
    ),
    "deadline came, set again, came, timed out": (
        "balanced",
        CUT_SHORT | NO_OPEN_TIMER | {"is_rearmed": False, "last_delivered_ms": CUT_SHORT_MS - 1},
    ),
    "deadline came, timed out, set again for nothing": (
        "balanced",
        CUT_SHORT | NO_OPEN_TIMER | {"timed_out_ms": DUE_MS + 50},
    ),
    "deadline came, set again, timed out, by clocks that are apart": (
        "balanced",
        CUT_SHORT | NO_OPEN_TIMER | {"timed_out_ms": SET_AGAIN_MS + MINUTE_MS},
    ),
    "deadline came, set again, timed out without its time": (
        CONTRADICTS,
        CUT_SHORT | {"timed_out_ms": None, "due_ms": LATER_MS},
    ),
    "deadline came, set again, timed out without its time, nobody knows": (
        "balanced",
        CUT_SHORT | {"timed_out_ms": None},
    ),
    "deadline came, nobody heard": ("never-delivered", REARMED | {"is_rearmed": False}),
    "no times, placed, its message there": ("in-flight", PLACED | NO_TIMER | UNDATED | WHOLE_LOG),
}  # fmt: skip


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> dict[str, Any]:
    books = frame(spark, {name: changes for name, (_, changes) in ROWS.items()})
    return {row["order_id"]: row for row in verdicts(books).select("order_id", "case", "why").collect()}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_in_the_case_that_it_was_made_for(judged: dict[str, Any], name: str) -> None:
    expected, _ = ROWS[name]
    assert judged[name]["case"] == expected
    assert (judged[name]["why"] is None) == (expected == "balanced")


def test_a_payment_that_only_a_time_says_is_told_with_the_status(judged: dict[str, Any]) -> None:
    """A status of another end beside "the database says paid" would read as a mistake of the audit."""
    why = judged["timed out, with the time of a payment that is not told"]["why"]
    assert why.startswith("The database says paid by its time, with the status ")
    assert "; the log has no message of it in " in why
