"""Converts records into plain values for the broker, its tools, and `explain`.

A record may contain any number of facts. For example, a commit record may also cancel one timer and replace
another. Either all facts in a record survive a crash, or none do.

    fact              record                                   meaning
    TimerEnded        message, timer, verb                     a timer ended (`commitlog.records.kinds`)
    TimerSet          timer                                    a timer was set, at the offset of the record
    HalfStored        half                                     a half message was stored, and is open
    HalfEnded         message or timer of type commit; outcome a half message was ended or expired
    HalfAsked         check                                    a check-back was sent to a producer
    HalfEndedLate     late end                                 a producer ended an expired half message
    Finished          ack                                      a group has finished ranges of a queue
    LeaseChanged      lease                                    a lease began, or ended unacknowledged
    PolicySet, GroupLeft, FiltersForgotten, GroupJoined
                      group                                    a change of a group's policy, topics or filters
    TopicSet, TopicDeleted, TopicHeld, TopicReleased
                      topic                                    a topic was created, changed or deleted, or its
                                                               due timers are held or released; the record of
                                                               a deletion also empties the queues of the topic
                                                               (LogCut) and removes its groups (GroupLeft)
    ScheduleSet, ScheduleDeleted, SchedulePaused, ScheduleResumed, SchedulePassed
                      schedule                                 a change of a schedule
    ScheduleRan       message or timer with TW_SCHEDULE        a schedule has sent a run
    LogCut            retention                                the start of the log is moved
    EpochBegun        epoch                                    an epoch began with a new leader
    UserSet, UserRemoved, TokenMade, TokenRevoked, RulesSet, RulesRemoved
                      TW_SYS_AUTH                              a change of users, tokens or rules

1. `facts_of` reads only the topic, type, properties, and body of a record. Its offset and store time are not
   part of the facts.
2. `record_of` returns the record for a fact stored in its own JSON record (`TOPICS`). `acks` and
   `lease_records` encode the records shared by several acknowledgements or leases. All other facts are stored
   in message records.
3. A record of an unknown newer kind contains no facts. An unknown verb raises KeyError.
4. RocketMQ timers and half messages can also be read. Their properties may contain arbitrary text from
   clients. A timer record whose time is not a number does not set a timer. In a half message, an invalid time
   is ignored.

Cost: 0.3 us for a record without facts, and several microseconds for one with a JSON body. JSON bodies are
rare.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, Final, NamedTuple, Protocol, get_args

from commitlog.applied_limits import OLDEST
from commitlog.facts import acks, lease_records
from commitlog.facts.acks import MessagesFinished as MessagesFinished
from commitlog.facts.lease_records import Key, LeaseEntry
from commitlog.records import properties
from commitlog.records.kinds import (
    ACK_TOPIC,
    AUTH_TOPIC,
    CHECK_TOPIC,
    EPOCH_TOPIC,
    GROUP_TOPIC,
    HALF_TOPIC,
    LATE_TOPIC,
    LEASE_TOPIC,
    OUTCOME_TOPIC,
    RETENTION_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TOPIC_TOPIC,
    endings,
)
from commitlog.records.kinds import TimerEnded as TimerEnded
from commitlog.records.record import TYPE_COMMIT, TYPE_SYSTEM, Record
from tidewheel import property_names

_OURS: Final = b"TW_"
_SCHEDULE: Final = property_names.SCHEDULE.encode()


class Stamp(Protocol):
    """A record's log offset, queue offset, and store time (in milliseconds since the Unix epoch).

    `stored` is the record or its bytes. It is used only by code that keeps the record.
    """

    @property
    def offset(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def store_ms(self) -> int: ...
    @property
    def stored(self) -> Record | bytes: ...


class TimerSet(NamedTuple):
    """A timer was set at the offset of its record.

    `message_id` is None, or `key` is "", if the timer cannot be found by it. If `is_held` is true, the timer
    became due while its topic was held, and it is waiting for the topic's release. `proves_hold` is set if
    the topic was held when the record was appended. A held timer rebuilt after damage proves no hold.
    """

    due_ms: int
    topic: str
    message_id: str | None
    key: str
    is_held: bool = False
    proves_hold: bool = False


class HalfStored(NamedTuple):
    """A half message for `topic` was stored at the offset of its record.

    `due_ms` is the delivery time, if any. `check_ms` is the time of the first check-back. For a RocketMQ half
    message, `immunity_s` or a default determines this time.
    """

    topic: str
    message_id: str
    due_ms: int | None
    check_ms: int | None
    immunity_s: int | None


class HalfEnded(NamedTuple):
    """A half message ended with the outcome "COMMIT", "ROLLBACK", or "EXPIRED"."""

    half_offset: int
    how: str


class CheckBackSent(NamedTuple):
    """A check-back was sent for a half message.

    `asked_count` is the number of check-backs sent so far. The next one is due at `check_ms`, or at a default
    time if `check_ms` is None.
    """

    half_offset: int
    asked_count: int
    check_ms: int | None


class LateEndRequested(NamedTuple):
    """A producer tried to end a half message that had expired."""

    half_offset: int
    asked_for: str


class LeaseChanged(NamedTuple):
    """A group's lease on a message began, changed, or ended."""

    key: Key
    entry: LeaseEntry


class PolicySet(NamedTuple):
    """The delivery policy of a group was set."""

    group: str
    policy: Mapping[str, Any]


class GroupLeft(NamedTuple):
    """A group left a topic. If the topic is "", the group was removed."""

    group: str
    topic: str


class FiltersRemoved(NamedTuple):
    """A group's filters for a topic were removed, given as (type, expression) pairs."""

    group: str
    topic: str
    filters: Sequence[Sequence[str]]


class GroupJoined(NamedTuple):
    """A group began receiving messages from a topic.

    `log_offset` is the first offset in the log at that time. All other fields are optional. `filter` is a new
    filter for the group. `reopened` maps queue IDs to the queue offsets to redeliver: the first offset,
    followed by the increment to each later offset. `positions` maps queue IDs to the queue offsets at which
    the group resumes.
    """

    group: str
    topic: str
    log_offset: int = 0
    filter: Sequence[str] | None = None
    reopened: Mapping[int, Sequence[int]] = {}
    positions: Mapping[int, int] = {}


class TopicSet(NamedTuple):
    """A topic was created or changed. `check_back` is None for the default policy.

    Messages older than `retention_ms` are discarded unless the value is 0.
    """

    name: str
    message_type: str
    queue_count: int
    check_back: Mapping[str, int] | None = None
    retention_ms: int = 0


class TopicDeleted(NamedTuple):
    """A topic was deleted.

    The preceding facts in the record empty the topic's queues and remove its groups.
    """

    name: str


class TopicHeld(NamedTuple):
    """A topic was held. The topic's due timers are not delivered."""

    name: str
    reason: str


class TopicReleased(NamedTuple):
    """A topic was released. The topic's held timers are delivered at a rate of `per_second` per second.

    If `per_second` is 0, there is no limit.
    """

    name: str
    per_second: int


class ScheduleSet(NamedTuple):
    """A schedule was created or replaced. The first run is due after `after_ms`."""

    schedule: Mapping[str, Any]
    after_ms: int

    @property
    def name(self) -> str:
        """Name of the schedule."""
        return str(self.schedule["name"])


class ScheduleDeleted(NamedTuple):
    """A schedule was deleted."""

    name: str


class SchedulePaused(NamedTuple):
    """A schedule was paused. The schedule does not run until resumed."""

    name: str


class ScheduleResumed(NamedTuple):
    """A schedule was resumed. The next run is due after `after_ms`."""

    name: str
    after_ms: int


class ScheduleRunsDropped(NamedTuple):
    """All runs of a schedule up to a given time were dropped.

    `trouble` is the new error message, or None if it has not changed.
    """

    name: str
    until_ms: int
    trouble: str | None = None


class ScheduleRan(NamedTuple):
    """The message for a scheduled run was sent."""

    name: str
    occurrence_ms: int


class Skipped(NamedTuple):
    """Messages in a queue that retention deleted before a group had finished them."""

    group: str
    topic: str
    queue_id: int
    message_count: int


class LogCut(NamedTuple):
    """Retention moved the start of the log to `cut_offset`.

    If `is_done` is false, the move was announced but has not been carried out.

        queues     the first offset of each queue (topic, queue ID, offset), or None if only announced
        places     the log offsets of the records of these first entries
        skipped    the messages that groups have missed
    """

    cut_offset: int
    is_done: bool
    queues: Sequence[tuple[str, int, int]] | None = None
    places: Sequence[int] = ()
    skipped: Sequence[Skipped] = ()


class EpochBegun(NamedTuple):
    """A new epoch began.

    The leader is `node`, or "" if unknown. `version` determines how to interpret later records.
    """

    number: int
    node: str = ""
    version: int = OLDEST


class UserSet(NamedTuple):
    """A user was added or replaced. `sealed` is the sealed secret."""

    name: str
    sealed: str
    made_ms: int


class UserRemoved(NamedTuple):
    """A user and the user's access rules and tokens were removed."""

    name: str


class TokenCreated(NamedTuple):
    """An access token was created. `digest` is the hash that verifies it."""

    id: str
    user: str
    digest: str
    made_ms: int
    expires_ms: int | None


class TokenRevoked(NamedTuple):
    """An access token was revoked."""

    id: str


class RulesSet(NamedTuple):
    """Access rules were set."""

    rules: Sequence[Sequence[str]]


class RulesRemoved(NamedTuple):
    """Access rules were removed."""

    rules: Sequence[Sequence[str]]


OfHalf = HalfStored | HalfEnded | CheckBackSent | LateEndRequested
OfGroup = MessagesFinished | LeaseChanged | PolicySet | GroupLeft | FiltersRemoved | GroupJoined
OfTopic = TopicSet | TopicDeleted | TopicHeld | TopicReleased
OfSchedule = (
    ScheduleSet | ScheduleDeleted | SchedulePaused | ScheduleResumed | ScheduleRunsDropped | ScheduleRan
)  # fmt: skip
OfRights = UserSet | UserRemoved | TokenCreated | TokenRevoked | RulesSet | RulesRemoved
Fact = TimerEnded | TimerSet | OfHalf | OfGroup | OfTopic | OfSchedule | LogCut | EpochBegun | OfRights


def facts_of(record: Record) -> tuple[Fact, ...]:
    """Return the facts in a record in the order in which they apply."""
    read, stored = _READERS.get(record.topic), record.properties
    is_commit = record.type == TYPE_COMMIT
    if read is None and not is_commit and _OURS not in stored:
        return ()  # Most records have no facts.
    told: list[Fact] = [*endings(record)]
    if is_commit:
        told.append(HalfEnded(record.half_offset, "COMMIT"))
    told += (read or _ran)(record)
    return tuple(told)


def record_of(fact: Fact) -> Record:
    """Return a new log record containing a single fact as JSON."""
    kind = type(fact)
    body = json.dumps(_WRITERS[kind](fact)).encode()
    return Record(topic=TOPICS[kind], body=body, sys_flag=TYPE_SYSTEM)


def deletion_of(
    name: str, queues: Sequence[tuple[str, int, int]], places: Sequence[int], groups: Sequence[str]
) -> Record:
    """Return the record that deletes a topic, empties its queues, and removes its groups.

    `queues` and `places` have the same meaning as in `LogCut`.
    """
    said = {"name": name, "deleted": True, "queues": queues, "places": places, "groups": groups}
    return Record(topic=TOPIC_TOPIC, body=json.dumps(said).encode(), sys_flag=TYPE_SYSTEM)


def timer_set(stored: bytes) -> TimerSet:
    """Return the timer set by these record properties."""
    said = properties.decode(stored)
    names = said.get(property_names.TIMER_NAMES, "id key")
    return TimerSet(
        int(said[property_names.DUE_MS]),
        said.get(property_names.REAL_TOPIC, ""),
        said.get(property_names.MESSAGE_ID, "") if "id" in names else None,
        said.get(property_names.TIMER_KEY, "") if "key" in names else "",
        property_names.HELD in said,
        property_names.HELD in said and property_names.REASON not in said,
    )


def _half(record: Record) -> Iterator[HalfStored]:
    stored = properties.of_record(record)
    due_ms, check_ms, immunity_s = (
        _number(stored, name)
        for name in (property_names.DUE_MS, property_names.CHECK_MS, property_names.CHECK_IMMUNITY_SECONDS)
    )
    topic, message_id = stored.get(property_names.REAL_TOPIC, ""), stored.get(property_names.MESSAGE_ID, "")
    yield HalfStored(topic, message_id, due_ms, check_ms, immunity_s)


def _asked(record: Record) -> Iterator[CheckBackSent]:
    check_ms = _number(properties.of_record(record), property_names.CHECK_MS)
    yield CheckBackSent(record.half_offset, record.reconsume_times, check_ms)


def _late(record: Record) -> Iterator[LateEndRequested]:
    yield LateEndRequested(record.half_offset, record.body.decode())


def _outcome(record: Record) -> Iterator[HalfEnded]:
    yield HalfEnded(record.half_offset, properties.of_record(record)[property_names.OUTCOME])


def _leases(record: Record) -> Iterator[LeaseChanged]:
    return starmap(LeaseChanged, lease_records.decode(record.body))


def _group(record: Record) -> Iterator[Fact]:
    said = json.loads(record.body)
    if "policy" in said:
        yield PolicySet(said["group"], said["policy"])
    elif "left" in said:
        yield GroupLeft(said["group"], said["topic"])
    elif "forgotten" in said:
        yield FiltersRemoved(said["group"], said["topic"], said["forgotten"])
    else:
        yield GroupJoined(
            said["group"],
            said["topic"],
            said.get("log_offset", 0),
            said.get("filter"),
            {int(queue_id): steps for queue_id, steps in said.get("reopened", {}).items()},
            {int(queue_id): offset for queue_id, offset in said.get("positions", {}).items()},
        )


def _topic(record: Record) -> Iterator[Fact]:
    said = json.loads(record.body)
    if "deleted" in said:
        if queues := said.get("queues"):
            yield LogCut(0, False, list(map(tuple, queues)), said["places"])
        yield from (GroupLeft(group, said["name"]) for group in said.get("groups", ()))
        yield TopicDeleted(said["name"])
        return
    if "held" in said:
        yield TopicHeld(said["name"], said["held"])
        return
    if "released" in said:
        yield TopicReleased(said["name"], said["released"])
        return
    settings = said.get("check_back"), said.get("retention_ms", 0)
    yield TopicSet(said["name"], said["message_type"], said["queue_count"], *settings)


def _timer(record: Record) -> Iterator[Fact]:
    try:
        timer = timer_set(record.properties)
    except (KeyError, ValueError):  # RocketMQ may store a time that is not a number.
        return
    yield timer
    yield from _ran(record)


def _ran(record: Record) -> Iterator[ScheduleRan]:
    if _SCHEDULE not in record.properties:
        return
    stored = properties.of_record(record)
    if occurrence := stored.get(property_names.OCCURRENCE_MS):
        yield ScheduleRan(stored[property_names.SCHEDULE], int(occurrence))


def _number(said: dict[str, str], name: str) -> int | None:
    value = said.get(name)
    try:
        return int(value) if value else None
    except ValueError:
        return None


def _cut(record: Record) -> Iterator[LogCut]:
    said = json.loads(record.body)
    if "queues" in said:
        queues, skipped = map(tuple, said["queues"]), starmap(Skipped, said["skipped"])
        yield LogCut(said["cut_offset"], said["done"], list(queues), said["places"], list(skipped))
    else:
        yield LogCut(said["cut_offset"], said["done"])


def _epoch(record: Record) -> Iterator[EpochBegun]:
    said = json.loads(record.body)
    yield EpochBegun(int(said["epoch"]), str(said["node"]), int(said["version"]))


def _by_verb(record: Record) -> Iterator[Fact]:
    said = json.loads(record.body)
    yield _BY_VERB[said.pop("verb")](**said)


_BY_VERB: Final[Mapping[str, type]] = {
    "set": ScheduleSet,
    "delete": ScheduleDeleted,
    "pause": SchedulePaused,
    "resume": ScheduleResumed,
    "pass": ScheduleRunsDropped,
    "user": UserSet,
    "gone": UserRemoved,
    "token": TokenCreated,
    "no token": TokenRevoked,
    "rules": RulesSet,
    "no rules": RulesRemoved,
}
_VERBS: Final = {told: verb for verb, told in _BY_VERB.items()}


def _group_said(fact: GroupJoined) -> dict[str, Any]:
    said: dict[str, Any] = {"group": fact.group, "topic": fact.topic}
    if fact.log_offset:
        said["log_offset"] = fact.log_offset
    for name in ("filter", "reopened", "positions"):
        if value := getattr(fact, name):
            said[name] = value
    return said


def _cut_said(fact: LogCut) -> dict[str, Any]:
    said: dict[str, Any] = {"cut_offset": fact.cut_offset, "done": fact.is_done}
    if fact.queues is not None:
        said |= {"queues": fact.queues, "places": fact.places, "skipped": fact.skipped}
    return said


def _epoch_said(fact: EpochBegun) -> dict[str, Any]:
    return {"epoch": fact.number, "node": fact.node, "version": fact.version}


def _topic_said(fact: TopicSet) -> dict[str, Any]:
    said = fact._asdict()
    if fact.check_back is None:
        del said["check_back"]
    if not fact.retention_ms:
        del said["retention_ms"]
    return said


def _verb_said(fact: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"verb": _VERBS[type(fact)]} | fact._asdict()
    if said.get("trouble", "") is None:
        del said["trouble"]
    return said


_READERS: Final[Mapping[str, Callable[[Record], Iterable[Fact]]]] = {
    TIMER_TOPIC: _timer,
    HALF_TOPIC: _half,
    CHECK_TOPIC: _asked,
    LATE_TOPIC: _late,
    OUTCOME_TOPIC: _outcome,
    ACK_TOPIC: lambda record: acks.decode(record.body),
    LEASE_TOPIC: _leases,
    GROUP_TOPIC: _group,
    TOPIC_TOPIC: _topic,
    SCHEDULE_TOPIC: _by_verb,
    RETENTION_TOPIC: _cut,
    EPOCH_TOPIC: _epoch,
    AUTH_TOPIC: _by_verb,
}
_WRITERS: Final[Mapping[type, Callable[[Any], dict[str, Any]]]] = {
    PolicySet: PolicySet._asdict,
    GroupLeft: lambda fact: fact._asdict() | {"left": True},
    FiltersRemoved: lambda fact: {"group": fact.group, "topic": fact.topic, "forgotten": fact.filters},
    GroupJoined: _group_said,
    TopicSet: _topic_said,
    TopicDeleted: lambda fact: fact._asdict() | {"deleted": True},
    TopicHeld: lambda fact: {"name": fact.name, "held": fact.reason},
    TopicReleased: lambda fact: {"name": fact.name, "released": fact.per_second},
    LogCut: _cut_said,
    EpochBegun: _epoch_said,
    **dict.fromkeys(_VERBS, _verb_said),
}
TOPICS: Final[Mapping[type, str]] = {
    **dict.fromkeys((PolicySet, GroupLeft, FiltersRemoved, GroupJoined), GROUP_TOPIC),
    **dict.fromkeys(get_args(OfTopic), TOPIC_TOPIC),
    **dict.fromkeys(_VERBS.keys() - {*get_args(OfRights)}, SCHEDULE_TOPIC),
    LogCut: RETENTION_TOPIC,
    EpochBegun: EPOCH_TOPIC,
    **dict.fromkeys(get_args(OfRights), AUTH_TOPIC),
}
"""Topic of single-fact records, by fact type."""
