"""Export of the order and push databases, and of carts in SQL, to Parquet, by any SQLAlchemy URL.

Each table is read by ranges of its key, streamed, in one snapshot of the database (`key_ranges`). A range
becomes one file of the folder `<table>.parquet`. Names and statuses are translated on reading (`mapping`), so
the files have our columns, whatever the user's names are. SQL is never the slow part of an audit, so no JDBC
driver is needed. Memory holds up to `READERS` ranges, and in `refuse_mixed` all keys of a table.

Of the orders or pushes with the same key, the first row is kept, and the others are counted and named. This
needs the rows in the order of the key; a table whose key the database declares unique is read without the
sort and the check. A row without a key is counted and left out, since its subject is unknown.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.dataset as ds
from sqlalchemy import Column as SqlColumn
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    MetaData,
    Table,
    create_engine,
    func,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import URL, Inspector, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.types import Integer, NullType, String, TypeEngine

from spark_jobs.buckets import finer
from spark_jobs.errors import DatabaseUnreadable
from spark_jobs.inputs.arrays import MILLISECONDS, UnfitValue
from spark_jobs.inputs.column_reads import (
    POSTGRESQL,
    SQLITE,
    as_key,
    has_booleans,
    has_own_numbers,
    lacks_zone,
    merges_keys,
    selected,
)
from spark_jobs.inputs.key_ranges import READERS, one_view, same_view, share
from spark_jobs.inputs.mapping import CONSTANTS, NOT_OURS, OPTIONAL, OPTIONAL_TABLES, TableMapping, as_read
from spark_jobs.inputs.mysql_reads import MYSQL
from spark_jobs.inputs.schemas import SCHEMAS
from spark_jobs.inputs.tables import OpenTable, RowCounts, part_name, parts_of
from tidewheel.databases import DRIVERS

_NAMES_SHOWN_MAX: Final = 20
_VALUES_SHOWN: Final = 3
"""Maximum number of unknown values in the example of a mapping."""


@contextmanager
def noted(problems: list[str]) -> Iterator[None]:
    """Add the detail of a `DatabaseUnreadable` to `problems` and continue, to report all of them at once."""
    try:
        yield
    except DatabaseUnreadable as error:
        problems.append(error.detail)


class Database:
    """A database to read; `option` is the command-line option with its URL, for error messages."""

    def __init__(self, url: str, option: str, *tables: TableMapping) -> None:
        """Connect and check that all tables and columns exist.

        Raise `DatabaseUnreadable`, which names all that are missing.
        """
        self._option = option
        self._url = address(url, option)
        self._engine = self._open()
        self._mappings = {table.ours: table for table in tables}
        try:
            inspector = inspect(self._engine)
            self._tables = self._all_found(inspector, tables)
        except (SQLAlchemyError, *_OF_DRIVERS) as error:
            raise self._unreadable(error) from error

    def export(self, ours: str, folder: Path, bucket_count: int = 0) -> RowCounts:
        """Write a table below `folder`, dealt into a multiple of `bucket_count` buckets, or into none for 0.

        Raise `DatabaseUnreadable`.
        """
        with self._speaking(ours), one_view(self._engine) as connection:
            return self._export(connection, ours, folder, bucket_count)

    def refuse_mixed(self, ours: str, folder: Path) -> None:
        """Raise `DatabaseUnreadable` if distinct keys of the database have one text.

        An SQLite column without a type may hold a number and a text that are equal as texts. A column of
        numbers or of texts converts one to the other, but keeps bytes, so it is checked only if it has bytes.
        """
        table = self._tables[ours]
        is_plain = isinstance(table.kind, Integer | String)
        if self._engine.dialect.name != SQLITE or (is_plain and not self._has_bytes(table)):
            return
        keys = ds.dataset(folder / f"{ours}.parquet", format="parquet").to_table([table.schema.names[0]])[0]
        counted = pc.value_counts(keys)
        repeated = counted.filter(pc.greater(counted.field("counts"), 1)).field("values").to_pylist()
        if repeated:
            mapping = self._mappings[ours]
            theirs = mapping.columns[mapping.key]
            raise DatabaseUnreadable(
                f"Table '{mapping.name}' of {self._shown}, column '{theirs}', has keys that are one text and "
                f"several values, such as a number and a text: {_shown(sorted(map(repr, repeated)))}. "
                f"Correct the rows, or name a view with CAST({theirs} AS TEXT) AS {theirs}, of which the "
                "first of each is judged."
            )

    def _has_bytes(self, table: OpenTable) -> bool:
        """Return whether an SQLite table has a key that is bytes."""
        is_bytes = func.typeof(table.key) == "blob"
        with self.looking() as connection:
            return connection.execute(select(table.key).where(is_bytes).limit(1)).first() is not None

    def export_together(self, names: Sequence[str], folder: Path) -> dict[str, RowCounts]:
        """Write several tables in one snapshot of the database; otherwise like `export`."""
        counts: dict[str, RowCounts] = {}
        with one_view(self._engine) as connection:
            for ours in names:
                with self._speaking(ours):
                    counts[ours] = self._export(connection, ours, folder)
        return counts

    def export_rows_of(self, ours: str, keys: Sequence[str], folder: Path) -> RowCounts:
        """Write the rows with one of these keys; otherwise like `export`."""
        with self._speaking(ours), one_view(self._engine) as connection:
            return self._tables[ours].write_some(connection, keys, parts_of(folder, ours))

    def refuse_unknown(self, ours: str, folder: Path) -> None:
        """Raise `DatabaseUnreadable` if an exported table has a status that is none of ours.

        No case would match such a row, so it would count as balanced.
        """
        section, column, known = CONSTANTS[ours]
        unknown: Counter[str | None] = Counter()
        table = ds.dataset(folder / f"{ours}.parquet", format="parquet")
        for batch in table.to_batches(columns=[column], batch_readahead=2):
            counted = pc.value_counts(batch[column]).to_pylist()
            told = {one["values"]: one["counts"] for one in counted if one["values"] not in known}
            unknown.update({value and value.removesuffix(NOT_OURS): count for value, count in told.items()})
        if unknown:
            raise self._meaningless(self._mappings[ours], section, column, unknown)

    @contextmanager
    def looking(self) -> Iterator[Connection]:
        """Yield a connection with a snapshot of the database (`one_view`); raise `DatabaseUnreadable`."""
        try:
            with one_view(self._engine) as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._unreadable(error) from error

    @property
    def shown(self) -> str:
        """Return the URL without its password."""
        return self._shown

    def close(self) -> None:
        """Close the pooled connections."""
        self._engine.dispose()

    def _export(self, connection: Connection, ours: str, folder: Path, bucket_count: int = 0) -> RowCounts:
        table = self._tables[ours]
        key, ranges = table.ranges(connection)
        dealt = bucket_count and finer(bucket_count, table.count(connection))
        conditions = [one.holds(key) for one in ranges]
        counts = self._read(connection, table, conditions, parts_of(folder, ours), dealt)
        return counts + RowCounts(without_key=table.count_without_key(connection))

    def _read(
        self,
        connection: Connection,
        table: OpenTable,
        conditions: list[ColumnElement[bool]],
        path: Path,
        bucket_count: int,
    ) -> RowCounts:
        """Write all ranges, concurrently if further connections can share the snapshot of `connection`."""
        paths = [path / part_name(number) for number in range(len(conditions))]
        shared = share(connection) if len(conditions) > 1 else None

        def write_beside(condition: ColumnElement[bool], to: Path) -> RowCounts:
            assert shared is not None
            with same_view(self._engine, shared) as another:
                return table.write(another, condition, to, bucket_count)

        if shared is None:
            pairs = zip(conditions, paths, strict=True)
            written = [table.write(connection, condition, to, bucket_count) for condition, to in pairs]
        else:
            with ThreadPoolExecutor(READERS) as readers:
                written = list(readers.map(write_beside, conditions, paths))
        return sum(written, RowCounts())

    def _open(self) -> Engine:
        path = self._url.database
        is_file = self._url.get_backend_name() == "sqlite" and path not in (None, "", ":memory:")
        if is_file and not Path(str(path)).is_file():
            raise DatabaseUnreadable(f"There is no file {path}. Correct {self._option}.")
        try:
            return create_engine(self._url)
        except ImportError as error:
            driver = error.name or str(error)
            wanted = _PACKAGES.get(driver, driver)
            raise DatabaseUnreadable(
                f"{self._shown} needs the driver {driver}, which is not installed. Install it (pip install "
                f"'{wanted}'), or name another one in {self._option}."
            ) from error
        except SQLAlchemyError as error:
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
        """Return the table with its columns; raise `DatabaseUnreadable` if one is missing."""
        schema, _, name = mapping.name.rpartition(".")
        if self._engine.dialect.name in MYSQL and not (schema or self._url.database):
            raise DatabaseUnreadable(
                f"{self._shown} names no database. Write it in {self._option} behind the host, as in "
                f"mysql://HOST/shop, or before the table's name in [{mapping.ours}] of a --mapping."
            )
        if not inspector.has_table(name, schema or None):
            known = _shown([*inspector.get_table_names(schema or None)])
            none = f'; table = "" if there are no {mapping.ours}' if mapping.ours in OPTIONAL_TABLES else ""
            init = "; tidewheel audit init proposes one" if mapping.ours == "orders" else ""
            raise DatabaseUnreadable(
                f"{self._shown} has no table '{mapping.name}' (there are {known}). "
                f"Correct {self._option}, or name the table in [{mapping.ours}] of a --mapping{none}{init}."
            )
        described = {column["name"]: column["type"] for column in inspector.get_columns(name, schema or None)}
        missing = {ours: theirs for ours, theirs in mapping.columns.items() if theirs not in described}
        if missing:
            raise self._columnless(mapping, missing, list(described))
        self._refuse_unknown_clock(mapping, described)
        # NullType returns the driver's values: other types would refuse some that SQLite allows in a column.
        columns = [SqlColumn[Any](theirs, NullType()) for theirs in dict.fromkeys(mapping.columns.values())]
        table = Table(name, MetaData(), *columns, schema=schema or None)
        fields, dialect = SCHEMAS[mapping.ours], self._engine.dialect.name
        key, kind = table.columns[mapping.columns[mapping.key]], described[mapping.columns[mapping.key]]
        is_unique = (
            _is_unique(inspector, name, schema, key.name)
            and not merges_keys(dialect, kind)
            and not self._is_inherited(table)
        )
        return OpenTable(
            fields,
            table,
            {
                ours: selected(
                    dialect, fields.field(ours), table.columns[theirs], described[theirs], mapping.zone
                )
                for ours, theirs in mapping.columns.items()
            },
            as_key(dialect, key, kind),
            kind,
            {
                ours: as_read(
                    with_numbers(values)
                    if has_booleans(dialect, described[mapping.columns[ours]])
                    else values
                )
                for ours, values in mapping.constants.items()
            },
            mapping.fixed,
            mapping.ours not in _KEYED or is_unique,
            mapping.zone,
            frozenset(
                ours
                for ours, theirs in mapping.columns.items()
                if ours.endswith(MILLISECONDS) and has_own_numbers(dialect, described[theirs])
            ),
        )

    def _refuse_unknown_clock(self, mapping: TableMapping, described: Mapping[str, TypeEngine[Any]]) -> None:
        """Raise `DatabaseUnreadable` if times without a zone may be in another zone than UTC.

        This is so if no zone is mapped, and the server's zone, the default for such times, is not UTC.
        """
        times = [
            theirs
            for ours, theirs in mapping.columns.items()
            if ours.endswith(MILLISECONDS) and lacks_zone(described[theirs])
        ]
        zone = self._server_zone() if times and not mapping.zone else ""
        if zone.lower() not in _UTC:
            raise DatabaseUnreadable(
                f"Table '{mapping.name}' of {self._shown} has times without a zone ({_shown(times)}), and "
                f"the server's own clock is in {zone}. Write the zone that they are in as zone = "
                f'"Europe/London", or zone = "UTC", in [{mapping.ours}] of a --mapping.'
            )

    def _is_inherited(self, table: Table) -> bool:
        """Return whether a table includes rows of child tables, to which its constraints do not apply.

        That is the case for PostgreSQL's INHERITS, but not for partitions.
        """
        if self._engine.dialect.name != POSTGRESQL:
            return False
        named = self._engine.dialect.identifier_preparer.format_table(table)
        with self._engine.connect() as connection:
            return bool(connection.execute(_HAS_CHILDREN, {"named": named}).scalar_one())

    def _server_zone(self) -> str:
        """Return the time zone of the server, or "" if the database has none."""
        question = _ZONE_QUESTIONS.get(self._engine.dialect.name)
        if question is None:
            return ""
        with self._engine.connect() as connection:
            return str(connection.exec_driver_sql(question).scalar_one())

    def _columnless(
        self, mapping: TableMapping, missing: dict[str, str], there: list[str]
    ) -> DatabaseUnreadable:
        """Return the error about all columns that a table lacks; `missing` maps our names to the user's."""
        optional = [ours for ours in missing if ours in OPTIONAL.get(mapping.ours, ())]
        may_lack = f' ("" for {_shown(optional)} if there is none)' if optional else ""
        columns = "column" if len(missing) == 1 else "columns"
        named = ", ".join(f"'{theirs}'" for theirs in dict.fromkeys(missing.values()))
        return DatabaseUnreadable(
            f"Table '{mapping.name}' of {self._shown} has no {columns} {named} (there are {_shown(there)}). "
            f"Correct {self._option}, or give {_shown([*missing])} in [{mapping.ours}] of a "
            f"--mapping{may_lack}."
        )

    def _meaningless(
        self, mapping: TableMapping, section: str, column: str, unknown: Counter[str | None]
    ) -> DatabaseUnreadable:
        """Return the error about statuses that are none of ours, with the number of rows of each."""
        known = CONSTANTS[mapping.ours][2]
        ordered = sorted(unknown, key=lambda value: (-unknown[value], value or ""))
        rows = [f"{'NULL' if one is None else repr(one)} {unknown[one]:,} times" for one in ordered]
        # A line in the mapping replaces the present values, so the example repeats them.
        meant = [value for value, ours in mapping.constants.get(column, {}).items() if ours == known[0]]
        values = [*(meant or known[:1]), *list(dict.fromkeys(one or "" for one in ordered))[:_VALUES_SHOWN]]
        named = ", ".join(json.dumps(one, ensure_ascii=False) for one in values)
        return DatabaseUnreadable(
            f"Table '{mapping.name}' of {self._shown}, column '{mapping.columns[column]}', has what is none "
            f"of {', '.join(known)}: {_shown(rows)}. Write in [{mapping.ours}.{section}] of a --mapping "
            f'what each is, as {known[0]} = [{named}] ("" is NULL, too), or name a view without such rows.'
        )

    @contextmanager
    def _speaking(self, ours: str) -> Iterator[None]:
        """Convert the errors of reading a table to `DatabaseUnreadable`."""
        mapping = self._mappings[ours]
        try:
            yield
        except UnfitValue as error:
            theirs, key = mapping.columns[error.column], mapping.columns[mapping.key]
            row = f", row with {key} {error.key}" if error.key else ""
            other = f"give another column as {error.column} in [{ours}] of a --mapping"
            advice = error.advice.format(theirs=theirs, table=ours) or other
            raise DatabaseUnreadable(
                f"Table '{mapping.name}' of {self._shown}, column '{theirs}'{row}: {error}. "
                f"Correct the row, or {advice}."
            ) from error
        except SQLAlchemyError as error:
            raise DatabaseUnreadable(
                f"{self._shown}, table '{mapping.name}', says: {_why(error)}. "
                f"Correct {self._option} or [{ours}] of the --mapping, or repair the table."
            ) from error

    @property
    def _shown(self) -> str:
        return self._url.render_as_string(hide_password=True)

    def _unreadable(self, error: Exception) -> DatabaseUnreadable:
        return DatabaseUnreadable(
            f"{self._shown} says: {_why(error)}. Correct {self._option}, or repair the database."
        )


_KEYED: Final = frozenset({"orders", "pushes"})
"""The tables with one row per key; the others may have several."""


_OF_DRIVERS: Final = (TypeError, ValueError, RuntimeError)
"""Exceptions that drivers raise for invalid URL parameters and for unsupported operations."""

_PACKAGES: Final = {"pymysql": "tidewheel[mysql]", "psycopg": "tidewheel[postgres]"}
"""Driver -> the requirement that pip installs for it, if that has another name."""

_ZONE_QUESTIONS: Final = {
    POSTGRESQL: "SELECT reset_val FROM pg_settings WHERE name = 'TimeZone'",
    **dict.fromkeys(
        MYSQL, "SELECT IF(@@global.time_zone = 'SYSTEM', @@system_time_zone, @@global.time_zone)"
    ),
}
_HAS_CHILDREN: Final = text(
    "SELECT EXISTS (SELECT FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent "
    "WHERE relkind = 'r' AND inhparent = to_regclass(:named))"
)
_UTC: Final = frozenset({"", "utc", "uct", "etc/utc", "etc/uct", "universal", "zulu", "+00:00", "-00:00"})


def _why(error: Exception) -> str:
    """Return the first line of a database's error message, without an error number before it."""
    cause = getattr(error, "orig", None) or error
    said = cause.args[1] if len(cause.args) == 2 and isinstance(cause.args[1], str) else cause
    return (str(said).splitlines() or [type(cause).__name__])[0].rstrip(".")


def with_numbers(values: Mapping[str, str]) -> dict[str, str]:
    """Return the user's values -> ours, with those of true and false also for 1 and 0, unless mapped."""
    return {
        number: values[word] for word, number in (("true", "1"), ("false", "0")) if word in values
    } | dict(values)


def _is_unique(inspector: Inspector, name: str, schema: str, key: str) -> bool:
    """Return whether the key alone is the table's primary key, or has a unique constraint."""
    where = schema or None
    unique = [inspector.get_pk_constraint(name, where)["constrained_columns"]]
    unique += [one["column_names"] for one in inspector.get_unique_constraints(name, where)]
    return [key] in unique


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN_MAX} more" if len(names) > _NAMES_SHOWN_MAX else ""
    return (", ".join(names[:_NAMES_SHOWN_MAX]) or "none") + more


def address(url: str, option: str) -> URL:
    """Return the URL of a database with our default driver; a charset given for MySQL becomes utf8mb4.

    Raises:
        DatabaseUnreadable: when the URL is invalid.
    """
    try:
        parsed = make_url(url)
        parsed = parsed.set(drivername=DRIVERS.get(parsed.drivername, parsed.drivername))
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise DatabaseUnreadable(
            f"{option} is no address of a database. Give one such as sqlite:///orders.db."
        ) from error
    if parsed.get_backend_name() in MYSQL and "charset" in parsed.query:
        parsed = parsed.update_query_dict({"charset": "utf8mb4"})
    return parsed
