"""Bound the number of fields of a request before it is parsed.

protobuf parses a request in one call, which nothing interrupts: 32 MiB of empty entries take 1 s, and as long
again where they are looked at. The bound of bytes does not help, since a request may hold bodies of MiB. So
the fields of a large request are counted first, up to `FIELDS_PER_REQUEST_MAX`, by going from tag to tag:
what stands in a body or a text is one field, whatever its length.

(Protocol Buffers' encoding: a tag is field number << 3 | wire type; wire type 2 has a length before it.)

Cost: 0.2 us a field, of requests above `COUNTED_ABOVE_BYTES` only: smaller ones cannot have too many.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto

from commitlog.limits import FIELDS_PER_REQUEST_MAX

COUNTED_ABOVE_BYTES: Final = 2 * FIELDS_PER_REQUEST_MAX
"""A field has two bytes at least."""
TOO_MANY: Final = (
    f"The request has more than {FIELDS_PER_REQUEST_MAX} fields. "
    "Send fewer messages, entries or properties at once."
)
_DESCENDED_BYTES: Final = 32
"""A smaller message within another is not looked into: it counts as what its bytes may hold."""
_BYTES_PER_FIELD: Final = 4
_PACKED_BYTES_PER_FIELD: Final = 32
_VARINT, _FIXED64, _LENGTH, _FIXED32, _GROUPS = 0, 1, 2, 5, (3, 4)

_Within = tuple[int, int, Any]
"""A message within another: its first byte, the one behind its last, and its type."""


def has_too_many_fields(message: bytes, descriptor: Any) -> bool:
    """Return whether a request of a type has more fields than may be, up to where it cannot be parsed."""
    if len(message) <= COUNTED_ABOVE_BYTES:
        return False
    return _left_of(message, descriptor) < 0


def _left_of(message: bytes, descriptor: Any) -> int:
    """Return how many more fields there could be; less than 0 for too many.

    A message that cannot be parsed is counted up to the field that breaks it, and the messages within what
    comes before are counted, too: protobuf parses them before it meets that field.
    """
    left = FIELDS_PER_REQUEST_MAX
    todo: list[_Within] = [(0, len(message), descriptor)]
    while todo and left >= 0:
        at, end, of = todo.pop()
        left = _less(left, message, at, end, _inner(of), todo)
    return left


def _less(left: int, message: bytes, at: int, end: int, inner: dict[int, Any], todo: list[_Within]) -> int:
    """Return what is left behind the fields of a message; add to `todo` the messages within it.

    A number of one byte, as most are, is read without a call. The count ends at a field that breaks off, or
    has a wire type that is none.
    """
    with suppress(IndexError):
        while at < end and left >= 0:
            tag = message[at]
            at += 1
            if tag > 127:
                tag, at = _number(message, at - 1)
            cost, kind = 1, tag & 7
            if kind == _LENGTH:
                length = message[at]
                at += 1
                if length > 127:
                    length, at = _number(message, at - 1)
                known = inner.get(tag >> 3, False)
                if known is None:
                    cost += length // _PACKED_BYTES_PER_FIELD
                elif known and length > _DESCENDED_BYTES:
                    todo.append((at, min(at + length, end), known))
                elif known:
                    cost += length // _BYTES_PER_FIELD
                at += length
            elif kind == _VARINT:
                _, at = _number(message, at)
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            elif kind in _GROUPS:  # none of our messages has one
                cost = FIELDS_PER_REQUEST_MAX + 1
            else:
                break
            left -= cost
    return left


def _number(message: bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place, and the place behind it."""
    number = message[at]
    at += 1
    if number < 128:
        return number, at
    number, shift = number & 127, 7
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128 or shift > 63:
            return number, at
        shift += 7


@lru_cache(maxsize=256)
def _inner(descriptor: Any) -> dict[int, Any]:
    """Return the types of the messages within a message, by field number; None for packed numbers."""
    found: dict[int, Any] = {}
    described = DescriptorProto()
    descriptor.CopyToProto(described)  # a field's own attribute has another name in each major version
    repeated = {one.number for one in described.field if one.label == one.LABEL_REPEATED}
    for field in descriptor.fields:
        if field.message_type is not None:
            found[field.number] = field.message_type
        elif field.number in repeated and field.cpp_type != field.CPPTYPE_STRING:
            found[field.number] = None
    return found
