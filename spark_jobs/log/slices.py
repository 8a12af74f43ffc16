"""The log of a store cut into slices, each to be read by one task.

The idea: nobody knows where records start without reading, and reading first to cut would read twice. So a
segment is cut blindly, every `slice_bytes`, and the task of a slice finds its first record itself (`walk`).

Rules:
- A record belongs to the slice in which it starts; its task reads on behind `until`, to the record's end.
- A slice lies in one segment, and on one side of `imported_until`: so what makes a record sound is the same
  for all of its records.
- A slice that starts with its segment trusts that a record starts there. Any other start is searched from.
- Damage belongs to the slice before it, or in which it begins: whoever searches for a first record is silent.

Cost: none but the listing of segments; a task pays for its search, mostly one record.

Weak spot: a range that starts in the middle of the log (`first_offset`) has no slice before it; damage right
at its beginning has no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from commitlog.published_log import Segment, StoreLog

SLICE_BYTES_DEFAULT: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Slice:
    """The records of one segment that start at a position in [start, until).

    `end` is where readable bytes end. `has_tail`: sound records simply stop somewhere in this segment,
    so bytes without any sound record behind them are its unwritten end, not damage. `may_lack_crc`: its
    records were imported (see `commitlog.imported`).
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
    """Return the log cut for reading, in log order: the records that start between two log offsets."""
    last_offset = log.end_offset if end_offset is None else min(end_offset, log.end_offset)
    parts = []
    for segment in log.segments:
        # A segment's last record may reach beyond where the next segment begins: bytes are readable up to
        # `end`, records start before `stop`.
        end = min(segment.segment_bytes, log.end_offset - segment.first_offset)
        stop = min(end, min(last_offset, segment.end_offset) - segment.first_offset)
        # An overlapped segment begins with zeros, not with a record: a start of 1 makes the task search.
        begin = max(int(segment.is_overlapped), first_offset - segment.first_offset)
        if begin >= stop:
            continue
        # Only a log without a published end can have bytes behind its last record that were never written.
        has_tail = log.durable_offset is None and segment is log.segments[-1]
        imported_until = min(max(log.imported_until - segment.first_offset, 0), end)
        starts = sorted(
            {*range(begin, stop, slice_bytes), *((imported_until,) if begin < imported_until < stop else ())}
        )
        for start, until in pairwise([*starts, stop]):
            parts.append(Slice(segment, start, until, end, has_tail, may_lack_crc=start < imported_until))
    return parts
