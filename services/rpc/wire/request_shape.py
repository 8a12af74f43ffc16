"""Limit on the number of fields of a request, which is checked before the request is parsed.

protobuf parses a request in one call that cannot be interrupted: 32 MiB of empty entries take 1 s, and as
long again when they are processed. The limit on the request size is not sufficient, because a request may
contain large bodies. The fields of a large request are therefore counted first, up to
`FIELDS_PER_REQUEST_MAX`, by reading its tags. A body or text counts as one field, regardless of its length.

(Protocol Buffers' encoding: a tag is field number << 3 | wire type; wire type 2 has a length before it.)

Cost: 0.2 us per field, for requests above `COUNTED_ABOVE_BYTES` only, because smaller requests cannot have
too many fields.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto

from commitlog.limits import FIELDS_PER_REQUEST_MAX

COUNTED_ABOVE_BYTES: Final = 2 * FIELDS_PER_REQUEST_MAX
"""A field has at least two bytes."""
TOO_MANY: Final = (
    f"The request has more than {FIELDS_PER_REQUEST_MAX} fields. "
    "Send fewer messages, entries or properties at once."
)
_DESCENDED_BYTES: Final = 32
"""Fields in smaller submessages are not counted individually. The count is estimated from the size."""
_BYTES_PER_FIELD: Final = 4
_PACKED_BYTES_PER_FIELD: Final = 32
_VARINT, _FIXED64, _LENGTH, _FIXED32, _GROUPS = 0, 1, 2, 5, (3, 4)

_Within = tuple[int, int, Any]
"""A submessage: the offset of its first byte, the end offset, and its type."""


def has_too_many_fields(message: bytes, descriptor: Any) -> bool:
    """Return whether a request has too many fields, up to the point where it cannot be parsed."""
    if len(message) <= COUNTED_ABOVE_BYTES:
        return False
    return _left_of(message, descriptor) < 0


def _left_of(message: bytes, descriptor: Any) -> int:
    """Return the number of fields that are left of the limit. It is negative if the limit is exceeded.

    A malformed message is counted up to the invalid field, including the submessages before it, because
    protobuf parses them before it reaches that field.
    """
    left = FIELDS_PER_REQUEST_MAX
    todo: list[_Within] = [(0, len(message), descriptor)]
    while todo and left >= 0:
        at, end, of = todo.pop()
        left = _less(left, message, at, end, _inner(of), todo)
    return left


def _less(left: int, message: bytes, at: int, end: int, inner: dict[int, Any], todo: list[_Within]) -> int:
    """Return the rest of the limit after the fields of a message, and append its submessages to `todo`.

    One-byte varints, which are the most frequent, are decoded inline. The count ends at a truncated field or
    an unknown wire type.
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
            elif kind in _GROUPS:  # no message type contains a group
                cost = FIELDS_PER_REQUEST_MAX + 1
            else:
                break
            left -= cost
    return left


def _number(message: bytes, at: int) -> tuple[int, int]:
    """Return the varint at an offset, and the offset after it."""
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
    """Return the types of the submessages of a message, by field number.

    The value is None for packed numbers.
    """
    found: dict[int, Any] = {}
    described = DescriptorProto()
    # the attributes of a field descriptor differ between major versions of protobuf
    descriptor.CopyToProto(described)
    repeated = {one.number for one in described.field if one.label == one.LABEL_REPEATED}
    for field in descriptor.fields:
        if field.message_type is not None:
            found[field.number] = field.message_type
        elif field.number in repeated and field.cpp_type != field.CPPTYPE_STRING:
            found[field.number] = None
    return found
