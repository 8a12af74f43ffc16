"""A part of the log by time or by log offset: which bytes need not be looked at.

Store times ascend with log offsets, but for clocks that were set back. So the log offset of a time is found
by bisection, first over segments, then inside one: at each place it probes, the next bytes that look like a
record tell their store time. A margin on both sides covers clocks that were set back by less, and each
row's own store time decides in the end. Cost: about twenty probes of a few hundred bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from commitlog import record
from commitlog.published_log import Segment, StoreLog
from spark_jobs.log.decode import mapped
from spark_jobs.log.ragged import Bytes
from spark_jobs.log.records import Records
from spark_jobs.log.walk import likely_record
from tidewheel.errors import UnknownChoice

MARGIN_MS: Final = 60_000
"""A clock set back by less than this loses no row of a range of time."""

_STEP_BYTES: Final = 64 * 1024
_FOREVER_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Range:
    """Log offsets from the first to before the end, and the store times that rows must have, likewise."""

    first_offset: int
    end_offset: int
    stored_ms: tuple[int, int] | None = None


def range_of(log: StoreLog, first: str | None, end: str | None) -> Range:
    """Return the range of two options: each a log offset, or a time as ISO 8601; raise `UnknownChoice`."""
    found = Range(log.first_offset, log.end_offset)
    starts, first_ms = _place(log, "from", first, found.first_offset)
    ends, end_ms = _place(log, "to", end, found.end_offset)
    stored_ms = None if first_ms is None and end_ms is None else (first_ms or 0, end_ms or _FOREVER_MS)
    return Range(max(starts, found.first_offset), min(ends, found.end_offset), stored_ms)


def _place(log: StoreLog, option: str, given: str | None, default: int) -> tuple[int, int | None]:
    """Return (log offset, time in ms if it was given as a time)."""
    if given is None:
        return default, None
    if given.isascii() and given.isdigit():
        return int(given), None
    try:
        time = datetime.fromisoformat(given)
    except ValueError as error:
        raise UnknownChoice(
            f"{option}={given!r} is neither a log offset nor a time. Give a number of bytes, or a time as "
            "2026-11-21T20:00:00Z."
        ) from error
    time_ms = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    is_end = option == "to"
    return bounds(log, time_ms + (MARGIN_MS if is_end else -MARGIN_MS))[is_end], time_ms


def bounds(log: StoreLog, time_ms: int) -> tuple[int, int]:
    """Return two log offsets: what was stored before `time_ms` lies before the second, and what was not, not
    before the first; while clocks only went forward.
    """
    segments = log.segments
    at = bisect_left(segments, time_ms, key=lambda segment: _Probe(segment, log.end_offset).ms_behind(0)) - 1
    if at < 0:
        return log.first_offset, log.first_offset
    probe = _Probe(segments[at], log.end_offset)
    steps = range(0, probe.end, _STEP_BYTES)
    step = bisect_left(steps, time_ms, key=probe.ms_behind)
    first_offset = segments[at].first_offset
    return first_offset + max(0, step - 1) * _STEP_BYTES, first_offset + min(step * _STEP_BYTES, probe.end)


class _Probe:
    """Store times in one segment."""

    def __init__(self, segment: Segment, log_end: int) -> None:
        self._data: Bytes = mapped(segment.path)
        self._first_offset = segment.first_offset
        self.end = min(segment.segment_bytes, log_end - segment.first_offset)

    def ms_behind(self, position: int) -> int:
        """Return when the first record from `position` on was stored; the end of time if none follows."""
        until = max(self.end - record.RECORD_BYTES_MIN + 8, 0)
        start = likely_record(self._data.data, self._first_offset, position, until)
        if start < 0:
            return _FOREVER_MS
        return int(Records.at(self._data, np.array([start])).numbers("store_ms")[0])
