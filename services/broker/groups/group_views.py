"""Views of consumer groups, and operations that create, change, reset, and delete groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from commitlog import limits
from commitlog.errors import StoreDamaged
from consumequeue.queue import ConsumeQueue
from services.broker.groups.exhausted_messages import ExhaustedMessages
from services.broker.groups.group_values import (
    FilterView,
    GroupPolicy,
    GroupQueue,
    GroupStart,
    GroupView,
    MissedMessagesView,
    PositionChange,
    QueueView,
    ResetResult,
)
from services.broker.groups.groups import Groups
from services.broker.groups.lite_subscriptions import LiteSubscriptions
from services.broker.spine.errors import GroupExists, GroupNotFound
from services.broker.spine.reading import MessageReader
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics, check_group_name, require_receivable_topic
from services.broker.spine.values import StartPosition
from tidewheel.errors import ClientMistake


class GroupViews:
    """Views of consumer groups, and group operations for operators."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        reading: MessageReader,
        exhausted_messages: ExhaustedMessages,
        lite_subscriptions: LiteSubscriptions,
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._reading, self._exhausted_messages = reading, exhausted_messages
        self._lite_subscriptions = lite_subscriptions

    def view_all(self) -> list[GroupView]:
        """Return views of all groups, sorted by name. The views do not include filters."""
        return [self._view(name) for name in self._groups.names()]

    def view_group(self, name: str) -> GroupView:
        """Return a view of a group. Raise `GroupNotFound` if the group does not exist."""
        self._check_known(name)
        return self._with_filters(self._view(name))

    def queues_of(self, name: str) -> Iterator[QueueView]:
        """Yield a view of each queue of each topic of a group. The caller can pause between queues."""
        for topic in self._groups.topics_of(name):
            for queue_id, queue in self._queues(topic):
                yield self._queue_view(GroupQueue(name, topic, queue_id), queue)

    def assemble_view(self, name: str, queues: list[QueueView]) -> GroupView:
        """Build a group view from the queue views yielded by `queues_of`.

        Raise `GroupNotFound` if the group does not exist.
        """
        self._check_known(name)
        return self._with_filters(self._build_view(name, queues))

    def mixed_filters(self) -> Iterator[tuple[str, FilterView]]:
        """Yield (group, filter) for each filter of the groups that have several filters on one topic."""
        for group, topic in self._groups.filters.groups_with_mixed_filters():
            for one in self.filters(group, topic):
                yield group, one

    def leased(self, name: str) -> Counter[str]:
        """Return the number of messages leased to each client of a group, keyed by client id."""
        return Counter(lease.consumer for key, lease in self._groups.leases.all_leases() if key.group == name)

    def create(
        self, name: str, topic: str, start: GroupStart, now_ms: int, policy: GroupPolicy | None = None
    ) -> int:
        """Create a group that receives `topic` from a start position. `topic` may be empty.

        Return the offset up to which the log must be durable before a response is sent. If `topic` is empty
        and the group already exists with the same policy, make no change. Raise `GroupExists`,
        `TopicNotFound`, `IllegalGroup`, or `ClientMistake` before any change.
        """
        check_group_name(name)
        _check_policy(policy or self._groups.policy(name))
        if topic:
            self._check_not_receiving(name, topic, now_ms)
            positions = {
                move.queue_id: move.after for move in self._list_position_changes(name, topic, start)
            }
            durable_at = self._groups.join(name, topic, positions, now_ms)
        elif self._groups.is_known(name):
            if policy not in (None, self._groups.policy(name)):
                raise GroupExists(
                    f"{name} exists with another policy. Look at it with: tidewheel group show {name}, "
                    f"change it with: tidewheel group set {name}"
                )
            return self._store.log.end_offset
        else:
            policy, durable_at = policy or self._groups.policy(name), 0
        return durable_at if policy is None else self.set_policy(name, policy, now_ms)

    def set_policy(self, name: str, policy: GroupPolicy, now_ms: int) -> int:
        """Set the delivery policy of a group.

        Return the offset up to which the log must be durable before a response is sent. Raise `IllegalGroup`
        for an illegal group name, or `ClientMistake` for an illegal policy.
        """
        check_group_name(name)
        _check_policy(policy)
        durable_at = self._groups.set_policy(name, policy, now_ms)
        self._exhausted_messages.find_exhausted(now_ms, name)
        self._lite_subscriptions.mark_all_ready(name)
        return durable_at

    def delete(self, name: str, topic: str, now_ms: int) -> int:
        """Remove a group from `topic`. If `topic` is empty, remove the group and its policy.

        Return the offset up to which the log must be durable before a response is sent. Raise `GroupNotFound`
        if the group does not exist.
        """
        self._check_known(name)
        for one in self._topics_of(name, topic):
            self._lite_subscriptions.mark_all_ready(name, one)
        return self._groups.leave(name, topic, now_ms)

    def reset(self, name: str, topic: str, start: GroupStart, dry_run: bool, now_ms: int) -> ResetResult:
        """Move a group to a start position in `topic`, or in all of its topics if `topic` is empty.

        Raise `GroupNotFound` if the group does not exist.
        """
        self._check_known(name)
        topics = self._topics_of(name, topic)
        moves = [move for one in topics for move in self._list_position_changes(name, one, start)]
        durable_at = 0
        for one in [] if dry_run else topics:
            self._lite_subscriptions.mark_all_ready(name, one)
            positions = {move.queue_id: move.after for move in moves if move.topic == one}
            durable_at = self._groups.move_group(name, one, positions, now_ms)
        return ResetResult(moves, durable_at)

    def _check_not_receiving(self, name: str, topic: str, now_ms: int) -> None:
        require_receivable_topic(topic)
        self._topics.get_or_create(topic, now_ms)
        if self._groups.is_subscribed(name, topic):
            raise GroupExists(
                f"{name} receives {topic} already. "
                f"Set it elsewhere: tidewheel group reset {name} --topic {topic}"
            )

    def _check_known(self, name: str) -> None:
        check_group_name(name)
        if not self._groups.is_known(name):
            raise GroupNotFound(
                f"There is no {name!r}. It is made by its first receive, or with: tidewheel group create "
                f"{name}. See which there are: tidewheel group ls"
            )

    def _topics_of(self, name: str, topic: str) -> list[str]:
        if topic and not self._groups.is_subscribed(name, topic):
            received = ", ".join(self._groups.topics_of(name)) or "no topic"
            raise GroupNotFound(f"{name} does not receive {topic}; it receives {received}.")
        return [topic] if topic else self._groups.topics_of(name)

    def _view(self, name: str) -> GroupView:
        return self._build_view(name, list(self.queues_of(name)))

    def _build_view(self, name: str, queues: list[QueueView]) -> GroupView:
        found = (
            (topic, self._groups.missed_messages.find(name, topic)) for topic in self._groups.topics_of(name)
        )
        missed = tuple(MissedMessagesView(topic, *one) for topic, one in found if one is not None)
        return GroupView(name, self._groups.policy(name), queues, missed=missed)

    def _with_filters(self, view: GroupView) -> GroupView:
        topics = self._groups.topics_of(view.name)
        return replace(view, filters=tuple(one for topic in topics for one in self.filters(view.name, topic)))

    def filters(self, name: str, topic: str) -> list[FilterView]:
        """Return the filters of a group on a topic, oldest first."""
        waiting, found = self._groups.aside_counts(name, topic), self._groups.filters.peek(name, topic)
        return [
            FilterView(topic, text, tuple(known.clients), waiting[text])
            for text, known in found.known.items()
        ]

    def _queue_view(self, key: GroupQueue, queue: ConsumeQueue) -> QueueView:
        flight = self._groups.peek_in_flight(key)
        committed_offset = max(flight.offsets.committed_offset, queue.min_offset)
        return QueueView(
            topic=key.topic,
            queue_id=key.queue_id,
            min_offset=queue.min_offset,
            committed_offset=committed_offset,
            next_offset=max(flight.next_offset, committed_offset),
            end_offset=queue.end_offset,
            in_flight=flight.held_count,
            waiting=flight.waiting_count,
            done_above=flight.offsets.done_above_count,
            oldest_ms=self._oldest_ms(key, committed_offset),
        )

    def _oldest_ms(self, key: GroupQueue, committed_offset: int) -> int | None:
        """Return the store time of the first unfinished message of a group in a queue, or None.

        Return None if all messages are finished. Also return None if the queue is damaged, because a damaged
        queue must not prevent views of other queues.
        """
        with suppress(StoreDamaged):
            return self._reading.store_ms(key.topic, key.queue_id, committed_offset)
        return None

    def _list_position_changes(self, name: str, topic: str, start: GroupStart) -> list[PositionChange]:
        return [
            PositionChange(
                topic,
                queue_id,
                max(self._groups.committed_offset(GroupQueue(name, topic, queue_id)), queue.min_offset),
                self._offset(topic, queue_id, queue, start),
                queue.min_offset,
                queue.end_offset,
            )
            for queue_id, queue in self._queues(topic)
        ]

    def _offset(self, topic: str, queue_id: int, queue: ConsumeQueue, start: GroupStart) -> int:
        """Return the queue offset for a start position."""
        if start.kind is StartPosition.TIME:
            found = start.places.get((topic, queue_id))
            if found is None:
                found = self._reading.offset_at(topic, queue_id, start.at)
            return min(max(found, queue.min_offset), queue.end_offset)
        wanted = {
            StartPosition.EARLIEST: queue.min_offset,
            StartPosition.LATEST: queue.end_offset,
            StartPosition.OFFSET: start.at,
        }
        return min(max(wanted[start.kind], queue.min_offset), queue.end_offset)

    def _queues(self, topic: str) -> list[tuple[int, ConsumeQueue]]:
        count = self._topics.get(topic).queue_count if topic in self._topics else 0
        return [(queue_id, self._store.dispatch.find_queue(topic, queue_id)) for queue_id in range(count)]


def _check_policy(policy: GroupPolicy) -> None:
    if not 1 <= policy.attempts_max <= limits.ATTEMPTS_MAX:
        raise ClientMistake(f"A message has 1 to {limits.ATTEMPTS_MAX} attempts, not {policy.attempts_max}.")
    if not policy.retry_after_ms or not all(
        0 <= ms <= limits.INVISIBLE_MS_MAX for ms in policy.retry_after_ms
    ):
        raise ClientMistake(
            f"Retries come after 0 to {limits.INVISIBLE_MS_MAX} ms each, at least one of them."
        )
    if not 1 <= policy.fifo_run_max <= limits.RECEIVE_BATCH_MAX:
        raise ClientMistake(f"A run has 1 to {limits.RECEIVE_BATCH_MAX} messages, not {policy.fifo_run_max}.")
