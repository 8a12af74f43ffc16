"""The records of some topics by the queues' index, so that the rest of the log is not read.

The files under `consumequeue/` are made from the log and may lag behind it, be half made or be gone. So they
are believed only as far as a snapshot goes that names them: each file must be there and match the CRC that
the snapshot has of it; the last entries of a queue the snapshot has itself. What lies behind the snapshot (a
checkpoint is made every 64 MiB of log) is scanned. Whatever is in doubt is scanned as well: no snapshot, a
file that differs, an imported log, a topic whose records are in no queue. A record that an entry leads to is
checked like any other. How far Apache RocketMQ's own queue files are believed: see `rocketmq_index`.

Cost: 20 bytes per record of the topics, and the pages of the log where these lie.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from commitlog import layout, limits
from commitlog.published_log import Segment, StoreLog
from commitlog.recovery import Damage
from consumequeue.entry import ENTRY, ENTRY_BYTES
from consumequeue.queue import StoredQueue, stored_queues
from spark_jobs.log.decode import Wanted, chunk_batches, mapped
from spark_jobs.log.ragged import Integers
from spark_jobs.log.ranges import Range
from spark_jobs.log.records import Records
from spark_jobs.log.rocketmq_index import FILLER_BYTES, believed_until, files_of
from spark_jobs.log.shapes import Shapes
from spark_jobs.log.snapshots import newest_parts
from spark_jobs.log.walk import RECORDS_PER_CHUNK, Chunk, sound

_UNINDEXED_PREFIX: Final = "TW_SYS_"
_FILE_BYTES: Final = limits.QUEUE_FILE_ENTRIES * ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class Indexed:
    """The records of one segment that queue files lead to, between two log offsets.

    `files`: path, and how many entries of it count; `tails`: entries that are in no file.
    """

    segment: Segment
    files: tuple[tuple[str, int], ...]
    tails: bytes
    first_offset: int
    end_offset: int
    readable_bytes: int
    may_lack_crc: bool


@dataclass(frozen=True, slots=True)
class Index:
    """What the queue files tell of some topics: every record of theirs below `until`."""

    until: int
    files: tuple[tuple[str, int], ...]
    tails: bytes = b""

    def parts(self, log: StoreLog, wanted: Range) -> list[Indexed]:
        """Return a part for each segment of the range, as far as the index reaches."""
        end_offset = min(self.until, wanted.end_offset)
        tails = np.frombuffer(self.tails, ENTRY)
        places = tails["physical_offset"].astype(np.int64)
        return [
            Indexed(
                segment,
                self.files,
                tails[(places >= segment.first_offset) & (places < segment.end_offset)].tobytes(),
                max(wanted.first_offset, segment.first_offset),
                min(end_offset, segment.end_offset),
                min(segment.segment_bytes, log.end_offset - segment.first_offset),
                segment.first_offset < log.imported_until,
            )
            for segment in log.segments
            if segment.end_offset > wanted.first_offset and segment.first_offset < end_offset
        ]


def open_index(store: Path, log: StoreLog, topics: frozenset[str]) -> Index | None:
    """Return the index of these topics; None if the log has to be scanned for them."""
    if not log.ours:
        found = files_of(store, topics)
        return None if found is None else Index(believed_until(store, log), tuple(found))
    if log.imported_until or any(topic.startswith(_UNINDEXED_PREFIX) for topic in topics):
        return None
    until, parts = newest_parts(store, log)
    queues = [*stored_queues(parts.get("queues"))]
    wanted = [one for one in queues if one.topic in topics]
    files: list[tuple[str, int]] = []
    for one in wanted:
        if one.has_files and not _add_files(files, store, one):
            return None
    return Index(until, tuple(files), b"".join(one.tail for one in wanted)) if queues else None


def indexed_batches(part: Indexed, wanted: Wanted) -> Iterator[Any]:
    """Yield the records of a part as batches; an entry that leads to no sound record is a damaged region."""
    data = mapped(part.segment.path)
    positions, sizes = _places(part)
    shapes = Shapes()
    for start in range(0, len(positions), RECORDS_PER_CHUNK):
        some = slice(start, start + RECORDS_PER_CHUNK)
        yield from _checked(Records.at(data, positions[some]), sizes[some], part, wanted, shapes)


def _checked(
    records: Records, sizes: Integers, part: Indexed, wanted: Wanted, shapes: Shapes
) -> Iterator[Any]:
    first_offset = part.segment.first_offset
    flags = np.zeros(len(records), np.bool_)
    done = 0
    while done < len(records):
        rest = records.chosen(slice(done, None))
        good = sound(rest, first_offset, part.readable_bytes, wanted.check, part.may_lack_crc)
        count = len(good) if good.all() else int(good.argmin())
        flags[done : done + count] = True
        done += count + 1
    bad = np.flatnonzero(~flags)
    starts = (records.positions[bad] + first_offset).tolist()
    damaged = [Damage(at, at + size) for at, size in zip(starts, sizes[bad].tolist(), strict=True)]
    yield from chunk_batches(Chunk(records.chosen(flags), damaged), wanted, shapes)


def _places(part: Indexed) -> tuple[Integers, Integers]:
    """Return (positions in the segment, sizes) of the part's records, in log order, each once."""
    found = []
    in_files = (np.fromfile(path, ENTRY, count) for path, count in part.files)
    for entries in (*in_files, np.frombuffer(part.tails, ENTRY)):
        offsets = entries["physical_offset"].astype(np.int64)
        lengths = entries["record_bytes"].astype(np.int64)
        inside = (offsets >= part.first_offset) & (offsets < part.end_offset)
        inside &= (lengths > 0) & (lengths < FILLER_BYTES)
        found.append(np.array([offsets[inside], lengths[inside]]))
    offsets, sizes = np.concatenate(found, axis=1)
    offsets, firsts = np.unique(offsets, return_index=True)
    return offsets - part.segment.first_offset, sizes[firsts]


def _add_files(files: list[tuple[str, int]], store: Path, queue: StoredQueue) -> bool:
    """Add the files of one queue; False if one is missing or differs. Old ones may have been deleted."""
    folder, kept = store / layout.CONSUMEQUEUE / queue.topic / str(queue.queue_id), sorted(queue.crcs)
    while kept and not _path(folder, kept[0][0]).exists():
        kept.pop(0)
    if not kept:
        return False
    for first_byte, crc in kept:
        used_bytes = min(_FILE_BYTES, queue.written_count * ENTRY_BYTES - first_byte)
        path = _path(folder, first_byte)
        try:
            stored = path.read_bytes()[:used_bytes]
        except OSError:
            return False
        if len(stored) < used_bytes or zlib.crc32(stored) != crc:
            return False
        files.append((str(path), used_bytes // ENTRY_BYTES))
    return True


def _path(folder: Path, first_byte: int) -> Path:
    return folder / f"{first_byte:0{layout.OFFSET_DIGITS}d}"
