"""Lease records.

These records hold leases that must survive a restart and leases that ended without an acknowledgement.

The body of a `TW_SYS_LEASE` record is a sequence of groups of entries with the following big-endian fields:

    width  field
    1 + g  group length, group UTF-8
    1 + t  topic length, topic UTF-8
    2      queue_id
    2      entry count, then the entries:

    1      kind: 1 leased, 2 ended
    1      cause, if ended: 0 not counted, else `consumequeue.groups.attempts.Cause`
    2      attempts so far, including this attempt if counted
    8      queue_offset
    8      generation if leased
    8      visible_ms if leased, else the time of the end
    8      time of the lease, if leased
    1 + c  client length, client id UTF-8 of the consumer
    1      bits: 1 the broker renews the lease, 2 the consumer has changed the end,
           4 this attempt is not counted, 8 a takeover has changed the end
    1 + m  message group length, message group UTF-8
    1 + a  attempt id length, attempt id UTF-8 of the receive

One record holds all lease entries from an event loop iteration.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from commitlog.facts.acks import read_text, text

_QUEUE: Final = struct.Struct(">HH")
_ENTRY: Final = struct.Struct(">BBHQQQQ")
_PART_ENTRIES_MAX: Final = 1024
_ATTEMPTS_MAX: Final = 0xFFFF


class Kind(IntEnum):
    """Kinds of entries in a lease record."""

    LEASED = 1
    ENDED = 2


class LeaseEntry(NamedTuple):
    """The start or end of a lease, as an entry in a lease record.

    The attributes are the fields of the entry.
    """

    kind: Kind
    cause: int
    attempts: int
    queue_offset: int
    generation: int
    at_ms: int
    leased_ms: int
    client_id: str
    is_renewed: bool
    message_group: str
    is_changed: bool = False
    is_suspended: bool = False
    attempt_id: str = ""
    is_lengthened: bool = False


Key = tuple[str, str, int]
"""Group, topic, and queue ID."""


def encode(entries: Iterable[tuple[Key, list[LeaseEntry]]]) -> bytes:
    """Return the body of a lease record."""
    return b"".join(encoded_parts(entries))


def encoded_parts(entries: Iterable[tuple[Key, list[LeaseEntry]]]) -> Iterator[bytes]:
    """Yield encoded entries in parts of up to 1,024 entries each.

    Parts can be joined into one or more record bodies.
    """
    for (group, topic, queue_id), of_queue in entries:
        head = text(group) + text(topic)
        for first in range(0, len(of_queue), _PART_ENTRIES_MAX):
            part = of_queue[first : first + _PART_ENTRIES_MAX]
            yield b"".join((head, _QUEUE.pack(queue_id, len(part)), *map(_encoded, part)))


def decode(body: bytes) -> Iterator[tuple[Key, LeaseEntry]]:
    """Yield the entries of a lease record in order."""
    position = 0
    while position < len(body):
        group, position = read_text(body, position)
        topic, position = read_text(body, position)
        queue_id, count = _QUEUE.unpack_from(body, position)
        position += _QUEUE.size
        for _ in range(count):
            entry, position = _decoded(body, position)
            yield (group, topic, queue_id), entry


def _encoded(one: LeaseEntry) -> bytes:
    attempts = min(one.attempts, _ATTEMPTS_MAX)
    fixed = _ENTRY.pack(
        one.kind, one.cause, attempts, one.queue_offset, one.generation, one.at_ms, one.leased_ms
    )
    bits = one.is_renewed | one.is_changed << 1 | one.is_suspended << 2 | one.is_lengthened << 3
    return b"".join(
        (fixed, text(one.client_id), bytes((bits,)), text(one.message_group), text(one.attempt_id))
    )


def _decoded(body: bytes, position: int) -> tuple[LeaseEntry, int]:
    kind, cause, attempts, queue_offset, generation, at_ms, leased_ms = _ENTRY.unpack_from(body, position)
    client_id, position = read_text(body, position + _ENTRY.size)
    bits = body[position]
    message_group, position = read_text(body, position + 1)
    attempt_id, position = read_text(body, position)
    flags = bool(bits & 1), bool(bits & 2), bool(bits & 4)
    is_lengthened = bool(bits & 8)
    fixed = Kind(kind), cause, attempts, queue_offset, generation, at_ms, leased_ms, client_id
    return LeaseEntry(*fixed, flags[0], message_group, *flags[1:], attempt_id, is_lengthened), position
