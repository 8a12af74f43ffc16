"""Marks, by which a reader recognizes a log.

A log offset means nothing in another log, and a store that was emptied, restored from an older copy, or
replaced grows past any offset in time. Folder, cluster ID, and epoch do not identify a log either: an older
copy that has grown has the same ones, and the same log elsewhere has others. A mark is therefore the record
at an offset, or the last one before it: its offset, length, CRC-32, and store time. The bytes of a record
contain the time, the sender, and an ID, so two histories never have the same ones at one offset.

Cost: a read of one record, or of `_LOOKS_BYTES` if the log is damaged around the offset. Limitation: a mark
is useless once retention has deleted its record. Retention deletes a mark at or after the offset only with
unread records. It deletes one before the offset if the offset was the end of both the log and a segment.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from commitlog import layout, record
from commitlog.published_log import Segment, StoreLog
from spark_jobs.log.decode import mapped
from spark_jobs.log.walk import likely_record

_LOOKS_BYTES: Final = (64 * 1024, 16 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class Mark:
    """A record: log offset, length, CRC-32, and store time."""

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

    Return None if there is none nearby.
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
    """Return the log offset where the files of a store begin, or None if there are none."""
    return min(_firsts(store), default=None)


def is_kept(store: Path, mark: Mark) -> bool | None:
    """Return whether the files of a store contain the marked record, or None if its segment is gone.

    Bytes after the durable offset count too, because a starting node publishes less than its files hold.
    """
    before = [first for first in _firsts(store) if first <= mark.at]
    if not before:
        return None
    try:
        with open(store / layout.segment_path(max(before)), "rb") as file:
            file.seek(mark.at - max(before))
            return zlib.crc32(file.read(mark.record_bytes)) == mark.crc
    except FileNotFoundError:  # retention has just deleted it
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
