"""Set, move, fire, and cancel delayed messages.

A timer is a log record, and is identified by its log offset. A single thread processes all changes, and
appends a record for each change. Each verb therefore has exactly one result. A timer ends only once, when the
record that ends it is appended and applied. The response to a verb is sent once the record of the verb is
durable.

    state and location                           duration                 memory per timer
    unarmed: `UnarmedTimers`                     until the flush          the record
    far: `timingwheel.partitions`                until seconds before     16 bytes, none after a checkpoint
                                                 the due time
    near: `NearTimers`, a wheel                  until the delivery       one entry
    held: `HeldTimers` (`holding`)               from the due time until  20 bytes
                                                 the release
    ended: `services.broker.timers.timer_ends`   `timer_history_ms`       none after a checkpoint

This module implements the verbs and applies their records. `services.broker.timers.timer_delivery` delivers
due timers. Only `Timers.apply` changes names, ends, and counts, and removes ended timers. `Timers.publish`
arms timers. The delivery positions of pending timers (sort keys and watermark) depend on the broker's clock
and are not derived from the log.

The *sort key* of a timer is (sort_ms, timer_offset), where `sort_ms` is nearly always the due time. Timers
are delivered in the order of their sort keys. The watermark is the last delivered sort key. After a restart,
delivery resumes after the watermark (`timingwheel.partitions`). If a timer is set after its due time, its
`sort_ms` must therefore not be earlier than the watermark time or the wheel time.

After the clock has been set back, the watermark is in the future. Until the clock reaches the watermark, new
timers are delivered at their due times, but their sort time on disk is the watermark time.
`NearTimers.deviating` contains the `sort_ms` of these timers. At startup, `Timers.restore_wheel` reads the
due times of these timers from their records. Another broker with the same log, or the same broker after a
restart, may choose different sort keys. Records therefore identify timers by due time, never by sort key.

Limitations: a timer that is set after its due time becomes due immediately. If the clock is set back before
the next tick, the timer is not delivered until the clock catches up. `pending_by_topic` contains only counts.
If the topic of an UNREADABLE timer is unknown, the count for "" is decremented. The total is then correct,
but the count for the actual topic is one too high.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from errno import EIO
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.facts.facts import Stamp, TimerEnded, TimerSet, timer_set
from commitlog.limits import CLOCK_BACK_MS_MIN
from commitlog.log.recovery import Damage
from commitlog.records import properties
from commitlog.records import record as records
from commitlog.records.bulk import Integers
from commitlog.records.kinds import FIRE, End, endings
from commitlog.records.record import Record
from services.broker.spine.encoded_batch import TimersDelivered
from services.broker.spine.errors import IllegalDeliveryTime, InvalidRecallHandle, TooManyTimers
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.statistics import Statistics
from services.broker.spine.store import Store
from services.broker.spine.values import Delivery, LostTimer, PendingTimer, TimerName, TimerVerdict, Verdict
from services.broker.timers import recall, timer_records
from services.broker.timers.holding import HeldTimers
from services.broker.timers.timer_ends import NamedTimer, TimerEnd, TimerEnds
from services.broker.timers.timer_files import CheckpointTimers, UncertainTimes
from services.broker.timers.timer_records import ReplacedTimer, due_ms_of, to_timer_record
from services.broker.timers.timer_source import QueueTable, TimerSource
from tidewheel import property_names
from tidewheel.durations import away, span_text
from timingwheel import sectors
from timingwheel.cascade import UnreadableTimer
from timingwheel.partition import IN_LOG
from timingwheel.partitions import Partitions
from timingwheel.wheel import Wheel

_NO_OFFSET: Final = 1 << 62


class DamagedTimer(NamedTuple):
    """A timer with a damaged record. `topic` and `path` are empty if unknown."""

    due_ms: int
    sort_ms: int
    topic: str
    path: str


_VERDICTS: Final = {
    End.DELIVERED: Verdict.TOO_LATE,
    End.FIRED: Verdict.TOO_LATE,
    End.UNREADABLE: Verdict.TOO_LATE,
    End.CANCELLED: Verdict.ALREADY,
    End.MOVED: Verdict.ALREADY,
    End.REPLACED: Verdict.ALREADY,
}


class Timers:
    """The delayed messages of a broker. The methods execute timer verbs and apply timer records."""

    def __init__(
        self, disk: Disk, store: Store, settings: BrokerSettings, statistics: Statistics, now_ms: int
    ) -> None:
        self._disk, self._store, self._settings = disk, store, settings
        self.statistics = statistics
        self.ends = TimerEnds(disk, settings.timer_history_ms, store)
        self.partitions = Partitions(disk, now_ms, found_gap=store.damage.report_timer_gap)
        self.queues = QueueTable()
        self.source = TimerSource(disk, store.log.segments, self.queues)
        self.near = NearTimers()
        self.held = HeldTimers()
        self.pending_by_topic: Counter[str] = Counter()
        self.lost: deque[LostTimer] = deque()
        """The timers that most recently ended as UNREADABLE, oldest first."""
        self.in_doubt: dict[int, DamagedTimer] = {}
        """The timers with damaged records that have not been repaired yet, by offset.

        The watermark may have passed these timers, which may therefore be listed only in `in_doubt`.
        Snapshots contain this table.
        """
        self._unarmed = UnarmedTimers()
        self.gaps: list[Damage] = []
        """The damaged ranges of the log. The list is empty after the replay at startup.

        A timer whose record is in a damaged range is not counted as pending, and its end does not decrement
        the count.
        """

    @property
    def pending_count(self) -> int:
        """The total number of pending delayed messages."""
        return self.pending_by_topic.total()

    def is_waiting_for_disk(self) -> bool:
        """Return whether delivery is paused because of unflushed bytes."""
        return self._store.has_flush_backlog

    # Methods for setting timers.

    def check_room(self, topic: str) -> None:
        """Raise `TooManyTimers` if a topic has reached the maximum number of pending timers."""
        waiting_count = self.pending_by_topic[topic]
        if waiting_count >= self._settings.timers_per_topic_max:
            raise TooManyTimers(
                f"{waiting_count} wait for {topic!r}, which is its limit. Cancel some "
                "(tidewheel timer cancel --all), or raise --timers-per-topic."
            )

    def find_pending_by_name(self, name: TimerName, now_ms: int) -> NamedTimer | None:
        """Return the pending timer with the given name, or None."""
        found = self.ends.find_by_name(name)
        return found if found is not None and self.is_pending(found, now_ms) else None

    def is_pending(self, found: NamedTimer, now_ms: int) -> bool:
        """Return whether a timer that was found by name is pending."""
        return not self.is_forgotten(found, now_ms) and self.ends.find_end(found.timer_offset) is None

    def is_forgotten(self, found: NamedTimer, now_ms: int) -> bool:
        """Return whether a timer may have ended before the start of the retained history.

        A held timer is never forgotten.
        """
        return self.ends.is_forgotten(found.known_ms, now_ms) and found.timer_offset not in self.held

    def find_timer(self, name: TimerName) -> NamedTimer | None:
        """Return the newest timer with the given name, pending or ended, or None."""
        return self.ends.find_by_name(name)

    def queue_offset(self, named: NamedTimer) -> int:
        """Return the offset of a timer record in the timer queue, or 0 if unknown."""
        offset = named.timer_offset
        if offset not in self._unarmed and offset >= self._store.log.durable_offset:
            return 0  # The timer ended before its record became durable.
        try:
            return self.read_record(named).queue_offset
        except StoreDamaged:
            return 0

    def mark_replaced(self, timer: Record, now_ms: int) -> None:
        """Mark a timer record as the replacement for the pending timer with the same key, if any.

        The caller must call `VerbExecutor.execute` before this method, and append the record afterwards. If
        the verb in the record cancels the pending timer, that timer is not marked as replaced, because a
        timer can end only once.
        """
        topic = properties.value_of(timer.properties, property_names.REAL_TOPIC)
        key = properties.value_of(timer.properties, property_names.TIMER_KEY)
        found = self.find_pending_by_name(TimerName(topic, key=key), now_ms) if key else None
        cancelled = [one.timer_offset for one in endings(timer) if one.end is End.CANCELLED]
        is_over = found is None or found.timer_offset in cancelled
        replaced = None if found is None or is_over else ReplacedTimer(found.timer_offset, found.due_ms)
        timer.properties = timer_records.with_replaced(timer.properties, replaced)

    # Methods for applying records.

    def apply(self, fact: TimerEnded | TimerSet | TimersDelivered, stamp: Stamp) -> None:
        """Apply a fact that sets a timer, ends a timer, or ends the timers of a delivered batch."""
        match fact:
            case TimerSet():
                self.ends.add_names(fact, stamp.offset, stamp.store_ms)
                self._unarmed.add(stamp.offset, stamp.stored)
                self.pending_by_topic[fact.topic] += 1
            case TimerEnded():
                self._end(fact, stamp.store_ms, stamp.offset)
            case TimersDelivered():
                self._apply_delivered(fact)

    def _apply_delivered(self, run: TimersDelivered) -> None:
        copies, offsets = run.copies, run.physical_offsets
        self.ends.add_delivered_ends(copies.ended, copies.due_ms, offsets, run.store_ms)
        for timer_offset in copies.ended.tolist() if self.in_doubt else ():
            self.in_doubt.pop(timer_offset, None)
        for code, count in zip(*np.unique(copies.queue, return_counts=True), strict=True):
            self.pending_by_topic[copies.queues[code][0]] -= int(count)
        # Nearly all timers of a run are delivered in sort order and are at or below the watermark. Only the
        # few other timers (`_possibly_pending_mask`) are removed individually, in a Python loop.
        waiting = self._possibly_pending_mask(copies.ended, copies.due_ms)
        if len(self.held):
            waiting &= ~np.fromiter(map(self.held.remove, copies.ended.tolist()), np.bool_)
        for place in np.flatnonzero(waiting).tolist():
            self._remove_timer(int(copies.ended[place]), int(copies.due_ms[place]))

    def publish(self, durable: Sequence[tuple[TimerSet, Stamp]]) -> None:
        """Arm the timers of durable records unless they have ended."""
        free_ms, near_until_ms = self.partitions.free_ms, self.partitions.near_until_ms
        sort_keys = []
        for fact, stamp in durable:
            timer_offset, due_ms = stamp.offset, fact.due_ms
            if not self._unarmed.remove(timer_offset):
                continue
            if fact.is_held:
                self.held.add(fact.topic, due_ms, timer_offset)
            else:
                sort_ms = self.near.assign_sort_time(timer_offset, due_ms, free_ms)
                sort_keys.append((sort_ms, timer_offset))
                # The wheel uses due times, not sort times. After the clock has been set back, a timer is
                # therefore delivered at its due time, before the clock reaches the watermark.
                if sort_ms < near_until_ms:
                    self.near.schedule(timer_offset, due_ms)
        self.partitions.put(sort_keys)

    # Timer verbs.

    def recall(self, topic: str, handle: str, now_ms: int) -> TimerVerdict:
        """Cancel the pending delayed message identified by a recall handle, and return the verdict.

        Raise `InvalidRecallHandle` if the handle is malformed or belongs to another topic.
        """
        wanted = recall.decode(handle)
        if wanted.topic != topic:
            raise InvalidRecallHandle(f"It is for topic {wanted.topic!r}, not {topic!r}.")
        verdict = self.cancel(TimerName(topic, wanted.message_id), "", now_ms)
        if verdict.verdict is Verdict.NEVER_SET and self.ends.is_forgotten(wanted.due_ms, now_ms):
            return replace(verdict, verdict=Verdict.FORGOTTEN)
        return verdict

    def cancel(self, name: TimerName, reason: str, now_ms: int) -> TimerVerdict:
        """Cancel the pending timer with the given name, and return the verdict."""
        found = self._pending_or_verdict(name, now_ms)
        if isinstance(found, TimerVerdict):
            return found
        message_id = name.message_id or self._message_id(found)
        new = timer_records.cancel_record(found.timer_offset, found.due_ms, name.topic, message_id, reason)
        return self._append_verb(Verdict.CANCELLED, message_id, new, found.due_ms, now_ms)

    def move(self, name: TimerName, due_ms: int, now_ms: int, *, reason: str = "") -> TimerVerdict:
        """Move a pending timer to a new due time, and return the verdict.

        `due_ms` is in milliseconds since the Unix epoch. Raise `IllegalDeliveryTime` if the due time is out
        of range.
        """
        if not 0 <= due_ms <= now_ms + self._settings.delay_ms_max:
            raise IllegalDeliveryTime(
                f"A timer can be moved to at most {span_text(self._settings.delay_ms_max)} from now, and not "
                f"before 1970. The time asked for is {away(due_ms - now_ms)}."
            )
        return self.apply_accepted_move(name, due_ms, now_ms, reason=reason)

    def apply_accepted_move(
        self, name: TimerName, due_ms: int, now_ms: int, *, reason: str = ""
    ) -> TimerVerdict:
        """Move a pending timer to a due time that was checked when the verb was accepted.

        Return the verdict. The timer keeps only the names that no other timer uses. If the timer is overdue
        by more than the retained history, another timer may use the same key.
        """
        found = self._pending_or_verdict(name, now_ms)
        if isinstance(found, TimerVerdict):
            return found
        timer = self.read_record(found)
        new = timer_records.moved_record(timer, found.timer_offset, found.due_ms, due_ms, reason)
        self._restrict_names(new, timer, found.timer_offset, now_ms)
        message_id = properties.value_of(timer.properties, property_names.MESSAGE_ID)
        verdict = self._append_verb(Verdict.MOVED, message_id, new, found.due_ms, now_ms)
        return replace(verdict, ended_ms=due_ms)

    def fire(self, name: TimerName, now_ms: int, *, reason: str = "") -> TimerVerdict:
        """Deliver a pending timer immediately, and return the verdict."""
        found = self._pending_or_verdict(name, now_ms)
        if isinstance(found, TimerVerdict):
            return found
        timer = self.read_record(found)
        new = timer_records.delivered_record(timer, found.timer_offset, FIRE, reason)
        message_id = properties.value_of(timer.properties, property_names.MESSAGE_ID)
        return self._append_verb(Verdict.FIRED, message_id, new, found.due_ms, now_ms)

    def hold(self, timer: Record, timer_offset: int, now_ms: int) -> None:
        """Replace a due timer of a held topic with a held timer.

        The new timer keeps only the names that no other timer uses, as in `apply_accepted_move`.
        """
        new = timer_records.held_record(timer, timer_offset)
        self._restrict_names(new, timer, timer_offset, now_ms)
        self._store.append(new, now_ms)

    def rebuild_timer(self, timer: Record, timer_offset: int, path: str, now_ms: int) -> None:
        """Replace a timer in the damaged file `path` with a rebuilt timer.

        The new timer has only the names that no other timer uses. If the old timer is overdue by more than
        the retained history, a newer timer may use the same key, and keeps the key.
        """
        names = self._retained_names(timer, timer_offset, now_ms)
        self._store.append(timer_records.rebuilt_record(timer, timer_offset, names, path), now_ms)

    def end_unreadable_timer(self, topic: str, timer_offset: int, due_ms: int, now_ms: int) -> None:
        """End a timer as UNREADABLE, because its record is lost. `topic` is empty if unknown."""
        self.statistics.timers_unreadable += 1
        self._store.append(timer_records.unreadable_record(timer_offset, due_ms, topic), now_ms)

    def register_damaged_timer(self, timer_offset: int, due_ms: int, topic: str = "", path: str = "") -> None:
        """Register a timer with a damaged record for repair.

        `due_ms` is the due time or the sort time of the timer. `path` is the timer file, or "".
        """
        self.held.remove(timer_offset)
        sort_ms = self.near.sort_ms(timer_offset, due_ms)
        self.in_doubt.setdefault(timer_offset, DamagedTimer(due_ms, sort_ms, topic, path))

    def _register_copied_damage(self, one: UnreadableTimer) -> None:
        topic = "" if one.queue < 0 else self.queues.names[one.queue][0]
        self.register_damaged_timer(one.timer_offset, one.due_ms, topic, one.path)

    def has_recorded_end(self, timer_offset: int) -> bool:
        """Return whether the end of a timer is stored in the index of ends.

        If the index is unreadable, report the damage and return False.
        """
        with suppress(StoreDamaged):
            return self.ends.find_end(timer_offset) is not None
        return False

    def read_logged_record(self, timer_offset: int) -> Record:
        """Return a timer record from the log.

        Raise `StoreDamaged` if the record is damaged or the read fails with EIO. Raise OSError on any other
        disk error.
        """
        with suppress(OSError):  # The unreadable bytes may be after the end of the record.
            return self._store.read(timer_offset)
        try:
            return self._store.read(timer_offset, is_alone=True)
        except OSError as error:
            if error.errno != EIO:
                raise
            path = self._store.damage.segment_path(timer_offset)
            unread = StoreDamaged(
                f"The disk cannot read the record at log offset {timer_offset} in {path} (EIO): "
                "look at the kernel's log, and replace the disk."
            )
            self._store.damage.report_record(timer_offset, unread)
            raise unread from error

    def get_timer(self, name: TimerName, now_ms: int) -> PendingTimer | TimerVerdict:
        """Return the pending timer with the given name, or a verdict if there is no such timer.

        Raise `StoreDamaged` if the timer record or an index is unreadable.
        """
        found = self._pending_or_verdict(name, now_ms, is_verb=False)
        return found if isinstance(found, TimerVerdict) else pending_timer(self.read_record(found))

    def find_verdict(self, timer: Delivery, now_ms: int) -> TimerVerdict | None:
        """Return the verdict on the timer in a record, or None if the timer is pending."""
        record = timer.record
        found = NamedTimer(record.physical_offset, due_ms_of(record), record.store_ms)
        return self._verdict_of(found, "", now_ms)

    def message_id_of_key(self, topic: str, key: str) -> str:
        """Return the message id of the newest timer with the given timer key.

        Return "" if no timer has the key, or if the record of the timer is unreadable.
        """
        found = self.ends.find_by_name(TimerName(topic, key=key))
        return "" if found is None else self._message_id(found)

    def read_record(self, named: NamedTimer) -> Record:
        """Return the record of a pending timer. Raise `StoreDamaged` if the record is unreadable."""
        return self.read_at(named.due_ms, named.timer_offset)

    def read_at(self, due_ms: int, timer_offset: int) -> Record:
        """Return the timer record at a given offset, from memory, the log, or a partition.

        Raise `StoreDamaged` if no readable copy of the record is found.
        """
        if (unarmed := self._unarmed.find_record(timer_offset)) is not None:
            return unarmed  # Only durable records can be read from the log.
        with suppress(StoreDamaged):
            return self.read_logged_record(timer_offset)
        found = self.partitions.find(self.near.sort_ms(timer_offset, due_ms), timer_offset)
        if found is None or int(found[1]["record_at"][0]) == IN_LOG:
            raise self._missing_record_error(timer_offset, due_ms)
        path, row = found
        return self.read_row(path, int(row["record_at"][0]), int(row["record_bytes"][0]))

    def _missing_record_error(self, timer_offset: int, due_ms: int) -> StoreDamaged:
        damaged = ", ".join(sorted({gap.path for gap in self.partitions.damage}))
        hint = (
            f" Damaged are {damaged}: what they held is being rebuilt from what is left." if damaged else ""
        )
        return StoreDamaged(f"Timer {timer_offset} is in no partition and no log.{hint}")

    def read_row(self, path: str, position: int, record_bytes: int) -> Record:
        """Return a timer record from a partition. Raise `StoreDamaged` if the record is damaged."""
        stored = self.read_spans(path, [(position, record_bytes)])
        if not records.is_sound(stored, may_lack_crc=False):
            raise self.report_damaged_row(path, position)
        return to_timer_record(records.decode(stored))

    def read_spans(self, path: str, spans: list[tuple[int, int]]) -> bytes:
        """Return the bytes of the given spans (position, length) of a partition, padded with zeros.

        Unreadable bytes (EIO) are reported as damage and returned as zeros. Raise OSError on any other disk
        error.
        """
        unread: list[sectors.Extent] = []
        stored = sectors.read_many(self._disk, path, spans, unread)
        for extent in unread:
            self._store.damage.report_file("partition", path, sectors.sentence(path, *extent))
        return stored

    def report_damaged_row(self, path: str, position: int) -> StoreDamaged:
        """Report a damaged record in a partition, and return the exception to raise."""
        what = f"The timer at byte {position} of {path} does not match its CRC."
        self._store.damage.report_file("partition", path, what)
        return StoreDamaged(what)

    def spill(self) -> None:
        """Write the names and ends that exceed the memory limit during log replay."""
        # The watermark also passes damaged files, but a repair requires the names and ends of the timers in
        # damaged files.
        undone_ms = min(self.partitions.undone_ms, self.partitions.watermark[0])
        self.ends.spill(min(self._store.last_store_ms, undone_ms, *self._held_and_doubtful_times_ms()))

    # Methods for snapshots.

    def freeze(self) -> Any:
        """Return the state for a snapshot, without the partition and end files."""
        return {
            "pending": {topic: count for topic, count in self.pending_by_topic.items() if count},
            "deviating": self.near.freeze(),
            "held": self.held.freeze(),
            "lost": [list(one) for one in self.lost],
            "in_doubt": [[timer_offset, *one] for timer_offset, one in self.in_doubt.items()],
        }

    def thaw(self, frozen: Any) -> None:
        """Restore the state from a snapshot."""
        self.pending_by_topic = Counter(frozen["pending"])
        self.near.thaw(frozen["deviating"])
        self.held.thaw(frozen.get("held", ()))
        self.lost.extend(LostTimer(*fields) for fields in frozen["lost"])
        self.in_doubt = {offset: DamagedTimer(*fields) for offset, *fields in frozen["in_doubt"]}

    def to_write(self, now_ms: int, doubt: UncertainTimes) -> CheckpointTimers:
        """Return the partitions, names, and ends that a checkpoint must write.

        The checkpoint keeps the files that cover a time in `doubt`.
        """
        # The history is measured from the due time of the earliest pending timer, not from the clock. A timer
        # that is late by more than the length of the history must keep its names and count as pending.
        near_ms = self.near.next_due_ms()
        undone_ms = min(self.partitions.undone_ms, now_ms if near_ms is None else min(now_ms, near_ms))
        ends = self.ends.to_write(
            min(self._store.last_store_ms, undone_ms, *self._held_and_doubtful_times_ms())
        )
        self.partitions.forget_before(self.ends.forgotten_ms)
        partitions = self.partitions.to_write(now_ms)
        return CheckpointTimers(partitions, ends, self.source, self.queues, doubt)

    def complete_checkpoint(self, done: CheckpointTimers) -> None:
        """Use the files of a durable checkpoint, and register timers with damaged records for repair."""
        self.partitions.written(done.partitions)
        self.ends.complete_checkpoint(done.ends)
        # Timers that entered the wheel or ended during the checkpoint require no repair.
        for one in done.partitions.unreadable:
            if one.timer_offset not in self.near and not self.has_recorded_end(one.timer_offset):
                with suppress(StoreDamaged):  # The read itself reports the damage.
                    self.read_logged_record(one.timer_offset)
                self._register_copied_damage(one)

    def abandon_checkpoint(self, done: CheckpointTimers) -> None:
        """Restore the state after a failed checkpoint."""
        self.partitions.failed(done.partitions)
        self.ends.abandon_checkpoint(done.ends)

    def adopt_files(self, frozen: Any, others: list[Any], now_ms: int) -> list[str]:
        """Use the files that a snapshot lists, and return descriptions of any damage.

        Keep the runs that other snapshots (`others`) list.
        """
        self.queues.thaw(frozen["queues"])
        self.partitions.adopt(frozen["partitions"], now_ms)
        for fields in (frozen["partitions"] or {"unreadable": ()})["unreadable"]:
            self._register_copied_damage(UnreadableTimer(*fields))
        return self.ends.adopt_files(frozen["ends"], [other["ends"] for other in others])

    def restore_wheel(self) -> None:
        """Add the deviating timers to the wheel at startup.

        Otherwise, a deviating timer would be delivered at its sort time, which is the watermark time and may
        be an hour in the future. Raise OSError if the disk fails.
        """
        for timer_offset, sort_ms in self.near.deviating.items():
            if timer_offset in self.near:
                continue
            with suppress(StoreDamaged):  # A damaged timer is registered for repair at its sort time.
                self.near.restore(timer_offset, due_ms_of(self.read_at(sort_ms, timer_offset)))

    def delete_files(self) -> None:
        """Delete all timer files. Without a snapshot, a replay of the whole log rebuilds them."""
        self.partitions.drop(self._disk)
        self.ends.delete_files()

    def _end(self, ending: TimerEnded, store_ms: int, ended_offset: int) -> None:
        """Store the end of a timer, and remove the timer so that it cannot end again."""
        timer_offset, end, due_ms, topic = ending
        self.in_doubt.pop(timer_offset, None)
        self.ends.add_end(timer_offset, due_ms, TimerEnd(end, store_ms, ended_offset))
        if end is End.UNREADABLE:
            self.lost.append(LostTimer(timer_offset, topic, due_ms, store_ms))
            while len(self.lost) > self._store.applied.lost_timers_max:
                self.lost.popleft()
        if not any(gap.first_offset <= timer_offset < gap.end_offset for gap in self.gaps):
            self.pending_by_topic[topic] -= 1
            self._remove_timer(timer_offset, due_ms)

    def _held_and_doubtful_times_ms(self) -> list[int]:
        """Return the earliest due time of the held timers, and the sort times of the timers in doubt."""
        return [self.held.first_due_ms(), *(one.sort_ms for one in self.in_doubt.values())]

    def _remove_timer(self, timer_offset: int, due_ms: int) -> None:
        if not self._unarmed.remove(timer_offset) and not self.held.remove(timer_offset):
            self.partitions.delete(self.near.remove(timer_offset, due_ms), timer_offset)

    def _possibly_pending_mask(self, timer_offsets: Integers, due_ms: Integers) -> Any:
        """Return a Boolean array that is true for timers that may be in memory or in a partition.

        A timer that was delivered in sort order is at or below the watermark and need not be removed. The
        array is true for unarmed timers and deviating timers, to which the watermark does not apply.
        """
        watermark_ms, watermark_offset = self.partitions.watermark
        is_passed = (due_ms < watermark_ms) | ((due_ms == watermark_ms) & (timer_offsets <= watermark_offset))
        is_passed &= timer_offsets < self._unarmed.first_offset
        if self.near.deviating:
            is_passed &= ~np.isin(timer_offsets, list(self.near.deviating))
        return ~is_passed

    def _restrict_names(self, new: Record, timer: Record, timer_offset: int, now_ms: int) -> None:
        """Restrict the names of a replacement to the names that no other timer uses."""
        names = self._retained_names(timer, timer_offset, now_ms)
        if names != timer_records.names_of(timer_set(new.properties)):
            timer_records.restrict_names(new, names)

    def _retained_names(self, timer: Record, timer_offset: int, now_ms: int) -> list[TimerName]:
        """Return the names of a timer that its replacement keeps."""
        store_ms = max(now_ms, self._store.last_store_ms)
        names = timer_records.names_of(timer_set(timer.properties))
        return [name for name in names if self._is_free(name, timer_offset, store_ms)]

    def _is_free(self, name: TimerName, old_offset: int, store_ms: int) -> bool:
        """Return whether the replacement for the timer at `old_offset` may keep a name.

        The replacement may keep the name unless another timer that is not forgotten uses it.
        """
        with suppress(StoreDamaged):
            found = self.ends.find_by_name(name)
            if found is not None and found.timer_offset != old_offset:
                return self.is_forgotten(found, store_ms)
        return True

    def _pending_or_verdict(
        self, name: TimerName, now_ms: int, *, is_verb: bool = True
    ) -> NamedTimer | TimerVerdict:
        """Return the pending timer with the given name, or a verdict if there is no such timer.

        The verdict is counted if `is_verb` is true.
        """
        found = self.ends.find_by_name(name)
        if found is None:
            verdict: TimerVerdict | None = TimerVerdict(Verdict.NEVER_SET, name.message_id, 0, -1, 0)
        else:
            verdict = self._verdict_of(found, name.message_id, now_ms)
            if verdict is None:
                return found
        assert verdict is not None, "a timer neither waits nor has a verdict"
        return self._count_verdict(verdict) if is_verb else verdict

    def _verdict_of(self, found: NamedTimer, message_id: str, now_ms: int) -> TimerVerdict | None:
        """Return the verdict on an ended or forgotten timer, or None if the timer is pending."""
        ended = self.ends.find_end(found.timer_offset)
        # A known end is reported for the full length of the history, even if the timer ended late, for
        # example after a long hold.
        if self.is_forgotten(found, now_ms) and (
            ended is None or self.ends.is_forgotten(ended.ended_ms, now_ms)
        ):
            return TimerVerdict(Verdict.FORGOTTEN, message_id, 0, -1, 0)
        if ended is None:
            return None
        return TimerVerdict(
            _VERDICTS[ended.end],
            message_id,
            ended.ended_ms,
            ended.ended_offset,
            ended.ended_offset + 1,
            found.due_ms,
            ended.end,
        )

    def _append_verb(
        self, verdict: Verdict, message_id: str, new: Record, due_ms: int, now_ms: int
    ) -> TimerVerdict:
        """Append the record of a verb, and return the verdict."""
        self._store.append(new, now_ms)
        offset = new.physical_offset
        return self._count_verdict(
            TimerVerdict(verdict, message_id, new.store_ms, offset, offset + 1, due_ms)
        )

    def _count_verdict(self, verdict: TimerVerdict) -> TimerVerdict:
        self.statistics.verdicts[verdict.verdict.value] += 1
        return verdict

    def _message_id(self, named: NamedTimer) -> str:
        try:
            return properties.value_of(self.read_record(named).properties, property_names.MESSAGE_ID)
        except StoreDamaged:
            return ""


def pending_timer(timer: Record) -> PendingTimer:
    """Return the `PendingTimer` for a timer record."""
    message, is_held = properties.to_message(timer), timer_records.is_held(timer)
    return PendingTimer(
        message_id=message.message_id,
        topic=message.topic,
        keys=message.keys,
        due_ms=due_ms_of(timer),
        timer_offset=timer.physical_offset,
        timer_key=message.properties.get(property_names.TIMER_KEY, ""),
        tag=message.tag,
        stored_ms=timer.store_ms,
        message=message,
        move_reason=None if is_held else timer_records.read_move_reason(properties.of_record(timer)),
        is_held=is_held,
    )


class NearTimers:
    """The timing wheel for the timers that are due soon, keyed by offset."""

    def __init__(self) -> None:
        self._wheel = Wheel(0)
        self._seen_ms = 0
        self.deviating: dict[int, int] = {}
        """The `sort_ms` of each deviating timer, by offset.

        The sort time of a deviating timer differs from its due time.
        """
        self._deviating_due_ms: dict[int, int] = {}
        """The due times of the deviating timers, by offset.

        A timer whose record is unreadable at startup has no entry.
        """

    def __contains__(self, timer_offset: int) -> bool:
        return timer_offset in self._wheel

    def assign_sort_time(self, timer_offset: int, due_ms: int, free_ms: int) -> int:
        """Return the `sort_ms` of a new timer: the latest of the due time, `free_ms`, and the wheel time.

        Add the timer to `deviating` if its `sort_ms` differs from the due time.
        """
        sort_ms = max(due_ms, free_ms, self._wheel.now_ms)
        if sort_ms != due_ms:
            self.deviating[timer_offset] = sort_ms
            self._deviating_due_ms[timer_offset] = due_ms
        return sort_ms

    def restore(self, timer_offset: int, due_ms: int) -> None:
        """Schedule a deviating timer at startup."""
        self._deviating_due_ms[timer_offset] = due_ms
        self.schedule(timer_offset, due_ms)

    def deviating_timers_in_window(self, from_ms: int, until_ms: int) -> list[tuple[int, int]]:
        """Return the sorted (due time, offset) pairs of the deviating timers that are due in a window.

        If the due time is unknown, the sort time is used.
        """
        known = self._deviating_due_ms
        due = ((known.get(offset, sort_ms), offset) for offset, sort_ms in self.deviating.items())
        return sorted(pair for pair in due if from_ms <= pair[0] < until_ms)

    def sort_ms(self, timer_offset: int, due_ms: int) -> int:
        """Return the `sort_ms` of a pending timer with the due time `due_ms`."""
        return self.deviating.get(timer_offset, due_ms)

    def schedule(self, timer_offset: int, due_ms: int) -> None:
        """Schedule a timer for its due time, or immediately if the due time has passed."""
        self._wheel.schedule(timer_offset, due_ms)

    def remove(self, timer_offset: int, due_ms: int) -> int:
        """Remove a timer from the wheel, if present, and from `deviating`. Return its `sort_ms`."""
        self._wheel.cancel(timer_offset)
        self._deviating_due_ms.pop(timer_offset, None)
        return self.deviating.pop(timer_offset, due_ms)

    def take_due(self, until_ms: int, count_max: int) -> list[tuple[int, int]]:
        """Remove up to `count_max` timers that are due at or before `until_ms`.

        Return the removed timers as sorted (due time, offset) pairs.
        """
        return self._wheel.advance(until_ms, count_max)

    def next_due_ms(self) -> int | None:
        """Return a lower bound on the due times in the wheel, or None if the wheel is empty."""
        return self._wheel.next_due_ms()

    def set_time(self, now_ms: int) -> int:
        """Set the current time. Return the number of milliseconds by which the clock was set back, or 0."""
        back_ms = self._seen_ms - now_ms
        if back_ms > CLOCK_BACK_MS_MIN:
            # A wheel immediately returns any timer that is due before the current time of the wheel. Without
            # the rebase, a timer that is due between the clock time and the wheel time would be delivered
            # early.
            self._wheel = self._wheel.rebased(min(self._wheel.now_ms, now_ms))
            assert self._wheel.now_ms <= now_ms, "what is set now would be delivered early"
        self._seen_ms = now_ms
        return max(0, back_ms)

    def freeze(self) -> Any:
        """Return `deviating`, the only state stored in snapshots."""
        return list(self.deviating.items())

    def thaw(self, frozen: Any) -> None:
        """Restore the state from a snapshot."""
        self.deviating, self._deviating_due_ms = dict(frozen), {}


class UnarmedTimers:
    """Unflushed timer records by offset, in log order."""

    def __init__(self) -> None:
        self._records: dict[int, Record | bytes] = {}
        self._last_offset = -1

    @property
    def first_offset(self) -> int:
        """The lowest offset of an unarmed timer, or a value above all offsets if no timer is unarmed."""
        return next(iter(self._records), _NO_OFFSET)

    def __contains__(self, timer_offset: int) -> bool:
        return timer_offset in self._records

    def add(self, timer_offset: int, timer: Record | bytes) -> None:
        """Add an appended timer record, either decoded or encoded."""
        assert timer_offset > self._last_offset, "timers are applied in log order, each once"
        self._last_offset = timer_offset
        self._records[timer_offset] = timer

    def find_record(self, timer_offset: int) -> Record | None:
        """Return the record of an unarmed timer, or None if the timer has been armed or has ended."""
        timer = self._records.get(timer_offset)
        return records.decode(timer) if isinstance(timer, bytes) else timer

    def remove(self, timer_offset: int) -> bool:
        """Remove an ended or durable timer. Return whether the timer was unarmed."""
        return self._records.pop(timer_offset, None) is not None
