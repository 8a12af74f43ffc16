"""Every way in which a timer ends is seen by the audit: as an end of it, and in its order's timeline."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from services.broker.values import TimerName, Verdict
from spark_jobs import facts
from spark_jobs.statistics import log_statistics

TOPIC = "order-timeouts"


def set_timer(shop: Any, order_id: str, delay_ms: int, **marks: str) -> int:
    """Sets a deadline of an order under a key; returns its place in the log."""
    due_ms = shop.now_ms + delay_ms
    body = {"order_id": order_id, "due_ms": due_ms}
    sent = shop.send(TOPIC, order_id, body, delivery_ms=due_ms, properties={"TW_TIMER_KEY": order_id} | marks)
    return int(sent.physical_offset)


def test_a_timer_ends_once_however_it_ends(shop: Any, spark: SparkSession) -> None:
    set_at = {
        name: set_timer(shop, name, 60_000) for name in ("moved", "again", "cancel", "carried", "fired")
    }
    set_at["due"] = set_timer(shop, "due", 1_000)
    set_timer(shop, "waits", 90_000)
    name = {one: TimerName(TOPIC, key=one) for one in set_at}
    verdicts = [
        shop.broker.move_timer(name["moved"], shop.now_ms + 90_000, shop.now_ms).verdict,
        shop.broker.cancel_timer(name["cancel"], "", shop.now_ms).verdict,
        shop.broker.fire_timer(name["fired"], shop.now_ms).verdict,
    ]
    assert verdicts == [Verdict.MOVED, Verdict.CANCELLED, Verdict.FIRED]
    set_timer(shop, "again", 80_000)
    set_timer(shop, "carrier", 500, TW_TIMER_CANCEL="carried")
    shop.advance(2_000)
    log = spark.read.format("tidewheel").option("bodies", "*").schema(facts.RECORDS).load(str(shop.store))
    records = facts.classified(log).cache()
    ends = {row["ended_timer"]: row["kind"] for row in facts.timer_ends(records).collect()}
    assert {one: ends[at] for one, at in set_at.items()} == {
        "moved": "moved",
        "again": "replaced",
        "cancel": "cancelled",
        "carried": "cancelled",
        "fired": "fired",
        "due": "delivered",
    }
    assert len(ends) == len(set_at) + 1, "the carrier is a timer that was delivered too"
    figures = log_statistics(records)
    assert figures.timer_ends == {"moved": 1, "replaced": 1, "cancelled": 2, "fired": 1, "delivered": 2}
    assert (figures.by_kind["timer"], sum(figures.timer_ends.values())) == (10, 7), "three wait"
    assert [one.early for one in figures.lateness] == [0], "what was fired is not early"
    timelines = {
        row["order_id"]: [event["kind"] for event in row["timeline"]]
        for row in facts.order_facts(facts.order_events(records)).collect()
    }
    assert timelines["moved"] == ["timer", "moved", "timer"]
    assert timelines["again"] == ["timer", "replaced", "timer"]
    assert timelines["carried"] == ["timer", "cancelled"]
    assert timelines["fired"] == ["timer", "fired"]
