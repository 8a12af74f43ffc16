"""Reads timers of deleted segments from partition files, as if the log still contained their records.

A partition file (see `timingwheel.partition`) contains the messages of pending timers, as copies that are
addressed to the real queues and have the log offsets and times of the timer records. A row equals the row of
the timer's record in the log, except for values that are not in the copy: `queue_offset`, `half_offset`,
`verb`, `replaces`, and `cancels` are null, and `record_bytes` is the length of the copy.

Only the files in the newest snapshot are read, up to the lengths in the snapshot. Timers with a tombstone in
the same file and timers at or after the start of the log are omitted. A copy is damage if it does not match
its CRC, or has another log offset or length than its row. Bytes between intact batches have no known log
offset and thus no row, but `tidewheel store verify` reports them. If a file is deleted during the read, its
timers have been delivered or are in other files. The newest snapshot is then read again, up to
`_ATTEMPTS_MAX` times in total.

Cost: each file is read up to twice per attempt, and a timer uses 8 bytes of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.log.published_log import open_log
from commitlog.log.recovery import Damage
from commitlog.records.record import CRC_BYTES, RECORD_BYTES_MIN
from spark_jobs.errors import StreamLost
from spark_jobs.log.columns.kinds import KINDS, TOPICS
from spark_jobs.log.columns.ragged import Flags, Integers
from spark_jobs.log.columns.records import Records
from spark_jobs.log.columns.shapes import Shapes
from spark_jobs.log.scan.decode import ALL, SCHEMA, Columns, Wanted, damage_batch, stored_within
from spark_jobs.log.scan.walk import Chunk, crcs_hold
from spark_jobs.log.snapshots import newest_parts
from timingwheel import partition
from timingwheel.partition import WITH_RECORDS, Batch, Window

_TIMER_FILES: Final = "timer_files"
_ATTEMPTS_MAX: Final = 5
_TOPIC: Final = TOPICS["timer"]
_NOT_KEPT: Final = ("queue_offset", "half_offset", "verb", "replaces", "cancels", "timer_offset")
_OF_MESSAGE: Final = {"real_topic": "topic", "real_queue_id": "queue_id"}


@dataclass(frozen=True, slots=True)
class KeptTimers:
    """The timers in a store's partition files with log offsets below `before_offset`.

    Records below `imported_until` may lack a CRC (see `commitlog.log.imported`).
    """

    store: str
    before_offset: int
    imported_until: int


def timer_batches(part: KeptTimers, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the selected timers and the damaged copies as batches.

    Raise `StreamLost` if a file was deleted in each attempt.
    """
    seen = np.zeros(0, np.int64)
    for _ in range(_ATTEMPTS_MAX):
        is_whole = True
        for path, length in _named_files(Path(part.store)):
            try:
                for chunk in _chunks(part, path, length, seen):
                    damaged = [one.first_offset for one in chunk.damaged]
                    seen = np.union1d(seen, [*chunk.records.numbers("physical_offset"), *damaged])
                    yield from _batches(chunk, wanted)
            except FileNotFoundError:
                is_whole = False
        if is_whole:
            return
    raise StreamLost(
        f"In each of {_ATTEMPTS_MAX} reads, a file of pending timers in {part.store} was replaced. Run it "
        "again, or read a copy: tidewheel store snapshot."
    )


def _batches(chunk: Chunk, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    records = stored_within(chunk.records, wanted.stored_ms)
    is_topic = wanted.topics == ALL or _TOPIC in wanted.topics
    if len(records) and is_topic and "timer" in wanted.kinds and not wanted.only_of_halves:
        yield _rows(records, wanted)
    if chunk.damaged and "damage" in wanted.kinds:
        yield damage_batch(chunk.damaged, wanted.schema, "a kept timer that does not match its CRC")


def _rows(records: Records, wanted: Wanted) -> pa.RecordBatch:
    """Return the rows of timers from their messages, which are addressed to the real queues."""
    has_bodies = wanted.bodies == ALL or _TOPIC in wanted.bodies
    made = Columns(
        records,
        replace(wanted, kinds=frozenset(KINDS), bodies=ALL if has_bodies else frozenset()),
        Shapes(),
    )
    same = {"kind": "timer", "topic": _TOPIC, "queue_id": 0}
    columns = []
    for name in wanted.columns:
        kind = SCHEMA.field(name).type
        if name in _NOT_KEPT:
            columns.append(pa.nulls(len(records), kind))
        elif name in same:
            columns.append(pa.array([same[name]] * len(records), kind))
        else:
            columns.append(made.column(_OF_MESSAGE.get(name, name)))
    return pa.RecordBatch.from_arrays(columns, schema=wanted.schema)


def _named_files(store: Path) -> list[tuple[str, int]]:
    """Return (path, length) of each partition file in the newest snapshot, or [] if there is no snapshot."""
    _, parts = newest_parts(store, open_log(store))
    partitions = parts[_TIMER_FILES]["partitions"] if parts else None
    named = partitions["files"] if partitions else {}
    return [(f"{layout.TIMERS}/{name}", fields[0]) for name, fields in sorted(named.items())]


class _Files:
    """Reads files of a store for a `Window`. No file stays open. Raise OSError for a missing file."""

    def __init__(self, store: str) -> None:
        self._root = Path(store)

    def size(self, path: str) -> int:
        return (self._root / path).stat().st_size

    def read(self, path: str, position: int, length: int) -> bytes:
        with open(self._root / path, "rb") as file:
            file.seek(position)
            return file.read(length)


def _chunks(part: KeptTimers, path: str, length: int, seen: Integers) -> Iterator[Chunk]:
    disk = cast(Disk, _Files(part.store))  # Only `size` and `read` are called.
    tombstones = partition.tombstone_offsets(disk, path, length)
    window = Window(disk, path, length)
    for batch in partition.batches(window, []):
        if batch.kind == WITH_RECORDS:
            rows = partition.alive(batch.rows, tombstones)
            rows = rows[(rows["timer_offset"] < part.before_offset) & (rows["record_bytes"] > 0)]
            rows = rows[~np.isin(rows["timer_offset"].astype(np.int64), seen)]
            if len(rows):
                yield _chunk(window, batch, rows[np.argsort(rows["record_at"])], part.imported_until)


def _chunk(window: Window, batch: Batch, rows: Any, imported_until: int) -> Chunk:
    """Return the intact records of these rows. The other rows are damage."""
    stored = window.bytes_at(batch.position, batch.end - batch.position)
    data = np.frombuffer(stored, np.uint8)
    positions = rows["record_at"].astype(np.int64) - batch.position
    offsets, lengths = rows["timer_offset"].astype(np.int64), rows["record_bytes"].astype(np.int64)
    inside = (positions >= 0) & (lengths >= RECORD_BYTES_MIN) & (positions + lengths <= len(data))
    flags = inside.copy()
    found = Records.at(data, positions[inside])
    flags[inside] = _are_sound(found, offsets[inside], lengths[inside], imported_until)
    damaged = [
        Damage(offset, offset + length)
        for offset, length in zip(offsets[~flags].tolist(), lengths[~flags].tolist(), strict=True)
    ]
    return Chunk(found.chosen(flags[inside]), damaged)


def _are_sound(found: Records, offsets: Integers, lengths: Integers, imported_until: int) -> Flags:
    flags: Flags = found.adds_up & (found.lengths == lengths)
    flags &= found.numbers("physical_offset") == offsets
    flags &= lengths >= RECORD_BYTES_MIN + CRC_BYTES * (offsets >= imported_until)
    for may_lack_crc in (False, True):
        some = flags & ((offsets < imported_until) == may_lack_crc)
        flags[some] = crcs_hold(found.chosen(some), may_lack_crc)
    return flags
