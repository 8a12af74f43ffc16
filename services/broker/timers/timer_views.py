"""Provides views of the waiting timers: pages sorted by due time, counts, and histograms.

Timers are read in sort order (`timingwheel.partitions.scan`), one slot at a time, so memory use is bounded
for any number of timers. A row on disk contains the queue of a timer and the hashes of its tag and names. A
filter by topic, tag, or topic and key therefore reads only the records that may match and the timers set
since the last checkpoint. A filter by property reads the record of every timer that its other fields match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog import limits
from commitlog.errors import StoreDamaged
from consumequeue.entry import tags_code
from consumequeue.keyindex import hash_of
from services.broker.spine.values import LostTimer, PendingTimer, TimerFilter, TimerName, TimerPage
from services.broker.timers.timer_source import MANY_NAMES, NAME_COLUMNS
from services.broker.timers.timers import Timers, pending_timer
from timingwheel.partition import IN_LOG, Rows

_EVERYTHING: Final = TimerFilter()
_LOOK_WORK: Final = 2  # in `limits.WORK_NS`: reading a small record and converting it to a timer


class Candidate(NamedTuple):
    """A timer that may match a filter, with its sort position and its record's location in a partition."""

    due_ms: int
    timer_offset: int
    path: str | None
    record_at: int
    record_bytes: int


class TimerViews:
    """The read-only views of the waiting timers."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers

    def read_page(self, wanted: TimerFilter, after: tuple[int, int] | None, count_max: int) -> TimerPage:
        """Return up to `count_max` matching timers, sorted by due time and without their messages.

        The page begins after the position `after`, a pair of due time (ms) and offset.
        """
        found: list[PendingTimer] = []
        place: tuple[int, int] | None = None
        for candidate in self._candidates(wanted, after):
            timer = self._read_timer(candidate)
            if not _matches(timer, wanted):
                continue
            if len(found) == count_max:
                return TimerPage(found, place)
            found.append(replace(timer, message=None))
            place = candidate.due_ms, candidate.timer_offset
        return TimerPage(found, None)

    def search(self, wanted: TimerFilter, after: tuple[int, int] | None) -> TimerPage:
        """Return the timers that a bounded search finds, and the cursor for the next call or None.

        The search reads records up to `TIMERS_LOOK_WORK_MAX` (in units of `limits.WORK_NS`), or one larger
        record.
        """
        found: list[PendingTimer] = []
        work, place = 0, after
        for candidate in self._candidates(wanted, after):
            if work >= limits.TIMERS_LOOK_WORK_MAX:
                return TimerPage(found, place)
            timer = self._read_timer(candidate)
            body_bytes = 0 if timer.message is None else len(timer.message.body)
            work += _LOOK_WORK + body_bytes // limits.WORK_BYTES
            if _matches(timer, wanted):
                found.append(replace(timer, message=None))
            place = candidate.due_ms, candidate.timer_offset
        return TimerPage(found, None)

    def pending(self, topic_prefix: str, count_max: int) -> list[PendingTimer]:
        """Return the timers of all topics that begin with a prefix, sorted by due time."""
        return self.read_page(TimerFilter(topic_prefix=topic_prefix), None, count_max).timers

    def lost(self) -> list[LostTimer]:
        """Return the most recent timers that ended as UNREADABLE, newest first."""
        return list(reversed(self._timers.lost))

    def count(self, wanted: TimerFilter) -> int:
        """Return the number of matching timers."""
        if wanted == _EVERYTHING:
            return self._timers.pending_count
        if wanted == TimerFilter(topic=wanted.topic):
            return self._timers.pending_by_topic[wanted.topic]
        if wanted == TimerFilter(from_ms=wanted.from_ms, until_ms=wanted.until_ms):
            return self._timers.partitions.count(wanted.from_ms, wanted.until_ms)
        return sum(count for _, count in self.histogram(wanted, 1 << 62))

    def histogram(self, wanted: TimerFilter, width_ms: int) -> list[tuple[int, int]]:
        """Return (start, number of matching timers) for each window of `width_ms`, beginning at `from_ms`.

        Empty windows are omitted.
        """
        counts: Counter[int] = Counter()
        for rows, path in self._timers.partitions.scan(wanted.from_ms, wanted.until_ms, None):
            due_ms = rows["due_ms"].astype(np.int64)
            if wanted != TimerFilter(from_ms=wanted.from_ms, until_ms=wanted.until_ms):
                due_ms = due_ms[self._matching(rows, path, wanted)]
            starts = wanted.from_ms + (due_ms - wanted.from_ms) // width_ms * width_ms
            for start_ms, count in zip(*np.unique(starts, return_counts=True), strict=True):
                counts[int(start_ms)] += int(count)
        return sorted(counts.items())

    def _candidates(self, wanted: TimerFilter, after: tuple[int, int] | None) -> Iterator[Candidate]:
        for rows, path in self._timers.partitions.scan(wanted.from_ms, wanted.until_ms, after):
            for row in rows[self._may_match(rows, path, wanted)]:
                yield _candidate(row, path)

    def _matching(self, rows: Rows, path: str | None, wanted: TimerFilter) -> Any:
        """Return a bool column of the matching rows; a record is read only if its row is inconclusive."""
        matching = self._may_match(rows, path, wanted)
        unsure = matching if wanted.reads_records else matching & (rows["record_at"] == np.uint64(IN_LOG))
        for place in np.flatnonzero(unsure).tolist():
            matching[place] = _matches(self._read_timer(_candidate(rows[place], path)), wanted)
        return matching

    def _may_match(self, rows: Rows, path: str | None, wanted: TimerFilter) -> Any:
        """Return a bool column of the rows that may match, including every row with its record in the log."""
        queues = self._timers.queues.names
        topics = [code for code, (topic, _) in enumerate(queues) if _is_topic(topic, wanted)]
        matching = np.isin(rows["queue"], topics)
        if wanted.key and wanted.topic:
            hashed = np.uint64(hash_of(wanted.topic, wanted.key))
            named = [rows[column] == hashed for column in NAME_COLUMNS]
            keyed = self._timers.find_timer(TimerName(wanted.topic, key=wanted.key))
            if keyed is not None:
                named.append(rows["timer_offset"] == np.uint64(keyed.timer_offset))
            matching &= np.any([*named, rows["spare"] == np.uint64(MANY_NAMES)], axis=0)
        if wanted.message_key and wanted.topic:
            hashed = np.uint64(hash_of(wanted.topic, wanted.message_key))
            named = [rows[column] == hashed for column in NAME_COLUMNS]
            matching &= np.any([*named, rows["spare"] == np.uint64(MANY_NAMES)], axis=0)
        if wanted.tag:
            matching &= rows["tags_code"] == tags_code(wanted.tag)
        return matching | (rows["record_at"] == np.uint64(IN_LOG))

    def _read_timer(self, candidate: Candidate) -> PendingTimer:
        timers = self._timers
        try:
            if candidate.path is None:
                return pending_timer(timers.read_at(candidate.due_ms, candidate.timer_offset))
            return pending_timer(timers.read_row(candidate.path, candidate.record_at, candidate.record_bytes))
        except StoreDamaged:
            return PendingTimer("", "", (), candidate.due_ms, candidate.timer_offset)


def _candidate(row: Any, path: str | None) -> Candidate:
    in_log = path is None or int(row["record_at"]) == IN_LOG
    places = (int(row["due_ms"]), int(row["timer_offset"]))
    return Candidate(*places, None if in_log else path, int(row["record_at"]), int(row["record_bytes"]))


def _is_topic(topic: str, wanted: TimerFilter) -> bool:
    return (not wanted.topic or topic == wanted.topic) and topic.startswith(wanted.topic_prefix)


def _matches(timer: PendingTimer, wanted: TimerFilter) -> bool:
    if not _is_topic(timer.topic, wanted):
        return False
    if wanted.key and wanted.key not in (*timer.keys, timer.timer_key, timer.message_id):
        return False
    if wanted.message_key and wanted.message_key not in timer.keys:
        return False
    stored = {} if timer.message is None else timer.message.properties
    has_properties = all(stored.get(name) == value for name, value in wanted.properties)
    return has_properties and wanted.tag in ("", timer.tag)
