"""A service that is unlike the shop in how it sends and sets deadlines, with a real broker's log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import tests.spark.conftest as shops
from services.broker.spine.values import Resolution, TimerName
from services.shop.topics import (
    ORDER_CREATED,
    ORDER_PAID,
    ORDER_TIMEOUTS,
    ORDERS_GROUP,
    PUSHES,
    TOPIC_TYPES,
)
from spark_jobs.inputs.mapping import SHOP
from spark_jobs.plan.plan import planned
from spark_jobs.plan.sources import PlanSources
from spark_jobs.report.summary import AuditSummary
from spark_jobs.runs import run_of

HOUR_MS = 3_600_000
Shop = Any
Audit = Callable[[Any], AuditSummary]


@pytest.fixture
def mixed(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A shop whose topics take messages without transactions, as an outbox sends them."""
    monkeypatch.setattr("tests.spark.conftest.TOPIC_TYPES", dict.fromkeys(TOPIC_TYPES, "MIXED"))
    opened = shops.Shop(tmp_path, redis_url)
    yield opened
    opened.database.dispose()
    opened.push_database.dispose()
    opened.redis.close()
    opened.disk.close()


def found(summary: AuditSummary) -> dict[str, str]:
    return {one.subject_id: one.case for one in summary.findings}


def place_by_outbox(shop: Shop, order_id: str) -> None:
    """The row is committed; a relay sends what it promises, without a transaction."""
    customer, lines, due_ms = f"of {order_id}", {"apple": 2}, shop.now_ms + shops.TIMEOUT_MS
    shop.fill_cart(customer, lines)
    shop.write_rows(order_id, customer, lines)
    listed = [{"sku": sku, "quantity": count, "unit_price_pence": 100} for sku, count in lines.items()]
    body = {"order_id": order_id, "customer_id": customer, "placed_ms": shop.now_ms, "lines": listed}
    shop.send(ORDER_CREATED, order_id, body)
    deadline = {"order_id": order_id, "due_ms": due_ms}
    key = {"TW_TIMER_KEY": f"order:{order_id}"}
    shop.send(ORDER_TIMEOUTS, order_id, deadline, delivery_ms=due_ms, properties=key)


def pay_by_outbox(shop: Shop, order_id: str) -> None:
    shop.set_order(order_id, status="PAID", paid_ms=shop.now_ms)
    cancel = {"TW_TIMER_CANCEL": f"order:{order_id}", "TW_TIMER_TOPIC": ORDER_TIMEOUTS}
    shop.send(ORDER_PAID, order_id, {"order_id": order_id, "paid_ms": shop.now_ms}, properties=cancel)


def test_messages_of_an_outbox_are_messages(mixed: Shop, audit: Audit) -> None:
    """The log has the messages: "the log has no message of it" was false, and the plan sent them again."""
    for order_id in ("paid", "lapsed", "forgotten", "unpaid"):
        place_by_outbox(mixed, order_id)
    mixed.place("half", "of half", {"apple": 2})
    mixed.write_rows("unsaid", "of unsaid", {"apple": 2})
    mixed.set_order("unsaid", status="PAID", paid_ms=mixed.now_ms)
    mixed.clear_carts()
    mixed.redis.hdel("cart-ledger:of forgotten", "order:forgotten")
    mixed.redis.hincrby("cart:of forgotten", "apple", 2)
    pay_by_outbox(mixed, "paid")
    pay_by_outbox(mixed, "half")
    mixed.set_order("unpaid", status="PAID", paid_ms=mixed.now_ms)
    pay_by_outbox(mixed, "forgotten")
    mixed.pass_deadlines()
    summary = audit(mixed)
    assert found(summary) == {
        "unsaid": "order-without-message",
        "unpaid": "outcome-contradicts-database",
        "forgotten": "cart-not-cleared",
    }
    assert summary.cases["balanced"] == 3


def set_deadline(shop: Shop, order_id: str, due_ms: int) -> None:
    body, key = {"order_id": order_id, "due_ms": due_ms}, {"TW_TIMER_KEY": f"order:{order_id}"}
    half = shop.send_half(ORDER_TIMEOUTS, order_id, body, delivery_ms=due_ms, properties=key)
    shop.end(half, Resolution.COMMIT)


def test_an_order_whose_deadline_came_and_was_set_again_waits(
    shop: Shop, audit: Audit, tmp_path: Path
) -> None:
    """The order service heard the deadline and gave more time: nobody failed to act on it. Where the second
    one is cancelled by a call, that is the cause, and the plan sets it again.
    """
    later = {"waits": 3 * HOUR_MS, "called off": HOUR_MS // 2, "lapses": HOUR_MS // 2}
    for order_id in (*later, "unheard"):
        shop.place(order_id, f"of {order_id}", {"apple": 1})
    shop.clear_carts()
    shop.advance(shops.TIMEOUT_MS + 500)
    for delivery in shop.consume(ORDERS_GROUP, ORDER_TIMEOUTS):
        order_id = json.loads(delivery.message.body)["order_id"]
        if order_id in later:
            due_ms = shop.now_ms + later[order_id]
            shop.set_order(order_id, due_ms=due_ms)
            set_deadline(shop, order_id, due_ms)
    name = TimerName(ORDER_TIMEOUTS, key="order:called off")
    shop.broker.timers.cancel(name, "", shop.now_ms)
    shop.flush()
    shop.advance(HOUR_MS // 2 + 500)
    for delivery in shop.consume(ORDERS_GROUP, ORDER_TIMEOUTS):
        order_id = json.loads(delivery.message.body)["order_id"]
        shop.set_order(order_id, status="TIMED_OUT", timed_out_ms=shop.now_ms)
    shop.advance(HOUR_MS)
    shop.send(PUSHES, "clock", {"push_id": "clock"})
    summary = audit(shop)
    assert found(summary) == {"called off": "timeout-not-fired", "unheard": "never-delivered"}
    assert summary.cases["in-flight"] == 1
    why = {one.subject_id: one.why or "" for one in summary.findings}
    assert "was cancelled by a call of its own" in why["called off"]
    run = run_of(tmp_path / "out", "run")
    sources = PlanSources(SHOP, shop.orders_url, shop.store, shop.redis_url)
    steps = {row["subject_id"]: step.kind for row, step in planned(run.rows(), sources, run.as_of_ms)}
    assert steps == {"called off": "message", "unheard": "look"}


def test_a_row_whose_status_alone_says_cancelled_does_not_balance(shop: Shop, audit: Audit) -> None:
    shop.trade()
    with shop.database.begin() as connection:
        connection.execute(text("UPDATE orders SET status = 'CANCELLED' WHERE order_id IN ('p1', 't1')"))
    assert found(audit(shop)) == dict.fromkeys(("p1", "t1"), "outcome-contradicts-database")
