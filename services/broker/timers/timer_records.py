"""Encode and decode the records that set, move, cancel, and deliver timers.

    operation                                topic                 ended timer       new timer
    set                                      rmq_sys_wheel_timer                     the record itself
    set with the key of a pending timer,     rmq_sys_wheel_timer   TW_REPLACES       the record itself
    or move
    hold (TW_HELD is set)                    rmq_sys_wheel_timer   TW_REPLACES       the record itself
    cancel, or loss (TW_VERB = UNREADABLE)   TW_SYS_VERB           TW_TIMER_OFFSET
    delivery, or fire (TW_VERB = FIRE)       the real topic        TW_TIMER_OFFSET

Each change to a timer is a single record and is therefore atomic. A record that ends a timer also contains
the due time, which is needed to find the timer on disk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from commitlog.facts.facts import TimerSet
from commitlog.records import properties
from commitlog.records.kinds import CANCEL, MOVE, TIMER_TOPIC, UNREADABLE, VERB_TOPIC
from commitlog.records.message import Message
from commitlog.records.record import COMPRESSED, COMPRESSION, TYPE_SYSTEM, Record
from services.broker.spine.appended import NewMessage
from services.broker.spine.values import TimerName
from tidewheel import property_names

_DUE: Final = f"{property_names.DUE_MS}\x01"
_TOPIC: Final = f"\x02{property_names.REAL_TOPIC}\x01"
_QUEUE: Final = f"\x02{property_names.REAL_QUEUE_ID}\x01"
_REBUILT: Final = "rebuilt: {} was damaged"
_CARRIED: Final = (property_names.CANCELS, property_names.CANCELS_TOPIC)
_NOT_MOVED: Final = frozenset((*_CARRIED, property_names.TIMER_NAMES, property_names.HELD))
_ID, _KEY = "id", "key"
_new: Final = tuple.__new__
"""Create a named tuple in one third of the time taken by the constructor."""
NOT_DELIVERED: Final = frozenset(
    {
        property_names.REAL_TOPIC,
        property_names.REAL_QUEUE_ID,
        property_names.REPLACES,
        property_names.REPLACED_DUE_MS,
        property_names.VERB,
        property_names.REASON,
        property_names.TIMER_NAMES,
        *_CARRIED,
    }
)


class ReplacedTimer(NamedTuple):
    """A timer that is replaced by a new timer."""

    timer_offset: int
    due_ms: int


def timer_record(message: Message, queue_id: int, replaced: ReplacedTimer | None = None) -> Record:
    """Return the timer record of a delayed message. `queue_id` is the real queue of the message."""
    stored = timer_properties(message, queue_id)
    if replaced is not None:
        stored += properties.encode(_replacement_properties(replaced))
    return Record(
        topic=TIMER_TOPIC,
        body=message.body,
        properties=stored,
        sys_flag=COMPRESSED if message.gzip else 0,
        born_ms=message.born_ms,
        born_host=message.born_host,
    )


def new_timer(message: Message, queue_id: int) -> NewMessage:
    """Return a draft for a delayed message, with its fact. The message must not replace a timer."""
    due_ms, key = message.delivery_ms, message.properties.get(property_names.TIMER_KEY, "")
    assert due_ms is not None, "a message without a delivery time is no timer"
    fact = _new(TimerSet, (due_ms, message.topic, message.message_id, key, False, False))
    stored = timer_properties(message, queue_id)
    return _new(NewMessage, (message, stored, TIMER_TOPIC, 0, (fact,), None, b""))


def timer_properties(message: Message, queue_id: int) -> bytes:
    """Return the encoded properties of a message's timer record, without the mark of a replaced timer."""
    marks = f"{_DUE}{message.delivery_ms}{_TOPIC}{message.topic}{_QUEUE}{queue_id}\x02"
    return properties.encode_message(message, marks)


def moved_record(timer: Record, timer_offset: int, old_due_ms: int, due_ms: int, reason: str = "") -> Record:
    """Return a timer record that moves the timer at log offset `timer_offset` to `due_ms`.

    The message does not change.
    """
    marks = {property_names.DUE_MS: str(due_ms), property_names.VERB: MOVE, property_names.REASON: reason}
    marks |= _replacement_properties(ReplacedTimer(timer_offset, old_due_ms))
    stored = properties.decode(timer.properties)
    kept = {name: value for name, value in stored.items() if name not in _NOT_MOVED}
    return Record(
        topic=TIMER_TOPIC,
        body=timer.body,
        properties=properties.encode(kept | marks),
        sys_flag=timer.sys_flag & COMPRESSION,
        born_ms=timer.born_ms,
        born_host=timer.born_host,
    )


def rebuilt_record(timer: Record, timer_offset: int, names: list[TimerName], path: str) -> Record:
    """Return a timer record that replaces a timer in the damaged file `path`.

    The message and the due time do not change. The new timer has only the names in `names`, because another
    timer may have been set with the same key.
    """
    due_ms = due_ms_of(timer)
    new = moved_record(timer, timer_offset, due_ms, due_ms, _REBUILT.format(path))
    if is_held(timer):
        _mark_held(new)
    restrict_names(new, names)
    return new


def held_record(timer: Record, timer_offset: int) -> Record:
    """Return a timer record, marked as held, that replaces a due timer of a held topic.

    The message and the due time do not change.
    """
    due_ms = due_ms_of(timer)
    new = moved_record(timer, timer_offset, due_ms, due_ms)
    _mark_held(new)
    return new


def is_held(timer: Record) -> bool:
    """Return whether a timer record has the TW_HELD mark."""
    return bool(properties.value_of(timer.properties, property_names.HELD))


def _mark_held(new: Record) -> None:
    new.properties += properties.encode({property_names.HELD: "true"})


def restrict_names(new: Record, names: list[TimerName]) -> None:
    """Restrict the names of a timer to `names`, in a record that has not been appended yet."""
    said = " ".join(_KEY if one.key else _ID for one in names) or "none"
    new.properties += properties.encode({property_names.TIMER_NAMES: said})


def is_rebuilt(timer: Record) -> bool:
    """Return whether a timer record replaces a timer in a damaged file."""
    return properties.value_of(timer.properties, property_names.REASON).startswith(_REBUILT[:9])


def names_of(timer: TimerSet) -> list[TimerName]:
    """Return the names of a timer: the message id and the timer key, if present."""
    names = [] if timer.message_id is None else [TimerName(timer.topic, timer.message_id)]
    return [*names, TimerName(timer.topic, key=timer.key)] if timer.key else names


def read_move_reason(stored: dict[str, str]) -> str | None:
    """Return the reason in the properties of a move record, or None for any other record."""
    return stored.get(property_names.REASON, "") if stored.get(property_names.VERB) == MOVE else None


def delivered_record(timer: Record, timer_offset: int, verb: str = "", reason: str = "") -> Record:
    """Return the record that delivers the message of a timer to the real queue.

    The record also contains the timer offset, the verb, and the reason.
    """
    stored = properties.decode(timer.properties)
    kept = {name: value for name, value in stored.items() if name not in NOT_DELIVERED}
    marks = {
        property_names.TIMER_OFFSET: str(timer_offset),
        property_names.VERB: verb,
        property_names.REASON: reason,
    }
    return Record(
        topic=stored[property_names.REAL_TOPIC],
        queue_id=int(stored[property_names.REAL_QUEUE_ID]),
        body=timer.body,
        properties=properties.encode(kept | marks),
        sys_flag=timer.sys_flag & COMPRESSION,
        born_ms=timer.born_ms,
        born_host=timer.born_host,
    )


def to_timer_record(ready: Record) -> Record:
    """Convert a ready record (`services.broker.timers.timer_source`) back to a timer record."""
    stored = properties.decode(ready.properties)
    timer_offset = int(stored.pop(property_names.TIMER_OFFSET))
    marks = {property_names.REAL_TOPIC: ready.topic, property_names.REAL_QUEUE_ID: str(ready.queue_id)}
    return replace(
        ready,
        topic=TIMER_TOPIC,
        queue_id=0,
        physical_offset=timer_offset,
        properties=properties.encode(stored | marks),
    )


def cancel_record(timer_offset: int, due_ms: int, topic: str, message_id: str, reason: str) -> Record:
    """Return a record that cancels a timer."""
    return _verb_record(CANCEL, timer_offset, due_ms, topic, message_id, reason)


def unreadable_record(timer_offset: int, due_ms: int, topic: str) -> Record:
    """Return the record that ends a timer whose own record is lost. `topic` is empty if unknown."""
    return _verb_record(UNREADABLE, timer_offset, due_ms, topic)


def _verb_record(
    verb: str, timer_offset: int, due_ms: int, topic: str, message_id: str = "", reason: str = ""
) -> Record:
    marks = {
        property_names.VERB: verb,
        property_names.TIMER_OFFSET: str(timer_offset),
        property_names.DUE_MS: str(due_ms),
        property_names.MESSAGE_ID: message_id,
        property_names.REAL_TOPIC: topic,
        property_names.REASON: reason,
    }
    return Record(topic=VERB_TOPIC, body=b"", properties=properties.encode(marks), sys_flag=TYPE_SYSTEM)


def with_replaced(stored: bytes, replaced: ReplacedTimer | None) -> bytes:
    """Return timer properties that mark a timer as the replacement for `replaced`.

    If `replaced` is None, return the properties without such a mark.
    """
    kept = properties.decode(stored)
    kept.pop(property_names.REPLACES, None)
    kept.pop(property_names.REPLACED_DUE_MS, None)
    return properties.encode(kept if replaced is None else kept | _replacement_properties(replaced))


def replaced_offset_of(stored: bytes) -> int:
    """Return the offset of the timer that is replaced by the timer with the properties `stored`.

    Return -1 if no timer is replaced. Also return -1 for a moved or rebuilt timer, which replaces only its
    own earlier record.
    """
    if properties.value_of(stored, property_names.VERB):
        return -1
    said = properties.value_of(stored, property_names.REPLACES)
    return int(said) if said else -1


def due_ms_of(record: Record) -> int:
    """Return the due time in a timer record, in milliseconds since the Unix epoch."""
    return int(properties.value_of(record.properties, property_names.DUE_MS))


def _replacement_properties(replaced: ReplacedTimer) -> dict[str, str]:
    return {
        property_names.REPLACES: str(replaced.timer_offset),
        property_names.REPLACED_DUE_MS: str(replaced.due_ms),
    }
