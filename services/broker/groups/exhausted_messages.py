"""Messages without remaining delivery attempts, which are moved to the dead-letter topic.

A message that crashes its consumers must be moved to the dead-letter topic even if no consumer sends another
receive request. The end of the last attempt therefore triggers the move:

    lease of the last attempt expires ----+
    consumer reports a failure -----------+
    startup finds no attempts left -------+--> `ExhaustedMessages` --> dead letter, message finished
    new policy allows fewer attempts -----+

If a new policy allows more attempts before the message is moved, the lease expires normally and the message
is redelivered.

Rules:
- A pause follows each failed attempt except the last. The lease of the last attempt expires as soon as the
  consumer reports the failure, or when a new policy makes a failed attempt the last one.
- The lease of the last attempt stays valid until the message is moved, and a late acknowledgement is
  therefore accepted. A single step ends the lease and moves the message.
- A tick stops moving messages if more than `UNFLUSHED_BYTES_MAX` bytes of the log have not been flushed. The
  next flush triggers the next tick. A tick also stops after it has read `QUEUE_FILES_COMPARED_BYTES` bytes of
  queue files in full, and the next tick follows immediately.
- A receive also moves messages that have no attempts left (`receiving.py`).

Cost: each message requires one entry in memory, one read, and one append.

Limitation: an entry stays queued even if its message is acknowledged, moved, or delivered, or if its lease is
renewed. An entry is therefore checked again when it is processed.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.record import Record
from consumequeue.groups.in_flight import Lease
from services.broker.groups.dead_letters import DeadLetters
from services.broker.groups.group_values import GroupQueue
from services.broker.groups.groups import Groups
from services.broker.groups.leases import failure_of
from services.broker.groups.lite_subscriptions import LiteSubscriptions
from services.broker.spine.reading import MessageReader
from services.broker.spine.store import Store
from tidewheel import property_names

ATTEMPTS_EXHAUSTED = "attempts used up"


class ExhaustedMessages:
    """The messages to be moved to the dead-letter topic, in the order in which they were found."""

    def __init__(
        self,
        store: Store,
        groups: Groups,
        reading: MessageReader,
        dead_letters: DeadLetters,
        subscriptions: LiteSubscriptions,
    ) -> None:
        self._store, self._groups, self._leases = store, groups, groups.leases
        self._reading, self._dead_letters, self._subscriptions = reading, dead_letters, subscriptions
        self._last_leases: deque[int] = deque()
        self._exhausted: deque[tuple[GroupQueue, int]] = deque()
        self._compared_bytes = 0
        """Total size in bytes of the queue files that the current tick has read in full."""

    def has_more(self) -> bool:
        """Return whether queued messages can be moved now."""
        return bool(self._last_leases or self._exhausted) and not self._store.has_flush_backlog

    def queue_if_last(self, key: GroupQueue, lease: Lease) -> bool:
        """Queue the message of a failed attempt if the message has no attempts left.

        Return whether the message has been queued.
        """
        is_last = self.is_last_attempt(key, lease)
        if is_last:
            self._last_leases.append(lease.generation)
        return is_last

    def queue_if_exhausted(self, key: GroupQueue, offset: int) -> None:
        """Queue an unleased message if the policy allows no more attempts."""
        if self._groups.peek_in_flight(key).is_exhausted(offset, self._groups.policy(key.group).attempts_max):
            self._exhausted.append((key, offset))

    def find_exhausted(self, now_ms: int, group: str = "") -> None:
        """Queue all unleased messages with no attempts left, in one group or in all groups.

        If the policy now allows more attempts for a queued message, its lease expires normally at the next
        tick, because redelivery need not wait for a flush.
        """
        self._exhausted += self._groups.exhausted_messages(group)
        for key, lease in self._leases.all_leases():
            if lease.is_failed and group in ("", key.group) and self.is_last_attempt(key, lease):
                self._leases.end_pause(lease, now_ms)
        waiting, self._last_leases = self._last_leases, deque()
        for generation in waiting:
            found = self._leases.find_lease(generation)
            if found is None or self.is_last_attempt(*found):
                self._last_leases.append(generation)
            else:
                self._leases.reschedule_expiry(generation)

    def move_queued(self, now_ms: int) -> list[str]:
        """Move queued messages to the dead-letter topic, up to the limits of a tick.

        Return the topics of queued messages that must be redelivered instead of moved.
        """
        given_back, self._compared_bytes = [], 0
        while self._last_leases and self._has_budget:
            topic = self._move_leased(self._last_leases.popleft(), now_ms)
            if topic is not None:
                given_back.append(topic)
        while self._exhausted and self._has_budget:
            self._move_unleased(*self._exhausted.popleft(), now_ms)
        assert not (self.has_more() and self._has_budget), "a burial waits for no reason"
        return given_back

    @property
    def _has_budget(self) -> bool:
        """Whether this tick may move more messages."""
        return not self._store.has_flush_backlog and self._compared_bytes < limits.QUEUE_FILES_COMPARED_BYTES

    def _move_leased(self, generation: int, now_ms: int) -> str | None:
        """End a lease and move its message, unless the lease has already ended or has been renewed.

        Return the topic of the message if the message must be redelivered, or None otherwise.
        """
        found = self._leases.find_lease(generation)
        if found is None or not self._leases.has_expired(found[1], now_ms):
            return None
        key, lease = found
        failure, record = failure_of(lease, now_ms), self._find_record(key, lease.queue_offset)
        if failure is None or record is None or not self.is_last_attempt(key, lease):
            # A deleted or damaged message is skipped or reported by the next receive.
            self._groups.end_unanswered_lease(key, lease, failure, now_ms)
            return key.topic
        attempts = self._groups.peek_in_flight(key).attempts(lease.queue_offset).failed(failure)
        self._dead_letters.move_message(key, record, attempts, ATTEMPTS_EXHAUSTED, now_ms)
        return None

    def is_last_attempt(self, key: GroupQueue, lease: Lease) -> bool:
        """Return whether a lease belongs to the last attempt that the policy of the group allows."""
        count = self._groups.peek_in_flight(key).attempts(lease.queue_offset).made
        return count >= self._groups.policy(key.group).attempts_max

    def _move_unleased(self, key: GroupQueue, offset: int, now_ms: int) -> None:
        """Move an unleased message, unless it has been delivered, finished, or moved since it was queued."""
        attempts_max = self._groups.policy(key.group).attempts_max
        if not self._groups.peek_in_flight(key).is_exhausted(offset, attempts_max):
            return
        record = self._find_record(key, offset)
        if record is None:
            return
        message_group = properties.value_of(record.properties, property_names.MESSAGE_GROUP)
        flight = self._groups.in_flight(key)
        flight.withdraw(offset, message_group)
        self._dead_letters.move_message(key, record, flight.attempts(offset), ATTEMPTS_EXHAUSTED, now_ms)
        if lite_topic := properties.value_of(record.properties, property_names.LITE_TOPIC):
            self._subscriptions.mark_ready(key.topic, lite_topic, key.group)

    def _find_record(self, key: GroupQueue, offset: int) -> Record | None:
        """Return the record of a message, or None if the record was deleted or is damaged."""
        queue = self._store.dispatch.queue(key.topic, key.queue_id)
        compared_bytes, record = queue.compared_bytes, None
        with suppress(StoreDamaged):
            if queue.min_offset <= offset < queue.end_offset:
                record = self._reading.record(queue, offset, queue.entry(offset))
        self._compared_bytes += queue.compared_bytes - compared_bytes
        return record
