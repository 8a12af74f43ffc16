"""The order database: what is exported, and what is said of one that cannot be."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import create_engine, insert, text

from commitlog.errors import DatabaseUnreadable
from services.shop.tables import order_metadata, orders
from spark_jobs import columns
from spark_jobs.databases import ORDER_TABLES, Database


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A database as the order service makes it, with three orders."""
    url = f"sqlite:///{tmp_path / 'orders.db'}"
    engine = create_engine(url)
    order_metadata.create_all(engine)
    rows = [
        {"order_id": f"o{number}", "customer_id": "ü", "status": "PLACED", "total_pence": 5}
        | {"placed_ms": number, "due_ms": 9}
        for number in range(3)
    ]
    with engine.begin() as connection:
        connection.execute(insert(orders), rows)
    engine.dispose()
    return url


def open_orders(url: str) -> Database:
    return Database(url, "--orders", ORDER_TABLES)


def change(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_all_rows_are_exported_in_batches(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "ROWS_PER_BATCH", 2)
    assert open_orders(url).export(tmp_path) == {"orders": 3, "order_lines": 0}
    table = pq.read_table(tmp_path / "orders.parquet")
    assert table.schema.equals(ORDER_TABLES["orders"])
    assert table["placed_ms"].to_pylist() == [0, 1, 2]
    assert table["paid_ms"].null_count == 3
    assert pq.read_table(tmp_path / "order_lines.parquet").schema.equals(ORDER_TABLES["order_lines"])


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.db"
    with pytest.raises(DatabaseUnreadable, match=r"There is no file .*nowhere\.db"):
        open_orders(f"sqlite:///{missing}")
    assert not missing.exists()


def test_a_missing_table_is_named(url: str) -> None:
    change(url, "DROP TABLE order_lines")
    with pytest.raises(DatabaseUnreadable, match="has no table 'order_lines'"):
        open_orders(url)


def test_a_missing_column_is_named(url: str) -> None:
    change(url, "ALTER TABLE orders DROP COLUMN paid_ms")
    with pytest.raises(DatabaseUnreadable, match="has no column 'paid_ms'"):
        open_orders(url)


def test_a_value_of_another_type_is_refused(url: str, tmp_path: Path) -> None:
    change(url, "UPDATE orders SET placed_ms = 'yesterday' WHERE order_id = 'o1'")
    with pytest.raises(DatabaseUnreadable, match="yesterday"):
        open_orders(url).export(tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("Dear reader, " * 100)
    with pytest.raises(DatabaseUnreadable, match="file is not a database"):
        open_orders(f"sqlite:///{tmp_path / 'letter.db'}")


@pytest.mark.parametrize("url", ["nonsense", "nodialect://x", "", "sqlite+nodriver:///x"])
def test_an_address_of_no_database_is_refused(url: str) -> None:
    with pytest.raises(DatabaseUnreadable, match="--orders is no address of a database"):
        open_orders(url)


def test_a_missing_driver_or_server_is_named_without_the_password() -> None:
    with pytest.raises(DatabaseUnreadable) as raised:
        open_orders("postgresql://user:secret@127.0.0.1:1/orders")
    assert "secret" not in str(raised.value)


def test_arrow_cannot_hold_everything(tmp_path: Path) -> None:
    with pytest.raises(pa.ArrowInvalid):
        columns.write_parquet(tmp_path / "x", pa.schema([("a", pa.int64())]), [("x",)])
