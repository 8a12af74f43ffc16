"""The order and push databases, by any SQLAlchemy URL, exported to Parquet.

One SELECT per table, streamed; SQL is never the slow part of an audit (1 million orders: about 1.5 s), so
no JDBC driver is needed. Orders are read before their lines, so every line's order has been seen or is newer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Column as SqlColumn
from sqlalchemy import Connection, Engine, MetaData, Select, Table, create_engine, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from commitlog.errors import DatabaseUnreadable
from spark_jobs.columns import write_parquet

ORDERS: Final = pa.schema([
    ("order_id", pa.string()),
    ("customer_id", pa.string()),
    ("status", pa.string()),
    ("total_pence", pa.int64()),
    ("placed_ms", pa.int64()),
    ("due_ms", pa.int64()),
    ("paid_ms", pa.int64()),
    ("timed_out_ms", pa.int64()),
    ("cancelled_ms", pa.int64()),
])  # fmt: skip
ORDER_LINES: Final = pa.schema([("order_id", pa.string()), ("sku", pa.string()), ("quantity", pa.int64())])
PUSHES: Final = pa.schema([
    ("push_id", pa.string()),
    ("schedule_id", pa.string()),
    ("message_id", pa.string()),
    ("status", pa.string()),
    ("due_ms", pa.int64()),
    ("delivered_ms", pa.int64()),
])  # fmt: skip

ORDER_TABLES: Final = {"orders": ORDERS, "order_lines": ORDER_LINES}
PUSH_TABLES: Final = {"pushes": PUSHES}


class Database:
    """A database to be read; `option` is the command's option that named it, for messages."""

    def __init__(self, url: str, option: str, tables: dict[str, pa.Schema]) -> None:
        """Connects and checks that every table and column is there; raises `DatabaseUnreadable`."""
        self._tables = tables
        self._option = option
        self._url = _url(url, option)
        self._engine = self._open()
        self._check_columns()

    def export(self, folder: Path) -> dict[str, int]:
        """Writes `<folder>/<table>.parquet` for each table; returns the number of rows of each."""
        try:
            with self._engine.connect() as connection:
                return {
                    name: write_parquet(folder / f"{name}.parquet", schema, _rows(connection, name, schema))
                    for name, schema in self._tables.items()
                }
        except (SQLAlchemyError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise self._unreadable(error) from error
        finally:
            self._engine.dispose()

    def _open(self) -> Engine:
        is_file = self._url.get_backend_name() == "sqlite" and self._url.database not in (
            None,
            "",
            ":memory:",
        )
        if is_file and not Path(str(self._url.database)).is_file():
            raise DatabaseUnreadable(f"There is no file {self._url.database}. Correct {self._option}.")
        try:
            return create_engine(self._url)
        except (SQLAlchemyError, ImportError) as error:
            raise self._unreadable(error) from error

    def _check_columns(self) -> None:
        try:
            inspector = inspect(self._engine)
            known = {
                name: {column["name"] for column in inspector.get_columns(name)}
                for name in self._tables
                if inspector.has_table(name)
            }
        except SQLAlchemyError as error:
            raise self._unreadable(error) from error
        for name, schema in self._tables.items():
            if name not in known:
                raise DatabaseUnreadable(f"{self._shown} has no table '{name}'. Correct {self._option}.")
            missing = [column for column in schema.names if column not in known[name]]
            if missing:
                raise DatabaseUnreadable(
                    f"Table '{name}' of {self._shown} has no column '{missing[0]}'. Correct {self._option}."
                )

    @property
    def _shown(self) -> str:
        return self._url.render_as_string(hide_password=True)

    def _unreadable(self, error: Exception) -> DatabaseUnreadable:
        why = str(getattr(error, "orig", None) or error).splitlines()[0]
        return DatabaseUnreadable(
            f"{self._shown} says: {why}. Correct {self._option}, or repair the database."
        )


def _url(url: str, option: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise DatabaseUnreadable(
            f"{option} is no address of a database. Give one such as sqlite:///orders.db."
        ) from error
    return parsed


def _rows(connection: Connection, name: str, schema: pa.Schema) -> Iterator[Sequence[Any]]:
    result = connection.execution_options(stream_results=True, yield_per=10_000).execute(
        _select(name, schema)
    )
    for rows in result.partitions():
        yield from rows


def _select(name: str, schema: pa.Schema) -> Select[Any]:
    table = Table(name, MetaData(), *(SqlColumn[Any](column) for column in schema.names))
    return select(*table.columns)
