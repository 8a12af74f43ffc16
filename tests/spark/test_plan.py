"""Repair plans: a step for every finding, and every step harmless when it is done twice. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from spark_jobs.cases import names
from spark_jobs.inputs.mapping import as_mapping
from spark_jobs.layout import FINDING_COLUMNS
from spark_jobs.plan import plan
from spark_jobs.plan.reasons import UNSAFE
from spark_jobs.plan.sources import PlanSources

Shop = Any
NOTHING = dict.fromkeys(FINDING_COLUMNS)


def finding(case: str, order_id: str = "o1", **facts: Any) -> dict[str, Any]:
    """A row of the findings about an order that was placed and announced."""
    about = {
        "subject": "order",
        "subject_id": order_id,
        "order_id": order_id,
        "case": case,
        "why": "Because.",
    }
    usual = {
        "customer_id": "c1",
        "status": "PLACED",
        "total_pence": 300,
        "placed_ms": 1_000,
        "due_ms": 31_000,
    }
    return NOTHING | about | usual | {"committed_offset": 50, "timeline": []} | facts


def steps(row: dict[str, Any], sources: PlanSources | None = None) -> list[dict[str, Any]]:
    return [step.as_json(row) for row, step in plan.planned([row], sources or PlanSources())]


def one(row: dict[str, Any], sources: PlanSources | None = None) -> dict[str, Any]:
    (step,) = steps(row, sources)
    return step


@pytest.mark.parametrize("case", [*names.FINDINGS, *names.OTHER_FINDINGS])
def test_every_finding_has_a_step_with_its_reason(case: str) -> None:
    for step in steps(finding(case)):
        assert step["kind"] in ("message", "statement", "command", "look")
        assert step["what"]
        assert step["why"] if step["kind"] == "look" else step["safe_to_repeat"]
        assert (step["subject_id"], step["case"]) == ("o1", case)


def test_what_has_no_repair_says_why_of_its_own() -> None:
    assert plan.REPAIRS.keys() | UNSAFE.keys() == {*names.FINDINGS, *names.OTHER_FINDINGS}


def test_an_unannounced_order_is_announced_with_its_lines(shop: Shop) -> None:
    shop.write_rows("o1", "c1", {"apple": 2, "pear": 1})
    row = finding(names.ORDER_WITHOUT_MESSAGE, committed_offset=None)
    announced, deadline = steps(row, PlanSources(orders=shop.orders_url))
    sent = announced["message"]
    assert (sent["topic"], sent["key"]) == ("order-created", "o1")
    assert deadline["message"]["topic"] == "order-timeouts"
    lines = sorted(sent["body"].pop("lines"), key=lambda line: str(line["sku"]))
    assert lines == [{"sku": "apple", "quantity": 2}, {"sku": "pear", "quantity": 1}]
    assert sent["body"] == {"order_id": "o1", "customer_id": "c1", "placed_ms": 1_000}


def test_without_the_database_the_lines_are_missed_and_said_so() -> None:
    step = one(finding(names.ORDER_WITHOUT_MESSAGE, committed_offset=None, delivered_offset=90))
    assert step["message"]["body"]["lines"] is None
    assert "give --orders" in step["what"]


def run_twice(shop: Shop, statement: str) -> list[int]:
    """How many rows each of two executions has changed."""
    with shop.database.begin() as connection:
        return [connection.execute(text(statement.replace(":", r"\:"))).rowcount for _ in range(2)]


@pytest.mark.parametrize("order_id", ["o1", "it's", "a:b"])
def test_a_payment_that_only_the_log_knows_is_written_into_the_row_once(shop: Shop, order_id: str) -> None:
    shop.write_rows(order_id, "c1", {"apple": 1})
    row = finding(
        names.OUTCOME_CONTRADICTS_DATABASE, order_id, paid_offset=90, paid_message_ms=7_000, status="PLACED"
    )
    step = one(row, PlanSources(orders=shop.orders_url))
    assert (step["kind"], step["store"]) == ("statement", "orders")
    assert run_twice(shop, step["statement"]) == [1, 0]
    with shop.database.connect() as connection:
        found = connection.execute(text("SELECT status, paid_ms FROM orders")).one()
    assert tuple(found) == ("PAID", 7_000)


def test_a_statement_leaves_alone_what_has_changed_meanwhile(shop: Shop) -> None:
    shop.write_rows("o1", "c1", {"apple": 1})
    row = finding(names.OUTCOME_CONTRADICTS_DATABASE, paid_offset=90, paid_message_ms=7_000)
    step = one(row, PlanSources(orders=shop.orders_url))
    shop.set_order("o1", status="TIMED_OUT", timed_out_ms=31_000)
    assert run_twice(shop, step["statement"]) == [0, 0]


def test_money_against_a_timed_out_order_is_for_a_person() -> None:
    row = finding(
        names.OUTCOME_CONTRADICTS_DATABASE, status="TIMED_OUT", paid_offset=90, paid_message_ms=7_000
    )
    assert one(row)["kind"] == "look"


def test_a_payment_that_was_never_told_is_told_and_cancels_the_deadline() -> None:
    row = finding(names.OUTCOME_CONTRADICTS_DATABASE, status="PAID", paid_ms=5_000, open_timer_offset=40)
    sent = one(row)["message"]
    assert (sent["topic"], sent["body"]["paid_ms"], sent["body"]["total_pence"]) == ("order-paid", 5_000, 300)
    assert sent["properties"] == {"TW_TIMER_CANCEL": "order:o1", "TW_TIMER_TOPIC": "order-timeouts"}


@pytest.mark.parametrize(("status", "outcome"), [("PAID", "commit"), (None, "rollback")])
def test_an_open_half_is_ended_as_the_database_says(shop: Shop, status: str | None, outcome: str) -> None:
    half = shop.half("o1", "c1", {"apple": 1})
    offset = int(half.transaction_id[:16], 16)
    row = finding(
        names.HALF_UNRESOLVED,
        status=status,
        half_offset=offset,
        committed_offset=None,
        open_timer_offset=80,
    )
    assert one(row, PlanSources(store=shop.store))["command"].startswith(
        f"tidewheel txn resolve {half.transaction_id} {outcome} --reason "
    )


def test_an_offset_where_no_half_lies_names_no_transaction(shop: Shop) -> None:
    shop.half("o1", "c1", {"apple": 1})
    sources = PlanSources(store=shop.store)
    assert [sources.transaction_at(offset) for offset in (0, 1, 1 << 40)] == [None, None, None]


def test_halves_of_other_topics_are_found_by_the_timeline() -> None:
    def event(offset: int, kind: str, topic: str, note: str = "") -> dict[str, Any]:
        return {"physical_offset": offset, "store_ms": 1, "kind": kind, "topic": topic, "note": note}

    timeline = [
        event(10, "half", "order-created"),
        event(20, "half", "order-timeouts"),
        event(30, "committed", "order-created", "the half at 10"),
        event(40, "timer", "order-timeouts", "due 2026-11-21 22:00:00.000"),
        event(50, "half", "order-paid"),
        event(60, "half", "order-paid"),
        event(65, "asked", "order-paid", "the half at 60"),
        event(70, "rolled back", "order-paid", "the half at 50"),
    ]
    row = finding(
        names.HALF_UNRESOLVED,
        half_offset=10,
        half_end="commit",
        paid_ms=5_000,
        status="PAID",
        timeline=timeline,
    )
    assert [step["command"] for step in steps(row)] == [
        "tidewheel txn resolve '<transaction whose half lies at 60>' commit --reason 'The database has it.'"
    ]


def test_a_push_that_was_delivered_is_said_so_once(shop: Shop) -> None:
    shop.push("p1", 500)
    told = {"subject": "push", "subject_id": "p1", "order_id": None, "status": "SCHEDULED"}
    row = finding(names.PUSHES_DO_NOT_SUM) | told | {"delivered_offset": 70, "delivered_ms": 7_000}
    step = one(row)
    assert (step["kind"], step["store"]) == ("statement", "pushes")
    with shop.push_database.begin() as connection:
        assert [connection.execute(text(step["statement"])).rowcount for _ in range(2)] == [1, 0]
        found = connection.execute(text("SELECT status, delivered_ms FROM pushes")).one()
    assert tuple(found) == ("DELIVERED", 7_000)


def test_carts_in_a_database_are_corrected_by_a_condition(tmp_path: Path) -> None:
    mapping = as_mapping({"carts": {"table": "basket", "customer_id": "buyer"}}, "a test")
    row = finding(names.CART_NOT_CLEARED, surplus=[{"sku": "apple", "cart": 5, "ledger": 3}])
    url = f"sqlite:///{tmp_path / 'carts.db'}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE order_lines (order_id TEXT, sku TEXT, quantity INTEGER)"))
        connection.execute(text("INSERT INTO order_lines VALUES ('o1', 'apple', 2)"))
    step = one(row, PlanSources(mapping, orders=url, carts=url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE basket (buyer TEXT, sku TEXT, quantity INTEGER)"))
        connection.execute(text("INSERT INTO basket VALUES ('c1', 'apple', 5), ('c1', 'pear', 5)"))
        changed = [connection.execute(text(step["statement"])).rowcount for _ in range(2)]
        held: Iterable[Any] = connection.execute(text("SELECT sku, quantity FROM basket ORDER BY sku"))
        assert [tuple(line) for line in held] == [("apple", 3), ("pear", 5)]
    assert changed == [1, 0]
    engine.dispose()


def test_a_users_own_table_is_written_in_its_own_words(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sales.db'}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE purchase (number INTEGER PRIMARY KEY, customer_id TEXT, state TEXT, "
                "placed_ms INTEGER, paid TIMESTAMP)"
            )
        )
        connection.execute(text("CREATE TABLE order_lines (order_id INTEGER, sku TEXT, quantity INTEGER)"))
        connection.execute(text("INSERT INTO purchase VALUES (17, 'c1', 'confirmed', 1000, NULL)"))
    lacking = dict.fromkeys(("total_pence", "due_ms", "timed_out_ms", "cancelled_ms"), "")
    columns = {"table": "purchase", "order_id": "number", "status": "state", "paid_ms": "paid"}
    statuses = {"PLACED": ["new", "confirmed"], "PAID": "settled"}
    mapping = as_mapping({"orders": columns | lacking | {"statuses": statuses}}, "a test")
    row = finding(names.OUTCOME_CONTRADICTS_DATABASE, "17", paid_offset=90, paid_message_ms=1_700_000_000_000)
    step = one(row, PlanSources(mapping, orders=url))
    with engine.begin() as connection:
        changed = [connection.execute(text(step["statement"].replace(":", r"\:"))).rowcount for _ in range(2)]
        found = connection.execute(text("SELECT state, paid FROM purchase")).one()
    assert changed == [1, 0]
    assert found.state == "settled"
    assert found.paid.startswith("2023-11-14 22:13:20")
    engine.dispose()


def test_commands_name_the_users_topics_and_groups() -> None:
    mapping = as_mapping(
        {"topics": {"order_timeouts": "deadlines"}, "groups": {"order_created": "warehouse"}}, "a test"
    )
    fired = one(finding(names.TIMEOUT_NOT_FIRED, open_timer_offset=40), PlanSources(mapping))
    assert fired["command"] == "tidewheel timer fire --topic deadlines --timer-key order:o1"
    redriven = one(finding(names.DEAD_LETTERED, dead_letter_offset=70), PlanSources(mapping))
    assert redriven["command"] == "tidewheel dlq redrive warehouse --key o1 --yes"
