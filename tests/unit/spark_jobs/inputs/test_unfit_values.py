"""Values that no order, push or cart can have: each is refused with table, column and key, or is never."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, create_engine

from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs.mapping import as_mapping
from spark_jobs.inputs.stores import Inputs
from tests.mariadb import running_mariadb
from tests.postgresql import running_postgresql

TIMES = {"postgresql": ["timestamp", "timestamptz", "date"], "sqlite": ["DATETIME", "TEXT", "DATE"]}
KINDS = [(database, kind) for database, kinds in TIMES.items() for kind in kinds]

ORDERS = (
    "CREATE TABLE orders (order_id BIGINT, customer_id TEXT, status TEXT, total_pence {total}, "
    "placed_ms {time}, due_ms {time}, paid_ms {time}, timed_out_ms {time}, cancelled_ms {time})"
)
PUSHES = (
    "CREATE TABLE pushes (push_id BIGINT, schedule_id TEXT, message_id TEXT, status TEXT, due_ms {time},"
    " delivered_ms {time})"
)
CARTS = "CREATE TABLE carts (customer_id BIGINT, sku TEXT, quantity {total})"
LEDGER = (
    "CREATE TABLE cart_ledger (customer_id BIGINT, entry TEXT, entry_id TEXT, sku TEXT, quantity {total},"
    " at_ms {time})"
)
TABLES = {"orders": ORDERS, "pushes": PUSHES, "carts": CARTS, "cart_ledger": LEDGER}
KEYS = {"orders": "order_id", "pushes": "push_id", "carts": "customer_id", "cart_ledger": "customer_id"}


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


@pytest.fixture(scope="module")
def mariadb_url() -> Iterator[str]:
    with running_mariadb() as server:
        yield server.url


@pytest.fixture
def engine_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """`engine_of(name, time, total)` is a database with all tables, empty, of these types."""
    made: list[Engine] = []

    def make(name: str, time: str = "BIGINT", total: str = "BIGINT") -> Engine:
        is_file = name == "sqlite"
        url = f"sqlite:///{tmp_path / 'any.db'}" if is_file else request.getfixturevalue(f"{name}_url")
        made.append(create_engine(url))
        if name == "mariadb":
            run(made[-1], *(f"DROP TABLE IF EXISTS {table}" for table in TABLES))
        elif not is_file:
            run(made[-1], "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        run(made[-1], *(table.format(time=time, total=total) for table in TABLES.values()))
        return made[-1]

    yield make
    for engine in made:
        engine.dispose()


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def export(engine: Engine, folder: Path) -> list[str]:
    """Export all that there is; return what is told of carts."""
    url = engine.url.render_as_string(hide_password=False)
    opened = Inputs(url, url, url, as_mapping({"order_lines": {"table": ""}}, "names.toml")).open()
    opened.export_orders(folder)
    opened.export_pushes(folder)
    return opened.export_carts(folder)


def refused(engine: Engine, folder: Path) -> str:
    with pytest.raises(DatabaseUnreadable) as raised:
        export(engine, folder)
    return str(raised.value)


@pytest.mark.parametrize(("database", "kind"), KINDS)
def test_infinity_is_never(engine_of: Any, tmp_path: Path, database: str, kind: str) -> None:
    engine = engine_of(database, kind)
    run(
        engine,
        "INSERT INTO orders VALUES (1, 'c', 'PLACED', 5, '2026-11-21', 'infinity', 'infinity', NULL, NULL)",
        "INSERT INTO pushes VALUES (2, 's', 'm', 'SCHEDULED', '2026-11-21', 'infinity')",
    )
    export(engine, tmp_path)
    (order,) = pq.read_table(tmp_path / "orders.parquet").to_pylist()
    (push,) = pq.read_table(tmp_path / "pushes.parquet").to_pylist()
    assert (order["placed_ms"], order["due_ms"], order["paid_ms"]) == (1_795_219_200_000, None, None)
    assert (push["due_ms"], push["delivered_ms"]) == (1_795_219_200_000, None)


@pytest.mark.parametrize("last_day", ["9999-12-31", "9999-12-31 23:59:59"])
@pytest.mark.parametrize(("database", "kind"), KINDS)
def test_an_end_on_the_last_day_of_all_is_never(
    engine_of: Any, tmp_path: Path, database: str, kind: str, last_day: str
) -> None:
    """Columns of times that must have a value have this one, by habit."""
    engine = engine_of(database, kind)
    ends = ", ".join([f"'{last_day}'"] * 4)
    run(
        engine,
        f"INSERT INTO orders VALUES (1, 'c', 'PLACED', 5, '2026-11-21', {ends})",
        f"INSERT INTO pushes VALUES (2, 's', 'm', 'SCHEDULED', '2026-11-21', '{last_day}')",
    )
    export(engine, tmp_path)
    (order,) = pq.read_table(tmp_path / "orders.parquet").to_pylist()
    (push,) = pq.read_table(tmp_path / "pushes.parquet").to_pylist()
    assert [order["paid_ms"], order["timed_out_ms"], order["cancelled_ms"]] == [None] * 3
    assert order["due_ms"] >= 253_402_214_400_000, "it is due then: a deadline that never comes"
    assert push["delivered_ms"] is None


@pytest.mark.parametrize(
    ("table", "column"),
    [("orders", "placed_ms"), ("orders", "due_ms"), ("pushes", "delivered_ms"), ("cart_ledger", "at_ms")],
)
@pytest.mark.parametrize("value", ["20000-01-01", "-infinity"])
@pytest.mark.parametrize(("database", "kind"), KINDS)
def test_a_time_outside_of_all_calendars_is_named(
    engine_of: Any, tmp_path: Path, database: str, kind: str, value: str, table: str, column: str
) -> None:
    engine = engine_of(database, kind)
    run(engine, f"INSERT INTO {table} ({KEYS[table]}, {column}) VALUES (17, '{value}')")
    said = refused(engine, tmp_path)
    assert f"Table '{table}'" in said
    assert f"column '{column}', row with {KEYS[table]} 17: " in said
    assert "is no time" in said


@pytest.mark.parametrize(
    ("table", "column"), [("orders", "total_pence"), ("carts", "quantity"), ("cart_ledger", "quantity")]
)
@pytest.mark.parametrize(
    ("database", "kind", "value", "shown"),
    [
        ("postgresql", "numeric", "NaN", "NaN"),
        ("postgresql", "numeric", "12.50", "12.50"),
        ("postgresql", "numeric", "Infinity", "Infinity"),
        ("postgresql", "numeric", "9223372036854775808", "9223372036854775808"),
        ("postgresql", "double precision", "NaN", "nan"),
        ("postgresql", "text", "1_000", "'1_000'"),
        ("postgresql", "text", "1.2E+3", "'1.2E+3'"),
        ("mariadb", "DECIMAL(12, 2)", "12.50", "12.50"),
        ("mariadb", "BIGINT UNSIGNED", "9223372036854775808", "9223372036854775808"),
        ("mariadb", "DOUBLE", "12.5", "12.5"),
        ("mariadb", "TEXT", "1_000", "'1_000'"),
        ("sqlite", "DECIMAL", "12.50", "12.5"),
        ("sqlite", "TEXT", "NaN", "'NaN'"),
        ("sqlite", "INTEGER", "dear", "'dear'"),
    ],
)
def test_what_is_no_whole_number_is_named(
    engine_of: Any,
    tmp_path: Path,
    database: str,
    kind: str,
    value: str,
    shown: str,
    table: str,
    column: str,
) -> None:
    engine = engine_of(database, total=kind)
    run(
        engine,
        f"INSERT INTO {table} ({KEYS[table]}, {column}) VALUES (16, '5')",
        f"INSERT INTO {table} ({KEYS[table]}, {column}) VALUES (17, '{value}')",
    )
    said = refused(engine, tmp_path)
    assert f"Table '{table}'" in said
    assert f"column '{column}', row with {KEYS[table]} 17: {shown} is no whole number" in said


@pytest.mark.parametrize("ms", [253_402_300_800_000, -62_135_596_800_001, 1_795_219_200_000_000])
def test_milliseconds_that_are_none_are_named(engine_of: Any, tmp_path: Path, ms: int) -> None:
    """Microseconds, for example: they would be orders of the far future."""
    engine = engine_of("sqlite")
    run(engine, f"INSERT INTO orders (order_id, placed_ms) VALUES (17, {ms})")
    assert f"column 'placed_ms', row with order_id 17: {ms} is no time" in refused(engine, tmp_path)


def test_numbers_that_may_have_become_one_key_are_named(engine_of: Any, tmp_path: Path) -> None:
    engine = engine_of("sqlite")
    run(
        engine,
        "DROP TABLE orders",
        ORDERS.format(time="BIGINT", total="BIGINT").replace("order_id BIGINT", "order_id DECIMAL(20)"),
        "INSERT INTO orders (order_id) VALUES ('12345678901234567890')",
    )
    assert "column 'order_id': 1.2345678901234567e+19 is no text" in refused(engine, tmp_path)


@pytest.mark.parametrize("database", ["postgresql", "sqlite", "mariadb"])
def test_rows_without_a_customer_are_told(engine_of: Any, tmp_path: Path, database: str) -> None:
    engine = engine_of(database)
    run(
        engine,
        "INSERT INTO carts VALUES (NULL, 'apple', 1)",
        "INSERT INTO cart_ledger VALUES (NULL, 'add', 'a', 'apple', 1, 1)",
    )
    told = export(engine, tmp_path)
    assert told == ["carts: 1 without customer_id", "ledger: 1 without customer_id"]


def test_repeated_keys_and_rows_without_one_are_told(engine_of: Any, tmp_path: Path) -> None:
    engine = engine_of("sqlite")
    run(
        engine,
        *(f"INSERT INTO orders (order_id, status) VALUES ({key}, 'PAID')" for key in (7, 8, 7, 7, "NULL")),
    )
    url = engine.url.render_as_string(hide_password=False)
    counts = Inputs(url).open().export_orders(tmp_path)
    assert counts.left_out("orders", "order_id") == [
        "orders: 2 with the order_id of an earlier row: 7",
        "orders: 1 without order_id",
    ]
