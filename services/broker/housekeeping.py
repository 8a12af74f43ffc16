"""Room on disk: which segments go, and when to stop taking new messages.

Looked at every `housekeeping_ms`. Retention asks for snapshots first: a segment goes only when the older of
the two kept snapshots covers its end, so that either of them can start the broker. Then in this order:

    what is needed lies in a keep file --> record of the cut --applied--> nothing reads below it any more
                                                             --durable, published--> the files are deleted

A worker deletes the files, segments and those of queues that have no entries any more: each deletion syncs a
folder, and may take the device's timeout. Reads of queues ask for none of them meanwhile.

The record says all that changes with it: where the log begins, the lowest offset of each queue of which
entries go, and what groups had still wanted of them. A start that finds files below the cut has them deleted
likewise. A record before that, the wish, lets the second snapshot lie behind the first. So a start knows how
far the log may have been deleted; what is missing beyond is damage.

    disk used   effect
    >= 75 %     with --retain-hours or --retain-bytes: the oldest covered segments go, whatever their age
    >= 85 %     likewise, and lagging groups no longer hold them
    >= 90 %     new messages, halves and timers are refused (`DiskFull`); receives, acknowledgements, ends of
                transactions, recalls and deliveries go on
    full        the same, on the reserve: an empty segment that makes room for one that has none

Who runs the broker may stop new messages for another reason (`stopped`); then the same goes on.

The body of a `TW_SYS_RETENTION` record is JSON: {"cut_offset", "done"}, and in a cut "queues", a list of
[topic, queue, its lowest offset from now on], "places", where in the log each of these offsets lies, and
"skipped", a list of [group, topic, queue, count]: so many messages were still wanted by a group that lagged
too long; `services.broker.groups.missed_messages` adds them up, and once the last record of a cut is durable,
the log has a line about each group. Queues are looked at some at a time, so that thousands do not hold the
loop at once: before a cut for what groups wait for, and for the cut, with a record for each time; other
records may lie between. The last is done and cuts the log. A queue with a damaged file is left out; the next
start makes it anew, and finds where it begins. Such a record with a "cut_offset" of 0 says so, and what
groups missed; until then they stay where they were, in snapshots, too.

Weak spot: room is measured once in `housekeeping_ms`. Writes that take the last tenth of the disk in less
fill it; then the reserve is spent, and nothing is lost but the room. A cut looks at a queue and all its
groups in one turn, 6 us for a group.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from commitlog import layout, limits, retention, snapshot
from commitlog.disk import Disk
from commitlog.facts.facts import LogCut, Skipped, Stamp, record_of
from commitlog.retention import Deletion, Keeping, Retirement
from commitlog.segments import Segments
from services.broker.groups.group_values import GroupQueue
from services.broker.groups.groups import Groups
from services.broker.groups.missed_messages import sentences
from services.broker.halves.transactions import Transactions
from services.broker.spine.errors import DiskFull
from services.broker.spine.scheduler import Purpose, Scheduler
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.store import Store
from tidewheel.errors import Busy

DISK_USED_REFUSE: Final = 0.90
_NOWHERE: Final = 1 << 62


@dataclass(slots=True, eq=False)
class Waiting:
    """A look at what groups wait for: the queues that are left, and the lowest log offset found so far.

    Of messages below `young_offset` groups have lagged too long.
    """

    keys: deque[tuple[str, int]]
    young_offset: int
    groups: deque[GroupQueue] = field(default_factory=deque)
    """Those of the queue before that are left."""
    offset: int = _NOWHERE


@dataclass(frozen=True, slots=True)
class Rise:
    """What a record of retention says of some queues: their lowest offsets, what groups missed below them."""

    queues: list[tuple[str, int, int]]
    """(topic, queue id, lowest offset)."""
    places: list[int]
    skipped: list[Skipped]


class Housekeeping:
    """Retention and disk room of one broker."""

    def __init__(
        self,
        disk: Disk,
        store: Store,
        scheduler: Scheduler,
        groups: Groups,
        transactions: Transactions,
        settings: BrokerSettings,
    ) -> None:
        self._disk = disk
        self._store = store
        self._scheduler = scheduler
        self._groups = groups
        self._transactions = transactions
        self._policy = settings.retention
        self._cut_queues_max = settings.cut_queues_max
        self._running: Retirement | None = None
        self._uncut: deque[tuple[str, int]] | None = None
        """The queues that the running cut has still to look at."""
        self._waiting: Waiting | None = None
        self._deletable_offset = 0
        """Up to here nothing reads the log any more, as a durable record says; 0: that was deleted."""
        self._wished_offset = 0
        self.disk_used = 0.0
        self.free_bytes = 0
        self.has_reserve = False
        self._no_reserve = ""
        self.wants_checkpoint = False
        self._untold: Counter[tuple[str, str]] = Counter()
        """What durable records say that groups (group, topic) missed, since it was last told."""
        self.missed_told: list[str] = []
        """Sentences about what groups missed of a cut, for the log."""
        self.stopped: Busy | None = None
        """What new messages are refused with whatever the room, set from outside; None: nothing is."""

    @property
    def is_refusing(self) -> bool:
        """Whether new messages are refused."""
        return self.stopped is not None or self.is_full

    @property
    def is_full(self) -> bool:
        """Whether new messages are refused for want of room."""
        return self.disk_used >= DISK_USED_REFUSE or not self.has_reserve

    def refusal(self) -> DiskFull | None:
        """Return what new messages are refused with; None when there is room."""
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
        """Raise `DiskFull` when there is no room for new messages, or what they are stopped with."""
        if self.is_refusing and (refusal := self.stopped or self.refusal()):
            raise refusal

    def look(self, now_ms: int, *, is_checkpointing: bool = False) -> Retirement | None:
        """See to the room on disk, and return what is to be kept, or may be deleted, now.

        None while a checkpoint is under way: its snapshot may be on disk and cover what the core still reads
        from the log, for the core does not know of that snapshot yet.
        """
        self.see_to_room()
        self._waiting = None
        if self._running is not None or is_checkpointing:
            return None
        # A cut that another leader has decided, its snapshots may cover, and those of this node not yet.
        is_covered = self._deletable_offset > 0 and self._ensure_covered(self._deletable_offset, now_ms)
        self._running = self._deletion() if is_covered else None
        if self._running is None:
            self._waiting = self._waiting_in_all(now_ms)
            return self.look_on(now_ms)
        return self._running

    @property
    def has_more(self) -> bool:
        """Whether a look is under way, or queues begin later than records say: call `look_on`."""
        return self._waiting is not None or self._store.dispatch.has_unrecorded

    def look_on(self, now_ms: int, *, is_checkpointing: bool = False) -> Retirement | None:
        """Look into some more queues for what groups wait for; return what is to be kept, once into all.

        Before that say of some in each turn that they begin later than records say, as long as there are any.
        """
        if is_checkpointing:
            self._waiting = None  # see `look`, which begins anew
        if self._store.dispatch.has_unrecorded:
            rows, places = self._store.dispatch.unrecorded(self._cut_queues_max, self._cost_of_groups)
            rise = self._rise(rows, places, self._store.log.first_offset)
            self._record(rise, 0, now_ms, is_last=False)
            return None
        if (waiting := self._waiting) is None:
            return None
        left = self._cut_queues_max
        while left > 0 and (waiting.groups or waiting.keys):
            left -= self._look_into_one(waiting)
        if waiting.groups or waiting.keys:
            return None
        self._waiting = None
        self._running = self._keeping(waiting.offset, now_ms)
        return self._running

    def _look_into_one(self, waiting: Waiting) -> int:
        """Look for what one more group waits for, or begin with one more queue; return what it cost.

        As much as a queue, and what was read and compared of its files by `CUT_QUEUE_BYTES`.
        """
        if not waiting.groups:
            waiting.groups.extend(self._groups.receivers(*waiting.keys.popleft()))
            return 1
        key = waiting.groups.popleft()
        queue = self._store.dispatch.look(key.topic, key.queue_id)
        unread_bytes = queue.unread_bytes
        found = self._groups.wanted_offset(key, queue, waiting.young_offset)
        if found >= waiting.young_offset:
            waiting.offset = min(waiting.offset, found)
        return 1 + (unread_bytes - queue.unread_bytes) // limits.CUT_QUEUE_BYTES

    def _deletion(self) -> Deletion | None:
        """Return the deletion of what a published record, perhaps one of before a start, has cut off."""
        if not self._deletable_offset:
            return None
        assert self._deletable_offset <= self._store.log.first_offset, "what is read would be deleted"
        paths = tuple(self._store.dispatch.take_unneeded())
        return Deletion(self._deletable_offset, self._store.log.unsynced_segments(), paths)

    def _waiting_in_all(self, now_ms: int) -> Waiting | None:
        """Return a look at what groups wait for, in all queues; None where it would not matter."""
        if self._cut_offset(None, now_ms) <= self._store.log.first_offset:
            return None
        young_ms = now_ms - self._policy.group_pin_ms
        ages = (one for one in self._store.segment_ages() if one.last_store_ms >= young_ms)
        young = next(ages, None)
        keys = deque(self._store.dispatch.keys() if young is not None else ())
        return Waiting(keys, 0 if young is None else young.first_offset)

    def _keeping(self, pinned_offset: int, now_ms: int) -> Keeping | None:
        log = self._store.log
        cut_offset = self._cut_offset(None if pinned_offset == _NOWHERE else pinned_offset, now_ms)
        if cut_offset <= log.first_offset or not self._ensure_covered(cut_offset, now_ms):
            return None
        return self._keeping_below(cut_offset, log.end_offset)

    def _keeping_below(self, cut_offset: int, durable_at: int) -> Keeping:
        log = self._store.log
        segments = Segments(log.segments.first_offsets, log.segment_bytes)
        needed = self._transactions.outcomes.between(log.first_offset, cut_offset)
        return Keeping(cut_offset, segments, needed, log.keep, durable_at)

    def is_needed(self, offset: int) -> bool:
        """Return whether something still waits for a record: whether it is an open or expired half."""
        outcomes = self._transactions.outcomes
        return offset in outcomes.open or offset in outcomes.expired

    def retired(self, done: Retirement, now_ms: int) -> bool:
        """Cut the log after a keeping, some queues at a time; or note that segments are gone.

        Return False while queues are left: call again, other calls may come between. The last record cuts the
        log, and the keep file is read from then on. A keeping runs on until that record is published: what a
        cut that may be undone leaves is not to be deleted. Raise OSError.
        """
        assert done is self._running, "one retirement at a time"
        if isinstance(done, Deletion):
            self._running, self._deletable_offset = None, 0
            self._store.dispatch.deleted(done.gone)
            return True
        log, dispatch = self._store.log, self._store.dispatch
        assert log.first_offset < done.cut_offset <= log.end_offset, "a cut goes forward, within the log"
        if self._uncut is None:
            self._uncut = deque(dispatch.keys())  # a queue that comes later begins above the cut
        queues, places = dispatch.minimums(
            done.cut_offset, dispatch.take_some(self._uncut, self._cut_queues_max, self._cost_of_groups)
        )
        rise = self._rise(queues, places, done.cut_offset)
        is_last = not self._uncut
        if is_last:
            self._uncut = None
            log.keep.add(done.cut_offset, done.places)
        self._record(rise, done.cut_offset, now_ms, is_last=is_last)
        return is_last

    def _cost_of_groups(self, topic: str) -> int:
        """Return what a queue of a topic costs more for its groups, in queues: each may have missed some."""
        return self._groups.receiver_count(topic) // limits.CUT_QUEUE_GROUPS

    def _rise(self, queues: list[tuple[str, int, int]], places: list[int], log_offset: int) -> Rise:
        """Return what is to be recorded of queues that are to begin at (topic, queue id, offset).

        They do since the log begins at `log_offset`.
        """
        recorded = self._store.dispatch.recorded_min
        rises = ((topic, at, recorded(topic, at), end) for topic, at, end in queues)
        return Rise(queues, places, self._groups.missed(rises, log_offset))

    def _record(self, rise: Rise, cut_offset: int, now_ms: int, *, is_last: bool) -> None:
        count_max, queues, places = limits.CUT_ROWS_PER_RECORD_MAX, rise.queues, rise.places
        record_count = max(-(-len(rise.skipped) // count_max), 1 if is_last or queues else 0)
        for number in range(record_count):
            rows = rise.skipped[number * count_max : (number + 1) * count_max]
            is_done = is_last and number == record_count - 1
            self._store.append(record_of(LogCut(cut_offset, is_done, queues, places, rows)), now_ms)
            queues, places = [], []

    def keep_before(self, cut: LogCut) -> None:
        """Keep what is needed below another broker's cut, before the cut is applied; raise OSError."""
        log = self._store.log
        if cut.queues is None or not cut.is_done or cut.cut_offset <= log.first_offset:
            return
        keeping = self._keeping_below(cut.cut_offset, log.durable_offset)
        keeping.run(self._disk)
        log.keep.add(keeping.cut_offset, keeping.places)

    def delete_covered(self) -> None:
        """Delete what a cut has taken from the log, once both snapshots cover it; raise OSError."""
        covering = [one for one in snapshot.offsets(self._disk) if one >= self._deletable_offset]
        if len(covering) >= 2 and (deletion := self._deletion()) is not None:
            deletion.run(self._disk)
            self._deletable_offset = 0
            self._store.dispatch.deleted(deletion.gone)

    def failed(self) -> None:
        """Give up a retirement that failed, perhaps half way; it is tried again with the next look."""
        self._running = self._uncut = None

    def apply(self, cut: LogCut, stamp: Stamp) -> None:
        """Cut the log: queues and groups begin behind the cut."""
        self._store.may_begin_at = max(self._store.may_begin_at, cut.cut_offset)
        if cut.queues is not None:
            self._store.dispatch.rise(cut.queues, cut.places)
            self._groups.skip(cut.queues)
            self._groups.missed_messages.note(cut.skipped, stamp.store_ms)
            if cut.is_done:
                self._store.cut(cut.cut_offset)

    def publish(self, durable: Sequence[tuple[LogCut, Stamp]]) -> None:
        """Take in durable cuts: what they cut off is deleted at the next look, which comes at once."""
        for cut, _ in durable:
            if cut.queues is None:
                continue
            self._note_missed(cut)
            if cut.is_done:
                assert cut.cut_offset <= self._store.log.first_offset, "a cut is applied first"
                self._running, self._deletable_offset = None, cut.cut_offset
                self._scheduler.schedule(Purpose.HOUSE, 0, 0)

    def _note_missed(self, cut: LogCut) -> None:
        """Note what groups missed; a cut is told once, of all its records."""
        for group, topic, _, count in cut.skipped:
            self._untold[group, topic] += count
        is_whole = cut.is_done or (cut.cut_offset == 0 and not self._store.dispatch.has_unrecorded)
        if is_whole and self._untold:
            self.missed_told += sentences(self._untold, is_cut=cut.cut_offset > 0)
            self._untold.clear()

    def follow(self) -> None:
        """Move queues and groups up to the log's start, when that is known; find what was to be deleted.

        The lowest offsets of queues that were made anew are said in records next (`look_on`).
        """
        log, dispatch = self._store.log, self._store.dispatch
        dispatch.rise_unrecorded(*dispatch.minimums(log.first_offset, dispatch.keys()))
        begun = ((topic, queue_id, queue.min_offset) for topic, queue_id, queue in dispatch.queues())
        self._groups.skip([one for one in begun if one[2] and not dispatch.is_unrecorded(*one[:2])])
        has_cut_off = any(first < log.first_offset for first in layout.segment_offsets(self._disk))
        if has_cut_off or dispatch.has_unneeded:
            self._deletable_offset = log.first_offset

    def reserve_is_gone(self) -> None:
        """Take in that the disk was full, and the reserve made room for a segment."""
        self.has_reserve, self._no_reserve = False, "it has taken the place of a segment"

    def see_to_room(self) -> None:
        """Measure the disk, and make the reserve if it is missing and there is room."""
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
        """Make the reserve where it leaves room: one that takes the last of it makes the disk full itself."""
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

    def _ensure_covered(self, cut_offset: int, now_ms: int) -> bool:
        """Return whether both kept snapshots lie behind `cut_offset`; ask for the one that is missing."""
        covering = [offset for offset in snapshot.offsets(self._disk) if offset >= cut_offset]
        if len(covering) >= 2:
            return True
        self.wants_checkpoint = True
        # A snapshot at the offset of the first one would take its place, not be a second: on a broker at rest
        # only this record moves the log's end.
        if covering and self._wished_offset < cut_offset:
            self._wished_offset = cut_offset
            self._store.append(record_of(LogCut(cut_offset, is_done=False)), now_ms)
        return False
