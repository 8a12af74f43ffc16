"""Determines ranges of the log by time or log offset, so that other parts are not read.

Store times ascend with log offsets unless a clock was set back. Bisection finds the log offset of a time,
first by segment and then within one. Each probe reads the store time of the next bytes that look like a
record. A margin on both sides covers clocks that were set back by less. Rows are finally selected by their
own store time. Cost: about twenty probes of a few hundred bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from commitlog.log.published_log import Segment, StoreLog
from commitlog.records import record
from spark_jobs.log.columns.ragged import Bytes
from spark_jobs.log.columns.records import Records
from spark_jobs.log.scan.decode import mapped
from spark_jobs.log.scan.walk import likely_record
from tidewheel.errors import UnknownChoice

MARGIN_MS: Final = 60_000
"""A range by time contains all its rows if clocks were set back by less than this."""

_STEP_BYTES: Final = 64 * 1024
FOREVER_MS: Final = 1 << 62
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LIKE_MS: Final = range(10**12, 10**13)
"""Milliseconds since the Unix epoch from 2001 to 2286."""


@dataclass(frozen=True, slots=True)
class Place:
    """An end of a range as given: either a log offset or a time in milliseconds since the Unix epoch."""

    given: str
    offset: int | None = None
    ms: int | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Half-open range of log offsets, and optionally of store times in milliseconds since the Unix epoch.

    The range is empty if the end is not after the first offset. It also includes kept records from before the
    log, with log offsets below `outlived_until`.
    """

    first_offset: int
    end_offset: int
    stored_ms: tuple[int, int] | None = None
    outlived_until: int = 0


def place(options: Mapping[str, str], name: str, timestamp: str) -> Place | None:
    """Return an end of a range from two options, or None if neither is given.

    The option `name` is a log offset or an ISO 8601 time (UTC without a time zone). The option `timestamp` is
    in milliseconds since the Unix epoch. Raise `UnknownChoice` if a value is invalid or both are given.
    """
    given, given_ms = options.get(name), options.get(timestamp)
    if given is not None and given_ms is not None:
        raise UnknownChoice(f"{name} and {timestamp} say the same thing twice. Give one of them.")
    if given_ms is not None:
        if not _is_number(given_ms):
            raise UnknownChoice(f"{timestamp}={given_ms!r} is no number of milliseconds since 1970.")
        return Place(f"{timestamp}={given_ms}", ms=int(given_ms))
    if given is None:
        return None
    if _is_number(given):
        return Place(f"{name}={given}", offset=int(given))
    return Place(f"{name}={given}", ms=_ms(name, given, timestamp))


def range_of(log: StoreLog, first: Place | None, end: Place | None) -> Range:
    """Return the range from `first` to `end`, or from the start or to the end of the log for None.

    Raise `UnknownChoice` if a place is invalid.
    """
    starts, ends = log.first_offset, log.end_offset
    first_ms, end_ms = 0, FOREVER_MS
    if first is not None:
        starts = max(starts, found_at(log, first, is_end=False))
        first_ms = first_ms if first.ms is None else first.ms
    if end is not None:
        ends = min(ends, found_at(log, end, is_end=True))
        end_ms = end_ms if end.ms is None else end.ms
    is_timed = any(one is not None and one.ms is not None for one in (first, end))
    outlived = 0 if first is not None and first.offset is not None else log.first_offset
    if end is not None and end.offset is not None:
        outlived = min(outlived, end.offset)
    return Range(starts, ends, (first_ms, end_ms) if is_timed else None, outlived)


def found_at(log: StoreLog, place: Place, *, is_end: bool) -> int:
    """Return the log offset where a range with this place begins or ends. Raise `UnknownChoice` if invalid.

    A number after the end of the log that looks like a time in milliseconds is refused, because as a log
    offset it would silently select no rows.
    """
    if place.offset is not None:
        if place.offset > log.end_offset and place.offset in _LIKE_MS:
            timestamp = "endingTimestamp" if is_end else "startingTimestamp"
            raise UnknownChoice(
                f"{place.given} is a log offset, and the log ends at {log.end_offset}. If milliseconds since "
                f"1970 are meant, give {timestamp}={place.offset}."
            )
        return place.offset
    assert place.ms is not None, "a place is an offset or a time"
    return bounds(log, place.ms + (MARGIN_MS if is_end else -MARGIN_MS))[is_end]


def _is_number(given: str) -> bool:
    return given.isascii() and given.isdigit()


def _ms(option: str, given: str, timestamp: str) -> int:
    """Return a time in milliseconds since the Unix epoch, rounded up. Raise `UnknownChoice` if invalid."""
    try:
        time = datetime.fromisoformat(given)
    except ValueError as error:
        raise UnknownChoice(
            f"{option}={given!r} is neither a log offset nor a time. Give a number of bytes, a time as "
            f"2026-11-21T20:00:00Z, or {timestamp} in milliseconds since 1970."
        ) from error
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH
    return -(-since // timedelta(milliseconds=1))


def bounds(log: StoreLog, time_ms: int) -> tuple[int, int]:
    """Return two log offsets that enclose the position of a time in the log.

    If no clock was set back, records stored before `time_ms` start before the second offset, and all others
    start at or after the first.
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
    """Reads store times in a segment."""

    def __init__(self, segment: Segment, log_end: int) -> None:
        self._data: Bytes = mapped(segment.path)
        self._first_offset = segment.first_offset
        self.end = min(segment.segment_bytes, log_end - segment.first_offset)

    def ms_behind(self, position: int) -> int:
        """Return the store time of the first likely record from `position` on, or `FOREVER_MS` if none."""
        until = max(self.end - record.RECORD_BYTES_MIN + 8, 0)
        start = likely_record(self._data.data, self._first_offset, position, until)
        if start < 0:
            return FOREVER_MS
        return int(Records.at(self._data, np.array([start])).numbers("store_ms")[0])
