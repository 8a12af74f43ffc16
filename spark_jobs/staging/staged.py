"""The one pass over the log: a task for each part of it, which leaves Parquet files beside the other parts'.

    facts/      order_id, order_row, `ORDER_FACTS`            one row per order and part, dealt into buckets
    pushes/     order_id (the push), order_row, `PUSH_FACTS`  likewise (`buckets`)
    events/     `EVENTS`                                      one row per event: exact facts, timelines
    unnamed/    likewise, of events whose records do not name an order
    acks/       topic, first_place, end_place, physical_offset, store_ms     ranges of the acting groups
    grouped/    topic, queue, message_group, order_id         messages that have an order among them
    counts/     kind, topic, minute_ms, records, record_bytes, first_ms, last_ms, unreadable,
                unreadable_offset, without_key                the log by kind, topic and minute
    lateness/   topic, minute_ms, recurs, late_ms, deliveries how late timers and runs of schedules were
    set_late/   timer_offset, set_ms                          timers that were set after they were due, and
    carried/    timer_offset, topic, store_ms, late_ms        deliveries of timers of other parts: by these
                                                              lateness is corrected (`late_settings`)
    ends/       how, timers                                   how timers ended
    unreadable/ physical_offset, topic, body                  the first unreadable messages of each part
    damaged/    physical_offset, record_bytes, why            bytes that are no record
    epochs/     physical_offset, number, began_ms, node       where another node of a cluster began to lead
    holds/      physical_offset, store_ms, topic, is_held, per_second        where operators held and released
                                                              the timers of a topic (`holds`)

Everything is worked out where the records are decoded, in whole columns: no record crosses into the JVM.
A task that is done again writes the same files again. Where nothing is to be said a part leaves no file.
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

from commitlog.published_log import StoreLog, holes
from spark_jobs.buckets import bucket_count, write_dealt
from spark_jobs.encodings import encodings
from spark_jobs.inputs.mapping import Mapping
from spark_jobs.log.decode import Wanted, chunk_batches, mapped
from spark_jobs.log.kept import kept_parts
from spark_jobs.log.kinds import TOPICS
from spark_jobs.log.parts import Part, part_batches
from spark_jobs.log.shapes import Shapes
from spark_jobs.log.slices import Slice, slices
from spark_jobs.log.walk import Check, Chunk, walk
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
"""An order's row is its part's number above, its place in the part in so many bits."""

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
"""The data sets of a staged log."""

DEALT: Final = ("facts", "pushes")
"""The data sets with a row group for each bucket of ids."""

MESSAGE_ID: Final = "message_id"
_IDS: Final = Wanted((MESSAGE_ID,))


@dataclass(frozen=True, slots=True)
class Staged:
    """A log that was read in `part_count` parts up to the log offset `until`: data sets below `folder`, of
    which those of orders and pushes are dealt into `bucket_count` buckets."""

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
        """Add events that are not of the order that their records name, as a file of that name."""
        self.path("unnamed").mkdir(exist_ok=True)
        pq.write_table(events, self.path("unnamed") / f"{name}.parquet")

    def table(self, name: str) -> pa.Table:
        """Return one of the small data sets, in memory."""
        return ds.dataset(self.path(name), SCHEMAS[name], format="parquet").to_table()

    def lateness(self) -> pa.Table:
        """Return how late deliveries were, each counting from when its timer was due, or set after that."""
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
        """Return how the last hold of the timers of a topic stands."""
        folders = [self.path("events"), self.path("unnamed")]
        events = ds.dataset([ds.dataset(path, EVENTS, format="parquet") for path in folders])
        return hold_of(self.table("holds"), name, events, topic)

    def acknowledged(self, topic: int) -> Places:
        """Return what the acting group of a topic has acknowledged."""
        rows = ds.dataset(self.path("acks"), SCHEMAS["acks"], format="parquet")
        mine = rows.to_table(columns=["first_place", "end_place"], filter=ds.field("topic") == topic)
        return Places.merged(mine["first_place"].to_numpy(), mine["end_place"].to_numpy())


def stage(spark: SparkSession, store: Path, log: StoreLog, mapping: Mapping, folder: Path) -> Staged:
    """Read the whole log once, a task for each part of it."""
    count = bucket_count(log.end_offset - log.first_offset)
    return stage_rest(spark, store, log, mapping, Staged(folder, bucket_count=count))


def stage_rest(spark: SparkSession, store: Path, log: StoreLog, mapping: Mapping, staged: Staged) -> Staged:
    """Read what a staged log does not have yet: what was written since, what was kept, and holes."""
    return stage_parts(spark, parts_of(store, log, staged.until), log, mapping, staged)


def stage_parts(
    spark: SparkSession, parts: Sequence[Part], log: StoreLog, mapping: Mapping, staged: Staged
) -> Staged:
    """Add some parts of the log to what is staged, a task for each; they get the next numbers."""
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
    """Return the log offset up to which records that start before it are in this part."""
    return part.segment.first_offset + part.until if isinstance(part, Slice) else 0


def first_stored_ms(log: StoreLog) -> int:
    """Return when the first record that is left of the log was stored; 0 if there is none."""
    for part in slices(log, SLICE_BYTES):
        for chunk in walk(mapped(part.segment.path), part, Check.NONE):
            if len(chunk.records):
                return int(chunk.records.numbers("store_ms")[0])
    return 0


def parts_of(store: Path, log: StoreLog, after: int = 0) -> list[Part]:
    """Return what is to be read: slices that begin at an offset or behind it, kept records, and holes in the
    log.
    """
    parts: list[Part] = list(slices(log, SLICE_BYTES, after))
    missing = tuple(holes(log))
    return [*parts, *kept_parts(store, log), *([missing] if missing else [])]


def stage_part(number: int, part: Part, check: Check, mapping: Mapping, staged: Staged) -> int:
    """Read one part and writes its files; return how many records it had."""
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
    """Yield the records of a slice; with their message ids where a schedule sent any: they say when it was
    due.
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
    # Differences of events are so short that compressing them again would cost more than it saves.
    compression = "none" if table.schema == EVENTS else "lz4"
    how = {"compression": compression, **encodings(table.schema, kinds)}
    if name in DEALT:
        write_dealt(path, table, bucket_count, **how)
    else:
        pq.write_table(table, path, **how)
