"""Every case, planted in stores that the real parts wrote: exactly that order under exactly that case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import text

from services.broker.spine.values import Resolution
from spark_jobs.cases.names import FINDINGS
from spark_jobs.report.summary import AuditSummary
from tests.spark.conftest import TIMEOUT_MS

Audit = Callable[[Any], AuditSummary]
Shop = Any


def found(summary: AuditSummary) -> dict[str, str]:
    return {finding.order_id: finding.case for finding in summary.findings}


def execute(shop: Shop, *statements: str) -> None:
    with shop.database.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def lose_cart_effect(shop: Shop) -> None:
    """As if the cart service had acknowledged the message of p2 without any effect."""
    customer_id, lines = shop.orders["p2"]
    shop.redis.hdel(f"cart-ledger:{customer_id}", "order:p2")
    for sku, count in lines.items():
        shop.redis.hincrby(f"cart:{customer_id}", sku, count)


def insert_order(shop: Shop) -> None:
    shop.write_rows("x9", "customer-9", {"apple": 1})
    shop.set_order("x9", status="PAID", paid_ms=shop.now_ms)


def delete_order(shop: Shop) -> None:
    execute(shop, "DELETE FROM order_lines WHERE order_id='t1'", "DELETE FROM orders WHERE order_id='t1'")


def time_out_a_paid_order(shop: Shop) -> None:
    shop.set_order("p1", timed_out_ms=shop.now_ms)


PLANTED: dict[Callable[[Shop], None], dict[str, str]] = {
    insert_order: {"x9": "order-without-message"},
    delete_order: {"t1": "message-without-order"},
    time_out_a_paid_order: {"p1": "paid-but-timed-out"},
    lose_cart_effect: {"p2": "cart-not-cleared"},
}


def test_a_day_without_fault_balances(traded: Shop, audit: Audit) -> None:
    summary = audit(traded)
    assert summary.balanced
    assert summary.cases == dict.fromkeys((*FINDINGS, "in-flight"), 0) | {"balanced": 4}
    assert summary.others == {}
    assert [(one.balanced, one.findings) for one in summary.windows] == [(4, 0)]
    expected = {
        "orders": 4,
        "orders paid": 2,
        "orders timed out": 2,
        "records half": 10,
        "records commit": 6,
        "records timer": 6,
        "timers cancelled": 2,
        "records delivered": 4,
        "pushes delivered": 2,
        "unreadable messages": 0,
        "damaged bytes": 0,
    }
    assert {name: summary.totals[name] for name in expected} == expected


def test_the_step_of_a_deadline_that_was_late_is_named(shop: Shop, audit: Audit) -> None:
    """The half that waits, the broker that is away, and the order service that does not look."""
    shop.place("acted", "a", {"apple": 1})
    shop.fill_cart("b", {"apple": 1})
    halves = shop.half("armed", "b", {"apple": 1}), shop.half_deadline("armed")
    shop.write_rows("armed", "b", {"apple": 1})
    shop.end(halves[0], Resolution.COMMIT)
    shop.advance(TIMEOUT_MS + 7)
    shop.advance(200_000)
    shop.end(halves[1], Resolution.COMMIT)
    shop.advance(7)
    shop.pass_deadlines()
    shop.place("fired", "c", {"apple": 1})
    shop.now_ms += 70_000
    shop.pass_deadlines()
    shop.clear_carts()
    summary = audit(shop)
    assert found(summary) == {"armed": "armed-late", "fired": "fired-late", "acted": "timed-out-late"}
    whys = {one.order_id: one.why or "" for one in summary.findings}
    assert "200.0 s after it was due: its half waited 230.0 s for its outcome." in whys["armed"]
    assert "70.0 s after it was due." in whys["fired"]
    assert "It timed out 230.0 s after its deadline was delivered." in whys["acted"]


def test_planted_cases_are_found_and_nothing_else(traded: Shop, audit: Audit) -> None:
    for plant in PLANTED:
        plant(traded)
    summary = audit(traded)
    assert not summary.balanced
    assert found(summary) == {name: case for planted in PLANTED.values() for name, case in planted.items()}
    assert sum(summary.cases.values()) == summary.totals["orders"]


def test_a_cart_that_was_filled_behind_its_ledger_is_found(traded: Shop, audit: Audit) -> None:
    traded.redis.hincrby("cart:customer-1", "book-1", 3)
    assert found(audit(traded)) == {"p2": "cart-not-cleared"}


def test_an_order_with_two_cases_is_in_the_first_and_names_the_other(traded: Shop, audit: Audit) -> None:
    lose_cart_effect(traded)
    traded.set_order("p2", status="TIMED_OUT", timed_out_ms=traded.now_ms)
    (finding,) = audit(traded).findings
    assert (finding.order_id, finding.case) == ("p2", "cart-not-cleared")
    assert finding.evidence["also"] == ["paid-but-timed-out"]


def test_the_evidence_names_the_log_offsets(traded: Shop, audit: Audit) -> None:
    lose_cart_effect(traded)
    (finding,) = audit(traded).findings
    timeline = finding.evidence["timeline"]
    kinds = [(event["kind"], event["topic"]) for event in timeline]
    assert kinds == [
        ("half", "order-created"),
        ("half", "order-timeouts"),
        ("committed", "order-created"),
        ("timer", "order-timeouts"),
        ("acknowledged", "order-created"),
        ("half", "order-paid"),
        ("cancelled", "order-timeouts"),
        ("committed", "order-paid"),
    ]
    offsets = {place: event["physical_offset"] for place, event in zip(kinds, timeline, strict=True)}
    assert offsets["cancelled", "order-timeouts"] == offsets["committed", "order-paid"], "one record"
    evidence = {
        "half_offset": ("half", "order-created"),
        "committed_offset": ("committed", "order-created"),
        "timer_offset": ("timer", "order-timeouts"),
        "timer_cancel_offset": ("cancelled", "order-timeouts"),
        "paid_offset": ("committed", "order-paid"),
    }
    assert {name: finding.evidence[name] for name in evidence} == {
        name: offsets[place] for name, place in evidence.items()
    }


def test_a_payment_around_the_timeout_is_in_the_timeline_however_it_ended(shop: Shop, audit: Audit) -> None:
    """One is rolled back because the deadline was first; one wins, and its cancel comes too late."""
    for order_id in ("overtaken", "first"):
        shop.place(order_id, order_id, {"apple": 1})
    shop.clear_carts()
    paid = shop.half_payment("first")
    shop.set_order("first", status="PAID", paid_ms=shop.now_ms)
    shop.pass_deadlines()
    shop.end(shop.half_payment("overtaken"), Resolution.ROLLBACK)
    shop.end(paid, Resolution.COMMIT)
    execute(shop, "DELETE FROM order_lines", "DELETE FROM orders")
    timelines = {
        one.order_id: [(event["kind"], event["topic"]) for event in one.evidence["timeline"]]
        for one in audit(shop).findings
    }
    fired = [("timer", "order-timeouts"), ("acknowledged", "order-created"), ("delivered", "order-timeouts")]
    for order_id, end in (("overtaken", "rolled back"), ("first", "committed")):
        kept = [event for event in timelines[order_id] if event in fired or event[1] == "order-paid"]
        assert sorted(kept) == sorted([*fired, ("half", "order-paid"), (end, "order-paid")])


def test_a_surplus_belongs_to_the_newest_order_of_the_article(shop: Shop, audit: Audit) -> None:
    for order_id in ("older", "newer", "other"):
        shop.place(order_id, "c", {"apple" if order_id != "other" else "pear": 1})
        shop.advance(1_000)
    shop.clear_carts()
    for order_id in ("older", "newer", "other"):
        shop.pay(order_id)
    shop.redis.hincrby("cart:c", "apple", 1)
    assert found(audit(shop)) == {"newer": "cart-not-cleared"}


def test_what_is_undecided_is_in_flight(shop: Shop, audit: Audit) -> None:
    shop.place("unpaid", "a", {"apple": 1})
    shop.clear_carts()
    shop.place("unconsumed", "b", {"apple": 1})
    shop.pay("unconsumed")
    shop.half_deadline("open-half")
    shop.half("open-half", "c", {"apple": 1})
    shop.write_rows("open-half", "c", {"apple": 1})
    shop.end(shop.half("rolled-back", "d", {"apple": 1}), Resolution.ROLLBACK)
    summary = audit(shop)
    assert summary.balanced
    assert summary.cases["in-flight"] == summary.totals["orders"] == 3


def test_a_message_sent_twice_is_one_order(shop: Shop, audit: Audit) -> None:
    shop.place("twice", "c", {"apple": 2})
    shop.end(shop.half("twice", "c", {"apple": 2}), Resolution.COMMIT)
    shop.fill_cart("c", {"apple": 2})
    shop.clear_carts()
    shop.pay("twice")
    summary = audit(shop)
    assert summary.cases["balanced"] == summary.totals["orders"] == 1
    assert summary.totals["records commit"] == 3, "order-created twice, order-paid"


def test_a_rolled_back_half_is_no_message(shop: Shop, audit: Audit) -> None:
    shop.write_rows("r", "c", {"apple": 1})
    shop.end(shop.half("r", "c", {"apple": 1}), Resolution.ROLLBACK)
    (finding,) = audit(shop).findings
    assert (finding.case, finding.evidence["half_end"]) == ("outcome-contradicts-database", "rollback")
    assert [event["kind"] for event in finding.evidence["timeline"]] == ["half", "rolled back"]


def test_unreadable_bodies_and_carts_are_counted_and_harm_nothing(traded: Shop, audit: Audit) -> None:
    for body in (b"\xff\xfe not json", b"[]", b'{"order_id": 7}', b'{"order_id": "other", "lines": "x"}'):
        traded.end(traded.send_half("order-created", "p1", body), Resolution.COMMIT)
    traded.redis.set("cart:broken", "a string, not a hash")
    traded.redis.hset("cart-ledger:customer-0", "add:odd", "not json")
    summary = audit(traded)
    assert summary.totals["unreadable messages"] == 4
    assert summary.totals["unreadable cart fields"] == 2
    assert not summary.balanced
    assert summary.findings == []


def test_a_surplus_of_no_order_is_reported_by_itself(traded: Shop, audit: Audit) -> None:
    traded.redis.hset("cart:stranger", "pear", 1)
    summary = audit(traded)
    assert not summary.balanced
    assert [(one.subject, one.case) for one in summary.findings] == [("cart", "cart-difference")]
    assert [(one["customer_id"], one["sku"]) for one in summary.cart_differences] == [("stranger", "pear")]


def test_a_store_without_orders_and_an_empty_database_balance(shop: Shop, audit: Audit) -> None:
    shop.send("pushes", "p", {"push_id": "p"})
    summary = audit(shop)
    assert summary.balanced
    assert (summary.totals["orders"], summary.windows, summary.findings) == (0, [], [])


def test_damage_in_the_log_is_reported(traded: Shop, audit: Audit) -> None:
    segment = traded.store / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[60] ^= 1
    segment.write_bytes(data)
    summary = audit(traded)
    assert summary.totals["damaged bytes"] > 0
    assert not summary.balanced
    assert "Damage at log offset 0" in summary.report_path.read_text()


def test_what_was_deleted_from_the_log_is_not_covered_and_no_finding(traded: Shop, audit: Audit) -> None:
    """The first segment goes, as retention lets it go; its orders are as right as before."""
    segments = sorted((traded.store / "commitlog").iterdir())
    assert len(segments) > 1
    segments[0].unlink()
    summary = audit(traded)
    assert found(summary) == {}
    assert summary.cases["not-covered"] > 0
    assert not summary.balanced
    assert "is deleted and not covered" in summary.report_path.read_text()
