"""Reads the records of some topics by the queue index, without the rest of the log.

The files below `consumequeue/` are derived from the log and may be outdated, incomplete, or missing. They are
trusted only with their marker file (`consumequeue.dispatch`), and only up to the snapshot that lists them.
Each file must match its CRC in the snapshot, and the snapshot itself holds the last entries of a queue. The
log after the snapshot is scanned (there is a checkpoint for every 64 MiB of log).

Parts of the log that may contain unlisted records are scanned too. The whole log is scanned if there is no
marker file or snapshot, if the log was imported, or if a topic has no queues (TW_SYS_). Otherwise, the
segments that overlap a range without known entries are scanned:

    entries     0 1 2 | file lost | 6 gap 8 9        gap: the record or its entry was lost to damage
    scanned         <------------->  <---->          from the end of a record to the start of the next one

If the first known entry of a queue is not entry 0, the range before it begins at the start of the log,
because retention deletes the oldest files, whose records are no longer in the log. A task verifies the files
again, because a starting broker may be rebuilding them, and scans if they differ. A record that is found by
an entry is verified like any other. `rocketmq_index` describes how far the queue files of Apache RocketMQ are
trusted.

Cost: planning and tasks each read 20 bytes per record of the topics, and the tasks read the pages of the log
with these records. For an Apache RocketMQ store, each task reads all queue files of the topics. One queue
file (6 MB) is in memory at a time, and in a task 16 bytes per record of its segment.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog import layout, limits
from commitlog.log.published_log import Segment, StoreLog
from commitlog.log.recovery import Damage
from consumequeue.dispatch import MARK_BYTES_MAX, mark_of
from consumequeue.entry import ENTRY, ENTRY_BYTES, Entries
from consumequeue.queue import StoredQueue, stored_queues
from spark_jobs.log.columns.ragged import Flags, Integers
from spark_jobs.log.columns.records import Records
from spark_jobs.log.columns.shapes import Shapes
from spark_jobs.log.index.ranges import Range
from spark_jobs.log.index.rocketmq_index import FILLER_BYTES, believed_until, files_of
from spark_jobs.log.scan.decode import Wanted, batches, chunk_batches, mapped
from spark_jobs.log.scan.slices import SLICE_BYTES_DEFAULT, Slice, slices
from spark_jobs.log.scan.walk import RECORDS_PER_CHUNK, Chunk, sound
from spark_jobs.log.snapshots import newest_parts

_UNINDEXED_PREFIX: Final = "TW_SYS_"
_FILE_BYTES: Final = limits.QUEUE_FILE_ENTRIES * ENTRY_BYTES


class QueueFile(NamedTuple):
    """A queue file. The first `entry_count` entries are valid.

    `crc` is their CRC-32, or None for a file of Apache RocketMQ. The log offsets of their records are in
    [first_offset, end_offset).
    """

    path: str
    entry_count: int
    crc: int | None = None
    first_offset: int = 0
    end_offset: int = 1 << 62

    def entries(self) -> Entries | None:
        """Return the valid entries, or None if the file is damaged or unreadable."""
        length = self.entry_count * ENTRY_BYTES
        try:
            with open(self.path, "rb") as file:
                stored = file.read(length)
        except OSError:
            return None
        if len(stored) < length or self.crc not in (None, zlib.crc32(stored)):
            return None
        return np.frombuffer(stored, ENTRY)

    def bounded(self, entries: Entries) -> QueueFile:
        """Return the file with the range of log offsets in `entries`."""
        places = entries["physical_offset"][_are_real(entries)].astype(np.int64)
        first_offset, end_offset = (int(places.min()), int(places.max()) + 1) if len(places) else (0, 0)
        return self._replace(first_offset=first_offset, end_offset=end_offset)


@dataclass(frozen=True, slots=True)
class Indexed:
    """The records of a segment that are listed in queue files, between two log offsets.

    `tails` holds entries that are in no file. `scan` holds the slices to read if a file has changed.
    """

    segment: Segment
    files: tuple[QueueFile, ...]
    tails: bytes
    first_offset: int
    end_offset: int
    readable_bytes: int
    may_lack_crc: bool
    scan: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """Index of all records of some topics below the log offset `until`.

    Records in the `doubted` ranges of log offsets, [first, end), must be found by a scan.
    """

    until: int
    files: tuple[QueueFile, ...]
    tails: bytes = b""
    doubted: tuple[tuple[int, int], ...] = ()

    def parts(
        self, log: StoreLog, wanted: Range, slice_bytes: int = SLICE_BYTES_DEFAULT
    ) -> list[Indexed | Slice]:
        """Return the parts to read of each segment in the range, up to the end of the index."""
        end_offset = min(self.until, wanted.end_offset)
        found: list[Indexed | Slice] = []
        for segment in log.segments:
            first = max(wanted.first_offset, segment.first_offset)
            end = min(end_offset, segment.end_offset)
            if first >= end:
                continue
            scan = slices(log, slice_bytes, first, end)
            if any(begin < end and first < until for begin, until in self.doubted):
                found += scan
            else:
                found.append(self._part(log, segment, first, end, scan))
        return found

    def _part(self, log: StoreLog, segment: Segment, first: int, end: int, scan: list[Slice]) -> Indexed:
        tails = np.frombuffer(self.tails, ENTRY)
        places = tails["physical_offset"].astype(np.int64)
        return Indexed(
            segment,
            tuple(file for file in self.files if file.first_offset < end and first < file.end_offset),
            tails[(places >= first) & (places < end)].tobytes(),
            first,
            end,
            min(segment.segment_bytes, log.end_offset - segment.first_offset),
            segment.first_offset < log.imported_until,
            tuple(scan),
        )


def open_index(store: Path, log: StoreLog, topics: frozenset[str]) -> Index | None:
    """Return the index of these topics, or None if the whole log must be scanned."""
    if not log.ours:
        found = files_of(store, topics)
        return None if found is None else _of_rocketmq(believed_until(store, log), log, found)
    if log.imported_until or any(topic.startswith(_UNINDEXED_PREFIX) for topic in topics):
        return None
    until, parts = newest_parts(store, log)
    rows = parts.get("queues")
    if not rows or not _is_marked(store, parts["queues_made_at"]):
        return None
    files, doubted, tails = list[QueueFile](), list[tuple[int, int]](), list[bytes]()
    for one in stored_queues(rows):
        if one.topic in topics:
            doubted += _doubted(_runs(one, _files(store, one), files), log.first_offset, until)
            tails.append(one.tail)
    return Index(until, tuple(files), b"".join(tails), tuple(doubted))


def _of_rocketmq(until: int, log: StoreLog, queues: list[list[tuple[str, int]]]) -> Index:
    """Return the index of the queue files of Apache RocketMQ.

    If the first file of a queue is missing, the log before the first known entry must be scanned.
    """
    files, doubted = list[QueueFile](), list[tuple[int, int]]()
    for queue in queues:
        own = [QueueFile(path, count) for path, count in queue]
        if own and int(Path(own[0].path).name):
            doubted += _doubted((None, own[0].entries()), log.first_offset, until)
        files += own
    return Index(until, tuple(files), doubted=tuple(doubted))


def _is_marked(store: Path, made_at: int) -> bool:
    """Return whether the queue files are valid and belong to the snapshot at log offset `made_at`."""
    try:
        with open(store / layout.QUEUES_WHOLE, "rb") as file:
            return file.read(MARK_BYTES_MAX) == mark_of(made_at)
    except OSError:
        return False


def _files(store: Path, queue: StoredQueue) -> list[QueueFile]:
    """Return the files of a queue in a snapshot, in order."""
    folder = store / layout.CONSUMEQUEUE / queue.topic / str(queue.queue_id)
    return [
        QueueFile(
            str(folder / f"{first_byte:0{layout.OFFSET_DIGITS}d}"),
            min(_FILE_BYTES, queue.written_count * ENTRY_BYTES - first_byte) // ENTRY_BYTES,
            crc,
        )
        for first_byte, crc in sorted(queue.crcs)
    ]


def _runs(queue: StoredQueue, files: Iterable[QueueFile], known: list[QueueFile]) -> Iterator[Entries | None]:
    """Yield all entries of a queue in order, one file at a time, or None where some are unknown.

    Append the files with known entries to `known`.
    """
    begins_at = min((first_byte for first_byte, _ in queue.crcs), default=queue.written_count)
    if begins_at:
        yield None
    for file in files:
        entries = file.entries()
        if entries is not None:
            known.append(file.bounded(entries))
        yield entries
    yield np.frombuffer(queue.tail, ENTRY)


def _doubted(runs: Iterable[Entries | None], first_offset: int, until: int) -> Iterator[tuple[int, int]]:
    """Yield the log ranges between `first_offset` and `until` where a queue may lack entries.

    `runs` yields the entries of the queue in order, and None where some are unknown.
    """
    end, is_sure = first_offset, True
    for entries in runs:
        if entries is None:
            is_sure = False
            continue
        real = np.flatnonzero(_are_real(entries))
        if not len(real):
            is_sure = is_sure and not len(entries)
            continue
        places = entries["physical_offset"][real].astype(np.int64)
        ends = np.concatenate(([end], places + entries["record_bytes"][real]))
        is_gap = np.diff(real, prepend=-1) > 1
        is_gap[0] |= not is_sure
        yield from _ranges(ends[:-1][is_gap], places[is_gap], first_offset)
        end, is_sure = int(ends[-1]), bool(real[-1] == len(entries) - 1)
    if not is_sure:
        yield from _ranges(np.array([end]), np.array([until]), first_offset)


def _are_real(entries: Entries) -> Flags:
    """Return which entries refer to a record. The others are gaps."""
    flags: Flags = (entries["record_bytes"] > 0) & (entries["record_bytes"] < FILLER_BYTES)
    return flags


def _ranges(starts: Integers, ends: Integers, first_offset: int) -> Iterator[tuple[int, int]]:
    """Yield the nonempty ranges (first, end), limited to offsets from `first_offset` on."""
    for start, end in zip(np.maximum(starts, first_offset).tolist(), ends.tolist(), strict=True):
        if start < end:
            yield start, end


def indexed_batches(part: Indexed, wanted: Wanted) -> Iterator[Any]:
    """Yield the records of a part as batches. An entry without an intact record is damage.

    If a queue file has changed, scan the part.
    """
    places = _places(part)
    if places is None:
        for one in part.scan:
            yield from batches(one, wanted)
        return
    data, (positions, sizes) = mapped(part.segment.path), places
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


def _places(part: Indexed) -> tuple[Integers, Integers] | None:
    """Return the distinct positions in the segment of the part's records, in log order, and their sizes.

    Return None if a file has changed. Cost: 16 bytes per record in the part.
    """
    found = list[Integers]()
    for file in part.files:
        entries = file.entries()
        if entries is None:
            return None
        found.append(_inside(part, entries))
    found.append(_inside(part, np.frombuffer(part.tails, ENTRY)))
    offsets, sizes = np.concatenate(found, axis=1)
    offsets, firsts = np.unique(offsets, return_index=True)
    return offsets - part.segment.first_offset, sizes[firsts]


def _inside(part: Indexed, entries: Entries) -> Integers:
    """Return the log offsets and sizes of the records in the part, as an array of shape (2, records)."""
    offsets = entries["physical_offset"].astype(np.int64)
    lengths = entries["record_bytes"].astype(np.int64)
    inside = (offsets >= part.first_offset) & (offsets < part.end_offset) & _are_real(entries)
    return np.array([offsets[inside], lengths[inside]])
