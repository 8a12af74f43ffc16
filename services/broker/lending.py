"""What a receive asks for, what it has found so far, and how a message becomes its consumer's for a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from commitlog import limits, properties
from commitlog.bulk import Integers
from commitlog.record import Record
from consumequeue import receipts
from consumequeue.filter import Filter
from consumequeue.in_flight import InFlight, Lease
from consumequeue.receipts import Receipt
from services.broker.group_values import GroupPolicy
from services.broker.groups import GroupQueue, Groups
from services.broker.leases import Leases
from services.broker.reading import delivery
from services.broker.values import Delivery


@dataclass(slots=True, frozen=True)
class Wanted:
    """What a receive asks for; `is_renewed`: the broker keeps the leases for the client."""

    group: str
    topic: str
    filter: Filter
    tags_codes: Integers | None
    invisible_ms: int
    client_id: str
    is_renewed: bool
    attempt_id: str
    policy: GroupPolicy


@dataclass(slots=True)
class Look:
    """One receive while it looks: what it has leased, and how much it has looked at."""

    count_max: int
    deliveries: list[Delivery] = field(default_factory=list)
    runs: Counter[str] = field(default_factory=Counter)
    again: set[str] = field(default_factory=set)
    """Message groups whose run comes again: some of it was given out before, and not acknowledged."""
    scanned: int = 0
    durable_at: int = 0
    is_crowded: bool = False
    body_bytes: int = 0
    is_full: bool = False
    """Whether the next message would make the answer larger than it may be."""

    def admits(self, record_bytes: int) -> bool:
        """Whether the next message may go into the answer; the first may, whatever it has."""
        self.is_full = bool(self.deliveries) and self.body_bytes + record_bytes > limits.RECEIVE_BYTES_MAX
        return not self.is_full

    @property
    def is_tired(self) -> bool:
        """Whether it has looked at as much as one call may."""
        return self.scanned >= limits.SCANNED_PER_RECEIVE_MAX

    @property
    def is_over(self) -> bool:
        """Whether it is to look no further."""
        return self.is_tired or self.is_full or len(self.deliveries) >= self.count_max


class Lending:
    """Leases messages to consumers."""

    def __init__(self, groups: Groups, leases: Leases, broker_name: str) -> None:
        self._groups, self._leases, self._broker_name = groups, leases, broker_name

    def lease(
        self,
        key: GroupQueue,
        record: Record,
        message_group: str,
        give: Callable[[Lease], None],
        wanted: Wanted,
        look: Look,
        now_ms: int,
    ) -> None:
        """Leases a message to a receive; `give` takes it out of the queue for the group."""
        offsets = self._groups.in_flight(key).offsets
        if message_group:
            look.runs[message_group] += 1
            if offsets.was_given(record.queue_offset):
                look.again.add(message_group)
        visible_ms = now_ms + wanted.invisible_ms
        lease = self._leases.grant(
            key, record.queue_offset, visible_ms, wanted.client_id, wanted.is_renewed, message_group
        )
        lease.leased_ms, lease.attempt_id = now_ms, wanted.attempt_id
        attempt = offsets.attempts(record.queue_offset).made + 1
        give(lease)
        if message_group:
            look.durable_at = self._groups.keep_lease(key, lease, attempt, now_ms)
        receipt = Receipt(
            queue_id=key.queue_id,
            queue_offset=record.queue_offset,
            physical_offset=record.physical_offset,
            leased_ms=now_ms,
            invisible_ms=wanted.invisible_ms,
            generation=lease.generation,
        )
        handle = receipts.encode(receipt, self._broker_name)
        given = delivery(record, attempt, handle, visible_ms)
        look.deliveries.append(given)
        look.body_bytes += len(given.message.body)


def may_join_run(flight: InFlight, queue_offset: int, message_group: str, wanted: Wanted, look: Look) -> bool:
    """Whether a receive that has begun a run of a message group may take this message of it, too.

    What was not acknowledged of a run comes again before anything later: such a run is joined only by what
    was given out before. As `ConsumerOrderInfoManager` of RocketMQ, but what was acknowledged stays done.
    """
    if not 0 < look.runs[message_group] < wanted.policy.fifo_run_max:
        return False
    return message_group not in look.again or flight.offsets.was_given(queue_offset)


def is_wanted(record: Record, wanted: Wanted) -> bool:
    """Whether the filter lets a record through, and it was not redriven for another group."""
    for_group = properties.value_of(record.properties, properties.FOR_GROUP)
    return wanted.filter.matches(record.properties) and for_group in ("", wanted.group)
