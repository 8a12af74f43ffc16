"""Store topics as log records. A topic is created by an operator or by its first message.

The body of a `TW_SYS_TOPIC` record is a JSON object in one of the following forms:

    members                              effect
    name, message_type, queue_count,     creates the topic, or replaces all settings of the topic
    [check_back], [retention_ms]
    name, deleted, queues, places,       deletes the topic, empties the given queues, and removes the given
    groups                               groups
    name, held                           holds the timers of the topic; "held" is the reason
    name, released                       releases the timers of the topic; "released" is a number of timers
                                         per second

The optional member "check_back" is an object with "immunity_ms", "interval_ms", "interval_ms_max", and
"count_max". The optional member "retention_ms" is the retention of the topic. Holding or releasing timers
(`services.broker.timers.holding`) does not change the settings of a topic.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, astuple, replace
from sys import intern
from typing import Any, Final

from commitlog import limits
from commitlog.facts.facts import (
    OfTopic,
    Stamp,
    TopicDeleted,
    TopicHeld,
    TopicReleased,
    TopicSet,
    record_of,
)
from commitlog.records.kinds import DEAD_LETTER_PREFIX
from commitlog.records.message import MessageType
from commitlog.snapshots.snapshot import Rows
from services.broker.spine.errors import IllegalGroup, TooManyTopics, TopicExists, TopicNotFound
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.store import Store
from services.broker.spine.values import TimerHold, Topic
from tidewheel.errors import ClientMistake, IllegalTopic
from tidewheel.message_rules import SYSTEM_PREFIXES
from tidewheel.message_rules import check_topic_name as check_topic_name
from tidewheel.message_rules import is_system as is_system
from txn.checkback import CheckBackPolicy

_FIELDS_MIN: Final = 3
_DEFAULTS: Final = (None, 0, None)
"""The default check-back policy, retention, and hold of a topic."""
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def require_receivable_topic(name: str) -> None:
    """Raise `IllegalTopic` if a topic is internal, because clients cannot receive from internal topics."""
    if is_system(name):
        raise IllegalTopic(f"{name!r} is one of the broker's own topics. Receive from a topic of yours.")


def require_alterable_topic(name: str) -> None:
    """Raise `IllegalTopic` if a topic is internal or a dead-letter topic."""
    if is_system(name) or name.startswith(DEAD_LETTER_PREFIX):
        raise IllegalTopic(f"{name!r} is one of the broker's own topics, which only the broker changes.")


def check_group_name(name: str) -> None:
    """Raise `IllegalGroup` if a group name is illegal."""
    if not _NAME.fullmatch(name) or len(name) > limits.GROUP_CHARACTERS_MAX or is_system(name):
        raise IllegalGroup(
            f"{name!r} must have 1 to {limits.GROUP_CHARACTERS_MAX} letters, digits, '_', '-', '%' or '|', "
            f"and begin with none of {', '.join(SYSTEM_PREFIXES)}."
        )


def _topic_creation_hint(name: str) -> str:
    """Return a hint on how to create a topic, or an empty string if the topic name is illegal."""
    try:
        check_topic_name(name)
    except IllegalTopic:
        return ""
    return f" Create it: {shlex.join(['tidewheel', 'topic', 'create', name])}"


LOST_HOLD_REASON: Final = "the record of its hold is damaged; its held timers prove the hold"
"""The displayed reason for a hold that `infer_hold` has restored."""


class Topics:
    """The topics of a broker, by name."""

    def __init__(self, store: Store, settings: BrokerSettings) -> None:
        self._store = store
        self._settings = settings
        self._topics: dict[str, Topic] = {}
        self.with_retention: dict[str, None] = {}
        """The names of the topics that have a retention setting, in a fixed order."""
        self.held: set[str] = set()
        """The names of the topics whose due timers are held."""

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def names(self) -> list[str]:
        """Return the names of all topics in arbitrary order."""
        return list(self._topics)

    def all(self) -> list[Topic]:
        """Return all topics, sorted by name."""
        return [self._topics[name] for name in sorted(self._topics)]

    def get(self, name: str) -> Topic:
        """Return the topic with the given name. Raise `TopicNotFound`."""
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotFound(f"There is no {name!r}.{_topic_creation_hint(name)}")
        return topic

    def get_or_create(self, name: str, now_ms: int) -> Topic:
        """Return a topic. If it is missing and auto-creation is enabled, create it with type MIXED.

        Raise `TopicNotFound` if the topic is missing and auto-creation is disabled. Raise the errors of
        `create` if the topic cannot be created.
        """
        topic = self._topics.get(name)
        if topic is None and self._settings.auto_create_topics:
            return self.create(name, MessageType.MIXED, self._settings.queue_count, now_ms)
        return topic or self.get(name)

    def create(self, name: str, message_type: MessageType, queue_count: int, now_ms: int) -> Topic:
        """Create a topic, or return the existing topic if its settings are equal.

        Raise `TopicExists` if the settings differ, `IllegalTopic` if the name is illegal, `ClientMistake` if
        the number of queues is out of range, or `TooManyTopics` if the limit is reached.
        """
        check_topic_name(name)
        if not 1 <= queue_count <= limits.QUEUE_COUNT_MAX:
            raise ClientMistake(f"A topic has 1 to {limits.QUEUE_COUNT_MAX} queues, not {queue_count}.")
        known = self._topics.get(name)
        if known is None:
            if len(self._topics) >= limits.TOPICS_MAX:
                raise TooManyTopics(f"There are {len(self._topics)}: use keys or tags within one instead.")
            return self._add(name, message_type, queue_count, now_ms)
        if (known.message_type, known.queue_count) != (message_type, queue_count):
            raise TopicExists(
                f"{name!r} takes {known.message_type.value} and has {known.queue_count} queues.",
                durable_at=known.durable_at,
            )
        return known

    def check_back(self, name: str) -> CheckBackPolicy | None:
        """Return the check-back policy of a topic, or None for the default policy."""
        topic = self._topics.get(name)
        return None if topic is None else topic.check_back

    def set_check_back(self, name: str, policy: CheckBackPolicy | None, now_ms: int) -> Topic:
        """Set the check-back policy of a topic, or restore the default policy if `policy` is None.

        Raise `TopicNotFound` if the topic does not exist, or `ClientMistake` if a value is out of range.
        """
        topic = self.get(name)
        if policy is not None:
            _check_policy(policy)
        return self._write(replace(topic, check_back=policy), now_ms)

    def dead_letters(self, group: str, now_ms: int) -> Topic:
        """Return the dead-letter topic of a group. If it is missing, create it with a single queue."""
        name = DEAD_LETTER_PREFIX + group
        return self._topics.get(name) or self._add(name, MessageType.NORMAL, 1, now_ms)

    def replace(self, topic: Topic, now_ms: int) -> Topic:
        """Replace the settings of a topic without checks, and return the stored topic."""
        assert topic.name in self._topics, "only an existing topic is replaced"
        return self._write(topic, now_ms)

    def apply(self, fact: OfTopic, stamp: Stamp) -> None:
        """Add, replace, hold, release, or delete a topic."""
        known = self._topics.get(fact.name)
        if isinstance(fact, TopicDeleted):
            self._topics.pop(fact.name, None)
            self.with_retention.pop(fact.name, None)
            self.held.discard(fact.name)
            return
        if isinstance(fact, TopicHeld | TopicReleased):
            known = known or _inferred(fact.name)
            self._put(replace(known, durable_at=stamp.offset + 1, hold=_hold_of(fact, known, stamp)))
            return
        name = intern(fact.name)
        self._topics[name] = Topic(
            name,
            MessageType(fact.message_type),
            fact.queue_count,
            durable_at=stamp.offset + 1,
            check_back=_policy_from_json(fact.check_back),
            retention_ms=fact.retention_ms,
            hold=None if known is None else known.hold,
        )
        if fact.retention_ms:
            self.with_retention[name] = None
        else:
            self.with_retention.pop(name, None)

    def hold(self, name: str, reason: str, now_ms: int) -> Topic:
        """Hold the timers of a topic, and return the stored topic."""
        self._store.append(record_of(TopicHeld(name, reason)), now_ms)
        assert name in self.held, "a hold holds nothing back"
        return self._topics[name]

    def release(self, name: str, per_second: int, now_ms: int) -> Topic:
        """Release the timers of a topic, and return the stored topic."""
        self._store.append(record_of(TopicReleased(name, per_second)), now_ms)
        assert name not in self.held, "a released topic holds its timers back"
        return self._topics[name]

    def release_pace(self, name: str) -> int:
        """Return the release rate of a topic in timers per second, or 0 for no limit."""
        topic = self._topics.get(name)
        return 0 if topic is None or topic.hold is None else topic.hold.per_second or 0

    def infer_topic(self, name: str, queue_id: int) -> None:
        """Ensure that a topic exists and has the queue `queue_id`, because that queue contains a message.

        Damage may have destroyed the topic record.
        """
        known = self._topics.get(name)
        if (known is None or known.queue_count <= queue_id) and not is_system(name):
            learnt = known or Topic(name, MessageType.MIXED, 0)
            self._topics[name] = replace(learnt, queue_count=queue_id + 1)

    def infer_hold(self, name: str, since_ms: int) -> None:
        """Hold a topic because it has a held timer. Damage may have destroyed the hold record."""
        known = self._topics.get(name) or _inferred(name)
        if not known.is_held:
            self._put(replace(known, hold=TimerHold(since_ms, LOST_HOLD_REASON)))

    def freeze(self) -> Any:
        """Return all topics for a snapshot."""
        return Rows([self._topics.copy()], _topic_row)

    def thaw(self, frozen: Any) -> None:
        """Restore all topics from a snapshot."""
        for row in frozen:  # Snapshots of older versions have fewer fields.
            fields = (*row, *_DEFAULTS[len(row) - _FIELDS_MIN :])
            name, message_type, queue_count, check_back, retention_ms, hold = fields
            self._put(
                Topic(
                    intern(name),
                    MessageType(message_type),
                    queue_count,
                    check_back=_policy_from_json(check_back),
                    retention_ms=retention_ms,
                    hold=None if hold is None else TimerHold(*hold),
                )
            )

    def _put(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        (self.held.add if topic.is_held else self.held.discard)(topic.name)
        if topic.retention_ms:
            self.with_retention[topic.name] = None
        else:
            self.with_retention.pop(topic.name, None)

    def _add(self, name: str, message_type: MessageType, queue_count: int, now_ms: int) -> Topic:
        return self._write(Topic(name, message_type, queue_count), now_ms)

    def _write(self, topic: Topic, now_ms: int) -> Topic:
        """Append the record of a topic, and return the stored topic."""
        check_back = _policy_to_json(topic.check_back)
        fact = TopicSet(
            topic.name, topic.message_type.value, topic.queue_count, check_back, topic.retention_ms
        )
        self._store.append(record_of(fact), now_ms)
        written = self._topics[topic.name]
        assert written == replace(topic, durable_at=written.durable_at), "a topic is not what its record says"
        return written


def _topic_row(name: str, topic: Topic) -> tuple[Any, ...]:
    return (
        name,
        topic.message_type.value,
        topic.queue_count,
        _policy_to_json(topic.check_back),
        topic.retention_ms,
        None if topic.hold is None else list(astuple(topic.hold)),
    )


def _inferred(name: str) -> Topic:
    """Return a single-queue placeholder for a topic whose records were destroyed by damage."""
    return Topic(intern(name), MessageType.MIXED, 1)


def _hold_of(fact: TopicHeld | TopicReleased, known: Topic, stamp: Stamp) -> TimerHold:
    if isinstance(fact, TopicHeld):
        return TimerHold(stamp.store_ms, fact.reason)
    return replace(known.hold or TimerHold(stamp.store_ms, ""), per_second=fact.per_second)


def _policy_to_json(policy: CheckBackPolicy | None) -> dict[str, int] | None:
    return None if policy is None else asdict(policy)


def _policy_from_json(stored: Mapping[str, int] | None) -> CheckBackPolicy | None:
    return None if stored is None else CheckBackPolicy(**stored)


def _check_policy(policy: CheckBackPolicy) -> None:
    longest_ms = limits.CHECK_IMMUNITY_MS_MAX
    times_ms = (policy.immunity_ms, policy.interval_ms, policy.interval_ms_max)
    if not all(0 <= time_ms <= longest_ms for time_ms in times_ms) or policy.interval_ms == 0:
        raise ClientMistake(f"Times of check-backs lie between 0 and {longest_ms // 60_000} minutes.")
    if not 1 <= policy.count_max <= limits.CHECK_COUNT_MAX:
        raise ClientMistake(f"A half is asked about 1 to {limits.CHECK_COUNT_MAX} times.")
