"""Every case on rows made for it: where it holds, where it just does not, and which of two comes first.

All rows are judged at once. A row is an order that balances, with a few changes; its id says what they are.
"""

from __future__ import annotations

import random
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.books.exact import EXACT
from spark_jobs.cases import names
from spark_jobs.cases.columns import STATUS_WORDS, TOPIC_WORDS
from spark_jobs.cases.pushes import pushes_do_not_sum, sums
from spark_jobs.cases.table import ALL_CASES, MEANINGS, verdicts
from spark_jobs.plan.reasons import UNSAFE
from spark_jobs.report.meanings import MEANINGS as REPORTED
from spark_jobs.staging.holds import TopicHold
from spark_jobs.staging.order_facts import ORDER_FACTS

MINUTE_MS = 60_000
PLACED_MS = 1_700_000_000_000
DUE_MS = PLACED_MS + MINUTE_MS
AS_OF_MS = PLACED_MS + 10 * 60 * MINUTE_MS
BOOKS_OFFSET = 10_000
Changes = dict[str, Any]

SQL = {"int64": "bigint", "int8": "tinyint", "bool": "boolean", "string": "string"}
COLUMNS = {
    "order_id": "string",
    "has_row": "boolean",
    **dict.fromkeys(("customer_id", "status"), "string"),
    **dict.fromkeys(
        ("total_pence", "placed_ms", "due_ms", "paid_ms", "timed_out_ms", "cancelled_ms"), "bigint"
    ),
    **{fact.name: "bigint" for fact in ORDER_FACTS},
    **{field.name: SQL[str(field.type)] for field in EXACT if field.name != "order_id"},
    "is_consumed": "boolean",
    "fifo_gap_offset": "bigint",
    "cleared_ms": "bigint",
    **dict.fromkeys(("cleared_customer_first", "cleared_customer_last"), "string"),
    "surplus": "array<struct<sku:string,cart:bigint,ledger:bigint>>",
    "unwritten": "array<struct<sku:string,quantity:bigint>>",
    "overtaken": "array<struct<sku:string,entries:bigint,taken:bigint,ordered:bigint>>",
    **dict.fromkeys(("books_offset", "covered_from_ms", "as_of_ms", "has_carts", "grace_ms"), "bigint"),
    "read_ms": "bigint",
    **dict.fromkeys(TopicHold._fields, "bigint"),
    **dict.fromkeys(("undecided_limit_ms", "late_limit_ms", "unconsumed_limit_ms"), "bigint"),
    **dict.fromkeys((*TOPIC_WORDS.values(), *STATUS_WORDS.values()), "string"),
}

PAID: Changes = {
    "has_row": True,
    "customer_id": "c",
    "status": "PAID",
    "placed_ms": PLACED_MS,
    "due_ms": PLACED_MS + MINUTE_MS,
    "paid_ms": PLACED_MS + 5_000,
    "half_offset": 100,
    "half_ms": PLACED_MS,
    "committed_offset": 200,
    "committed_ms": PLACED_MS + 10,
    "timer_offset": 300,
    "timer_due_ms": DUE_MS,
    "late_timer_offset": 300,
    "late_due_ms": DUE_MS,
    "late_half_ms": PLACED_MS + 2,
    "late_armed_ms": PLACED_MS + 10,
    "timer_cancel_offset": 500,
    "paid_offset": 500,
    "is_consumed": True,
    "cleared_ms": PLACED_MS + 100,
    "cleared_customer_first": "c",
    "cleared_customer_last": "c",
    "books_offset": BOOKS_OFFSET,
    "covered_from_ms": 0,
    "as_of_ms": AS_OF_MS,
    "has_carts": 1,
    "read_ms": AS_OF_MS,
    "grace_ms": MINUTE_MS,
    "undecided_limit_ms": 10 * MINUTE_MS,
    "late_limit_ms": MINUTE_MS,
    "unconsumed_limit_ms": 60 * MINUTE_MS,
    **{word: f"own {topic}" for topic, word in TOPIC_WORDS.items()},
    **{word: f"own {status}" for status, word in STATUS_WORDS.items()},
}
UNPAID: Changes = {"paid_ms": None, "paid_offset": None, "timer_cancel_offset": None}
PLACED: Changes = UNPAID | {"status": "PLACED"}
TIMED_OUT: Changes = UNPAID | {
    "status": "TIMED_OUT",
    "timed_out_ms": PLACED_MS + MINUTE_MS + 50,
    "delivered_offset": 600,
    "delivered_ms": PLACED_MS + MINUTE_MS + 7,
    "deadline_came_ms": DUE_MS + 7,
    "last_delivered_ms": DUE_MS + 7,
    "late_delivered_ms": DUE_MS + 7,
    "late_ms_max": 7,
    "late_ms_min": 7,
}
UNDELIVERED: Changes = dict.fromkeys(
    ("delivered_offset", "delivered_ms", "deadline_came_ms", "last_delivered_ms", "late_delivered_ms")
)
CALLED_OFF: Changes = {"last_cancel_offset": 400, "last_cancel_ms": PLACED_MS + 9, "is_called_off": True}
LATE: Changes = dict.fromkeys(
    ("late_timer_offset", "late_due_ms", "late_half_ms", "late_armed_ms", "late_delivered_ms")
)
NO_TIMER: Changes = {"timer_offset": None, "timer_due_ms": None} | LATE
NO_ROW: Changes = dict.fromkeys(("status", "placed_ms", "due_ms", "paid_ms")) | {"has_row": False}
NO_MESSAGE: Changes = dict.fromkeys(("half_offset", "half_ms", "committed_offset", "committed_ms"))
UNCLEARED: Changes = dict.fromkeys(("cleared_ms", "cleared_customer_first", "cleared_customer_last"))
UNCONSUMED: Changes = UNCLEARED | {"is_consumed": False}
OPEN_HALF: Changes = {"open_half_offset": 100, "open_half_topic": 0, "has_open_created": True}
OLD_HALF: Changes = OPEN_HALF | {"open_half_ms": AS_OF_MS - 11 * MINUTE_MS}
YOUNG_HALF: Changes = OPEN_HALF | {"open_half_ms": AS_OF_MS - 9 * MINUTE_MS}
ROLLED_BACK: Changes = NO_MESSAGE | {"half_offset": 100, "rollback_offset": 150}


def surplus(cart: int, ledger: int) -> Changes:
    return {"surplus": [("apple", cart, ledger)]}


def steps(armed: int, delivered: int | None = None, half: int | None = None) -> Changes:
    """The steps of a deadline, in seconds after it was due."""
    at = {"late_armed_ms": armed, "late_delivered_ms": delivered}
    at |= {} if half is None else {"late_half_ms": half}
    return {name: None if seconds is None else DUE_MS + 1_000 * seconds for name, seconds in at.items()}


def set_late(armed_ms: int) -> Changes:
    """A deadline that was due long ago, was set then and has not come."""
    due_ms = AS_OF_MS - 5 * MINUTE_MS
    open_timer = {"open_timer_offset": 300, "open_timer_due_ms": due_ms, "open_timer_ms": armed_ms}
    return PLACED | open_timer | {"due_ms": due_ms, "late_due_ms": due_ms, "late_armed_ms": armed_ms}


def held(due_ms: int = AS_OF_MS - 10 * MINUTE_MS, **changes: int | None) -> Changes:
    """A deadline that was due and held, and waits; `hold_ms` and the like are its topic's."""
    open_timer = {"open_timer_offset": 300, "open_timer_due_ms": due_ms, "open_timer_ms": PLACED_MS}
    return PLACED | open_timer | {"due_ms": due_ms, "timers": 2, "open_timer_held_ms": due_ms} | changes


def released(released_ms: int, done_ms: int | None = None) -> Changes:
    """The same after a release."""
    return held(released_ms=released_ms, release_done_ms=done_ms or released_ms)


ROWS: dict[str, tuple[str, Changes]] = {
    "paid": ("balanced", {}),
    "timed out": ("balanced", TIMED_OUT),
    "cancelled": (
        "balanced",
        UNPAID | {"status": "CANCELLED", "cancelled_ms": PLACED_MS + 9, "cancelled_offset": 500},
    ),
    "row only": ("order-without-message", NO_MESSAGE | UNCONSUMED),
    "row only, half open": ("in-flight", NO_MESSAGE | UNCONSUMED | YOUNG_HALF),
    "row only, before the log": ("not-covered", NO_MESSAGE | {"covered_from_ms": PLACED_MS + 1}),
    "row only, within grace": ("not-covered", NO_MESSAGE | {"covered_from_ms": PLACED_MS - MINUTE_MS + 1}),
    "row only, behind grace": (
        "order-without-message",
        NO_MESSAGE | {"covered_from_ms": PLACED_MS - MINUTE_MS},
    ),
    "message only": ("message-without-order", NO_ROW),
    "message only, too new": ("in-flight", NO_ROW | {"committed_offset": BOOKS_OFFSET, "paid_offset": None}),
    "payment only": ("message-without-order", NO_ROW | NO_MESSAGE),
    "rolled back, row": ("outcome-contradicts-database", ROLLED_BACK | UNCONSUMED),
    "expired, row": (
        "outcome-contradicts-database",
        ROLLED_BACK | UNCONSUMED | {"rollback_offset": None, "expired_offset": 150},
    ),
    "rolled back, sent again": ("balanced", {"rollback_offset": 150}),
    "paid, no message": ("outcome-contradicts-database", {"paid_offset": None}),
    "paid, rolled back": ("outcome-contradicts-database", {"paid_offset": None, "paid_end_offset": 480}),
    "paid, half open": (
        "half-unresolved",
        OLD_HALF
        | {"has_open_created": False, "paid_offset": None, "has_open_paid": True, "open_half_topic": 2},
    ),
    "consumed, in a shop without carts": (
        "balanced",
        {"cleared_ms": None, "cleared_customer_first": None, "cleared_customer_last": None, "has_carts": 0},
    ),
    "paid before the log": ("balanced", {"paid_offset": None, "covered_from_ms": PLACED_MS + MINUTE_MS}),
    "paid, where nobody sends payments": ("balanced", {"paid_offset": None, "paid_topic": ""}),
    "cancelled, where nobody sends cancellations": (
        "balanced",
        UNPAID | {"status": "CANCELLED", "cancelled_ms": PLACED_MS, "cancelled_topic": ""},
    ),
    "payment committed, unpaid": ("outcome-contradicts-database", TIMED_OUT | {"paid_offset": 700}),
    "payment committed, too new": ("in-flight", PLACED | {"paid_offset": BOOKS_OFFSET}),
    "cancelled, no message": (
        "outcome-contradicts-database",
        UNPAID | {"status": "CANCELLED", "cancelled_ms": PLACED_MS},
    ),
    "cancel committed, paid": ("outcome-contradicts-database", {"cancelled_offset": 700}),
    "timed out, no delivery": ("outcome-contradicts-database", TIMED_OUT | UNDELIVERED),
    "timed out, no deadline": ("outcome-contradicts-database", TIMED_OUT | UNDELIVERED | NO_TIMER),
    "timed out, its deadline cancelled": (
        "outcome-contradicts-database",
        TIMED_OUT | UNDELIVERED | {"timer_cancel_offset": 500},
    ),
    "timed out by its status alone, no delivery": (
        "outcome-contradicts-database",
        TIMED_OUT | UNDELIVERED | {"timed_out_ms": None},
    ),
    "timed out before its deadline came": (
        "outcome-contradicts-database",
        TIMED_OUT | {"timed_out_ms": DUE_MS + 7 - MINUTE_MS - 1},
    ),
    "timed out by another clock": ("balanced", TIMED_OUT | {"timed_out_ms": DUE_MS + 7 - MINUTE_MS}),
    "timed out by a message without a delay": (
        "balanced",
        TIMED_OUT | UNDELIVERED | NO_TIMER | {"deadline_came_ms": DUE_MS + 7},
    ),
    "timed out, placed before the log": (
        "balanced",
        TIMED_OUT | UNDELIVERED | {"covered_from_ms": PLACED_MS + 1},
    ),
    "timed out, where nobody sets deadlines": ("balanced", TIMED_OUT | UNDELIVERED | {"timeouts_topic": ""}),
    "half open long": ("half-unresolved", NO_MESSAGE | UNCONSUMED | OLD_HALF),
    "half open long, no row": ("half-unresolved", NO_ROW | NO_MESSAGE | OLD_HALF | {"paid_offset": None}),
    "half open, no row": ("in-flight", NO_ROW | NO_MESSAGE | YOUNG_HALF | {"paid_offset": None}),
    "cart too small": ("effect-twice", surplus(0, 1)),
    "two customers": ("effect-twice", {"cleared_customer_last": "d"}),
    "two commits": ("effect-twice", {"twice_committed_offset": 100}),
    "two deliveries": ("effect-twice", TIMED_OUT | {"twice_delivered_offset": 300}),
    "cart too full": ("cart-not-cleared", surplus(2, 1)),
    "no entry": ("cart-not-cleared", UNCLEARED),
    "no entry, and the cart was changed": (
        "ledger-entry-missing",
        UNCLEARED | {"unwritten": [("apple", 1)]},
    ),
    "paid and timed out": ("paid-but-timed-out", {"timed_out_ms": PLACED_MS + MINUTE_MS}),
    "paid by its status, timed out by a time": (
        "paid-but-timed-out",
        {"paid_ms": None, "timed_out_ms": PLACED_MS + MINUTE_MS},
    ),
    "overdue": (
        "timeout-not-fired",
        PLACED | {"open_timer_offset": 300, "open_timer_due_ms": AS_OF_MS - MINUTE_MS - 1},
    ),
    "held": ("in-flight", held(hold_ms=AS_OF_MS - 20 * MINUTE_MS)),
    "held, the hold before the log": ("in-flight", held()),
    "due in a hold, not yet written as held": (
        "in-flight",
        held(hold_ms=AS_OF_MS - 20 * MINUTE_MS, open_timer_held_ms=None),
    ),
    "overdue before the hold": (
        "timeout-not-fired",
        held(hold_ms=AS_OF_MS - 10 * MINUTE_MS + 1, open_timer_held_ms=None),
    ),
    "released just now": ("in-flight", released(AS_OF_MS - MINUTE_MS)),
    "released, and not delivered": ("timeout-not-fired", released(AS_OF_MS - MINUTE_MS - 1)),
    "released at a pace": ("in-flight", released(AS_OF_MS - 5 * MINUTE_MS, AS_OF_MS - MINUTE_MS)),
    "released at a pace, and not delivered": (
        "timeout-not-fired",
        released(AS_OF_MS - 5 * MINUTE_MS, AS_OF_MS - MINUTE_MS - 1),
    ),
    "just due": (
        "in-flight",
        PLACED
        | {"due_ms": AS_OF_MS - MINUTE_MS}
        | {"open_timer_offset": 300, "open_timer_due_ms": AS_OF_MS - MINUTE_MS},
    ),
    "deadline never set": ("timeout-not-fired", PLACED | NO_TIMER),
    "deadline never set, just due": ("in-flight", PLACED | NO_TIMER | {"due_ms": AS_OF_MS - 2 * MINUTE_MS}),
    "deadline never set, just over": (
        "timeout-not-fired",
        PLACED | NO_TIMER | {"due_ms": AS_OF_MS - 2 * MINUTE_MS - 1},
    ),
    "deadline cancelled, unpaid": ("timeout-not-fired", PLACED | {"timer_cancel_offset": 400}),
    "deadline called off, unpaid": ("timeout-not-fired", PLACED | CALLED_OFF),
    "deadline cancelled, no due time in the row": (
        "timeout-not-fired",
        PLACED | {"timer_cancel_offset": 400, "due_ms": None},
    ),
    "deadline set for later than the order's own": (
        "timeout-not-fired",
        PLACED | {"open_timer_offset": 300, "open_timer_due_ms": AS_OF_MS + 1, "timer_due_ms": AS_OF_MS + 1},
    ),
    "deadline moved to later": (
        "in-flight",
        PLACED
        | {"open_timer_offset": 300, "open_timer_due_ms": AS_OF_MS + 1, "timer_due_ms": AS_OF_MS + 1}
        | {"timers": 2},
    ),
    "half of the deadline open": (
        "in-flight",
        PLACED | NO_TIMER | YOUNG_HALF | {"has_open_created": False, "open_half_topic": 1},
    ),
    "half of a payment open, overdue": (
        "timeout-not-fired",
        PLACED | NO_TIMER | YOUNG_HALF | {"has_open_created": False, "open_half_topic": 2},
    ),
    "overdue, its deadline deleted": (
        "timeout-not-fired",
        PLACED | NO_TIMER | NO_MESSAGE | {"covered_from_ms": PLACED_MS + 1},
    ),
    "no due time anywhere": ("in-flight", PLACED | NO_TIMER | {"due_ms": None}),
    "paid at a time, still placed": ("outcome-contradicts-database", {"status": "PLACED"}),
    "dead deadline, redriven, nobody heard": (
        "never-delivered",
        TIMED_OUT
        | {"status": "PLACED", "timed_out_ms": None, "deadline_dead_offset": 9}
        | {"is_deadline_redelivered": True},
    ),
    "late": ("fired-late", TIMED_OUT | {"late_delivered_ms": DUE_MS + MINUTE_MS + 1}),
    "within the limit": ("balanced", TIMED_OUT | {"late_delivered_ms": DUE_MS + MINUTE_MS}),
    "half waited": ("armed-late", TIMED_OUT | steps(armed=70, delivered=71)),
    "half waited within the limit": ("balanced", TIMED_OUT | steps(armed=59, delivered=60)),
    "half sent late": ("armed-late", TIMED_OUT | steps(half=69, armed=70, delivered=71)),
    "sent late without a half": (
        "armed-late",
        TIMED_OUT | steps(armed=70, delivered=71) | {"late_half_ms": None},
    ),
    "set late, then cancelled": ("armed-late", steps(armed=70)),
    "late by both, by its setting more": ("armed-late", TIMED_OUT | steps(armed=40, delivered=70)),
    "late by both, by the broker more": ("fired-late", TIMED_OUT | steps(armed=30, delivered=70)),
    "late by both, each too much": ("armed-late", TIMED_OUT | steps(armed=61, delivered=122)),
    "late, set before the log": (
        "fired-late",
        TIMED_OUT
        | {"late_armed_ms": None, "covered_from_ms": DUE_MS + MINUTE_MS}
        | {"late_delivered_ms": DUE_MS + 2 * MINUTE_MS + 1},
    ),
    "set before the log, perhaps late": (
        "balanced",
        TIMED_OUT
        | {"late_armed_ms": None, "covered_from_ms": DUE_MS + MINUTE_MS}
        | {"late_delivered_ms": DUE_MS + 2 * MINUTE_MS},
    ),
    "set late and not delivered since": ("timeout-not-fired", set_late(AS_OF_MS - MINUTE_MS - 1)),
    "set late just now": ("armed-late", set_late(AS_OF_MS - MINUTE_MS)),
    "acted late": ("timed-out-late", TIMED_OUT | {"timed_out_ms": DUE_MS + 7 + 2 * MINUTE_MS + 1}),
    "acted within limit and grace": ("balanced", TIMED_OUT | {"timed_out_ms": DUE_MS + 7 + 2 * MINUTE_MS}),
    "acted when its own later time had come": (
        "balanced",
        TIMED_OUT | {"due_ms": DUE_MS + 5 * MINUTE_MS, "timed_out_ms": DUE_MS + 6 * MINUTE_MS},
    ),
    "acted on the second of two deadlines": (
        "balanced",
        TIMED_OUT | {"timed_out_ms": DUE_MS + 6 * MINUTE_MS, "last_delivered_ms": DUE_MS + 5 * MINUTE_MS},
    ),
    "cancelled and delivered": ("cancelled-yet-delivered", TIMED_OUT | {"cancelled_timer_delivered": 300}),
    "early": ("delivered-before-due", TIMED_OUT | {"late_ms_min": -1}),
    "on time": ("balanced", TIMED_OUT | {"late_ms_min": 0}),
    "unconsumed long": ("never-delivered", UNCONSUMED),
    "unconsumed": ("in-flight", UNCONSUMED | {"committed_ms": AS_OF_MS - 60 * MINUTE_MS}),
    "cleared, unacknowledged": ("balanced", {"is_consumed": False}),
    "fired, nobody heard": (
        "never-delivered",
        TIMED_OUT | {"status": "PLACED", "timed_out_ms": None},
    ),
    "dead letter": ("dead-lettered", UNCLEARED | {"dead_letter_offset": 800}),
    "dead letter, redriven": ("balanced", {"dead_letter_offset": 800, "is_redelivered": True}),
    "redriven without effect": (
        "cart-not-cleared",
        UNCLEARED | {"dead_letter_offset": 800, "is_redelivered": True},
    ),
    "dead deadline": (
        "dead-lettered",
        TIMED_OUT | {"status": "PLACED", "timed_out_ms": None, "deadline_dead_offset": 9},
    ),
    "passed over": (
        "fifo-gap",
        UNCONSUMED | {"fifo_gap_offset": 7, "committed_ms": AS_OF_MS - MINUTE_MS},
    ),
}


def frame(spark: SparkSession, changed: dict[str, Changes]) -> DataFrame:
    """Rows of the books: `PAID` with some changes each, by their ids."""
    rows = [
        tuple({**PAID, **changes, "order_id": name}.get(column) for column in COLUMNS)
        for name, changes in changed.items()
    ]
    return spark.createDataFrame(rows, ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items()))


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> dict[str, Any]:
    """What each row was judged to be."""
    books = frame(spark, {name: changes for name, (_, changes) in ROWS.items()})
    found = verdicts(books).select("order_id", "case", "why", "also").collect()
    return {row["order_id"]: row for row in found}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_in_the_case_that_it_was_made_for(judged: dict[str, Any], name: str) -> None:
    expected, _ = ROWS[name]
    assert judged[name]["case"] == expected
    assert (judged[name]["why"] is None) == (expected == "balanced")


CANCEL_HALF: Changes = {"open_half_offset": 900, "open_half_topic": 3, "has_open_cancelled": True}
ALONE: dict[str, Changes] = {
    names.ORDER_WITHOUT_MESSAGE: NO_MESSAGE | UNCONSUMED,
    names.MESSAGE_WITHOUT_ORDER: NO_ROW,
    names.OUTCOME_CONTRADICTS_DATABASE: {"cancelled_offset": 700},
    names.HALF_UNRESOLVED: CANCEL_HALF | {"open_half_ms": AS_OF_MS - 11 * MINUTE_MS},
    names.EFFECT_TWICE: {"twice_committed_offset": 100},
    names.LEDGER_ENTRY_MISSING: UNCLEARED | {"unwritten": [("apple", 1)]},
    names.CART_NOT_CLEARED: surplus(2, 1),
    names.PAID_BUT_TIMED_OUT: {"timed_out_ms": PLACED_MS + MINUTE_MS},
    names.TIMEOUT_NOT_FIRED: PLACED | NO_TIMER,
    names.ARMED_LATE: {"late_due_ms": DUE_MS, "late_armed_ms": DUE_MS + MINUTE_MS + 1},
    names.FIRED_LATE: {"delivered_offset": 600, "late_delivered_ms": DUE_MS + 3 * MINUTE_MS},
    names.TIMED_OUT_LATE: TIMED_OUT | {"timed_out_ms": DUE_MS + 3 * MINUTE_MS},
    names.CANCELLED_YET_DELIVERED: {"cancelled_timer_delivered": 300},
    names.DELIVERED_BEFORE_DUE: {"delivered_offset": 600, "late_ms_min": -1},
    names.NEVER_DELIVERED: UNCONSUMED,
    names.DEAD_LETTERED: {"dead_letter_offset": 800},
    names.FIFO_GAP: {"fifo_gap_offset": 7},
    names.IN_FLIGHT: CANCEL_HALF | {"open_half_ms": AS_OF_MS - 9 * MINUTE_MS},
    names.NOT_COVERED: NO_MESSAGE | UNCONSUMED | {"covered_from_ms": PLACED_MS + 1},
}
"""What puts a sound order into one case and into no other."""

EXCLUSIVE: dict[tuple[str, str], str] = {
    (names.ORDER_WITHOUT_MESSAGE, names.MESSAGE_WITHOUT_ORDER): "there is a row, or there is none",
    (names.ORDER_WITHOUT_MESSAGE, names.NEVER_DELIVERED): "there is no message to be delivered",
    (names.ORDER_WITHOUT_MESSAGE, names.NOT_COVERED): "the log covers the order, or it does not",
    (names.MESSAGE_WITHOUT_ORDER, names.OUTCOME_CONTRADICTS_DATABASE): "there is no row",
    (names.MESSAGE_WITHOUT_ORDER, names.PAID_BUT_TIMED_OUT): "there is no row",
    (names.MESSAGE_WITHOUT_ORDER, names.TIMEOUT_NOT_FIRED): "there is no row",
    (names.MESSAGE_WITHOUT_ORDER, names.NOT_COVERED): "there is no row",
    (names.OUTCOME_CONTRADICTS_DATABASE, names.TIMEOUT_NOT_FIRED): "a cancelled order does not wait",
    (names.HALF_UNRESOLVED, names.IN_FLIGHT): "a half is younger than the limit, or it is not",
    (names.PAID_BUT_TIMED_OUT, names.TIMEOUT_NOT_FIRED): "an order that has ended does not wait",
    (names.TIMEOUT_NOT_FIRED, names.FIRED_LATE): "the deadline has fired",
    (names.TIMEOUT_NOT_FIRED, names.TIMED_OUT_LATE): "an order that has ended does not wait",
    (names.TIMEOUT_NOT_FIRED, names.DELIVERED_BEFORE_DUE): "the deadline has fired",
    (names.NEVER_DELIVERED, names.DEAD_LETTERED): "the message was given up",
    (names.NEVER_DELIVERED, names.NOT_COVERED): "there is no message to be delivered",
    (names.DEAD_LETTERED, names.FIFO_GAP): "a message that was given up was not passed over",
}
"""The cases that cannot hold together, and why."""

TOGETHER: dict[tuple[str, str], Changes] = {
    (names.PAID_BUT_TIMED_OUT, names.TIMED_OUT_LATE): {"paid_ms": PLACED_MS + 5_000, "paid_offset": 500},
    (names.FIRED_LATE, names.TIMED_OUT_LATE): {"late_delivered_ms": DUE_MS + 3 * MINUTE_MS},
}
"""What has to be changed beside, where the changes for one case take back those for the other."""


def test_of_any_two_cases_both_hold_unless_they_exclude_each_other(spark: SparkSession) -> None:
    """Every case by itself, and every pair: `case` is the first by the order of names, `also` the other."""
    wanted = {(case, case): ALONE[case] for case in ALONE}
    wanted |= {
        pair: ALONE[pair[0]] | ALONE[pair[1]] | TOGETHER.get(pair, {}) for pair in combinations(ALONE, 2)
    }
    found = verdicts(frame(spark, {" ".join(pair): changes for pair, changes in wanted.items()}))
    holding = {
        tuple(row["order_id"].split()): [row["case"], *row["also"]]
        for row in found.select("order_id", "case", "also").collect()
    }
    for pair in wanted:
        if pair in EXCLUSIVE:
            assert not set(pair) <= set(holding[pair]), (pair, EXCLUSIVE[pair])
        else:
            assert holding[pair] == list(dict.fromkeys(pair)), pair


def test_the_documented_table_has_the_cases_in_their_order() -> None:
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    table = page.partition("| case | what it means |")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)) == names.CASES


OFFSETS: tuple[int | None, ...] = (None, 100)
TIMES: tuple[int | None, ...] = (None, PLACED_MS + MINUTE_MS)
OLD: dict[str, tuple[Any, ...]] = {
    "status": ("PLACED", "PAID", "TIMED_OUT", "CANCELLED"),
    **dict.fromkeys(("has_row", "is_consumed"), (True, False)),
    **dict.fromkeys(("is_redelivered", "is_deadline_redelivered", "has_open_created"), (None, True)),
    **dict.fromkeys(("paid_ms", "timed_out_ms", "cancelled_ms", "cleared_ms"), TIMES),
    **dict.fromkeys(("paid_offset", "cancelled_offset", "timer_cancel_offset"), OFFSETS),
    "committed_offset": (200, None),
    **dict.fromkeys(("dead_letter_offset", "deadline_dead_offset", "rollback_offset"), OFFSETS),
    **dict.fromkeys(("timer", "open_timer", "open_half", "delivered"), (True, False)),
    "open_half_topic": (0, 1, 2, 3),
    "timers": (None, 1, 2),
    "covered_from_ms": (0, PLACED_MS + 2 * MINUTE_MS),
}
"""What a row of hours ago may say, in any combination; first what is usual."""


def old_row(chance: random.Random) -> Changes:
    """A row of which every bound has passed."""
    row = {name: chance.choice((*values[:1] * 4, *values)) for name, values in OLD.items()}
    if not row["has_row"]:
        row |= dict.fromkeys(("status", "placed_ms", "due_ms", "paid_ms", "timed_out_ms", "cancelled_ms"))
    has_timer, is_open = row.pop("timer"), row.pop("open_timer")
    row |= {} if has_timer else NO_TIMER
    if has_timer and is_open:
        row |= {"open_timer_offset": 300, "open_timer_due_ms": PLACED_MS + MINUTE_MS}
    if row.pop("open_half"):
        row |= {"open_half_offset": 100, "open_half_ms": PLACED_MS}
    else:
        row |= {"open_half_topic": None, "has_open_created": None}
    if row.pop("delivered"):
        row |= {"delivered_offset": 600, "delivered_ms": PLACED_MS + MINUTE_MS + 7}
    if row["committed_offset"] is None:
        row["committed_ms"] = None
    return row


def test_nothing_is_in_flight_once_its_bound_has_passed(spark: SparkSession) -> None:
    """In flight there is nothing of hours ago; and an order that still waits does not balance."""
    chance = random.Random(44)
    rows = {str(number): old_row(chance) for number in range(3_000)}
    found = verdicts(frame(spark, rows)).select("order_id", "case", "also", "status").collect()
    left = [row for row in found if names.IN_FLIGHT in (row["case"], *row["also"])]
    assert not left, [rows[row["order_id"]] for row in left[:3]]
    ended = (names.BALANCED, names.NOT_COVERED)
    waiting = [row for row in found if row["status"] == "PLACED" and row["case"] in ended]
    assert not waiting, [rows[row["order_id"]] for row in waiting[:3]]


def test_every_case_has_a_row_that_it_holds_for() -> None:
    assert {case for case, _ in ROWS.values()} == set(names.CASES)


def test_what_holds_beside_stays_in_also(judged: dict[str, Any]) -> None:
    assert judged["passed over"]["also"] == ["in-flight"]
    assert judged["half open long, no row"]["also"] == [], "its bound has passed"
    assert judged["paid"]["also"] == []


def test_the_sentence_says_which_step_of_a_deadline_was_late_and_how_long_it_took(
    judged: dict[str, Any],
) -> None:
    for name, words in {
        "half waited": "set at log offset 300, 70.0 s after it was due: its half waited 130.0 s",
        "half sent late": "set at log offset 300, 70.0 s after it was due: its message was sent 69.0 s after",
        "sent late without a half": "its message was sent, or the timer moved to that time, only then.",
        "late": "delivered at log offset 600, 60.0 s after it was due.",
        "late by both, by the broker more": "40.0 s after it was set, which was 30.0 s after it was due.",
        "late, set before the log": "60.0 s after it was due, at least",
        "held": "the timer at log offset 300, is held by an operator: the timers of own order_timeouts since "
        "2023-11-15 07:53:20.000 UTC.",
        "released just now": "held by an operator; own order_timeouts was released at 2023-11-15 08:12:20",
        "released, and not delivered": "UTC, and it is overdue by 60.0 s since.",
        "set late and not delivered since": "was set after it was due, and has waited 60.0 s since.",
        "deadline called off, unpaid": "its deadline was cancelled by a call of its own, an operator's or a "
        "client's, at 2023-11-14 22:13:20.009 UTC, log offset 400, without a payment.",
        "acted late": "It timed out 120.0 s after its deadline was delivered.",
    }.items():
        assert words in judged[name]["why"], name
    also = {
        "half waited": [],
        "late by both, by its setting more": [],
        "late by both, by the broker more": [],
        "late by both, each too much": ["fired-late"],
        "set late and not delivered since": ["armed-late"],
        "set late just now": ["in-flight"],
    }
    assert {name: judged[name]["also"] for name in also} == also


def test_sentences_have_the_users_names_of_topics_and_statuses(judged: dict[str, Any]) -> None:
    whys = {name: row["why"] or "" for name, row in judged.items()}
    for topic in ("order_created", "order_paid", "order_cancelled"):
        assert any(f"own {topic}" in why for why in whys.values()), topic
    assert "own PAID" in whys["paid and timed out"]
    shops = re.compile(r"order-(created|paid|cancelled|timeouts)|(?<!own )(PLACED|PAID|TIMED_OUT|CANCELLED)")
    assert not [why for why in whys.values() if shops.search(why)]


def test_cases_are_tried_in_the_order_of_their_names() -> None:
    assert (*ALL_CASES, names.BALANCED) == names.CASES


def test_every_finding_says_what_it_means_who_is_wrong_and_how_it_is_repaired() -> None:
    for case in (*names.FINDINGS, names.PUSHES_DO_NOT_SUM, names.CART_DIFFERENCE):
        meaning = MEANINGS[case]
        assert all((meaning.what, meaning.wrong, meaning.repair)), case


def test_every_text_of_a_case_names_its_parties_by_their_roles() -> None:
    """A reader has to know who is meant: a service, the broker, a consumer, an operator."""
    texts = [part for one in MEANINGS.values() for part in (one.what, one.wrong, one.repair)]
    texts += [part for case in REPORTED.values() for part in case] + list(UNSAFE.values())
    unnamed = re.compile(r"\b(some|no|any|every)(body|one)\b|\bwhoever\b|\bperson\b", re.IGNORECASE)
    assert not [one for one in texts if unnamed.search(one)]


PUSH: Changes = {
    "schedule_id": None,
    "status": "DELIVERED",
    "due_ms": PLACED_MS,
    "delivered_offset": 100,
    "deliveries": 1,
    "dead_letters": 0,
    "dead_letter_offset": None,
    "is_acknowledged": True,
    "books_offset": BOOKS_OFFSET,
    "covered_from_ms": 0,
    "grace_ms": MINUTE_MS,
    "late_limit_ms": MINUTE_MS,
    "timer_due_ms": None,
    "as_of_ms": PLACED_MS + 2 * MINUTE_MS,
    **dict.fromkeys(("timer_offset", "timers", "timer_ends", "held_offset", "held_ms")),
    **dict.fromkeys(TopicHold._fields),
}
NOT_IN_LOG: Changes = {"delivered_offset": None, "deliveries": None, "is_acknowledged": False}
HELD_PUSH: Changes = NOT_IN_LOG | {
    "status": "SCHEDULED",
    "as_of_ms": AS_OF_MS,
    "timer_due_ms": PLACED_MS,
    "timer_offset": 50,
    "timers": 2,
    "timer_ends": 1,
    "held_offset": 50,
    "held_ms": PLACED_MS,
}
PUSHES: dict[str, tuple[bool, Changes]] = {
    "sent": (False, {}),
    "left": (False, NOT_IN_LOG | {"status": "SCHEDULED"}),
    "left, overdue": (
        True,
        NOT_IN_LOG | {"status": "SCHEDULED", "as_of_ms": PLACED_MS + 2 * MINUTE_MS + 1},
    ),
    "left, overdue, before the log": (
        True,
        NOT_IN_LOG | {"status": "SCHEDULED", "as_of_ms": AS_OF_MS, "covered_from_ms": PLACED_MS},
    ),
    "left, moved to later": (
        False,
        NOT_IN_LOG | {"status": "SCHEDULED", "as_of_ms": AS_OF_MS, "timer_due_ms": AS_OF_MS},
    ),
    "held": (False, HELD_PUSH | {"hold_ms": PLACED_MS - 1}),
    "due in a hold, not yet written as held": (
        False,
        HELD_PUSH | {"hold_ms": PLACED_MS - 1, "held_offset": None, "held_ms": None},
    ),
    "held, moved, overdue": (True, HELD_PUSH | {"timer_offset": 60, "timers": 3, "timer_ends": 2}),
    "held, cancelled": (True, HELD_PUSH | {"hold_ms": PLACED_MS - 1, "timer_ends": 2}),
    "released just now": (
        False,
        HELD_PUSH | dict.fromkeys(("released_ms", "release_done_ms"), AS_OF_MS - 2 * MINUTE_MS),
    ),
    "released, and not delivered": (
        True,
        HELD_PUSH | dict.fromkeys(("released_ms", "release_done_ms"), AS_OF_MS - 2 * MINUTE_MS - 1),
    ),
    "called off, delivered": (False, {"status": "CANCELLED"}),
    "delivered just now": (False, {"status": "SCHEDULED", "delivered_offset": BOOKS_OFFSET}),
    "delivered, not acknowledged": (False, {"status": "SCHEDULED", "is_acknowledged": False}),
    "redriven": (False, {"deliveries": 2, "dead_letters": 1}),
    "sent before the log": (False, NOT_IN_LOG | {"covered_from_ms": PLACED_MS}),
    "sent, says the ledger": (True, NOT_IN_LOG),
    "unsaid": (True, {"status": "SCHEDULED"}),
    "twice": (True, {"deliveries": 2}),
    "lost": (True, {"status": "LOST", "schedule_id": "daily"}),
}


def test_pushes_that_do_not_sum(spark: SparkSession) -> None:
    columns = ("push_id", *PUSH)
    rows = [
        tuple({**PUSH, **changes, "push_id": name}[column] for column in columns)
        for name, (_, changes) in PUSHES.items()
    ]
    texts = ("push_id", "schedule_id", "status")
    kinds = {column: "string" if column in texts else "bigint" for column in columns}
    kinds["is_acknowledged"] = "boolean"
    pushes = spark.createDataFrame(rows, ", ".join(f"{name} {kind}" for name, kind in kinds.items()))
    judged = {row["push_id"]: row[names.PUSHES_DO_NOT_SUM] for row in pushes_do_not_sum(pushes).collect()}
    assert {name for name, why in judged.items() if why} == {
        name for name, (is_one, _) in PUSHES.items() if is_one
    }
    assert judged["left, overdue, before the log"].endswith("that would have its delivery is deleted.")
    assert [(row["schedule"], row["why"]) for row in sums(pushes).collect()] == [
        ("daily", "1 scheduled are not 0 sent, 0 left, 0 cancelled and 0 failed.")
    ]
