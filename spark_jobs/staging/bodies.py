"""Whether messages' bodies are what their topics promise: a JSON object with some fields, under the right id.

A body that begins with its id as its first field, ends as an object does and names every promised field is
believed. Fields are looked for where an example has them, counted from the body's start or from its end, so
that few bodies are searched. Any other is parsed. Damage of stored bytes is the CRC's business.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_jobs.inputs.mapping import Bodies
from spark_jobs.log.ragged import Flags, Integers, Ranges
from spark_jobs.staging.events import CANCELLED, CREATED, PAID, PUSHES, TIMEOUTS

_ID_STARTS: Final = ('{{"{}": "', '{{"{}":"')
_EXAMPLES_MAX: Final = 8
_NUMBER_MAX: Final = 1 << 53


def promised(bodies: Bodies) -> dict[int, tuple[str, ...]]:
    """Return the fields of each topic's bodies by the topic's number; the first is the message's id."""
    fields = {
        CREATED: (bodies.order_id, bodies.customer_id, bodies.lines),
        TIMEOUTS: (bodies.order_id, bodies.due_ms),
        PAID: (bodies.order_id, bodies.paid_ms),
        CANCELLED: (bodies.order_id, bodies.cancelled_ms),
        PUSHES: (bodies.push_id,),
    }
    return {number: tuple(filter(None, names)) for number, names in fields.items()}


def readable(body: pa.BinaryArray, ids: pa.StringArray, topic: Integers, bodies: Bodies) -> Flags:
    """Return which messages keep the promise of their topic; without an id, or of no topic, none does."""
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
    """Return which bodies need no parsing; of none that is not what was promised."""
    found = np.zeros(len(body), np.bool_)
    for stem in _ID_STARTS:
        if not found.all():
            found |= _begin(body, ids, stem.format(names[0]).encode())
    found &= body.have_at(body.lengths - 1, b"}")
    for name in names[1:]:
        found[found] = _has(body.chosen(found), f'"{name}":'.encode())
    return found


def _begin(body: Ranges, ids: Ranges, stem: bytes) -> Flags:
    """Return which bodies begin with these bytes, their id and a quotation mark."""
    flags = body.have_at(0, stem)
    if flags.any():
        flags &= body.equal_at(len(stem), ids)
        flags &= body.have_at(len(stem) + ids.lengths, b'"')
    return flags


def _has(body: Ranges, wanted: bytes) -> Flags:
    """Return which bodies have these bytes anywhere."""
    found, left = np.zeros(len(body), np.bool_), np.arange(len(body))
    for _ in range(_EXAMPLES_MAX):
        if not len(left):
            return found
        example, some = body.one(int(left[0])), body.chosen(left)
        place = example.find(wanted)
        if place < 0:
            left = left[1:]
            continue
        is_alike = some.have_at(place, wanted)
        if not is_alike.all():
            is_alike |= some.have_at(some.lengths - len(example) + place, wanted)
        found[left] = is_alike
        left = left[~is_alike]
    found[left] = [wanted in body.one(at) for at in left.tolist()]
    return found


def is_promised(body: bytes | None, message_id: str | None, names: tuple[str, ...]) -> bool:
    """Return whether one body, parsed, is what was promised."""
    content = parsed(body)
    is_whole = all(content.get(name) is not None for name in names)
    return is_whole and message_id is not None and _is_id(content[names[0]], message_id)


def _is_id(value: Any, message_id: str) -> bool:
    """Return whether a field has a message's id; as a number, too."""
    return text_of(value) == message_id


def text_of(value: Any) -> str | None:
    """Return the text of a field with an id, as tables have it: a text, or a whole number; else None.

    A text with half a surrogate pair is none: no table has it.
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
    """Return a whole number below 2^53 as messages write one: 2, 2.0, "2" or "2.00"; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = Decimal(value)
        is_whole = abs(number) < _NUMBER_MAX and number == int(number)
    except (ArithmeticError, ValueError):
        return None
    return int(number) if is_whole else None


def parsed(body: bytes | None) -> dict[str, Any]:
    """Return the content of a body; empty if it is no JSON object."""
    try:
        content = json.loads(body or b"")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
