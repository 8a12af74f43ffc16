"""A record in the place of damage, so that a genuine broker reads on behind it.

RocketMQ's recovery cuts the log at the first record that does not hold, and deletes all segments behind it.
An export therefore puts a sound record over each damaged region: of our system type, which no queue holds,
with a body of zeros. What was damaged stays lost; what lies behind it does not become so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from commitlog.log.recovery import Damage
from commitlog.records import properties, record
from commitlog.records.record import TYPE_SYSTEM, Record

FILLER_TOPIC: Final = "TW_SYS_DAMAGED"
_FORMS: Final = (
    (FILLER_TOPIC, properties.encode({"TW_DAMAGED": "true"}), True),
    (FILLER_TOPIC, b"", True),
    ("D", b"", True),
    ("D", b"", False),
)
"""(topic, properties, whether with the CRC property), the fullest first."""


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
    """Return a blank where the region closes its segment, else the fullest record of just this length."""
    if is_segment_end and length >= record.BLANK_BYTES:
        return record.blank(length)
    for topic, stored, with_crc in _FORMS:
        filler = Record(
            topic=topic,
            body=b"",
            properties=stored,
            sys_flag=TYPE_SYSTEM,
            physical_offset=offset,
            born_ms=store_ms,
            store_ms=store_ms,
        )
        body_bytes = length - len(record.encode(filler, with_crc=with_crc))
        if body_bytes >= 0:
            filler.body = bytes(body_bytes)
            return record.encode(filler, with_crc=with_crc)
    raise AssertionError(f"{length} damaged bytes at log offset {offset} are fewer than any record has")
