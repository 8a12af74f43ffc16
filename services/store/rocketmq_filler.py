"""A record in the place of damage, so that a genuine broker reads on behind it.

RocketMQ's recovery cuts the log at the first record that does not hold, and deletes all segments behind it.
An export therefore puts a sound record over each damaged region: of our system type, which no queue holds,
with a body of zeros. What was damaged stays lost; what lies behind it does not become so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from commitlog import properties, record
from commitlog.record import TYPE_SYSTEM, Record
from commitlog.recovery import Damage

FILLER_TOPIC: Final = "TW_SYS_DAMAGED"
_PROPERTIES: Final = properties.encode({"TW_DAMAGED": "true"})


def fillers(damaged: Damage, segment_bytes: int, store_ms: int) -> Iterator[tuple[int, bytes]]:
    """(log offset, bytes) of what covers a region, one record or blank for each segment it touches.

    `store_ms` is the store time of the record before it, since RocketMQ's never go back.
    """
    offset = damaged.first_offset
    while offset < damaged.end_offset:
        segment_end = offset // segment_bytes * segment_bytes + segment_bytes
        end = min(damaged.end_offset, segment_end)
        yield offset, _cover(offset, end - offset, end == segment_end, store_ms)
        offset = end


def _cover(offset: int, length: int, is_segment_end: bool, store_ms: int) -> bytes:
    """A blank where the region closes its segment, else a record of just this length."""
    if is_segment_end and length >= record.BLANK_BYTES:
        return record.blank(length)
    empty = Record(
        topic=FILLER_TOPIC,
        body=b"",
        properties=_PROPERTIES,
        sys_flag=TYPE_SYSTEM,
        physical_offset=offset,
        born_ms=store_ms,
        store_ms=store_ms,
    )
    empty.body = bytes(max(0, length - len(record.encode(empty))))
    covering = record.encode(empty)
    return covering if len(covering) == length else b""
