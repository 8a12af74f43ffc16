"""Checks that message bodies have the format of their topic: a JSON object with fields and the right ID.

A body is accepted without parsing if it begins with its ID as the first field, ends with a brace, and
contains every required field with a value that is not null. A field is first compared at its position in an
example body, relative to the start or the end, so few bodies are searched. All other bodies are parsed.
Damage to stored bytes is detected by the CRC, not here.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_jobs.inputs.mapping import Bodies
from spark_jobs.log.columns.ragged import Flags, Integers, Ranges
from spark_jobs.staging.events import CANCELLED, CREATED, PAID, PUSHES, TIMEOUTS

_ID_STARTS: Final = ('{{"{}": "', '{{"{}":"')
_EXAMPLES_MAX: Final = 8
_NO_VALUES: Final = (b"n", b" ", b"\t", b"\n", b"\r")
"""First bytes of null, and whitespace: a value after more than one space is left to the parser."""
_IS_NO_VALUE: Final = np.isin(np.arange(256), [ord(one) for one in _NO_VALUES])
_NUMBER_MAX: Final = 1 << 53


def promised(bodies: Bodies) -> dict[int, tuple[str, ...]]:
    """Return the required fields of bodies by the topic's number. The first field is the message's ID."""
    fields = {
        CREATED: (bodies.order_id, bodies.customer_id, bodies.lines),
        TIMEOUTS: (bodies.order_id, bodies.due_ms),
        PAID: (bodies.order_id, bodies.paid_ms),
        CANCELLED: (bodies.order_id, bodies.cancelled_ms),
        PUSHES: (bodies.push_id,),
    }
    return {number: tuple(filter(None, names)) for number, names in fields.items()}


def readable(body: pa.BinaryArray, ids: pa.StringArray, topic: Integers, bodies: Bodies) -> Flags:
    """Return which bodies have the format of their topic. Without an ID or a shop topic, none has."""
    flags = np.zeros(len(body), np.bool_)
    stored, named = Ranges.of(body), Ranges.of(ids)
    for number, names in promised(bodies).items():
        here = np.flatnonzero(topic == number)
        if len(here):
            flags[here] = _at_a_glance(stored.chosen(here), named.chosen(here), names)
            for place in here[~flags[here]].tolist():
                flags[place] = is_promised(stored.one(place), ids[place].as_py(), names)
    return flags


def _at_a_glance(body: Ranges, ids: Ranges, names: tuple[str, ...]) -> Flags:
    """Return which bodies can be accepted without parsing.

    Limitation: only bytes are compared. Invalid JSON between the required fields is not detected, nor is a
    required field that is only in a nested object.
    """
    found = np.zeros(len(body), np.bool_)
    for stem in _ID_STARTS:
        if not found.all():
            found |= _begin(body, ids, stem.format(names[0]).encode())
    found &= body.have_at(body.lengths - 1, b"}")
    for name in names[1:]:
        found[found] = _have_value(body.chosen(found), f'"{name}":'.encode())
    return found


def _begin(body: Ranges, ids: Ranges, stem: bytes) -> Flags:
    """Return which bodies begin with these bytes, followed by their ID and a quotation mark."""
    flags = body.have_at(0, stem)
    if flags.any():
        flags &= body.equal_at(len(stem), ids)
        flags &= body.have_at(len(stem) + ids.lengths, b'"')
    return flags


def _have_value(body: Ranges, wanted: bytes) -> Flags:
    """Return which bodies contain a field, given as its name and colon, with a value that is not null."""
    found, left = np.zeros(len(body), np.bool_), np.arange(len(body))
    for _ in range(_EXAMPLES_MAX):
        if not len(left):
            return found
        example, some = body.one(int(left[0])), body.chosen(left)
        place = example.find(wanted)
        if place < 0:
            left = left[1:]
            continue
        from_end = some.lengths - len(example) + place
        starts, ends = some.have_at(place, wanted), some.have_at(from_end, wanted)
        after = np.where(starts, place, from_end) + len(wanted)
        is_alike = starts | ends
        found[left] = is_alike & ~_may_be_null(some, after)
        left = left[~is_alike]
    found[left] = [_contains_value(body.one(at), wanted) for at in left.tolist()]
    return found


def _may_be_null(body: Ranges, after: Integers) -> Flags:
    """Return which bodies have no value other than null at these places, after at most one space."""
    begins = np.minimum(body.starts + after, len(body.data) - 1)
    begins = np.minimum(begins + (body.data[begins] == ord(" ")), len(body.data) - 1)
    flags: Flags = _IS_NO_VALUE[body.data[begins]]
    return flags


def _contains_value(body: bytes, wanted: bytes) -> bool:
    """Return whether one body contains a field, given as its name and colon, not null."""
    _, name, rest = body.partition(wanted)
    return bool(name) and rest.removeprefix(b" ")[:1] not in _NO_VALUES


def is_promised(body: bytes | None, message_id: str | None, names: tuple[str, ...]) -> bool:
    """Return whether a parsed body has all fields, not null, and the message's ID in the first one."""
    content = parsed(body)
    is_whole = all(content.get(name) is not None for name in names)
    return is_whole and message_id is not None and _is_id(content[names[0]], message_id)


def _is_id(value: Any, message_id: str) -> bool:
    """Return whether a field contains a message's ID, as text or as a whole number."""
    return text_of(value) == message_id


def text_of(value: Any) -> str | None:
    """Return an ID field as text: text or a whole number, as in a table. Return None for other values.

    Also return None for text with an unpaired surrogate, which no table can contain.
    """
    if isinstance(value, str):
        return value if _is_whole(value) else None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def whole_number(value: Any) -> int | None:
    """Return a whole number, given as 2, 2.0, "2", or "2.00".

    Return None for other values, and for magnitudes of 2^53 or more.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = Decimal(value)
        is_whole = abs(number) < _NUMBER_MAX and number == int(number)
    except (ArithmeticError, ValueError):
        return None
    return int(number) if is_whole else None


def parsed(body: bytes | None) -> dict[str, Any]:
    """Return the fields of a body. Return an empty dict if the body is not a JSON object."""
    try:
        content = json.loads(body or b"")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
