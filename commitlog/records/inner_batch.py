"""RocketMQ inner batches: records that contain several messages (sys_flag 0x80).

They occur in topics of type BatchCQ.

An inner batch occupies INNER_NUM consecutive queue offsets, starting with the record's own offset. INNER_NUM
is a property. The queue entry at each of these offsets refers to the whole record, and `pick` extracts one
message. The decompressed body holds the following fields for each message, without gaps:

    offset width  field
    0      4      length, including these 4 bytes
    4      4      magic, not used
    8      4      body CRC, not used
    12     4      flag
    16     4 + b  body length, body
           2 + p  properties length, properties

Tidewheel does not write inner batches, so they occur only in imported logs.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

from commitlog.errors import StoreDamaged
from commitlog.records import properties
from commitlog.records.compression import plain
from commitlog.records.record import COMPRESSION, INNER_BATCH, Record

_NEED_UNWRAP: Final = 0x40
_HEAD: Final = struct.Struct(">iIIii")
_COUNT: Final = "INNER_NUM"


def message_count(record: Record) -> int:
    """Return the number of queue offsets a record occupies."""
    if not record.sys_flag & INNER_BATCH:
        return 1
    count = properties.value_of(record.properties, _COUNT)
    return max(1, int(count)) if count.isdigit() else 1


def pick(record: Record, queue_offset: int) -> Record:
    """Return the message in an inner batch that has this queue offset.

    Return any other record unchanged. Raise `StoreDamaged` if the batch does not contain the message, or
    `LibraryMissing` if the compression library is not installed.
    """
    if not record.sys_flag & INNER_BATCH:
        return record
    try:
        flag, body, stored = _message(plain(record.body, record.sys_flag), queue_offset - record.queue_offset)
    except (struct.error, IndexError) as error:
        raise StoreDamaged(
            f"The batch at log offset {record.physical_offset} holds no message for queue offset "
            f"{queue_offset}. It is skipped."
        ) from error
    return replace(
        record,
        body=body,
        flag=flag,
        properties=stored,
        queue_offset=queue_offset,
        sys_flag=record.sys_flag & ~(INNER_BATCH | _NEED_UNWRAP | COMPRESSION),
    )


def _message(batch: bytes, index: int) -> tuple[int, bytes, bytes]:
    """Return the flag, body, and properties of a message in a decompressed batch."""
    position = 0
    for _ in range(index):
        position += _length(batch, position)
    length, _, _, flag, body_bytes = _HEAD.unpack_from(batch, position)
    body_at = position + _HEAD.size
    properties_at = body_at + body_bytes + 2
    end = position + length
    if not body_at <= properties_at <= end <= len(batch):
        raise IndexError(position)
    return flag, batch[body_at : properties_at - 2], batch[properties_at:end]


def _length(batch: bytes, position: int) -> int:
    (length,) = struct.unpack_from(">i", batch, position)
    if length < _HEAD.size:
        raise IndexError(position)
    return int(length)
