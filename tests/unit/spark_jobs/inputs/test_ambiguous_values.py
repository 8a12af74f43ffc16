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

AT_MS = 1_795_219_200_000
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
            row = {"number": f"n{number}", "state": state, "at": AT_MS}
            connection.execute(text("INSERT INTO purchase VALUES (:number, 'b', :state, 1, :at)"), row)
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
    assert 'as PLACED = ["PLACED", "TIMED_OUT"]' in str(refused.value)


def test_a_status_that_is_not_mentioned_keeps_our_name(tmp_path: Path) -> None:
    states = exported(tmp_path, {"PLACED": "PAID", "PAID": "settled"}, "PAID", "settled", "CANCELLED")
    assert states == ["PLACED", "PAID", "CANCELLED"]


def with_keys(tmp_path: Path, kind: str, *keys: Any) -> list[str]:
    engine = create_engine(f"sqlite:///{tmp_path}/own.db")
    with engine.begin() as connection:
        columns = f"number {kind}, buyer TEXT, state TEXT, worth INTEGER, made_at INTEGER"
        connection.exec_driver_sql(f"CREATE TABLE purchase ({columns})")
        for key in keys:
            row = (key, AT_MS)
            connection.exec_driver_sql("INSERT INTO purchase VALUES (?, 'b', 'PLACED', 1, ?)", row)
    mapping = as_mapping({"orders": ORDERS}, "own.toml")
    Inputs(str(engine.url), mapping=mapping).open().export_orders(tmp_path)
    return sorted(row["order_id"] for row in pq.read_table(tmp_path / "orders.parquet").to_pylist())


@pytest.mark.parametrize("kind", ["", "BLOB"])
def test_a_number_and_a_text_that_are_one_id_are_refused_with_a_sentence(tmp_path: Path, kind: str) -> None:
    """Both rows came through as order 7, and the audit ended as "Spark gave up": an id twice in a join."""
    with pytest.raises(DatabaseUnreadable, match=r"column 'number', has keys .*: '7', '8'\. Correct"):
        with_keys(tmp_path, kind, 7, "7", b"8", "8", 9, "x")


@pytest.mark.parametrize("kind", ["TEXT", "TEXT PRIMARY KEY", "VARCHAR(9)", "INTEGER", "INTEGER UNIQUE"])
def test_bytes_and_a_text_or_number_that_are_one_id_are_refused_with_a_sentence(
    tmp_path: Path, kind: str
) -> None:
    """A column that makes texts of numbers, or numbers of texts, keeps bytes as they are."""
    with pytest.raises(DatabaseUnreadable, match=r"column 'number', has keys .*: '8'\. Correct"):
        with_keys(tmp_path, kind, 7, b"8", "8", "9")


def test_bytes_beside_texts_that_are_several_ids_are_read(tmp_path: Path) -> None:
    assert with_keys(tmp_path, "TEXT PRIMARY KEY", "7", b"8", b"x", "X") == ["7", "8", "X", "x"]


def test_bytes_that_are_no_text_are_refused_by_the_users_name_of_the_column(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnreadable, match=r"encode\(number, 'hex'\)"):
        with_keys(tmp_path, "TEXT", b"\xff")


def test_numbers_and_texts_that_are_several_ids_are_read(tmp_path: Path) -> None:
    assert with_keys(tmp_path, "", 7, "7 ", "07", 7.5, "x", "X") == ["07", "7", "7 ", "7.5", "X", "x"]


def with_due(tmp_path: Path, kind: str, value: Any) -> int | None:
    """Return a deadline as the audit reads it of a column of a kind."""
    engine = create_engine(f"sqlite:///{tmp_path}/own.db")
    with engine.begin() as connection:
        columns = f"number TEXT, buyer TEXT, state TEXT, worth INTEGER, made_at INTEGER, until {kind}"
        connection.exec_driver_sql(f"CREATE TABLE purchase ({columns})")
        connection.exec_driver_sql(
            f"INSERT INTO purchase VALUES ('n', 'b', 'PLACED', 1, {AT_MS}, ?)", (value,)
        )
    mapping = as_mapping({"orders": ORDERS | {"due_ms": "until"}}, "own.toml")
    Inputs(str(engine.url), mapping=mapping).open().export_orders(tmp_path)
    due_ms: int | None = pq.read_table(tmp_path / "orders.parquet")["due_ms"].to_pylist()[0]
    return due_ms


@pytest.mark.parametrize("kind", ["TEXT", "BIGINT", "DATETIME", ""])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (20261121153000, "2612-01-24: it looks like a date written as digits, YYYYMMDDhhmmss"),
        (202611211530, "1976-06-03: it looks like a date written as digits, YYYYMMDDhhmm"),
        (20261121, "1970-01-01: it looks like a date written as digits, YYYYMMDD"),
        (
            20261121153000123,
            "about the year 643,953: it looks like a date written as digits, YYYYMMDDhhmmssfff",
        ),
        (1_795_219_200, "1970-01-21: it looks like seconds since 1970"),
        (1_795_219_200_000_000, "about the year 58,857: it looks like microseconds since 1970"),
        (1_795_219_200_000_000_000, "about the year 56,890,000: it looks like nanoseconds since 1970"),
        (20_778, "1970-01-01: it looks like days since 1970"),
        (0, "1970-01-01: it looks like a time that is not set"),
        (-1, "1969-12-31: it is in no unit that is known"),
        (20261321000000, "2612-01-26: it is in no unit that is known"),
    ],
)
def test_a_number_that_is_no_plausible_time_is_refused_with_its_unit(
    tmp_path: Path, kind: str, value: int, said: str
) -> None:
    """As milliseconds it would be a deadline in 2612, say: an unpaid order would be in flight until then, and
    the books balance.
    """
    with pytest.raises(DatabaseUnreadable) as refused:
        with_due(tmp_path, kind, str(value) if kind == "TEXT" else value)
    told = str(refused.value)
    assert "Table 'purchase' of " in told
    assert ", column 'until', row with number 'n': " in told
    assert f"{value}' is no time" in told if kind == "TEXT" else f" {value} is no time" in told
    assert said.split(": ")[1] in told
    assert "in milliseconds since 1970, where it is " in told
    assert (
        "Correct the row, or write in [orders] of a --mapping, as table, the name of a view that has " in told
    )


@pytest.mark.parametrize(
    ("value", "sql"),
    [
        (1_795_219_200, "until * 1000 in its place"),
        (1_795_219_200_000_000, "until / 1000 in its place"),
        (0, "NULLIF(until, 0) in its place"),
        (20261121153000, "to_timestamp(CAST(until AS TEXT), 'YYYYMMDDHH24MISS') in PostgreSQL"),
        (20261121153000, "STR_TO_DATE(until, '%Y%m%d%H%i%s') in MySQL in its place"),
        (-1, "milliseconds since 1970, or a timestamp, as due_ms"),
    ],
)
def test_what_to_write_for_a_number_of_another_unit_is_told(tmp_path: Path, value: int, sql: str) -> None:
    with pytest.raises(DatabaseUnreadable) as refused:
        with_due(tmp_path, "BIGINT", value)
    assert sql in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "value", "ms"),
    [
        ("BIGINT", AT_MS, AT_MS),
        ("TEXT", str(AT_MS), AT_MS),
        ("BIGINT", None, None),
        ("BIGINT", 253_402_300_799_000, 253_402_300_799_000),
        ("TEXT", "1970-01-01T00:00:01Z", 1000),
        ("TEXT", "2612-01-24T00:00:00Z", 20_261_491_200_000),
    ],
)
def test_plausible_numbers_and_all_timestamps_are_times(
    tmp_path: Path, kind: str, value: Any, ms: int | None
) -> None:
    """A timestamp says what it is; that of a far day is meant."""
    assert with_due(tmp_path, kind, value) == ms
