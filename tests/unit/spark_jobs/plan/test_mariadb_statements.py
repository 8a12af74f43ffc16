"""Statements of a plan for MariaDB: each changes its row, and none that a collation takes for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from spark_jobs.inputs.mapping import Mapping, as_mapping
from spark_jobs.plan.sources import PlanSources
from tests.mariadb import MariadbServer, running_mariadb

AT_MS = 1_782_896_400_250  # 2026-07-01 09:00:00.25 UTC
KEY, OTHER = "0b9d2f4e-0000-0000-0000-00000000000a", "0b9d2f4e-0000-0000-0000-00000000000b"


@pytest.fixture(scope="module")
def server() -> Iterator[MariadbServer]:
    with running_mariadb() as running:
        yield running


@pytest.fixture
def engine(server: MariadbServer) -> Iterator[Engine]:
    """The server's database, empty, whose sessions are in another zone than UTC."""
    server.run("DROP DATABASE shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")
    engine = create_engine(f"{server.url}&init_command=SET+time_zone%3D'%2B03:00'")
    yield engine
    engine.dispose()


def run(engine: Engine, *statements: str) -> list[tuple[Any, ...]]:
    """Carry out statements as they are printed; return the rows of the last."""
    with engine.begin() as connection:
        for statement in statements:
            result = connection.exec_driver_sql(statement.replace("%", "%%"))
        return [tuple(row) for row in result] if result.returns_rows else []


def mapped(**names: Any) -> Mapping:
    lacking = dict.fromkeys(("total_pence", "due_ms", "timed_out_ms", "cancelled_ms"), "")
    return as_mapping({"orders": lacking | names, "order_lines": {"table": ""}}, "names.toml")


@pytest.mark.parametrize("key", ["a", "A", "a ", "50%", r"it's a \ ", "🍣"])
def test_an_update_is_of_one_key(server: MariadbServer, engine: Engine, key: str) -> None:
    run(
        engine,
        "CREATE TABLE orders (order_id VARCHAR(20), customer_id TEXT, status TEXT, placed_ms BIGINT,"
        " paid_ms BIGINT)",
    )
    for one in ("a", "A", "a ", "50%", "50%%", r"it''s a \\ ", "🍣", "🍺"):
        run(engine, f"INSERT INTO orders (order_id, status) VALUES ('{one}', 'PLACED')")
    mapping = mapped()
    sources = PlanSources(mapping, orders=server.url.replace("mysql+pymysql", "mysql"))
    statement = sources.update(mapping.orders, key, {"status": "PAID"}, {"status": ["PLACED"]})
    run(engine, statement)
    assert run(engine, "SELECT order_id FROM orders WHERE status = 'PAID'") == [(key,)]


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("DATETIME(3)", "2026-07-01 10:00:00.250"),
        ("TIMESTAMP(3) NULL", "2026-07-01 12:00:00.250"),
        ("BIGINT UNSIGNED", str(AT_MS)),
    ],
)
@pytest.mark.parametrize("key_kind", ["BINARY(16)", "UUID", "CHAR(36)", "ENUM('{0}', '{1}')"])
def test_times_and_keys_are_written_as_the_columns_have_them(
    server: MariadbServer, engine: Engine, kind: str, shown: str, key_kind: str
) -> None:
    run(
        engine,
        f"CREATE TABLE orders (order_id {key_kind.format(KEY, OTHER)}, customer_id TEXT, status BIT(1),"
        f" placed_ms BIGINT, paid_ms {kind})",
    )
    for key in (KEY, OTHER):
        value = f"UNHEX(REPLACE('{key}', '-', ''))" if key_kind == "BINARY(16)" else f"'{key}'"
        run(engine, f"INSERT INTO orders (order_id, status) VALUES ({value}, 0)")
    mapping = mapped(zone="Europe/London", statuses={"PLACED": 0, "PAID": 1})
    sources = PlanSources(mapping, orders=server.url)
    values = {"status": "1", "paid_ms": AT_MS}
    run(engine, sources.update(mapping.orders, KEY, values, {"status": ["0"], "paid_ms": None}))
    found = run(engine, "SELECT CAST(paid_ms AS CHAR) FROM orders WHERE status = 1")
    assert found == [(shown,)]


def test_an_entry_is_inserted_once(server: MariadbServer, engine: Engine) -> None:
    run(
        engine,
        "CREATE TABLE carts (customer_id VARCHAR(9), sku VARCHAR(9), quantity INTEGER)",
        "CREATE TABLE cart_ledger (customer_id VARCHAR(9), entry VARCHAR(9), entry_id VARCHAR(9),"
        " sku VARCHAR(9), quantity INTEGER, at_ms BIGINT)",
        "INSERT INTO cart_ledger VALUES ('C', 'order', 'o1', 'apple', 2, 1)",
    )
    mapping = mapped()
    sources = PlanSources(mapping, carts=server.url)
    named = {"customer_id": "c", "entry": "order", "entry_id": "o1", "sku": "apple"}
    statement = sources.insert(mapping.ledger, named, {"quantity": 2})
    run(engine, statement, statement)
    assert run(engine, "SELECT customer_id FROM cart_ledger ORDER BY BINARY customer_id") == [("C",), ("c",)]
