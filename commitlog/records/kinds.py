"""Record kinds for the broker, the store tools, the audit, and `explain`.

    kind          topic                       begins  ends
    normal        the topic of the message
    commit        the same, of type commit            the half message at `half_offset`
    delivered     the same, TW_TIMER_OFFSET           the timer: DELIVERED, or FIRED (TW_VERB = FIRE)
    dead letter   %DLQ% and the group
    half          RMQ_SYS_TRANS_HALF_TOPIC    a half message
    outcome       TW_SYS_OUTCOME                      the half message at `half_offset`, uncommitted
    check         TW_SYS_CHECK
    late end      TW_SYS_LATE                         none, because the half message had expired
    timer         rmq_sys_wheel_timer         a timer  TW_REPLACES: MOVED (TW_VERB = MOVE) or REPLACED
    verb          TW_SYS_VERB                         TW_TIMER_OFFSET: CANCELLED, or UNREADABLE (TW_VERB)
    ack, lease, group, topic, schedule, retention, epoch    TW_SYS_ and the kind in capitals
    system        internal topics, for users and rules (TW_SYS_AUTH), for operators' actions
                  (TW_SYS_JOURNAL), for the items of their tasks (TW_SYS_TASK), and of RocketMQ

A message of any kind also ends a timer if it contains a cancellation: the property TW_CANCELS with the
timer's offset and due time, separated by a space. A delivered message may still contain the TW_CANCELS from
its timer record, which has already been applied. RocketMQ neither queues nor indexes records of type 12, so
its readers skip them. The modules that write system records describe their bodies. docs/ARCHITECTURE.md lists
all kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from commitlog.records import properties
from commitlog.records.record import TYPE_COMMIT, Record
from tidewheel import property_names

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OUTCOME_TOPIC: Final = "TW_SYS_OUTCOME"
CHECK_TOPIC: Final = "TW_SYS_CHECK"
LATE_TOPIC: Final = "TW_SYS_LATE"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
VERB_TOPIC: Final = "TW_SYS_VERB"
ACK_TOPIC: Final = "TW_SYS_ACK"
LEASE_TOPIC: Final = "TW_SYS_LEASE"
GROUP_TOPIC: Final = "TW_SYS_GROUP"
TOPIC_TOPIC: Final = "TW_SYS_TOPIC"
SCHEDULE_TOPIC: Final = "TW_SYS_SCHEDULE"
RETENTION_TOPIC: Final = "TW_SYS_RETENTION"
EPOCH_TOPIC: Final = "TW_SYS_EPOCH"
AUTH_TOPIC: Final = "TW_SYS_AUTH"
JOURNAL_TOPIC: Final = "TW_SYS_JOURNAL"
TASK_TOPIC: Final = "TW_SYS_TASK"

DEAD_LETTER_PREFIX: Final = "%DLQ%"
"""Prefix of a dead letter topic. The group name follows."""
OPERATORS: Final = "TW_SYS_OPERATORS"
"""Reserved group that acknowledges redriven and purged dead letters."""

CANCEL: Final = "CANCEL"
FIRE: Final = "FIRE"
MOVE: Final = "MOVE"
UNREADABLE: Final = "UNREADABLE"

KINDS: Final = (
    "normal", "commit", "delivered", "dead letter", "half", "outcome", "check", "late end", "timer", "verb",
    "ack", "lease", "group", "topic", "schedule", "retention", "epoch", "system",
)  # fmt: skip
MESSAGES: Final = ("normal", "commit", "delivered", "dead letter")
"""Kinds of records that consumers can receive."""

BY_TOPIC: Final = {
    HALF_TOPIC: "half",
    OUTCOME_TOPIC: "outcome",
    CHECK_TOPIC: "check",
    LATE_TOPIC: "late end",
    TIMER_TOPIC: "timer",
    VERB_TOPIC: "verb",
    ACK_TOPIC: "ack",
    LEASE_TOPIC: "lease",
    GROUP_TOPIC: "group",
    TOPIC_TOPIC: "topic",
    SCHEDULE_TOPIC: "schedule",
    RETENTION_TOPIC: "retention",
    EPOCH_TOPIC: "epoch",
}
_BY_PREFIX: Final = {
    DEAD_LETTER_PREFIX: "dead letter",
    "TW_SYS_": "system",
    "RMQ_SYS_": "system",
    "rmq_sys_": "system",
    "SCHEDULE_TOPIC_": "timer",
    "%RETRY%": "normal",
}
_OURS: Final = b"TW_"
_ENDING: Final = frozenset((property_names.TIMER_OFFSET, property_names.REPLACES, property_names.CANCELS))
_SAID: Final = (
    property_names.REPLACES,
    property_names.REPLACED_DUE_MS,
    property_names.CANCELS,
    property_names.CANCELS_TOPIC,
    property_names.VERB,
)


class End(IntEnum):
    """Outcomes of timers. UNREADABLE means that all copies of the timer record have been lost."""

    DELIVERED = 1
    CANCELLED = 2
    MOVED = 3
    REPLACED = 4
    FIRED = 5
    UNREADABLE = 6


class TimerEnded(NamedTuple):
    """The end of a timer, including its outcome, due time, and topic.

    `topic` is empty if unknown.
    """

    timer_offset: int
    end: End
    due_ms: int
    topic: str


def kind_of(record: Record) -> str:
    """Return the kind of a record (one of `KINDS`)."""
    kind = kind_of_topic(record.topic)
    if kind != "normal":
        return kind
    if _number(record, property_names.TIMER_OFFSET) is not None:
        return "delivered"
    return "commit" if record.type == TYPE_COMMIT else "normal"


def kind_of_topic(name: str) -> str:
    """Return the kind of records in a topic, which is "normal" for user topics."""
    if name in BY_TOPIC:
        return BY_TOPIC[name]
    return next((kind for prefix, kind in _BY_PREFIX.items() if name.startswith(prefix)), "normal")


def endings(record: Record) -> Iterator[TimerEnded]:
    """Yield a `TimerEnded` for each timer that a record ends."""
    if _OURS not in record.properties:
        return
    stored = properties.of_record(record)
    if _ENDING.isdisjoint(stored):
        return
    timer_offset = _number(record, property_names.TIMER_OFFSET)
    if timer_offset is not None:
        is_verb = record.topic == VERB_TOPIC
        topic = stored.get(property_names.REAL_TOPIC, "") if is_verb else record.topic
        yield TimerEnded(timer_offset, _end(record), _number(record, property_names.DUE_MS) or 0, topic)
        return
    replaced = _number(record, property_names.REPLACES)
    if replaced is not None and record.topic == TIMER_TOPIC:
        is_moved = stored.get(property_names.VERB) == MOVE
        due_ms = _number(record, property_names.REPLACED_DUE_MS) or 0
        topic = stored.get(property_names.REAL_TOPIC, "")
        yield TimerEnded(replaced, End.MOVED if is_moved else End.REPLACED, due_ms, topic)
    cancels = stored.get(property_names.CANCELS, "").split()
    if len(cancels) == 2 and all(map(str.isdigit, cancels)):
        topic = stored.get(property_names.CANCELS_TOPIC, "")
        yield TimerEnded(int(cancels[0]), End.CANCELLED, int(cancels[1]), topic)


def without_endings(stored: bytes) -> dict[str, str]:
    """Return a timer record's properties for a copy that must not end another timer."""
    return {name: value for name, value in properties.decode(stored).items() if name not in _SAID}


def _end(record: Record) -> End:
    verb = properties.of_record(record).get(property_names.VERB)
    if record.topic == VERB_TOPIC:
        return End.UNREADABLE if verb == UNREADABLE else End.CANCELLED
    return End.FIRED if verb == FIRE else End.DELIVERED


def _number(record: Record, name: str) -> int | None:
    value = properties.of_record(record).get(name, "")
    return int(value) if value.isascii() and value.isdigit() else None
