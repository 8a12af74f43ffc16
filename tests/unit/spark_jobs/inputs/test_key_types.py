"""Keys of any type, in every table that the audit reads: each becomes the text that messages have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, create_engine

from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs import column_reads, key_ranges, tables
from spark_jobs.inputs.databases import Database
from spark_jobs.inputs.mapping import SHOP, as_mapping
from spark_jobs.inputs.stores import Inputs
from tests.mariadb import running_mariadb
from tests.postgresql import running_postgresql


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of one type: as SQL has them in quotes, and the texts that they become."""

    given: tuple[str, ...]
    texts: tuple[str, ...]


def alike(*keys: str) -> Keys:
    """Keys that become what was given."""
    return Keys(keys, keys)


UUIDS: Final = tuple(str(UUID(int=number << 120 | 7)) for number in range(11))

POSTGRESQL: Final = {
    "uuid": alike(*UUIDS),
    "boolean": alike("false", "true"),
    "bytea": alike(*(f"b-{number}" for number in range(9))),
    "smallint": alike(*map(str, range(-4, 5))),
    "bigint": alike("-5", "0", "7", "9", "10"),
    "numeric": alike("-1", "0.0000001", "7", "7.5", "123456789012345678901234567890"),
    "numeric(9, 2)": Keys(("7", "7.5", "8"), ("7.00", "7.50", "8.00")),
    "double precision": alike("-1.5", "7", "8", "9", "10", "11"),
    "text": alike("a", "a ", " a", *(f"ö'{number}" for number in range(9))),
    "varchar(9)": alike("a", "a b", "B", "C", "d", "E"),
    "char(9)": alike("a", "a b", "B", "C", "d", "E"),
    "date": alike("0001-01-01", "2026-11-21", "2026-11-22", "2026-11-23", "20000-01-01", "infinity"),
    "timestamp": alike(
        "2026-11-21 10:00:00", "2026-11-21 10:00:00.5", "20000-01-01 00:00:00", "infinity", "-infinity"
    ),
    "timestamptz": Keys(
        ("2026-10-25 01:30:00+01", "2026-10-25 01:30:00+00", "2026-10-25 01:30:00-01", "infinity", "epoch"),
        (
            "2026-10-25 00:30:00+00",
            "2026-10-25 01:30:00+00",
            "2026-10-25 02:30:00+00",
            "infinity",
            "1970-01-01 00:00:00+00",
        ),
    ),
    "interval": alike("01:00:00", "02:00:00", "03:00:00", "04:00:00", "1 mon", "1 year"),
    "cidr": alike("10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/16"),
    "integer[]": alike("{1,2}", "{1,3}", "{2}", "{3}", "{4}"),
    "jsonb": alike('"a"', '"b"', "3", "4", "5"),
    "code": alike("C-1", "C-2", "C-3", "C-4", "C-5"),
    "letter": alike("a", "b", "c", "d", "e"),
}
"""`code` is a domain over char(9), `letter` an enumeration."""

SQLITE: Final = {
    "TEXT": alike("a", "a ", " a", "a b", "B", "C", "d", "7"),
    "CHAR(9)": Keys(("a       ", "a b", "B ", "C", "d"), ("a", "a b", "B", "C", "d")),
    "INTEGER": alike("-5", "0", "7", "9", "8"),
    "DECIMAL(9, 2)": Keys(("7.00", "7.50", "8", "9", "10"), ("7", "7.5", "8", "9", "10")),
    "REAL": alike("-1.5", "7", "8", "9", "10", "11"),
    "BOOLEAN": Keys(("0", "1"), ("0", "1")),
    "UUID": alike(*UUIDS),
    "DATE": alike("2026-11-21", "2026-11-22", "2026-11-23", "2026-11-24", "2026-11-25"),
    "DATETIME": alike("2026-11-21T10:00:00", "2026-11-21 10:00:00", "2026-11-22", "soon", "later", "c"),
    "BLOB": alike("a", "a b", "B", "C", "d", "7"),
    "": alike("a", "a b", "B", "C", "d", "7"),
}

MARIADB: Final = {
    "VARCHAR(20)": alike("a", " a", "B", "c", "7", "ö'1", "ß", "🍣", "50%"),
    "VARCHAR(20) COLLATE utf8mb4_bin": alike("a", "A", "B", "b", "ä", "Ä"),
    "VARCHAR(20) CHARACTER SET latin1": alike("a", "ö", "é", "B", "c"),
    "CHAR(9)": alike("a", "a b", "B", "C", "d", "E"),
    "TINYINT(1)": alike("0", "1"),
    "BIGINT": alike("-5", "0", "7", "9", "10"),
    "BIGINT UNSIGNED": alike("0", "7", "9007199254740993", "9223372036854775808", "18446744073709551615"),
    "BIT(1)": alike("0", "1"),
    "BIT(9)": alike("0", "5", "256", "300", "511"),
    "DECIMAL(9, 2)": Keys(("7", "7.5", "8"), ("7.00", "7.50", "8.00")),
    "DECIMAL(30)": alike("-1", "7", "8", "123456789012345678901234567890"),
    "DOUBLE": alike("-1.5", "7", "8", "9", "10", "11"),
    "FLOAT": Keys(
        ("0.1", "0.2", "7", "16777216"), ("0.10000000149011612", "0.20000000298023224", "7", "16777216")
    ),
    "BINARY(16)": alike(*UUIDS),
    "BINARY(9)": alike("a", "a b", "B", "b", "A"),
    "VARBINARY(20)": alike("a", "a ", "A", "B", "b", "ö"),
    "UUID": alike(*UUIDS),
    "ENUM('d', 'b', 'a', 'C', 'e')": alike("a", "b", "C", "d", "e"),
    "SET('y', 'x')": alike("x", "y", "y,x"),
    "DATE": alike("0000-00-00", "2026-11-21", "2026-11-22", "2026-11-23", "2026-11-24"),
    "DATETIME": alike(
        "0000-00-00 00:00:00", "2026-11-21 10:00:00", "2026-11-22 10:00:00", "2026-11-23 10:00:00"
    ),
    "DATETIME(3)": alike("2026-11-21 10:00:00.000", "2026-11-21 10:00:00.500", "2026-11-22 10:00:00.000"),
    "TIMESTAMP": alike("2026-11-21 10:00:00", "2026-11-22 10:00:00", "2026-11-23 10:00:00"),
    "YEAR": alike("2024", "2025", "2026", "2027"),
    "INET6": alike("::1", "::2", "::3", "2001:db8::ff"),
}
"""The database's own collation takes `a` for `A`, and blanks at the end for nothing."""

KINDS: Final = {"postgresql": POSTGRESQL, "sqlite": SQLITE, "mariadb": MARIADB}
TYPES: Final = [(database, kind) for database, kinds in KINDS.items() for kind in kinds]


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Engine]:
    with running_postgresql() as url:
        engine = create_engine(url)
        letter = "CREATE TYPE letter AS ENUM ('a', 'b', 'c', 'd', 'e')"
        run(engine, "CREATE DOMAIN code AS char(9)", letter)
        yield engine
        engine.dispose()


@pytest.fixture(scope="module")
def mariadb() -> Iterator[Engine]:
    with running_mariadb() as server:
        engine = create_engine(server.url)
        yield engine
        engine.dispose()


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of two rows, batches of two; numbers of 64 bits, which lie far apart, in few ranges."""
    monkeypatch.setattr(key_ranges, "ROWS_PER_RANGE", 2)
    monkeypatch.setattr(key_ranges, "RANGES_MAX", 16)
    monkeypatch.setattr(tables, "ROWS_PER_BATCH", 2)


@pytest.fixture
def engine_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """`engine_of(name)` is an empty database of that kind."""
    made: list[Engine] = []

    def make(name: str) -> Engine:
        is_file = name == "sqlite"
        made.append(
            create_engine(f"sqlite:///{tmp_path / 'any.db'}") if is_file else request.getfixturevalue(name)
        )
        return made[-1]

    yield make
    for engine in made:
        run(engine, *(f"DROP TABLE IF EXISTS {table}" for table in TABLES))
        engine.dispose()


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def keys_of(database: str, kind: str) -> Keys:
    return KINDS[database][kind]


def literal(key: str, kind: str) -> str:
    """Return a key as SQL has it."""
    quoted = "'" + key.replace("'", "''") + "'"
    if kind == "BINARY(16)":
        return f"UNHEX(REPLACE({quoted}, '-', ''))"
    if kind.startswith("BIT"):
        return f"CAST({quoted} AS UNSIGNED)"
    return f"CAST({quoted} AS BLOB)" if kind == "BLOB" else quoted


def literals(keys: Keys, kind: str) -> list[str]:
    """Return all keys as SQL has them."""
    return [literal(key, kind) for key in keys.given]


def fill(engine: Engine, table: str, rows: Iterable[str]) -> None:
    """Insert rows as SQL has them, without their brackets."""
    values = ", ".join(f"({row})" for row in rows)
    run(engine, f"INSERT INTO {table} VALUES {values}".replace("%", "%%"))


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


AT_MS = 1_795_831_976_888
TABLES = ("orders", "pushes", "order_lines", "carts", "cart_ledger")
ORDERS = (
    "CREATE TABLE orders (order_id {}, customer_id {}, status VARCHAR(9), total_pence BIGINT,"
    " placed_ms BIGINT, due_ms BIGINT, paid_ms BIGINT, timed_out_ms BIGINT, cancelled_ms BIGINT)"
)
PUSHES = (
    "CREATE TABLE pushes (push_id {}, schedule_id {}, message_id {}, status VARCHAR(9), due_ms BIGINT,"
    " delivered_ms BIGINT)"
)
LINES = "CREATE TABLE order_lines (order_id {}, sku {}, quantity INTEGER)"
CARTS = "CREATE TABLE carts (customer_id {}, sku {}, quantity INTEGER)"
LEDGER = (
    "CREATE TABLE cart_ledger (customer_id {}, entry VARCHAR(9), entry_id {}, sku {}, quantity INTEGER,"
    " at_ms BIGINT)"
)


@pytest.mark.parametrize("is_primary", [True, False])
@pytest.mark.parametrize(("database", "kind"), TYPES)
def test_orders(engine_of: Any, tmp_path: Path, database: str, kind: str, is_primary: bool) -> None:
    keys, engine = keys_of(database, kind), engine_of(database)
    run(engine, ORDERS.format(f"{kind} {'PRIMARY KEY' if is_primary else ''}", kind))
    values, rest = literals(keys, kind), f"'PLACED', 5{f', {AT_MS}' * 5}"
    fill(engine, "orders", [f"{one}, {one}, {rest}" for one in values])
    counts = Inputs(url_of(engine)).open().export_orders(tmp_path)
    found = rows_of(tmp_path, "orders")
    assert sorted(row["order_id"] for row in found) == sorted(keys.texts)
    assert {row["customer_id"] for row in found} == set(keys.texts)
    assert (counts.rows, counts.duplicates, counts.without_key) == (len(keys.texts), 0, 0)


@pytest.mark.parametrize(("database", "kind"), TYPES)
def test_pushes(engine_of: Any, tmp_path: Path, database: str, kind: str) -> None:
    keys, engine = keys_of(database, kind), engine_of(database)
    run(engine, ORDERS.format("TEXT", "TEXT"), PUSHES.format(*[kind] * 3))
    rest = f"'SCHEDULED', {AT_MS}, {AT_MS}"
    fill(engine, "pushes", [f"{one}, {one}, {one}, {rest}" for one in literals(keys, kind)])
    counts = Inputs(url_of(engine), pushes=url_of(engine)).open().export_pushes(tmp_path)
    assert counts is not None
    found = rows_of(tmp_path, "pushes")
    for column in ("push_id", "schedule_id", "message_id"):
        assert sorted(row[column] for row in found) == sorted(keys.texts)
    assert (counts.rows, counts.duplicates, counts.without_key) == (len(keys.texts), 0, 0)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("orders_kind", ["same", "TEXT"])
@pytest.mark.parametrize(("database", "kind"), TYPES)
def test_lines_of_some_orders(
    engine_of: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    database: str,
    kind: str,
    orders_kind: str,
    is_whole: bool,
) -> None:
    """The ids of orders come as texts, of another table, whose key may be of another type."""
    keys, engine = keys_of(database, kind), engine_of(database)
    monkeypatch.setattr(column_reads, "KEYS_PER_LOOKUP", 2)
    monkeypatch.setattr(column_reads, "KEYS_PER_SCAN", 2)
    run(engine, ORDERS.format(kind if orders_kind == "same" else "TEXT", "TEXT"), LINES.format(kind, kind))
    fill(engine, "order_lines", [f"{one}, {one}, 5" for one in literals(keys, kind)])
    opened = Database(url_of(engine), "--orders", SHOP.orders, SHOP.order_lines)
    asked = [*keys.texts] if is_whole else [*keys.texts][::2]
    if is_whole:
        opened.export("order_lines", tmp_path)
    else:
        opened.export_rows_of("order_lines", [*asked, "nobody", "7 ", "-99"], tmp_path)
    found = rows_of(tmp_path, "order_lines")
    assert sorted(row["order_id"] for row in found) == sorted(asked)
    assert sorted(row["sku"] for row in found) == sorted(asked)


@pytest.mark.parametrize("ledger_kind", ["same", "TEXT"])
@pytest.mark.parametrize(("database", "kind"), TYPES)
def test_carts_and_their_ledger(
    engine_of: Any, tmp_path: Path, database: str, kind: str, ledger_kind: str
) -> None:
    """Every cart is what its ledger says, whatever the types of their keys, but the last customer's."""
    keys, engine = keys_of(database, kind), engine_of(database)
    other = kind if ledger_kind == "same" else "TEXT"
    run(engine, ORDERS.format("TEXT", "TEXT"), CARTS.format(kind, kind), LEDGER.format(other, kind, kind))
    values = literals(keys, kind)
    customers = values if ledger_kind == "same" else [literal(one, other) for one in keys.texts]
    held = [2] * (len(values) - 1) + [9]
    fill(engine, "carts", [f"{one}, {one}, {count}" for one, count in zip(values, held, strict=True)])
    entries = [("add", 3), ("order", 1)]
    told = [
        f"{customer}, '{entry}', {one}, {one}, {count}, {AT_MS}"
        for customer, one in zip(customers, values, strict=True)
        for entry, count in entries
    ]
    fill(engine, "cart_ledger", told)
    carts = Inputs(url_of(engine), url_of(engine), mapping=as_mapping({"order_lines": {"table": ""}}, "m"))
    assert carts.open().export_carts(tmp_path) == []
    assert len(rows_of(tmp_path, "carts")) == len(keys.texts)
    assert len(rows_of(tmp_path, "ledger")) == 2 * len(keys.texts)
    last = keys.texts[-1]
    assert rows_of(tmp_path, "differences") == [{"customer_id": last, "sku": last, "cart": 9, "ledger": 2}]
    assert {row["entry_id"] for row in rows_of(tmp_path, "ledger")} == set(keys.texts)


@pytest.mark.parametrize("database", [*KINDS])
def test_bytes_that_are_no_text_are_refused_with_the_way_out(
    engine_of: Any, tmp_path: Path, database: str
) -> None:
    engine = engine_of(database)
    kind = {"postgresql": "bytea", "sqlite": "BLOB", "mariadb": "VARBINARY(9)"}[database]
    run(
        engine,
        ORDERS.format(kind, "TEXT"),
        "CREATE TABLE order_lines (order_id TEXT, sku TEXT, quantity INT)",
    )
    key = r"'\x00ff'" if database == "postgresql" else "X'00FF'"
    run(engine, f"INSERT INTO orders (order_id, status) VALUES ({key}, 'PLACED')")
    with pytest.raises(DatabaseUnreadable, match=r"'orders' .*'order_id'.* 00ff .*view"):
        Inputs(url_of(engine)).open().export_orders(tmp_path)


def test_a_key_that_cannot_be_put_in_order_is_named(engine_of: Any, tmp_path: Path) -> None:
    engine = engine_of("postgresql")
    run(engine, ORDERS.format("json", "TEXT"))
    run(engine, "INSERT INTO orders (order_id, status) VALUES ('3', 'PLACED')")
    with pytest.raises(DatabaseUnreadable, match=r"table 'orders'.*ordering operator"):
        Inputs(url_of(engine)).open().export_orders(tmp_path)


@pytest.mark.parametrize("kind", ["CHAR(12)", "VARCHAR(12)"])
@pytest.mark.parametrize("database", [*KINDS])
def test_only_char_n_loses_its_padding(engine_of: Any, tmp_path: Path, database: str, kind: str) -> None:
    """An id, a customer, a status, an article and an entry, each with blanks behind it."""
    engine, is_padded = engine_of(database), kind.startswith("CHAR")
    run(
        engine,
        ORDERS.replace("VARCHAR(9)", kind).format(kind, kind),
        PUSHES.replace("VARCHAR(9)", kind).format(kind, kind, kind),
        CARTS.format(kind, kind),
        LEDGER.replace("VARCHAR(9)", kind).format(kind, kind, kind),
        "INSERT INTO orders (order_id, customer_id, status) VALUES ('o1  ', 'c1  ', 'settled  ')",
        f"INSERT INTO pushes VALUES ('p1  ', 's1  ', 'm1  ', 'seen  ', {AT_MS}, {AT_MS})",
        "INSERT INTO carts VALUES ('c1  ', 'apple  ', 3)",
        f"INSERT INTO cart_ledger VALUES ('c1  ', 'plus  ', 'a1  ', 'apple  ', 3, {AT_MS})",
    )
    names = {
        "orders": {"statuses": {"PAID": "settled", "PLACED": "settled  "}},
        "pushes": {"statuses": {"DELIVERED": "seen"}},
        "ledger": {"entries": {"add": "plus"}},
        "order_lines": {"table": ""},
    }
    url = url_of(engine)
    opened = Inputs(url, url, url, as_mapping(names, "names.toml")).open()
    opened.export_orders(tmp_path)
    opened.export_pushes(tmp_path)
    unreadable = opened.export_carts(tmp_path)
    (order,), (push,), (held,), (entry,) = (
        rows_of(tmp_path, name) for name in ("orders", "pushes", "carts", "ledger")
    )
    blanks = "" if is_padded else "  "
    assert order["order_id"] == f"o1{blanks}"
    assert order["customer_id"] == held["customer_id"] == entry["customer_id"] == f"c1{blanks}"
    assert [push[name] for name in ("push_id", "schedule_id", "message_id")] == [
        f"{name}1{blanks}" for name in "psm"
    ]
    assert entry["entry_id"] == f"a1{blanks}"
    assert held["sku"] == entry["sku"] == f"apple{blanks}"
    statuses = order["status"], push["status"], entry["entry"]
    assert statuses == (("PAID", "DELIVERED", "add") if is_padded else ("PLACED", "seen  ", "plus  "))
    assert bool(unreadable) != is_padded
    assert bool(rows_of(tmp_path, "differences")) != is_padded


@pytest.mark.parametrize("is_primary", [True, False])
def test_keys_of_sqlite_that_differ_in_their_padding_are_one_key(
    engine_of: Any, tmp_path: Path, is_primary: bool
) -> None:
    engine = engine_of("sqlite")
    run(engine, ORDERS.format(f"CHAR(9) {'PRIMARY KEY' if is_primary else ''}", "TEXT"))
    for key in ("b", "a", "a ", "a  ", "c"):
        run(engine, f"INSERT INTO orders (order_id, status) VALUES ('{key}', 'PAID')")
    counts = Inputs(url_of(engine)).open().export_orders(tmp_path)
    assert sorted(row["order_id"] for row in rows_of(tmp_path, "orders")) == ["a", "b", "c"]
    assert (counts.duplicates, counts.duplicate_keys) == (2, ["a", "a"])
