"""The history of a message or order in the log, for `tidewheel explain` and `/api/explain`.

A name is a message key, a message id, a timer key, a transaction id, or @ followed by a log offset. Records
that contain the name are found first, then records that only refer to them: check-backs and outcomes refer to
their half message by its log offset, timer operations to their timer, and acknowledgements and leases to
their message by its queue offset.

    name -> records that contain it -> offsets of halves and timers, queue offsets
         -> records that refer to them -> events in log order, and the state of each message

The first pass also finds the records that begin epochs of a cluster, so that each event is shown with its
epoch and leader.

Cost: two passes over the bytes (`evidence`), the second from the first matching record on. Spark, Arrow and
Java are not needed. With a time limit, the first pass searches the newest part of the log, chunk by chunk
from its end, until the time is over. The second pass goes forward from the first record found, which may be
older than this part, and may end before the end of the log. An `Explanation` contains both limits, and no
answer calls a name unknown if a part of the log was not searched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple

from commitlog.epochs import EpochRange, begun_by, epoch_at, epochs_of, leader_at
from commitlog.facts import acks
from commitlog.facts.facts import (
    CheckBackSent,
    Fact,
    HalfEnded,
    LateEndRequested,
    LeaseChanged,
    LogCut,
    MessagesFinished,
    TimerEnded,
    facts_of,
)
from commitlog.records.kinds import (
    EPOCH_TOPIC,
    HALF_TOPIC,
    TIMER_TOPIC,
    VERB_TOPIC,
    endings,
    kind_of,
)
from commitlog.records.record import Record
from services.broker.spine.errors import MessageNotFound
from services.explain.evidence import SearchedLog
from services.explain.life import (
    EXPIRED,
    Event,
    Place,
    Subjects,
    events_of,
    ids_of,
    moved_from,
    place_of,
    standing,
    without_withdrawals,
)
from tidewheel.errors import ClientMistake
from txn.half import unverified_offset

RECORDS_MAX: Final = 1_000
"""Maximum number of records with the name that are shown."""

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""The bytes of the log that are searched between two looks at the time."""

_NAME_BYTES_MAX: Final = 1_024
_CONTROL: Final = re.compile(r"[\x00-\x1f]")


class Standing(NamedTuple):
    """The state of a message at the end of the log."""

    message_id: str
    topic: str
    keys: str
    state: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The events of a name in log order, the states of its messages, and the searched log offsets.

    `is_cut` is set if the name has more than `RECORDS_MAX` records. `epochs` is empty for a store that was
    never part of a cluster. `searched_from_ms` is the store time from which records were searched for the
    name, or None if the whole log was searched. `followed_until_ms` is the store time up to which records
    were searched that refer to the found ones, or None if all were.
    """

    name: str
    store: str
    first_offset: int
    end_offset: int
    events: list[Event]
    messages: list[Standing] = field(default_factory=list)
    is_cut: bool = False
    epochs: list[EpochRange] = field(default_factory=list)
    searched_from_ms: int | None = None
    followed_until_ms: int | None = None

    def as_json(self, behind_ms: int = 0) -> dict[str, Any]:
        """Return JSON values, with 64-bit numbers as text.

        `behind_ms` is subtracted from times, for a virtual clock.
        """
        before_ms: int | None = None
        shown = []
        for event in self.events:
            gap_ms = 0 if before_ms is None else event.store_ms - before_ms
            before_ms = event.store_ms
            at = event.physical_offset
            place = {"epoch": epoch_at(self.epochs, at), "leader": leader_at(self.epochs, at)}
            shown.append(event.as_json(behind_ms) | {"gap_ms": str(gap_ms)} | place)
        return {
            "name": self.name,
            "store": self.store,
            "first_offset": str(self.first_offset),
            "end_offset": str(self.end_offset),
            "events": shown,
            "messages": [one._asdict() for one in self.messages],
            "is_cut": self.is_cut,
            "searched_from_ms": _time_text(self.searched_from_ms, behind_ms),
            "followed_until_ms": _time_text(self.followed_until_ms, behind_ms),
        }


def explain(log: SearchedLog, name: str, topic: str = "", seconds_max: float = inf) -> Explanation:
    """Return the history of a name, optionally restricted to messages of one topic.

    Copies of these messages that were moved to other topics are included. Each of the two passes ends after
    about `seconds_max`. If the first pass has not searched the whole log, the result may have no events.

    Raises `MessageNotFound` with the searched range, and `ClientMistake` for an invalid name.
    """
    found = _found(log, _checked(name), topic, seconds_max)
    if not found.records and not found.is_partial:
        raise MessageNotFound(_nowhere(log, name, topic))
    named, is_cut = found.records[:RECORDS_MAX], len(found.records) > RECORDS_MAX
    referring, followed_until = _referring(log, named, seconds_max)
    records = {one.physical_offset: one for one in [*named, *referring]}
    ordered = [records[offset] for offset in sorted(records)]
    subjects = Subjects.of(named)
    events = list(without_withdrawals(event for one in ordered for event in events_of(one, subjects)))
    return Explanation(
        name,
        log.name,
        found.first_offset,
        log.end_offset,
        events,
        _standings(named, events),
        is_cut,
        epochs_of(found.begun, found.first_offset, log.epoch),
        log.store_ms_from(found.first_offset) if found.is_partial else None,
        None if followed_until is None else log.store_ms_from(followed_until),
    )


def _time_text(at_ms: int | None, behind_ms: int) -> str | None:
    return None if at_ms is None else str(at_ms - behind_ms)


class _Found(NamedTuple):
    """The first records that contain a name, the epochs that began in the searched part, and its first log
    offset. `is_partial` is set if an older part of the log was not searched.
    """

    records: list[Record]
    begun: list[EpochRange]
    first_offset: int
    is_partial: bool


def _found(log: SearchedLog, name: str, topic: str, seconds_max: float) -> _Found:
    """Search for the records that contain a name, for about `seconds_max`.

    A key may have surrounding blanks. If there is no such key, the name is used without blanks.
    """
    ends_s = monotonic() + seconds_max
    found = _named(log, name, topic, ends_s)
    if not found.records and name != name.strip():
        stripped = _named(log, name.strip(), topic, ends_s)
        return stripped._replace(
            first_offset=max(found.first_offset, stripped.first_offset),
            is_partial=found.is_partial or stripped.is_partial,
        )
    return found


def _checked(name: str) -> str:
    if not name.strip() or _CONTROL.search(name) or len(name.encode()) > _NAME_BYTES_MAX:
        raise ClientMistake(
            f"{name[:80]!r} is no name of a message. Give a message key, a message id, a timer key, a "
            "transaction id, or @ and a log offset, such as @4096."
        )
    return name


def _record_of(log: SearchedLog, name: str) -> Record | None:
    """Return the record at the log offset that a name contains as a log offset or a transaction id."""
    given = _offset_in(name)
    offset = unverified_offset(name) if given is None else given
    return log.record_at(offset) if offset >= 0 else None


def _offset_in(name: str) -> int | None:
    """Return the log offset that a name such as @4096 or @4,096 gives, or None."""
    digits = name.removeprefix("@").replace(",", "")
    return int(digits) if name.startswith("@") and digits.isascii() and digits.isdigit() else None


def _named(log: SearchedLog, name: str, topic: str, ends_s: float) -> _Found:
    """Search for the records that contain a name, including kept records of deleted segments.

    For a transaction id or a log offset, the name is the id of the message found there.
    """
    there = _record_of(log, name)
    sought = (ids_of(there).message_id if there else "") or name
    known = chain([there] if there else [], log.kept())
    found = {one.physical_offset: one for one in known if _carries(one, sought, topic)}
    begun = dict[int, EpochRange]()
    first_offset, from_offset = log.first_offset, log.end_offset
    while from_offset > first_offset:
        until_offset, from_offset = from_offset, max(first_offset, from_offset - CHUNK_BYTES)
        for one in _in_chunk(log, sought, topic, from_offset, until_offset):
            if one.topic == EPOCH_TOPIC:
                begun[one.physical_offset] = begun_by(one)
            else:
                found[one.physical_offset] = one
        found = {offset: found[offset] for offset in sorted(found)[: RECORDS_MAX + 1]}
        if monotonic() >= ends_s:
            break
    return _Found([*found.values()], [*begun.values()], from_offset, from_offset > first_offset)


def _in_chunk(
    log: SearchedLog, name: str, topic: str, from_offset: int, until_offset: int
) -> Iterator[Record]:
    """Yield the records that begin an epoch between two log offsets, and the first that contain a name."""
    count = 0
    for one in log.holding([*_ends_of_value(log, name), EPOCH_TOPIC.encode()], from_offset, until_offset):
        if one.topic == EPOCH_TOPIC:
            yield one
        elif _carries(one, name, topic):
            yield one
            count += 1
            if count > RECORDS_MAX:
                yield from _epoch_records(log, one.physical_offset, until_offset)
                return


def _ends_of_value(log: SearchedLog, name: str) -> list[bytes]:
    """Return the bytes to search for: a name at the end of a property, or before another key.

    Without its end, the key order:7 would match each of a million keys from order:70 on, and all of these
    records would be decoded. In an imported log, the last property of a record may lack its end (0x02).
    """
    value = name.encode()
    return [value] if log.imported_until else [value + b"\x02", value + b" "]


def _epoch_records(log: SearchedLog, from_offset: int, until_offset: int) -> Iterator[Record]:
    found = log.holding([EPOCH_TOPIC.encode()], from_offset, until_offset)
    return (one for one in found if one.topic == EPOCH_TOPIC)


def _carries(one: Record, name: str, topic: str) -> bool:
    ids = ids_of(one)
    is_named = name in (ids.message_id, ids.timer_key) or name in ids.keys
    return is_named and (not topic or ids.topic == topic or _was_in(one, topic))


def _was_in(one: Record, topic: str) -> bool:
    """Return whether a record is the copy of a message that was moved from a topic."""
    origin = moved_from(one)
    return origin is not None and origin.topic == topic


def _referring(
    log: SearchedLog, named: Collection[Record], seconds_max: float
) -> tuple[list[Record], int | None]:
    """Return the records that refer to these records by the log offset of a half message or timer, or by a
    queue offset, and the log offset up to which they were searched for, or None for the end of the log.

    The search begins at the first of these records, even in a part that the first pass did not search: a
    message found by its log offset or transaction id may be there. Nothing refers to a half message or timer
    after its end, so the search stops there. An expired half message may still get a check-back.
    """
    if not named:
        return [], None
    anchors = {one.physical_offset: _needle(one) for one in named if one.topic in (HALF_TOPIC, TIMER_TOPIC)}
    own = (one for one in named if one.topic == VERB_TOPIC or kind_of(one) == "delivered")
    anchors |= {timer: b"\x01%d" % timer for one in own for timer, *_ in endings(one)}
    ends = _ends(named)
    places = {place for one in named if (place := place_of(one))}
    queues = {acks.text(place.topic) + place.queue_id.to_bytes(2, "big") for place in places}
    queues |= {json.dumps([place.topic, place.queue_id]).encode()[:-1] + b", " for place in places}
    ended = [anchors[offset] for offset in anchors if offset in ends]
    waiting = [anchors[offset] for offset in anchors if offset not in ends]
    from_offset = max(log.first_offset, min(one.physical_offset for one in named))
    last_end = max(ends.values(), default=from_offset)
    end_offset = log.end_offset if waiting or queues else last_end
    found, ends_s = list[Record](), monotonic() + seconds_max
    step_bytes = CHUNK_BYTES * 10 // (10 + len(anchors) + len(queues))  # each is a search of its own
    while from_offset < end_offset:
        until_offset = min(end_offset, from_offset + step_bytes)
        for one in chain(
            log.holding(ended, from_offset, min(until_offset, last_end)),
            log.holding([*waiting, *queues], from_offset, until_offset),
        ):
            if any(_refers(fact, anchors, places) for fact in facts_of(one)):
                found.append(one)
        from_offset = until_offset
        if from_offset < end_offset and monotonic() >= ends_s:
            return found, from_offset
    return found, None


def _needle(one: Record) -> bytes:
    """Return the bytes in a record that refers to this half message or timer."""
    offset = one.physical_offset
    return offset.to_bytes(8, "big") if one.topic == HALF_TOPIC else b"\x01%d" % offset


def _ends(named: Collection[Record]) -> dict[int, int]:
    """Return the log offsets of the half messages and timers that these records end, with the offset of the
    record.
    """
    told = [(fact, one.physical_offset) for one in named for fact in facts_of(one)]
    halves = {
        fact.half_offset: at for fact, at in told if isinstance(fact, HalfEnded) and fact.how != EXPIRED
    }
    return halves | {fact.timer_offset: at for fact, at in told if isinstance(fact, TimerEnded)}


def _refers(fact: Fact, anchors: Collection[int], places: set[Place]) -> bool:
    match fact:
        case MessagesFinished():
            return any(place.is_in(fact) for place in places)
        case LeaseChanged((_, topic, queue_id), entry):
            return Place(topic, queue_id, entry.queue_offset) in places
        case LogCut():
            return any(place.is_below(fact) for place in places)
        case HalfEnded() | CheckBackSent() | LateEndRequested():
            return fact.half_offset in anchors
        case TimerEnded():
            return fact.timer_offset in anchors
    return False


def _standings(named: Collection[Record], events: Collection[Event]) -> list[Standing]:
    """Return the states of the messages in order of their first records."""
    messages = {(ids.message_id, ids.topic): ids.keys for one in named if (ids := ids_of(one))}

    def of_message(message_id: str, topic: str) -> Iterator[Event]:
        return (one for one in events if (one.message_id, one.topic) == (message_id, topic))

    return [
        Standing(message_id, topic, " ".join(keys), standing(of_message(message_id, topic)))
        for (message_id, topic), keys in messages.items()
    ]


def _nowhere(log: SearchedLog, name: str, topic: str) -> str:
    of_topic = f" of topic {topic}" if topic else ""
    gone = " What was stored before was deleted by retention." if log.first_offset else ""
    if (offset := _offset_in(name)) is not None:
        return (
            f"No message{of_topic} begins at log offset {offset} of {log.name}, whose log offsets are "
            f"{log.first_offset} to {log.end_offset}. Give the offset that "
            f"send prints, or that explain prints for a stored message or an armed timer.{gone}"
        )
    is_near = " After @, a log offset is a number, such as @4096." if name.startswith("@") else ""
    return (
        f"No record{of_topic} in {log.name} has the message key, message id, timer key or transaction id "
        f"{name!r}.{is_near} Log offsets {log.first_offset} to {log.end_offset} and what was kept from "
        f"before were searched.{gone}"
    )
