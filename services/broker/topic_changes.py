"""Topic changes made by operators, and the usage of a topic before a change.

    verb      records appended by one call                    refused if
    alter     `TopicSet`, and `LogCut` for queues with        messages would be lost or reordered
              messages that a new retention discards          (`_check_type`, `_check_queues`)
    purge     `LogCut` for the queues of the topic            messages are unfinished and `discard` is false
    hold      `TopicHeld`                                     the timers of the topic are already held
    release   `TopicReleased`                                 no timers of the topic are held
    delete    one record that contains `LogCut`,              timers, half messages, or schedules exist, or
              `GroupLeft`, and `TopicDeleted`                 messages are unfinished and `discard` is false

1. A message is unfinished until all consumer groups of the topic have finished it. If a topic has no consumer
   group, all its messages are unfinished. `describe_use` returns the counts, and each change checks them
   again.
2. A purge sets the first offset of each queue to its end offset, which discards exactly the durable messages.
   The records of discarded messages stay in the log until retention deletes the segments.
3. After a crash, a single-record change is either complete or absent. If more than `_GROUPS_MAX` groups
   receive a topic, the excess groups are removed by separate records before the topic is deleted. If a crash
   occurs between the record of a new retention and its `LogCut`, the next retention check discards the
   messages.
4. In a cluster, setting a retention and holding or deleting a topic require a finalized version that supports
   these records (`services.broker.spine.record_versions`), because older nodes could not read them.
5. The queue offsets of a deleted topic are never reused. The queues of a new topic with the same name begin
   after the old offsets. A receipt handle from the old topic therefore cannot acknowledge a message in the
   new topic.

Cost: `describe_use` examines each queue of the topic once per consumer group. Limitation: the next offset of
every deleted queue remains in memory and in snapshots and takes about 100 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from commitlog import limits
from commitlog.facts.facts import GroupLeft, HalfStored, LogCut, deletion_of, record_of
from commitlog.records.message import MessageType
from consumequeue.queue import UNKNOWN
from services.broker.groups.dead_letters import DeadLetters
from services.broker.groups.group_values import GroupQueue
from services.broker.groups.groups import Groups
from services.broker.halves.transactions import Transactions
from services.broker.schedules.schedules import Schedules
from services.broker.spine import record_versions
from services.broker.spine.errors import HoldConflict, TopicInUse
from services.broker.spine.store import Store
from services.broker.spine.topics import Topics, require_alterable_topic
from services.broker.spine.values import Topic
from services.broker.timers.timers import Timers
from services.broker.topic_retention import ExpiredMessages, TopicRetention
from tidewheel.errors import ClientMistake

_ORDERED: Final = (MessageType.FIFO, MessageType.MIXED)
"""The topic types with message groups. The queue of a message group depends on the number of queues."""
_GROUPS_MAX: Final = 1_000
"""Maximum number of groups that the record of a topic deletion removes."""
_NAMES_MAX: Final = 10
"""Maximum number of names in an error message."""


class GroupUse(NamedTuple):
    """The unfinished messages and dead letters of a group."""

    group: str
    unfinished: int
    dead_letters: int


class TopicUse(NamedTuple):
    """The messages, timers, half messages, schedules, and groups of a topic.

    `messages` is the number of messages in the queues of the topic, including finished messages.
    """

    topic: Topic
    messages: int
    timers: int
    held_timers: int
    """Number of due timers that are held. These timers are also counted in `timers`."""
    halves: int
    schedules: list[str]
    groups: list[GroupUse]

    @property
    def unfinished(self) -> int:
        """Number of unfinished messages. A message counts once for each group that has not finished it."""
        counts = [one.unfinished for one in self.groups]
        return sum(counts) if counts else self.messages


class TopicChange(NamedTuple):
    """The result of a topic change, and the usage of the topic before the change."""

    use: TopicUse
    topic: Topic
    durable_at: int
    expired: ExpiredMessages = ExpiredMessages(0, 0)
    """The messages that were discarded immediately because of a new retention."""


class TopicChanges:
    """Operations that change topics."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        dead_letters: DeadLetters,
        timers: Timers,
        transactions: Transactions,
        schedules: Schedules,
        retention: TopicRetention,
    ) -> None:
        self._store, self._topics, self._groups = store, topics, groups
        self._dead_letters, self._timers = dead_letters, timers
        self._transactions, self._schedules, self._retention = transactions, schedules, retention

    def describe_use(self, name: str) -> TopicUse:
        """Return the current usage of a topic. Raise `TopicNotFound` if the topic does not exist."""
        topic = self._topics.get(name)
        return TopicUse(
            topic,
            sum(end - first for _, first, end in self._list_queues(topic)),
            self._timers.pending_by_topic[name],
            self._timers.held.counts[name],
            self._transactions.outcomes.waiting_by_topic[name],
            self._schedules.names_of(name),
            [self._describe_group_use(group, topic) for group in sorted(self._groups.groups_of(name))],
        )

    def expired(self, name: str, retention_ms: int, now_ms: int) -> ExpiredMessages:
        """Count the messages that a retention would discard immediately.

        Raise `TopicNotFound`, or `ClientMistake` if the retention is out of range.
        """
        _check_retention(retention_ms)
        topic = replace(self._topics.get(name), retention_ms=retention_ms)
        return self._retention.count(self._retention.find_expired(topic, now_ms))

    def alter(
        self,
        name: str,
        message_type: MessageType | None,
        queue_count: int | None,
        now_ms: int,
        *,
        retention_ms: int | None = None,
        discard: bool = False,
    ) -> TopicChange:
        """Change the type, number of queues, or retention of a topic. None leaves a setting unchanged.

        The retention is in milliseconds, and 0 disables it. Messages older than a new retention are discarded
        immediately. Unfinished messages are discarded only if `discard` is true. Raise `TopicNotFound`,
        `IllegalTopic`, `ClientMistake` if the change is never allowed, `TopicInUse` if messages or other
        objects of the topic prevent the change, or `VersionNotFinalized` if older nodes in the cluster do not
        support a retention.
        """
        require_alterable_topic(name)
        use = self.describe_use(name)
        known = use.topic
        wanted = replace(
            known,
            message_type=message_type or known.message_type,
            queue_count=known.queue_count if queue_count is None else queue_count,
            retention_ms=known.retention_ms if retention_ms is None else retention_ms,
        )
        if wanted == known:
            return TopicChange(use, known, known.durable_at)
        self._check_type(use, wanted.message_type)
        _check_queues(use, wanted)
        _check_retention(wanted.retention_ms)
        if wanted.retention_ms:
            self._require_version("The retention of a topic")
        rises = self._retention.find_expired(replace(wanted, queue_count=known.queue_count), now_ms)
        expired = self._retention.count(rises)
        if expired.unfinished and not discard and wanted.retention_ms != known.retention_ms:
            raise TopicInUse(
                f"{_messages(expired.messages, name)} older than the retention, "
                f"{expired.unfinished:,} of them unfinished. Let them be received, or let the change discard "
                f"them: tidewheel topic alter {name} --retention ... --yes"
            )
        topic = self._topics.replace(wanted, now_ms)
        return TopicChange(use, topic, max(topic.durable_at, self._retention.cut(rises, now_ms)), expired)

    def purge(self, name: str, now_ms: int, *, discard: bool = False) -> TopicChange:
        """Discard the durable messages of a topic. Raise `TopicNotFound`, `IllegalTopic`, or `TopicInUse`."""
        require_alterable_topic(name)
        use = self.describe_use(name)
        _check_unfinished(use, "purge", discard=discard)
        return TopicChange(use, use.topic, self._purge_queues(use.topic, now_ms))

    def hold(self, name: str, reason: str, now_ms: int) -> TopicChange:
        """Hold the timers of a topic when they become due, until `release` is called.

        The hold also applies to timers that were set before this call. Raise `TopicNotFound`, `IllegalTopic`,
        `HoldConflict` if the timers are already held, or `VersionNotFinalized`.
        """
        require_alterable_topic(name)
        use = self.describe_use(name)
        if use.topic.is_held:
            raise HoldConflict(
                f"The timers of {name!r} are held already. Deliver them: tidewheel topic release {name}"
            )
        self._require_version("A hold")
        topic = self._topics.hold(name, reason, now_ms)
        return TopicChange(use, topic, topic.durable_at)

    def release(self, name: str, per_second: int, now_ms: int) -> TopicChange:
        """Deliver up to `per_second` held timers of a topic per second, or all at once if it is 0.

        If a release is in progress, change its rate. Raise `TopicNotFound`, `IllegalTopic`, `ClientMistake`
        if the rate is out of range, or `HoldConflict` if no timers are held.
        """
        require_alterable_topic(name)
        if not 0 <= per_second <= limits.RELEASE_PER_SECOND_MAX:
            raise ClientMistake(
                f"A release delivers 1 to {limits.RELEASE_PER_SECOND_MAX:,} timers per second, or 0 for all "
                f"at once, not {per_second}."
            )
        use = self.describe_use(name)
        if not use.topic.is_held and not use.held_timers:
            raise HoldConflict(f"No timers of {name!r} are held. Hold them: tidewheel topic hold {name}")
        topic = self._topics.release(name, per_second, now_ms)
        return TopicChange(use, topic, topic.durable_at)

    def delete(self, name: str, now_ms: int, *, discard: bool = False) -> TopicChange:
        """Delete a topic and its queues.

        Raise `TopicNotFound`, `IllegalTopic`, `TopicInUse`, or `VersionNotFinalized`.
        """
        require_alterable_topic(name)
        use = self.describe_use(name)
        _check_waiting(use)
        _check_unfinished(use, "delete", discard=discard)
        if self._has_unflushed_messages(name):
            raise TopicInUse(f"Messages of {name!r} are being stored. Stop its producers, then delete it.")
        self._require_version("The deletion of a topic")
        groups = [one.group for one in use.groups]
        for group in groups[_GROUPS_MAX:]:
            self._store.append(record_of(GroupLeft(group, name)), now_ms)
        queues = self._list_end_offsets(use.topic)
        deletion = deletion_of(name, queues, [UNKNOWN] * len(queues), groups[:_GROUPS_MAX])
        end_offset = self._store.append(deletion, now_ms).end_offset
        assert name not in self._topics, "a deleted topic is there"
        return TopicChange(use, use.topic, end_offset)

    def _require_version(self, what: str) -> None:
        """Raise `VersionNotFinalized` if older nodes of the cluster do not support the change."""
        record_versions.require(self._store, record_versions.TOPIC_CHANGES, what)

    def _purge_queues(self, topic: Topic, now_ms: int) -> int:
        """Set the first offset of each queue to its end offset. Return the end offset of the log record.

        Return 0 if all queues are empty.
        """
        queues = self._list_end_offsets(topic)
        if not queues:
            return 0
        cut = LogCut(0, is_done=False, queues=queues, places=[UNKNOWN] * len(queues))
        return self._store.append(record_of(cut), now_ms).end_offset

    def _list_end_offsets(self, topic: Topic) -> list[tuple[str, int, int]]:
        """Return (topic, queue id, end offset) for each queue that has messages."""
        return [
            (topic.name, queue_id, end) for queue_id, first, end in self._list_queues(topic) if first < end
        ]

    def _has_unflushed_messages(self, name: str) -> bool:
        """Return whether the topic has messages or half messages that are not yet durable."""
        for one in self._store.unflushed():
            halves = (fact.topic for fact in one.facts if isinstance(fact, HalfStored))
            if name in (*one.topics(), *halves):
                return True
        return False

    def _list_queues(self, topic: Topic) -> Iterator[tuple[int, int, int]]:
        """Yield (queue id, first offset, end offset) for each queue with durable messages."""
        for queue_id, queue in self._store.dispatch.queues_of(topic.name, topic.queue_count):
            yield queue_id, queue.min_offset, queue.end_offset

    def _describe_group_use(self, group: str, topic: Topic) -> GroupUse:
        unfinished = sum(
            self._groups.unfinished_count(GroupQueue(group, topic.name, queue_id), first, end)
            for queue_id, first, end in self._list_queues(topic)
        )
        return GroupUse(group, unfinished, self._dead_letters.count_open_dead_letters(group).count)

    def _check_type(self, use: TopicUse, message_type: MessageType) -> None:
        """Raise `ClientMistake` or `TopicInUse` if the topic cannot be changed to this type."""
        old, name = use.topic.message_type, use.topic.name
        if message_type is old:
            return
        fixed = {MessageType.PRIORITY, MessageType.LITE}
        if {message_type, old} & fixed or MessageType.MIXED not in (message_type, old):
            raise ClientMistake(
                f"{name!r} takes {old.value} and cannot take {message_type.value}. A type changes to MIXED, "
                "or from MIXED to NORMAL, FIFO, DELAY or TRANSACTION. Create another topic instead."
            )
        if message_type is not MessageType.MIXED:
            _check_waiting(use, message_type)


def _check_queues(use: TopicUse, wanted: Topic) -> None:
    """Raise `ClientMistake` or `TopicInUse` if the number of queues cannot be changed as requested."""
    name, old, new = wanted.name, use.topic.queue_count, wanted.queue_count
    if new == old:
        return
    if not old < new <= limits.QUEUE_COUNT_MAX:
        lost = ": the messages of a removed queue would be lost" if new < old else ""
        raise ClientMistake(
            f"{name!r} has {old} queues and can get up to {limits.QUEUE_COUNT_MAX}, not {new}{lost}."
        )
    if wanted.message_type is MessageType.LITE:
        raise ClientMistake(f"{name!r} is of type LITE: the number of queues places its lite topics.")
    if use.topic.message_type in _ORDERED and use.unfinished:
        raise TopicInUse(
            f"{_messages(use.unfinished, name)} unfinished. With another number of queues a "
            "message group continues in another queue, so its new messages could precede these. Add queues "
            f"when all are finished: {_describe_unfinished_groups(use)}"
        )


def _check_retention(retention_ms: int) -> None:
    """Raise `ClientMistake` if the retention is out of range."""
    least, most = limits.TOPIC_RETENTION_MS_MIN, limits.TOPIC_RETENTION_MS_MAX
    if retention_ms and not least <= retention_ms <= most:
        raise ClientMistake(
            f"A retention lies between {least // 1_000} s and {most // 86_400_000:,} days, or is none."
        )


def _check_waiting(use: TopicUse, message_type: MessageType | None = None) -> None:
    """Raise `TopicInUse` if timers, half messages, or schedules prevent the change."""
    name, found = use.topic.name, []
    if use.timers and message_type is not MessageType.DELAY:
        found.append(f"{_counted(use.timers, 'timer')} (tidewheel timer cancel --all --topic {name})")
    if use.halves and message_type is not MessageType.TRANSACTION:
        halves = _counted(use.halves, "open or expired half", "open or expired halves")
        found.append(f"{halves} (tidewheel txn ls --topic {name})")
    if use.schedules:
        names = ", ".join(use.schedules[:_NAMES_MAX])
        more = f" and {len(use.schedules) - _NAMES_MAX} more" if len(use.schedules) > _NAMES_MAX else ""
        found.append(
            f"the schedule{'s' if len(use.schedules) > 1 else ''} {names}{more} (tidewheel schedule rm NAME)"
        )
    if found:
        raise TopicInUse(f"{name!r} is the topic of {'; '.join(found)}. End them first.")


def _check_unfinished(use: TopicUse, verb: str, *, discard: bool) -> None:
    """Raise `TopicInUse` if messages are unfinished and `discard` is false."""
    if use.unfinished and not discard:
        raise TopicInUse(
            f"{_messages(use.unfinished, use.topic.name)} unfinished: {_describe_unfinished_groups(use)}. "
            f"Let them be received, or discard them: tidewheel topic {verb} {use.topic.name} --discard "
            f"--unfinished {use.unfinished} --yes"
        )


def _messages(count: int, topic: str) -> str:
    """Return a message count with a matching verb, such as "1 message of 't' is"."""
    return f"{_counted(count, 'message')} of {topic!r} {'is' if count == 1 else 'are'}"


def _counted(count: int, noun: str, nouns: str = "") -> str:
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def _describe_unfinished_groups(use: TopicUse) -> str:
    """List the groups with unfinished messages, for an error message."""
    behind = [f"{one.group} ({one.unfinished:,})" for one in use.groups if one.unfinished]
    more = f" and {len(behind) - _NAMES_MAX} more" if len(behind) > _NAMES_MAX else ""
    return ", ".join(behind[:_NAMES_MAX]) + more if behind else "no group receives it"
