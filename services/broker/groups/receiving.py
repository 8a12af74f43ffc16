"""Receives, which lease messages, and acknowledgements, which finish messages.

A receive scans the queues of a topic in rotation and leases messages for a limited time. The queues of a
PRIORITY topic are scanned in descending order. If a lease ends without an acknowledgement, the leased message
becomes available again. After `attempts_max` attempts, the message is moved to the dead-letter topic
(`exhausted_messages.py`). Client heartbeats renew the leases of a push consumer.

Only one message from a message group, or one run of messages, is leased at a time. Later messages are parked
until the leased messages are finished. Leases on messages in a message group are recorded in the log, which
prevents the delivery of a leased message to another consumer after a restart. For LITE topics, see
`services.broker.groups.lite_receiving`.

A message that does not match the filter of a receive is finished only if the message matches no other filter
of the group. If another filter matches, the message is set aside for a receive with this filter
(`group_filters.py`).

A response contains at most `RECEIVE_BYTES_MAX` bytes of messages, or a single larger message. The limit
applies to stored bodies, and decompressed bodies may exceed it.

Cost: regardless of its filter, a receive does at most the work of `SCANNED_PER_RECEIVE_MAX` small messages
plus one more message. A message costs 1, plus 1 per `WORK_BYTES`, plus the maximum cost of the filter for
properties of the same length (`Filter.work`). Entries whose tags cannot match are skipped by NumPy at a cost
of one hundredth per entry. A gap left by damage is reported and skipped as a whole, at a cost of 1
(`Groups.skip_gap`). The cost of a full read of a queue file is proportional to its size, even if the file is
damaged. Later receives do not read the file again. A receive that reaches its limit while it reads a damaged
file does not raise an error. The caller immediately retries such a receive
(`ReceivedMessages.has_read_damage`), because the remaining queues have not been scanned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Final

import numpy as np

from commitlog import limits
from commitlog.errors import StoreDamaged
from commitlog.facts import acks
from commitlog.records import properties
from commitlog.records.bulk import Integers
from commitlog.records.message import MessageType
from commitlog.records.record import INNER_BATCH, Record
from consumequeue.entry import Entry
from consumequeue.filters.filter import Filter
from consumequeue.groups import receipts
from consumequeue.groups.attempts import Cause, Failure
from consumequeue.groups.in_flight import InFlight, Lease
from consumequeue.queue import ConsumeQueue
from services.broker.groups.dead_letters import DeadLetters
from services.broker.groups.exhausted_messages import ATTEMPTS_EXHAUSTED, ExhaustedMessages
from services.broker.groups.group_filters import format_filter
from services.broker.groups.group_values import GroupQueue, ReceivedMessages
from services.broker.groups.groups import Groups
from services.broker.groups.leases import failure_of
from services.broker.groups.lite_receiving import LiteMessageReceiver
from services.broker.groups.message_leasing import MessageLeasing, ReceiveState
from services.broker.spine.errors import IllegalInvisibleTime, TooManyRequests
from services.broker.spine.reading import MessageReader
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.statistics import Statistics
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics, check_group_name, require_receivable_topic
from services.broker.spine.values import StartPosition, Topic
from tidewheel import property_names
from tidewheel.errors import InvalidReceiptHandle, TidewheelError

ENTRIES_PASSED_AT_ONCE: Final = 8_192
ENTRIES_PASSED_PER_SCANNED: Final = 100
"""Number of entries that NumPy skips at the cost of one examined message."""
PRIORITY: Final = "PRIORITY"


class MessageReceiver:
    """Receives, and all operations on leased messages."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        leasing: MessageLeasing,
        lite: LiteMessageReceiver,
        reading: MessageReader,
        dead_letters: DeadLetters,
        exhausted_messages: ExhaustedMessages,
        settings: BrokerSettings,
        statistics: Statistics,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups, self._leases = groups, groups.leases
        self._leasing = leasing
        self._lite = lite
        self._reading = reading
        self._dead_letters, self._exhausted_messages = dead_letters, exhausted_messages
        self._settings = settings
        self._statistics = statistics
        self._turns: Counter[tuple[str, str]] = Counter()

    def receive(
        self,
        group: str,
        topic_name: str,
        wanted: Filter,
        batch_size: int,
        invisible_ms: int,
        client_id: str,
        auto_renew: bool,
        now_ms: int,
        attempt_id: str = "",
    ) -> ReceivedMessages:
        """Lease up to `batch_size` available messages.

        Raise `IllegalGroup`, `IllegalTopic`, `TopicNotFound`, `IllegalInvisibleTime`, or `TooManyFilters`.
        Raise `TooManyRequests` if the number of messages in flight in the group has reached the maximum.
        """
        check_group_name(group)
        require_receivable_topic(topic_name)
        lease_ms = self._lease_ms(invisible_ms, auto_renew)
        topic = self._topics.get_or_create(topic_name, now_ms)
        # If a restart prevented the response to an earlier attempt of this receive, the leases of that
        # attempt are ended here, so that this retry returns the same messages.
        self._end_restored_leases(client_id, attempt_id, now_ms)
        joined_at = self.join(group, topic_name, now_ms)
        filters, known, added_at, is_new = self._groups.use_filter(
            group, topic_name, wanted, client_id, now_ms
        )
        if is_new:  # Messages in lite topics may wait for a receive with this filter.
            self._lite.subscriptions.mark_all_ready(group, topic_name)
        state = ReceiveState(
            group,
            topic_name,
            wanted,
            None if filters.tags_codes is None else _sorted_codes(filters.tags_codes),
            min(batch_size, limits.RECEIVE_BATCH_MAX),
            lease_ms,
            client_id,
            auto_renew,
            attempt_id,
            self._groups.policy(group),
            now_ms,
            filters,
            known,
            known.others,
            durable_at=max(joined_at, added_at),
        )
        if not state.policy.is_paused:
            with self._groups.leasing():
                self._scan(topic, state)
        return ReceivedMessages(
            state.deliveries,
            state.durable_at,
            state.is_over,
            state.scanned,
            state.has_set_aside,
            state.has_read_damage,
        )

    def ack(self, group: str, topic: str, handle: str, now_ms: int) -> int:
        """Finish a leased message. Raise `InvalidReceiptHandle` if the handle is no longer valid.

        Return the offset up to which the log must be durable before a response is sent.
        """
        (answer,) = self.ack_many(group, topic, [handle], now_ms)
        if isinstance(answer, TidewheelError):
            raise answer
        return answer

    def ack_many(self, group: str, topic: str, handles: list[str], now_ms: int) -> list[int | TidewheelError]:
        """Finish leased messages.

        Return one element per handle, in order: the offset up to which the log must be durable before the
        response is sent, or an error.
        """
        answers: list[int | TidewheelError] = []
        ended: set[int] = set()
        done: dict[GroupQueue, list[int]] = {}
        durable_at = self._groups.open_records.durable_at
        for handle in handles:
            try:
                key, lease = self._find_lease(group, topic, handle)
                if lease.generation in ended:  # The call contains the handle twice.
                    raise _ended_lease_error(topic, receipts.decode(handle))
            except TidewheelError as error:
                outlived = self._find_earlier_lease(group, topic, handle)
                if outlived is None or outlived[1] in done.get(outlived[0], ()):
                    # The traceback would create a reference cycle with `answers`.
                    answers.append(error.with_traceback(None))
                else:
                    done.setdefault(outlived[0], []).append(outlived[1])
                    answers.append(durable_at)
                continue
            ended.add(lease.generation)
            done.setdefault(key, []).append(lease.queue_offset)
            answers.append(durable_at)
        for key, offsets in done.items():
            self._statistics.acknowledged[topic, group] += len(offsets)
            self._groups.finish(key, offsets, now_ms)
        assert len(answers) == len(handles), "each handle has its own answer"
        return answers

    def change_invisible(
        self, group: str, topic: str, handle: str, invisible_ms: int, suspend: bool, now_ms: int
    ) -> tuple[str, int]:
        """Set a lease to expire `invisible_ms` milliseconds from now.

        Return the new handle, and the offset up to which the log must be durable before the response is sent.
        The old handle becomes invalid. If `suspend` is set, the attempt is not counted. Otherwise, the
        attempt of a push consumer is considered failed (`retry`), because its leases are extended by
        heartbeats. Raise `IllegalInvisibleTime` or `InvalidReceiptHandle`.
        """
        _check_invisible_time(invisible_ms, 0)
        key, held = self._find_lease(group, topic, handle)
        is_failed = not suspend and (held.is_failed or bool(held.client_id))
        return self._replace_lease(key, held, handle, invisible_ms, suspend, is_failed, now_ms)

    def _replace_lease(
        self,
        key: GroupQueue,
        held: Lease,
        handle: str,
        invisible_ms: int,
        suspend: bool,
        is_failed: bool,
        now_ms: int,
    ) -> tuple[str, int]:
        """Replace a lease. If the final attempt has failed, the new lease expires immediately."""
        if is_failed and self._exhausted_messages.is_last_attempt(key, held):
            invisible_ms = 0
        receipt = receipts.decode(handle)._replace(
            leased_ms=now_ms,
            invisible_ms=invisible_ms,
            generation=self._leases.next_generation(),
            epoch=self._store.log.epoch,
        )
        lease = Lease(
            receipt.generation,
            held.queue_offset,
            self._leases.clock.to_elapsed_time(now_ms) + invisible_ms,
            consumer=held.consumer,
            message_group=held.message_group,
            is_changed=True,
            is_suspended=suspend,
            leased_ms=now_ms,
            handle=receipts.encode(*receipt, self._settings.broker_name),
            is_failed=is_failed,
        )
        return lease.handle, self._groups.replace_lease(key, lease, now_ms)

    def retry(self, group: str, topic: str, handle: str, after_ms: int | None, now_ms: int) -> int:
        """Schedule redelivery in `after_ms` milliseconds, and count the current attempt.

        If `after_ms` is None, the policy of the group determines the delay. If the current attempt is the
        last one, the next tick moves the message to the dead-letter topic instead. Return the offset up to
        which the log must be durable before a response is sent. Raise `IllegalInvisibleTime` or
        `InvalidReceiptHandle`.
        """
        _check_invisible_time(after_ms or 0, 0)
        key, lease = self._find_lease(group, topic, handle)
        if after_ms is None:
            attempt = self._groups.peek_in_flight(key).attempts(lease.queue_offset).made
            spans = self._groups.policy(group).retry_after_ms
            after_ms = spans[min(attempt, len(spans)) - 1]
        return self._replace_lease(key, lease, handle, after_ms, False, True, now_ms)[1]

    def release(self, group: str, topic: str, handle: str, now_ms: int) -> None:
        """End the lease on a message that was not delivered to its consumer. The attempt is not counted."""
        key, lease = self._find_lease(group, topic, handle)
        self._end_unanswered_lease(key, lease, None, now_ms)

    def forward_to_dead_letter(
        self, group: str, topic: str, handle: str, now_ms: int, *, reason: str = "", attempt: int = 0
    ) -> int:
        """Move a leased message to the dead-letter topic of the group.

        Return the offset up to which the log must be durable before a response is sent. The reason stored in
        the dead letter includes `reason`. `attempt` is the number of attempts counted by the consumer, and is
        used if it exceeds the broker's count. A FIFO push consumer makes several attempts under one lease. If
        `StoreDamaged` is raised, the lease remains valid.
        """
        assert len(reason) <= limits.DEAD_REASON_CHARACTERS_MAX, "a reason is bounded where it comes in"
        key, lease = self._find_lease(group, topic, handle)
        queue, offset = self._store.dispatch.find_queue(topic, key.queue_id), lease.queue_offset
        record = (
            self._reading.record(queue, offset, queue.entry(offset)) if offset >= queue.min_offset else None
        )
        if record is None:  # Retention deleted the message, or damage destroyed it.
            return self._groups.finish(key, [offset], now_ms)
        counted = self._groups.peek_in_flight(key).attempts(offset)
        made = max(counted.made, min(attempt, limits.ATTEMPTS_MAX))
        failure = Failure(now_ms, Cause.GIVEN_UP, acks.clip(lease.consumer))
        attempts = counted.failed(failure)._replace(made=made)
        given_up = f"its consumer gave it up: {reason}" if reason else "its consumer gave it up"
        return self._dead_letters.move_message(key, record, attempts, given_up, now_ms)

    def renew_client(self, client_id: str, now_ms: int) -> None:
        """Renew the subscriptions and the auto-renewed leases of a client."""
        heard = self._leases.renew_client_leases(client_id, now_ms + self._settings.auto_renew_lease_ms)
        self._record_leases(heard, now_ms)
        self._groups.filters.record_heartbeat(client_id, now_ms)
        self._lite.subscriptions.renew_client(client_id, now_ms)

    def record_subscription(
        self, client_id: str, group: str, topic: str, wanted: Filter, now_ms: int
    ) -> None:
        """Record the filter in the subscription of a client.

        The group keeps the filter while the client is alive.
        """
        self._groups.filters.record_subscription(group, topic, wanted.text, client_id)
        self._groups.filters.record_heartbeat(client_id, now_ms)

    def expire_client(self, client_id: str, now_ms: int) -> None:
        """Make the auto-renewed leases of a client expire at the next tick.

        Lite subscriptions are kept for `LITE_SILENT_MS_MAX` in case the client reconnects.
        """
        self._leases.expire_client_leases(client_id, now_ms)
        self._groups.filters.remove_client(client_id)

    def expire_lease(self, generation: int, now_ms: int) -> str:
        """Make the message of an expired lease available again, or queue it for the dead-letter topic.

        Return the topic of the message. The lease of the last attempt stays valid until the message is moved
        (`services.broker.groups.exhausted_messages`).
        """
        found = self._leases.find_lease(generation)
        assert found is not None, "a lease that does not stand runs out"
        key, lease = found
        failure = failure_of(lease, now_ms)
        if failure is None or not self._exhausted_messages.queue_if_last(key, lease):
            self._end_unanswered_lease(key, lease, failure, now_ms)
        return key.topic

    def end_group_leases(self, key: GroupQueue, message_group: str, now_ms: int) -> None:
        """End all leases on a message group or lite topic in a queue. The attempts are not counted."""
        for lease in [
            one for one in self._groups.peek_in_flight(key).leases() if one.message_group == message_group
        ]:
            self._end_unanswered_lease(key, lease, None, now_ms)

    def resume(self, now_ms: int, leases_until_ms: int = 0) -> None:
        """Restore recorded leases, and extend those that end earlier to `leases_until_ms`.

        During a takeover, the caller passes `leases_until_ms`, and calls `record_extended_leases` once
        records can be appended.
        """
        renewed_until_ms = now_ms + self._settings.auto_renew_lease_ms
        self._groups.resume(now_ms, renewed_until_ms, leases_until_ms)
        self._exhausted_messages.find_exhausted(now_ms)

    def record_extended_leases(self, now_ms: int) -> None:
        """Record the leases extended by this takeover, so that the next one does not extend them again."""
        look = self._groups.peek_in_flight
        lengthened = [
            (key, lease)
            for key, lease in self._leases.all_leases()
            if lease.is_lengthened and not look(key).offsets.leases[lease.queue_offset].is_lengthened
        ]
        self._record_leases(lengthened, now_ms)

    def _record_leases(self, leases: Iterable[tuple[GroupQueue, Lease]], now_ms: int) -> None:
        for key, lease in leases:
            attempts = self._groups.peek_in_flight(key).attempts(lease.queue_offset).made
            self._groups.record_lease(key, lease, attempts, now_ms)

    def _end_unanswered_lease(
        self, key: GroupQueue, lease: Lease, failure: Failure | None, now_ms: int
    ) -> None:
        self._groups.end_unanswered_lease(key, lease, failure, now_ms)
        self._exhausted_messages.queue_if_exhausted(key, lease.queue_offset)

    def _end_restored_leases(self, client_id: str, attempt_id: str, now_ms: int) -> None:
        """End the restored leases of an earlier receive attempt whose response was lost in a restart."""
        for key, lease in self._leases.take_restored_leases(client_id, attempt_id):
            self._end_unanswered_lease(key, lease, None, now_ms)

    def join(self, group: str, topic: str, now_ms: int) -> int:
        """Subscribe a group to a topic at the configured start position.

        Return the offset up to which the log must be durable before the response is sent, or 0 if the group
        is already subscribed.
        """
        if self._groups.is_subscribed(group, topic):
            return 0
        is_latest = self._settings.group_start is StartPosition.LATEST
        # The positions include the queues of a deleted topic with the same name. The current topic may have
        # fewer queues than the deleted topic, and the missing queues may be added later.
        positions = {
            queue_id: queue.end_offset if is_latest else queue.min_offset
            for queue_id, queue in self._store.dispatch.queues_of(topic, limits.QUEUE_COUNT_MAX)
            if is_latest or queue.min_offset
        }
        return self._groups.join(group, topic, positions, now_ms)

    def _scan(self, topic: Topic, state: ReceiveState) -> None:
        if topic.message_type is MessageType.LITE:
            self._lite.scan(topic, state)
        else:
            self._scan_queues(topic, state)
        if state.deliveries:
            label = (state.topic, state.group)
            self._statistics.messages_out[label] += len(state.deliveries)
            self._statistics.bytes_out[label] += state.body_bytes
        elif state.is_crowded and not state.is_scan_budget_spent:
            raise self._in_flight_limit_error(state)

    def _scan_queues(self, topic: Topic, state: ReceiveState) -> None:
        """Lease messages from the queues of a topic.

        Raise `StoreDamaged` if a queue is damaged and no messages were leased.
        """
        damaged: StoreDamaged | None = None
        for number, queue_id in enumerate(self._rotation(topic, state), 1):
            queue = self._store.dispatch.find_queue(state.topic, queue_id)
            compared_bytes = queue.compared_bytes
            try:
                self._scan_queue(GroupQueue(state.group, state.topic, queue_id), queue, state)
            except StoreDamaged as error:  # Damage to the files of one queue does not affect other queues.
                damaged = error
                state.has_read_damage |= queue.compared_bytes > compared_bytes
            state.count_files(queue.compared_bytes - compared_bytes)
            if state.is_over and number < topic.queue_count:
                return  # The next receive scans the other queues and does not read the damaged files again.
        if damaged is not None and not state.deliveries:
            raise damaged

    def _in_flight_limit_error(self, state: ReceiveState) -> TooManyRequests:
        counts = self._groups.aside_counts(state.group, state.topic)
        aside = "; ".join(f"{count} for {format_filter(text)}" for text, count in counts.items() if count)
        leased = self._groups.leased_counts().get((state.topic, state.group), 0)
        if not aside:
            return TooManyRequests(
                f"{state.group} has {limits.IN_FLIGHT_PER_QUEUE_MAX} messages of {state.topic} in flight. "
                "Acknowledge what was received, then receive more."
            )
        return TooManyRequests(
            f"{state.group} has {leased} messages of {state.topic} leased, and others wait for other filters "
            f"of the group: {aside}. Acknowledge what was received, and start clients with these filters. A "
            "filter is forgotten when its clients are gone and others of the group were used for "
            f"{limits.FILTER_IDLE_MS // 60_000} minutes."
        )

    def _rotation(self, topic: Topic, state: ReceiveState) -> Iterator[int]:
        """Yield each queue id once, in rotation or, for a PRIORITY topic, in descending order.

        For topics of other types, each call starts with the next queue, which prevents starvation.
        """
        if topic.message_type.value == PRIORITY:
            return iter(range(topic.queue_count - 1, -1, -1))
        label = (state.topic, state.group)
        self._turns[label] += 1
        return ((self._turns[label] + step) % topic.queue_count for step in range(topic.queue_count))

    def _scan_queue(self, key: GroupQueue, queue: ConsumeQueue, state: ReceiveState) -> None:
        """Lease messages from one queue."""
        flight = self._groups.in_flight(key)
        if self._store.dispatch.is_unrecorded(key.topic, key.queue_id):
            flight.begin_at(
                queue.min_offset
            )  # A later record counts and finishes all messages below this offset.
        while not state.is_over:
            offset = self._next_candidate(key, queue, flight, state)
            if offset is None:
                state.is_crowded |= flight.is_crowded
                return
            if offset < queue.min_offset:  # Retention deleted the message of a restored lease.
                is_fresh = offset == flight.next_offset
                end = flight.unleased_until(offset, queue.min_offset) if is_fresh else offset + 1
                self._groups.skip_messages(key, offset, end, state.now_ms)
                continue
            if offset == flight.next_offset and self._lease_run(key, queue, flight, state):
                continue
            entry = queue.entry(offset)
            if not state.has_space_for(entry.record_bytes):
                return
            record = self._read_entry(queue, offset, entry, state)
            state.count_record(entry.record_bytes)
            wanted_by = 0 if record is None else state.matching_mask(record)
            if record is None and not entry.record_bytes:
                self._groups.skip_gap(key, queue, offset, state.now_ms)
            elif record is None or not wanted_by:
                self._groups.skip_messages(key, offset, offset + 1, state.now_ms)
            elif (attempts := flight.attempts(offset)).made >= state.policy.attempts_max:
                # `exhausted_messages.py` has not moved this message to the dead-letter topic yet.
                self._dead_letters.move_message(key, record, attempts, ATTEMPTS_EXHAUSTED, state.now_ms)
            else:
                self._lease_or_park(key, queue, flight, record, wanted_by, state)

    def _lease_run(self, key: GroupQueue, queue: ConsumeQueue, flight: InFlight, state: ReceiveState) -> bool:
        """Lease consecutive messages, starting at the next offset of the group.

        Return whether any messages were leased.
        """
        count, offset = min(state.remaining_count, flight.fresh_room), flight.next_offset
        # With a tag filter, `_next_candidate` must find each message separately. A run of a single message
        # has no advantage.
        if state.tags_codes is not None or count < 2:
            return False
        entries = queue.entries(offset, count)
        if entries[0].physical_offset not in state.near:
            state.near = self._reading.read_near(entries)
        self._leasing.lease_run(key, flight, entries, state)
        return flight.next_offset > offset

    def _read_entry(
        self, queue: ConsumeQueue, offset: int, entry: Entry, state: ReceiveState
    ) -> Record | None:
        """Return the record of a queue entry, from the records read ahead or from the log."""
        near = state.near.get(entry.physical_offset)
        if near is None or near.queue_offset != offset or near.sys_flag & INNER_BATCH:
            return self._reading.record(queue, offset, entry)
        return near

    def _next_candidate(
        self, key: GroupQueue, queue: ConsumeQueue, flight: InFlight, state: ReceiveState
    ) -> int | None:
        """Return the next offset with a matching tag or in a gap. Finish the skipped messages.

        Return None if there is no such offset or if the scan limit is reached.
        """
        while not state.is_scan_budget_spent:
            offset = flight.candidate(queue.end_offset, state.known.bit)
            if offset is None or state.tags_codes is None or offset != flight.next_offset:
                return offset
            match = queue.next_match(offset, state.tags_codes, ENTRIES_PASSED_AT_ONCE)
            if match == offset:
                return offset
            assert match > offset, "a scan goes forward, or it would not end"
            self._groups.skip_messages(key, offset, flight.unleased_until(offset, match), state.now_ms)
            state.scanned += 1 + (match - offset) // ENTRIES_PASSED_PER_SCANNED
        return None

    def _lease_or_park(
        self,
        key: GroupQueue,
        queue: ConsumeQueue,
        flight: InFlight,
        record: Record,
        wanted_by: int,
        state: ReceiveState,
    ) -> None:
        """Lease a message, park it until its message group is free, or set it aside for other filters."""
        message_group = properties.of_record(record).get(property_names.MESSAGE_GROUP, "")
        offset, is_mine = record.queue_offset, bool(wanted_by & state.known.bit)
        if message_group and not self._may_lease(flight, offset, message_group, is_mine, state):
            flight.park(offset, message_group)
            return
        if not is_mine:
            self._groups.set_aside(key, state.filters, offset, wanted_by, message_group)
            state.has_set_aside = True
            return
        self._leasing.lease(key, flight, record, message_group, state)
        if message_group:
            self._lease_parked_messages(key, queue, flight, message_group, state)

    def _may_lease(
        self, flight: InFlight, offset: int, message_group: str, is_mine: bool, state: ReceiveState
    ) -> bool:
        """Return whether a message is next in its message group or can be added to the run of this receive.

        A message that matches only other filters of the group is not added to the run.
        """
        if flight.message_groups.is_free(message_group, offset):
            return True
        if not is_mine:
            return False
        # A fresh message may join a run only if its message group has no parked messages, because parked
        # messages must be leased before fresh messages (`_lease_parked_messages`).
        is_next = flight.message_groups.next_parked(message_group) is None
        return is_next and state.may_join_run(flight, offset, message_group)

    def _lease_parked_messages(
        self, key: GroupQueue, queue: ConsumeQueue, flight: InFlight, message_group: str, state: ReceiveState
    ) -> None:
        """Lease the parked messages that follow the leased message, up to the maximum run length."""
        while not state.is_over:
            offset = flight.message_groups.next_parked(message_group)
            if offset is None or not state.may_join_run(flight, offset, message_group):
                return
            entry = queue.entry(offset)
            record = (
                self._read_entry(queue, offset, entry, state)
                if state.has_space_for(entry.record_bytes)
                else None
            )
            if record is None or not state.matches_filter(record):
                return
            if flight.attempts(offset).made >= state.policy.attempts_max:
                return  # A later scan moves the message to the dead-letter topic.
            self._leasing.lease(key, flight, record, message_group, state)

    def _find_lease(self, group: str, topic: str, handle: str) -> tuple[GroupQueue, Lease]:
        """Return the lease of a receipt handle. Raise `InvalidReceiptHandle` if the lease has ended."""
        found = self._leases.find_lease(receipts.generation_of(handle))
        if found is not None:
            key, lease = found
            # If `handle` is identical to the handle stored in the lease, it is not decoded, because decoding
            # would dominate the cost of the lookup.
            if lease.handle == handle and key.group == group and key.topic == topic:
                return found
        receipt = receipts.decode(handle)
        if found is not None:
            key, lease = found
            # A restored lease has no handle. The fields of the receipt are compared instead.
            is_same = (lease.queue_offset, lease.leased_ms) == (receipt.queue_offset, receipt.leased_ms)
            if is_same and key == (group, topic, receipt.queue_id):
                return found
        raise _ended_lease_error(topic, receipt)

    def _find_earlier_lease(self, group: str, topic: str, handle: str) -> tuple[GroupQueue, int] | None:
        """Return the queue and offset of a plain message leased in an earlier epoch, or None.

        Leases on messages without a message group are not recorded, and are therefore lost when the leader
        changes. To avoid a second delivery, an acknowledgement by the consumer is accepted if the message is
        neither finished nor leased again.
        """
        try:
            receipt = receipts.decode(handle)
        except InvalidReceiptHandle:
            return None
        is_known = topic in self._topics and self._groups.is_subscribed(group, topic)
        if receipt.epoch >= self._store.log.epoch or not is_known:
            return None
        found, offset = self._topics.get(topic), receipt.queue_offset
        if found.message_type is MessageType.LITE or receipt.queue_id >= found.queue_count:
            return None
        key = GroupQueue(group, topic, receipt.queue_id)
        queue = self._store.dispatch.find_queue(topic, receipt.queue_id)
        flight = self._groups.peek_in_flight(key)
        if not queue.min_offset <= offset < queue.end_offset:
            return None
        if flight.offsets.is_done(offset) or flight.is_leased(offset):
            return None
        record: Record | None = None
        with suppress(
            StoreDamaged
        ):  # Damage to one record must not cause errors for other handles in the call.
            record = self._reading.record(queue, offset, queue.entry(offset))
        if record is None or record.physical_offset != receipt.physical_offset:
            return None
        return None if properties.value_of(record.properties, property_names.MESSAGE_GROUP) else (key, offset)

    def _lease_ms(self, invisible_ms: int, auto_renew: bool) -> int:
        """Return the lease duration in milliseconds.

        Raise `IllegalInvisibleTime` if the requested duration is out of range.
        """
        if auto_renew:
            return self._settings.auto_renew_lease_ms
        _check_invisible_time(invisible_ms, self._settings.invisible_ms_min)
        return invisible_ms


def _ended_lease_error(topic: str, receipt: receipts.Receipt) -> InvalidReceiptHandle:
    return InvalidReceiptHandle(
        f"The lease on {topic} queue {receipt.queue_id} offset {receipt.queue_offset} has run out or "
        "was answered. The message comes again if it was not acknowledged."
    )


def _check_invisible_time(invisible_ms: int, low_ms: int) -> None:
    """Raise `IllegalInvisibleTime` if a lease duration is out of range."""
    high_ms = limits.INVISIBLE_MS_MAX
    if not low_ms <= invisible_ms <= high_ms:
        wrong = f"small. min is {low_ms}" if invisible_ms < low_ms else f"large. max is {high_ms}"
        raise IllegalInvisibleTime(
            f"{invisible_ms} ms is not from {low_ms} to {high_ms} ms.", f"the invisibleTime is too {wrong}"
        )


@lru_cache(maxsize=1024)
def _sorted_codes(tags_codes: frozenset[int]) -> Integers:
    """Return tag hash codes as a sorted int64 array to pass to `ConsumeQueue.next_match`."""
    return np.array(sorted(tags_codes), np.int64)
