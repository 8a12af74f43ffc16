"""Carts and a ledger in a database of one's own, where nothing keeps an order from having its effect twice.

Cart and ledger agree in all of these: a cart that is what its ledger says is not yet one that is right.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from markupsafe import escape
from pyspark.sql import SparkSession
from sqlalchemy import Engine, create_engine, text

import tests.spark.conftest as shops
from spark_jobs.inputs.mapping import SHOP, as_mapping
from spark_jobs.inputs.stores import Inputs
from spark_jobs.layout import RunFolders
from spark_jobs.main import Sources, compare
from spark_jobs.options import AuditOptions
from spark_jobs.plan.plan import planned
from spark_jobs.plan.sources import PlanSources
from spark_jobs.report.summary import AuditSummary
from spark_jobs.runs import run_of

Shop = Any
TABLES = {
    "carts": "customer_id TEXT, sku TEXT, quantity INTEGER",
    "cart_ledger": ("customer_id TEXT, entry TEXT, entry_id TEXT, sku TEXT, quantity INTEGER, at_ms INTEGER"),
}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return create_engine(f"sqlite:///{tmp_path}/carts.db")


def copy(shop: Shop, engine: Engine, folder: Path) -> None:
    """Write the shop's carts and ledgers into two tables."""
    folder.mkdir()
    Inputs(shop.orders_url, shop.redis_url).open().export_carts(folder)
    with engine.begin() as connection:
        for (table, columns), name in zip(TABLES.items(), ("carts", "ledger"), strict=True):
            connection.execute(text(f"CREATE TABLE {table} ({columns})"))
            for row in pq.read_table(folder / f"{name}.parquet").to_pylist():
                values = ", ".join(f":{column}" for column in row)
                connection.execute(text(f"INSERT INTO {table} VALUES ({values})"), row)


def execute(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.fixture
def audited(spark: SparkSession, tmp_path: Path, engine: Engine) -> Callable[..., AuditSummary]:
    def run(shop: Shop, **options: Any) -> AuditSummary:
        folder, folders = tmp_path / "exported", RunFolders(tmp_path / "out", "run")
        folder.mkdir()
        folders.folder.mkdir(parents=True)
        sources = Sources(shop.store, Inputs(shop.orders_url, str(engine.url)))
        return compare(
            spark, sources.export(folder), shop.store, folders, AuditOptions("run", **options), print
        )

    return run


def test_an_order_that_took_out_its_articles_twice_or_of_another_does_not_balance(
    shop: Shop, engine: Engine, audited: Callable[[Shop], AuditSummary], tmp_path: Path
) -> None:
    """twice: handled twice, each time cart and ledger. stranger: acted on the cart of another customer.

    in two entries: two rows, together what was ordered. They are the effect of one order, as are both of
    `again`, whose customer put the articles back into the cart after it.
    """
    names = ("twice", "stranger", "in two entries", "sound", "again")
    for name in names:
        shop.place(name, f"of {name}", {"apple": 4, "pear": 1})
    shop.clear_carts()
    for name in names:
        shop.pay(name)
    copy(shop, engine, tmp_path / "copied")
    of_order = "FROM cart_ledger WHERE entry = 'order' AND entry_id"
    added = "INSERT INTO cart_ledger VALUES ('of {}', 'add', 'add-{}', '{}', {}, 1700000000000)"
    execute(
        engine,
        added.format("twice", 1, "apple", 4),
        f"INSERT INTO cart_ledger SELECT * {of_order} = 'twice' AND sku = 'apple'",
        "UPDATE cart_ledger SET customer_id = 'of nobody' WHERE entry_id = 'stranger'",
        added.format("nobody", 2, "apple", 4),
        added.format("nobody", 3, "pear", 1),
        "INSERT INTO carts VALUES ('of stranger', 'apple', 4), ('of stranger', 'pear', 1)",
        "UPDATE cart_ledger SET quantity = 2 WHERE entry_id = 'in two entries' AND sku = 'apple'",
        f"INSERT INTO cart_ledger SELECT * {of_order} = 'in two entries' AND sku = 'apple'",
        added.format("again", 4, "apple", 4),
        "INSERT INTO carts VALUES ('of again', 'apple', 4)",
    )
    summary = audited(shop)
    assert {one.subject_id: one.case for one in summary.findings} == {
        "twice": "effect-twice",
        "stranger": "cart-not-cleared",
    }
    why = {one.subject_id: one.why for one in summary.findings}
    assert why["twice"] == (
        "The ledger of customer of twice has 2 entries of the order for article apple, which took out 8; it "
        "has ordered 4."
    )
    assert why["stranger"] == (
        "Its entry is in the ledger of customer of nobody; the order is of customer of stranger."
    )
    run = run_of(tmp_path / "out", "run")
    sources = PlanSources(SHOP, shop.orders_url, shop.store, str(engine.url))
    steps = [(row["subject_id"], step.kind) for row, step in planned(run.rows(), sources, run.as_of_ms)]
    assert sorted(steps) == [("stranger", "look"), ("twice", "look")], json.dumps(steps)


def test_an_entry_of_an_order_that_is_nowhere_is_not_covered(
    shop: Shop, engine: Engine, audited: Callable[[Shop], AuditSummary], tmp_path: Path
) -> None:
    """An order that neither the database nor the log has took two apples out of a cart, and the ledger
    says the same. A view or an archive may leave it out, so it is named and not accused. One that was written
    while the audit read may be of an order that came meanwhile.
    """
    shop.trade()
    copy(shop, engine, tmp_path / "copied")
    now_ms = time.time_ns() // 1_000_000
    for order_id, at_ms in (("ghost", shop.now_ms), ("undated", "NULL"), ("new", now_ms)):
        execute(
            engine,
            f"INSERT INTO cart_ledger VALUES ('x', 'add', 'of {order_id}', 'apple', 2, {at_ms})",
            f"INSERT INTO cart_ledger VALUES ('x', 'order', '{order_id}', 'apple', 2, {at_ms})",
        )
    summary = audited(shop)
    assert not summary.balanced
    assert summary.findings == []
    assert (summary.cases["balanced"], summary.cases["not-covered"], summary.cases["in-flight"]) == (4, 2, 1)
    rows = {row["order_id"]: row for row in run_of(tmp_path / "out", "run").of_case("not-covered")}
    assert set(rows) == {"ghost", "undated"}
    assert rows["ghost"]["why"] == (
        "The ledger of customer x has an entry of it; the database has no such order, and the log no "
        "message of it: a view or an archive may leave it out."
    )


def test_orders_that_a_view_leaves_out_are_not_accused_and_not_unsaid(
    shop: Shop, engine: Engine, audited: Callable[[Shop], AuditSummary], tmp_path: Path
) -> None:
    """The archive has taken the row of an order that was placed before the log: only its entry is left."""
    shop.trade()
    copy(shop, engine, tmp_path / "copied")
    before_ms = shop.now_ms - 90 * 86_400_000
    execute(
        engine,
        f"INSERT INTO cart_ledger VALUES ('x', 'add', 'a1', 'apple', 2, {before_ms})",
        f"INSERT INTO cart_ledger VALUES ('x', 'order', 'archived', 'apple', 2, {before_ms})",
    )
    summary = audited(shop)
    assert (summary.findings, summary.cases["not-covered"]) == ([], 1)
    assert summary.about["unjudged"] == [
        "Not judged: whether the ledger's entries of 1 order took out what was ordered; their lines have "
        "none of those articles: archived, or named in another way."
    ]


def test_an_entry_that_took_out_more_than_was_ordered_does_not_balance(
    shop: Shop, engine: Engine, audited: Callable[[Shop], AuditSummary], tmp_path: Path
) -> None:
    """One entry says that the order took out twice what it has ordered, as a service writes that adds its
    second effect to the entry of the first; another one took out an article that was not ordered.

    The lines of p2 were cut after it was placed: its message says that four were ordered. The lines of t2
    have other names for articles than the ledger: they say nothing.
    """
    shop.place("amended", "of amended", {"apple": 4})
    shop.trade()
    copy(shop, engine, tmp_path / "copied")
    execute(
        engine,
        "UPDATE cart_ledger SET quantity = 4 WHERE entry = 'order' AND entry_id = 'p1' AND sku = 'apple'",
        f"INSERT INTO cart_ledger VALUES ('customer-0', 'add', 'a1', 'apple', 2, {shop.now_ms})",
        f"INSERT INTO cart_ledger VALUES ('customer-1', 'add', 'a2', 'fig', 3, {shop.now_ms})",
        f"INSERT INTO cart_ledger VALUES ('customer-1', 'order', 'p2', 'fig', 3, {shop.now_ms})",
    )
    with shop.database.begin() as connection:
        connection.execute(text("UPDATE order_lines SET quantity = 1 WHERE order_id = 'amended'"))
        connection.execute(text("UPDATE order_lines SET sku = 'no. ' || sku WHERE order_id = 't2'"))
    summary = audited(shop)
    assert {one.subject_id: (one.case, one.why) for one in summary.findings} == {
        "p1": (
            "effect-twice",
            "Its entry in the ledger of customer customer-0 took out 4 of article apple; it has ordered 2.",
        ),
        "p2": (
            "effect-twice",
            "Its entry in the ledger of customer customer-1 took out 3 of article fig; it has ordered 0.",
        ),
    }
    assert [one.split(";")[0] for one in summary.about["unjudged"]] == [
        "Not judged: whether the ledger's entries of 1 order took out what was ordered"
    ]


@pytest.mark.parametrize("reason", ["too many", "no lines"])
def test_entries_that_are_not_compared_are_told(
    shop: Shop,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    shop.trade()
    monkeypatch.setattr("spark_jobs.inputs.stores.COMPARED_ORDERS_MAX", 3 if reason == "too many" else 4)
    mapping = SHOP if reason == "too many" else as_mapping({"order_lines": {"table": ""}}, "names.toml")
    folder, folders = tmp_path / "exported", RunFolders(tmp_path / "out", "run")
    folder.mkdir()
    folders.folder.mkdir(parents=True)
    sources = Sources(shop.store, Inputs(shop.orders_url, shop.redis_url, mapping=mapping))
    summary = compare(spark, sources.export(folder), shop.store, folders, AuditOptions("run"), print)
    assert summary.balanced
    said = {
        "too many": "there are too many; give views of fewer orders.",
        "no lines": "[order_lines] names no table with what was ordered.",
    }
    first = "Not judged: whether the ledger's entries of 4 orders took out what was ordered; "
    assert summary.about["unjudged"] == [first + said[reason]]
    assert str(escape(first + said[reason])) in summary.report_path.read_text()


def test_a_difference_of_an_order_outside_of_the_range_is_told(
    shop: Shop, engine: Engine, audited: Callable[..., AuditSummary], tmp_path: Path
) -> None:
    """The newest order of the article is not audited, so its finding is left out, and the cart with it."""
    shop.trade()
    copy(shop, engine, tmp_path / "copied")
    execute(engine, "INSERT INTO carts VALUES ('customer-0', 'apple', 3)")
    summary = audited(shop, from_ms=shops.START_MS + 500)
    assert (summary.cases["balanced"], summary.totals["orders"]) == (3, 3)
    assert [(one.subject_id, one.case, one.why) for one in summary.findings] == [
        (
            "customer-0 apple",
            "cart-difference",
            "The cart of customer customer-0 holds 3 of article apple, by its ledger 0; the order that "
            "explains it, p1, was placed outside of the range that is audited.",
        )
    ]
    assert summary.others == {"cart-difference": 1}
    assert summary.totals["cart differences without order"] == 1


def test_a_missing_entry_of_an_order_outside_of_the_range_is_told(
    shop: Shop, engine: Engine, audited: Callable[..., AuditSummary], tmp_path: Path
) -> None:
    """The entry that explains the cart is one of p1, which is not audited."""
    shop.trade()
    copy(shop, engine, tmp_path / "copied")
    execute(engine, "DELETE FROM cart_ledger WHERE entry = 'order' AND entry_id IN ('p1', 'p2')")
    summary = audited(shop, from_ms=shops.START_MS + 500)
    assert {one.subject_id: one.case for one in summary.findings} == {
        "p2": "ledger-entry-missing",
        "customer-0 apple": "cart-difference",
        "customer-0 book-0": "cart-difference",
    }
    why = {one.subject_id: one.why for one in summary.findings}
    assert why["customer-0 apple"] == (
        "The cart of customer customer-0 holds 0 of article apple, by its ledger 2; the order that explains "
        "it, p1, was placed outside of the range that is audited."
    )
