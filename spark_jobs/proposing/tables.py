"""A database as input of a proposal: each table's columns, a sample of its rows, and the log's keys in them.

All values are read like those of the audit (`inputs.column_reads`, `inputs.arrays`), so every database and
type that the audit supports is supported here.

Cost: some small queries for each table. A column with an index or a foreign key is searched for keys as a
whole, and so is each column of a view or of a table without these. Of any other column, the first
`ROWS_SEARCHED_MAX` rows are searched. Values are counted only in tables that contain keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Column as SqlColumn
from sqlalchemy import ColumnElement, Connection, MetaData, and_, false, func, inspect, or_, select
from sqlalchemy import Table as SqlTable
from sqlalchemy.engine import Inspector
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import (
    Boolean,
    Date,
    DateTime,
    Enum,
    Integer,
    NullType,
    Numeric,
    String,
    TypeEngine,
    Uuid,
)

from spark_jobs.inputs.arrays import UnfitValue, array_of
from spark_jobs.inputs.column_reads import POSTGRESQL, as_key, key_questions, selected
from spark_jobs.inputs.databases import Database
from spark_jobs.proposing.facts import Column, Kind, Row, Table

ROWS_SAMPLED: Final = 300
ROWS_SEARCHED_MAX: Final = 20_000
VALUES_SAMPLED_MAX: Final = 30
VALUES_COUNTED_MAX: Final = 50
"""A column with more distinct values is not a status."""

FIRST_PLAUSIBLE_MS: Final = 978_307_200_000
LAST_PLAUSIBLE_MS: Final = 4_102_444_800_000
"""The years 2001 to 2099, end exclusive: an integer in between may be milliseconds since 1970."""

_QUOTED: Final = re.compile(r"'((?:[^']|'')*)'")
_OURS: Final = "tidewheel_"
_SYSTEM_SCHEMAS: Final = ("pg_", "information_schema")
_TEXT: Final = pa.field("value", pa.string())
_TIME: Final = pa.field("value_ms", pa.int64())
_KINDS: Final = (
    (Boolean, Kind.BOOLEAN),
    (Integer, Kind.INTEGER),
    (Numeric, Kind.DECIMAL),
    (DateTime | Date, Kind.TIME),
    (String | Enum | Uuid, Kind.TEXT),
)


@dataclass(frozen=True, slots=True)
class Looked:
    """The tables of a database and the unreadable ones with reasons; `shown` is its URL without password."""

    shown: str
    tables: tuple[Table, ...]
    unreadable: tuple[str, ...] = ()


@dataclass(slots=True)
class _Described:
    """A table by its description in the database's catalog, and the keys found in its columns."""

    name: str
    source: SqlTable
    columns: tuple[Column, ...]
    types: dict[str, TypeEngine[Any]]
    has_index: frozenset[str]
    allowed: dict[str, list[str]]
    """The values that the database allows in a column, if its type or a CHECK lists them."""
    found: dict[str, frozenset[str]] = field(default_factory=dict)


def look(url: str, option: str, keys: Sequence[str]) -> Looked:
    """Return the tables and views of a database, with the given keys of messages that their columns contain.

    Tidewheel's own tables (`tidewheel_*`) are left out. Raise `DatabaseUnreadable`, which names `option`.
    """
    database = Database(url, option)
    tables: list[Table] = []
    unreadable: list[str] = []
    try:
        with database.looking() as connection:
            inspector = inspect(connection)
            for name, schema in _names(inspector, connection.dialect.name):
                try:
                    with connection.begin_nested():
                        tables.append(_table(connection, inspector, name, schema, keys))
                except SQLAlchemyError as error:
                    why = str(getattr(error, "orig", None) or error).splitlines()[0]
                    unreadable.append(f"{_qualified(name, schema)} ({why})")
    finally:
        database.close()
    return Looked(database.shown, tuple(tables), tuple(unreadable))


def _names(inspector: Inspector, dialect: str) -> Iterator[tuple[str, str | None]]:
    """Yield names and schemas of tables and views: of the default schema, then of PostgreSQL's others."""
    schemas: list[str | None] = [None]
    if dialect == POSTGRESQL:
        others = (name for name in inspector.get_schema_names() if not name.startswith(_SYSTEM_SCHEMAS))
        schemas += [name for name in others if name != inspector.default_schema_name]
    for schema in schemas:
        for name in (*inspector.get_table_names(schema), *inspector.get_view_names(schema)):
            if not name.startswith(_OURS):
                yield name, schema


def _qualified(name: str, schema: str | None) -> str:
    return f"{schema}.{name}" if schema else name


def _table(
    connection: Connection, inspector: Inspector, name: str, schema: str | None, keys: Sequence[str]
) -> Table:
    described = _described(inspector, name, schema)
    for column in described.columns:
        if column.kind not in (Kind.TIME, Kind.BOOLEAN) and keys:
            described.found[column.name] = _keys_in(connection, described, column, keys)
    rows, kinds = _sample(connection, described, keys)
    holds_keys = any(described.found.values())
    columns = []
    for column in described.columns:
        typed = replace(column, kind=kinds[column.name], keys=described.found.get(column.name, frozenset()))
        is_counted = holds_keys and _may_be_status(typed, rows)
        counts = _counts(connection, described, typed) if is_counted else None
        if counts is not None:
            counts |= {value: 0 for value in described.allowed.get(column.name, ()) if value not in counts}
        columns.append(replace(typed, counts=counts))
    return Table(described.name, tuple(columns), rows)


def _described(inspector: Inspector, name: str, schema: str | None) -> _Described:
    types = {one["name"]: one["type"] for one in inspector.get_columns(name, schema)}
    unique = _unique_columns(inspector, name, schema)
    refers_to = {
        one["constrained_columns"][0]: one["referred_table"]
        for one in inspector.get_foreign_keys(name, schema)
        if len(one["constrained_columns"]) == 1
    }
    first_of_index = {one["column_names"][0] for one in inspector.get_indexes(name, schema)}
    columns = tuple(
        Column(column, _declared(kind), column in unique, refers_to.get(column, ""))
        for column, kind in types.items()
    )
    source = SqlTable(name, MetaData(), *(SqlColumn[Any](one, NullType()) for one in types), schema=schema)
    has_index = frozenset({*unique, *refers_to, *filter(None, first_of_index)})
    allowed = _allowed(inspector, name, schema, types)
    return _Described(_qualified(name, schema), source, columns, types, has_index, allowed)


def _allowed(
    inspector: Inspector, name: str, schema: str | None, types: dict[str, TypeEngine[Any]]
) -> dict[str, list[str]]:
    """Return the allowed values by column: those of an enumeration, or the texts in a CHECK of one column."""
    allowed = {column: list(kind.enums) for column, kind in types.items() if isinstance(kind, Enum)}
    checks: list[Any] = []
    with suppress(NotImplementedError):  # raised by dialects that cannot read CHECK constraints
        checks = inspector.get_check_constraints(name, schema)
    for check in checks:
        condition = check["sqltext"]
        bare = _QUOTED.sub("", condition)
        named = [column for column in types if re.search(rf"(?<!\w){re.escape(column)}(?!\w)", bare)]
        if len(named) == 1:
            texts = [one.replace("''", "'") for one in _QUOTED.findall(condition)]
            allowed.setdefault(named[0], []).extend(texts)
    return {column: values for column, values in allowed.items() if values}


def _unique_columns(inspector: Inspector, name: str, schema: str | None) -> set[str]:
    """Return the columns with a single-column primary key, unique constraint or unique index."""
    key = inspector.get_pk_constraint(name, schema)["constrained_columns"]
    unique: list[list[Any]] = [one["column_names"] for one in inspector.get_unique_constraints(name, schema)]
    unique += [one["column_names"] for one in inspector.get_indexes(name, schema) if one["unique"]]
    return {columns[0] for columns in (key, *unique) if len(columns) == 1 and columns[0]}


def _declared(kind: TypeEngine[Any]) -> Kind:
    return next((ours for types, ours in _KINDS if isinstance(kind, types)), Kind.OTHER)


def _keys_in(
    connection: Connection, described: _Described, column: Column, keys: Sequence[str]
) -> frozenset[str]:
    """Return the keys that a column contains.

    If only other columns have an index, the first `ROWS_SEARCHED_MAX` rows are searched.
    """
    dialect, kind = connection.dialect.name, described.types[column.name]
    source: Any = described.source
    if described.has_index and column.name not in described.has_index:  # views list no indexes
        source = select(described.source.columns[column.name]).limit(ROWS_SEARCHED_MAX).subquery()
    theirs = source.columns[column.name]
    found: set[str] = set()
    for condition, _ in key_questions(dialect, as_key(dialect, theirs, kind), kind, keys):
        shown = selected(dialect, _TEXT, theirs, kind)
        texts = (_text(value) for value in connection.scalars(select(shown).where(condition).distinct()))
        found.update(text for text in texts if text is not None)
    return frozenset(found & set(keys))


def _sample(
    connection: Connection, described: _Described, keys: Sequence[str]
) -> tuple[tuple[Row, ...], dict[str, Kind]]:
    """Return up to `ROWS_SAMPLED` rows, only rows with keys if there are any, and the kind of each column."""
    dialect = connection.dialect.name
    forms: list[ColumnElement[Any]] = []
    for column in described.columns:
        theirs, kind = described.source.columns[column.name], described.types[column.name]
        forms.append(selected(dialect, _TEXT, theirs, kind).label(f"t{len(forms)}"))
        forms.append((selected(dialect, _TIME, theirs, kind)).label(f"m{len(forms)}"))
    query = select(*forms).select_from(described.source).where(_with_keys(dialect, described, keys))
    read = [tuple(row) for row in connection.execute(query.limit(ROWS_SAMPLED))]
    kinds = {
        column.name: _kind(column.kind, [row[2 * place + 1] for row in read])
        for place, column in enumerate(described.columns)
    }
    return tuple(_row(described.columns, kinds, row) for row in read), kinds


def _with_keys(dialect: str, described: _Described, keys: Sequence[str]) -> ColumnElement[bool]:
    """Return the condition for rows with keys in the column that contains most of them; true if none does."""
    is_unique = {column.name: column.is_unique for column in described.columns}
    best = max(described.found, key=lambda one: (len(described.found[one]), is_unique[one]), default=None)
    if best is None or not described.found[best]:
        return and_(True)
    theirs, kind = described.source.columns[best], described.types[best]
    held = sorted(described.found[best])
    questions = key_questions(dialect, as_key(dialect, theirs, kind), kind, held)
    return or_(false(), *(condition for condition, _ in questions))


def _row(columns: Sequence[Column], kinds: dict[str, Kind], read: tuple[Any, ...]) -> Row:
    texts = {column.name: _text(read[2 * place]) for place, column in enumerate(columns)}
    times = {
        column.name: _time(read[2 * place + 1])
        for place, column in enumerate(columns)
        if kinds[column.name] in (Kind.TIME, Kind.INTEGER)
    }
    return Row(texts, {name: ms for name, ms in times.items() if ms is not None})


def _kind(declared: Kind, values: Sequence[Any]) -> Kind:
    """Return the kind of a column: the declared one, unless it is refined by the values."""
    there = [value for value in values if value is not None]
    if not there or declared not in (Kind.TEXT, Kind.OTHER, Kind.DECIMAL):
        return declared
    if all(isinstance(value, str) for value in there):
        is_time = all(_time(value) is not None and not value.strip().isdigit() for value in there)
        return Kind.TIME if is_time else Kind.TEXT
    if all(isinstance(value, bool) for value in there):
        return Kind.BOOLEAN
    if all(isinstance(value, int) for value in there):
        return Kind.INTEGER
    return Kind.DECIMAL if all(_is_number(value) for value in there) else declared


def _is_number(value: Any) -> bool:
    with suppress(TypeError, ValueError, ArithmeticError):
        return not isinstance(value, str | bytes) and float(value) is not None
    return False


def _text(value: Any) -> str | None:
    text: str | None = _as(_TEXT, value)
    return text


def _time(value: Any) -> int | None:
    ms: int | None = _as(_TIME, value)
    return ms if ms is not None and FIRST_PLAUSIBLE_MS <= ms < LAST_PLAUSIBLE_MS else None


def _as(field_of: pa.Field, value: Any) -> Any:
    try:
        return array_of(field_of, [value])[0].as_py()
    except UnfitValue:
        return None


def _may_be_status(column: Column, rows: Sequence[Row]) -> bool:
    if column.is_unique or column.kind not in (Kind.TEXT, Kind.INTEGER, Kind.BOOLEAN):
        return False
    values = {row.texts.get(column.name) for row in rows}
    return 0 < len(values) <= VALUES_SAMPLED_MAX


def _counts(connection: Connection, described: _Described, column: Column) -> dict[str | None, int] | None:
    """Return the row counts of the whole table by value; None for more than `VALUES_COUNTED_MAX` values."""
    theirs, kind = described.source.columns[column.name], described.types[column.name]
    shown = selected(connection.dialect.name, _TEXT, theirs, kind)
    query = select(shown, func.count()).select_from(described.source).group_by(shown)
    counted = connection.execute(query.limit(VALUES_COUNTED_MAX + 1)).all()
    if len(counted) > VALUES_COUNTED_MAX:
        return None
    return {_text(value): count for value, count in counted}
