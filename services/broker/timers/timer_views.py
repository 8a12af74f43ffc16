"""Query pending timers: pages by due time, counts, and histograms.

Timers are read in sort order (`timingwheel.partitions.scan`), one slot at a time, to limit memory usage. A
row on disk contains the queue of the timer and the hashes of its tag, message id, and message keys. A filter
by topic, tag, or key therefore reads only the records that may match. A filter by property reads the records
of all timers that match the other conditions. Timer keys are stored in the index of names (`offsets_of_key`),
not in rows. The row of a timer that was set after the last checkpoint contains no hashes. For such a timer,
the record in the log is searched for the texts of the filter, and is decoded only if it contains all of them.
Held timers (`services.broker.timers.holding`), and timers with a sort time other than the due time
(`NearTimers.deviating`), are excluded from the slots and are merged by due time.

A long search is performed in steps (`TimerSearch`), and other calls are served between the steps. The rows
are kept in memory between steps, because a slot with many timers would otherwise be read again in every step.

Cost: a filter by timer key requires one name lookup for each matching topic that has pending timers.
Searching the bytes of a record is 20 times as fast as decoding the record. A search by key, tag, or topic
reads the rows of each slot only once.

Limitation: all rows of a slot are read in one step, which takes 0.2 s if the slot contains a million timers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from operator import itemgetter
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.records.bulk import Integers
from consumequeue.entry import tags_code
from consumequeue.indexes.keyindex import hash_of
from services.broker.spine.values import LostTimer, PendingTimer, TimerFilter, TimerName, TimerPage
from services.broker.timers.timer_source import MANY_NAMES, NAME_COLUMNS, Offsets
from services.broker.timers.timers import Timers, pending_timer
from timingwheel.due_run import SortKey
from timingwheel.listing import Listing, Run
from timingwheel.partition import IN_LOG, Rows

_EVERYTHING: Final = TimerFilter()
Mask = np.ndarray[Any, np.dtype[np.bool_]]
_NOT_SEARCHED: Final = (np.empty(0, np.uint64), np.empty(0, np.uint64))
_LOOK_WORK: Final = 2  # The cost of reading and converting a small record, in units of `limits.WORK_NS`.
_HASHED_MAX: Final = 8
_READ_AT_ONCE: Final = limits.TIMERS_QUERY_WORK_MAX // _LOOK_WORK
_NO_DUE_MS: Final = np.empty(0, np.int64)


class Candidate(NamedTuple):
    """A timer that may match a filter, with the due time, the offset, and the location of the record.

    If `path` is None, the record is not read from a timer file.
    """

    due_ms: int
    timer_offset: int
    path: str | None
    record_at: int
    record_bytes: int


class LookupResults(NamedTuple):
    """The results of a query's lookups in the index of names and in the log.

    `keyed` contains the offsets of the timers whose timer key matches the filter. `searched` contains the
    offsets of the records that were searched in the log, and `found` contains the offsets of the records that
    contain all texts of the filter. All offsets are sorted.
    """

    keyed: Offsets
    searched: Offsets
    found: Offsets

    def not_found_mask(self, timer_offsets: Integers) -> Mask:
        """Return a Boolean array that is true for offsets that are in `searched` but not in `found`."""
        return _membership_mask(self.searched, timer_offsets) & ~_membership_mask(self.found, timer_offsets)


class TimerViews:
    """Read-only queries of pending timers."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._hashed: dict[tuple[str, str, str, int], Any] = {}

    def read_page(self, wanted: TimerFilter, after: SortKey | None, count_max: int) -> TimerPage:
        """Return up to `count_max` matching timers, sorted by due time, without their messages.

        The page begins after the sort key `after`.
        """
        found: list[PendingTimer] = []
        place: SortKey | None = None
        for candidate in self.candidates(self.listing(), wanted, after):
            if not isinstance(candidate, Candidate):
                continue
            timer = self.read_timer(candidate)
            if not is_match(timer, wanted):
                continue
            if len(found) == count_max:
                return TimerPage(found, place)
            found.append(replace(timer, message=None))
            place = candidate.due_ms, candidate.timer_offset
        return TimerPage(found, None)

    def open_search(
        self, wanted: TimerFilter, after: SortKey | None, looked_up: LookupResults | None = None
    ) -> TimerSearch:
        """Return a search for the matching timers after the sort key `after`."""
        return TimerSearch(self, wanted, after, looked_up)

    def open_count(self, wanted: TimerFilter) -> TimerCount:
        """Return a count of the matching timers. `wanted.reads_records` must be false."""
        return TimerCount(self, wanted)

    def topics_of(self, wanted: TimerFilter) -> list[str]:
        """Return the topics that have pending timers and match the filter."""
        pending = self._timers.pending_by_topic.items()
        return [topic for topic, count in pending if count and _is_topic_match(topic, wanted)]

    def offsets_of_key(self, key: str, topics: Iterable[str]) -> list[int]:
        """Return the offsets of the timers with the timer key `key` in the given topics.

        Raise `StoreDamaged` if the index of names is unreadable.
        """
        named = (self._timers.find_timer(TimerName(topic, key=key)) for topic in topics)
        return [one.timer_offset for one in named if one is not None]

    def unwritten(self, wanted: TimerFilter) -> Offsets:
        """Return the sorted offsets of the timers in the filter's window that are not in a timer file."""
        far = self._timers.partitions.in_memory(wanted.from_ms, wanted.until_ms)
        held = self._timers.held.rows(wanted.from_ms, wanted.until_ms).timer_offsets
        deviating = [
            offset
            for _, offset in self._timers.near.deviating_timers_in_window(wanted.from_ms, wanted.until_ms)
        ]
        return np.unique(np.concatenate([far, held.astype(np.uint64), np.array(deviating, np.uint64)]))

    def search_log(self, timer_offsets: Offsets, texts: Sequence[bytes]) -> Offsets:
        """Return the offsets of the timers whose records in the log contain all `texts`.

        `timer_offsets` must be sorted. Unreadable records are included. Raise OSError if a read fails.
        """
        found: Offsets = timer_offsets[self._timers.source.contain(timer_offsets, texts)]
        return found

    def pending(self, topic_prefix: str, count_max: int) -> list[PendingTimer]:
        """Return up to `count_max` timers of the topics with the given prefix, sorted by due time."""
        return self.read_page(TimerFilter(topic_prefix=topic_prefix), None, count_max).timers

    def lost(self) -> list[LostTimer]:
        """Return the timers that recently ended as UNREADABLE, newest first."""
        return list(reversed(self._timers.lost))

    def count(self, wanted: TimerFilter) -> int:
        """Count the matching timers."""
        if wanted == _EVERYTHING:
            return self._timers.pending_count
        if wanted == TimerFilter(topic=wanted.topic):
            return self._timers.pending_by_topic[wanted.topic]
        if wanted == _window_of(wanted):
            window = wanted.from_ms, wanted.until_ms
            held = 0 if wanted.is_held is False else len(self._timers.held.rows(*window).due_ms)
            return held if wanted.is_held else held + self._count_timers_not_held(*window)
        return sum(count for _, count in self.histogram(wanted, 1 << 62))

    def histogram(self, wanted: TimerFilter, width_ms: int) -> list[tuple[int, int]]:
        """Return (window start, number of matching timers) for each window of `width_ms` milliseconds.

        The first window begins at `wanted.from_ms`. Empty windows are omitted.
        """
        counts: Counter[int] = Counter()
        columns, select = (
            [self.held_due_ms(wanted), self.deviating_due_ms(wanted)],
            self._make_row_selector(wanted),
        )
        for rows, path in self._scan(wanted):
            due_ms = rows["due_ms"].astype(np.int64)
            if wanted != _window_of(wanted):
                due_ms = due_ms[self._matching(rows, path, wanted, select(rows))]
            columns.append(due_ms)
        for due_ms in columns:
            starts = wanted.from_ms + (due_ms - wanted.from_ms) // width_ms * width_ms
            for start_ms, count in zip(*np.unique(starts, return_counts=True), strict=True):
                counts[int(start_ms)] += int(count)
        return sorted(counts.items())

    def listing(self, rows_max: int = limits.TIMERS_SEARCHED_ROWS_MAX) -> Listing:
        """Return a listing of the stored timers in which each run has at most `rows_max` rows."""
        listing = self._timers.partitions.listing()
        return replace(listing, rows_max=min(listing.rows_max, rows_max))

    def is_valid(self, listing: Listing) -> bool:
        """Return whether a listing is still valid.

        A listing becomes invalid when a timer is moved to another slot or layer.
        """
        return self._timers.partitions.is_valid(listing)

    def candidates(
        self,
        listing: Listing,
        wanted: TimerFilter,
        after: SortKey | None,
        looked_up: LookupResults | None = None,
    ) -> Iterator[Candidate | SortKey]:
        """Yield the timers after the sort key `after` that may match, sorted by due time and offset.

        After each run of rows, yield the sort key up to which all candidates have been yielded.
        """
        rows = self._listed_candidates(listing, wanted, after, looked_up)
        others = self._held(wanted, after, looked_up), self.deviating(wanted, after, looked_up)
        return merge(rows, *others, key=itemgetter(0, 1)) if self._has_held_or_deviating_timers else rows

    @property
    def _has_held_or_deviating_timers(self) -> bool:
        """Whether any timers are held or deviating and must be merged with the timers of the slots."""
        return len(self._timers.held) > 0 or len(self._timers.near.deviating) > 0

    def _count_timers_not_held(self, from_ms: int, until_ms: int) -> int:
        """Count the timers that are due in a window and are not held.

        The partitions count timers by sort time. The count is therefore corrected for deviating timers.
        """
        near = self._timers.near
        moved = len(near.deviating_timers_in_window(from_ms, until_ms)) if near.deviating else 0
        moved -= sum(from_ms <= sort_ms < until_ms for sort_ms in near.deviating.values())
        return self._timers.partitions.count(from_ms, until_ms) + moved

    def _held(
        self,
        wanted: TimerFilter,
        after: SortKey | None = None,
        looked_up: LookupResults | None = None,
    ) -> Iterator[Candidate]:
        """Yield the held timers of matching topics, except those excluded by the log search."""
        if wanted.is_held is False:
            return
        rows = self._timers.held.rows(
            wanted.from_ms if after is None else max(wanted.from_ms, after[0]), wanted.until_ms
        )
        topics = [number for number, topic in enumerate(rows.names) if _is_topic_match(topic, wanted)]
        wanted_rows = np.isin(rows.topics, topics)
        if looked_up is not None:
            wanted_rows &= ~looked_up.not_found_mask(rows.timer_offsets)
        for place in np.flatnonzero(wanted_rows).tolist():
            candidate = Candidate(int(rows.due_ms[place]), int(rows.timer_offsets[place]), None, 0, 0)
            if after is None or candidate[:2] > after:
                yield candidate

    def deviating(
        self,
        wanted: TimerFilter,
        after: SortKey | None = None,
        looked_up: LookupResults | None = None,
    ) -> Iterator[Candidate]:
        """Yield the deviating timers that are due in the filter's window.

        Timers excluded by the log search are omitted.
        """
        if wanted.is_held or not self._timers.near.deviating:
            return
        places = self._timers.near.deviating_timers_in_window(wanted.from_ms, wanted.until_ms)
        offsets = np.array([offset for _, offset in places], np.int64)
        in_vain = np.zeros(len(places), np.bool_) if looked_up is None else looked_up.not_found_mask(offsets)
        for place, is_in_vain in zip(places, in_vain.tolist(), strict=True):
            if not is_in_vain and (after is None or place > after):
                yield Candidate(*place, None, 0, 0)

    def deviating_due_ms(self, wanted: TimerFilter) -> Integers:
        """Return the due times of the deviating timers that match a filter, in milliseconds."""
        found = self.deviating(wanted)
        is_window = wanted == _window_of(wanted)
        return np.fromiter(
            (one.due_ms for one in found if is_window or self.is_wanted(one, wanted)), np.int64
        )

    def held_due_ms(self, wanted: TimerFilter) -> Integers:
        """Return the due times of the held timers that match a filter, in milliseconds."""
        reads = wanted.reads_records
        return np.fromiter(
            (one.due_ms for one in self._held(wanted) if not reads or self.is_wanted(one, wanted)), np.int64
        )

    def is_wanted(self, candidate: Candidate, wanted: TimerFilter) -> bool:
        """Read the record of a timer, and return whether the timer matches a filter."""
        return is_match(self.read_timer(candidate), wanted)

    def runs(self, listing: Listing, wanted: TimerFilter, after: SortKey | None) -> Iterator[Run]:
        """Return an iterator over runs of rows of timers that may match, after the sort key `after`.

        Held timers are not included.
        """
        if wanted.is_held:
            return iter(())
        is_window = wanted == _window_of(wanted) and not self._timers.near.deviating
        select = None if is_window else self._make_row_selector(wanted)
        return listing.runs(wanted.from_ms, wanted.until_ms, after, select, listing.rows_max)

    def _listed_candidates(
        self, listing: Listing, wanted: TimerFilter, after: SortKey | None, looked_up: LookupResults | None
    ) -> Iterator[Candidate | SortKey]:
        if wanted.is_held:
            return
        select = self._make_row_selector(wanted, looked_up)
        for run in listing.runs(wanted.from_ms, wanted.until_ms, after, select):
            for rows, path in run.by_file:
                for row in rows:
                    yield _candidate(row, path)
            yield run.end

    def _scan(self, wanted: TimerFilter) -> Iterator[tuple[Rows, str | None]]:
        """Yield (rows, path) pairs for timers in the filter's window, except held and deviating timers."""
        if wanted.is_held:
            return
        deviating = self._deviating_offsets()
        for rows, path in self._timers.partitions.scan(wanted.from_ms, wanted.until_ms):
            yield rows if deviating is None else rows[~np.isin(rows["timer_offset"], deviating)], path

    def _deviating_offsets(self) -> Offsets | None:
        """Return the offsets of the deviating timers, or None if there are no such timers."""
        found = self._timers.near.deviating
        return np.fromiter(found, np.uint64, len(found)) if found else None

    def _matching(self, rows: Rows, path: str | None, wanted: TimerFilter, matching: Mask) -> Mask:
        """Return a Boolean array that is true for matching rows.

        `matching` must be true for all rows that may match. A record is read only if the row is not
        sufficient to evaluate the filter.
        """
        unsure = matching if wanted.reads_records else matching & (rows["record_at"] == np.uint64(IN_LOG))
        for place in np.flatnonzero(unsure).tolist():
            matching[place] = self.is_wanted(_candidate(rows[place], path), wanted)
        return matching

    def _make_row_selector(
        self, wanted: TimerFilter, looked_up: LookupResults | None = None
    ) -> Callable[[Rows], Mask]:
        """Return a function that maps rows to a Boolean array, which is true for rows that may match.

        A row whose record is in the log has no hashes. Such a row may match unless a log search has excluded
        its timer.
        """
        queues = self._timers.queues.names
        codes = [code for code, (topic, _) in enumerate(queues) if _is_topic_match(topic, wanted)]
        hashes = {key: self._hashes(wanted, key, codes) for key in (wanted.key, wanted.message_key) if key}
        if looked_up is None:
            keyed = self.offsets_of_key(wanted.key, self.topics_of(wanted)) if wanted.key else []
            looked_up = LookupResults(np.sort(np.array(keyed, np.uint64)), *_NOT_SEARCHED)
        deviating = self._deviating_offsets()

        def select(rows: Rows) -> Mask:
            offsets, matching = rows["timer_offset"], np.isin(rows["queue"], codes)
            for key, hashed in hashes.items():
                named = [np.isin(rows[column], hashed) for column in NAME_COLUMNS]
                if key == wanted.key:
                    named.append(_membership_mask(looked_up.keyed, offsets))
                matching &= np.any([*named, rows["spare"] == np.uint64(MANY_NAMES)], axis=0)
            if wanted.tag:
                matching &= rows["tags_code"] == tags_code(wanted.tag)
            is_unsure: Mask = (rows["record_at"] == np.uint64(IN_LOG)) & ~looked_up.not_found_mask(offsets)
            matching |= is_unsure
            return matching if deviating is None else matching & ~np.isin(offsets, deviating)

        return select

    def _hashes(self, wanted: TimerFilter, name: str, codes: Sequence[int]) -> Any:
        """Return the hashes of a name for the topics with the queue numbers `codes`.

        Recent hashes are cached, because a long query requires them for each part of its window.
        """
        asked = wanted.topic, wanted.topic_prefix, name, len(self._timers.queues.names)
        if asked not in self._hashed:
            topics = {self._timers.queues.names[code][0] for code in codes}
            if len(self._hashed) >= _HASHED_MAX:
                del self._hashed[next(iter(self._hashed))]
            self._hashed[asked] = np.fromiter((hash_of(topic, name) for topic in topics), np.uint64)
        return self._hashed[asked]

    def read_timer(self, candidate: Candidate) -> PendingTimer:
        """Return a timer with its message.

        If the record is unreadable, all fields except the due time and the offset are empty.
        """
        timers = self._timers
        try:
            if candidate.path is None:
                return pending_timer(timers.read_at(candidate.due_ms, candidate.timer_offset))
            return pending_timer(timers.read_row(candidate.path, candidate.record_at, candidate.record_bytes))
        except StoreDamaged:
            return PendingTimer("", "", (), candidate.due_ms, candidate.timer_offset)


class TimerSearch:
    """A search for pending timers that match a filter, made in steps of limited work.

    The rows of the current run are kept between the steps. If a checkpoint has begun or ended, or if a
    boundary of the wheel has advanced, the rows are read again, starting at the sort key that the search has
    reached.
    """

    def __init__(
        self,
        views: TimerViews,
        wanted: TimerFilter,
        after: SortKey | None,
        looked_up: LookupResults | None,
    ) -> None:
        self._views, self._wanted, self._looked_up = views, wanted, looked_up
        self._end = after
        self._listing: Listing | None = None
        self._candidates: Iterator[Candidate | SortKey] = iter(())

    def step(self, count_max: int | None = None) -> TimerPage:
        """Return the timers found in the next step, and the sort key that the search has reached.

        The sort key is None after the last step. A step ends when `count_max` timers have been found. The
        work of a step is limited to `TIMERS_QUERY_WORK_MAX` (in units of `limits.WORK_NS`) plus one record. A
        step reads the rows of at most one run.
        """
        if self._listing is None or not self._views.is_valid(self._listing):
            self._listing = self._views.listing()
            self._candidates = self._views.candidates(self._listing, self._wanted, self._end, self._looked_up)
        found: list[PendingTimer] = []
        work = 0
        for candidate in self._candidates:
            self._end = candidate[0], candidate[1]
            if not isinstance(candidate, Candidate):
                return TimerPage(found, self._end)
            timer = self._views.read_timer(candidate)
            body_bytes = 0 if timer.message is None else len(timer.message.body)
            work += _LOOK_WORK + body_bytes // limits.WORK_BYTES
            if is_match(timer, self._wanted):
                found.append(replace(timer, message=None))
            if work >= limits.TIMERS_QUERY_WORK_MAX or len(found) == count_max:
                return TimerPage(found, self._end)
        return TimerPage(found, None)


class TimerCount:
    """A count of pending timers by topic, due time, or hold state, made in steps of limited work.

    A timer in a file is matched by its row. The row of a timer that was set after the last checkpoint does
    not contain the topic. If the filter specifies a topic, the record of such a timer is read.
    """

    def __init__(self, views: TimerViews, wanted: TimerFilter) -> None:
        self._views, self._wanted = views, wanted
        self._has_counted_held = False
        self._end: SortKey = (0, 0)
        self._listing: Listing | None = None
        self._runs: Iterator[Run] = iter(())
        self._unread: deque[Candidate] = deque()

    def step(self) -> tuple[Integers, SortKey | None]:
        """Return the due times (int64, in ms) of the next timers, and the sort key that has been reached.

        The due times are not sorted. The sort key is None after the last step.
        """
        if not self._has_counted_held:
            self._has_counted_held = True
            held_ms = self._views.held_due_ms(self._wanted)
            if self._wanted == _window_of(self._wanted):
                return np.concatenate([held_ms, self._views.deviating_due_ms(self._wanted)]), self._end
            self._unread.extend(self._views.deviating(self._wanted))
            return held_ms, self._end
        if self._unread:
            return self._read_some(), self._end
        if self._listing is None or not self._views.is_valid(self._listing):
            self._listing = self._views.listing(limits.TIMER_ROWS_READ_AHEAD_MAX)
            self._runs = self._views.runs(self._listing, self._wanted, self._end)
        run = next(self._runs, None)
        if run is None:
            return _NO_DUE_MS, None
        self._end = run.end
        return np.concatenate(
            [_NO_DUE_MS, *(self._confirmed_due_times(rows) for rows, _ in run.by_file)]
        ), self._end

    def _confirmed_due_times(self, rows: Rows) -> Integers:
        """Return the due times of the matching rows, and queue the rows without a topic for reading."""
        due_ms = rows["due_ms"].astype(np.int64)
        if self._wanted == _window_of(self._wanted):
            return due_ms
        is_unsure = rows["record_at"] == np.uint64(IN_LOG)
        self._unread.extend(_candidate(row, None) for row in rows[is_unsure])
        sure: Integers = due_ms[~is_unsure]
        return sure

    def _read_some(self) -> Integers:
        """Read the records of some queued timers, and return the due times of the matching timers."""
        taken = [self._unread.popleft() for _ in range(min(len(self._unread), _READ_AT_ONCE))]
        matching = (one.due_ms for one in taken if self._views.is_wanted(one, self._wanted))
        return np.fromiter(matching, np.int64)


def _candidate(row: Any, path: str | None) -> Candidate:
    in_log = path is None or int(row["record_at"]) == IN_LOG
    places = (int(row["due_ms"]), int(row["timer_offset"]))
    return Candidate(*places, None if in_log else path, int(row["record_at"]), int(row["record_bytes"]))


def _membership_mask(ascending: Offsets, offsets: Integers) -> Mask:
    """Return a Boolean array that is true for offsets in the sorted array `ascending`.

    `np.isin` would process the whole sorted array in each call.
    """
    places = np.searchsorted(ascending, offsets)
    found: Mask = np.append(ascending, np.uint64(0))[places] == offsets
    return found & (places < len(ascending))


def _window_of(wanted: TimerFilter) -> TimerFilter:
    """Return a filter with the due-time window and `is_held` of `wanted`, and no other conditions."""
    return TimerFilter(from_ms=wanted.from_ms, until_ms=wanted.until_ms, is_held=wanted.is_held)


def _is_topic_match(topic: str, wanted: TimerFilter) -> bool:
    return (not wanted.topic or topic == wanted.topic) and topic.startswith(wanted.topic_prefix)


def is_match(timer: PendingTimer, wanted: TimerFilter) -> bool:
    """Return whether a timer and its message match a filter."""
    if not _is_topic_match(timer.topic, wanted) or not wanted.from_ms <= timer.due_ms < wanted.until_ms:
        return False
    if wanted.key and wanted.key not in (*timer.keys, timer.timer_key, timer.message_id):
        return False
    if wanted.message_key and wanted.message_key not in timer.keys:
        return False
    stored = {} if timer.message is None else timer.message.properties
    has_properties = all(stored.get(name) == value for name, value in wanted.properties)
    return has_properties and wanted.tag in ("", timer.tag)
