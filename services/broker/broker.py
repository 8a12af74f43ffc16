"""The broker core, a set of parts that share a single commit log.

Each client operation is a method of one part, and appends a record that describes a state change. The change
becomes visible when the record is durable: a message appears in its queue, a timer is armed, or a half
message can be committed or rolled back. At startup, recovery restores the state by replaying the records in
log order. The methods run one at a time, each to completion, and take the current time as an argument. Side
effects are returned as values (`services.broker.spine.values`), and the server performs them.

    operation --append--> `_apply`: parts change state --flush--> `_publish`: records become visible
    recovery, follower: the same records --> `_apply`, `_publish`

State outside the log, such as the set of ready messages, is rebuilt at startup. A state change that bypasses
the log is lost at the next restart. Only a test that restarts the broker detects such a bug.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol, get_args

from commitlog import layout, limits, store_format
from commitlog.assertions import require_assertions
from commitlog.disk.disk import Disk
from commitlog.facts.facts import (
    EpochBegun,
    Fact,
    HalfEnded,
    HalfStored,
    LogCut,
    OfGroup,
    OfHalf,
    OfRights,
    OfSchedule,
    OfTopic,
    Stamp,
    TimerEnded,
    TimerSet,
    facts_of,
)
from commitlog.log import imported
from commitlog.log.flush import Flush, Sync
from commitlog.log.log import CommitLog
from commitlog.log.recovery import Damage, FoundRecord, LogScan
from commitlog.log.retention import Retirement
from commitlog.log.sink import LogSink
from commitlog.records.message import MessageType
from commitlog.records.record import Record, decode
from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Snapshot
from consumequeue.dispatch import EntriesToWrite
from services.broker import derived
from services.broker.checkpoint import Checkpoint
from services.broker.groups.dead_letters import DeadLetters
from services.broker.groups.exhausted_messages import ExhaustedMessages
from services.broker.groups.group_views import GroupViews
from services.broker.groups.groups import Groups
from services.broker.groups.leases import Leases
from services.broker.groups.lite_receiving import LiteMessageReceiver
from services.broker.groups.lite_subscribing import LiteSubscribing
from services.broker.groups.lite_subscriptions import LiteSubscriptions
from services.broker.groups.lite_topics import LiteTopics
from services.broker.groups.message_leasing import MessageLeasing
from services.broker.groups.receiving import MessageReceiver
from services.broker.halves.half_views import HalfViews
from services.broker.halves.transactions import Transactions
from services.broker.housekeeping import Housekeeping
from services.broker.journal import Journal
from services.broker.schedules.schedules import Schedules
from services.broker.sending import MessageSender
from services.broker.spine.access import Access
from services.broker.spine.appended import AppendResult, to_append_result
from services.broker.spine.encoded_batch import TimersDelivered
from services.broker.spine.epoch import Epoch
from services.broker.spine.finding import MessageLookup
from services.broker.spine.lease_clock import LeaseClock
from services.broker.spine.reading import MessageReader
from services.broker.spine.scheduler import Purpose, Scheduler, earlier
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.statistics import Gauges, Statistics
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics, is_system
from services.broker.spine.values import (
    DamagedPart,
    Effect,
    LogWarning,
    RetireSegments,
    RunTimersJob,
    TimersJob,
    WakeReceivers,
    WakeUpKey,
)
from services.broker.start_damage import clip_to_cut, report_startup_damage
from services.broker.task_items import TaskItems
from services.broker.timers import timer_facts
from services.broker.timers.timer_delivery import TimerDelivery
from services.broker.timers.timer_files import TIMER_FILES
from services.broker.timers.timer_repair import CheckJob, RepairJob, TimerRepair
from services.broker.timers.timer_views import TimerViews
from services.broker.timers.timers import Timers
from services.broker.timers.verb_executor import VerbExecutor
from services.broker.topic_changes import TopicChanges
from services.broker.topic_moves import TopicMoves
from services.broker.topic_retention import TopicRetention
from timingwheel.due_run import ReadAhead

SPACE_AVAILABLE: Final = "there is room on the disk again: new messages are taken"
SHARED: Final = "shared"
"""The snapshot key for the state of the shared log."""


class Part(Protocol):
    """A part of the core whose state is included in snapshots."""

    def freeze(self) -> Any:
        """Return the state of the part as JSON-serializable values."""

    def thaw(self, frozen: Any) -> None:
        """Restore the state of the part from a value that `freeze` returned."""


class Broker:
    """A broker that serves an open store. Use `Broker.open` to create an instance.

    The client operations are methods of the parts of the broker.
    """

    def __init__(
        self, disk: Disk, log: CommitLog, settings: BrokerSettings, now_ms: int, shared: Part | None = None
    ) -> None:
        self._disk, self._log = disk, log
        self.statistics = Statistics()
        self.damaged: list[Damage] = []
        self.rebuilt_files: list[str] = []
        self.startup_warnings: list[str] = []
        """Warnings about small store files that were found damaged at startup, and about their repair.
        """
        self.lost: list[str] = []
        self.is_crowded = False
        """Whether the last tick delivered the maximum number of timers per tick."""
        self._is_refusing = False
        self._due_schedules: deque[int] = deque()
        self._last_tick_ms = now_ms
        self._checkpoint_offset = self.written_offset = log.first_offset
        """The log offsets of the newest checkpoint and of the newest checkpoint on disk.
        """
        self.shared_in_checkpoint: Any = None
        """The state of the shared log in the newest checkpoint on disk, or None if there is no shared log."""
        self._lease_clock = LeaseClock()
        self._scheduler = Scheduler(now_ms, self._lease_clock)
        self.store = Store(disk, log, settings.store_host, settings.tail_entries_max)
        self.damage = self.store.damage
        self.epoch = Epoch(self.store)
        self.access = Access(self.store)
        self.topics = Topics(self.store, settings)
        subscriptions = LiteSubscriptions(settings, self._lease_clock)
        leases = Leases(self._scheduler, self._lease_clock, subscriptions, now_ms)
        self.groups = Groups(self.store, settings, leases)
        self._create_storing_parts(settings, now_ms)
        self._create_delivering_parts(settings, subscriptions)
        self.journal = Journal(self.store, self._reading)
        self.task_items = TaskItems(self.store, self._reading)
        self.finding = MessageLookup(self.store, self.topics, self._reading)
        self._parts = self._parts_of_snapshot() | ({} if shared is None else {SHARED: shared})
        self._appliers, self._publishers = self._build_appliers(), self._build_publishers()
        self.store.apply_to_parts = self._apply
        self.store.close_open_records = self.groups.open_records.close

    def _create_storing_parts(self, settings: BrokerSettings, now_ms: int) -> None:
        """Create the parts that store messages, timers, half messages, and schedules."""
        store, statistics = self.store, self.statistics
        self.timers = Timers(self._disk, store, settings, statistics, now_ms)
        self.timer_repair = TimerRepair(store, self.timers)
        self._delivery = TimerDelivery(self._disk, store, self.topics, self.timers, now_ms)
        self.timer_views = TimerViews(self.timers)
        verb_executor = VerbExecutor(self.timers)
        self.transactions = Transactions(
            store, self._scheduler, self.topics, self.timers, verb_executor, settings, statistics
        )
        self.half_views = HalfViews(store, self.transactions)
        self.lite_topics = LiteTopics(store, self.topics, self.groups, settings)
        self.housekeeping = Housekeeping(
            self._disk, store, self._scheduler, self.groups, self.transactions, self.timers.held, settings
        )
        self._housekeeping_ms = settings.housekeeping_ms
        self.sending = MessageSender(
            store, self.topics, self.lite_topics, self.timers, verb_executor, self.transactions,
            self.housekeeping, settings, statistics,
        )  # fmt: skip
        self.schedules = Schedules(
            store, self._scheduler, self.topics, self.sending, self.housekeeping, settings
        )

    def _create_delivering_parts(self, settings: BrokerSettings, subscriptions: LiteSubscriptions) -> None:
        """Create the parts that deliver messages: leases, lite topics, and dead letters."""
        store, topics, groups = self.store, self.topics, self.groups
        leasing = MessageLeasing(store, groups, settings.broker_name)
        self._reading = reading = MessageReader(store)
        refuse_new = self.housekeeping.refuse_new
        self.dead_letters = DeadLetters(store, topics, groups, reading, self.statistics, refuse_new)
        self._exhausted_messages = ExhaustedMessages(store, groups, reading, self.dead_letters, subscriptions)
        lite_receiving = LiteMessageReceiver(
            store, groups, self.lite_topics, subscriptions, leasing, reading, self.dead_letters
        )
        self.receiving = MessageReceiver(
            store, topics, groups, leasing, lite_receiving, reading, self.dead_letters,
            self._exhausted_messages, settings, self.statistics,
        )  # fmt: skip
        self.lite = LiteSubscribing(topics, groups, self.lite_topics, subscriptions, self.receiving, reading)
        self.topic_retention = TopicRetention(store, topics, groups, reading, self.housekeeping)
        self.topic_changes = TopicChanges(
            store, topics, groups, self.dead_letters, self.timers, self.transactions, self.schedules,
            self.topic_retention,
        )  # fmt: skip
        self.topic_moves = TopicMoves(store, topics, groups, reading, self.housekeeping)
        self.group_views = GroupViews(store, topics, groups, reading, self._exhausted_messages, subscriptions)

    def _parts_of_snapshot(self) -> dict[str, Part]:
        """Return the parts whose state is included in snapshots, keyed by name."""
        return {
            "store": self.store,
            "topics": self.topics,
            "timers": self.timers,
            "transactions": self.transactions,
            "sending": self.transactions.receipts,
            "groups": self.groups,
            "schedules": self.schedules,
            "access": self.access,
            "epoch": self.epoch,
        }

    def _build_appliers(self) -> dict[type, Callable[[Any, Stamp], None]]:
        """Return the methods that apply the state changes in appended records, keyed by type."""
        return {
            TimerEnded: self.timers.apply,
            TimerSet: self._apply_set,
            **dict.fromkeys(get_args(OfHalf), self.transactions.apply),
            **dict.fromkeys(get_args(OfGroup), self.groups.apply),
            **dict.fromkeys(get_args(OfSchedule), self.schedules.apply),
            **dict.fromkeys(get_args(OfRights), self.access.apply),
            **dict.fromkeys(get_args(OfTopic), self.topics.apply),
            LogCut: self.housekeeping.apply,
            EpochBegun: self.epoch.apply,
            TimersDelivered: self._apply_delivered,
        }

    def _apply_set(self, fact: TimerSet, stamp: Stamp) -> None:
        """Apply a set timer, and infer the hold of its topic if the timer was held.

        The record of the hold itself may have been destroyed by damage.
        """
        if fact.proves_hold:
            self.topics.infer_hold(fact.topic, stamp.store_ms)
        self.timers.apply(fact, stamp)

    def _apply_delivered(self, run: TimersDelivered, stamp: Stamp) -> None:
        """Apply a batch of timer deliveries as if each delivery were applied separately."""
        self.store.reserve_offsets(run)
        for topic, queue_id in run.copies.list_used_queues():
            self.topics.infer_topic(topic, queue_id)
        self.timers.apply(run, stamp)

    def _build_publishers(self) -> dict[type, Callable[[Sequence[tuple[Any, Stamp]]], None]]:
        """Return the methods that publish the state changes in durable records, keyed by type."""
        return {
            **dict.fromkeys((HalfStored, HalfEnded), self.transactions.publish),
            LogCut: self.housekeeping.publish,
            TimerSet: self.timers.publish,
            TimersDelivered: self._publish_delivered,
        }

    def _publish_delivered(self, durable: Sequence[tuple[TimersDelivered, Stamp]]) -> None:
        for run, _ in durable:
            self.store.index_delivery_batch(run)

    @classmethod
    def open(
        cls, disk: Disk, settings: BrokerSettings, now_ms: int, acknowledged_offset: int | None = None
    ) -> Broker:
        """Recover the store on `disk`, and return a broker that is ready to serve requests.

        After a failed sync or flush, pass `acknowledged_offset`, the end offset of the acknowledged records.
        The log is then recovered up to this offset, and `Broker.damaged` lists the unreadable ranges below
        it. Raise a `StoreError` if the store cannot be recovered, or OSError if the disk fails.
        """
        broker = cls.recover(disk, settings, now_ms, acknowledged_offset)
        broker.begin(now_ms)
        return broker

    @classmethod
    def recover(
        cls,
        disk: Disk,
        settings: BrokerSettings,
        now_ms: int,
        acknowledged_offset: int | None = None,
        shared: Part | None = None,
        *,
        keeps_tail: bool = False,
    ) -> Broker:
        """Recover the store on `disk`, and return a broker that can follow a leader or start serving.

        Call `append_replicated` to follow a leader, or `begin` to start serving. Snapshots include the state
        of the `shared` part. If `keeps_tail` is true, bytes after the log end stay in the segment files, and
        the caller must clear them before the first append. Raise `AssertionsOff` if Python was started with
        `-O`.
        """
        require_assertions()
        found_format = store_format.open_format(disk, settings.segment_bytes)
        start = snapshot.newest(disk)
        unsound_snapshots = snapshot.unsound(disk)
        imported.check_start(disk, start)
        scan = LogScan(disk, found_format.segment_bytes, start.offset if start else 0, acknowledged_offset)
        snapshot.check_reach(start, scan.first_offset)
        log = CommitLog(
            disk, scan.segment_bytes, scan.first_offset, scan.end_offset, sync=settings.sync_flush
        )
        broker = cls(disk, log, settings, now_ms, shared)
        broker._thaw(start, scan, now_ms)
        # The timers share the damage list of the scan, because the list grows during the scan.
        broker.timers.gaps = scan.damaged
        for number, found in enumerate(scan):
            broker._replay(found, facts_of(found.record))
            if number % limits.REPLAYED_BETWEEN_SPILLS == 0:
                broker.store.keys.spill(log.first_offset)
                broker.store.dispatch.write()
                broker.timers.spill()
        broker.timers.gaps = []
        scan.keep_tail(log.epoch) if keeps_tail else scan.cut(log.epoch)
        log.resume(scan.end_offset)
        broker.timers.restore_wheel()
        broker.store.dispatch.write()
        broker.sending.deduplicator.recover(now_ms, follows=shared is not None)
        met, broker.damaged = broker.damaged, scan.damaged
        format_problem = found_format.problem and f"{layout.FORMAT}: {found_format.problem}"
        broker.startup_warnings = [
            what for what in (format_problem, scan.unsound) if what
        ] + unsound_snapshots
        may_begin_at = broker.store.may_begin_at
        # On a follower, the record of the latest cut may precede the two newest snapshots, in a part of the
        # log that recovery did not read.
        if shared is not None:
            may_begin_at = max(may_begin_at, min(snapshot.offsets(disk)[-2:], default=0))
        damaged = clip_to_cut([*met, *scan.damaged], broker.store.may_begin_at)
        report_startup_damage(disk, log, start, damaged, may_begin_at, broker.damage)
        assert broker._checkpoint_offset <= log.durable_offset, "the log ends before the snapshot it follows"
        return broker

    def begin(self, now_ms: int, leases_until_ms: int = 0) -> None:
        """Restore the recorded leases, and read the timers that are due soon.

        Call this method once, before any other operation. Each recorded lease is extended to
        `leases_until_ms` unless an earlier takeover has already extended it. On a new leader, the caller
        passes `leases_until_ms` and then calls `receiving.record_extended_leases`.
        """
        self._last_tick_ms = now_ms
        self._scheduler.rewind_wheels(now_ms)  # The clock may have been ahead during recovery.
        self.housekeeping.apply_log_start()
        self.receiving.resume(now_ms, leases_until_ms)
        self.lite_topics.build_indexes()
        self.sending.deduplicator.begin(now_ms)
        self.housekeeping.measure_space()
        self._read_ahead_now(now_ms)
        self.timer_repair.begin(now_ms)
        self._scheduler.schedule(Purpose.HOUSE, 0, now_ms)

    @property
    def segment_bytes(self) -> int:
        """Size of a log segment in bytes. The reserve segment has the same size."""
        return self._log.segment_bytes

    @property
    def durable_offset(self) -> int:
        """The end offset of the visible records in the log.

        With asynchronous flushes, visible records may not be on disk yet.
        """
        return self._log.durable_offset

    @property
    def end_offset(self) -> int:
        """The end offset of the appended records."""
        return self._log.end_offset

    @property
    def synced_offset(self) -> int:
        """The end offset of the synced part of the log."""
        return self._log.synced_offset

    def gauges(self) -> Gauges:
        """Return the current gauge values."""
        outcomes = self.transactions.outcomes
        return Gauges(
            pending_timers=self.timers.pending_count,
            pending_by_topic=dict(+self.timers.pending_by_topic),
            held_by_topic=dict(self.timers.held.counts),
            timers_bytes=self.timers.partitions.disk_bytes,
            open_halves=len(outcomes.open),
            expired_halves=len(outcomes.expired),
            oldest_half_ms=outcomes.oldest_ms(),
            topic_count=len(self.topics),
            log_first_offset=self._log.first_offset,
            log_end_offset=self._log.end_offset,
            durable_offset=self._log.durable_offset,
            written_offset=self.written_offset,
            disk_used=self.housekeeping.disk_used,
            disk_free_bytes=self.housekeeping.free_bytes,
            is_full=self.housekeeping.is_full,
            damage_count=len(self.damage),
            unreadable_timers=len(self.timers.lost),
        )

    def tick(self, now_ms: int) -> list[Effect]:
        """Process a limited amount of the work that is due at `now_ms`.

        The next call is due at the time that `next_due_ms` returns. Expired leases are processed before dead
        letters, because an expired lease can end the last delivery attempt of a message.
        """
        self._last_tick_ms = now_ms
        woken: dict[str, None] = {}
        self.store.dispatch.process_untrusted()
        others = self._tick_timers(now_ms) + self._continue_retention(now_ms)
        for purpose, subject in self._scheduler.advance(now_ms, limits.SCHEDULER_PER_TICK_MAX):
            if purpose is Purpose.LEASE:
                woken[self.receiving.expire_lease(subject, now_ms)] = None
            elif purpose is Purpose.SCHEDULE:
                self._due_schedules.append(subject)
            elif purpose is Purpose.HOUSE:
                others += self._run_housekeeping(now_ms)
            elif check := self.transactions.begin_check_back(subject, now_ms):
                others.append(check)
        while self._has_due_schedules():
            self.schedules.run_due_schedule(self._due_schedules.popleft(), now_ms)
        others += self.transactions.read_due_halves(now_ms)
        woken |= dict.fromkeys(self._exhausted_messages.move_queued(now_ms))
        self.schedules.reset_budget()
        return [*_notify_receivers(woken), *others]

    def next_due_ms(self) -> int | None:
        """Return the time of the next tick in milliseconds since the Unix epoch.

        Return None if no work is pending.

        Cost: 2 us per call, because each source of work stores its next due time.
        """
        has_more = (
            self._has_due_schedules() or self._exhausted_messages.has_more()
            or self.transactions.has_halves_to_read() or self.timer_repair.has_work
            or self.housekeeping.has_more or self.topic_retention.has_more
            or self.store.dispatch.has_untrusted
        )  # fmt: skip
        if has_more:
            return self._last_tick_ms
        return earlier(self._scheduler.next_due_ms(), self._delivery.next_due_ms(self._last_tick_ms))

    def _has_due_schedules(self) -> bool:
        """Return whether a due schedule can append records without waiting for a flush."""
        return bool(self._due_schedules) and not self.store.has_flush_backlog

    def complete_timers_job(self, job: TimersJob) -> None:
        """Process the result of a timer file job."""
        if not isinstance(job, ReadAhead):
            assert isinstance(job, (CheckJob, RepairJob))
            self.timer_repair.complete_job(job)
            return
        for due_ms, timer_offset in self.timers.partitions.complete_read_ahead(job):
            self.timers.near.schedule(timer_offset, due_ms)

    def requeue_timers_job(self, job: TimersJob) -> None:
        """Requeue a failed timer file job."""
        if isinstance(job, ReadAhead):
            self.timers.partitions.abandon_read_ahead(job)
        else:
            assert isinstance(job, (CheckJob, RepairJob))
            self.timer_repair.requeue_job(job)

    def repair_files(self, now_ms: int) -> None:
        """Check or repair a few timer files without delivering messages. Used by a repair tool."""
        job = self.timer_repair.next_job()
        if job is not None:
            job.run(self._disk)
            self.timer_repair.complete_job(job)
        self.timer_repair.repair_next_batch(now_ms)
        self.timer_repair.allow_check()

    def record_clock_jump(self, from_ms: int, until_ms: int) -> None:
        """Record a clock step.

        Call this method before any other call with the new time. The remaining time of each lease does not
        change. Timers whose due times fall within the step are treated as delayed by the step.
        """
        self._lease_clock.add_step(until_ms - from_ms)
        if until_ms - from_ms >= limits.CLOCK_JUMP_MS_MIN:
            self.statistics.clock_jumps["forward"] += 1
            self._delivery.record_clock_jump(from_ms, until_ms)

    def postpone_housekeeping(self, until_ms: int) -> None:
        """Postpone the next disk space check until `until_ms`. Used in tests with a virtual clock."""
        self._scheduler.schedule(Purpose.HOUSE, 0, until_ms)

    def take_flush(self) -> Flush | None:
        """Return the next flush to write.

        Return None if no records are pending or too many flushes are in progress.

        The open group records are closed first, so that the flush includes all earlier changes.
        """
        self.groups.open_records.close()
        return self._log.take_flush()

    def take_entries(self) -> EntriesToWrite | None:
        """Return the queue entries to write, or None. Call `complete_entries` after the write."""
        return self.store.dispatch.take()

    def complete_entries(self) -> bool:
        """Record that queue entries have been written. Return whether all entries have been written."""
        return self.store.dispatch.written()

    def complete_flush(self, flush: Flush, now_ms: int) -> list[Effect]:
        """Make the records of a completed flush visible. Return the effects that wake receivers.

        Queue records are published in batches to reduce the cost per message. A batch ends before a record of
        any other kind, because records must become visible in log order.
        """
        durable_before = self._log.durable_offset
        self.sending.deduplicator.pass_time(now_ms)
        if self._log.files.used_reserve:
            self._log.files.used_reserve = False
            self.housekeeping.record_reserve_use()
        woken, self.groups.woken = self.groups.woken, {}
        queued: list[AppendResult] = []
        for one in self.store.complete_flush(flush):
            if one.queue is None:
                self._publish(queued)
                self._publish((one,))
                queued = []
                woken |= dict.fromkeys(one.topics())
                continue
            queued.append(one)
            if (topic := one.queue[0]) in woken or not is_system(topic):
                woken[topic] = None
                if isinstance(one.stored, Record):
                    self.lite.mark_lite_topic_ready(one.stored)
        self._publish(queued)
        assert durable_before <= self._log.durable_offset <= self._log.end_offset, "durable offsets ascend"
        self.statistics.flushes += 1
        return _notify_receivers([*woken, *self.lite.take_woken_subscribers()])

    @property
    def is_quiet(self) -> bool:
        """Whether all appended records are durable."""
        return self._log.is_quiet and self.groups.open_records.is_empty

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether a checkpoint is due because of log growth, a full table, or a request."""
        behind_bytes = self._log.durable_offset - self._checkpoint_offset
        is_much = behind_bytes >= limits.SNAPSHOT_LOG_BYTES
        is_full = self.store.keys.is_full or self.timers.ends.is_full
        is_wanted = self.housekeeping.wants_checkpoint or self.timers.partitions.wants_checkpoint
        return is_much or is_full or is_wanted

    @property
    def is_checkpoint_overdue(self) -> bool:
        """Whether appends must wait for a checkpoint because the log has grown too much.

        The limit is SNAPSHOT_LOG_BYTES_MAX bytes since the newest checkpoint.
        """
        return self._log.durable_offset - self._checkpoint_offset >= limits.SNAPSHOT_LOG_BYTES_MAX

    def request_checkpoint(self) -> None:
        """Request a checkpoint regardless of log growth."""
        self.housekeeping.wants_checkpoint = True

    def checkpoint(self, now_ms: int) -> Checkpoint:
        """Return a checkpoint of the current state, which the caller must write to disk.

        All appended records must be durable. `Checkpoint.take` later copies the rows of large tables while
        the core continues to serve requests.
        """
        assert self.is_quiet, "a snapshot must not hold what is not durable"
        assert self._checkpoint_offset <= self._log.durable_offset, "a snapshot is of before the last one"
        self._checkpoint_offset = self._log.durable_offset
        self.housekeeping.wants_checkpoint = False
        parts = {name: part.freeze() for name, part in self._parts.items()}
        dispatch = self.store.dispatch
        return Checkpoint(
            log_sync=self._log.take_sync(),
            queue_paths=dispatch.take_unsynced(),
            queues_made_at=self._log.durable_offset if (made_at := dispatch.made_at) is None else made_at,
            needs_mark=dispatch.needs_mark,
            keys=self.store.keys.to_write(self._log.first_offset),
            timers=self.timers.to_write(now_ms, self.timer_repair.uncertain_times()),
            snapshot=Snapshot(self._log.durable_offset, parts | derived.freeze(self.store)),
            unneeded_paths=self._log.keep.forget(self.housekeeping.is_needed),
        )

    def complete_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Update the parts after a checkpoint has been written to disk."""
        self.written_offset = checkpoint.snapshot.offset
        if checkpoint.is_marked:
            self.store.dispatch.made_at = checkpoint.queues_made_at
        if checkpoint.is_mark_attempted:
            self.store.dispatch.complete_mark_attempt()
        self.store.dispatch.mark_untrusted(checkpoint.failed)
        self.shared_in_checkpoint = checkpoint.snapshot.parts.get(SHARED)
        if checkpoint.log_sync is not None:
            self._log.complete_sync(checkpoint.log_sync)
        self.store.keys.written(checkpoint.keys)
        self.timers.complete_checkpoint(checkpoint.timers)
        self.timer_repair.report_indexes()
        self.store.dispatch.unmark_again()  # On a follower, this is the only call of `unmark_again`.

    def abandon_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Update the parts after a checkpoint has failed, for example because the disk is full.

        After a failed sync (`SyncFailed`), the core must no longer be used and the store must be reopened,
        because a later sync would succeed even if earlier writes were lost.
        """
        self.store.dispatch.abandon_sync(checkpoint.queue_paths)
        if checkpoint.is_mark_attempted:
            self.store.dispatch.complete_mark_attempt()
        self.store.dispatch.mark_untrusted(checkpoint.failed)
        self.store.keys.failed(checkpoint.keys)
        self.timers.abandon_checkpoint(checkpoint.timers)
        if checkpoint.log_sync is not None:
            self._log.abandon_sync(checkpoint.log_sync)

    def take_sync(self) -> Sync | None:
        """Return the next sync to run, or None. Call `complete_sync` after the sync."""
        return self._log.take_sync()

    def complete_sync(self, sync: Sync) -> None:
        """Record a successful sync."""
        self._log.complete_sync(sync)

    def continue_retirement(self, retirement: Retirement, now_ms: int) -> bool:
        """Continue a retirement after a worker has written the keep file or deleted segments.

        Return False if work remains. The caller must then call this method again, and may call other methods
        in the meantime. Raise OSError if the disk fails.
        """
        return self.housekeeping.continue_retirement(retirement, now_ms)

    def abandon_retirement(self) -> None:
        """Abandon an incomplete segment retirement, which the next disk space check retries."""
        self.housekeeping.abandon_retirement()

    def _thaw(self, start: Snapshot | None, scan: LogScan, now_ms: int) -> None:
        """Restore the state, including derived state, from a snapshot."""
        self._checkpoint_offset = self.written_offset = scan.first_offset
        if start is None:
            derived.drop(self.store)
            self.timers.delete_files()
            return
        self._checkpoint_offset = self.written_offset = start.offset
        self.shared_in_checkpoint = start.parts.get(SHARED)
        for name, part in self._parts.items():
            if name in start.parts or name != SHARED:
                part.thaw(start.parts[name])
        others = snapshot.others(self._disk, start)
        read_topics = {one.name for one in self.topics.all() if one.message_type is MessageType.LITE}
        self.rebuilt_files, self.damaged = derived.adopt(self.store, self._disk, start, others, read_topics)
        others_files = [one.parts[TIMER_FILES] for one in others]
        self.lost = self.timers.adopt_files(start.parts[TIMER_FILES], others_files, now_ms)
        log = self._log
        for found in timer_facts.rebuild(
            self.timers, self._disk, log.segment_bytes, log.first_offset, start.offset
        ):
            self.damage.report(found)

    def _tick_timers(self, now_ms: int) -> list[Effect]:
        """Deliver due timers, and preload timers that are due soon."""
        if back_ms := self.timers.near.set_time(now_ms):
            self.statistics.clock_jumps["backward"] += 1
        if back_ms > limits.CLOCK_BACK_MS_MIN:
            self._scheduler.rewind_wheels(now_ms)
            self.sending.deduplicator.pass_time(now_ms)
            self._scheduler.schedule(Purpose.HOUSE, 0, now_ms)
        count = self._delivery.deliver(now_ms, limits.DELIVERIES_PER_TICK_MAX)
        self.is_crowded = count >= limits.DELIVERIES_PER_TICK_MAX
        self.timer_repair.repair_next_batch(now_ms)
        jobs = (self._advance_partitions(now_ms), self.timer_repair.next_job())
        return [RunTimersJob(job) for job in jobs if job is not None]

    def _advance_partitions(self, now_ms: int) -> ReadAhead | None:
        look = self.timers.partitions.advance(now_ms)
        for due_ms, timer_offset in look.near:
            self.timers.near.schedule(timer_offset, due_ms)
        return look.job

    def _read_ahead_now(self, now_ms: int) -> None:
        """Read the first due timers at startup without a worker."""
        job = self._advance_partitions(now_ms)
        while job is not None:
            job.run(self._disk)
            self.complete_timers_job(job)
            job = (
                None if self.timers.partitions.head_due_ms() is not None else self._advance_partitions(now_ms)
            )

    def _continue_retention(self, now_ms: int) -> list[Effect]:
        """Continue the retention scan of an earlier tick."""
        if self.topic_retention.has_more:
            self.topic_retention.advance(now_ms)
        if not self.housekeeping.has_more:
            return []
        is_checkpointing = not self.timers.partitions.is_settled
        retirement = self.housekeeping.continue_scan(now_ms, is_checkpointing=is_checkpointing)
        return [] if retirement is None else [RetireSegments(retirement)]

    def _run_housekeeping(self, now_ms: int) -> list[Effect]:
        is_checkpointing = not self.timers.partitions.is_settled
        retirement = self.housekeeping.check_space(now_ms, is_checkpointing=is_checkpointing)
        refusal = self.housekeeping.refusal()
        self.lite.run_maintenance(now_ms)
        self.topic_retention.begin()
        self._scheduler.schedule(Purpose.HOUSE, 0, now_ms + self._housekeeping_ms)
        effects: list[Effect] = [] if retirement is None else [RetireSegments(retirement)]
        if (refusal is not None) != self._is_refusing:
            self._is_refusing = refusal is not None
            effects.append(LogWarning(f"{refusal.code} {refusal}" if refusal else SPACE_AVAILABLE))
        self.timer_repair.run_maintenance(now_ms)
        self.store.dispatch.unmark_again()
        effects += map(LogWarning, self.groups.forgotten)
        self.groups.forgotten.clear()
        effects += map(LogWarning, self.housekeeping.missed_reports)
        self.housekeeping.missed_reports.clear()
        if lost := self.transactions.roll_back_lost_halves(now_ms):
            what = f"{len(lost)} halves were rolled back: nobody has their records any more: {lost[:10]}."
            self.damage.report(DamagedPart("keep", layout.KEEP, what, lost_count=len(lost)))
        if self.timers.partitions.disk_bytes > self.housekeeping.free_bytes:
            effects.append(
                LogWarning(
                    _describe_space_shortage(self.timers.partitions.disk_bytes, self.housekeeping.free_bytes)
                )
            )
        return effects

    def _apply(self, appended: AppendResult) -> None:
        """Apply the state changes in a record to all parts except the store.

        The outcome must not depend on the clock, the settings, or the disk, because recovery may apply the
        same record again years later on another machine.
        """
        if appended.queue is not None and type(appended.stored) is Record:
            # The topic of a `NewMessage` was already created by the send operation.
            self.topics.infer_topic(*appended.queue)
        for fact in appended.facts:
            self._appliers[type(fact)](fact, appended)

    def _publish(self, durable: Sequence[AppendResult]) -> None:
        """Index durable records in log order, and publish their state changes by type."""
        self.store.index(durable)
        told = defaultdict[type, list[tuple[Any, Stamp]]](list)
        for one in durable:
            for fact in one.facts:
                told[type(fact)].append((fact, one))
        for kind, facts in told.items():
            if (publish := self._publishers.get(kind)) is not None:
                publish(facts)

    @property
    def local_sink(self) -> LogSink:
        """The sink that writes to the segment files of the store."""
        return self._log.files

    @property
    def flushes_max(self) -> int:
        """Maximum number of flushes in progress."""
        return self._log.sink.appends_max

    def write_to(self, sink: LogSink) -> None:
        """Direct future flushes to another sink. All appended records must be durable."""
        assert self._log.is_quiet, "a flush is under way to the sink before"
        self._log.sink = sink

    def delete_covered(self) -> None:
        """Delete the segments below the log start if both retained snapshots cover the log start.

        Raise OSError if the disk fails.
        """
        self.housekeeping.delete_covered()

    def append_replicated(self, encoded: Sequence[bytes], end_offset: int, now_ms: int) -> None:
        """Append, apply, and publish records from another broker at the same log offsets.

        Call this method on a worker thread, because the append may write many queue entries. `end_offset` is
        the log end after the append, and `now_ms` is the arrival time. Raise OSError if the disk fails. After
        an error, the core must not be used.
        """
        self.sending.deduplicator.pass_time(now_ms)
        assert self._log.is_quiet, "a core that follows appends nothing of its own"
        found = [FoundRecord(decode(one), len(one)) for one in encoded]
        for one, each in zip(encoded, found, strict=True):
            self._log.follow_to(each.record.physical_offset)
            is_gathered = self._log.gather(one)
            assert is_gathered, "a record has no room where it lies in the other log"
        self._log.follow_to(end_offset)
        if (flush := self._log.take_flush()) is not None:
            flush.write()
            self._log.complete_flush(flush)
        for each in found:
            facts = facts_of(each.record)
            for fact in facts:
                if isinstance(fact, LogCut):
                    self.housekeeping.preserve_records_below(fact)
            self._replay(each, facts)
        self._log.publish_replicated()
        self.store.dispatch.write()

    def _replay(self, found: FoundRecord, facts: tuple[Fact, ...]) -> None:
        """Apply and publish a durable record without waking receivers."""
        durable = to_append_result(found.record, found.record_bytes, facts)
        self.store.prepare_queue(found.record)
        self.store.apply(durable)
        self._apply(durable)
        self._publish((durable,))


def _notify_receivers(keys: Collection[WakeUpKey]) -> list[Effect]:
    """Return the effects that wake the receivers waiting on `keys`, or an empty list if there are no keys."""
    return [WakeReceivers((*keys,))] if keys else []


def _describe_space_shortage(pending_bytes: int, free_bytes: int) -> str:
    return (
        f"the delayed messages that wait have {pending_bytes} bytes, the disk has room for {free_bytes}: it "
        "cannot hold them once more when they are delivered. Free some space, or let retention delete."
    )
