"""Log bytes -> Arrow record batches, whole columns at a time. Knows no Spark and needs no Java.

Fixed fields are gathered by numpy with unaligned big-endian reads at "record position + field offset";
an IPv6 host moves what follows it by 12 bytes (see `commitlog.record` for the layout). Topics, bodies and
properties are ranges that Arrow copies out of the mapped file. Only the walk from record to record and the
CRC run per record in Python. Batches of about 8,000 records stay in the processor's cache.

A damaged region of the log is a row too: `physical_offset` and `record_bytes` say where, `damage` says why,
and all else is null. So nothing is lost without a trace, and a filter on any other column leaves it out.

Measured on one core, records of 530 bytes, every CRC checked: 0.25 million records/s for all columns with
bodies, 0.4 million for five.
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

from commitlog import properties as names
from commitlog import record
from commitlog.limits import BODY_BYTES_MAX
from commitlog.recovery import Damage
from spark_jobs import properties
from spark_jobs.ragged import Bytes, Flags, Integers, numbers, ragged, text
from spark_jobs.segments import Slice
from spark_jobs.walk import Check, Chunk, walk

INFLATED_BYTES_MAX: Final = 16 * BODY_BYTES_MAX

ALL: Final = frozenset({"*"})
"""As a set of topics: every topic."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A number at a fixed place of the record; `hosts_before` counts the host fields in front of it."""

    offset: int
    numpy_type: str
    hosts_before: int = 0


FIXED: Final = {
    "queue_id": Fixed(12, ">i4"),
    "flag": Fixed(16, ">i4"),
    "queue_offset": Fixed(20, ">i8"),
    "sys_flag": Fixed(36, ">i4"),
    "born_ms": Fixed(40, ">i8"),
    "store_ms": Fixed(56, ">i8", 1),
    "reconsume_times": Fixed(72, ">i4", 2),
    "half_offset": Fixed(76, ">i8", 2),
}
_BODY_LENGTH: Final = Fixed(84, ">i4", 2)

PROPERTIES: Final = {
    "message_id": (names.MESSAGE_ID, pa.string()),
    "tag": (names.TAG, pa.string()),
    "keys": (names.KEYS, pa.string()),
    "producer_group": (names.PRODUCER_GROUP, pa.string()),
    "real_topic": (names.REAL_TOPIC, pa.string()),
    "real_queue_id": (names.REAL_QUEUE_ID, pa.int32()),
    "due_ms": (names.DUE_MS, pa.int64()),
    "timer_offset": (names.TIMER_OFFSET, pa.int64()),
    "outcome": (names.OUTCOME, pa.string()),
    "verb": (names.VERB, pa.string()),
    "replaces": (names.REPLACES, pa.int64()),
    "cancels": (names.CANCELS, pa.string()),
    "dead_letter_topic": (names.DEAD_LETTER_TOPIC, pa.string()),
    "dead_letter_message_id": (names.DEAD_LETTER_MESSAGE_ID, pa.string()),
}

SCHEMA: Final = pa.schema([
    ("physical_offset", pa.int64()),
    ("record_bytes", pa.int64()),
    ("topic", pa.string()),
    *((name, pa.int32() if field.numpy_type == ">i4" else pa.int64()) for name, field in FIXED.items()),
    ("body", pa.binary()),
    *((name, kind) for name, (_, kind) in PROPERTIES.items()),
    ("damage", pa.string()),
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read: columns of `SCHEMA` in order, records of which topics, and which topics' bodies."""

    columns: tuple[str, ...] = tuple(SCHEMA.names)
    topics: frozenset[str] = ALL
    bodies: frozenset[str] = frozenset()
    check: Check = Check.RECORD

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the batches."""
        return pa.schema([SCHEMA.field(name) for name in self.columns])


def batches(part: Slice, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The records and damaged regions of one slice of the log, in log order per batch."""
    with open(part.segment.path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for chunk in walk(memoryview(mapped), part, wanted.check):
        yield from _batches(mapped, part.segment.first_offset, chunk, wanted)


def damage_batch(damaged: Sequence[Damage], schema: pa.Schema, why: str) -> pa.RecordBatch:
    """Damaged regions as rows of `schema`."""
    given = {
        "physical_offset": [damage.first_offset for damage in damaged],
        "record_bytes": [damage.end_offset - damage.first_offset for damage in damaged],
        "damage": [why] * len(damaged),
    }
    columns = [pa.array(given.get(field.name, [None] * len(damaged)), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _batches(mapped: mmap.mmap, first_offset: int, chunk: Chunk, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    if chunk.positions:
        positions, lengths = np.array(chunk.positions, np.int64), np.array(chunk.lengths, np.int64)
        records = Records(np.frombuffer(mapped, np.uint8), first_offset, positions, lengths)
        chosen = records.of_topics(wanted.topics)
        if len(chosen):
            yield chosen.batch(wanted)
    if chunk.damaged:
        yield damage_batch(chunk.damaged, wanted.schema, "bytes that are no sound record")


class Records:
    """Some sound records of one segment, from which columns can be taken."""

    def __init__(self, data: Bytes, first_offset: int, positions: Integers, lengths: Integers) -> None:
        self._data = data
        self._first_offset = first_offset
        self._positions = positions
        self._lengths = lengths
        self._locate()

    def __len__(self) -> int:
        return len(self._positions)

    def of_topics(self, topics: frozenset[str]) -> Records:
        """Only the records of these topics."""
        if topics == ALL:
            return self
        kept = self._is_of(topics)
        return Records(self._data, self._first_offset, self._positions[kept], self._lengths[kept])

    def batch(self, wanted: Wanted) -> pa.RecordBatch:
        """The wanted columns of these records."""
        makers: dict[str, Callable[[], pa.Array]] = {
            "physical_offset": lambda: pa.array(self._first_offset + self._positions),
            "record_bytes": lambda: pa.array(self._lengths),
            "topic": self._topic,
            "body": lambda: self._bodies(wanted.bodies),
            "damage": lambda: pa.nulls(len(self), pa.string()),
        }
        columns = self._property_columns([name for name in wanted.columns if name in PROPERTIES])
        for name in wanted.columns:
            if name in FIXED:
                columns[name] = pa.array(self._numbers(FIXED[name]))
            elif name in makers:
                columns[name] = makers[name]()
        return pa.RecordBatch.from_arrays([columns[name] for name in wanted.columns], schema=wanted.schema)

    def _locate(self) -> None:
        """Finds where topic and properties lie, and that all lengths add up to the record's own."""
        sys_flag = self._at(self._positions + 36, ">i4")
        born_v6, store_v6 = sys_flag & record.BORN_HOST_V6 > 0, sys_flag & record.STORE_HOST_V6 > 0
        self._shifts = np.array([np.zeros(len(self), np.int64), 12 * born_v6, 12 * born_v6 + 12 * store_v6])
        self._body_lengths = self._numbers(_BODY_LENGTH).astype(np.int64)
        self._body_starts = self._positions + 88 + self._shifts[2]
        topic_at = self._body_starts + self._body_lengths
        version_2 = self._data[self._positions + 7] == record.MAGIC_V2 & 0xFF
        short, long = self._at(topic_at, "u1"), self._at(topic_at, ">u2")
        self._topic_starts = topic_at + 1 + version_2
        self._topic_lengths = np.where(version_2, long, short).astype(np.int64)
        properties_at = self._topic_starts + self._topic_lengths
        self._properties_starts = properties_at + 2
        self._properties_lengths = self._at(properties_at, ">u2").astype(np.int64)
        ends = self._properties_starts + self._properties_lengths
        assert (ends == self._positions + self._lengths).all()

    def _numbers(self, field: Fixed) -> Integers:
        places = self._positions + field.offset + self._shifts[field.hosts_before]
        return self._at(places, field.numpy_type)

    def _at(self, places: Integers, numpy_type: str) -> Integers:
        """The numbers at `places` of the segment, in native byte order."""
        kind = np.dtype(numpy_type)
        unaligned: Integers = np.ndarray(len(self._data) - kind.itemsize + 1, kind, self._data, 0, (1,))
        return unaligned[places].astype(kind.newbyteorder("="))

    def _topic(self) -> pa.StringArray:
        return text(ragged(self._data, self._topic_starts, self._topic_lengths))

    def _is_of(self, topics: frozenset[str]) -> Flags:
        known = pa.array(sorted(topics), pa.string())
        flags: Flags = pc.is_in(self._topic(), known).to_numpy(zero_copy_only=False)
        return flags

    def _bodies(self, topics: frozenset[str]) -> pa.BinaryArray:
        present = None if topics == ALL else self._is_of(topics)
        stored = ragged(self._data, self._body_starts, self._body_lengths, present)
        compressed = self._at(self._positions + 36, ">i4") & record.COMPRESSED > 0
        return _inflated(stored, compressed.tolist()) if compressed.any() else stored

    def _property_columns(self, columns: Sequence[str]) -> dict[str, pa.Array]:
        if not columns:
            return {}
        stored = ragged(self._data, self._properties_starts, self._properties_lengths)
        values = properties.split(stored, [PROPERTIES[column][0] for column in columns])
        return {column: _typed(values[PROPERTIES[column][0]], PROPERTIES[column][1]) for column in columns}


def _typed(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    return text(values) if kind == pa.string() else numbers(values, kind)


def _inflated(stored: pa.BinaryArray, compressed: Sequence[bool]) -> pa.BinaryArray:
    """Bodies with zlib or gzip undone; one that is neither, or has no end, stays as it is stored."""
    pairs = zip(stored.to_pylist(), compressed, strict=True)
    return pa.array([_inflate(body) if packed and body else body for body, packed in pairs], pa.binary())


def _inflate(body: bytes) -> bytes:
    stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        inflated = stream.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error:
        return body
    return inflated if stream.eof else body
