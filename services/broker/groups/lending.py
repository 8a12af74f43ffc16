"""How one receive leases: what it asks for, what it has looked at, and the leases that come of it.

Of a message group a receive takes one message, or a run of as many as the group's policy allows. What was not
acknowledged of a run comes again before anything later (`ReceiveState.may_join_run`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from commitlog import limits, properties
from commitlog.bulk import Integers
from commitlog.compression import unpacked_bytes
from commitlog.record import COMPRESSED, INNER_BATCH, Record
from consumequeue import receipts
from consumequeue.entry import Entry
from consumequeue.filter import EVERYTHING, Filter
from consumequeue.in_flight import InFlight, Lease
from services.broker.groups.group_filters import FilterSet, KnownFilter
from services.broker.groups.group_values import GroupPolicy, GroupQueue
from services.broker.groups.groups import Groups
from services.broker.spine.reading import readable
from services.broker.spine.store import Store
from services.broker.spine.values import Delivery
from tidewheel import property_names

_FOR_GROUP: Final = property_names.FOR_GROUP.encode()
_MESSAGE_GROUP: Final = property_names.MESSAGE_GROUP.encode()
_SPECIAL: Final = COMPRESSED | INNER_BATCH


@dataclass(slots=True)
class ReceiveState:
    """One receive while it looks: what it asks for, what it has leased, and how much it has looked at.

    `is_renewed`: the broker keeps the leases for the client.
    """

    group: str
    topic: str
    filter: Filter
    tags_codes: Integers | None
    count_max: int
    invisible_ms: int
    client_id: str
    is_renewed: bool
    attempt_id: str
    policy: GroupPolicy
    now_ms: int
    filters: FilterSet
    known: KnownFilter
    others: tuple[KnownFilter, ...] = ()
    """The other filters of the group on the topic."""
    deliveries: list[Delivery] = field(default_factory=list)
    near: dict[int, Record | None] = field(default_factory=dict)
    """Records that it has read, by log offset, and is about to come upon."""
    runs: Counter[str] = field(default_factory=Counter)
    again: set[str] = field(default_factory=set)
    """Message groups whose run comes again: some of it was given out before, and not acknowledged."""
    scanned: int = 0
    """Work that was done, in messages of the plain kind (`limits.WORK_NS`)."""
    durable_at: int = 0
    is_crowded: bool = False
    body_bytes: int = 0
    is_full: bool = False
    """Whether the next message would make the answer larger than it may be."""
    has_set_aside: bool = False
    """Whether it left messages to other filters of the group."""
    has_read_damage: bool = False
    """Whether it has read a whole file of a queue that is damaged, which no other receive will."""

    def wants(self, record: Record) -> bool:
        """Return whether the filter matches a record that was not redriven for another group."""
        return self._is_for_group(record) and self.judge(self.filter, record.properties)

    def wanted_by(self, record: Record) -> int:
        """Return the mask of the filters of the group that match a record; 0 if none does.

        Of a record that the filter of the receive matches the mask is its bit alone.
        """
        if not self._is_for_group(record):
            return 0
        if self.judge(self.filter, record.properties):
            return self.known.bit
        return sum(one.bit for one in self.others if self.judge(one.filter, record.properties))

    def judge(self, wanted: Filter, stored: bytes) -> bool:
        """Return whether a filter matches stored properties, and count what that costs."""
        self.scanned += wanted.work(len(stored))
        return wanted.matches(stored)

    def count(self, record_bytes: int) -> None:
        """Count a record of so many bytes that is read."""
        self.scanned += 1 + record_bytes // limits.WORK_BYTES

    def count_files(self, compared_bytes: int) -> None:
        """Count files of queues that were read as a whole."""
        self.scanned += compared_bytes // limits.WORK_BYTES

    def _is_for_group(self, record: Record) -> bool:
        if _FOR_GROUP not in record.properties:
            return True
        return properties.value_of(record.properties, property_names.FOR_GROUP) in ("", self.group)

    def admits(self, record_bytes: int) -> bool:
        """Return whether the next message fits into the answer; the first always does."""
        self.is_full = bool(self.deliveries) and self.body_bytes + record_bytes > limits.RECEIVE_BYTES_MAX
        return not self.is_full

    def is_plain(self, record: Record) -> bool:
        """Return whether the receive wants a record that is given out as it is, and of no message group."""
        stored = record.properties
        is_special = record.sys_flag & _SPECIAL or _MESSAGE_GROUP in stored or _FOR_GROUP in stored
        return not is_special and (self.filter is EVERYTHING or self.judge(self.filter, stored))

    def deliver(self, record: Record, attempt: int, lease: Lease) -> None:
        """Put a leased message into the answer."""
        self.deliveries.append(Delivery(record, attempt, lease.handle, self.now_ms + self.invisible_ms))
        self.body_bytes += len(record.body)

    @property
    def left_count(self) -> int:
        """How many more messages the receive may take, or look at."""
        return min(self.count_max - len(self.deliveries), limits.SCANNED_PER_RECEIVE_MAX - self.scanned)

    @property
    def scan_budget_spent(self) -> bool:
        """Whether the receive has looked at as much as one call may."""
        return self.scanned >= limits.SCANNED_PER_RECEIVE_MAX

    @property
    def is_over(self) -> bool:
        """Whether the receive is to look no further."""
        return self.is_full or self.left_count <= 0

    def may_join_run(self, flight: InFlight, queue_offset: int, message_group: str) -> bool:
        """Return whether the receive may take this message, too, of a message group whose run it has begun.

        What was not acknowledged of a run comes again before anything later: such a run is joined only by
        what was given out before. As `ConsumerOrderInfoManager` of RocketMQ, but what is done stays done.
        """
        if not 0 < self.runs[message_group] < self.policy.fifo_run_max:
            return False
        return message_group not in self.again or flight.offsets.was_given(queue_offset)


class Lending:
    """Leases messages to consumers."""

    def __init__(self, store: Store, groups: Groups, broker_name: str) -> None:
        self._log, self._broker_name = store.log, broker_name
        self._groups, self._leases = groups, groups.leases

    def lease(
        self,
        key: GroupQueue,
        flight: InFlight,
        record: Record,
        message_group: str,
        state: ReceiveState,
        *,
        is_found: bool = False,
    ) -> None:
        """Lease the candidate, or (`is_found`) a message that was found by its lite topic, to a receive."""
        offset = record.queue_offset
        assert offset >= flight.offsets.committed_offset, "a message that is done is leased"
        attempt = flight.offsets.attempts(offset).made + 1
        if message_group:
            state.runs[message_group] += 1
            # Before the lease, after whose record every message counts as given out.
            if flight.offsets.was_given(offset):
                state.again.add(message_group)
        lease = self._new_lease(key, record, message_group, state)
        durable_at = self._groups.lease(key, flight, lease, attempt, state.now_ms, is_found=is_found)
        state.durable_at = durable_at or state.durable_at
        given = readable(record)
        if given is not record:
            state.count(2 * unpacked_bytes(record.body, given.body))  # takes twice as long as reading
        state.deliver(given, attempt, lease)

    def lease_run(
        self, key: GroupQueue, flight: InFlight, entries: Iterable[Entry], state: ReceiveState
    ) -> None:
        """Lease messages that were never given out, as many as are wanted and have been read ahead.

        None of a message group, which are leased one at a time, and none whose body is to be unpacked. All
        are of the first attempt, so neither attempts nor offsets are looked up for each.
        """
        run: list[Lease] = []
        try:
            for offset, (physical_offset, record_bytes, _) in enumerate(entries, flight.next_offset):
                record = state.near.get(physical_offset)
                if state.scanned >= limits.SCANNED_PER_RECEIVE_MAX:  # `scan_budget_spent`, without the call
                    break
                if record is None or record.queue_offset != offset or not state.is_plain(record):
                    break
                if flight.offsets.was_given(offset) or not state.admits(record_bytes):
                    break
                lease = self._new_lease(key, record, "", state)
                run.append(lease)
                state.deliver(record, 1, lease)
                state.scanned += 1 + record_bytes // limits.WORK_BYTES  # `count`, without the call
        finally:  # what was leased before a filter failed stands
            if run:
                self._groups.lease_run(key, flight, run)
            assert not run or run[-1].queue_offset == flight.next_offset - 1, "a run has no gaps"

    def _new_lease(self, key: GroupQueue, record: Record, message_group: str, state: ReceiveState) -> Lease:
        """Return a new lease of a receive on a message."""
        offset, now_ms, invisible_ms = record.queue_offset, state.now_ms, state.invisible_ms
        visible_ms = self._leases.clock.elapsed(now_ms) + invisible_ms
        generation = self._leases.next_generation()
        handle = receipts.encode(
            key.queue_id, offset, record.physical_offset, now_ms, invisible_ms, generation, self._log.epoch,
            self._broker_name,
        )  # fmt: skip
        return Lease(
            generation, offset, visible_ms, state.client_id if state.is_renewed else "",
            visible_ms + limits.AUTO_RENEW_MS_MAX, state.client_id, message_group, False, False, False,
            state.attempt_id, now_ms, handle,
        )  # fmt: skip
