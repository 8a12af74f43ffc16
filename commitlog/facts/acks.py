"""Acknowledgement records: ranges of queue offsets per group, topic, and queue.

The body of a `TW_SYS_ACK` record is a sequence of entries with the following big-endian fields:

    width  field
    1 + g  group length, group UTF-8
    1 + t  topic length, topic UTF-8
    2      queue_id
    2      range_count
    12 x n first queue_offset (8), count (4)

An entry without a group, topic, or ranges (six zero bytes) marks the next entry as skipped. Skipped messages
were not acknowledged because they did not match the group's filter or are in a damaged part of the log.

One record holds all acknowledgements from an event loop iteration, and a range of adjacent messages takes up
only a few bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_QUEUE: Final = struct.Struct(">HH")
_RANGE: Final = struct.Struct(">QI")
_RANGE_COUNT_MAX: Final = 0xFFFF
_TEXT_BYTES_MAX: Final = 255
_PASSED: Final = bytes(6)


class MessagesFinished(NamedTuple):
    """Messages in a queue that a group has finished or skipped, as (first offset, count) ranges."""

    group: str
    topic: str
    queue_id: int
    ranges: list[tuple[int, int]]
    is_passed: bool = False


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return offsets, given in any order, as ascending (first, count) ranges."""
    ranges: list[tuple[int, int]] = []
    first = end = -1
    for offset in sorted(offsets):
        if offset > end:
            if end > first:
                ranges.append((first, end - first))
            first = offset
        end = offset + 1
    if end > first:
        ranges.append((first, end - first))
    return ranges


def encode(finished: Iterable[MessagesFinished]) -> bytes:
    """Return the body of an acknowledgement record."""
    return b"".join(encoded_parts(finished))


def encoded_parts(finished: Iterable[MessagesFinished]) -> Iterator[bytes]:
    """Yield the encoded entries in parts of up to 65,535 ranges.

    Parts can be joined into one or more record bodies.
    """
    for group, topic, queue_id, ranges, is_passed in finished:
        assert group or topic or ranges, "an entry of nothing would be read as the mark of the next"
        head = (_PASSED if is_passed else b"") + text(group) + text(topic)
        for first in range(0, len(ranges), _RANGE_COUNT_MAX):
            part = ranges[first : first + _RANGE_COUNT_MAX]
            yield b"".join((head, _QUEUE.pack(queue_id, len(part)), *(_RANGE.pack(*one) for one in part)))


def decode(body: bytes) -> Iterator[MessagesFinished]:
    """Yield the entries of an acknowledgement record in order."""
    position = 0
    is_passed = False
    while position < len(body):
        group, position = read_text(body, position)
        topic, position = read_text(body, position)
        queue_id, range_count = _QUEUE.unpack_from(body, position)
        position += _QUEUE.size
        end = position + range_count * _RANGE.size
        if group or topic or range_count:
            ranges = list(_RANGE.iter_unpack(body[position:end]))
            yield MessagesFinished(group, topic, queue_id, ranges, is_passed)
            is_passed = False
        else:
            is_passed = True
        position = end


def text(words: str) -> bytes:
    """Return text in UTF-8, truncated to 255 bytes and preceded by a length byte."""
    encoded = words.encode()[:_TEXT_BYTES_MAX]
    return bytes((len(encoded),)) + encoded


def clip(words: str) -> str:
    """Return text truncated to 255 bytes in UTF-8, as `read_text` would return it."""
    return words if 4 * len(words) <= _TEXT_BYTES_MAX else read_text(text(words), 0)[0]


def read_text(body: bytes, position: int) -> tuple[str, int]:
    """Return the text at a byte position, and the position after it."""
    end = position + 1 + body[position]
    return body[position + 1 : end].decode(errors="replace"), end
