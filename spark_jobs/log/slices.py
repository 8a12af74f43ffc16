"""The log of a store cut into slices, each to be read by one task.

A slice is a range of one segment, so that one large segment can be read by several tasks. A record belongs to
the slice in which it starts.
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
        end = min(segment.segment_bytes, log.end_offset - segment.first_offset)
        stop = min(end, min(last_offset, segment.end_offset) - segment.first_offset)
        begin = max(int(segment.is_overlapped), first_offset - segment.first_offset)
        if begin >= stop:
            continue
        has_tail = log.durable_offset is None and segment is log.segments[-1]
        imported_until = min(max(log.imported_until - segment.first_offset, 0), end)
        starts = sorted(
            {*range(begin, stop, slice_bytes), *((imported_until,) if begin < imported_until < stop else ())}
        )
        for start, until in pairwise([*starts, stop]):
            parts.append(Slice(segment, start, until, end, has_tail, may_lack_crc=start < imported_until))
    return parts
