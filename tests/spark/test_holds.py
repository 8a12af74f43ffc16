"""Deadlines whose topic an operator held: late, or still to come, by the hold and not by the broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from services.shop.topics import ORDER_TIMEOUTS, ORDERS_GROUP, PUSHES
from spark_jobs.report.summary import AuditSummary
from tests.spark.conftest import TIMEOUT_MS

MINUTE_MS = 60_000
Shop = Any
Audit = Callable[[Any], AuditSummary]


def place(shop: Shop, *order_ids: str) -> None:
    for order_id in order_ids:
        shop.place(order_id, f"of {order_id}", {"apple": 1})
    shop.clear_carts()


def hold(shop: Shop, topic: str) -> None:
    shop.broker.topic_changes.hold(topic, "the bank is closed", shop.now_ms)
    shop.flush()


def release(shop: Shop, topic: str) -> None:
    shop.broker.topic_changes.release(topic, 0, shop.now_ms)
    shop.flush()


def time_out(shop: Shop) -> None:
    for delivery in shop.consume(ORDERS_GROUP, ORDER_TIMEOUTS):
        order_id = json.loads(delivery.message.body)["order_id"]
        shop.set_order(order_id, status="TIMED_OUT", timed_out_ms=shop.now_ms)


def test_a_deadline_after_a_hold_is_not_late_by_the_broker(shop: Shop, audit: Audit) -> None:
    """The broker was late with one, before the hold; the order service with another, after it."""
    place(shop, "late")
    shop.now_ms += TIMEOUT_MS + 5 * MINUTE_MS
    shop.advance(0)
    time_out(shop)
    place(shop, "held", "slow")
    shop.push("push", 500)
    for topic in (ORDER_TIMEOUTS, PUSHES):
        hold(shop, topic)
    shop.advance(TIMEOUT_MS + 10 * MINUTE_MS)
    for topic in (ORDER_TIMEOUTS, PUSHES):
        release(shop, topic)
    shop.advance(500)
    time_out(shop)
    shop.deliver_pushes()
    shop.set_order("slow", timed_out_ms=shop.now_ms + 3 * MINUTE_MS)
    summary = audit(shop)
    found = {one.subject_id: one for one in summary.findings}
    assert {name: one.case for name, one in found.items()} == {"late": "fired-late", "slow": "timed-out-late"}
    assert summary.cases["balanced"] == 1
    timeline = [(event["kind"], event["note"]) for event in found["slow"].evidence["timeline"]]
    told = [(kind, note.rpartition(", ")[2]) for kind, note in timeline if "held by an operator" in note]
    assert told == [
        ("held", "and held by an operator"),
        ("delivered", "held by an operator until its release"),
    ]
    totals = {name: count for name, count in summary.totals.items() if name.startswith("timers ")}
    assert totals == {"timers delivered": 1, "timers held": 3, "timers released": 3}
    report = summary.report_path.read_text()
    assert "Timers held by an operator: 3. Deliveries after a hold: 3" in report
    assert report.count('data-name="too early"') == 1, "one topic has a lateness, of what was not held"


def test_what_is_still_held_is_held_and_not_overdue(shop: Shop, audit: Audit, tmp_path: Path) -> None:
    place(shop, "held")
    shop.push("push", 500)
    began_ms = shop.now_ms
    for topic in (ORDER_TIMEOUTS, PUSHES):
        hold(shop, topic)
    shop.advance(TIMEOUT_MS + 10 * MINUTE_MS)
    shop.send(PUSHES, "clock", {"push_id": "clock"})  # the audit judges as of the newest record
    summary = audit(shop)
    assert [(one.subject_id, one.case, one.why) for one in summary.findings] == []
    (row,) = ds.dataset(tmp_path / "out" / "orders").to_table(columns=["case", "why"]).to_pylist()
    since = datetime.fromtimestamp(began_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert row["case"] == "in-flight"
    assert f"is held by an operator: the timers of {ORDER_TIMEOUTS} since {since}" in row["why"]
