"""Plans for carts in a database of the user's, carried out and exported again: no cart is worse for it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, text

from spark_jobs.books.unwritten import explained
from spark_jobs.cases import names
from spark_jobs.inputs.carts import open_carts
from spark_jobs.inputs.mapping import as_mapping
from spark_jobs.layout import FINDING_COLUMNS
from spark_jobs.plan import plan
from spark_jobs.plan.sources import PlanSources

Row = dict[str, Any]
Differences = dict[str, tuple[int, int]]
"""Article -> how many the cart holds, and how many by its ledger."""

MAPPING = as_mapping(
    {
        "carts": {"table": "basket", "customer_id": "buyer", "sku": "article", "quantity": "pieces"},
        "ledger": {
            "table": "basket_moves", "customer_id": "buyer", "entry": "move", "entry_id": "ref",
            "sku": "article", "quantity": "pieces", "at_ms": "moved",
            "entries": {"add": "plus", "order": "minus"},
        },
    },
    "a test",
)  # fmt: skip
TABLES = (
    "CREATE TABLE basket (buyer TEXT, article TEXT, pieces INTEGER)",
    "CREATE TABLE basket_moves (buyer TEXT, move TEXT, ref TEXT, article TEXT, pieces INTEGER, moved BIGINT)",
    "CREATE TABLE orders (order_id TEXT)",
    "CREATE TABLE order_lines (order_id TEXT, sku TEXT, quantity INTEGER)",
)


class Article(NamedTuple):
    """How many of an article were put into the cart, are in it (None: it has no row), were ordered."""

    added: int
    held: int | None
    ordered: int


COUNTS = st.integers(0, 4)
ARTICLES = st.dictionaries(
    st.sampled_from(["apple", "pear", "it's:1", "it's\n1", "it's 1"]),
    st.builds(Article, COUNTS, COUNTS | st.none(), COUNTS),
    min_size=1,
)


def fill(engine: Engine, articles: dict[str, Article], has_entry: bool) -> None:
    moves = "INSERT INTO basket_moves VALUES ('c1', :move, :ref, :sku, :count, 1795831976888)"
    with engine.begin() as connection:
        for table in TABLES:
            connection.execute(text(table))
        for sku, one in articles.items():
            values = {"sku": sku, "held": one.held, "ordered": one.ordered, "count": one.added}
            if one.held is not None:
                connection.execute(text("INSERT INTO basket VALUES ('c1', :sku, :held)"), values)
            connection.execute(text("INSERT INTO order_lines VALUES ('o1', :sku, :ordered)"), values)
            connection.execute(text(moves), values | {"move": "plus", "ref": sku})
            if has_entry:
                taken = min(one.added, one.ordered)
                connection.execute(text(moves), values | {"move": "minus", "ref": "o1", "count": taken})


def differences(url: str, folder: Path) -> Differences:
    folder.mkdir()
    assert open_carts(url, MAPPING)(folder) == []
    rows = pq.read_table(folder / "differences.parquet").to_pylist()
    return {row["sku"]: (row["cart"], row["ledger"]) for row in rows}


def finding(before: Differences, articles: dict[str, Article], has_entry: bool) -> Row:
    """The finding that the audit has of such a cart."""
    deficits = {sku: ledger - cart for sku, (cart, ledger) in before.items() if cart < ledger}
    ordered = {sku: one.ordered for sku, one in articles.items()}
    taken = {} if has_entry else explained(deficits, [("o1", ordered)]).get("o1", {})
    surplus = [{"sku": sku, "cart": cart, "ledger": ledger} for sku, (cart, ledger) in before.items()]
    about: Row = {"subject": "order", "subject_id": "o1", "order_id": "o1", "customer_id": "c1", "why": "?"}
    if taken:
        unwritten = [{"sku": sku, "quantity": count} for sku, count in taken.items()]
        about |= {"case": names.LEDGER_ENTRY_MISSING, "unwritten": unwritten}
    else:
        about |= {"case": names.EFFECT_TWICE if deficits else names.CART_NOT_CLEARED, "surplus": surplus}
    return (
        dict.fromkeys(FINDING_COLUMNS)
        | {"committed_ms": 1_795_831_976_005, "cleared_ms": 1_795_831_976_006}
        | about
    )


@settings(max_examples=40)
@given(ARTICLES, st.booleans())
def test_a_plan_makes_no_cart_worse_and_those_right_that_the_order_explains(
    articles: dict[str, Article], has_entry: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{name}/own.db"
        engine = create_engine(url)
        fill(engine, articles, has_entry)
        before = differences(url, Path(name) / "before")
        row = finding(before, articles, has_entry)
        sources = PlanSources(MAPPING, orders=url, carts=url)
        steps = [step.as_json(row) for _, step in plan.planned([row], sources)] if before else []
        with engine.begin() as connection:
            for step in [one for one in steps if "statement" in one] * 2:
                connection.execute(text(step["statement"].replace(":", r"\:")))
        after = differences(url, Path(name) / "after")
        engine.dispose()
    taken = {one["sku"]: one["quantity"] for one in row["unwritten"] or []}
    expected = {
        sku: (cart, ledger - taken.get(sku, 0))
        for sku, (cart, ledger) in before.items()
        if taken or not 0 < abs(ledger - cart) <= articles[sku].ordered
    }
    assert after == {sku: one for sku, one in expected.items() if one[0] != one[1]}, steps


def baskets(url: str, *rows: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in (*TABLES, "INSERT INTO order_lines VALUES ('o1', 'apple', 2)", *rows):
            connection.execute(text(statement))
    engine.dispose()


@pytest.mark.parametrize("rows", [(), ("INSERT INTO basket VALUES ('c1', 'apple', 0)",)])
def test_a_row_of_0_is_an_empty_cart(tmp_path: Path, rows: tuple[str, ...]) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    baskets(url, *rows)
    assert differences(url, tmp_path / "sound") == {}
    surplus = [{"sku": "apple", "cart": 0, "ledger": 2}]
    row = finding({"apple": (0, 2)}, {"apple": Article(2, 0, 2)}, has_entry=True) | {"surplus": surplus}
    (step,) = [step.as_json(row) for _, step in plan.planned([row], PlanSources(MAPPING, url, carts=url))]
    engine = create_engine(url)
    with engine.begin() as connection:
        for _ in range(2):
            connection.execute(text(step["statement"]))
        held = connection.execute(text("SELECT * FROM basket")).all()
    engine.dispose()
    assert [tuple(one) for one in held] == [("c1", "apple", 2)]


def test_no_cart_is_made_to_hold_less_than_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'own.db'}"
    baskets(url, "INSERT INTO basket VALUES ('c1', 'apple', 0)")
    row = finding({"apple": (0, -1)}, {"apple": Article(0, 0, 1)}, has_entry=True)
    (step,) = [step.as_json(row) for _, step in plan.planned([row], PlanSources(MAPPING, url, carts=url))]
    assert step["kind"] == "look"
    assert "less than nothing" in step["why"]
