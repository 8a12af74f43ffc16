"""Lookups of a repair plan: order lines, messages, IDs of transactions, names of timers, SQL for tables.

All stores are only read. If a store is missing, a step says so, has a placeholder, or uses names of the
mapping and generic SQL.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.dataset as ds
from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    Date,
    DateTime,
    Dialect,
    TableClause,
    column,
    create_engine,
    exists,
    func,
    inspect,
    literal,
    literal_column,
    select,
)
from sqlalchemy import table as sql_table
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError

from commitlog.errors import StoreError
from commitlog.facts.facts import Fact, HalfStored, TimerSet, facts_of
from commitlog.log.published_log import open_log
from commitlog.records import properties, record
from commitlog.records.message import Message
from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs import mysql_reads
from spark_jobs.inputs.column_reads import lacks_zone
from spark_jobs.inputs.databases import Database, address
from spark_jobs.inputs.mapping import SHOP, ZONE_DEFAULT, Mapping, TableMapping
from spark_jobs.inputs.mysql_reads import MYSQL
from spark_jobs.inputs.zones import zone_of
from spark_jobs.log.scan.decode import unpacked
from txn.half import transaction_id

Lines = dict[str, list[dict[str, Any]]]
"""Order id -> its lines: sku, quantity."""

Stored = Callable[[str, Any], ColumnElement[Any]]
"""(our column, our value) -> the value as stored in the user's column."""

REDIS_SCHEMES: Final = ("redis", "rediss", "unix")
_SIZE_BYTES: Final = 4
_BREAK_OR_QUOTED: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|(\n)""")
"""A line break of an SQL statement (group 1), or a quoted text or name, whose line breaks are kept."""


class TimerName(NamedTuple):
    """The name of a timer in commands: its key, or its message ID."""

    name: str
    is_id: bool


class PlanSources:
    """The databases and the broker's log, as far as they are given.

    `carts_kind` is redis, sql, or parquet. It is redis if no address of carts is given.
    """

    def __init__(
        self,
        mapping: Mapping = SHOP,
        orders: str | None = None,
        store: Path | None = None,
        carts: str | None = None,
        has_lines: bool = True,
        pushes: str | None = None,
    ) -> None:
        """Open the given stores. Raise `DatabaseUnreadable`, `NotAStore`, `StoreTooNew`, or `StoreError`."""
        self.mapping = mapping
        scheme = (carts or "redis").partition(":")[0]
        self.carts_kind = "redis" if scheme in REDIS_SCHEMES else "parquet" if scheme == "parquet" else "sql"
        reads_lines = has_lines and mapping.order_lines.is_there
        self._lines = Database(orders, "--orders", mapping.order_lines) if orders and reads_lines else None
        cart_tables = carts if self.carts_kind == "sql" else None
        self._engines = {
            name: create_engine(address(url, option))
            for name, url, option in (
                ("orders", orders, "--orders"),
                ("order_lines", orders if reads_lines else None, "--orders"),
                ("pushes", pushes, "--pushes"),
                ("carts", cart_tables, "--carts"),
                ("ledger", cart_tables, "--carts"),
            )
            if url
        }
        self._kinds_found: dict[str, dict[str, Any]] = {}
        self._log = open_log(store) if store else None

    @property
    def has_log(self) -> bool:
        """Return whether there is a log to look up messages in."""
        return self._log is not None

    def lines_of(self, order_ids: Sequence[str]) -> Lines | None:
        """Return the lines of some orders, or None without a table of lines. Raise `DatabaseUnreadable`."""
        if self._lines is None:
            return None
        found: Lines = defaultdict(list)
        with tempfile.TemporaryDirectory() as folder:
            self._lines.export_rows_of("order_lines", order_ids, Path(folder))
            for row in ds.dataset(Path(folder) / "order_lines.parquet").to_table().to_pylist():
                found[row.pop("order_id")].append(row)
        return found

    def transaction_at(self, half_offset: int) -> str | None:
        """Return the ID of the transaction whose half is at a log offset, or None without such a half."""
        for half in self._facts_at(half_offset):
            if isinstance(half, HalfStored) and half.message_id:
                return transaction_id(half_offset, half.message_id)
        return None

    def timer_at(self, timer_offset: int) -> TimerName | None:
        """Return the name of the timer at a log offset, its key if it has one, or None without a timer."""
        for timer in self._facts_at(timer_offset):
            if isinstance(timer, TimerSet) and (name := timer.key or timer.message_id):
                return TimerName(name, is_id=not timer.key)
        return None

    def message_at(self, offset: int) -> Message | None:
        """Return the message in the record at a log offset with its body decompressed, or None without one.

        Raise `LibraryMissing` if the compression needs a library that is not installed.
        """
        found = self._record_at(offset)
        if found is None:
            return None
        message = properties.to_message(replace(found, sys_flag=0))
        message.body = unpacked(found.body, found.sys_flag)
        return message

    def holds_numbers(self, of: TableMapping, ours: str) -> bool:
        """Return whether a column has an integer type. False if its database is not given."""
        kind = self._kinds(of).get(of.columns.get(ours, ""))
        return kind is not None and _python_type(kind) is int

    def _facts_at(self, offset: int) -> tuple[Fact, ...]:
        found = self._record_at(offset)
        return facts_of(found) if found else ()

    def _record_at(self, offset: int) -> record.Record | None:
        segments = self._log.segments if self._log else []
        segment = next((one for one in segments if one.first_offset <= offset < one.end_offset), None)
        if self._log is None or segment is None or offset >= self._log.end_offset:
            return None
        with open(segment.path, "rb") as file:
            file.seek(offset - segment.first_offset)
            size = file.read(_SIZE_BYTES)
            record_bytes = size + file.read(max(0, int.from_bytes(size, "big") - _SIZE_BYTES))
        try:
            return record.decode(record_bytes)
        except StoreError:
            return None

    def update(self, of: TableMapping, key: str, values: dict[str, Any], conditions: dict[str, Any]) -> str:
        """Return an UPDATE of the rows with a key, in the SQL dialect of the database.

        Names and values are ours. Columns that the table lacks and values of None are omitted. A condition of
        None becomes IS NULL, and one of several values IN.
        """
        target, theirs, stored = self._target(of)
        statement = target.update().where(self._is_same(of, theirs, of.key, stored(of.key, key)))
        for ours, wanted in ((name, one) for name, one in conditions.items() if name in theirs):
            one = theirs[ours]
            statement = statement.where(
                one.is_(None) if wanted is None else one.in_([stored(ours, value) for value in wanted])
            )
        changed = {
            theirs[ours]: stored(ours, value)
            for ours, value in values.items()
            if ours in theirs and value is not None
        }
        return self._words(of, statement.values(changed))

    def insert(self, of: TableMapping, named: dict[str, Any], values: dict[str, Any]) -> str:
        """Return an INSERT of a row, in the SQL dialect of the database.

        It does nothing if there is a row with the same `named` values. Names and values are ours, and columns
        that the table lacks are omitted.
        """
        target, theirs, stored = self._target(of)
        wanted = {ours: stored(ours, value) for ours, value in (named | values).items() if ours in theirs}
        same = (self._is_same(of, theirs, ours, wanted[ours]) for ours in named)
        is_there = exists().where(*same).select_from(target)
        row = select(*wanted.values()).where(~is_there)
        return self._words(of, target.insert().from_select([theirs[ours] for ours in wanted], row))

    def has_row(self, of: TableMapping, named: dict[str, Any]) -> bool:
        """Return whether a table has a row with these values, by our column names.

        False if its database is not given or lacks the table. Raise `DatabaseUnreadable`.
        """
        engine = self._engines.get(of.ours)
        if engine is None or not self._kinds(of):
            return False
        target, theirs, stored = self._target(of)
        same = (self._is_same(of, theirs, ours, stored(ours, value)) for ours, value in named.items())
        try:
            with engine.connect() as connection:
                return (
                    connection.execute(select(literal(1)).select_from(target).where(*same)).first()
                    is not None
                )
        except SQLAlchemyError as error:
            raise _unreadable(of, error) from error

    def constants(self, of: TableMapping, ours: str) -> list[str]:
        """Return the user's values of one of our statuses or kinds of entries, or ours if none is mapped."""
        known = (values.items() for values in of.constants.values())
        theirs = [value for values in known for value, name in values if name == ours]
        return theirs or [ours]

    def _target(self, of: TableMapping) -> tuple[TableClause, dict[str, ColumnElement[Any]], Stored]:
        """Return the user's table, its columns by our names, and the conversion of our values to them."""
        schema, _, name = of.name.rpartition(".")
        target = sql_table(name, *(column(theirs) for theirs in of.columns.values()), schema=schema or None)
        kinds, dialect = self._kinds(of), self._dialect(of.ours)

        def stored(ours: str, value: Any) -> ColumnElement[Any]:
            return _stored(value, kinds.get(of.columns[ours]), dialect.name, of.zone)

        return target, {ours: target.c[theirs] for ours, theirs in of.columns.items()}, stored

    def _is_same(
        self, of: TableMapping, theirs: dict[str, ColumnElement[Any]], ours: str, value: ColumnElement[Any]
    ) -> ColumnElement[bool]:
        """Return the condition for rows with exactly this value, whatever the collation."""
        kind = self._kinds(of).get(of.columns[ours])
        if self._dialect(of.ours).name not in MYSQL or kind is None:
            return theirs[ours] == value
        return mysql_reads.is_same(theirs[ours], kind, value)

    def _dialect(self, ours: str) -> Dialect:
        engine = self._engines.get(ours)
        return engine.dialect if engine else DefaultDialect()

    def _words(self, of: TableMapping, statement: ClauseElement) -> str:
        dialect = copy(self._dialect(of.ours))
        dialect.paramstyle, dialect.positional = "named", False  # other styles double each % for drivers
        dialect.identifier_preparer = dialect.preparer(dialect)
        words = statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
        return _BREAK_OR_QUOTED.sub(lambda found: found[0] if found[1] is None else " ", str(words)) + ";"

    def _kinds(self, of: TableMapping) -> dict[str, Any]:
        """Return the types of a table's columns by name. Empty if its database is not given or lacks it."""
        if of.ours not in self._kinds_found:
            self._kinds_found[of.ours] = self._kinds_of(of)
        return self._kinds_found[of.ours]

    def _kinds_of(self, of: TableMapping) -> dict[str, Any]:
        engine = self._engines.get(of.ours)
        if engine is None:
            return {}
        schema, _, name = of.name.rpartition(".")
        try:
            columns = inspect(engine).get_columns(name, schema or None)
        except NoSuchTableError:
            return {}
        except SQLAlchemyError as error:
            raise _unreadable(of, error) from error
        return {one["name"]: one["type"] for one in columns}


def _unreadable(of: TableMapping, error: SQLAlchemyError) -> DatabaseUnreadable:
    why = str(error).splitlines()[0]
    return DatabaseUnreadable(f"Table {of.name} cannot be read ({why}). Repair it, and plan again.")


def _stored(value: Any, kind: Any, dialect: str, zone: str) -> ColumnElement[Any]:
    """Return our value as stored in a column of type `kind`. `zone` is that of times without one."""
    if isinstance(kind, DateTime | Date) and isinstance(value, int):
        return _stored_time(value, kind, dialect, zone)
    if dialect in MYSQL and kind is not None and isinstance(value, str):
        return mysql_reads.as_literal(value, kind)
    is_number = kind is not None and _python_type(kind) is int
    return literal(int(value) if is_number and isinstance(value, str) and value.isdigit() else value)


def _stored_time(at_ms: int, kind: DateTime | Date, dialect: str, zone: str) -> ColumnElement[Any]:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    if lacks_zone(kind):
        at = at.astimezone(zone_of(zone or ZONE_DEFAULT))
    if dialect not in MYSQL:
        return literal(at.replace(tzinfo=None) if zone and lacks_zone(kind) else at)
    if not lacks_zone(kind):  # a text would be a time in the zone of the session
        return func.from_unixtime(literal_column(f"{at_ms / 1000:.3f}"))
    return literal(at.replace(tzinfo=None))


def _python_type(kind: Any) -> type | None:
    try:
        found: type = kind.python_type
    except NotImplementedError:  # a type without a Python type, such as one of a dialect
        return None
    return found
