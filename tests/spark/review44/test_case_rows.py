"""Rows that the cases called `balanced`, or `in-flight`, and that are not.

Each is an order of `tests.spark.test_cases` with a few changes, judged together with the others.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs.cases.table import verdicts
from tests.spark.test_cases import (
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
