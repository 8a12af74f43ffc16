"""Marks, which identify a log for a reader.

A log offset is valid only in its own log, and a store that was emptied, restored from an older copy, or
replaced eventually grows past any offset. Folder, cluster ID, and epoch do not identify a log either: they
are the same in an older copy that has grown, and may differ for the same log in another location. A mark is
therefore the first intact record at or after an offset, or else the last one before it: its offset, length,
CRC-32, and store time. The bytes of a record contain the time, the sender, and an ID, so the records of two
histories at the same offset always differ.

Cost: a read of one record, or of the preceding 64 KiB if the offset is the end of the log. If no intact
record starts there, up to 16 MiB on each side are read. Limitation: a mark is useless once retention has
deleted its record. Retention deletes a mark at or after the offset only together with unread records. It
deletes a mark before the offset alone only if the offset was the end of both the log and a segment.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from commitlog import layout
from commitlog.log.published_log import Segment, StoreLog
from commitlog.records import record
from spark_jobs.log.scan.decode import mapped
from spark_jobs.log.scan.walk import likely_record

_LOOKS_BYTES: Final = (64 * 1024, 16 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class Mark:
    """Log offset, length in bytes, CRC-32, and store time (milliseconds since the Unix epoch) of a record."""

    at: int
    record_bytes: int
    crc: int
    store_ms: int

    def as_json(self) -> dict[str, int]:
        """Return the mark as JSON types."""
        return {"at": self.at, "bytes": self.record_bytes, "crc": self.crc, "store_ms": self.store_ms}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Mark:
        """Return the mark from the result of `as_json`."""
        return cls(stored["at"], stored["bytes"], stored["crc"], stored["store_ms"])


def mark_at(log: StoreLog, offset: int) -> Mark | None:
    """Return the mark of the first intact record from `offset` on, or of the last one before it.

    Return None if there is none within 16 MiB.
    """
    for look_bytes in _LOOKS_BYTES:
        found = next(_marks(log, offset, offset + look_bytes), None)
        if found is not None:
            return found
    for look_bytes in _LOOKS_BYTES:
        *_, last = None, *_marks(log, offset - look_bytes, offset)
        if last is not None:
            return last
    return None


def first_kept(store: Path) -> int | None:
    """Return the first log offset of the oldest segment file of a store, or None if there are no files."""
    return min(_firsts(store), default=None)


def is_kept(store: Path, mark: Mark) -> bool | None:
    """Return whether the files of a store contain the marked record, or None if its segment was deleted.

    Bytes after the durable offset are included, because a starting node publishes less than it has in files.
    """
    before = [first for first in _firsts(store) if first <= mark.at]
    if not before:
        return None
    try:
        with open(store / layout.segment_path(max(before)), "rb") as file:
            file.seek(mark.at - max(before))
            return zlib.crc32(file.read(mark.record_bytes)) == mark.crc
    except FileNotFoundError:  # Retention has just deleted it.
        return None


def _firsts(store: Path) -> list[int]:
    folder = store / layout.COMMITLOG
    names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return [int(name) for name in names if name.isdigit() and len(name) == layout.OFFSET_DIGITS]


def _marks(log: StoreLog, first_offset: int, end_offset: int) -> Iterator[Mark]:
    """Yield the marks of intact records that start between two log offsets."""
    for segment in log.segments:
        first = max(first_offset, segment.first_offset)
        end = min(end_offset, segment.end_offset, log.end_offset)
        if first < end:
            yield from _marks_in(log, segment, first - segment.first_offset, end - segment.first_offset)


def _marks_in(log: StoreLog, segment: Segment, position: int, end: int) -> Iterator[Mark]:
    view = mapped(segment.path).data
    readable_bytes = min(segment.segment_bytes, log.end_offset - segment.first_offset)
    until = min(end + 7, readable_bytes - record.RECORD_BYTES_MIN + 8)
    while (start := likely_record(view, segment.first_offset, position, until)) >= 0:
        offset = segment.first_offset + start
        record_end = start + int.from_bytes(view[start : start + 4], "big")
        stored = bytes(view[start : min(record_end, readable_bytes)])
        position = start + 1
        if _is_sound(stored, may_lack_crc=offset < log.imported_until):
            yield Mark(offset, len(stored), zlib.crc32(stored), record.decode(stored).store_ms)
            position = start + len(stored)


def _is_sound(stored: bytes, *, may_lack_crc: bool) -> bool:
    if len(stored) < record.RECORD_BYTES_MIN or len(stored) != int.from_bytes(stored[:4], "big"):
        return False
    return record.is_sound(stored, may_lack_crc=may_lack_crc)
