"""`tidewheel audit seal|verify-seals`, as an accountant reads it: what was sealed, what it waits for, what a
change behind it means in money.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from services.cli.audit import audit, books, schedule
from services.cli.audit.options import limits
from services.times.display import wall
from tests.audit_runs import write_run
from tidewheel.errors import ConfigurationError

MINUTE_MS = 60_000
START_MS = 1_763_700_000_000
PAID_MS = START_MS + 30 * MINUTE_MS
Order = dict[str, Any]

NAMES = {
    "order": "purchase",
    "columns": {"total_pence": "worth", "placed_ms": "made_at", "paid_ms": "settled_at"},
    "created": "sales",
    "timeouts": "pay-by",
}
COLUMNS = pa.schema([
    ("order_id", pa.string()), ("customer_id", pa.string()), ("total_pence", pa.int64()),
    ("due_ms", pa.int64()), ("currency", pa.string()), ("placed_ms", pa.int64()),
    ("committed_ms", pa.int64()), ("paid_ms", pa.int64()), ("timed_out_ms", pa.int64()),
    ("cancelled_ms", pa.int64()), ("cleared_ms", pa.int64()), ("delivered_ms", pa.int64()),
])  # fmt: skip


def order(order_id: str, total: int, currency: str | None = None, **facts: Any) -> Order:
    return {
        "order_id": order_id, "customer_id": "c", "total_pence": total, "currency": currency,
        "placed_ms": START_MS, "due_ms": START_MS + 9, "committed_ms": START_MS + 3,
        "cleared_ms": START_MS + 5, "paid_ms": PAID_MS,
    } | facts  # fmt: skip


class Shop:
    """A folder of runs with given orders; the commands on it, and what they print."""

    def __init__(self, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.out, self._capsys, self._runs = out, capsys, 0

    def audit(self, *orders: Order, **summary: Any) -> None:
        """As `audit run` writes it."""
        self._runs += 1
        totals = {"orders": len(orders)}
        folders = write_run(self.out, f"run{self._runs}", **{"totals": totals, **summary})
        pq.write_table(pa.Table.from_pylist(list(orders), COLUMNS), folders.orders / "part.parquet")

    def seal(self, watermark: str = "10m", as_json: bool = False) -> str:
        books.seal("newest", self.out, watermark, "5m", False, as_json)
        return self._capsys.readouterr().out

    def verify(self, limit: int = 20) -> str:
        """What it prints of books that have changed."""
        with pytest.raises(typer.Exit):
            books.verify_seals("newest", self.out, limit, False)
        return self._capsys.readouterr().out


@pytest.fixture
def shop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shop:
    return Shop(tmp_path, capsys)


def test_a_total_that_was_changed_is_told_with_both_amounts(shop: Shop) -> None:
    own = {"names": NAMES, "has_currency": True}
    shop.audit(order("B-0012", 1_250, "JPY"), order("B-0013", 300, "EUR"), **own)
    shop.seal()
    shop.audit(order("B-0012", 2_250, "JPY"), order("B-0013", 800, "EUR"), **own)
    printed = shop.verify()
    assert "B-0013  changed: worth was 3.00 EUR and is 8.00 EUR" in printed
    assert "1 window sealed up to" in printed
    assert "1 has changed" in printed
    assert "B-0012  changed: worth was 1,250 JPY and is 2,250 JPY" in printed
    assert "In sum 5.00 EUR and 1,000 JPY more than was sealed." in printed


def test_a_changed_currency_is_a_change_of_the_amount(shop: Shop) -> None:
    shop.audit(order("a", 300, "EUR"), has_currency=True)
    shop.seal()
    shop.audit(order("a", 300, "JPY"), has_currency=True)
    printed = shop.verify()
    assert "total was 3.00 EUR and is 300 JPY" in printed
    assert "In sum 300 JPY more and 3.00 EUR less than was sealed." in printed


def test_what_vanished_and_what_appeared_is_told_with_its_amount(shop: Shop) -> None:
    shop.audit(order("gone", 300, "EUR"), order("kept", 100, "EUR"), names=NAMES, has_currency=True)
    shop.seal()
    late = order("late", 950, "EUR", paid_ms=START_MS + 2 * MINUTE_MS)
    shop.audit(order("kept", 100, "EUR"), late, names=NAMES, has_currency=True)
    printed = shop.verify()
    assert "vanished: worth was 3.00 EUR" in printed
    assert "appeared: worth is 9.50 EUR, made_at is 2025-11-21 04:40:00.000 UTC" in printed
    assert "In sum 6.50 EUR more than was sealed." in printed


def test_an_order_dated_into_another_window_has_not_vanished(shop: Shop) -> None:
    shop.audit(order("a", 300))
    shop.seal()
    shop.audit(order("a", 300, placed_ms=START_MS + 7 * MINUTE_MS))
    printed = shop.verify()
    assert "vanished" not in printed
    assert "appeared" not in printed
    said = "time of the order was 2025-11-21 04:40:00.000 UTC and is 2025-11-21 04:47:00.000 UTC"
    assert printed.count(said) == 2, "in the window that it left, and in the one that it is in"
    assert "In sum the totals are what was sealed." in printed


def test_books_sealed_before_a_currency_was_mapped_have_not_changed(shop: Shop) -> None:
    shop.audit(order("a", 300))
    first = shop.seal()
    shop.audit(order("a", 300, "EUR"), has_currency=True)
    books.verify_seals("newest", shop.out, 20, False)
    assert "digest" in first
    shop.audit(order("a", 800, "EUR"), has_currency=True)
    assert "total was 3.00 EUR and is 8.00 EUR" in shop.verify()


def test_a_table_of_changes_says_what_it_leaves_out(shop: Shop) -> None:
    shop.audit(*(order(f"o{number}", 100) for number in range(30)))
    shop.seal()
    shop.audit(*(order(f"o{number}", 200) for number in range(30)))
    assert "These are 5 of 30. All of them: tidewheel audit verify-seals --limit 30" in shop.verify(limit=5)
    assert "In sum 30.00 more" in shop.verify(limit=5), "of all of them"


def test_the_first_seal_waits_for_something_to_seal_and_says_for_which_facts(shop: Shop) -> None:
    """Nothing is older than the window that is open: an empty seal would close nothing."""
    newest = START_MS + 14 * MINUTE_MS
    own = {"names": NAMES, "as_of_ms": newest + MINUTE_MS}
    shop.audit(order("B-1", 300, paid_ms=newest), **own)
    printed = shop.seal()
    assert not (shop.out / "seals").exists()
    assert "no window has closed yet" in printed
    window = f"The next window, {wall(START_MS)} to {wall(START_MS + 5 * MINUTE_MS)}, can be sealed"
    assert window in printed
    assert f"has a time of {wall(START_MS + 15 * MINUTE_MS)} or later (10m past its end" in printed
    assert f"the newest in this run is {wall(newest)} (settled_at of purchase B-1)" in printed


def test_a_window_closes_by_the_fact_that_was_named_and_the_next_one_is_named(shop: Shop) -> None:
    closes = START_MS + 15 * MINUTE_MS
    shop.audit(order("a", 300, paid_ms=closes - 1))
    waits = json.loads(shop.seal(as_json=True))["next"]
    assert (waits["closes_ms"], waits["newest"]["order_id"]) == (closes, "a")
    shop.audit(order("a", 300, paid_ms=closes))
    printed = shop.seal()
    assert f"Seal 1: 1 window up to {wall(START_MS + 5 * MINUTE_MS)}" in printed
    assert f"The next window, {wall(START_MS + 5 * MINUTE_MS)} to" in printed
    assert "no window has closed since" in shop.seal()


def test_a_clock_that_is_ahead_of_the_log_is_named(shop: Shop) -> None:
    log_ms = START_MS + 3 * MINUTE_MS
    shop.audit(order("a", 300), as_of_ms=log_ms)
    printed = shop.seal()
    assert f"the newest in this run is {wall(PAID_MS)} (time of the payment of order a)" in printed
    assert f"but its log goes only up to {wall(log_ms)}" in printed


def test_a_run_without_orders_has_nothing_to_seal(shop: Shop) -> None:
    shop.audit()
    assert "nothing that has happened to an order" in shop.seal()


def test_one_order_is_shown_with_its_amount(shop: Shop) -> None:
    from services.cli.audit.runs import evidence

    assert "  total                  1,234.50 EUR" in list(
        evidence({"case": "balanced"} | order("a", 123_450, "eur"))
    )


def test_a_window_has_a_width(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.audit(order("a", 300))
    with pytest.raises(typer.Exit) as ended:
        books.seal("newest", shop.out, "10m", "0s", False, False)
    assert ended.value.exit_code == 2
    said = "--window is '0s': a window has a width, such as 5m."
    assert said in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match=said):
        limits(shop.out, {"window": "0s"}, {}, False)


PARTIAL = ["--store", "store", "--orders", "sqlite:///shop.db", "--seal", "--from", "2025-11-21"]


def test_a_run_over_a_part_of_the_orders_is_not_begun_if_it_is_to_seal(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would read every store, and then refuse to seal without having told what it found."""
    arguments = [*PARTIAL, "--out", str(shop.out)]
    assert audit.app(["run", *arguments], standalone_mode=False) == 2
    said = "--seal needs all orders, and --from and --to leave some out"
    assert said in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match=said):
        schedule.out_of(tuple(arguments))


def test_a_run_that_cannot_seal_is_not_begun(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.audit(order("a", 300))
    shop.seal()
    arguments = ["run", *PARTIAL[:5], "--out", str(shop.out), "--window", "1m"]
    assert audit.app(arguments, standalone_mode=False) == 2
    assert "Give --window 300000ms" in capsys.readouterr().err


@pytest.mark.parametrize("now", ["eur", "EUR ", " Eur"])
def test_a_currency_that_is_written_in_another_way_moves_no_money(shop: Shop, now: str) -> None:
    shop.audit(order("a", 300, "EUR"), has_currency=True)
    shop.seal()
    shop.audit(order("a", 300, now), has_currency=True)
    printed = shop.verify()
    assert "1 has changed" in printed
    assert "In sum the totals are what was sealed." in printed
