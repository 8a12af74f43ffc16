"""A user's own names in place of the shop's, from the databases to the verdicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from sqlalchemy import text

from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs.mapping import as_mapping
from spark_jobs.inputs.stores import Inputs
from spark_jobs.layout import RunFolders
from spark_jobs.main import Sources, compare
from spark_jobs.options import AuditOptions
from spark_jobs.report.summary import AuditSummary

OTHER_NAMES: dict[str, Any] = {
    "orders": {
        "table": "purchase",
        "order_id": "number",
        "statuses": {"PLACED": "new", "PAID": "settled", "TIMED_OUT": "dropped"},
    },
    "pushes": {"table": "notice", "statuses": {"DELIVERED": "seen"}},
}
"""What `renamed` makes of the shop's tables."""


@pytest.fixture
def audit_of(spark: SparkSession, tmp_path: Path) -> Callable[[Any, Inputs], AuditSummary]:
    """`audit_of(shop, inputs)` is the audit of the shop's log with those inputs."""

    def run(shop: Any, inputs: Inputs) -> AuditSummary:
        options, scratch = AuditOptions("run"), tmp_path / "exported"
        folders = RunFolders(tmp_path / "out", options.run_id)
        for made in (scratch, folders.folder):
            made.mkdir(parents=True)
        exported = Sources(shop.store, inputs).export(scratch)
        return compare(spark, exported, shop.store, folders, options, lambda _: None)

    return run


def renamed(shop: Any) -> None:
    """The shop's databases become a user's: other tables, columns, statuses."""
    with shop.database.begin() as connection:
        connection.execute(text("ALTER TABLE orders RENAME COLUMN order_id TO number"))
        connection.execute(text("ALTER TABLE orders RENAME TO purchase"))
        for ours, theirs in OTHER_NAMES["orders"]["statuses"].items():
            connection.execute(text(f"UPDATE purchase SET status = '{theirs}' WHERE status = '{ours}'"))
    with shop.push_database.begin() as connection:
        connection.execute(text("ALTER TABLE pushes RENAME TO notice"))
        connection.execute(text("UPDATE notice SET status = 'seen' WHERE status = 'DELIVERED'"))


def test_a_shop_under_other_names_balances_too(
    traded: Any, audit_of: Callable[[Any, Inputs], AuditSummary]
) -> None:
    renamed(traded)
    mapping = as_mapping(OTHER_NAMES, "names.toml")
    summary = audit_of(traded, Inputs(traded.orders_url, traded.redis_url, traded.pushes_url, mapping))
    assert summary.balanced
    assert summary.totals["orders paid"] == summary.totals["orders timed out"] == 2
    assert summary.totals["pushes delivered"] == 2


def test_an_earlier_export_of_the_carts_will_do(
    traded: Any, audit_of: Callable[[Any, Inputs], AuditSummary], tmp_path: Path
) -> None:
    traded.redis.hincrby("cart:customer-0", "apple", 2)
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    Inputs(traded.orders_url, traded.redis_url).open().export_carts(earlier)
    summary = audit_of(traded, Inputs(traded.orders_url, f"parquet:{earlier}"))
    assert [(one.case, one.subject_id) for one in summary.findings] == [("cart-not-cleared", "p1")]


def test_of_many_orders_only_the_lines_that_are_asked_for_are_read(
    traded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(folder: Path) -> list[dict[str, Any]]:
        folder.mkdir()
        opened = Inputs(traded.orders_url, traded.redis_url).open()
        opened.export_orders(folder)
        opened.export_carts(folder)
        opened.export_order_lines(folder)
        return pq.read_table(folder / "order_lines.parquet").to_pylist()

    assert len(lines(tmp_path / "few")) == 8
    monkeypatch.setattr("spark_jobs.inputs.stores.COMPARED_ORDERS_MAX", 3)
    assert lines(tmp_path / "balanced") == []
    traded.redis.hincrby("cart:customer-0", "apple", 2)
    assert [(line["order_id"], line["sku"]) for line in lines(tmp_path / "different")] == [
        ("p1", "apple"),
        ("p1", "book-0"),
    ]


def test_the_first_of_two_rows_of_an_order_is_judged(
    traded: Any, audit_of: Callable[[Any, Inputs], AuditSummary]
) -> None:
    with traded.database.begin() as connection:
        connection.execute(text("CREATE TABLE copies AS SELECT * FROM orders"))
        connection.execute(text("INSERT INTO copies SELECT * FROM orders WHERE order_id = 'p1'"))
    mapping = as_mapping({"orders": {"table": "copies"}}, "names.toml")
    summary = audit_of(traded, Inputs(traded.orders_url, traded.redis_url, None, mapping))
    assert summary.totals["orders"] == 4
    assert summary.totals["orders with the id of another"] == 1
    assert summary.totals["order rows without an id"] == 0


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"orders": {"table": "sales"}}, "has no table 'sales' (there are order_lines, orders"),
        ({"orders": {"paid_ms": "settled"}}, "has no column 'settled' (there are order_id, customer_id"),
    ],
)
def test_a_mapping_that_does_not_fit_is_told(traded: Any, section: dict[str, Any], words: str) -> None:
    inputs = Inputs(traded.orders_url, traded.redis_url, None, as_mapping(section, "names.toml"))
    with pytest.raises(DatabaseUnreadable) as raised:
        inputs.open()
    assert words in str(raised.value)


def test_a_shop_without_carts_and_lines_is_judged_without(
    traded: Any, audit_of: Callable[[Any, Inputs], AuditSummary]
) -> None:
    with traded.database.begin() as connection:
        connection.execute(text("DROP TABLE order_lines"))
    summary = audit_of(traded, Inputs(traded.orders_url, None, traded.pushes_url))
    assert summary.balanced, summary.findings
    assert summary.cases["balanced"] == 4
    page = summary.report_path.read_text()
    assert "database and messages agree; carts were not looked at" in page
    assert "cart cleared" not in page


def test_carts_are_judged_without_lines_too(
    traded: Any, audit_of: Callable[[Any, Inputs], AuditSummary]
) -> None:
    traded.redis.hincrby("cart:customer-0", "apple", 2)
    mapping = as_mapping({"order_lines": {"table": ""}}, "names.toml")
    summary = audit_of(traded, Inputs(traded.orders_url, traded.redis_url, None, mapping))
    assert summary.others == {"cart-difference": 1}
    assert summary.cases["balanced"] == 4


def test_orders_that_are_older_than_the_log_are_not_covered(
    traded: Any, audit_of: Callable[[Any, Inputs], AuditSummary]
) -> None:
    with traded.database.begin() as connection:
        for order_id, day in (("old", 86_400_000), ("older", 30 * 86_400_000)):
            shifted = ", ".join(f"{name} = {name} - :ms" for name in ("placed_ms", "due_ms", "paid_ms"))
            copied = f"UPDATE copies SET order_id = :id, {shifted}"
            connection.execute(text("CREATE TABLE copies AS SELECT * FROM orders WHERE order_id = 'p1'"))
            connection.execute(text(copied), {"id": order_id, "ms": day})
            connection.execute(text("INSERT INTO orders SELECT * FROM copies"))
            connection.execute(text("DROP TABLE copies"))
    summary = audit_of(traded, Inputs(traded.orders_url, traded.redis_url))
    assert (summary.cases["not-covered"], summary.cases["balanced"]) == (2, 4)
    assert summary.findings == []
    assert not summary.balanced, "nobody has proven them"


def test_everything_that_is_missing_in_all_databases_is_told_at_once(traded: Any) -> None:
    section = {"orders": {"paid_ms": "settled"}, "pushes": {"table": "notice", "status": "state"}}
    inputs = Inputs(traded.orders_url, "nonsense", traded.pushes_url, as_mapping(section, "names.toml"))
    with pytest.raises(DatabaseUnreadable) as raised:
        inputs.open()
    for words in ("no column 'settled'", "no table 'notice'", "nonsense is no address of carts"):
        assert words in str(raised.value)
