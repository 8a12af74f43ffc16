"""Leases of messages to receives, and the state of each receive.

From each message group, a receive leases one message, or a run of consecutive messages up to the limit in the
policy of the consumer group. Unacknowledged messages of a run are redelivered before any later message
(`ReceiveState.may_join_run`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from commitlog import limits
from commitlog.records import properties
from commitlog.records.bulk import Integers
from commitlog.records.compression import unpacked_bytes
from commitlog.records.record import COMPRESSED, INNER_BATCH, Record
from consumequeue.entry import Entry
from consumequeue.filters.filter import EVERYTHING, Filter
from consumequeue.groups import receipts
from consumequeue.groups.in_flight import InFlight, Lease
from services.broker.groups.group_filters import FilterSet, KnownFilter
from services.broker.groups.group_values import GroupPolicy, GroupQueue
from services.broker.groups.groups import Groups
from services.broker.spine.reading import to_readable_record
from services.broker.spine.store import Store
from services.broker.spine.values import Delivery
from tidewheel import property_names

_FOR_GROUP: Final = property_names.FOR_GROUP.encode()
_MESSAGE_GROUP: Final = property_names.MESSAGE_GROUP.encode()
_SPECIAL: Final = COMPRESSED | INNER_BATCH


@dataclass(slots=True)
class ReceiveState:
    """The state of a receive, which includes the request, the leases, and the work done so far.

    If `is_renewed` is set, heartbeats of the client renew the leases.
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
    """The records that were read ahead, keyed by log offset."""
    runs: Counter[str] = field(default_factory=Counter)
    again: set[str] = field(default_factory=set)
    """The message groups whose run contains messages that were delivered by an earlier receive."""
    scanned: int = 0
    """Work done so far, in units of one plain message (`limits.WORK_NS`)."""
    durable_at: int = 0
    is_crowded: bool = False
    body_bytes: int = 0
    is_full: bool = False
    """Whether the next message would exceed the response size limit."""
    has_set_aside: bool = False
    """Whether the receive has set messages aside for other filters of the group."""
    has_read_damage: bool = False
    """Whether the receive has read a damaged queue file in full.

    Later receives need not read the file again.
    """

    def matches_filter(self, record: Record) -> bool:
        """Return whether a record matches the filter and was not redriven for another group."""
        return self._is_for_group(record) and self.apply_filter(self.filter, record.properties)

    def matching_mask(self, record: Record) -> int:
        """Return a bit mask of the filters of the group that match a record, or 0.

        If the filter of the receive matches, the mask contains only the bit of this filter.
        """
        if not self._is_for_group(record):
            return 0
        if self.apply_filter(self.filter, record.properties):
            return self.known.bit
        return sum(one.bit for one in self.others if self.apply_filter(one.filter, record.properties))

    def apply_filter(self, wanted: Filter, stored: bytes) -> bool:
        """Return whether a filter matches encoded properties. Count the cost of the evaluation."""
        self.scanned += wanted.work(len(stored))
        return wanted.matches(stored)

    def count_record(self, record_bytes: int) -> None:
        """Count the cost of reading a record."""
        self.scanned += 1 + record_bytes // limits.WORK_BYTES

    def count_files(self, compared_bytes: int) -> None:
        """Count the cost of reading queue files in full."""
        self.scanned += compared_bytes // limits.WORK_BYTES

    def _is_for_group(self, record: Record) -> bool:
        if _FOR_GROUP not in record.properties:
            return True
        return properties.value_of(record.properties, property_names.FOR_GROUP) in ("", self.group)

    def has_space_for(self, record_bytes: int) -> bool:
        """Return whether a message fits in the response. The first message always fits."""
        self.is_full = bool(self.deliveries) and self.body_bytes + record_bytes > limits.RECEIVE_BYTES_MAX
        return not self.is_full

    def is_plain(self, record: Record) -> bool:
        """Return whether a record matches the filter and needs no special handling.

        A record is not plain if it must be converted or has a message group or a target group.
        """
        stored = record.properties
        is_special = record.sys_flag & _SPECIAL or _MESSAGE_GROUP in stored or _FOR_GROUP in stored
        return not is_special and (self.filter is EVERYTHING or self.apply_filter(self.filter, stored))

    def add_delivery(self, record: Record, attempt: int, lease: Lease) -> None:
        """Add a leased message to the response."""
        self.deliveries.append(Delivery(record, attempt, lease.handle, self.now_ms + self.invisible_ms))
        self.body_bytes += len(record.body)

    @property
    def remaining_count(self) -> int:
        """Number of messages that the receive may lease or examine before it reaches a limit."""
        return min(self.count_max - len(self.deliveries), limits.SCANNED_PER_RECEIVE_MAX - self.scanned)

    @property
    def is_scan_budget_spent(self) -> bool:
        """Whether the receive has reached its scan limit."""
        return self.scanned >= limits.SCANNED_PER_RECEIVE_MAX

    @property
    def is_over(self) -> bool:
        """Whether the receive has reached a limit and must stop."""
        return self.is_full or self.remaining_count <= 0

    def may_join_run(self, flight: InFlight, queue_offset: int, message_group: str) -> bool:
        """Return whether a message may join the run of its message group in this receive.

        Unacknowledged messages of a run are redelivered before any later message. A redelivered run therefore
        contains only messages that were delivered before. RocketMQ's `ConsumerOrderInfoManager` applies the
        same rule, but also redelivers finished messages in the run.
        """
        if not 0 < self.runs[message_group] < self.policy.fifo_run_max:
            return False
        return message_group not in self.again or flight.offsets.has_attempt(queue_offset)


class MessageLeasing:
    """The creation of leases for receives."""

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
        """Lease the candidate or, if `is_found` is set, a message that was found through its lite topic."""
        offset = record.queue_offset
        assert offset >= flight.offsets.committed_offset, "a message that is done is leased"
        attempt = flight.offsets.attempts(offset).made + 1
        if message_group:
            state.runs[message_group] += 1
            # This check must precede the lease, because the lease record marks the message as delivered.
            if flight.offsets.has_attempt(offset):
                state.again.add(message_group)
        lease = self._new_lease(key, record, message_group, state)
        durable_at = self._groups.lease(key, flight, lease, attempt, state.now_ms, is_found=is_found)
        state.durable_at = durable_at or state.durable_at
        given = to_readable_record(record)
        if given is not record:
            # Decompressing a body takes twice as long as reading it.
            state.count_record(2 * unpacked_bytes(record.body, given.body))
        state.add_delivery(given, attempt, lease)

    def lease_run(
        self, key: GroupQueue, flight: InFlight, entries: Iterable[Entry], state: ReceiveState
    ) -> None:
        """Lease a run of undelivered messages from `entries`, whose records have been read ahead.

        The run ends before the first message that is not plain (`ReceiveState.is_plain`), was delivered
        before, or would exceed a limit. Every lease in the run is a first attempt.
        """
        run: list[Lease] = []
        try:
            for offset, (physical_offset, record_bytes, _) in enumerate(entries, flight.next_offset):
                record = state.near.get(physical_offset)
                if state.scanned >= limits.SCANNED_PER_RECEIVE_MAX:  # `is_scan_budget_spent` is inlined.
                    break
                if record is None or record.queue_offset != offset or not state.is_plain(record):
                    break
                if flight.offsets.has_attempt(offset) or not state.has_space_for(record_bytes):
                    break
                lease = self._new_lease(key, record, "", state)
                run.append(lease)
                state.add_delivery(record, 1, lease)
                state.scanned += 1 + record_bytes // limits.WORK_BYTES  # `count_record` is inlined.
        finally:  # If a filter raises an exception, the leases created before the exception are kept.
            if run:
                self._groups.lease_run(key, flight, run)
            assert not run or run[-1].queue_offset == flight.next_offset - 1, "a run has no gaps"

    def _new_lease(self, key: GroupQueue, record: Record, message_group: str, state: ReceiveState) -> Lease:
        """Create a lease on a message."""
        offset, now_ms, invisible_ms = record.queue_offset, state.now_ms, state.invisible_ms
        visible_ms = self._leases.clock.to_elapsed_time(now_ms) + invisible_ms
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
