"""Cuts the log of a store into slices, one per task.

The starts of records are found only by reading the log, and reading it before cutting would double the work.
A segment is therefore cut every `slice_bytes`, and each task searches for its first record (`walk`).

Rules:
- A record belongs to the slice where it starts. The task reads past `until` to the end of the record.
- A slice is in one segment and on one side of `imported_until`, so the same checks apply to all its records.
- At the start of a segment, a record is expected. From any other start, the task searches for one.
- Damage belongs to the slice of the last record before it, or to the first slice if it is at the start of the
  segment. A search for the first record reports no damage.

Cost: one pass over the list of segments. A task also searches for its first record, usually for the length of
one record. Limitation: a range that begins in the middle of the log (`first_offset`) has no slice before it,
so damage directly at its start has no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from commitlog.log.published_log import Segment, StoreLog

SLICE_BYTES_DEFAULT: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Slice:
    """The records of a segment that start at a position in [start, until).

    `end` is the end of the readable bytes. If `has_tail` is true, the intact records may end anywhere in this
    segment, and bytes without any intact record after them are its unwritten end, not damage. If
    `may_lack_crc` is true, the records were imported (see `commitlog.log.imported`), or the store is Apache
    RocketMQ's.
    """

    segment: Segment
    start: int
    until: int
    end: int
    has_tail: bool
    may_lack_crc: bool = False


def slices(
    log: StoreLog,
    slice_bytes: int = SLICE_BYTES_DEFAULT,
    first_offset: int = 0,
    end_offset: int | None = None,
) -> list[Slice]:
    """Return slices, in log order, of the records that start between two log offsets."""
    last_offset = log.end_offset if end_offset is None else min(end_offset, log.end_offset)
    parts = []
    for segment in log.segments:
        # The last record of a segment may extend beyond the start of the next segment. Thus, bytes are
        # readable up to `end`, but records start before `stop`.
        end = min(segment.segment_bytes, log.end_offset - segment.first_offset)
        stop = min(end, min(last_offset, segment.end_offset) - segment.first_offset)
        # An overlapped segment begins with zeros, not with a record. With a start of 1, the task searches.
        begin = max(int(segment.is_overlapped), first_offset - segment.first_offset)
        if begin >= stop:
            continue
        # Only a log without a published end can have unwritten bytes after its last record.
        has_tail = log.durable_offset is None and segment is log.segments[-1]
        imported_until = min(max(log.imported_until - segment.first_offset, 0), end)
        starts = sorted(
            {*range(begin, stop, slice_bytes), *((imported_until,) if begin < imported_until < stop else ())}
        )
        for start, until in pairwise([*starts, stop]):
            parts.append(Slice(segment, start, until, end, has_tail, may_lack_crc=start < imported_until))
    return parts
