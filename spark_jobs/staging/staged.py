"""The single pass over the log: one task per part writes one Parquet file per data set.

    facts/      order_id, order_row, `ORDER_FACTS`            one row per order and part, in buckets
    pushes/     order_id (the push), order_row, `PUSH_FACTS`  one row per push and part, in buckets
    events/     `EVENTS`                                      one row per event: exact facts, timelines
    unnamed/    `EVENTS`                                      events whose records name no order, or another
    acks/       topic, first_place, end_place, physical_offset, store_ms     ranges of the acting groups
    grouped/    topic, queue, message_group, order_id         messages with a message group (FIFO)
    counts/     kind, topic, minute_ms, records, record_bytes, first_ms, last_ms, unreadable,
                unreadable_offset, without_key                records by kind, topic, and minute
    lateness/   topic, minute_ms, recurs, late_ms, deliveries lateness of timers and of runs of schedules
    set_late/   timer_offset, set_ms                          timers that were set after their due time, and
    carried/    timer_offset, topic, store_ms, late_ms        late deliveries of timers of earlier parts: both
                                                              correct the lateness (`late_settings`)
    ends/       how, timers                                   timers by kind of end
    unreadable/ physical_offset, topic, body                  the first unreadable messages of each part
    damaged/    physical_offset, record_bytes, why            bytes that are no record
    epochs/     physical_offset, number, began_ms, node       epoch records: start and leader of an epoch
    holds/      physical_offset, store_ms, topic, is_held, per_second        holds and releases of the timers
                                                              of a topic (`holds`)

All results are computed in whole columns where the records are decoded. No record enters the JVM. A repeated
task writes the same files again. A part without rows for a data set has no file there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from commitlog.log.published_log import StoreLog, holes
from spark_jobs.buckets import bucket_count, write_dealt
from spark_jobs.encodings import encodings
from spark_jobs.inputs.mapping import Mapping
from spark_jobs.log.columns.kinds import TOPICS
from spark_jobs.log.columns.shapes import Shapes
from spark_jobs.log.kept.kept import kept_parts
from spark_jobs.log.parts import Part, part_batches
from spark_jobs.log.scan.decode import Wanted, chunk_batches, mapped
from spark_jobs.log.scan.slices import Slice, slices
from spark_jobs.log.scan.walk import Check, Chunk, walk
from spark_jobs.staging.acknowledged import Places
from spark_jobs.staging.events import COLUMNS
from spark_jobs.staging.holds import HOLDS, TopicHold, hold_of
from spark_jobs.staging.late_settings import CARRIED, SET_LATE, corrections
from spark_jobs.staging.order_facts import ORDER_FACTS, PUSH_FACTS, schema
from spark_jobs.staging.tally import Tally
from spark_jobs.staging.time_buckets import FINE_SPAN_MS, MINUTE_MS, SECOND_MS
from spark_jobs.tasks import in_tasks, whole

SLICE_BYTES: Final = 256 * 1024 * 1024
ROW_BITS: Final = 32
"""Bits of the row within a part. The number of the part is in the higher bits of an order's row."""

EVENTS: Final = pa.schema([
    ("order_row", pa.int64()),
    ("code", pa.int8()),
    ("topic", pa.int8()),
    ("physical_offset", pa.int64()),
    ("store_ms", pa.int64()),
    ("ref", pa.int64()),
    ("due_ms", pa.int64()),
    ("queue", pa.int64()),
])  # fmt: skip
SCHEMAS: Final = {
    "facts": schema(ORDER_FACTS),
    "pushes": schema(PUSH_FACTS),
    "events": EVENTS,
    "unnamed": EVENTS,
    "acks": pa.schema([
        ("topic", pa.int8()), ("first_place", pa.int64()), ("end_place", pa.int64()),
        ("physical_offset", pa.int64()), ("store_ms", pa.int64()),
    ]),
    "grouped": pa.schema([
        ("topic", pa.int8()), ("queue", pa.int64()), ("message_group", pa.string()),
        ("order_id", pa.string()),
    ]),
    "counts": pa.schema([
        ("kind", pa.string()), ("topic", pa.string()), ("minute_ms", pa.int64()), ("records", pa.int64()),
        ("record_bytes", pa.int64()), ("first_ms", pa.int64()), ("last_ms", pa.int64()),
        ("unreadable", pa.int64()), ("unreadable_offset", pa.int64()), ("without_key", pa.int64()),
    ]),
    "lateness": pa.schema([
        ("topic", pa.string()), ("minute_ms", pa.int64()), ("recurs", pa.bool_()),
        ("late_ms", pa.int64()), ("deliveries", pa.int64()),
    ]),
    "set_late": SET_LATE,
    "carried": CARRIED,
    "ends": pa.schema([("how", pa.string()), ("timers", pa.int64())]),
    "unreadable": pa.schema([
        ("physical_offset", pa.int64()), ("topic", pa.string()), ("body", pa.string()),
    ]),
    "damaged": pa.schema([
        ("physical_offset", pa.int64()), ("record_bytes", pa.int64()), ("why", pa.string()),
    ]),
    "epochs": pa.schema([
        ("physical_offset", pa.int64()), ("number", pa.int64()), ("began_ms", pa.int64()),
        ("node", pa.string()),
    ]),
    "holds": HOLDS,
}  # fmt: skip
"""Schemas of the data sets of a staged log, by name."""

DEALT: Final = ("facts", "pushes")
"""Data sets with one row group per bucket of IDs (`buckets`)."""

MESSAGE_ID: Final = "message_id"
_IDS: Final = Wanted((MESSAGE_ID,))


@dataclass(frozen=True, slots=True)
class Staged:
    """A log that was read in `part_count` parts up to the log offset `until`.

    The data sets are in `folder`. Those in `DEALT` have `bucket_count` buckets.
    """

    folder: Path
    part_count: int = 0
    until: int = 0
    bucket_count: int = 1

    def path(self, name: str) -> Path:
        """Return the folder of one data set."""
        return self.folder / name

    def has(self, name: str) -> bool:
        """Return whether a data set has any row."""
        return any(self.path(name).glob("*.parquet"))

    def add_unnamed(self, name: str, events: pa.Table) -> None:
        """Add events that do not belong to the order of their records, as a file `name`."""
        self.path("unnamed").mkdir(exist_ok=True)
        pq.write_table(events, self.path("unnamed") / f"{name}.parquet")

    def table(self, name: str) -> pa.Table:
        """Return a whole data set. It must be small enough for memory."""
        return ds.dataset(self.path(name), SCHEMAS[name], format="parquet").to_table()

    def lateness(self) -> pa.Table:
        """Return the `lateness` rows, corrected by `set_late` and `carried` (see `late_settings`)."""
        counted = self.table("lateness")
        if not (self.has("set_late") and self.has("carried")):
            return counted
        carried = ds.dataset(self.path("carried"), CARRIED, format="parquet").to_batches()
        starts = counted["minute_ms"].to_numpy()
        is_fine = bool((starts % MINUTE_MS).any()) and int(np.ptp(starts)) <= FINE_SPAN_MS
        bucket_ms = SECOND_MS if is_fine else MINUTE_MS
        place = counted.schema.get_field_index("minute_ms")
        counted = counted.set_column(place, "minute_ms", pa.array(starts - starts % bucket_ms))
        parts = [counted, *corrections(self.table("set_late"), carried, bucket_ms)]
        by = [name for name in counted.column_names if name != "deliveries"]
        whole = pa.concat_tables(parts).group_by(by, use_threads=False).aggregate([("deliveries", "sum")])
        return whole.rename_columns([*by, "deliveries"]).filter(pc.field("deliveries") > 0)

    def hold(self, topic: int, name: str) -> TopicHold:
        """Return the last hold of a topic's timers. `topic` is the number of the topic `name`."""
        folders = [self.path("events"), self.path("unnamed")]
        events = ds.dataset([ds.dataset(path, EVENTS, format="parquet") for path in folders])
        return hold_of(self.table("holds"), name, events, topic)

    def acknowledged(self, topic: int) -> Places:
        """Return the places that the acting group of a topic (by number) has acknowledged."""
        rows = ds.dataset(self.path("acks"), SCHEMAS["acks"], format="parquet")
        mine = rows.to_table(columns=["first_place", "end_place"], filter=ds.field("topic") == topic)
        return Places.merged(mine["first_place"].to_numpy(), mine["end_place"].to_numpy())


def stage(spark: SparkSession, store: Path, log: StoreLog, mapping: Mapping, folder: Path) -> Staged:
    """Read the whole log once, with one task per part, and return the data sets in `folder`."""
    count = bucket_count(log.end_offset - log.first_offset)
    return stage_rest(spark, store, log, mapping, Staged(folder, bucket_count=count))


def stage_rest(spark: SparkSession, store: Path, log: StoreLog, mapping: Mapping, staged: Staged) -> Staged:
    """Add the rest of the log: records after `staged.until`, records kept by retention, and holes."""
    return stage_parts(spark, parts_of(store, log, staged.until), log, mapping, staged)


def stage_parts(
    spark: SparkSession, parts: Sequence[Part], log: StoreLog, mapping: Mapping, staged: Staged
) -> Staged:
    """Add parts of the log to a staged log, with one task per part. The parts get the next numbers."""
    for name in SCHEMAS:
        staged.path(name).mkdir(parents=True, exist_ok=True)
    check = Check.RECORD if log.ours else Check.BODY
    first_number = staged.part_count

    def read(number: int) -> None:
        stage_part(number, parts[number - first_number], check, mapping, staged)

    end_number = first_number + len(parts)
    in_tasks(spark, range(first_number, end_number), read)
    until = max((_until(part) for part in parts), default=0)
    return replace(staged, part_count=end_number, until=until)


def _until(part: Part) -> int:
    """Return the log offset before which the records of a slice start, or 0 for other parts."""
    return part.segment.first_offset + part.until if isinstance(part, Slice) else 0


def first_stored_ms(log: StoreLog) -> int:
    """Return the store time (ms since 1970) of the first record in the log, or 0 without records."""
    for part in slices(log, SLICE_BYTES):
        for chunk in walk(mapped(part.segment.path), part, Check.NONE):
            if len(chunk.records):
                return int(chunk.records.numbers("store_ms")[0])
    return 0


def parts_of(store: Path, log: StoreLog, after: int = 0) -> list[Part]:
    """Return the parts to read: slices from the offset `after` on, kept records, and holes in the log."""
    parts: list[Part] = list(slices(log, SLICE_BYTES, after))
    missing = tuple(holes(log))
    return [*parts, *kept_parts(store, log), *([missing] if missing else [])]


def stage_part(number: int, part: Part, check: Check, mapping: Mapping, staged: Staged) -> int:
    """Read one part, write its files, and return its number of records."""
    tally = Tally(mapping)
    for batch in _batches(part, check, mapping):
        tally.add(batch)
    for name, table in tally.tables(number << ROW_BITS).items():
        if len(table):
            with whole(staged.path(name) / f"{number:06d}.parquet") as path:
                _write(path, name, table.cast(SCHEMAS[name]), staged.bucket_count)
    return tally.records


def _batches(part: Part, check: Check, mapping: Mapping) -> Iterator[pa.RecordBatch]:
    bodies = frozenset((*mapping.topics.all, TOPICS["ack"], TOPICS["epoch"], TOPICS["topic"]))
    if isinstance(part, Slice):
        return _of_slice(part, Wanted(COLUMNS, bodies=bodies, check=check, encoded=True))
    return part_batches(part, Wanted((*COLUMNS, MESSAGE_ID), bodies=bodies, check=check))


def _of_slice(part: Slice, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice in batches.

    A batch with messages of a schedule has the message IDs, which contain the due times.
    """
    data, shapes, id_shapes = mapped(part.segment.path), Shapes(), Shapes()
    for chunk in walk(data, part, wanted.check):
        for batch in chunk_batches(chunk, wanted, shapes):
            schedules = batch.column("schedule")
            if schedules.null_count < len(schedules):
                (ids,) = chunk_batches(Chunk(chunk.records), _IDS, id_shapes)
                batch = batch.append_column(MESSAGE_ID, ids.column(0))
            yield batch


def _write(path: Path, name: str, table: pa.Table, bucket_count: int) -> None:
    kinds = [field.name for field in table.schema if field.type != pa.int64() and field.name != "order_id"]
    # Events are delta encoded. Compressing these short differences would cost more than it saves.
    compression = "none" if table.schema == EVENTS else "lz4"
    how = {"compression": compression, **encodings(table.schema, kinds)}
    if name in DEALT:
        write_dealt(path, table, bucket_count, **how)
    else:
        pq.write_table(table, path, **how)
