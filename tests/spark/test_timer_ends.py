"""Every way in which a timer ends is seen by the audit: as an end of it, and in its order's timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from commitlog.log.published_log import open_log
from services.broker.spine.values import TimerName, Verdict
from spark_jobs.books.timelines import timelines
from spark_jobs.inputs.mapping import SHOP
from spark_jobs.report.statistics import log_statistics
from spark_jobs.staging.order_events import events_of_orders
from spark_jobs.staging.staged import stage

TOPIC = "order-timeouts"


def set_timer(shop: Any, order_id: str, delay_ms: int, **marks: str) -> int:
    """Sets a deadline of an order under a key; returns its place in the log."""
    due_ms = shop.now_ms + delay_ms
    body = {"order_id": order_id, "due_ms": due_ms}
    sent = shop.send(TOPIC, order_id, body, delivery_ms=due_ms, properties={"TW_TIMER_KEY": order_id} | marks)
    return int(sent.physical_offset)


def test_a_timer_ends_once_however_it_ends(shop: Any, spark: SparkSession, tmp_path: Path) -> None:
    set_at = {
        name: set_timer(shop, name, 60_000) for name in ("moved", "again", "cancel", "carried", "fired")
    }
    set_at["due"] = set_timer(shop, "due", 1_000)
    set_timer(shop, "waits", 90_000)
    name = {one: TimerName(TOPIC, key=one) for one in set_at}
    verdicts = [
        shop.broker.timers.move(name["moved"], shop.now_ms + 90_000, shop.now_ms).verdict,
        shop.broker.timers.cancel(name["cancel"], "", shop.now_ms).verdict,
        shop.broker.timers.fire(name["fired"], shop.now_ms).verdict,
    ]
    assert verdicts == [Verdict.MOVED, Verdict.CANCELLED, Verdict.FIRED]
    set_timer(shop, "again", 80_000)
    set_timer(shop, "carrier", 500, TW_TIMER_CANCEL="carried")
    lost_at = set_timer(shop, "lost", 60_000)
    shop.broker.timers.end_unreadable_timer(TOPIC, lost_at, shop.now_ms + 60_000, shop.now_ms)
    shop.advance(2_000)
    staged = stage(spark, shop.store, open_log(shop.store), SHOP, tmp_path / "staged")
    figures = log_statistics(staged)
    ends = {"moved": 1, "replaced": 1, "cancelled": 2, "fired": 1, "delivered": 2, "unreadable": 1}
    assert figures.timer_ends == ends
    assert (figures.by_kind["timer"], sum(figures.timer_ends.values())) == (11, 8), "three wait"
    assert [one.early for one in figures.lateness] == [0], "what was fired is not early"
    ids = spark.createDataFrame([(one,) for one in (*set_at, "lost")], "order_id string")
    events = events_of_orders(spark, staged, ids, len(set_at) + 1)
    told = timelines(events, staged, SHOP).collect()
    kinds = {row["order_id"]: [event["kind"] for event in row["timeline"]] for row in told}
    assert kinds == {
        "moved": ["timer", "moved", "timer"],
        "again": ["timer", "replaced", "timer"],
        "cancel": ["timer", "cancelled"],
        "carried": ["timer", "cancelled"],
        "fired": ["timer", "fired"],
        "due": ["timer", "delivered"],
        "lost": ["timer"],
    }
    notes = " ".join(event["note"] for row in told for event in row["timeline"])
    assert [f"the timer at {set_at[one]}" in notes for one in set_at] == [True] * 6
