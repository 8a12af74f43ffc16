"""Every invoice has exactly one fate, and a cancellation finds the right order."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from services.shop.orders.new_order import Line
from services.shop.replay.made_up_orders import made_up_rows
from services.shop.replay.online_retail import Invoice, read_rows
from services.shop.replay.plan import plan_replay

START = datetime(2026, 1, 5)
INVOICES = st.lists(
    st.tuples(st.booleans(), st.sampled_from("AB"), st.sets(st.sampled_from(["x", "y", "z"]))), max_size=20
)


def invoice(at: int, number: str, customer_id: str, skus: set[str]) -> Invoice:
    return Invoice(
        number, START + timedelta(minutes=at), customer_id, {sku: Line(sku, 1, 100) for sku in skus}
    )


def made(specifications: list[tuple[bool, str, set[str]]]) -> list[Invoice]:
    return [
        invoice(at, f"C{at}" if cancels else f"{at}", customer_id, skus)
        for at, (cancels, customer_id, skus) in enumerate(specifications)
    ]


def test_a_cancellation_ends_the_newest_earlier_order_that_shares_an_item() -> None:
    plan = plan_replay(
        [
            invoice(1, "1", "A", {"x"}),
            invoice(2, "2", "A", {"x", "y"}),
            invoice(3, "3", "A", {"z"}),
            invoice(4, "4", "B", {"x"}),
            invoice(5, "C5", "A", {"x", "q"}),
            invoice(6, "6", "A", {"x"}),
        ],
        pay_ratio=1,
        seed=1,
    )
    assert [cancellation.order_id for cancellation in plan.cancellations] == ["2"]
    assert [step.invoice.number for step in plan.orders if step.cancelled_later] == ["2"]


def test_a_cancellation_without_an_order_is_unmatched() -> None:
    invoices = [invoice(1, "1", "A", {"x"}), invoice(2, "C2", "A", {"y"}), invoice(3, "C3", "B", {"x"})]
    assert plan_replay(invoices, 1, 1).unmatched == ["C2", "C3"]


@given(INVOICES)
def test_every_invoice_has_one_fate(specifications: list[tuple[bool, str, set[str]]]) -> None:
    invoices = made(specifications)
    plan = plan_replay(invoices, 0.5, 1)
    fates = [
        *(step.invoice.number for step in plan.orders),
        *(step.invoice.number for step in plan.cancellations),
        *plan.refused,
        *plan.unmatched,
    ]
    assert sorted(fates) == sorted(invoice.number for invoice in invoices)


@given(INVOICES)
def test_an_order_is_placed_before_it_is_cancelled(specifications: list[tuple[bool, str, set[str]]]) -> None:
    plan = plan_replay(made(specifications), 0.5, 1)
    place = {step.invoice.number: at for at, step in enumerate(plan.steps)}
    for cancellation in plan.cancellations:
        assert place[cancellation.order_id] < place[cancellation.invoice.number]


def test_the_seed_decides_who_pays() -> None:
    invoices = read_rows(made_up_rows(seed=1, invoice_count=300)).invoices
    pays = [[step.pays for step in plan_replay(invoices, 0.7, seed).orders] for seed in (1, 1, 2)]
    assert pays[0] == pays[1] != pays[2]
    assert 0.6 < sum(pays[0]) / len(pays[0]) < 0.8
    assert all(step.pays for step in plan_replay(invoices, 1, 1).orders)
    assert not any(step.pays for step in plan_replay(invoices, 0, 1).orders)
