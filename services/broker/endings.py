"""Which timers a record ends, and how: the one reading of the rules in `services.broker.timer_records`.

    record                            names the timer in
    delivered, fired, cancel verb     TW_TIMER_OFFSET
    timer set again or moved          TW_REPLACES
    message that carried a cancel     TW_CANCELS: the timer's offset, a blank, when it was due

A delivered message may still carry the TW_CANCELS of its timer record, which did that long before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from commitlog import properties
from commitlog.record import Record
from services.broker.timer_ends import End
from services.broker.timer_records import FIRE, MOVE, TIMER_TOPIC, VERB_TOPIC

_OURS: Final = b"TW_"
_SAID: Final = (
    properties.REPLACES,
    properties.REPLACED_DUE_MS,
    properties.CANCELS,
    properties.CANCELS_TOPIC,
    properties.VERB,
)


class Ending(NamedTuple):
    """The end of one timer: how, and when it was due."""

    timer_offset: int
    end: End
    due_ms: int


def endings(record: Record) -> Iterator[Ending]:
    """The ends of timers that a record tells."""
    if _OURS not in record.properties:
        return
    timer_offset = _number(record, properties.TIMER_OFFSET)
    if timer_offset is not None:
        yield Ending(timer_offset, _kind(record), _number(record, properties.DUE_MS) or 0)
        return
    replaced = _number(record, properties.REPLACES)
    if replaced is not None and record.topic == TIMER_TOPIC:
        is_moved = properties.value_of(record.properties, properties.VERB) == MOVE
        due_ms = _number(record, properties.REPLACED_DUE_MS) or 0
        yield Ending(replaced, End.MOVED if is_moved else End.REPLACED, due_ms)
    cancels = properties.value_of(record.properties, properties.CANCELS).split()
    if len(cancels) == 2 and all(map(str.isdigit, cancels)):
        yield Ending(int(cancels[0]), End.CANCELLED, int(cancels[1]))


def without_endings(stored: bytes) -> dict[str, str]:
    """The properties of a timer record for a copy of it, which must not end again what the record ended."""
    return {name: value for name, value in properties.decode(stored).items() if name not in _SAID}


def _kind(record: Record) -> End:
    if record.topic == VERB_TOPIC:
        return End.CANCELLED
    is_fired = properties.value_of(record.properties, properties.VERB) == FIRE
    return End.FIRED if is_fired else End.DELIVERED


def _number(record: Record, name: str) -> int | None:
    value = properties.value_of(record.properties, name)
    return int(value) if value.isascii() and value.isdigit() else None
