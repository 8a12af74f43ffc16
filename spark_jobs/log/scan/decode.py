"""Decodes log bytes into Arrow record batches, one column at a time, without Spark or Java.

`walk` finds the records, and `records` reads their fixed fields and the positions of their parts. Topics,
bodies, and properties are ranges of the mapped file that Arrow or NumPy copies. Python code runs once per
record only for the CRCs, for single steps of a walk, and in special cases: `key_list`, keys with spaces, IPv6
hosts, compressed bodies, invalid UTF-8 or numbers, and irregular or repeated properties. A batch of about
16,000 records fits in the processor cache. With half as many records, the fixed cost per batch is a tenth of
the total cost.

A damaged region of the log is also a row: `physical_offset` and `record_bytes` are its location, `damage` is
the reason, `kind` is "damage", and all other columns are null. Damage is thus reported, and a comparison with
any other column excludes these rows.

Rows are selected before columns are built: by half offset, topic, and store time, which do not depend on
properties. The kind of a record depends on a property, so rows are selected by kind last.

Limitation: the file is mapped. If the disk cannot read a page, the worker process ends with SIGBUS, and Spark
repeats the task until the job fails. A file that is truncated while it is read has the same effect.

Benchmark: `benchmarks/audit.py decode`.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.limits import BODY_BYTES_MAX
from commitlog.log.recovery import Damage
from commitlog.records import record
from commitlog.records.compression import plain
from spark_jobs.log.columns.hosts import hosts
from spark_jobs.log.columns.keys import KEY_LIST, first_keys, key_lists
from spark_jobs.log.columns.kinds import KINDS, kinds_of
from spark_jobs.log.columns.properties import MAP, Properties, topics_of
from spark_jobs.log.columns.ragged import Bytes, Flags, Integers, numbers, ragged, spread, text
from spark_jobs.log.columns.records import FIXED, Records
from spark_jobs.log.columns.shapes import Shapes
from spark_jobs.log.scan.slices import Slice
from spark_jobs.log.scan.walk import Check, Chunk, walk
from tidewheel import property_names

INFLATED_BYTES_MAX: Final = 16 * BODY_BYTES_MAX
_ZLIB_TYPES: Final = (0x000, 0x300)

ALL: Final = frozenset({"*"})
"""Set of topics that stands for all topics."""

PROPERTIES: Final = {
    "message_id": (property_names.MESSAGE_ID, pa.string()),
    "tag": (property_names.TAG, pa.string()),
    "keys": (property_names.KEYS, pa.string()),
    "message_group": (property_names.MESSAGE_GROUP, pa.string()),
    "transaction_id": (property_names.TRANSACTION_ID, pa.string()),
    "producer_group": (property_names.PRODUCER_GROUP, pa.string()),
    "real_topic": (property_names.REAL_TOPIC, pa.string()),
    "real_queue_id": (property_names.REAL_QUEUE_ID, pa.int32()),
    "due_ms": (property_names.DUE_MS, pa.int64()),
    "timer_offset": (property_names.TIMER_OFFSET, pa.int64()),
    "outcome": (property_names.OUTCOME, pa.string()),
    "verb": (property_names.VERB, pa.string()),
    "replaces": (property_names.REPLACES, pa.int64()),
    "cancels": (property_names.CANCELS, pa.string()),
    "held": (property_names.HELD, pa.string()),
    "schedule": (property_names.SCHEDULE, pa.string()),
    "dead_letter_topic": (property_names.DEAD_LETTER_TOPIC, pa.string()),
    "dead_letter_message_id": (property_names.DEAD_LETTER_MESSAGE_ID, pa.string()),
}
TIMES: Final = {"store_time": "store_ms", "born_time": "born_ms", "due_time": "due_ms"}
"""Timestamp columns, with the columns in milliseconds since the Unix epoch that they are computed from."""

MADE_OF: Final = {
    "kind": (property_names.TIMER_OFFSET,),
    "due_time": (property_names.DUE_MS,),
    "first_key": (property_names.KEYS, property_names.KEY_LENGTHS),
    "key_list": (property_names.KEYS, property_names.KEY_LENGTHS),
}
"""Columns that are computed from properties, with the stored names of these properties."""

TIMESTAMP: Final = pa.timestamp("us", "UTC")

SCHEMA: Final = pa.schema([
    ("physical_offset", pa.int64()),
    ("record_bytes", pa.int64()),
    ("kind", pa.string()),
    ("topic", pa.string()),
    *((name, pa.int32() if field.numpy_type == ">i4" else pa.int64()) for name, field in FIXED.items()),
    *((name, TIMESTAMP) for name in TIMES),
    ("born_host", pa.string()),
    ("store_host", pa.string()),
    ("delivery_attempt", pa.int32()),
    ("body", pa.binary()),
    *((name, kind) for name, (_, kind) in PROPERTIES.items()),
    ("first_key", pa.string()),
    ("key_list", KEY_LIST),
    ("user_properties", MAP),
    ("damage", pa.string()),
])  # fmt: skip


DEFAULT: Final = (
    "physical_offset", "record_bytes", "kind", "topic", "queue_id", "queue_offset", "store_time", "born_time",
    "due_time", "born_host", "store_host", "message_id", "tag", "keys", "message_group", "transaction_id",
    "half_offset", "timer_offset", "delivery_attempt", "user_properties", "body", "damage",
)  # fmt: skip
"""Columns of a load without a schema. Each time is included in one form only."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selection of columns and rows.

    `columns` are columns of `SCHEMA`, in order. `topics` and `kinds` select records, and `bodies` holds the
    topics whose bodies are read. `check` is the verification of each record. `stored_ms` is a half-open range
    of store times in milliseconds since the Unix epoch. If `only_of_halves` is true, only records with a half
    offset are read. If `encoded` is true, the column topic is dictionary-encoded. Topics, times, and half
    offsets do not apply to damaged regions.
    """

    columns: tuple[str, ...] = tuple(SCHEMA.names)
    topics: frozenset[str] = ALL
    bodies: frozenset[str] = frozenset()
    check: Check = Check.RECORD
    kinds: frozenset[str] = frozenset(KINDS)
    stored_ms: tuple[int, int] | None = None
    only_of_halves: bool = False
    encoded: bool = False

    @property
    def property_names(self) -> list[str]:
        """Return the stored names of the properties to read."""
        columns = self.columns if self.kinds >= frozenset(KINDS) else (*self.columns, "kind")
        stored = {name: (one,) for name, (one, _) in PROPERTIES.items()} | MADE_OF
        return list(dict.fromkeys(one for name in columns for one in stored.get(name, ())))

    @property
    def schema(self) -> pa.Schema:
        """Return the Arrow schema of the batches."""
        schema = pa.schema([SCHEMA.field(name) for name in self.columns])
        if self.encoded and "topic" in self.columns:
            place = self.columns.index("topic")
            return schema.set(place, pa.field("topic", pa.dictionary(pa.int32(), pa.string())))
        return schema


def batches(part: Slice, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the selected records and the damaged regions of one slice as batches, in log order."""
    data, shapes = mapped(part.segment.path), Shapes()
    for chunk in walk(data, part, wanted.check):
        yield from chunk_batches(chunk, wanted, shapes)


def mapped(path: str) -> Bytes:
    """Return the bytes of a file (uint8). The file is mapped, and a page is read on first access.

    Do not call this function in a broker: if the disk cannot read a page, the process ends with SIGBUS. Raise
    OSError if the file cannot be opened, or `ValueError` if it is empty.
    """
    with open(path, "rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def damage_batch(damaged: Sequence[Damage], schema: pa.Schema, why: str) -> pa.RecordBatch:
    """Return damaged regions as rows of `schema`. `why` is the value of the column damage."""
    given = {
        "physical_offset": [damage.first_offset for damage in damaged],
        "record_bytes": [damage.end_offset - damage.first_offset for damage in damaged],
        "kind": ["damage"] * len(damaged),
        "damage": [why] * len(damaged),
    }
    columns = [pa.array(given.get(field.name, [None] * len(damaged)), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def chunk_batches(chunk: Chunk, wanted: Wanted, shapes: Shapes) -> Iterator[pa.RecordBatch]:
    """Yield a batch with the selected records of a chunk, and a batch with its damage.

    Consecutive chunks should share `shapes`, which the records of a chunk extend.
    """
    records = _chosen(chunk.records, wanted)
    if len(records):
        columns = Columns(records, wanted, shapes)
        kept = columns.of_kinds()
        yield columns.batch() if kept.all() else columns.batch().filter(pa.array(kept))
    if chunk.damaged and "damage" in wanted.kinds:
        yield damage_batch(chunk.damaged, wanted.schema, "bytes that are no sound record")


def _chosen(records: Records, wanted: Wanted) -> Records:
    if wanted.kinds == {"damage"}:
        return records.chosen(slice(0))
    if wanted.only_of_halves:
        records = records.chosen(records.numbers("half_offset") != 0)
    if wanted.topics != ALL and len(records):
        records = records.chosen(_is_of(topics_of(records), wanted.topics))
    return stored_within(records, wanted.stored_ms)


def stored_within(records: Records, span_ms: tuple[int, int] | None) -> Records:
    """Return the records with store times in [first, end), in milliseconds, or all if `span_ms` is None."""
    if span_ms is None or not len(records):
        return records
    stored_ms = records.numbers("store_ms")
    return records.chosen((stored_ms >= span_ms[0]) & (stored_ms < span_ms[1]))


def _is_of(topic: pa.StringArray, topics: frozenset[str]) -> Flags:
    flags: Flags = pc.is_in(topic, pa.array(sorted(topics), pa.string())).to_numpy(zero_copy_only=False)
    return flags


class Columns:
    """Columns of records. Each column is built on first access."""

    def __init__(self, records: Records, wanted: Wanted, shapes: Shapes) -> None:
        self._records = records
        self._shapes = shapes
        self._wanted = wanted
        self._made: dict[str, pa.Array] = {}
        self._stored: Properties | None = None

    def batch(self) -> pa.RecordBatch:
        """Return the selected columns of all records."""
        made = [self.column(name) for name in self._wanted.columns]
        return pa.RecordBatch.from_arrays(made, schema=self._wanted.schema)

    def of_kinds(self) -> Flags:
        """Return which records are of a selected kind."""
        if self._wanted.kinds >= frozenset(KINDS):
            return np.ones(len(self._records), np.bool_)
        return _is_of(self.column("kind"), self._wanted.kinds)

    def column(self, name: str) -> pa.Array:
        """Return one column of `SCHEMA`."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> pa.Array:
        if name in FIXED:
            return pa.array(self._records.numbers(name))
        if name in PROPERTIES:
            stored_name, kind = PROPERTIES[name]
            values = self._properties.values(stored_name)
            return text(values) if kind == pa.string() else numbers(values, kind)
        if name in TIMES:
            return _timestamps(self.column(TIMES[name]))
        return _MAKERS[name](self)

    @property
    def _properties(self) -> Properties:
        if self._stored is None:
            self._stored = Properties(self._records, self._wanted.property_names, self._shapes)
        return self._stored

    def _topics(self) -> pa.Array:
        topics = self._encoded_topics()
        return topics if self._wanted.encoded else topics.dictionary_decode()

    def _encoded_topics(self) -> pa.DictionaryArray:
        if self._wanted.property_names:
            return self._properties.topics
        return pc.dictionary_encode(topics_of(self._records))

    def _kinds(self) -> pa.StringArray:
        delivers_timer = self._properties.has(property_names.TIMER_OFFSET)
        return kinds_of(self._properties.topics, self._records.numbers("sys_flag"), delivers_timer)

    def _key_properties(self) -> tuple[pa.StringArray, pa.StringArray]:
        """Return KEYS and KEY_LENGTHS, as stored."""
        return text(self._properties.values(property_names.KEYS)), text(
            self._properties.values(property_names.KEY_LENGTHS)
        )

    def _bodies(self) -> pa.BinaryArray:
        records, topics = self._records, self._wanted.bodies
        if not topics:
            return pa.nulls(len(records), pa.binary())
        if topics == ALL:
            stored = ragged(records.data, records.body_starts, records.body_bytes)
        else:
            found = self._encoded_topics()
            is_wanted = np.array([name in topics for name in found.dictionary.to_pylist()])
            places = np.flatnonzero(is_wanted[found.indices.to_numpy()])
            stored = ragged(records.data, records.body_starts[places], records.body_bytes[places])
            stored = spread(stored, places, len(records))
        sys_flags = records.numbers("sys_flag")
        return _unpacked(stored, sys_flags) if (sys_flags & record.COMPRESSED).any() else stored


_MAKERS: Final[dict[str, Callable[[Columns], pa.Array]]] = {
    "physical_offset": lambda made: pa.array(made._records.numbers("physical_offset")),
    "record_bytes": lambda made: pa.array(made._records.lengths),
    "topic": Columns._topics,
    "kind": Columns._kinds,
    "body": Columns._bodies,
    "first_key": lambda made: first_keys(*made._key_properties()),
    "key_list": lambda made: key_lists(*made._key_properties()),
    "born_host": lambda made: hosts(made._records, "born_host"),
    "store_host": lambda made: hosts(made._records, "store_host"),
    "delivery_attempt": lambda made: pa.array(made._records.numbers("reconsume_times") + 1),
    "user_properties": lambda made: made._properties.of_users(),
    "damage": lambda made: pa.nulls(len(made._records), pa.string()),
}


def _timestamps(ms: pa.Array) -> pa.Array:
    """Return milliseconds as timestamps (microseconds). Absolute values of `_MS_MAX` or more are null."""
    numbers_ms = pc.fill_null(ms, 0).to_numpy()
    if not (numbers_ms.min(initial=0) > -_MS_MAX and numbers_ms.max(initial=0) < _MS_MAX):
        is_time = pc.and_(pc.greater(ms, -_MS_MAX), pc.less(ms, _MS_MAX))
        ms = pc.if_else(is_time, ms, pa.scalar(None, pa.int64()))
        numbers_ms = pc.fill_null(ms, 0).to_numpy()
    assert ms.offset == 0, "a slice of a column"
    return pa.Array.from_buffers(TIMESTAMP, len(ms), [ms.buffers()[0], pa.py_buffer(numbers_ms * 1000)])


_MS_MAX: Final = 9_000_000_000_000_000


def _unpacked(stored: pa.BinaryArray, sys_flags: Integers) -> pa.BinaryArray:
    """Return the decompressed bodies. A body that cannot be decompressed is returned as stored.

    Raise `LibraryMissing` if the library for LZ4 or Zstandard is not installed (see
    `commitlog.records.compression`). Only records written by Apache RocketMQ have such bodies.
    """
    pairs = zip(stored.to_pylist(), sys_flags.tolist(), strict=True)
    return pa.array([unpacked(body, flags) if body else body for body, flags in pairs], pa.binary())


def unpacked(body: bytes, sys_flag: int) -> bytes:
    """Return the decompressed body, or the stored body if it is not compressed or decompression fails.

    Raise `LibraryMissing` if the compression library is not installed.
    """
    if not sys_flag & record.COMPRESSED:
        return body
    is_zlib = sys_flag & record.COMPRESSION_TYPE in _ZLIB_TYPES
    return _inflate(body) if is_zlib else plain(body, sys_flag)


def _inflate(body: bytes) -> bytes:
    """Return decompressed zlib or gzip data.

    Return the data unchanged if it is invalid or truncated, or if its decompressed size would exceed
    `INFLATED_BYTES_MAX`.
    """
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        inflated = stream.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error:
        return body
    return inflated if stream.eof else body
