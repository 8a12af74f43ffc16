"""Disk space control, which deletes old segments and refuses new messages if the disk is almost full.

Disk usage is checked every `housekeeping_ms` milliseconds. Recovery must be able to start from either of the
two retained snapshots. A segment can therefore be deleted only if the older snapshot covers the whole
segment. Otherwise, new snapshots are requested first. The deletion then proceeds as follows:

    copy needed records to a keep file --> append the cut record --applied--> no more reads below the cut
                                                          --durable, published--> delete the files

A worker deletes the segments and the empty queue files, because each deletion syncs a directory and can block
until the device times out. Files that are being deleted are not read.

A cut truncates the log at its start. A cut record contains all changes of the cut: the new first log offset,
the new lowest offset of each queue that loses entries, and the number of messages that each group missed.
Files below a recorded cut are also deleted after a restart. A record that contains only "cut_offset" may
precede a cut. Such a record advances the end of the log, so that the second snapshot has a higher log offset
than the first. Missing records above this "cut_offset" are reported as damage during recovery.

    disk used   effect
    >= 75 %     with --retain-hours or --retain-bytes, the oldest covered segments of any age are deleted
    >= 85 %     as above, and lagging groups no longer prevent a deletion
    >= 90 %     new messages, half messages, and timers are refused (`DiskFull`), but receives,
                acknowledgements, commits, rollbacks, recalls, and deliveries continue
    full        as above, and the reserve (an empty segment) is deleted to make room for a new segment

If new messages are refused for another reason (`stopped`), the effects are the same as at 90 % disk usage.

The body of a `TW_SYS_RETENTION` record is a JSON object with the members "cut_offset" and "done". A cut
record also has "queues", a list of [topic, queue, new lowest offset], "places", the corresponding log
offsets, and "skipped", a list of [group, topic, queue, count] of missed messages. Missed messages are counted
in `services.broker.groups.missed_messages`, and are logged when the last record of the cut becomes durable.
Queues are processed in batches to avoid blocking the event loop. A first pass over the queues finds the
oldest message that any group still needs. A second pass appends one record per batch of queues. Other records
may be appended between the records of a cut. The last record of a cut has "done" set to true and truncates
the log. Queues with a damaged file are excluded from the cut and rebuilt at the next startup, which also
determines their first offsets. The broker then appends a record with a "cut_offset" of 0, which contains the
first offsets of the rebuilt queues and the number of messages that each group missed in these queues. Until
this record is applied, group offsets in a rebuilt queue change neither in memory nor in snapshots.

Limitation: if the last tenth of the disk fills up between two measurements, the reserve segment is used, and
no data is lost. Cost: a cut processes all groups of a queue in a single step, which takes 6 us per group.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from commitlog import layout, limits
from commitlog.disk.disk import Disk
from commitlog.facts.facts import LogCut, Skipped, Stamp, record_of
from commitlog.log import retention
from commitlog.log.retention import Deletion, KeepFileWrite, Retirement
from commitlog.log.segments import Segments
from commitlog.snapshots import snapshot
from services.broker.groups.group_values import GroupQueue
from services.broker.groups.groups import Groups
from services.broker.groups.missed_messages import log_lines
from services.broker.halves.transactions import Transactions
from services.broker.spine.errors import DiskFull
from services.broker.spine.scheduler import Purpose, Scheduler
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.store import Store
from services.broker.timers.holding import HeldTimers
from tidewheel.errors import Busy

DISK_USED_REFUSE: Final = 0.90
_NO_OFFSET: Final = 1 << 62


@dataclass(slots=True, eq=False)
class RetentionScan:
    """A scan for the oldest message that any group still needs.

    The scan ignores a group whose next message is below `young_offset`, because its lag is too large.
    """

    keys: deque[tuple[str, int]]
    young_offset: int
    groups: deque[GroupQueue] = field(default_factory=deque)
    """The groups of the current queue that have not been scanned yet."""
    offset: int = _NO_OFFSET


@dataclass(frozen=True, slots=True)
class CutContents:
    """The contents of a `LogCut` record for a batch of queues."""

    queues: list[tuple[str, int, int]]
    """The new lowest queue offsets, as (topic, queue id, lowest offset)."""
    places: list[int]
    skipped: list[Skipped]


class Housekeeping:
    """Retention and disk space control."""

    def __init__(
        self,
        disk: Disk,
        store: Store,
        scheduler: Scheduler,
        groups: Groups,
        transactions: Transactions,
        held: HeldTimers,
        settings: BrokerSettings,
    ) -> None:
        self._disk = disk
        self._store = store
        self._scheduler = scheduler
        self._groups = groups
        self._transactions, self._held = transactions, held
        self._policy = settings.retention
        self._cut_queues_max = settings.cut_queues_max
        self._running: Retirement | None = None
        self._remaining_queues: deque[tuple[str, int]] | None = None
        """The queues that the current cut has not processed yet."""
        self._scan: RetentionScan | None = None
        self._deletable_offset = 0
        """The offset of a durable cut whose files have not been deleted yet, or 0 if there is none.
        """
        self._requested_offset = 0
        self.disk_used = 0.0
        self.free_bytes = 0
        self.has_reserve = False
        self._no_reserve = ""
        self.wants_checkpoint = False
        self._unreported: Counter[tuple[str, str]] = Counter()
        """Number of recorded missed messages that have not been logged yet, keyed by (group, topic)."""
        self.missed_reports: list[str] = []
        """Log lines about messages that groups missed because of a cut."""
        self.stopped: Busy | None = None
        """The error for new messages that are refused for a reason other than disk space, or None."""

    @property
    def is_refusing(self) -> bool:
        """Whether new messages are refused."""
        return self.stopped is not None or self.is_full

    @property
    def is_full(self) -> bool:
        """Whether new messages are refused because the disk is almost full."""
        return self.disk_used >= DISK_USED_REFUSE or not self.has_reserve

    def refusal(self) -> DiskFull | None:
        """Return the error for new messages if the disk is almost full. Otherwise, return None."""
        if not self.is_full:
            return None
        if self.disk_used >= DISK_USED_REFUSE:
            why = f"{self.disk_used:.0%} of it is used"
        else:
            why = f"The reserve of {self._store.log.segment_bytes} bytes cannot be made: {self._no_reserve}"
        return DiskFull(
            f"{why}; {self.free_bytes} bytes are free. Free some space, or let retention delete more: "
            "--retain-hours, --retain-bytes. Receiving and acknowledging go on."
        )

    def refuse_new(self) -> None:
        """Raise `stopped` if it is set, or `DiskFull` if the disk is almost full."""
        if self.stopped is not None:
            raise self.stopped
        if self.is_full and (refusal := self.refusal()) is not None:
            raise refusal

    def check_space(self, now_ms: int, *, is_checkpointing: bool = False) -> Retirement | None:
        """Check the disk usage. Return the `Retirement` to run (a `KeepFileWrite` or `Deletion`), or None.

        During a checkpoint, return None. A checkpoint may already have written its snapshot while the core
        still reads log records that the snapshot covers.
        """
        self.measure_space()
        self._scan = None
        if self._running is not None or is_checkpointing:
            return None
        # If another leader made the cut, its snapshots may cover the cut while those of this node do not.
        is_covered = self._deletable_offset > 0 and self._ensure_snapshots_cover(
            self._deletable_offset, now_ms
        )
        self._running = self._plan_deletion() if is_covered else None
        if self._running is None:
            self._scan = self._begin_scan(now_ms)
            return self.continue_scan(now_ms)
        return self._running

    @property
    def has_more(self) -> bool:
        """Whether a scan is running, or the first offset of any queue has not been recorded yet."""
        return self._scan is not None or self._store.dispatch.has_unrecorded

    def continue_scan(self, now_ms: int, *, is_checkpointing: bool = False) -> Retirement | None:
        """Scan more queues for messages that groups need. Return a `KeepFileWrite` after the last queue.

        If the first offsets of any queues have not been recorded yet, record a batch of them instead.
        """
        if is_checkpointing:
            self._scan = None  # The next call of `check_space` begins a new scan.
        if self._store.dispatch.has_unrecorded:
            rows, places = self._store.dispatch.unrecorded(self._cut_queues_max, self._cost_of_groups)
            rise = self._cut_contents(rows, places, self._store.log.first_offset)
            self._record(rise, 0, now_ms, is_last=False)
            return None
        if (scan := self._scan) is None:
            return None
        left = self._cut_queues_max
        while left > 0 and (scan.groups or scan.keys):
            left -= self._scan_next(scan)
        if scan.groups or scan.keys:
            return None
        self._scan = None
        self._running = self._plan_keep_file_write(scan.offset, now_ms)
        return self._running

    def _scan_next(self, scan: RetentionScan) -> int:
        """Process the next group or queue. Return the cost of the step, in queues.

        The cost increases by 1 for every `CUT_QUEUE_BYTES` bytes of queue files that are read and verified.
        """
        if not scan.groups:
            scan.groups.extend(self._groups.receiving_keys(*scan.keys.popleft()))
            return 1
        key = scan.groups.popleft()
        queue = self._store.dispatch.find_queue(key.topic, key.queue_id)
        unread_bytes = queue.unread_bytes
        found = self._groups.next_log_offset(key, queue, scan.young_offset)
        if found >= scan.young_offset:
            scan.offset = min(scan.offset, found)
        return 1 + (unread_bytes - queue.unread_bytes) // limits.CUT_QUEUE_BYTES

    def _plan_deletion(self) -> Deletion | None:
        """Return a `Deletion` for the files below a published cut, or None."""
        if not self._deletable_offset:
            return None
        assert self._deletable_offset <= self._store.log.first_offset, "what is read would be deleted"
        paths = tuple(self._store.dispatch.take_deletable_files())
        return Deletion(self._deletable_offset, self._store.log.unsynced_segments(), paths)

    def _begin_scan(self, now_ms: int) -> RetentionScan | None:
        """Return a new scan of all queues, or None if no segment can be deleted."""
        if self._cut_offset(None, now_ms) <= self._store.log.first_offset:
            return None
        young_ms = now_ms - self._policy.group_pin_ms
        ages = (one for one in self._store.segment_ages() if one.last_store_ms >= young_ms)
        young = next(ages, None)
        keys = deque(self._store.dispatch.keys() if young is not None else ())
        return RetentionScan(keys, 0 if young is None else young.first_offset)

    def _plan_keep_file_write(self, pinned_offset: int, now_ms: int) -> KeepFileWrite | None:
        log = self._store.log
        cut_offset = self._cut_offset(None if pinned_offset == _NO_OFFSET else pinned_offset, now_ms)
        if cut_offset <= log.first_offset or not self._ensure_snapshots_cover(cut_offset, now_ms):
            return None
        return self._create_keep_file_write(cut_offset, log.end_offset)

    def _create_keep_file_write(self, cut_offset: int, durable_at: int) -> KeepFileWrite:
        log = self._store.log
        segments = Segments(log.segments.first_offsets, log.segment_bytes)
        halves = self._transactions.outcomes.between(log.first_offset, cut_offset)
        needed = sorted([*halves, *self._held.between(log.first_offset, cut_offset)])
        return KeepFileWrite(cut_offset, segments, needed, log.keep, durable_at)

    def is_needed(self, offset: int) -> bool:
        """Return whether the record at `offset` is an open or expired half message or a held timer."""
        outcomes = self._transactions.outcomes
        return offset in outcomes.open or offset in outcomes.expired or offset in self._held

    def continue_retirement(self, done: Retirement, now_ms: int) -> bool:
        """Complete a `Deletion`. After a `KeepFileWrite`, append a cut record for the next batch of queues.

        Return False if any queues remain. The caller must then call this method again, and may call other
        methods in the meantime. The last record truncates the log, and needed records below the cut are then
        read from the keep file. An incomplete cut never deletes files, because the `KeepFileWrite` stays in
        progress until the last record is published. Raise OSError if the disk fails.
        """
        assert done is self._running, "one retirement at a time"
        if isinstance(done, Deletion):
            self._running, self._deletable_offset = None, 0
            self._store.dispatch.deleted(done.gone)
            return True
        log, dispatch = self._store.log, self._store.dispatch
        assert log.first_offset < done.cut_offset <= log.end_offset, "a cut goes forward, within the log"
        if self._remaining_queues is None:
            self._remaining_queues = deque(
                dispatch.keys()
            )  # A queue that is created later begins above the cut offset.
        queues, places = dispatch.minimums(
            done.cut_offset,
            dispatch.take_some(self._remaining_queues, self._cut_queues_max, self._cost_of_groups),
        )
        rise = self._cut_contents(queues, places, done.cut_offset)
        is_last = not self._remaining_queues
        if is_last:
            self._remaining_queues = None
            log.keep.add(done.cut_offset, done.places)
        self._record(rise, done.cut_offset, now_ms, is_last=is_last)
        return is_last

    def _cost_of_groups(self, topic: str) -> int:
        """Return the cost, in queues, of counting the messages that the groups of a topic have missed."""
        return self._groups.receiver_count(topic) // limits.CUT_QUEUE_GROUPS

    def _cut_contents(
        self, queues: list[tuple[str, int, int]], places: list[int], log_offset: int
    ) -> CutContents:
        """Return the contents of a `LogCut` record for queues whose first offsets increase.

        `queues` contains (topic, queue id, first offset) for a log that begins at `log_offset`.
        """
        recorded = self._store.dispatch.recorded_min
        rises = ((topic, at, recorded(topic, at), end) for topic, at, end in queues)
        return CutContents(queues, places, self._groups.count_missed_messages(rises, log_offset))

    def advance_queues(self, queues: list[tuple[str, int, int]], places: list[int], now_ms: int) -> int:
        """Advance the first offsets of queues. Return the end offset of the log.

        `queues` contains one (topic, queue id, new first offset) per queue, and `places` contains the log
        offsets of the queue entries at the new first offsets. The first log offset does not change.
        """
        self._record(self._cut_contents(queues, places, _NO_OFFSET), 0, now_ms, is_last=False)
        return self._store.log.end_offset

    def _record(self, rise: CutContents, cut_offset: int, now_ms: int, *, is_last: bool) -> None:
        count_max, queues, places = limits.CUT_ROWS_PER_RECORD_MAX, rise.queues, rise.places
        record_count = max(-(-len(rise.skipped) // count_max), 1 if is_last or queues else 0)
        for number in range(record_count):
            rows = rise.skipped[number * count_max : (number + 1) * count_max]
            is_done = is_last and number == record_count - 1
            self._store.append(record_of(LogCut(cut_offset, is_done, queues, places, rows)), now_ms)
            queues, places = [], []

    def preserve_records_below(self, cut: LogCut) -> None:
        """Copy needed records to a keep file before a cut made by another broker is applied.

        Raise OSError if the disk fails.
        """
        log = self._store.log
        if cut.queues is None or not cut.is_done or cut.cut_offset <= log.first_offset:
            return
        keeping = self._create_keep_file_write(cut.cut_offset, log.durable_offset)
        keeping.run(self._disk)
        log.keep.add(keeping.cut_offset, keeping.places)

    def delete_covered(self) -> None:
        """Delete the segments below a cut if both retained snapshots cover the cut.

        Raise OSError if the disk fails.
        """
        covering = [one for one in snapshot.offsets(self._disk) if one >= self._deletable_offset]
        if len(covering) >= 2 and (deletion := self._plan_deletion()) is not None:
            deletion.run(self._disk)
            self._deletable_offset = 0
            self._store.dispatch.deleted(deletion.gone)

    def abandon_retirement(self) -> None:
        """Abandon a failed or interrupted retirement, which the next `check_space` retries."""
        self._running = self._remaining_queues = None

    def apply(self, cut: LogCut, stamp: Stamp) -> None:
        """Truncate the log, and advance the offsets of queues and groups to those in the record."""
        self._store.may_begin_at = max(self._store.may_begin_at, cut.cut_offset)
        if cut.queues is not None:
            self._store.dispatch.advance_first_offsets(cut.queues, cut.places)
            self._groups.skip_deleted_messages(cut.queues)
            self._groups.missed_messages.add_losses(cut.skipped, stamp.store_ms)
            if cut.is_done:
                self._store.truncate_log(cut.cut_offset)

    def publish(self, durable: Sequence[tuple[LogCut, Stamp]]) -> None:
        """Schedule an immediate `check_space` to delete the files below durable cuts."""
        for cut, _ in durable:
            if cut.queues is None:
                continue
            self._count_missed_messages(cut)
            if cut.is_done:
                assert cut.cut_offset <= self._store.log.first_offset, "a cut is applied first"
                self._running, self._deletable_offset = None, cut.cut_offset
                self._scheduler.schedule(Purpose.HOUSE, 0, 0)

    def _count_missed_messages(self, cut: LogCut) -> None:
        """Count missed messages. After the last record of a cut, create the log lines."""
        for group, topic, _, count in cut.skipped:
            self._unreported[group, topic] += count
        is_whole = cut.is_done or (cut.cut_offset == 0 and not self._store.dispatch.has_unrecorded)
        if is_whole and self._unreported:
            self.missed_reports += log_lines(self._unreported, is_cut=cut.cut_offset > 0)
            self._unreported.clear()

    def apply_log_start(self) -> None:
        """Advance the offsets of queues and groups to the log start, and find files to delete.

        The offset of a group advances only in queues whose first offsets are recorded. `continue_scan` later
        records the first offsets of rebuilt queues.
        """
        log, dispatch = self._store.log, self._store.dispatch
        dispatch.advance_unrecorded(*dispatch.minimums(log.first_offset, dispatch.keys()))
        begun = ((topic, queue_id, queue.min_offset) for topic, queue_id, queue in dispatch.queues())
        self._groups.skip_deleted_messages(
            [one for one in begun if one[2] and not dispatch.is_unrecorded(*one[:2])]
        )
        has_cut_off = any(first < log.first_offset for first in layout.segment_offsets(self._disk))
        if has_cut_off or dispatch.has_deletable_files:
            self._deletable_offset = log.first_offset

    def record_reserve_use(self) -> None:
        """Record that the reserve segment was used because the disk was full."""
        self.has_reserve, self._no_reserve = False, "it has taken the place of a segment"

    def measure_space(self) -> None:
        """Measure the disk usage. If the reserve segment is missing and the disk has room, create it."""
        segment_bytes = self._store.log.segment_bytes
        if self._disk.size(layout.RESERVE) not in (-1, segment_bytes):
            with suppress(OSError):
                self._disk.delete(layout.RESERVE)
        self._measure()
        if self._disk.size(layout.RESERVE) < 0:
            self._make_reserve(segment_bytes)
            self._measure()
        self.has_reserve = self._disk.size(layout.RESERVE) == segment_bytes

    def _measure(self) -> None:
        self.free_bytes, total_bytes = self._disk.usage()
        self.disk_used = 1 - self.free_bytes / total_bytes if total_bytes else 1.0

    def _make_reserve(self, segment_bytes: int) -> None:
        """Create the reserve segment if the disk would still have room for another segment."""
        if self.free_bytes < 2 * segment_bytes:
            self._no_reserve = "that would leave less than a segment"
            return
        try:
            self._disk.allocate(layout.RESERVE, segment_bytes)
        except OSError as error:
            self._no_reserve = str(error)
            with suppress(OSError):
                self._disk.delete(layout.RESERVE)

    def _cut_offset(self, pinned_offset: int | None, now_ms: int) -> int:
        ages, segment_bytes = self._store.segment_ages(), self._store.log.segment_bytes
        return retention.cut_offset(ages, segment_bytes, self._policy, self.disk_used, pinned_offset, now_ms)

    def _ensure_snapshots_cover(self, cut_offset: int, now_ms: int) -> bool:
        """Return whether both retained snapshots cover `cut_offset`. If not, request a snapshot."""
        covering = [offset for offset in snapshot.offsets(self._disk) if offset >= cut_offset]
        if len(covering) >= 2:
            return True
        self.wants_checkpoint = True
        # A second snapshot at the same log offset would replace the first snapshot. On an idle broker, only
        # the record appended here advances the end of the log.
        if covering and self._requested_offset < cut_offset:
            self._requested_offset = cut_offset
            self._store.append(record_of(LogCut(cut_offset, is_done=False)), now_ms)
        return False
