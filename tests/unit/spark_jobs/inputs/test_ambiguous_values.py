"""Values that can be read in two ways: statuses that are ours by chance, keys that are several values to
SQLite and one text to the audit, numbers that are times in another unit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import create_engine, text

from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs.mapping import as_mapping
from spark_jobs.inputs.stores import Inputs

COLUMNS = "number TEXT PRIMARY KEY, buyer TEXT, state TEXT, worth INTEGER, made_at INTEGER"
ORDERS = {
    "table": "purchase",
    "order_id": "number",
    "customer_id": "buyer",
    "status": "state",
    "total_pence": "worth",
    "placed_ms": "made_at",
    **dict.fromkeys(("due_ms", "paid_ms", "timed_out_ms", "cancelled_ms"), ""),
}


def exported(tmp_path: Path, statuses: dict[str, str], *states: str) -> list[str]:
    """Return the statuses as the audit reads them."""
    engine = create_engine(f"sqlite:///{tmp_path}/own.db")
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE purchase ({COLUMNS})"))
        for number, state in enumerate(states):
            row = {"number": f"n{number}", "state": state}
            connection.execute(text("INSERT INTO purchase VALUES (:number, 'b', :state, 1, 1)"), row)
    mapping = as_mapping({"orders": ORDERS | {"statuses": statuses}}, "own.toml")
    Inputs(str(engine.url), mapping=mapping).open().export_orders(tmp_path)
    rows = pq.read_table(tmp_path / "orders.parquet").to_pylist()
    return [row["status"] for row in sorted(rows, key=lambda row: str(row["order_id"]))]


def test_a_status_that_is_ours_by_chance_is_refused(tmp_path: Path) -> None:
    """TIMED_OUT = "lapsed" says what a lapsed order is called. A payment that "TIMED_OUT" at a card company
    is something else: it was judged as a lapsed order without a word. The page: "An order whose status is
    none of the four stops the audit", and "what it does not mention keeps the shop's name".
    """
    with pytest.raises(DatabaseUnreadable, match=r"none of PLACED, .*: 'TIMED_OUT' 1 times") as refused:
        exported(tmp_path, {"TIMED_OUT": "lapsed"}, "PLACED", "lapsed", "TIMED_OUT")
    assert 'as PLACED = ["TIMED_OUT"]' in str(refused.value)


def test_a_status_that_is_not_mentioned_keeps_our_name(tmp_path: Path) -> None:
    states = exported(tmp_path, {"PLACED": "PAID", "PAID": "settled"}, "PAID", "settled", "CANCELLED")
    assert states == ["PLACED", "PAID", "CANCELLED"]


def with_keys(tmp_path: Path, kind: str, *keys: Any) -> list[str]:
    engine = create_engine(f"sqlite:///{tmp_path}/own.db")
    with engine.begin() as connection:
        columns = f"number {kind}, buyer TEXT, state TEXT, worth INTEGER, made_at INTEGER"
        connection.exec_driver_sql(f"CREATE TABLE purchase ({columns})")
        for key in keys:
            connection.exec_driver_sql("INSERT INTO purchase VALUES (?, 'b', 'PLACED', 1, 1)", (key,))
    mapping = as_mapping({"orders": ORDERS}, "own.toml")
    Inputs(str(engine.url), mapping=mapping).open().export_orders(tmp_path)
    return sorted(row["order_id"] for row in pq.read_table(tmp_path / "orders.parquet").to_pylist())


@pytest.mark.parametrize("kind", ["", "BLOB"])
def test_a_number_and_a_text_that_are_one_id_are_refused_with_a_sentence(tmp_path: Path, kind: str) -> None:
    """Both rows came through as order 7, and the audit ended as "Spark gave up": an id twice in a join."""
    with pytest.raises(DatabaseUnreadable, match=r"column 'number', has keys .*: '7', '8'\. Correct"):
        with_keys(tmp_path, kind, 7, "7", b"8", "8", 9, "x")


def test_numbers_and_texts_that_are_several_ids_are_read(tmp_path: Path) -> None:
    assert with_keys(tmp_path, "", 7, "7 ", "07", 7.5, "x", "X") == ["07", "7", "7 ", "7.5", "X", "x"]


@pytest.mark.xfail(strict=True, reason="digits are milliseconds since 1970, whatever time that makes")
@pytest.mark.parametrize(("kind", "value"), [("TEXT", "20261121153000"), ("BIGINT", 20261121153000)])
def test_a_date_without_separators_is_no_time_in_the_year_2612(
    tmp_path: Path, kind: str, value: str | int
) -> None:
    """Expected: a refusal that names the row. As milliseconds it is a deadline in 2612: an unpaid order would
    be in flight until then, and the books balance.
    """
    engine = create_engine(f"sqlite:///{tmp_path}/own.db")
    with engine.begin() as connection:
        columns = f"number TEXT, buyer TEXT, state TEXT, worth INTEGER, made_at INTEGER, until {kind}"
        connection.exec_driver_sql(f"CREATE TABLE purchase ({columns})")
        connection.exec_driver_sql("INSERT INTO purchase VALUES ('n', 'b', 'PLACED', 1, 1, ?)", (value,))
    mapping = as_mapping({"orders": ORDERS | {"due_ms": "until"}}, "own.toml")
    with pytest.raises(DatabaseUnreadable):
        Inputs(str(engine.url), mapping=mapping).open().export_orders(tmp_path)
