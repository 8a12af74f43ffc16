"""Hostile callers: valid protobuf with values that nobody means well with, and bytes that are no protocol.

Everything comes of one seed, which is printed: the same seed says the same things.
"""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

DEPTH_MAX = 5
REPEATED_MAX = 6
INTEGERS = (0, 1, -1, 2, 7, 31, 32, 33, 255, 65_536, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
TEXTS = (
    "", " ", "t", "g", "t", "g", "lite", "lite",
    "hello", "%RETRY%g", "%DLQ%g", "TW_SYS_ACK", "rmq_sys_wheel_timer", "ns%t",
    "../../etc/passwd", "a" * 127, "a" * 128, "a" * 70_000, "\0", "\x01\x02", "\n\r\t", "\u202e", "😀" * 40,
    "' OR 1=1 --", "${jndi}", "%s%s%n", "*", "a || b", "TAGS IS NOT NULL AND a > 1", "((((((((((", "1 = 1",
    "-1", "NaN", "1e999", "0 0 0 0 0 tidewheel 0 0 0", "127.0.0.1", "::1", "256.256.256.256",
)  # fmt: skip
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BEGINNINGS = (
    b"",
    b"\x16",
    b"\x16\x03\x01",
    PREFACE,
    PREFACE + b"\0\0\0\4\0\0\0\0\0",
    b"GET / HTTP/1.1\r\n",
    b"\0",
)


def hostile(kind: Any, random: Random) -> Any:
    """A message of a protobuf class with whatever comes."""
    message = kind()
    fill(message, kind.DESCRIPTOR, random, DEPTH_MAX)
    return message


def fill(message: Message, described: Descriptor, random: Random, depth: int) -> None:
    """Give some of a message's fields values, and the fields of those."""
    for field in described.fields:
        if random.random() < 0.3:
            continue
        if is_map(field):
            fill_map(getattr(message, field.name), random)
        elif field.message_type is not None:
            fill_messages(message, field, random, depth)
        elif field.is_repeated:
            getattr(message, field.name).extend(
                value(field, random) for _ in range(random.randrange(REPEATED_MAX))
            )
        else:
            setattr(message, field.name, value(field, random))


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map; those of the protocol are of texts."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def fill_map(entries: Any, random: Random) -> None:
    """Some texts by texts."""
    for _ in range(random.randrange(REPEATED_MAX)):
        entries[random.choice(TEXTS)] = random.choice(TEXTS)


def fill_messages(message: Message, field: FieldDescriptor, random: Random, depth: int) -> None:
    """A message within a message, or several."""
    if depth == 0:
        return
    inner = getattr(message, field.name)
    if field.is_repeated:
        for _ in range(random.randrange(REPEATED_MAX)):
            fill(inner.add(), field.message_type, random, depth - 1)
    else:
        inner.SetInParent()
        fill(inner, field.message_type, random, depth - 1)


def value(field: FieldDescriptor, random: Random) -> Any:
    """A value of a field, within what its type can hold."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return random.randbytes(random.choice((0, 1, 256, 65_536)))
        case FieldDescriptor.CPPTYPE_STRING:
            return random.choice(TEXTS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return random.random() < 0.5
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return random.choice((0.0, -1.0, 1e300, float("inf"), float("nan"))) if is_wide(field) else 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            known = [one.number for one in field.enum_type.values]
            return random.choice([*known, *known, 99, -1])
        case FieldDescriptor.CPPTYPE_INT32:
            return random.choice([one for one in INTEGERS if -(2**31) <= one < 2**31])
        case FieldDescriptor.CPPTYPE_INT64:
            return random.choice(INTEGERS)
        case FieldDescriptor.CPPTYPE_UINT32:
            return random.choice([one for one in INTEGERS if 0 <= one < 2**32])
        case _:
            return random.choice([one for one in INTEGERS if one >= 0])


def is_wide(field: FieldDescriptor) -> bool:
    """Whether a field holds doubles."""
    return bool(field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE)


def nonsense(random: Random) -> bytes:
    """What a connection may begin with: a protocol's beginning, and then anything."""
    return random.choice(BEGINNINGS) + random.randbytes(random.choice((0, 1, 9, 64, 5_000)))
