"""Facts: the meaning of a record as plain values, for the broker, its tools and `explain`.

A fact says one thing, and a record tells one or several: a committed half that carries a cancel and sets a
timer which takes the place of another is one record, so that a crash leaves all of it or nothing.

    fact              told by                                  what it says
    TimerEnded        message, timer, verb                     a timer is over (`commitlog.kinds`)
    TimerSet          timer                                    a timer waits, whose offset is the record's
    HalfStored        half                                     a half waits for its end
    HalfEnded         message or timer of type commit; outcome a half was committed, rolled back, or expired
    HalfAsked         check                                    a producer was asked how its half ended
    HalfEndedLate     late end                                 a producer ended a half that had expired
    Finished          ack                                      a group is done with ranges of a queue
    LeaseChanged      lease                                    a lease was given, or ended unacknowledged
    PolicySet, GroupLeft, FiltersForgotten, GroupJoined
                      group                                    how a group receives, and what
    TopicSet, TopicDeleted
                      topic                                    a topic has a type and queues, or is gone
    ScheduleSet, ScheduleDeleted, SchedulePaused, ScheduleResumed, SchedulePassed
                      schedule                                 what is done to a schedule
    ScheduleRan       message or timer with TW_SCHEDULE        a schedule has sent a run
    LogCut            retention                                the log begins later
    EpochBegun        epoch                                    another node leads
    UserSet, UserRemoved, TokenMade, TokenRevoked, RulesSet, RulesRemoved
                      TW_SYS_AUTH                              who may do what

1. `facts_of` reads a record: its topic, type, properties and body, and nothing else. When and where it was
   stored is the record's own, not a fact.
2. `record_of` makes the record of a fact that is told by JSON alone (`TOPICS`). Acknowledgements and leases
   are gathered, and written by `acks` and `lease_records`; the others are told by messages.
3. A record of a kind that a later release writes tells no facts; a verb that is not known raises KeyError.
4. Timers and halves of RocketMQ are read, too, which may hold what a client wrote: a timer whose time is no
   number is none, and such a time of a half counts as not given.

Cost: 0.3 us for a message that tells none; JSON bodies take some us, and are few.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, Final, NamedTuple, Protocol, get_args

from commitlog import properties
from commitlog.applied_limits import OLDEST
from commitlog.facts import acks, lease_records
from commitlog.facts.acks import Finished as Finished
from commitlog.facts.lease_records import Key, LeaseEntry
from commitlog.kinds import (
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
from commitlog.kinds import TimerEnded as TimerEnded
from commitlog.record import TYPE_COMMIT, TYPE_SYSTEM, Record
from tidewheel import property_names

_OURS: Final = b"TW_"
_SCHEDULE: Final = property_names.SCHEDULE.encode()


class Stamp(Protocol):
    """Where and when the record that tells a fact was stored: log offset, queue offset, ms since 1970.

    `stored` is the record itself, or its bytes: for those who keep it, not for those who read facts.
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
    """A timer waits at its record's offset; it goes by a message id, or None, and a key, "" for none."""

    due_ms: int
    topic: str
    message_id: str | None
    key: str


class HalfStored(NamedTuple):
    """A half waits at its record's offset; its message is for `topic`, to be delivered at `due_ms` if given.

    `check_ms` is when its producer is to be asked first; a half that RocketMQ stored leaves that to
    `immunity_s` or a default.
    """

    topic: str
    message_id: str
    due_ms: int | None
    check_ms: int | None
    immunity_s: int | None


class HalfEnded(NamedTuple):
    """The half at an offset has ended: "COMMIT", "ROLLBACK", or "EXPIRED"."""

    half_offset: int
    how: str


class HalfAsked(NamedTuple):
    """A producer was asked about a half, for the `asked_count`-th time.

    The next time is `check_ms`; None: by default times.
    """

    half_offset: int
    asked_count: int
    check_ms: int | None


class HalfEndedLate(NamedTuple):
    """A producer asked for this end of a half that had expired."""

    half_offset: int
    asked_for: str


class LeaseChanged(NamedTuple):
    """What became of a lease of a group on a queue."""

    key: Key
    entry: LeaseEntry


class PolicySet(NamedTuple):
    """A group's messages are given out in this way."""

    group: str
    policy: Mapping[str, Any]


class GroupLeft(NamedTuple):
    """A group no longer receives a topic; topic "": it is forgotten."""

    group: str
    topic: str


class FiltersForgotten(NamedTuple):
    """A group has no more use for filters on a topic, each (type, expression)."""

    group: str
    topic: str
    filters: Sequence[Sequence[str]]


class GroupJoined(NamedTuple):
    """A group receives a topic, whose log began at `log_offset`.

    It has one filter more, messages of queues come again (by queue id: the first offset, then how far on each
    next one is), or it goes on at other offsets: each only where it is given.
    """

    group: str
    topic: str
    log_offset: int = 0
    filter: Sequence[str] | None = None
    reopened: Mapping[int, Sequence[int]] = {}
    positions: Mapping[int, int] = {}


class TopicSet(NamedTuple):
    """A topic is there; `check_back` is how its halves are asked about, None for as all are."""

    name: str
    message_type: str
    queue_count: int
    check_back: Mapping[str, int] | None = None


class TopicDeleted(NamedTuple):
    """A topic is deleted; earlier records have emptied its queues and removed it from its groups."""

    name: str


class ScheduleSet(NamedTuple):
    """A schedule runs like this, at the first moment after `after_ms`."""

    schedule: Mapping[str, Any]
    after_ms: int

    @property
    def name(self) -> str:
        """The schedule's name."""
        return str(self.schedule["name"])


class ScheduleDeleted(NamedTuple):
    """A schedule is gone."""

    name: str


class SchedulePaused(NamedTuple):
    """A schedule does not run until it is resumed."""

    name: str


class ScheduleResumed(NamedTuple):
    """A schedule runs again, at the first moment after `after_ms`."""

    name: str
    after_ms: int


class SchedulePassed(NamedTuple):
    """A schedule's runs up to a time are given up; `trouble` says why, None: as before."""

    name: str
    until_ms: int
    trouble: str | None = None


class ScheduleRan(NamedTuple):
    """A schedule has sent the message of a run."""

    name: str
    occurrence_ms: int


class Skipped(NamedTuple):
    """Messages of a queue that retention has taken from a group, which had not finished them."""

    group: str
    topic: str
    queue_id: int
    message_count: int


class LogCut(NamedTuple):
    """The log may begin at an offset, and does if `is_done`.

    queues     where queues begin, each (topic, queue id, offset); None: the cut is only announced
    places     where the record of each first entry lies
    skipped    what groups have missed
    """

    cut_offset: int
    is_done: bool
    queues: Sequence[tuple[str, int, int]] | None = None
    places: Sequence[int] = ()
    skipped: Sequence[Skipped] = ()


class EpochBegun(NamedTuple):
    """An epoch begins: `node` leads, "" if unknown, and records are applied by `version`."""

    number: int
    node: str = ""
    version: int = OLDEST


class UserSet(NamedTuple):
    """A user is known by a name and a sealed secret."""

    name: str
    sealed: str
    made_ms: int


class UserRemoved(NamedTuple):
    """A user is gone, with rules and tokens."""

    name: str


class TokenMade(NamedTuple):
    """A user has a token; `digest` proves it."""

    id: str
    user: str
    digest: str
    made_ms: int
    expires_ms: int | None


class TokenRevoked(NamedTuple):
    """A token is void."""

    id: str


class RulesSet(NamedTuple):
    """These rules hold."""

    rules: Sequence[Sequence[str]]


class RulesRemoved(NamedTuple):
    """These rules hold no more."""

    rules: Sequence[Sequence[str]]


OfHalf = HalfStored | HalfEnded | HalfAsked | HalfEndedLate
OfGroup = Finished | LeaseChanged | PolicySet | GroupLeft | FiltersForgotten | GroupJoined
OfTopic = TopicSet | TopicDeleted
OfSchedule = (
    ScheduleSet | ScheduleDeleted | SchedulePaused | ScheduleResumed | SchedulePassed | ScheduleRan
)  # fmt: skip
OfRights = UserSet | UserRemoved | TokenMade | TokenRevoked | RulesSet | RulesRemoved
Fact = TimerEnded | TimerSet | OfHalf | OfGroup | OfTopic | OfSchedule | LogCut | EpochBegun | OfRights


def facts_of(record: Record) -> tuple[Fact, ...]:
    """Return what a record says, in the order in which it is to be applied."""
    read, stored = _READERS.get(record.topic), record.properties
    is_commit = record.type == TYPE_COMMIT
    if read is None and not is_commit and _OURS not in stored:
        return ()  # most records of most logs
    told: list[Fact] = [*endings(record)]
    if is_commit:
        told.append(HalfEnded(record.half_offset, "COMMIT"))
    told += (read or _ran)(record)
    return tuple(told)


def record_of(fact: Fact) -> Record:
    """Return the record, still to be stored, that tells a fact and nothing else, as JSON."""
    kind = type(fact)
    body = json.dumps(_WRITERS[kind](fact)).encode()
    return Record(topic=TOPICS[kind], body=body, sys_flag=TYPE_SYSTEM)


def timer_set(stored: bytes) -> TimerSet:
    """Return the timer of a record with these properties."""
    said = properties.decode(stored)
    names = said.get(property_names.TIMER_NAMES, "id key")
    return TimerSet(
        int(said[property_names.DUE_MS]),
        said.get(property_names.REAL_TOPIC, ""),
        said.get(property_names.MESSAGE_ID, "") if "id" in names else None,
        said.get(property_names.TIMER_KEY, "") if "key" in names else "",
    )


def _half(record: Record) -> Iterator[HalfStored]:
    stored = properties.of_record(record)
    due_ms, check_ms, immunity_s = (
        _number(stored, name)
        for name in (property_names.DUE_MS, property_names.CHECK_MS, property_names.CHECK_IMMUNITY_SECONDS)
    )
    topic, message_id = stored.get(property_names.REAL_TOPIC, ""), stored.get(property_names.MESSAGE_ID, "")
    yield HalfStored(topic, message_id, due_ms, check_ms, immunity_s)


def _asked(record: Record) -> Iterator[HalfAsked]:
    check_ms = _number(properties.of_record(record), property_names.CHECK_MS)
    yield HalfAsked(record.half_offset, record.reconsume_times, check_ms)


def _late(record: Record) -> Iterator[HalfEndedLate]:
    yield HalfEndedLate(record.half_offset, record.body.decode())


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
        yield FiltersForgotten(said["group"], said["topic"], said["forgotten"])
    else:
        yield GroupJoined(
            said["group"],
            said["topic"],
            said.get("log_offset", 0),
            said.get("filter"),
            {int(queue_id): steps for queue_id, steps in said.get("reopened", {}).items()},
            {int(queue_id): offset for queue_id, offset in said.get("positions", {}).items()},
        )


def _topic(record: Record) -> Iterator[OfTopic]:
    said = json.loads(record.body)
    if "deleted" in said:
        yield TopicDeleted(said["name"])
        return
    yield TopicSet(said["name"], said["message_type"], said["queue_count"], said.get("check_back"))


def _timer(record: Record) -> Iterator[Fact]:
    try:
        timer = timer_set(record.properties)
    except (KeyError, ValueError):  # without a time that is a number, which RocketMQ may store: no timer
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
    "pass": SchedulePassed,
    "user": UserSet,
    "gone": UserRemoved,
    "token": TokenMade,
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
    return (
        said if fact.check_back is not None else {name: said[name] for name in said if name != "check_back"}
    )


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
    FiltersForgotten: lambda fact: {"group": fact.group, "topic": fact.topic, "forgotten": fact.filters},
    GroupJoined: _group_said,
    TopicSet: _topic_said,
    TopicDeleted: lambda fact: fact._asdict() | {"deleted": True},
    LogCut: _cut_said,
    EpochBegun: _epoch_said,
    **dict.fromkeys(_VERBS, _verb_said),
}
TOPICS: Final[Mapping[type, str]] = {
    **dict.fromkeys((PolicySet, GroupLeft, FiltersForgotten, GroupJoined), GROUP_TOPIC),
    **dict.fromkeys(get_args(OfTopic), TOPIC_TOPIC),
    **dict.fromkeys(_VERBS.keys() - {*get_args(OfRights)}, SCHEDULE_TOPIC),
    LogCut: RETENTION_TOPIC,
    EpochBegun: EPOCH_TOPIC,
    **dict.fromkeys(get_args(OfRights), AUTH_TOPIC),
}
"""By fact, the topic of records that tell it and nothing else."""
