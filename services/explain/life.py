"""Descriptions of the events that log records represent, and of the resulting state of a message.

    record                     event                      about
    half                       half                       itself
    check-back counter         asked                      the half that it names
    outcome                    rolled back, expired       the half that it names
    late end                   refused                    the half that it names
    message of type commit     committed                  itself
    timer                      armed                      itself
    ... that names another     moved, replaced            the timer that it names
    cancel verb                cancelled                  the timer that it names
    message that cancels       cancelled                  the timer that it names, besides its own event
    message of a timer         delivered, fired           itself
    other message              stored, sent back          itself
    ... that a move copied     moved away                 the message that it copies, besides its own event
    dead letter                dead letter                the message that it copies
    acknowledgement            acknowledged, finished     a message, by its queue offset
    lease                      leased, attempt ended      a message, by its queue offset
    retention, of a purge      discarded                  a message, by its queue offset

A dead letter that an operator redrove or purged is acknowledged by the internal group of the operators (event
"settled"). The record of an acknowledgement is also written when a move withdraws a message from a group, or
when a message is given up for a group. `without_withdrawals` tells these apart by the copy or the dead
letter, which precedes them in the log, and calls them "finished".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from commitlog.facts.facts import (
    CheckBackSent,
    Fact,
    HalfEnded,
    HalfStored,
    LateEndRequested,
    LeaseChanged,
    LogCut,
    MessagesFinished,
    TimerEnded,
    TimerSet,
    facts_of,
)
from commitlog.facts.lease_records import Kind
from commitlog.records import properties
from commitlog.records.kinds import (
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    MESSAGES,
    OPERATORS,
    OUTCOME_TOPIC,
    TIMER_TOPIC,
    VERB_TOPIC,
    End,
    kind_of,
    kind_of_topic,
)
from commitlog.records.record import TYPE_SYSTEM, Record
from consumequeue.groups.attempts import Cause
from services.broker.timers.timer_records import read_move_reason
from tidewheel import property_names
from tidewheel.durations import rounded

EXPIRED: Final = "EXPIRED"
_CAUSES: Final = {
    Cause.EXPIRED: "not acknowledged in time",
    Cause.SET_ASIDE: "set aside by its consumer",
    Cause.GONE: "its consumer was gone",
}


class Place(NamedTuple):
    """The position of a message in a queue."""

    topic: str
    queue_id: int
    queue_offset: int

    def is_in(self, fact: MessagesFinished) -> bool:
        """Return whether a group has acknowledged or skipped the message at this position."""
        return (self.topic, self.queue_id) == (fact.topic, fact.queue_id) and any(
            first <= self.queue_offset < first + count for first, count in fact.ranges
        )

    def is_below(self, cut: LogCut) -> bool:
        """Return whether a purge, which cuts queues but not the log, has discarded the message at this
        position.
        """
        begins = cut.queues if cut.cut_offset == 0 and cut.queues is not None else ()
        return any((self.topic, self.queue_id) == one[:2] and self.queue_offset < one[2] for one in begins)


class Ids(NamedTuple):
    """The identifiers of a message, and the topic under which users know it."""

    message_id: str
    topic: str
    keys: tuple[str, ...]
    timer_key: str


@dataclass(frozen=True, slots=True)
class Subjects:
    """The messages of an explanation: by queue position, by the log offset of a half message or timer, and by
    id.
    """

    places: dict[Place, Ids]
    anchors: dict[int, Ids]
    message_ids: frozenset[str]
    timers: dict[int, Record]

    @classmethod
    def of(cls, named: Iterable[Record]) -> Subjects:
        """Return the subjects of the given records."""
        records = list(named)
        anchored = [one for one in records if one.topic in (HALF_TOPIC, TIMER_TOPIC)]
        return cls(
            {place: ids_of(one) for one in records if (place := place_of(one))},
            {one.physical_offset: ids_of(one) for one in anchored},
            frozenset(ids_of(one).message_id for one in records),
            {one.physical_offset: one for one in anchored if one.topic == TIMER_TOPIC},
        )


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a message. Offsets that do not apply are None, and other fields are empty."""

    physical_offset: int
    store_ms: int
    what: str
    topic: str
    message_id: str
    note: str = ""
    queue_id: int | None = None
    queue_offset: int | None = None
    due_ms: int | None = None
    group: str = ""

    def as_json(self, behind_ms: int) -> dict[str, Any]:
        """Return JSON values, with 64-bit numbers as text. `behind_ms` is subtracted from times."""
        return {
            "physical_offset": str(self.physical_offset),
            "store_ms": str(self.store_ms - behind_ms),
            "what": self.what,
            "topic": self.topic,
            "message_id": self.message_id,
            "queue_id": self.queue_id,
            "queue_offset": None if self.queue_offset is None else str(self.queue_offset),
            "due_ms": None if self.due_ms is None else str(self.due_ms - behind_ms),
            "group": self.group,
            "note": self.note,
        }


def ids_of(one: Record) -> Ids:
    """Return the identifiers of a record's message.

    They are empty in records that only refer to a half message or a queue.
    """
    stored = properties.decode(one.properties)
    topic = stored.get(property_names.REAL_TOPIC) or stored.get(property_names.DEAD_LETTER_TOPIC) or one.topic
    message_id = stored.get(property_names.MESSAGE_ID, "")
    return Ids(message_id, topic, properties.keys_of(stored), stored.get(property_names.TIMER_KEY, ""))


def place_of(one: Record) -> Place | None:
    """Return the queue position of a record's message, or None if it is not available to consumers."""
    if kind_of_topic(one.topic) not in MESSAGES:
        return None
    return Place(one.topic, one.queue_id, one.queue_offset)


def moved_from(one: Record) -> Place | None:
    """Return the queue position from which a move copied a message, or None if it is no such copy."""
    stored = properties.decode(one.properties)
    topic, _, place = stored.get(property_names.REDRIVE_OF, "").partition(":")
    queue_id, _, queue_offset = map(_number, place.partition(":"))
    return None if queue_id is None or queue_offset is None else Place(topic, queue_id, queue_offset)


def events_of(one: Record, subjects: Subjects) -> Iterator[Event]:
    """Yield the events of the subjects in a record."""
    facts = facts_of(one)
    told = [event for fact in facts for event in _told(fact, one, subjects)]
    if one.topic == TIMER_TOPIC:
        yield from told
    origin = moved_from(one)
    if origin is not None and (source := subjects.places.get(origin)) is not None:
        yield _of_place("moved away", f"to {one.topic}", "", origin, source, one)
    if one.type != TYPE_SYSTEM and (ids := ids_of(one)).message_id in subjects.message_ids:
        yield _own_event(one, ids, facts, subjects)
    if one.topic != TIMER_TOPIC:
        yield from told


def _told(fact: Fact, one: Record, subjects: Subjects) -> Iterator[Event]:
    """Yield the events of a fact for the subjects, except for the record's own message (`_own_event`)."""
    match fact:
        case TimerEnded():
            yield from _ended(fact, one, subjects)
        case CheckBackSent():
            note = f"its producer how it ended, time {fact.asked_count}"
            yield from _of_half(fact.half_offset, "asked", note, one, subjects)
        case LateEndRequested():
            note = f"its producer's {fact.asked_for}: the half had expired"
            yield from _of_half(fact.half_offset, "refused", note, one, subjects)
        case HalfEnded() if one.topic == OUTCOME_TOPIC:
            yield _outcome(fact, one, subjects)
        case MessagesFinished() if not fact.is_passed:
            yield from _acknowledged(fact, one, subjects)
        case LeaseChanged():
            yield from _leased(fact, one, subjects)
        case LogCut():
            yield from _discarded(fact, one, subjects)


def without_withdrawals(events: Iterable[Event]) -> Iterator[Event]:
    """Replace acknowledgements that no consumer made by "finished" events. All events are in log order."""
    moved_to: dict[tuple[str, int | None, int | None], str] = {}
    given_up: set[tuple[str, str, str]] = set()
    for event in events:
        place = (event.topic, event.queue_id, event.queue_offset)
        by_group = (event.topic, event.message_id, event.group)
        if event.what == "moved away":
            moved_to[place] = event.note
        elif event.what == "dead letter":
            given_up.add(by_group)
        elif event.what == "acknowledged" and by_group in given_up:
            given_up.remove(by_group)
            event = replace(event, what="finished", note=f"for group {event.group}, which had given it up")
        elif event.what == "acknowledged" and place in moved_to:
            note = f"for group {event.group}, since it was moved {moved_to[place]}"
            event = replace(event, what="finished", note=note)
        yield event


def standing(events: Iterable[Event]) -> str:
    """Return the state of a message after its events, which are in log order (`without_withdrawals`)."""
    state, asked_count = "unknown", 0
    done_by: dict[str, None] = {}
    given_up_by: dict[str, None] = {}
    for event in events:
        asked_count += event.what == "asked"
        if event.what == "acknowledged":
            done_by[event.group] = None
        if event.what == "dead letter":
            given_up_by[event.group] = None
        if event.what == "sent back":
            done_by.clear()
            given_up_by.clear()
        if event.what == "moved away":
            state = f"moved {event.note}"
        elif event.what == "discarded" and state.startswith(_MOVED):
            continue
        elif event.what != "settled" or state == _GIVEN_UP:
            state = _STATES.get(event.what, state)
    if state == _AVAILABLE:
        return f"acknowledged by {', '.join(done_by)}" if done_by else "acknowledged by nobody yet"
    if state == _DISCARDED or state.startswith(_MOVED):
        before = [f"it was acknowledged by {', '.join(done_by)}"] if done_by else []
        before += [f"it was given up by {', '.join(given_up_by)}"] if given_up_by else []
        return f"{state}; before that {' and '.join(before)}" if before else state
    if state == _OPEN and asked_count:
        return f"{state}; its producer was asked {asked_count} times"
    return state


_OPEN: Final = "open: its transaction has neither been committed nor rolled back"
_WAITS: Final = "pending: waits for its time"
_AVAILABLE: Final = "available"
DISCARDED_BY: Final = "by a purge, a deletion, a move or the retention of its topic"
_DISCARDED: Final = f"discarded: {DISCARDED_BY}"
_GIVEN_UP: Final = "given up: a dead letter; see tidewheel dlq"
_MOVED: Final = "moved to "
_LOST: Final = "its record could not be read"
_ENDS: Final = {
    End.DELIVERED: "delivered",
    End.CANCELLED: "cancelled",
    End.MOVED: "moved",
    End.REPLACED: "replaced",
    End.FIRED: "fired",
    End.UNREADABLE: "lost",
}
_STATES: Final = {
    "half": _OPEN,
    "rolled back": "rolled back: nobody gets it",
    "expired": "expired: nobody answered for it; see tidewheel txn ls",
    "committed": _AVAILABLE,
    "stored": _AVAILABLE,
    "sent back": _AVAILABLE,
    "armed": _WAITS,
    "moved": _WAITS,
    "held": "held: waits for the release of its topic",
    "cancelled": "cancelled: nobody gets it",
    "lost": "lost: nobody had its record any more; see tidewheel timer ls --damaged",
    "replaced": "replaced by a newer message under its timer key: nobody gets it",
    "delivered": _AVAILABLE,
    "fired": _AVAILABLE,
    "discarded": _DISCARDED,
    "dead letter": _GIVEN_UP,
    "settled": "given up: its dead letter was redriven or purged by an operator",
}


def word(what: str) -> str:
    """Return the state of a message after an event, in one word."""
    return _STATES[what].partition(":")[0]


def ending(end: End, one: Record | None, timer: Record | None = None) -> tuple[str, str]:
    """Return how a timer ended, and why. `one` is the record that ended it, or None if it was deleted.

    `timer` is the record of the timer, or None if it is unknown.
    The note does not include the log offset of the timer, which events add.
    """
    stored = {} if one is None else properties.decode(one.properties)
    if one is None:
        return _ENDS[end], ""
    if end is End.CANCELLED and one.topic == VERB_TOPIC:
        return _ENDS[end], _because("by a call", stored)
    if end is End.CANCELLED:
        return _ENDS[end], _carried_by(ids_of(one))
    if end is End.MOVED and property_names.HELD in stored and not stored.get(property_names.REASON):
        return _ENDS[end], "to the same time, since its topic is held"
    if end is End.MOVED:
        is_same = stored.get(property_names.DUE_MS) == stored.get(property_names.REPLACED_DUE_MS)
        return _ENDS[end], _because(f"to {'the same' if is_same else 'another'} time", stored)
    if end is End.REPLACED:
        return _ENDS[end], f"by message {stored.get(property_names.MESSAGE_ID, '')}"
    if end is End.UNREADABLE:
        return _ENDS[end], _because(_LOST, stored)
    if end is End.FIRED:
        when = "while it was held" if property_names.HELD in stored else "before its time"
        return _ENDS[end], _because(f"{when}, on request", stored)
    due_ms = _number(stored.get(property_names.DUE_MS, ""))
    if due_ms is None:
        return _ENDS[end], ""
    late_ms = one.store_ms - due_ms
    why = ", since its topic was held" if property_names.HELD in stored else _why_past(timer, due_ms)
    return _ENDS[end], f"{rounded(abs(late_ms))} {'after' if late_ms >= 0 else 'BEFORE'} its time{why}"


def timer_offset_of(one: Record | None) -> int | None:
    """Return the log offset of the timer that a record has delivered, or None if it is no such record."""
    if one is None:
        return None
    return _number(properties.value_of(one.properties, property_names.TIMER_OFFSET))


def _why_past(timer: Record | None, due_ms: int) -> str:
    """Return that a timer was set for a past time, or moved to one. Otherwise, return an empty string."""
    if timer is None or timer.store_ms <= due_ms:
        return ""
    is_moved = read_move_reason(properties.decode(timer.properties)) is not None
    return f", since it was {'moved to' if is_moved else 'set for'} a time in the past"


HELD: Final = "held: its topic was held when it was due; see tidewheel topic show"
"""The description of a held timer."""


def waiting(move_reason: str | None) -> str:
    """Return a note about a pending timer, or an empty string if it was never moved."""
    if move_reason is None:
        return ""
    return f"moved to this time{move_reason and f', because: {move_reason}'}"


def _own_event(one: Record, ids: Ids, facts: Iterable[Fact], subjects: Subjects) -> Event:
    """Return the event of a record for its own message."""
    stored = properties.decode(one.properties)
    what, note = _what(one, stored, facts, subjects)
    place = place_of(one)
    # an operator ended the half message
    is_of_operator = what in ("committed", "armed") and read_move_reason(stored) is None
    return Event(
        one.physical_offset,
        one.store_ms,
        what,
        ids.topic,
        ids.message_id,
        _because(note, stored) if is_of_operator else note,
        place and place.queue_id,
        place and place.queue_offset,
        _number(stored.get(property_names.DUE_MS, "")),
        one.topic.removeprefix(DEAD_LETTER_PREFIX) if what == "dead letter" else "",
    )


def _what(one: Record, stored: dict[str, str], facts: Iterable[Fact], subjects: Subjects) -> tuple[str, str]:
    name, port = one.born_host
    host, kind = f"{name}:{port}" if port else name, kind_of(one)
    for fact in facts:
        match fact:
            case TimerSet(is_held=True):
                return "held", "until the release of its topic"
            case TimerSet():
                by = f"by the half @{one.half_offset:,}" if one.half_offset else f"sent by {host}"
                late_ms = one.store_ms - fact.due_ms
                if late_ms <= 0:
                    return "armed", by
                if read_move_reason(stored) is not None:
                    return "armed", f"{by}, moved to a time {rounded(late_ms)} in the past"
                return "armed", f"{by}, {rounded(late_ms)} after its time"
            case HalfStored():
                return "half", f"sent by {host}"
            case TimerEnded(end=End.DELIVERED | End.FIRED):
                what, note = ending(fact.end, one, subjects.timers.get(fact.timer_offset))
                return what, f"{note}; timer @{fact.timer_offset:,}".removeprefix("; ")
    if kind == "dead letter":
        return "dead letter", _given_up(one, stored)
    if property_names.REDRIVE_OF in stored:
        origin = stored[property_names.REDRIVE_OF]
        of_group = origin.startswith(DEAD_LETTER_PREFIX)
        return "sent back", f"from the dead letters of {origin}" if of_group else f"moved from {origin}"
    if kind == "commit":
        return "committed", f"the half @{one.half_offset:,}"
    return "stored", f"sent by {host}"


def _carried_by(ids: Ids) -> str:
    return f"by the message of {ids.topic} that carries it"


def _because(note: str, stored: dict[str, str]) -> str:
    reason = stored.get(property_names.REASON, "")
    return f"{note}, because: {reason}" if reason else note


def _given_up(one: Record, stored: dict[str, str]) -> str:
    group = one.topic.removeprefix(DEAD_LETTER_PREFIX)
    attempts, reason = (
        stored.get(property_names.DEAD_ATTEMPTS, ""),
        stored.get(property_names.DEAD_REASON, ""),
    )
    return (
        f"by group {group}"
        + (f" after {attempts} attempts" if attempts else "")
        + (f": {reason}" if reason else "")
    )


def _ended(fact: TimerEnded, one: Record, subjects: Subjects) -> Iterator[Event]:
    """Yield the end of a subject's timer, unless the record's own message describes it."""
    if fact.end in (End.DELIVERED, End.FIRED):
        return
    ids = subjects.anchors.get(fact.timer_offset) or (ids_of(one) if one.topic == VERB_TOPIC else None)
    if ids is not None:
        what, note = ending(fact.end, one)
        is_named = fact.end in (End.CANCELLED, End.UNREADABLE)
        told = f"{note}; timer @{fact.timer_offset:,}" if is_named else note
        yield Event(one.physical_offset, one.store_ms, what, ids.topic, ids.message_id, told)


def _of_half(half_offset: int, what: str, note: str, one: Record, subjects: Subjects) -> Iterator[Event]:
    if half := subjects.anchors.get(half_offset):
        yield Event(one.physical_offset, one.store_ms, what, half.topic, half.message_id, note)


def _outcome(fact: HalfEnded, one: Record, subjects: Subjects) -> Event:
    ids = subjects.anchors.get(fact.half_offset) or ids_of(one)
    what = "expired" if fact.how == EXPIRED else "rolled back"
    note = _because(f"the half @{fact.half_offset:,}", properties.decode(one.properties))
    return Event(one.physical_offset, one.store_ms, what, ids.topic, ids.message_id, note)


def _acknowledged(fact: MessagesFinished, one: Record, subjects: Subjects) -> Iterator[Event]:
    is_settled = fact.group == OPERATORS
    what = "settled" if is_settled else "acknowledged"
    note = "its dead letter was redriven or purged" if is_settled else f"by group {fact.group}"
    for place, ids in subjects.places.items():
        if place.is_in(fact):
            yield _of_place(what, note, fact.group, place, ids, one)


def _leased(fact: LeaseChanged, one: Record, subjects: Subjects) -> Iterator[Event]:
    (group, topic, queue_id), entry = fact
    place = Place(topic, queue_id, entry.queue_offset)
    if (ids := subjects.places.get(place)) is not None:
        is_leased = entry.kind == Kind.LEASED
        by = f"attempt {entry.attempts} of group {group}, client {entry.client_id or 'unknown'}"
        why = "" if is_leased or not entry.cause else f": {_CAUSES[Cause(entry.cause)]}"
        yield _of_place("leased" if is_leased else "attempt ended", by + why, group, place, ids, one)


def _discarded(fact: LogCut, one: Record, subjects: Subjects) -> Iterator[Event]:
    for place, ids in subjects.places.items():
        if place.is_below(fact):
            yield _of_place(
                "discarded",
                DISCARDED_BY,
                "",
                place,
                ids,
                one,
            )


def _of_place(what: str, note: str, group: str, place: Place, ids: Ids, one: Record) -> Event:
    return Event(
        one.physical_offset,
        one.store_ms,
        what,
        ids.topic,
        ids.message_id,
        note,
        place.queue_id,
        place.queue_offset,
        group=group,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
