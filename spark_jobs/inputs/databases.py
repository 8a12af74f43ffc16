"""The order and push databases (and carts, where SQL has them), by any SQLAlchemy URL, exported to Parquet.

Each table goes by ranges of its key, streamed, in one view of the database (`key_ranges`); a range is one
file of the folder `<table>.parquet`. Names and statuses are translated on the way (`mapping`), so what lies
there has our columns, whatever the user calls them. SQL is never the slow part of an audit, so no JDBC driver
is needed; memory does not grow with the table.

A key that occurs twice: the first row stays, the others are counted and named. Only a table whose database
does not forbid it is looked at that way; its rows are read in the order of the key, which a unique key
spares. A row without a key is counted and left out: nobody could say what it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column as SqlColumn
from sqlalchemy import Connection, Date, DateTime, Engine, MetaData, Table, create_engine, inspect
from sqlalchemy.engine import URL, Inspector, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.types import NullType, TypeEngine

from spark_jobs.buckets import finer
from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs.arrays import UnfitValue
from spark_jobs.inputs.key_ranges import READERS, KeyRange, key_ranges, one_view, same_view, share
from spark_jobs.inputs.mapping import OPTIONAL, OPTIONAL_TABLES, TableMapping
from spark_jobs.inputs.schemas import SCHEMAS
from spark_jobs.inputs.tables import OpenTable, RowCounts, part_name, parts_of

_KEYS_PER_QUESTION: Final = 1_000
_NAMES_SHOWN_MAX: Final = 20


@contextmanager
def noted(problems: list[str]) -> Iterator[None]:
    """Note what cannot be read, and go on: everything that is missing is told at once."""
    try:
        yield
    except DatabaseUnreadable as error:
        problems.append(error.detail)


class Database:
    """A database to be read; `option` is the command's option that named it, for messages."""

    def __init__(self, url: str, option: str, *tables: TableMapping) -> None:
        """Connect and check that every table and column is there; raise `DatabaseUnreadable`, which tells
        all that are missing.
        """
        self._option = option
        self._url = _url(url, option)
        self._engine = self._open()
        self._mappings = {table.ours: table for table in tables}
        try:
            inspector = inspect(self._engine)
            self._tables = self._all_found(inspector, tables)
        except SQLAlchemyError as error:
            raise self._unreadable(error) from error

    def export(self, ours: str, folder: Path, bucket_count: int = 0) -> RowCounts:
        """Write a table below `folder`, dealt into a multiple of so many buckets, if that is given.

        Raise `DatabaseUnreadable`.
        """
        table = self._tables[ours]
        with self._speaking(ours), one_view(self._engine) as connection:
            ranges = key_ranges(connection, table.source, table.range_key(connection))
            dealt = bucket_count and finer(bucket_count, table.count(connection))
            counts = self._read(connection, table, ranges, parts_of(folder, ours), dealt)
            return counts + RowCounts(without_key=table.count_without_key(connection))

    def export_rows_of(self, ours: str, keys: Sequence[str], folder: Path) -> RowCounts:
        """Write the rows with one of these keys; else as `export`."""
        table, path = self._tables[ours], parts_of(folder, ours)
        chunks = [
            keys[first : first + _KEYS_PER_QUESTION] for first in range(0, len(keys), _KEYS_PER_QUESTION)
        ]
        counts = RowCounts()
        with self._speaking(ours), one_view(self._engine) as connection:
            for number, some in enumerate(chunks or [()]):
                counts += table.write(connection, table.key.in_(some), path / part_name(number))
        return counts

    def export_by(self, names: Sequence[str], folder: Path, after_each: Callable[[int], None]) -> RowCounts:
        """Export tables that have the same key by the same ranges of it, one range after the other.

        `after_each` is called with the number of a range that has been written. The ranges are the last
        table's, which should be the largest.
        """
        tables = {name: (self._tables[name], parts_of(folder, name)) for name in names}
        counts = RowCounts()
        with one_view(self._engine) as connection:
            with self._speaking(names[-1]):
                largest = self._tables[names[-1]]
                ranges = key_ranges(connection, largest.source, largest.key)
            for number, one in enumerate(ranges):
                for name, (table, path) in tables.items():
                    with self._speaking(name):
                        counts += table.write(connection, one.holds(table.key), path / part_name(number))
                after_each(number)
        return counts

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def _read(
        self, connection: Connection, table: OpenTable, ranges: list[KeyRange], path: Path, bucket_count: int
    ) -> RowCounts:
        """Write all ranges; several at a time where further connections can share the view of
        `connection`.
        """
        paths = [path / part_name(number) for number in range(len(ranges))]
        shared = share(connection) if len(ranges) > 1 else None

        def write(connection: Connection, one: KeyRange, to: Path) -> RowCounts:
            return table.write(connection, one.holds(table.range_key(connection)), to, bucket_count)

        def write_beside(one: KeyRange, to: Path) -> RowCounts:
            assert shared is not None
            with same_view(self._engine, shared) as another:
                return write(another, one, to)

        if shared is None:
            written = [write(connection, one, to) for one, to in zip(ranges, paths, strict=True)]
        else:
            with ThreadPoolExecutor(READERS) as readers:
                written = list(readers.map(write_beside, ranges, paths))
        return sum(written, RowCounts())

    def _open(self) -> Engine:
        path = self._url.database
        is_file = self._url.get_backend_name() == "sqlite" and path not in (None, "", ":memory:")
        if is_file and not Path(str(path)).is_file():
            raise DatabaseUnreadable(f"There is no file {path}. Correct {self._option}.")
        try:
            return create_engine(self._url)
        except (SQLAlchemyError, ImportError) as error:
            raise self._unreadable(error) from error

    def _all_found(self, inspector: Inspector, tables: Sequence[TableMapping]) -> dict[str, OpenTable]:
        found: dict[str, OpenTable] = {}
        problems: list[str] = []
        for table in tables:
            with noted(problems):
                found[table.ours] = self._found(inspector, table)
        if problems:
            raise DatabaseUnreadable(" ".join(problems))
        return found

    def _found(self, inspector: Inspector, mapping: TableMapping) -> OpenTable:
        """Return the table with its columns, if all are there."""
        schema, _, name = mapping.name.rpartition(".")
        if not inspector.has_table(name, schema or None):
            known = _shown([*inspector.get_table_names(schema or None)])
            none = f'; table = "" if there are no {mapping.ours}' if mapping.ours in OPTIONAL_TABLES else ""
            raise DatabaseUnreadable(
                f"{self._shown} has no table '{mapping.name}' (there are {known}). "
                f"Correct {self._option}, or name the table in [{mapping.ours}] of a --mapping{none}."
            )
        described = {column["name"]: column["type"] for column in inspector.get_columns(name, schema or None)}
        missing = {ours: theirs for ours, theirs in mapping.columns.items() if theirs not in described}
        if missing:
            raise self._columnless(mapping, missing, list(described))
        columns = [
            SqlColumn[Any](theirs, _as_read(described[theirs]))
            for theirs in dict.fromkeys(mapping.columns.values())
        ]
        table = Table(name, MetaData(), *columns, schema=schema or None)
        return OpenTable(
            SCHEMAS[mapping.ours],
            table,
            {ours: table.columns[theirs] for ours, theirs in mapping.columns.items()},
            mapping.constants,
            mapping.ours not in _KEYED or _is_unique(inspector, name, schema, mapping.columns[mapping.key]),
        )

    def _columnless(
        self, mapping: TableMapping, missing: dict[str, str], there: list[str]
    ) -> DatabaseUnreadable:
        """Return the error about all columns that a table lacks; `missing` are ours and theirs."""
        optional = [ours for ours in missing if ours in OPTIONAL.get(mapping.ours, ())]
        may_lack = f' ("" for {_shown(optional)} if there is none)' if optional else ""
        columns = "column" if len(missing) == 1 else "columns"
        named = ", ".join(f"'{theirs}'" for theirs in dict.fromkeys(missing.values()))
        return DatabaseUnreadable(
            f"Table '{mapping.name}' of {self._shown} has no {columns} {named} (there are {_shown(there)}). "
            f"Correct {self._option}, or give {_shown([*missing])} in [{mapping.ours}] of a "
            f"--mapping{may_lack}."
        )

    @contextmanager
    def _speaking(self, ours: str) -> Iterator[None]:
        """Turn what goes wrong while a table is read into one sentence."""
        mapping = self._mappings[ours]
        try:
            yield
        except UnfitValue as error:
            theirs = mapping.columns[error.column]
            raise DatabaseUnreadable(
                f"Table '{mapping.name}' of {self._shown}, column '{theirs}': {error}. "
                f"Correct the row, or give another column as {error.column} in [{ours}] of a --mapping."
            ) from error
        except SQLAlchemyError as error:
            raise self._unreadable(error) from error

    @property
    def _shown(self) -> str:
        return self._url.render_as_string(hide_password=True)

    def _unreadable(self, error: Exception) -> DatabaseUnreadable:
        why = str(getattr(error, "orig", None) or error).splitlines()[0]
        return DatabaseUnreadable(
            f"{self._shown} says: {why}. Correct {self._option}, or repair the database."
        )


_KEYED: Final = frozenset({"orders", "pushes"})
"""The tables with one row per key; the others have many."""


def _as_read(kind: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type by which a column is read: timestamps as such, since SQLite has texts; else as the
    driver has the values.
    """
    return kind if isinstance(kind, DateTime | Date) else NullType()


def _is_unique(inspector: Inspector, name: str, schema: str, key: str) -> bool:
    """Return whether the database itself lets no key occur twice."""
    where = schema or None
    unique = [inspector.get_pk_constraint(name, where)["constrained_columns"]]
    unique += [one["column_names"] for one in inspector.get_unique_constraints(name, where)]
    return [key] in unique


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN_MAX} more" if len(names) > _NAMES_SHOWN_MAX else ""
    return (", ".join(names[:_NAMES_SHOWN_MAX]) or "none") + more


def _url(url: str, option: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise DatabaseUnreadable(
            f"{option} is no address of a database. Give one such as sqlite:///orders.db."
        ) from error
    return parsed
