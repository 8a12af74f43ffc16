"""Export of one table of a user's database to Parquet files: columns, rows, repeated keys."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from sqlalchemy import ColumnElement, Connection, Select, Table, func, select
from sqlalchemy.types import TypeEngine

from spark_jobs.buckets import write_dealt
from spark_jobs.inputs.arrays import UnfitValue, array_of, shown_value
from spark_jobs.inputs.column_reads import POSTGRESQL, in_order, key_questions
from spark_jobs.inputs.key_ranges import KeyRange, key_ranges, row_number

ROWS_PER_BATCH: Final = 5_000
"""Few enough for the processor's cache: batches of ten times as many rows take twice as long."""
ROWS_PER_GROUP: Final = 100_000
KEYS_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class RowCounts:
    """The rows that an export has written and left out; of rows with one key, it writes the first."""

    rows: int = 0
    duplicates: int = 0
    duplicate_keys: list[str] = field(default_factory=list)
    """The first keys of `duplicates`, at most `KEYS_SHOWN_MAX`."""
    without_key: int = 0

    def __add__(self, other: RowCounts) -> RowCounts:
        keys = [*self.duplicate_keys, *other.duplicate_keys][:KEYS_SHOWN_MAX]
        return RowCounts(
            self.rows + other.rows,
            self.duplicates + other.duplicates,
            keys,
            self.without_key + other.without_key,
        )

    def left_out(self, table: str, key: str) -> list[str]:
        """Return a line of text for each reason for which rows were left out."""
        said = []
        if self.duplicates:
            keys = ", ".join(dict.fromkeys(self.duplicate_keys))
            more = ", ..." if self.duplicates > len(self.duplicate_keys) else ""
            said.append(f"{table}: {self.duplicates} with the {key} of an earlier row: {keys}{more}")
        if self.without_key:
            said.append(f"{table}: {self.without_key} without {key}")
        return said


class RowWriter:
    """Writer of rows to one Parquet file, in row groups of about `ROWS_PER_GROUP` rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = pq.ParquetWriter(path, schema, use_dictionary=schema.names[1:])
        self._held: list[pa.RecordBatch] = []
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._file.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        self._held.append(batch)
        self._rows += batch.num_rows
        if self._rows >= ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._file.write_table(pa.Table.from_batches(self._held, self._schema), self._rows)
        self._held, self._rows = [], 0

    def write_rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Add rows with their values in the order of the schema; raise `UnfitValue`."""
        for first in range(0, len(rows), ROWS_PER_BATCH):
            self.write(batch_of(self._schema, rows[first : first + ROWS_PER_BATCH]))


class DealtWriter:
    """Writer of rows to one Parquet file, dealt into buckets by their first column (`buckets`).

    Cost: memory holds all rows until the file is written.
    """

    def __init__(self, path: Path, schema: pa.Schema, bucket_count: int) -> None:
        self._path, self._schema, self._bucket_count = path, schema, bucket_count
        self._held: list[pa.RecordBatch] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            table = pa.Table.from_batches(self._held, self._schema)
            write_dealt(self._path, table, self._bucket_count, use_dictionary=self._schema.names[1:])

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        self._held.append(batch)


def batch_of(
    schema: pa.Schema,
    rows: Sequence[Sequence[Any]],
    names: Sequence[str] | None = None,
    constants: Mapping[str, Mapping[str, str]] | None = None,
    zone: str = "",
    own_numbers: Collection[str] = (),
) -> pa.RecordBatch:
    """Return a batch of rows whose values are of the columns `names` (default: all); other columns are null.

    `constants` are by column, and `own_numbers` are the columns with `has_own_numbers`: see `array_of`, also
    for `zone`.

    Raises:
        UnfitValue: when a value cannot be converted to the type of its column.
    """
    values = dict(zip(names or schema.names, zip(*rows, strict=True), strict=True)) if rows else {}
    arrays = [
        array_of(
            one,
            values[one.name],
            (constants or {}).get(one.name),
            zone,
            has_own_numbers=one.name in own_numbers,
        )
        if one.name in values
        else pa.nulls(len(rows), one.type)
        for one in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _filled(batch: pa.RecordBatch, fixed: Mapping[str, str]) -> pa.RecordBatch:
    """Return a batch whose nulls in the columns of `fixed` are replaced by its values."""
    for name, value in fixed.items():
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, batch.schema.field(place), pc.fill_null(batch.column(place), value))
    return batch


Writer = RowWriter | DealtWriter


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table of a user's database, with those of our columns that it has."""

    schema: pa.Schema
    source: Table
    columns: Mapping[str, ColumnElement[Any]]
    """Our column -> the expression to select for it (`column_reads`)."""
    key: ColumnElement[Any]
    """The key column, in the form in which the database compares it."""
    kind: TypeEngine[Any]
    """The key's type."""
    constants: Mapping[str, Mapping[str, str]]
    fixed: Mapping[str, str]
    """Our column -> the value that replaces null."""
    is_unique: bool
    """True if the database makes the key unique, or if several rows may have one (`databases._KEYED`)."""
    zone: str = ""
    """The zone of times without a zone."""
    own_numbers: frozenset[str] = frozenset()
    """Our columns of times whose numbers are the table's own (`column_reads.has_own_numbers`)."""

    def ranges(self, connection: Connection) -> tuple[ColumnElement[Any], list[KeyRange]]:
        """Return the expression whose ranges divide the table, and the ranges.

        It is the row number, the order on disk, if there is one and keys need no check for repeats; else the
        key.
        """
        number = row_number(connection, self.source) if self.is_unique else None
        if number is not None:
            return number, key_ranges(connection, self.source, number, number)
        is_text = connection.dialect.name == POSTGRESQL
        shown = self.columns[self.schema.names[0]] if is_text else self.key
        return self.key, key_ranges(connection, self.source, self.key, shown)

    def write_some(self, connection: Connection, keys: Sequence[str], path: Path) -> RowCounts:
        """Write the rows with one of these keys to files below the folder `path`."""
        counts = RowCounts()
        questions = key_questions(connection.dialect.name, self.key, self.kind, keys)
        for number, (condition, asked) in enumerate(questions):
            query = select(*self.columns.values()).where(condition, self.key.is_not(None))
            only = pa.array(asked, pa.string())
            with RowWriter(path / part_name(number), self.schema) as writer, no_cycles():
                counts += self._copy(connection, query, writer, only)
        return counts

    def write(
        self, connection: Connection, condition: ColumnElement[bool], path: Path, bucket_count: int = 0
    ) -> RowCounts:
        """Write the rows that meet a condition to one file, dealt into `bucket_count` buckets unless 0."""
        query = select(*self.columns.values()).where(condition, self.key.is_not(None))
        to = DealtWriter(path, self.schema, bucket_count) if bucket_count else RowWriter(path, self.schema)
        with to as writer, no_cycles():
            if self.is_unique:
                return self._copy(connection, query, writer)
            order = in_order(connection.dialect.name, self.key, self.kind)
            return self._copy_first(connection, query.order_by(*order), writer)

    def count(self, connection: Connection) -> int:
        """Return the number of rows."""
        return connection.execute(select(func.count()).select_from(self.source)).scalar_one()

    def count_without_key(self, connection: Connection) -> int:
        """Return the number of rows whose key is null."""
        query = select(func.count()).select_from(self.source).where(self.key.is_(None))
        return connection.execute(query).scalar_one()

    def _copy(
        self, connection: Connection, query: Select[Any], writer: Writer, only: pa.Array | None = None
    ) -> RowCounts:
        """Write all rows, or those with a key of `only`; return the counts."""
        count = 0
        for found in self._batches(connection, query):
            batch = found if only is None else found.filter(pc.is_in(found.column(0), only))
            writer.write(batch)
            count += batch.num_rows
        return RowCounts(count)

    def _copy_first(self, connection: Connection, query: Select[Any], writer: Writer) -> RowCounts:
        """Write the first row of each key; the query orders rows by key. Return the counts."""
        counts, last = RowCounts(), None
        for batch in self._batches(connection, query):
            keys = batch.column(0)
            before = pa.concat_arrays([pa.array([last], keys.type), keys.slice(0, len(keys) - 1)])
            is_new = pc.fill_null(pc.not_equal(keys, before), True)
            repeated = batch.num_rows - (is_new.true_count or 0)
            found = keys.filter(pc.invert(is_new)).slice(0, KEYS_SHOWN_MAX).to_pylist() if repeated else []
            writer.write(batch.filter(is_new))
            counts += RowCounts(batch.num_rows - repeated, repeated, found)
            last = keys[-1].as_py()
        return counts

    def _batches(self, connection: Connection, query: Select[Any]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a query as batches; raise `UnfitValue`.

        SQLite's cursor streams by default; with `stream_results` it is half as fast.
        """
        streams = {} if connection.dialect.name == "sqlite" else {"stream_results": True}
        result = connection.execution_options(**streams).execute(query)
        names = list(self.columns)
        while rows := result.fetchmany(ROWS_PER_BATCH):
            try:
                batch = batch_of(self.schema, rows, names, self.constants, self.zone, self.own_numbers)
                batch = _filled(batch, self.fixed)
            except UnfitValue as error:
                key = self.schema.names[0]
                error.key = "" if error.column == key else shown_value(rows[error.row][names.index(key)])
                raise
            yield batch


@contextmanager
def no_cycles() -> Iterator[None]:
    """Disable the garbage collector until the block ends.

    Rows have no reference cycles, and without the collector reading takes half the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parts_of(folder: Path, name: str) -> Path:
    """Create the folder `<name>.parquet` of a table's files, and return it."""
    path = folder / f"{name}.parquet"
    path.mkdir(parents=True, exist_ok=True)
    return path


def part_name(number: int) -> str:
    """Return the file name of a range or bucket."""
    return f"part-{number:05d}.parquet"
