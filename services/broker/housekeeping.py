"""Room on disk: which segments go, and when to stop taking new messages.

Looked at every `housekeeping_ms`. Retention asks for snapshots first: a segment goes only when the older of
the two kept snapshots covers its end, so that either of them can start the broker. Each wish and each
deletion is a record of the log, before it is done and after, which is also what lets the second snapshot lie
behind the first. So a start knows how far the log may have been deleted; what is missing beyond is damage.

    disk used   effect
    >= 75 %     with --retain-hours or --retain-bytes: the oldest covered segments go, whatever their age
    >= 85 %     likewise, and lagging groups no longer hold them
    >= 90 %     new messages, halves and timers are refused (`DiskFull`); receives, acknowledgements, ends of
                transactions, recalls and deliveries go on
    full        the same, on the reserve: an empty segment that makes room for one that has none

The body of a `TW_SYS_RETENTION` record is JSON: {"cut_offset", "done", "skipped": [[group, topic, queue,
count], ...]}, where skipped messages were still wanted by a group that lagged too long.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from commitlog import layout, retention, snapshot
from commitlog.disk import Disk
from commitlog.errors import DiskFull
from commitlog.kinds import RETENTION_TOPIC
from commitlog.record import TYPE_SYSTEM, Record
from commitlog.retention import Retirement
from commitlog.segments import Segments
from services.broker.groups import Groups
from services.broker.settings import BrokerSettings
from services.broker.statistics import Statistics
from services.broker.store import Store
from services.broker.transactions import Transactions

DISK_USED_REFUSE: Final = 0.90


class Housekeeping:
    """Retention and disk room of one broker."""

    def __init__(
        self,
        disk: Disk,
        store: Store,
        groups: Groups,
        transactions: Transactions,
        settings: BrokerSettings,
        statistics: Statistics,
    ) -> None:
        self._disk = disk
        self._store = store
        self._groups = groups
        self._transactions = transactions
        self._policy = settings.retention
        self._statistics = statistics
        self._running: Retirement | None = None
        self._unfinished: Retirement | None = None
        """What nobody reads any more, and could not be deleted."""
        self._skipped: list[list[Any]] = []
        """What groups had still wanted of the segments that go now."""
        self._wished_offset = 0
        self.disk_used = 0.0
        self.free_bytes = 0
        self.has_reserve = False
        self._no_reserve = ""
        self.wants_checkpoint = False

    @property
    def is_full(self) -> bool:
        """Whether new messages are refused."""
        return self.disk_used >= DISK_USED_REFUSE or not self.has_reserve

    def refusal(self) -> DiskFull | None:
        """What new messages are refused with; None when there is room."""
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

    def refuse_if_full(self) -> None:
        """Raises `DiskFull` when there is no room for new messages."""
        if self.is_full and (refusal := self.refusal()):
            raise refusal

    def look(self, now_ms: int, *, is_checkpointing: bool = False) -> Retirement | None:
        """Sees to the room on disk, and returns what may be deleted now.

        Nothing while a checkpoint is under way: its snapshot may be on disk and cover what the core still
        reads from the log, as it does not know of it.
        """
        self.see_to_room()
        if self._running is not None or is_checkpointing:
            return None
        if self._unfinished is not None:
            self._running, self._unfinished = self._unfinished, None
            return self._running
        first_offset, cut_offset = self._store.log.first_offset, self._cut_offset(now_ms)
        if cut_offset <= first_offset or not self._is_covered(cut_offset, now_ms):
            return None
        self._append({"cut_offset": cut_offset, "done": False, "skipped": []}, now_ms)
        self._running = Retirement(
            first_offset,
            cut_offset,
            Segments(self._store.log.segments.first_offsets, self._store.log.segment_bytes),
            self._needed_from(first_offset, cut_offset),
            self._store.log.end_offset,
            self._store.log.unsynced_segments(),
        )
        return self._running

    def needed_offsets(self) -> list[int]:
        """The records that something still waits for: open and expired halves. Timers are in partitions."""
        outcomes = self._transactions.outcomes
        return sorted({*outcomes.open, *outcomes.expired})

    def _needed_from(self, first_offset: int, cut_offset: int) -> list[int]:
        """Without what was kept already, by a retirement that then failed."""
        kept = self._store.log.keep
        return [one for one in self.needed_offsets() if first_offset <= one < cut_offset and one not in kept]

    def kept(self, retirement: Retirement) -> None:
        """What is needed lies in a keep file, and is read from there: its segments may go.

        From now on nobody reads them, for they go one by one, beside whoever reads: queues, groups and the
        log's start follow.
        """
        if retirement.needed_offsets:
            self._store.log.keep.adopt(retirement.cut_offset)
        if self._store.log.first_offset < retirement.cut_offset:
            self._store.cut(retirement.cut_offset)
            self._skipped += self.follow()

    def retired(self, retirement: Retirement, now_ms: int) -> None:
        """The segments are gone."""
        self._running = None
        self.kept(retirement)
        skipped, self._skipped = self._skipped, []
        self._note(retirement.cut_offset, skipped, now_ms)

    def failed(self) -> None:
        """The deletion failed, perhaps half way; it is tried again with the next look."""
        assert self._running is not None
        running, self._running = self._running, None
        if self._disk.size(layout.segment_path(running.first_offset)) < 0:
            self.kept(running)
        if self._store.log.first_offset >= running.cut_offset:
            self._unfinished = replace(running, needed_offsets=())  # these are kept

    def follow(self) -> list[list[Any]]:
        """Moves queues and groups up to the log's start; returns what groups had still wanted."""
        self._store.dispatch.trim(self._store.log.first_offset)
        skipped = self._groups.skip()
        for group, topic, _, count in skipped:
            self._statistics.skipped[(topic, group)] += count
        return skipped

    def reserve_is_gone(self) -> None:
        """The disk was full: the reserve made room for a segment."""
        self.has_reserve, self._no_reserve = False, "it has taken the place of a segment"

    def see_to_room(self) -> None:
        """Measures the disk, and makes the reserve if it is missing and there is room."""
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
        """Makes it where it leaves room: a reserve that takes the last of it makes the disk full itself."""
        if self.free_bytes < 2 * segment_bytes:
            self._no_reserve = "that would leave less than a segment"
            return
        try:
            self._disk.allocate(layout.RESERVE, segment_bytes)
        except OSError as error:
            self._no_reserve = str(error)
            with suppress(OSError):
                self._disk.delete(layout.RESERVE)

    def _cut_offset(self, now_ms: int) -> int:
        ages = self._store.segment_ages()
        young_from_ms = now_ms - self._policy.group_pin_ms
        pinned_offset = self._groups.lowest_wanted_offset(young_from_ms, ages)
        return retention.cut_offset(
            ages, self._store.log.segment_bytes, self._policy, self.disk_used, pinned_offset, now_ms
        )

    def _is_covered(self, cut_offset: int, now_ms: int) -> bool:
        """Whether both kept snapshots lie behind `cut_offset`; asks for what is missing."""
        covering = [offset for offset in snapshot.offsets(self._disk) if offset >= cut_offset]
        if len(covering) >= 2:
            return True
        self.wants_checkpoint = True
        if covering and self._wished_offset < cut_offset:
            self._wished_offset = cut_offset
            self._append({"cut_offset": cut_offset, "done": False, "skipped": []}, now_ms)
        return False

    def _note(self, cut_offset: int, skipped: list[list[Any]], now_ms: int) -> None:
        self._append({"cut_offset": cut_offset, "done": True, "skipped": skipped}, now_ms)

    def recovered(self, record: Record) -> None:
        """Takes over from its record how far the log was to be deleted: less may be there, and no more."""
        self._store.may_begin_at = max(self._store.may_begin_at, json.loads(record.body)["cut_offset"])

    def _append(self, body: dict[str, Any], now_ms: int) -> None:
        self._store.may_begin_at = max(self._store.may_begin_at, body["cut_offset"])
        record = Record(topic=RETENTION_TOPIC, body=json.dumps(body).encode(), sys_flag=TYPE_SYSTEM)
        self._store.append(record, now_ms)
