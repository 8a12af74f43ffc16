"""Tables in MariaDB: its collations, dates, booleans, errors, and how it is read."""

from __future__ import annotations

import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, text

from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs import column_reads, key_ranges, tables
from spark_jobs.inputs.databases import Database
from spark_jobs.inputs.mapping import SHOP, as_mapping
from spark_jobs.inputs.stores import Inputs
from tests.mariadb import MariadbServer, running_mariadb

COLLATIONS = ["utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin", "utf8mb4_unicode_nopad_ci"]
KEYS = st.lists(st.text(alphabet="aAäÄß s7🍣🍺", max_size=3), max_size=12)


@pytest.fixture(scope="module")
def server() -> Iterator[MariadbServer]:
    with running_mariadb() as running:
        yield running


@pytest.fixture
def engine(server: MariadbServer) -> Iterator[Engine]:
    """The server's database, empty."""
    server.run("DROP DATABASE shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")
    engine = create_engine(server.url)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def small_ranges() -> Iterator[None]:
    """Ranges of two rows, batches and questions of two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_ranges, "ROWS_PER_RANGE", 2)
        patch.setattr(tables, "ROWS_PER_BATCH", 2)
        patch.setattr(column_reads, "KEYS_PER_LOOKUP", 2)
        yield


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def orders_table(key: str = "BIGINT PRIMARY KEY", status: str = "VARCHAR(9)", time: str = "BIGINT") -> str:
    return (
        f"CREATE TABLE orders (order_id {key}, customer_id VARCHAR(240), status {status}, total_pence BIGINT,"
        f" placed_ms {time}, due_ms {time}, paid_ms {time}, timed_out_ms {time}, cancelled_ms {time})"
    )


def opened(url: str, **sections: dict[str, Any]) -> Database:
    return Database(url, "--orders", as_mapping(sections, "names.toml").orders)


def export(engine: Engine, folder: Path, **sections: dict[str, Any]) -> list[dict[str, Any]]:
    """Export the orders; return them, in the order of their ids."""
    url = engine.url.render_as_string(hide_password=False)
    Inputs(url, mapping=as_mapping(sections, "names.toml")).open().export_orders(folder)
    found = pq.read_table(folder / "orders.parquet").to_pylist()
    return sorted(found, key=lambda row: str(row["order_id"]))


def refused(url: str, folder: Path, **sections: dict[str, Any]) -> str:
    with pytest.raises(DatabaseUnreadable) as raised:
        opened(url, **sections).export("orders", folder)
    return str(raised.value)


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("collation", COLLATIONS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=KEYS)
def test_keys_that_a_collation_takes_for_one_are_each_read_once(
    server: MariadbServer, collation: str, keys: list[str]
) -> None:
    engine = create_engine(server.url)
    kind = f"VARCHAR(9) CHARACTER SET utf8mb4 COLLATE {collation}"
    run(engine, "DROP TABLE IF EXISTS orders, order_lines", orders_table(f"{kind}, KEY (order_id)"))
    run(engine, f"CREATE TABLE order_lines (order_id {kind}, sku TEXT, quantity INTEGER, KEY (order_id))")
    with engine.begin() as connection:
        for key in keys:
            connection.execute(text("INSERT INTO orders (order_id) VALUES (:key)"), {"key": key})
            connection.execute(text("INSERT INTO order_lines VALUES (:key, 's', 1)"), {"key": key})
    engine.dispose()
    asked = sorted(set(keys))[::2]
    with tempfile.TemporaryDirectory() as name:
        folder, database = Path(name), Database(server.url, "--orders", SHOP.orders, SHOP.order_lines)
        counts = database.export("orders", folder)
        database.export_rows_of("order_lines", [*asked, *asked, "nobody"], folder)
        database.close()
        found = pq.read_table(folder / "orders.parquet")["order_id"].to_pylist()
        lines = pq.read_table(folder / "order_lines.parquet")["order_id"].to_pylist()
    assert sorted(found) == sorted(set(keys))
    assert counts.duplicates == len(keys) - len(set(keys))
    assert Counter(lines) == Counter(key for key in keys if key in asked)


@pytest.mark.parametrize("kind", ["DATETIME", "DATETIME(6)", "DATE", "TIMESTAMP"])
def test_a_zero_date_is_never(engine: Engine, tmp_path: Path, kind: str) -> None:
    zero = f"{kind} NOT NULL DEFAULT 0"
    run(
        engine,
        orders_table(time=zero),
        "INSERT INTO orders (order_id, status, placed_ms) VALUES (7, 'PLACED', '2026-11-21')",
        "INSERT INTO orders (order_id, status) VALUES (8, 'PAID')",
    )
    first, second = export(engine, tmp_path)
    assert (first["placed_ms"], first["due_ms"], first["paid_ms"]) == (1_795_219_200_000, None, None)
    assert second["placed_ms"] is None


@pytest.mark.parametrize("column", ["placed_ms", "paid_ms"])
@pytest.mark.parametrize("value", ["2026-00-00", "2026-11-00"])
def test_a_date_without_a_day_is_named(engine: Engine, tmp_path: Path, value: str, column: str) -> None:
    run(
        engine,
        orders_table(time="DATETIME"),
        "SET sql_mode = ''",
        f"INSERT INTO orders (order_id, {column}) VALUES (17, '{value}')",
    )
    said = refused(str(engine.url), tmp_path)
    assert f"column '{column}', row with order_id 17: '{value} 00:00:00' is no time" in said


def test_times_are_read_to_the_millisecond_whatever_the_sessions_zone_is(
    server: MariadbServer, engine: Engine, tmp_path: Path
) -> None:
    run(
        engine,
        orders_table(time="DATETIME(6)").replace("due_ms DATETIME(6)", "due_ms TIMESTAMP(3)"),
        "SET time_zone = '+03:00'",
        "INSERT INTO orders VALUES (7, 'c', 'PLACED', 5, '2026-11-21 10:00:00.123999',"
        " '2026-11-21 13:00:00.5', '1969-12-31 23:59:59.999', NULL, NULL)",
    )
    server.run("SET GLOBAL time_zone = '-08:00'")
    try:
        (order,) = export(engine, tmp_path, orders={"zone": "UTC"})
    finally:
        server.run("SET GLOBAL time_zone = 'SYSTEM'")
    times = [order[name] for name in ("placed_ms", "due_ms", "paid_ms", "timed_out_ms")]
    assert times == [1_795_255_200_123, 1_795_255_200_500, -1, None]


def test_a_server_whose_clock_is_not_in_utc_needs_a_zone(
    server: MariadbServer, engine: Engine, tmp_path: Path
) -> None:
    run(engine, orders_table(time="DATETIME"), "INSERT INTO orders (order_id) VALUES (7)")
    server.run("SET GLOBAL time_zone = '+02:00'")
    try:
        said = refused(str(engine.url), tmp_path)
        assert "has times without a zone (placed_ms, due_ms, paid_ms" in said
        assert "the server's own clock is in +02:00. Write the zone" in said
        assert 'zone = "UTC", in [orders] of a --mapping' in said
        assert opened(str(engine.url), orders={"zone": "+02:00"}).export("orders", tmp_path).rows == 1
        run(engine, "DROP TABLE orders", orders_table(time="TIMESTAMP NULL"))
        assert opened(str(engine.url)).export("orders", tmp_path / "timestamps").rows == 0
    finally:
        server.run("SET GLOBAL time_zone = 'SYSTEM'")


@pytest.mark.parametrize("kind", ["BOOLEAN", "TINYINT(1)", "BIT(1)", "BIT"])
def test_a_boolean_is_a_status_by_either_name(engine: Engine, tmp_path: Path, kind: str) -> None:
    run(engine, orders_table(status=kind), "INSERT INTO orders (order_id, status) VALUES (7, 1), (8, 0)")
    for number, statuses in enumerate(({"PAID": True, "PLACED": False}, {"PAID": 1, "PLACED": 0})):
        found = export(engine, tmp_path / str(number), orders={"statuses": statuses})
        assert [row["status"] for row in found] == ["PAID", "PLACED"]


def test_statuses_of_an_enum_are_told_by_their_words(engine: Engine, tmp_path: Path) -> None:
    run(
        engine,
        orders_table(status="ENUM('new', 'Paid', 'gone')"),
        "INSERT INTO orders (order_id, status) VALUES (7, 'paid'), (8, 'new'), (9, 3)",
    )
    found = export(
        engine, tmp_path, orders={"statuses": {"PAID": "Paid", "PLACED": "new", "CANCELLED": "gone"}}
    )
    assert [row["status"] for row in found] == ["PAID", "PLACED", "CANCELLED"]
    url = engine.url.render_as_string(hide_password=False)
    with pytest.raises(DatabaseUnreadable, match="'Paid' 1 times, 'gone' 1 times, 'new' 1 times"):
        Inputs(url).open().export_orders(tmp_path / "unmapped")


def test_a_view_in_another_database_takes_a_tables_place(engine: Engine, tmp_path: Path) -> None:
    run(
        engine,
        orders_table(),
        "INSERT INTO orders (order_id, status) VALUES (7, 'PAID'), (8, 'draft')",
        "CREATE OR REPLACE VIEW shop.placed AS SELECT * FROM orders WHERE status <> 'draft'",
    )
    elsewhere = create_engine(engine.url.set(database="mysql"))
    assert [row["order_id"] for row in export(elsewhere, tmp_path, orders={"table": "shop.placed"})] == ["7"]
    elsewhere.dispose()


def test_every_character_is_read_whatever_the_url_says(engine: Engine, tmp_path: Path) -> None:
    run(engine, orders_table("VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY"))
    run(engine, "INSERT INTO orders (order_id, status) VALUES ('🍣', 'PAID'), ('🍺', 'PAID'), ('ö', 'PAID')")
    url = engine.url.update_query_dict({"charset": "latin1"})
    assert {row["order_id"] for row in export(create_engine(url), tmp_path)} == {"🍣", "🍺", "ö"}


@pytest.mark.parametrize("scheme", ["mysql", "mariadb", "mariadb+pymysql"])
def test_a_url_need_not_name_the_driver(engine: Engine, tmp_path: Path, scheme: str) -> None:
    run(engine, orders_table("DATETIME PRIMARY KEY"), "INSERT INTO orders (order_id) VALUES ('2026-11-21')")
    url = str(engine.url.set(drivername=scheme))
    opened(url).export("orders", tmp_path)
    assert pq.read_table(tmp_path / "orders.parquet")["order_id"].to_pylist() == ["2026-11-21 00:00:00"]


def test_a_table_is_not_held_in_memory(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less may be held than two thirds of its texts; all rows would take three times as much."""
    monkeypatch.setattr(tables, "ROWS_PER_BATCH", 2_000)
    run(engine, orders_table())
    run(engine, "INSERT INTO orders (order_id, customer_id) SELECT seq, REPEAT('c', 240) FROM seq_1_to_24000")
    tracemalloc.start()
    try:
        assert opened(str(engine.url)).export("orders", tmp_path).rows == 24_000
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 24_000 * 240 * 2 / 3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"username": "auditor", "password": "wrong"}, "says: Access denied for user 'auditor'@'localhost'"),
        ({"database": "shopp"}, "says: Access denied for user 'auditor'@'%' to database 'shopp'"),
        ({"username": "root", "password": "", "database": "shopp"}, "says: Unknown database 'shopp'"),
        ({"database": ""}, "names no database. Write it in --orders behind the host"),
        ({"query": {"unix_socket": "/nowhere/socket"}}, "says: Can't connect to MySQL server"),
        ({"query": {"sslmode": "require"}}, "unexpected keyword argument 'sslmode'"),
    ],
)
def test_a_database_that_cannot_be_had_is_one_sentence(
    server: MariadbServer, engine: Engine, tmp_path: Path, changed: dict[str, Any], said: str
) -> None:
    server.run("CREATE OR REPLACE USER auditor IDENTIFIED BY 'right'", "GRANT SELECT ON shop.* TO auditor")
    run(engine, orders_table())
    url = engine.url.set(username="auditor", password="right")
    assert opened(url.render_as_string(hide_password=False)).export("orders", tmp_path).rows == 0
    told = refused(url.set(**changed).render_as_string(hide_password=False), tmp_path)
    assert said in told
    assert "--orders" in told
    assert "right" not in told
    assert "wrong" not in told


def test_a_table_that_there_is_not_is_named_beside_those_that_there_are(
    engine: Engine, tmp_path: Path
) -> None:
    run(engine, orders_table())
    said = refused(str(engine.url), tmp_path, orders={"table": "purchase"})
    assert "has no table 'purchase' (there are orders)" in said


def test_a_missing_driver_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    said = refused("mysql://shop:secret@127.0.0.1/shop", tmp_path)
    assert (
        "needs the driver pymysql, which is not installed. Install it (pip install 'tidewheel[mysql]')"
        in said
    )
    assert "secret" not in said


def test_what_changes_meanwhile_is_not_seen_in_the_carts_either(engine: Engine, tmp_path: Path) -> None:
    """Carts and ledger are of one view."""
    run(
        engine,
        "CREATE TABLE carts (customer_id VARCHAR(9), sku VARCHAR(9), quantity INTEGER UNSIGNED)",
        "CREATE TABLE cart_ledger (customer_id CHAR(9), entry ENUM('add', 'order'), entry_id BINARY(16),"
        " sku VARCHAR(9), quantity TINYINT UNSIGNED, at_ms DATETIME(3))",
        "INSERT INTO carts VALUES ('c', 'apple', 2), ('C', 'apple', 3)",
        "INSERT INTO cart_ledger VALUES ('c', 'add', x'00', 'apple', 3, '2026-11-21 10:00:00'),"
        " ('c', 'order', x'01', 'apple', 1, '0000-00-00'), ('C', 'add', x'02', 'apple', 3, NULL)",
    )
    database = Database(str(engine.url), "--carts", SHOP.carts, SHOP.ledger)
    exported = database._export

    def meddling(connection: Any, ours: str, *rest: Any) -> Any:
        counts = exported(connection, ours, *rest)
        run(engine, "DELETE FROM cart_ledger")
        return counts

    database._export = meddling  # type: ignore[method-assign]
    counts = database.export_together(("carts", "ledger"), tmp_path)
    database.close()
    assert {name: one.rows for name, one in counts.items()} == {"carts": 2, "ledger": 3}
    ledger = pq.read_table(tmp_path / "ledger.parquet").to_pylist()
    assert [row["at_ms"] for row in ledger] == [
        1_795_255_200_000,
        None,
        None,
    ]
    assert [row["entry_id"][:2] for row in ledger] == ["00", "01", "02"]
