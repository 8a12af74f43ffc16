"""Deliver each due timer to its queue exactly once, in sort order and in bounded batches.

    due runs (read ahead from partitions)  ---- few: one by one ---------------------------+
                                           `--- `TIMER_RUN_MIN` or more: bytes copied -----+
                                                                                           +--> log
    the near wheel (set seconds ago)       ---- few: one by one ---------------------------+
                                           `--- more: converted in bulk (`timer_source`) --+

    held timers of a released topic        ---- as from the near wheel, at the release rate

A due timer of a held topic is held instead of being delivered (`services.broker.timers.holding`).

The timers of due runs and of the near wheel are merged by sort key. If sort times are equal, the timers of
due runs are delivered first, because they were set earlier. Delivery pauses while more than
`UNFLUSHED_BYTES_MAX` bytes are unflushed.

Cost: the delivery of a single timer takes 47 to 65 us, including a share of the flush. A timer in a run of
2,000 takes 13 to 18 us, but each run has a fixed cost of about 900 us. At two timers per millisecond,
delivery in runs would occupy a whole CPU core and delay every timer.

Each late delivery is counted under the first matching cause. A delivery after a hold is counted only under
`held` and in no histogram, because an operator requested the delay.

    held        the topic was held at the due time
    restart     the timer was due before the store was opened
    clock       the clock was stepped past the due time
    cold_read   the partition of the timer had not been read by the due time
    disk        delivery was paused because of unflushed bytes
    burst       more timers were due than could be delivered at the due time

Limitation: within a run, all late timers of a topic are counted under the cause of the first one.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import Any, Final

import numpy as np

from commitlog import limits
from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.limits import LATE_MS_MIN
from commitlog.records import bulk, properties, record
from commitlog.records.bulk import Integers
from commitlog.records.record import Record
from consumequeue.indexes.keyindex import hash_of, names_of
from services.broker.spine.encoded_batch import EncodedBatch, TimersDelivered
from services.broker.spine.scheduler import earlier
from services.broker.spine.statistics import LATE_BY_HOLD
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics
from services.broker.timers.holding import FOREVER_MS, ReleasePaces
from services.broker.timers.timer_records import due_ms_of, to_timer_record
from services.broker.timers.timer_source import (
    MANY_NAMES,
    NAME_COLUMNS,
    QueueTable,
    TimerSource,
    ready_record,
)
from services.broker.timers.timers import Timers
from tidewheel import property_names
from timingwheel.partition import IN_LOG, Rows

_GAP_BYTES_MAX: Final = 2048
"""The maximum gap in bytes between two records that are read at once."""
_ALONE_COUNTS: Final = 4
_HOLDING_COUNTS: Final = 8
"""The weight of a due timer while any topic is held, because timers are held one by one."""


class TimerDelivery:
    """Deliver due timers by appending their messages to the log."""

    def __init__(self, disk: Disk, store: Store, topics: Topics, timers: Timers, opened_ms: int) -> None:
        self._store, self._topics, self._timers = store, topics, timers
        self._held, self._paces = timers.held, ReleasePaces()
        self._near, self._partitions = timers.near, timers.partitions
        self._near_queues = QueueTable()  # The worker thread of a checkpoint uses `timers.queues`.
        self._near_source = TimerSource(disk, store.log.segments, self._near_queues)
        self._opened_ms = opened_ms
        self._clock_from_ms = self._clock_until_ms = 0
        self._cold_until_ms = self._disk_until_ms = 0
        self._delivered: dict[tuple[str, str], list[tuple[int, int]]] = {}
        """The (due time, store time) pairs of single deliveries in the current call, by topic and cause."""

    def record_clock_jump(self, from_ms: int, until_ms: int) -> None:
        """Record a forward clock step.

        Late timers with a due time within the step are counted under `clock`.
        """
        self._clock_from_ms, self._clock_until_ms = from_ms, until_ms

    def deliver(self, now_ms: int, count_max: int) -> int:
        """Deliver due timers up to a total weight of about `count_max`. Return the total weight delivered.

        The weight of a timer is proportional to the CPU time of its delivery: 1 in a due run,
        `_ALONE_COUNTS` for a single timer or a timer from the wheel, and `_HOLDING_COUNTS` while any topic is
        held.
        """
        if self._timers.is_waiting_for_disk():
            self._disk_until_ms = now_ms
            return 0
        if self._partitions.is_waiting:
            self._cold_until_ms = now_ms
        until_ms = min(now_ms, self._partitions.near_until_ms - 1)
        left = count_max
        while left > 0 and (count := self._deliver_next(now_ms, until_ms, left)):
            left -= count
        if len(self._held) and left > 0:
            left -= self._release(now_ms, left)
        if self._delivered:
            since_ms, store_ms = np.array([time for times in self._delivered.values() for time in times]).T
            begins = np.cumsum([0, *map(len, self._delivered.values())])
            self._count_deliveries_by_lateness(
                [topic for topic, _ in self._delivered], begins, since_ms, store_ms - since_ms
            )
            self._delivered.clear()
        return count_max - left

    def next_due_ms(self, seen_ms: int) -> int | None:
        """Return the time at which to call `deliver` next. `seen_ms` is the time of the last call.

        Return None if no timer is pending or if delivery is paused until a flush.
        """
        if self._timers.is_waiting_for_disk():
            return None
        near_ms, head_ms = self._near.next_due_ms(), self._partitions.head_due_ms()
        # While an earlier timer at the head of the partitions is being read, the next timer of the wheel is
        # not delivered, and does not determine the time of the next call.
        if head_ms is not None and not self._partitions.is_head_ready and (near_ms or 0) >= head_ms:
            near_ms = None
        due_ms = earlier(near_ms, self._partitions.next_advance_ms(seen_ms))
        return earlier(due_ms, self._next_release_ms(seen_ms)) if len(self._held) else due_ms

    def _release(self, now_ms: int, count_max: int) -> int:
        """Deliver held timers of released topics at the release rate of each topic.

        Return the total weight of the delivered timers (see `deliver`).
        """
        left = count_max
        for topic, per_second in self._release_rates():
            allowed = self._paces.allowed(topic, per_second, now_ms, max(1, left // _ALONE_COUNTS))
            first = self._held.first(topic, allowed)
            # The clock may have been set back since the timers were held.
            due = first[: bisect_right(first, (now_ms, FOREVER_MS))]
            if len(due) < limits.TIMER_RUN_MIN or not self._deliver_run(due, now_ms, is_held=True):
                for due_ms, timer_offset in due:
                    self._deliver_near(due_ms, timer_offset, now_ms)
            self._paces.spend(topic, per_second, len(due))
            left -= len(due) * _ALONE_COUNTS
            if left <= 0:
                break
        return count_max - left

    def _next_release_ms(self, seen_ms: int) -> int | None:
        times = [
            max(self._paces.next_ms(topic, per_second, seen_ms), self._held.first(topic, 1)[0][0])
            for topic, per_second in self._release_rates()
        ]
        return min(times, default=None)

    def _release_rates(self) -> list[tuple[str, int]]:
        """Return (topic, timers per second) for each released topic that still has held timers."""
        topics = (topic for topic in self._held.counts if topic not in self._topics.held)
        return [(topic, self._topics.release_pace(topic)) for topic in topics]

    def _deliver_next(self, now_ms: int, until_ms: int, count_max: int) -> int:
        """Deliver the next timers of the wheel and of the due run. Return the total weight delivered.

        The two sources are sorted, and are merged by delivering the timers of each source up to the first
        timer of the other source. Within a millisecond, the timers of the due run are delivered first.
        """
        head_ms = self._partitions.head_due_ms()
        before_ms = until_ms if head_ms is None else min(until_ms, head_ms - 1)
        counts = _HOLDING_COUNTS if self._topics.held else _ALONE_COUNTS
        near = self._near.take_due(before_ms, max(1, count_max // counts))
        if len(near) < limits.TIMER_RUN_MIN or not self._deliver_run(near, now_ms):
            for sort_key in near:
                # The watermark is advanced before the append, because `apply` deletes only timers above the
                # watermark from the partitions. The watermark never decreases, although due times may be
                # below it after the clock has been set back.
                self._partitions.watermark = max(self._partitions.watermark, sort_key)
                self._deliver_near(*sort_key, now_ms)
        if near or head_ms is None or head_ms > until_ms:
            return len(near) * counts
        # Rows are delivered up to the next timer of the wheel, but at least through the millisecond of the
        # first row. Otherwise, neither source would progress if both had timers due in that millisecond.
        next_ms = self._near.next_due_ms()
        rows_until_ms = until_ms if next_ms is None else min(until_ms, max(next_ms - 1, head_ms))
        may_hold = bool(self._topics.held)
        rows, path = self._partitions.take_due(
            rows_until_ms, max(1, count_max // counts) if may_hold else count_max
        )
        self._deliver_rows(rows, path, now_ms)
        return len(rows) * (counts if may_hold or len(rows) < limits.TIMER_RUN_MIN else 1)

    def _deliver_near(self, due_ms: int, timer_offset: int, now_ms: int) -> None:
        """Deliver or hold a timer of the wheel, or deliver a held timer."""
        try:
            timer = self._timers.read_at(due_ms, timer_offset)
        except StoreDamaged:
            self._timers.register_damaged_timer(timer_offset, due_ms)
        else:
            self._deliver_single_timer(timer, timer_offset, now_ms)

    def _deliver_run(self, pairs: list[tuple[int, int]], now_ms: int, *, is_held: bool = False) -> bool:
        """Deliver a batch of timers, given as (due time, offset) pairs. Return whether all were processed.

        Deliver or hold timers of the wheel or, if `is_held` is true, deliver the held timers of a released
        topic. If a timer record cannot be read from the log, return False without delivering any timers. The
        caller must then deliver the timers one by one.
        """
        due_ms, offsets = np.array(pairs, np.int64).T
        in_log = np.argsort(offsets)
        try:
            found, ready = self._near_source.fetch(offsets[in_log].astype(np.uint64))
        except (StoreDamaged, OSError):
            return False
        if len(found) < len(pairs):
            return False
        by_place = np.argsort(in_log)
        rows = found[by_place]
        rows["due_ms"] = due_ms
        assert int(rows["timer_offset"][-1]) == pairs[-1][1], "a record with the due time of another timer"
        if not is_held:
            self._partitions.watermark = max(self._partitions.watermark, pairs[-1])
            if self._topics.held:
                to_hold = self._hold_mask(rows, self._near_queues)
                for place in np.flatnonzero(to_hold).tolist():
                    timer = to_timer_record(record.decode(ready[by_place[place]]))
                    self._timers.hold(timer, pairs[place][1], now_ms)
                rows, by_place = rows[~to_hold], by_place[~to_hold]
                if not len(rows):
                    return True
        content = bytearray(b"".join([ready[place] for place in by_place.tolist()]))
        self._append(content, rows, self._near_queues, now_ms, is_held=is_held)
        return True

    def _hold_mask(self, rows: Rows, queues: QueueTable) -> Any:
        """Return a Boolean array that is true for rows of held topics.

        The value is false for a row that does not contain the topic.
        """
        held = [code for code, (topic, _) in enumerate(queues.names) if topic in self._topics.held]
        return np.isin(rows["queue"], held)

    def _deliver_single_timer(self, timer: Record, timer_offset: int, now_ms: int) -> None:
        """Deliver a timer, or hold it if its topic is held."""
        if properties.value_of(timer.properties, property_names.REAL_TOPIC) in self._topics.held:
            self._timers.hold(timer, timer_offset, now_ms)
        else:
            self._append_ready_message(ready_record(timer, timer_offset), now_ms)

    def _append_ready_message(self, ready: Record, now_ms: int) -> None:
        """Append a ready message, and record the lateness of the timer.

        Lateness is measured from the due time of the timer, or from the time at which the timer was set if
        that is later. A timer that was held is counted separately, without its lateness.
        """
        if properties.value_of(ready.properties, property_names.HELD):
            self._store.append(ready, now_ms)
            self._timers.statistics.lateness_by_cause[ready.topic, LATE_BY_HOLD] += 1
            return
        since_ms = max(due_ms_of(ready), ready.store_ms)
        self._store.append(ready, now_ms)
        late = self._delivered.setdefault((ready.topic, self._lateness_cause(since_ms)), [])
        late.append((since_ms, ready.store_ms))

    def _deliver_rows(self, rows: Rows, path: str, now_ms: int) -> None:
        """Deliver the ready records of partition rows, and advance the watermark to the last row.

        The watermark also passes the rows of ended timers and the rows with damaged records.
        """
        if not len(rows):
            return
        last = rows[-1]
        sort_key = (int(last["due_ms"]), int(last["timer_offset"]))
        self._partitions.watermark = max(self._partitions.watermark, sort_key)
        waiting = self._waiting_rows(rows, path) if self._partitions.damage else rows
        if self._topics.held:
            to_hold = self._hold_mask(waiting, self._timers.queues)
            for row in waiting[to_hold]:
                self._deliver_row(row, path, now_ms)
            waiting = waiting[~to_hold]
        if len(waiting) < limits.TIMER_RUN_MIN:
            for row in waiting:
                self._deliver_row(row, path, now_ms)
        else:
            self._deliver_pending_rows(waiting, path, now_ms)

    def _deliver_row(self, row: Any, path: str, now_ms: int) -> None:
        """Deliver or hold a timer from a partition."""
        record_at, record_bytes = int(row["record_at"]), int(row["record_bytes"])
        stored = b"" if record_at == IN_LOG else self._timers.read_spans(path, [(record_at, record_bytes)])
        if not stored or not record.crc_holds(stored):
            self._deliver_damaged_timer(row, path, now_ms)
            return
        ready = record.decode(stored)
        if ready.topic in self._topics.held:
            self._timers.hold(to_timer_record(ready), int(row["timer_offset"]), now_ms)
        else:
            self._append_ready_message(ready, now_ms)

    def _deliver_pending_rows(self, rows: Rows, path: str, now_ms: int) -> None:
        is_bare = rows["record_at"] == np.uint64(IN_LOG)
        for row in rows[is_bare]:
            self._deliver_damaged_timer(row, path, now_ms)
        rows = rows[~is_bare]
        if not len(rows):
            return
        content = self._read(path, rows)
        ends = np.cumsum(rows["record_bytes"].astype(np.int64))
        sound = bulk.are_sound(content, ends - rows["record_bytes"], ends)
        if not sound.all():
            content, rows = self._separate_damaged_rows(content, rows, path, ends, sound, now_ms)
        self._append(content, rows, self._timers.queues, now_ms)

    def _append(
        self, content: bytearray, rows: Rows, queues: QueueTable, now_ms: int, *, is_held: bool = False
    ) -> None:
        """Append the records of `rows`, which are contiguous in `content`, and record the lateness.

        Lateness is measured from the due time of a timer, or from the time at which the timer was set if that
        is later. If `is_held` is true, all timers are held timers of one topic, and are counted separately.
        """
        record_bytes = rows["record_bytes"].astype(np.int64)
        assert int(record_bytes.sum()) == len(content), "a row without its record, or the other way round"
        copies = EncodedBatch(
            content,
            record_bytes,
            queues.names,
            rows["queue"].astype(np.int64),
            rows["tags_code"],
            _name_hashes(rows, content),
            self._due_ms(rows, content),
            rows["timer_offset"].astype(np.int64),
        )
        set_ms = bulk.store_times_ms(content, np.cumsum(record_bytes) - record_bytes)
        since_ms = np.maximum(copies.due_ms, set_ms)
        done = 0
        while done < len(copies):
            (run,) = self._store.append(copies.slice_rows(done, len(copies)), now_ms).facts
            assert isinstance(run, TimersDelivered), "copies tell another fact"
            if is_held:
                [(topic, _), *_] = run.copies.list_used_queues()
                self._timers.statistics.lateness_by_cause[topic, LATE_BY_HOLD] += len(run.copies)
            else:
                self._count_batch_by_lateness(run, since_ms[done : done + len(run.copies)])
            done += len(run.copies)
        assert done == len(copies), "a timer was delivered twice, or not at all"

    def _waiting_rows(self, rows: Rows, path: str) -> Rows:
        """Return the rows whose timers have not ended. Damage may have destroyed their tombstones.

        If the end of a timer is unreadable, the timer is registered for repair and its row is not returned.
        """
        ends, offsets = self._timers.ends, rows["timer_offset"].copy()
        with suppress(StoreDamaged):
            return rows[~ends.ended_mask(offsets)]
        is_waiting = np.zeros(len(rows), np.bool_)
        for place, (timer_offset, due_ms) in enumerate(
            zip(offsets.tolist(), rows["due_ms"].tolist(), strict=True)
        ):
            try:
                is_waiting[place] = ends.find_end(timer_offset) is None
            except StoreDamaged:
                self._timers.register_damaged_timer(timer_offset, due_ms, self._topic(rows[place]), path)
        return rows[is_waiting]

    def _topic(self, row: Any) -> str:
        """Return the topic of a row, or "" if the row does not contain the topic."""
        is_bare = int(row["record_at"]) == IN_LOG
        return "" if is_bare else self._timers.queues.names[int(row["queue"])][0]

    def _due_ms(self, rows: Rows, content: bytearray) -> Integers:
        """Return the due times of the rows, in milliseconds, as an array.

        The due time of a timer equals the sort time in the row, except for deviating timers. The due time of
        a deviating timer is read from the record.
        """
        due_ms = rows["due_ms"].astype(np.int64)
        if self._near.deviating:
            ends = np.cumsum(rows["record_bytes"].astype(np.int64))
            for place in np.flatnonzero(np.isin(rows["timer_offset"], list(self._near.deviating))).tolist():
                start = int(ends[place]) - int(rows["record_bytes"][place])
                due_ms[place] = due_ms_of(record.decode(bytes(content[start : ends[place]])))
        return due_ms

    def _count_batch_by_lateness(self, run: TimersDelivered, since_ms: Integers) -> None:
        codes, places, begins = run.copies.group_by_queue()
        topics = [run.copies.queues[code][0] for code in codes]
        since_ms = since_ms[places]
        self._count_deliveries_by_lateness(topics, begins, since_ms, run.store_ms - since_ms)

    def _read(self, path: str, rows: Rows) -> bytearray:
        """Return the records of the rows in one contiguous buffer. Neighboring records are read together.

        Rows are sorted by due time, but records are in the order in which the timers were set. The rows are
        therefore sorted by record position first. A new span begins where the gap between two records exceeds
        `_GAP_BYTES_MAX`. One call reads all spans, and `shifts` maps positions in the file to positions in
        the bytes read. The records are then copied in row order.
        """
        places, lengths = rows["record_at"].astype(np.int64), rows["record_bytes"].astype(np.int64)
        order = np.argsort(places)
        firsts, ends = places[order], (places + lengths)[order]
        begins = np.concatenate(([True], firsts[1:] - ends[:-1] > _GAP_BYTES_MAX))
        heads = firsts[begins]
        tails = np.concatenate((ends[:-1][begins[1:]], ends[-1:]))
        read = zip(heads.tolist(), (tails - heads).tolist(), strict=True)
        stored = self._timers.read_spans(path, list(read))  # Unreadable bytes are zeros, which fail the CRC.
        shifts = (np.cumsum(tails - heads) - tails)[np.cumsum(begins) - 1]
        starts = np.empty(len(rows), np.int64)
        starts[order] = firsts + shifts
        spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        return bytearray(b"".join([stored[start:end] for start, end in spans]))

    def _separate_damaged_rows(
        self, content: bytearray, rows: Rows, path: str, ends: Integers, sound: Any, now_ms: int
    ) -> tuple[bytearray, Rows]:
        for row in rows[~sound]:
            self._deliver_damaged_timer(row, path, now_ms)
        spans = zip((ends - rows["record_bytes"])[sound].tolist(), ends[sound].tolist(), strict=True)
        return bytearray(b"".join([content[start:end] for start, end in spans])), rows[sound]

    def _deliver_damaged_timer(self, row: Any, path: str, now_ms: int) -> None:
        """Deliver a timer from the log, because its record in the partition is damaged or missing.

        If the record cannot be read from the log, register the timer for a repair, which also searches older
        files (`services.broker.timers.timer_repair`).
        """
        timer_offset, due_ms = int(row["timer_offset"]), int(row["due_ms"])
        if int(row["record_at"]) != IN_LOG:
            self._store.damage.unreadable_records += 1
            self._timers.report_damaged_row(path, int(row["record_at"]))
        try:
            timer = self._timers.read_logged_record(timer_offset)
        except StoreDamaged:
            self._timers.register_damaged_timer(timer_offset, due_ms, self._topic(row), path)
        else:
            self._deliver_single_timer(timer, timer_offset, now_ms)

    def _count_deliveries_by_lateness(
        self, topics: list[str], begins: Integers, since_ms: Integers, lateness_ms: Integers
    ) -> None:
        """Count all deliveries by lateness, and late deliveries by cause.

        The rows `begins[n]:begins[n + 1]` belong to `topics[n]`.
        """
        statistics = self._timers.statistics
        statistics.count_lateness(topics, begins, lateness_ms)
        late = np.flatnonzero(lateness_ms >= LATE_MS_MIN)
        numbers, firsts, counts = np.unique(
            np.searchsorted(begins, late, "right") - 1, return_index=True, return_counts=True
        )
        first_ms = since_ms[late[firsts]].tolist()
        for number, since, count in zip(numbers.tolist(), first_ms, counts.tolist(), strict=True):
            statistics.lateness_by_cause[(topics[number], self._lateness_cause(since))] += count

    def _lateness_cause(self, due_ms: int) -> str:
        if due_ms < self._opened_ms:
            return "restart"
        if self._clock_from_ms <= due_ms < self._clock_until_ms:
            return "clock"
        if due_ms <= self._cold_until_ms:
            return "cold_read"
        return "disk" if due_ms <= self._disk_until_ms else "burst"


def _name_hashes(rows: Rows, content: bytearray) -> Any:
    """Return the name hashes of the rows, as an array of shape (rows, names)."""
    hashes = np.stack([rows[column] for column in NAME_COLUMNS], axis=1)
    many = np.flatnonzero(rows["spare"] == np.uint64(MANY_NAMES))
    if not len(many):
        return hashes
    ends = np.cumsum(rows["record_bytes"].astype(np.int64))
    named = []
    for place in many.tolist():
        start = int(ends[place]) - int(rows["record_bytes"][place])
        topic, names = names_of(record.decode(bytes(content[start : ends[place]])))
        named.append([hash_of(topic, name) for name in names])
    wider = np.zeros((len(rows), max(map(len, named))), np.uint64)
    wider[:, : hashes.shape[1]] = hashes
    for place, found in zip(many.tolist(), named, strict=True):
        wider[place] = 0
        wider[place, : len(found)] = found
    return wider
