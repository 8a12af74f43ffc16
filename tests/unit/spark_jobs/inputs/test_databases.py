"""The order and push databases: what is exported, and what is said of one that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, MetaData, create_engine, insert, text

from services.shop.tables import order_metadata, orders
from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs import column_reads, key_ranges, schemas, tables
from spark_jobs.inputs.arrays import UnfitValue, array_of
from spark_jobs.inputs.databases import Database
from spark_jobs.inputs.mapping import SHOP, as_mapping
from tests.mariadb import running_mariadb
from tests.postgresql import running_postgresql

AT_MS = 1_795_219_200_000
ORDERS = 25


@pytest.fixture(scope="module")
def postgresql_url() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


@pytest.fixture(scope="module")
def mariadb_url() -> Iterator[str]:
    with running_mariadb() as server:
        yield server.url


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of four rows, batches of two."""
    monkeypatch.setattr(key_ranges, "ROWS_PER_RANGE", 4)
    monkeypatch.setattr(tables, "ROWS_PER_BATCH", 2)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database as the order service makes it, with three orders."""
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    engine = create_engine(url)
    order_metadata.create_all(engine)
    rows = [
        {"order_id": f"o{number}", "customer_id": "ü", "status": "PLACED", "total_pence": 5}
        | {"placed_ms": AT_MS + number, "due_ms": AT_MS + 9}
        for number in range(3)
    ]
    with engine.begin() as connection:
        connection.execute(insert(orders), rows)
    engine.dispose()
    return url


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty database of each kind."""
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'any.db'}" if is_file else request.getfixturevalue(f"{request.param}_url")
    engine = create_engine(url)
    left = MetaData()
    left.reflect(engine)
    left.drop_all(engine)
    yield engine
    engine.dispose()


def open_orders(url: str) -> Database:
    return Database(url, "--orders", SHOP.orders, SHOP.order_lines)


def opened(engine: Engine, **sections: dict[str, Any]) -> Database:
    mapping = as_mapping(sections, "names.toml")
    return Database(engine.url.render_as_string(hide_password=False), "--orders", mapping.orders)


def change(url: str, statement: str) -> None:
    engine = create_engine(url)
    run(engine, statement)
    engine.dispose()


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def rows_of(folder: Path, name: str = "orders") -> list[dict[str, Any]]:
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def shop_table(key: str, rest: str = "") -> str:
    return (
        f"CREATE TABLE orders (order_id {key}, customer_id VARCHAR(9), status VARCHAR(9), total_pence BIGINT,"
        f" placed_ms BIGINT, due_ms BIGINT, paid_ms BIGINT, timed_out_ms BIGINT, cancelled_ms BIGINT{rest})"
    )


def fill(engine: Engine, order_ids: list[Any]) -> None:
    with engine.begin() as connection:
        statement = text("INSERT INTO orders (order_id, status, placed_ms) VALUES (:id, 'PLACED', :at)")
        connection.execute(statement, [{"id": one, "at": AT_MS + at} for at, one in enumerate(order_ids)])


def test_all_rows_are_exported(url: str, tmp_path: Path) -> None:
    database = open_orders(url)
    assert database.export("orders", tmp_path).rows == 3
    assert database.export("order_lines", tmp_path).rows == 0
    table = pq.read_table(tmp_path / "orders.parquet")
    assert table.schema.equals(schemas.ORDERS)
    assert table["placed_ms"].to_pylist() == [AT_MS, AT_MS + 1, AT_MS + 2]
    assert table["paid_ms"].null_count == 3
    assert pq.read_table(tmp_path / "order_lines.parquet").schema.equals(schemas.ORDER_LINES)


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("key", ["VARCHAR(9) PRIMARY KEY", "BIGINT PRIMARY KEY", "VARCHAR(9)"])
def test_ranges_hold_every_row_once(empty: Engine, tmp_path: Path, key: str) -> None:
    run(empty, shop_table(key))
    ids = [number * 3 if "BIGINT" in key else f"ö{number}" for number in range(ORDERS)]
    fill(empty, ids)
    counts = opened(empty).export("orders", tmp_path)
    assert sorted(row["order_id"] for row in rows_of(tmp_path)) == sorted(map(str, ids))
    assert (counts.rows, counts.duplicates, counts.without_key) == (ORDERS, 0, 0)
    assert len(list((tmp_path / "orders.parquet").iterdir())) > ORDERS // 4


@pytest.mark.usefixtures("small_ranges")
def test_of_rows_with_the_same_key_the_first_stays(empty: Engine, tmp_path: Path) -> None:
    run(empty, shop_table("VARCHAR(9)"))
    fill(empty, [None, "b", "a", *["c"] * 7, "b", None])
    counts = opened(empty).export("orders", tmp_path)
    assert sorted(row["order_id"] for row in rows_of(tmp_path)) == ["a", "b", "c"]
    assert (counts.rows, counts.duplicates, counts.without_key) == (3, 7, 2)
    assert set(counts.duplicate_keys) == {"b", "c"}


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("taken", [["rowid"], ["RowID", "_rowid_"], ["rowid", "_rowid_", "oid"]])
def test_a_column_that_is_called_like_sqlites_row_number_hides_no_row(
    tmp_path: Path, taken: list[str]
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'any.db'}")
    run(engine, shop_table("VARCHAR(9) PRIMARY KEY", "".join(f", {name} INTEGER" for name in taken)))
    ids = [f"o{number}" for number in range(ORDERS)]
    fill(engine, ids)
    run(engine, f"UPDATE orders SET {taken[0]} = 7 WHERE order_id < 'o2'")
    assert opened(engine).export("orders", tmp_path).rows == ORDERS
    assert sorted(row["order_id"] for row in rows_of(tmp_path)) == sorted(ids)
    engine.dispose()


def test_a_primary_key_says_nothing_of_the_tables_that_inherit_it(
    postgresql_url: str, tmp_path: Path
) -> None:
    """A question about a table of PostgreSQL has the rows of its children, whose keys it does not forbid."""
    engine = create_engine(postgresql_url)
    run(engine, "DROP TABLE IF EXISTS orders", shop_table("VARCHAR(9) PRIMARY KEY"))
    run(engine, "CREATE TABLE archived () INHERITS (orders)", "INSERT INTO archived (order_id) VALUES ('a')")
    try:
        fill(engine, ["a", "b"])
        counts = opened(engine).export("orders", tmp_path)
        assert (counts.rows, counts.duplicate_keys) == (2, ["a"])
        assert sorted(row["order_id"] for row in rows_of(tmp_path)) == ["a", "b"]
    finally:
        run(engine, "DROP TABLE orders CASCADE")
        engine.dispose()


def test_the_texts_of_keys_do_not_depend_on_settings(postgresql_url: str, tmp_path: Path) -> None:
    """With fewer digits two keys would be one, which the database tells apart."""
    engine = create_engine(postgresql_url)
    settings = {"extra_float_digits": "-3", "intervalstyle": "iso_8601", "bytea_output": "escape"}
    run(engine, "DROP TABLE IF EXISTS orders")
    try:
        for name, value in settings.items():
            run(engine, f"ALTER DATABASE postgres SET {name} = '{value}'")
        engine.dispose()
        for kind, ids in (("FLOAT8", [0.1234567890123451, 0.1234567890123459]), ("INTERVAL", ["1 day"])):
            run(engine, shop_table(f"{kind} PRIMARY KEY"))
            fill(engine, ids)
            opened(engine).export("orders", tmp_path / kind)
            run(engine, "DROP TABLE orders")
            found = sorted(row["order_id"] for row in rows_of(tmp_path / kind))
            assert found == list(map(str, ids))
    finally:
        for name in settings:
            run(engine, f"ALTER DATABASE postgres RESET {name}")
        engine.dispose()


IGNORING_CASE = {"sqlite": "COLLATE NOCASE", "postgresql": 'COLLATE "ci"', "mysql": ""}
ICU = "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


@pytest.mark.usefixtures("small_ranges")
def test_keys_that_a_collation_takes_for_one_are_each_read_once(
    empty: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_reads, "KEYS_PER_LOOKUP", 1)
    if empty.dialect.name == "postgresql":
        run(empty, "DROP COLLATION IF EXISTS ci", ICU)
    kind = f"VARCHAR(9) {IGNORING_CASE[empty.dialect.name]}"
    run(empty, shop_table(kind), f"CREATE TABLE order_lines (order_id {kind}, sku TEXT, quantity INTEGER)")
    fill(empty, ["a", "A", "a", "B", "A", "b", "a", "A", "c"])
    run(empty, *(f"INSERT INTO order_lines VALUES ('{key}', 's', 1)" for key in "aAAbBc"))
    database = open_orders(empty.url.render_as_string(hide_password=False))
    counts = database.export("orders", tmp_path)
    database.export_rows_of("order_lines", ["A", "a", "b", "A"], tmp_path)
    assert sorted(row["order_id"] for row in rows_of(tmp_path)) == ["A", "B", "a", "b", "c"]
    assert (counts.duplicates, set(counts.duplicate_keys)) == (4, {"a", "A"})
    assert sorted(row["order_id"] for row in rows_of(tmp_path, "order_lines")) == ["A", "A", "a", "b"]


CLOCK_TIMES = {"sqlite": "DATETIME", "postgresql": "TIMESTAMP", "mysql": "DATETIME(3)"}


def with_clock_times(engine: Engine, *times: str) -> None:
    kind = CLOCK_TIMES[engine.dialect.name]
    run(engine, shop_table("BIGINT PRIMARY KEY").replace("placed_ms BIGINT", f"placed_ms {kind}"))
    for number, at in enumerate(times):
        run(engine, f"INSERT INTO orders (order_id, placed_ms) VALUES ({number}, '{at}')")


@pytest.mark.parametrize(
    ("zone", "hours"), [("Europe/London", (9, 10)), ("+05:30", (4.5, 4.5)), ("UTC", (10, 10)), ("", (10, 10))]
)
def test_times_without_a_zone_are_in_that_of_the_mapping(
    empty: Engine, tmp_path: Path, zone: str, hours: tuple[float, float]
) -> None:
    with_clock_times(empty, "2026-07-01 10:00:00", "2026-12-01 10:00:00.25")
    opened(empty, orders={"zone": zone} if zone else {}).export("orders", tmp_path)
    july, december = (int(datetime(2026, month, 1, tzinfo=UTC).timestamp() * 1000) for month in (7, 12))
    assert [row["placed_ms"] for row in sorted(rows_of(tmp_path), key=lambda row: str(row["order_id"]))] == [
        july + hours[0] * 3_600_000,
        december + hours[1] * 3_600_000 + 250,
    ]


@pytest.mark.parametrize(
    ("at", "said"), [("2026-10-25 01:30:00", "is twice on"), ("2026-03-29 01:30:00", "is never on")]
)
def test_a_time_that_clocks_show_twice_or_never_is_named(
    empty: Engine, tmp_path: Path, at: str, said: str
) -> None:
    with_clock_times(empty, "2026-07-01 10:00:00", at)
    with pytest.raises(DatabaseUnreadable) as refused:
        opened(empty, orders={"zone": "Europe/London"}).export("orders", tmp_path)
    assert "column 'placed_ms', row with order_id 1: '" in str(refused.value)
    assert f"' {said} the clocks of Europe/London. Correct the row, or name a view" in str(refused.value)


def test_a_time_with_a_zone_stays_as_it_is(postgresql_url: str, tmp_path: Path) -> None:
    engine = create_engine(postgresql_url)
    run(engine, "DROP TABLE IF EXISTS orders")
    run(engine, shop_table("BIGINT").replace("placed_ms BIGINT", "placed_ms TIMESTAMPTZ"))
    run(engine, "INSERT INTO orders (order_id, placed_ms) VALUES (7, '2026-07-01 10:00:00+00')")
    opened(engine, orders={"zone": "Europe/London"}).export("orders", tmp_path)
    run(engine, "DROP TABLE orders")
    engine.dispose()
    assert rows_of(tmp_path)[0]["placed_ms"] == int(datetime(2026, 7, 1, 10, tzinfo=UTC).timestamp() * 1000)


def test_a_postgresql_whose_clock_is_not_in_utc_needs_a_zone(postgresql_url: str, tmp_path: Path) -> None:
    engine = create_engine(postgresql_url)
    run(engine, "DROP TABLE IF EXISTS orders", "ALTER DATABASE postgres SET timezone = 'Europe/Berlin'")
    try:
        run(engine, shop_table("BIGINT").replace("due_ms BIGINT", "due_ms TIMESTAMP"))
        engine.dispose()
        said = r"times without a zone \(due_ms\), and the server's own clock is in Europe/Berlin\. Write"
        with pytest.raises(DatabaseUnreadable, match=said):
            opened(engine)
        assert opened(engine, orders={"zone": "UTC"}).export("orders", tmp_path).rows == 0
    finally:
        run(engine, "ALTER DATABASE postgres RESET timezone", "DROP TABLE orders")
        engine.dispose()


def test_the_empty_table(empty: Engine, tmp_path: Path) -> None:
    run(empty, shop_table("VARCHAR(9) PRIMARY KEY"))
    assert opened(empty).export("orders", tmp_path).rows == 0
    assert rows_of(tmp_path) == []


def test_a_users_own_table(empty: Engine, tmp_path: Path) -> None:
    run(
        empty,
        "CREATE TABLE purchase (number BIGINT PRIMARY KEY, buyer BIGINT, state INTEGER, amount DECIMAL(9, 0),"
        " at TIMESTAMP(3), settled TIMESTAMP(3))",
        "INSERT INTO purchase VALUES (7, 12, 1, 995, '2026-11-21 10:00:00.5', NULL)",
        "INSERT INTO purchase VALUES (8, 13, 3, 0, '2026-11-21 10:00:01', '2026-11-21 10:00:02')",
    )
    names = {"table": "purchase", "order_id": "number", "customer_id": "buyer", "status": "state"}
    names |= {"total_pence": "amount", "placed_ms": "at", "paid_ms": "settled", "due_ms": ""}
    names |= {"timed_out_ms": "", "cancelled_ms": "", "statuses": {"PLACED": [1, 2], "PAID": 3}}
    opened(empty, orders=names).export("orders", tmp_path)
    first, second = sorted(rows_of(tmp_path), key=lambda row: str(row["order_id"]))
    at_ms = int(datetime(2026, 11, 21, 10, tzinfo=UTC).timestamp() * 1000)
    assert first["order_id"] == "7"
    assert (first["customer_id"], first["status"], first["total_pence"]) == ("12", "PLACED", 995)
    assert (first["placed_ms"], first["paid_ms"], first["due_ms"]) == (at_ms + 500, None, None)
    assert (second["status"], second["paid_ms"]) == ("PAID", at_ms + 2000)


@pytest.mark.parametrize(("money", "second"), [({}, None), ({"currency": "EUR"}, "EUR")])
def test_each_order_has_its_currency(
    empty: Engine, tmp_path: Path, money: dict[str, str], second: str | None
) -> None:
    """That of its row, where it has a column for it, else the one that all amounts are in."""
    run(
        empty,
        shop_table("VARCHAR(9) PRIMARY KEY").replace(
            "total_pence BIGINT", "total_pence BIGINT, coin CHAR(5)"
        ),
        "INSERT INTO orders (order_id, total_pence, coin) VALUES ('a', 300, 'JPY')",
        "INSERT INTO orders (order_id, total_pence, coin) VALUES ('b', 300, NULL)",
    )
    opened(empty, orders={"currency": "coin"}, amounts=money).export("orders", tmp_path)
    assert {row["order_id"]: row["currency"] for row in rows_of(tmp_path)} == {"a": "JPY", "b": second}
    (tmp_path / "all").mkdir()
    opened(empty, amounts=money).export("orders", tmp_path / "all")
    assert [row["currency"] for row in rows_of(tmp_path / "all")] == [second, second]


def test_a_view_takes_a_tables_place(empty: Engine, tmp_path: Path) -> None:
    run(empty, shop_table("VARCHAR(9) PRIMARY KEY"))
    fill(empty, ["a", "b"])
    run(empty, "CREATE VIEW open_orders AS SELECT * FROM orders WHERE order_id > 'a'")
    try:
        assert opened(empty, orders={"table": "open_orders"}).export("orders", tmp_path).rows == 1
    finally:
        run(empty, "DROP VIEW open_orders")


def test_a_table_in_a_schema(postgresql_url: str, tmp_path: Path) -> None:
    engine = create_engine(postgresql_url)
    run(
        engine,
        "CREATE SCHEMA sales",
        shop_table("VARCHAR(9) PRIMARY KEY").replace("TABLE orders", "TABLE sales.orders"),
        "INSERT INTO sales.orders (order_id) VALUES ('a')",
    )
    try:
        assert opened(engine, orders={"table": "sales.orders"}).export("orders", tmp_path).rows == 1
    finally:
        run(engine, "DROP SCHEMA sales CASCADE")
        engine.dispose()


@pytest.mark.usefixtures("small_ranges")
def test_what_changes_meanwhile_is_not_seen(
    empty: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first range and the others, somebody pays every order and places a new one."""
    if empty.dialect.name == "sqlite":
        run(empty, "PRAGMA journal_mode=WAL")
    run(empty, shop_table("VARCHAR(9) PRIMARY KEY"))
    fill(empty, [f"o{number:02}" for number in range(ORDERS)])
    asked = tables.key_ranges

    def meddling(*arguments: Any) -> Any:
        ranges = asked(*arguments)
        run(empty, "UPDATE orders SET status = 'PAID'", "INSERT INTO orders (order_id) VALUES ('new')")
        return ranges

    monkeypatch.setattr(tables, "key_ranges", meddling)
    opened(empty).export("orders", tmp_path)
    found = rows_of(tmp_path)
    assert len(found) == ORDERS
    assert {row["status"] for row in found} == {"PLACED"}


def test_only_the_rows_of_some_keys(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_reads, "KEYS_PER_LOOKUP", 1)
    for number in range(3):
        change(url, f"INSERT INTO order_lines VALUES ('o{number}', 'apple', {number + 1}, 5)")
    open_orders(url).export_rows_of("order_lines", ["o0", "o2", "nobody"], tmp_path)
    assert [(row["order_id"], row["quantity"]) for row in rows_of(tmp_path, "order_lines")] == [
        ("o0", 1),
        ("o2", 3),
    ]
    open_orders(url).export_rows_of("order_lines", [], tmp_path / "none")
    assert rows_of(tmp_path / "none", "order_lines") == []


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.db"
    with pytest.raises(DatabaseUnreadable, match=r"There is no file .*nowhere\.db"):
        open_orders(f"sqlite:///{missing}")
    assert not missing.exists()


def test_a_missing_table_is_named_beside_those_that_there_are(url: str) -> None:
    change(url, "DROP TABLE order_lines")
    with pytest.raises(DatabaseUnreadable, match=r"has no table 'order_lines' \(there are orders\)"):
        open_orders(url)


def test_a_missing_column_is_named_beside_those_that_there_are(url: str) -> None:
    change(url, "ALTER TABLE orders DROP COLUMN paid_ms")
    said = r"no column 'paid_ms' \(there are order_id, .* give paid_ms in \[orders\] .*\(\"\" for paid_ms if"
    with pytest.raises(DatabaseUnreadable, match=said):
        open_orders(url)


def test_everything_that_is_missing_is_told_at_once(url: str) -> None:
    for statement in (
        "ALTER TABLE orders DROP COLUMN paid_ms",
        "ALTER TABLE orders RENAME COLUMN status TO state",
        "ALTER TABLE order_lines RENAME COLUMN sku TO article",
    ):
        change(url, statement)
    with pytest.raises(DatabaseUnreadable) as refused:
        open_orders(url)
    said = str(refused.value)
    assert "has no columns 'status', 'paid_ms' (there are order_id, customer_id" in said
    assert 'give status, paid_ms in [orders] of a --mapping ("" for paid_ms if there is none)' in said
    assert "has no column 'sku' (there are" in said


def test_lines_that_a_shop_does_not_have_are_told_how_to_leave_out(url: str) -> None:
    change(url, "DROP TABLE order_lines")
    with pytest.raises(DatabaseUnreadable, match=r'table = "" if there are no order_lines'):
        open_orders(url)


def test_a_value_of_another_type_is_refused(url: str, tmp_path: Path) -> None:
    change(url, "UPDATE orders SET placed_ms = 'yesterday' WHERE order_id = 'o1'")
    with pytest.raises(DatabaseUnreadable, match="'placed_ms', row with order_id 'o1': 'yesterday' is no"):
        open_orders(url).export("orders", tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("Dear reader, " * 100)
    with pytest.raises(DatabaseUnreadable, match="file is not a database"):
        open_orders(f"sqlite:///{tmp_path / 'letter.db'}")


@pytest.mark.parametrize("url", ["nonsense", "nodialect://x", "", "sqlite+nodriver:///x"])
def test_an_address_of_no_database_is_refused(url: str) -> None:
    with pytest.raises(DatabaseUnreadable, match="--orders is no address of a database"):
        open_orders(url)


def test_a_missing_driver_or_server_is_named_without_the_password() -> None:
    for name in ("postgresql", "postgres"):
        with pytest.raises(DatabaseUnreadable, match="connection failed") as raised:
            open_orders(f"{name}://user:secret@127.0.0.1:1/orders")
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5),
        (Decimal("5"), 5),
        (5.0, 5),
        ("5", 5),
        (datetime(1970, 1, 1, 0, 0, 1), 1000),
        (datetime(1970, 1, 1, 1, tzinfo=UTC), 3_600_000),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000), -1),
        (datetime(1970, 1, 2).date(), 86_400_000),
        ("1970-01-01T00:00:01.5+00:00", 1500),
        (None, None),
    ],
)
def test_times_of_any_type(value: object, expected: int | None) -> None:
    assert array_of(pa.field("at_ms", pa.int64()), [value]).to_pylist() == [expected]


@pytest.mark.parametrize("value", ["soon", 1.5, Decimal("0.1"), 1 << 70, b"\xff", float("nan"), []])
def test_what_is_no_time_or_number_is_refused(value: object) -> None:
    for name in ("at_ms", "quantity"):
        with pytest.raises(UnfitValue, match=r"is no (time|whole number)"):
            array_of(pa.field(name, pa.int64()), [1, value])


def test_ids_of_any_type_become_texts() -> None:
    field = pa.field("order_id", pa.string())
    assert array_of(field, [7, "a", b"b", None, Decimal("8")]).to_pylist() == ["7", "a", "b", None, "8"]
    with pytest.raises(UnfitValue, match="is no text"):
        array_of(field, [1, b"\xff"])
