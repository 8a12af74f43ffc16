"""Receives from LITE topics, which return messages of the lite topics to which the client is subscribed.

Within a consumer group, a lite topic is ordered like a message group. Only one message, or a run of messages
up to the limit in the policy, is leased at a time. The messages of a lite topic may be leased to any
subscriber. Messages are not parked, because the index locates the next message of a lite topic. A receive
neither returns nor skips messages if its client has sent no subscription since the broker started.

Cost: one binary search per ready lite topic (`services.broker.groups.lite_subscriptions`).

Limitation: readiness is not polled. Code that unblocks a message must mark the lite topic of the message as
ready, as `Leases.end` does. If the lite topic is not marked, the message is not delivered until another
message arrives in the lite topic.
"""

from __future__ import annotations

from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.record import Record
from consumequeue.entry import hash_lite_topic
from consumequeue.groups.in_flight import InFlight
from consumequeue.groups.offsets import GroupOffsets
from consumequeue.lite_index import LiteIndex
from services.broker.groups.dead_letters import DeadLetters
from services.broker.groups.exhausted_messages import ATTEMPTS_EXHAUSTED
from services.broker.groups.group_values import GroupQueue
from services.broker.groups.groups import Groups
from services.broker.groups.lite_subscriptions import LiteSubscriptions, Subscription
from services.broker.groups.lite_topics import LiteTopics, queue_of
from services.broker.groups.message_leasing import MessageLeasing, ReceiveState
from services.broker.spine.reading import MessageReader
from services.broker.spine.store import Store
from services.broker.spine.values import Subscriber, Topic
from tidewheel import property_names

_UNCODED = 0
"""The hash code in the index for gaps and for records without a lite topic."""


class LiteMessageReceiver:
    """The scan of lite topics during a receive."""

    def __init__(
        self,
        store: Store,
        groups: Groups,
        lite_topics: LiteTopics,
        subscriptions: LiteSubscriptions,
        leasing: MessageLeasing,
        reading: MessageReader,
        dead_letters: DeadLetters,
    ) -> None:
        self._store, self._groups, self._lite_topics = store, groups, lite_topics
        self.subscriptions = subscriptions
        self._leasing, self._reading, self._dead_letters = leasing, reading, dead_letters

    def scan(self, topic: Topic, state: ReceiveState) -> None:
        """Lease messages from the lite topics that are ready for the client.

        Raise `StoreDamaged` if a queue is damaged and no messages were leased. A lite topic in a damaged
        queue stays ready.
        """
        subscriber = Subscriber(state.group, state.topic, state.client_id)
        subscription = self.subscriptions.record_heartbeat(subscriber, state.now_ms)
        if subscription is None:
            return
        damaged: StoreDamaged | None = None
        for _ in range(len(subscription.ready)):
            if state.is_over or state.is_crowded:
                break
            lite_topic, _ = subscription.ready.popitem(last=False)
            assert lite_topic in subscription.lite_topics, "a lite topic is ready that nobody subscribes to"
            key = GroupQueue(state.group, state.topic, queue_of(lite_topic, topic))
            try:
                has_more = self._lease_from_lite_topic(key, lite_topic, subscription, state)
            except StoreDamaged as error:  # Damage to the files of one queue does not affect other queues.
                damaged, has_more = error, True
            if has_more:
                subscription.ready[lite_topic] = None
        if damaged is not None and not state.deliveries and not state.is_over:
            raise damaged

    def _lease_from_lite_topic(
        self, key: GroupQueue, lite_topic: str, subscription: Subscription, state: ReceiveState
    ) -> bool:
        """Lease messages from a lite topic. Return whether the lite topic must stay ready."""
        flight, index = self._groups.in_flight(key), self._lite_topics.index(key.topic, key.queue_id)
        offsets = flight.offsets
        index.reach(offsets.committed_offset)  # A reset can require index entries that were trimmed.
        self._skip_non_lite_records(key, index, offsets, state)
        if state.is_over:
            return True
        code = hash_lite_topic(lite_topic)
        # The search resumes at the end of the previous search, because all earlier messages of the lite topic
        # are finished.
        offset = next_open_offset(index, offsets, code, subscription.lite_topics[lite_topic])
        subscription.lite_topics[lite_topic] = index.read_offset if offset is None else offset
        while offset is not None and (
            flight.message_groups.is_free(lite_topic, offset)
            or state.may_join_run(flight, offset, lite_topic)
        ):
            if state.is_over or flight.is_crowded:
                state.is_crowded |= flight.is_crowded
                return True
            if not self._lease_message(key, flight, offset, lite_topic, state):
                return False
            if state.runs[lite_topic] >= state.policy.fifo_run_max:
                return False
            offset = next_open_offset(index, offsets, code, offset + 1)
        return False

    def _skip_non_lite_records(
        self, key: GroupQueue, index: LiteIndex, offsets: GroupOffsets, state: ReceiveState
    ) -> None:
        """Skip records without a lite topic. Report and skip gaps.

        Skipped records count toward the scan limit of the receive.
        """
        queue = self._store.dispatch.queue(key.topic, key.queue_id)
        while not state.is_over and _UNCODED in index:
            if (offset := next_open_offset(index, offsets, _UNCODED, 0)) is None:
                return
            state.count_record(0)
            if queue.entry(offset).record_bytes:
                self._groups.skip_messages(key, offset, offset + 1, state.now_ms)
            else:
                self._groups.skip_gap(key, queue, offset, state.now_ms)

    def _lease_message(
        self, key: GroupQueue, flight: InFlight, offset: int, lite_topic: str, state: ReceiveState
    ) -> bool:
        """Lease the message at `offset` unless it is deleted, matches no filter, or has no attempts left.

        Return False if the message matches only other filters of the group, and therefore blocks the lite
        topic.
        """
        queue = self._store.dispatch.queue(key.topic, key.queue_id)
        entry = queue.entry(offset)
        if not state.has_space_for(entry.record_bytes):
            return True
        record = self._reading.record(queue, offset, entry)
        state.count_record(entry.record_bytes)
        if record is not None and not _has_lite_topic(record, lite_topic):
            return True  # The record belongs to another lite topic with the same hash code.
        wanted_by = 0 if record is None else state.matching_mask(record)
        if record is None or not wanted_by:
            self._groups.skip_messages(key, offset, offset + 1, state.now_ms)
        elif (attempts := flight.attempts(offset)).made >= state.policy.attempts_max:
            self._dead_letters.move_message(key, record, attempts, ATTEMPTS_EXHAUSTED, state.now_ms)
        elif not wanted_by & state.known.bit:
            return False
        else:
            assert not flight.offsets.is_done(offset), "a message that is done is leased"
            self._leasing.lease(key, flight, record, lite_topic, state, is_found=True)
        return True


def next_open_offset(index: LiteIndex, offsets: GroupOffsets, code: int, offset: int) -> int | None:
    """Return the offset of the first unfinished message of a lite topic at or above `offset`, or None."""
    found = index.next(code, offsets.open_from(offset))
    while found is not None and (unfinished := offsets.open_from(found)) != found:
        found = index.next(code, unfinished)
    return found


def _has_lite_topic(record: Record, lite_topic: str) -> bool:
    return properties.value_of(record.properties, property_names.LITE_TOPIC) == lite_topic
