"""Whether messages' bodies are what their topics promise: a JSON object with some fields, under the right id.

A body that begins with its id as its first field, ends as an object does and names every promised field is
believed: three looks at whole columns. Any other is parsed. Damage of stored bytes is the CRC's business.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.events import CANCELLED, CREATED, PAID, PUSHES, TIMEOUTS
from spark_jobs.mapping import Bodies
from spark_jobs.ragged import Flags, Integers

_ID_STARTS: Final = ('{{"{}": "', '{{"{}":"')


def promised(bodies: Bodies) -> dict[int, tuple[str, ...]]:
    """The fields of each topic's bodies by the topic's number; the first is the message's id."""
    return {
        CREATED: (bodies.order_id, bodies.customer_id, bodies.lines),
        TIMEOUTS: (bodies.order_id, bodies.due_ms),
        PAID: (bodies.order_id, bodies.paid_ms),
        CANCELLED: (bodies.order_id, bodies.cancelled_ms),
        PUSHES: (bodies.push_id,),
    }


def readable(body: pa.BinaryArray, ids: pa.StringArray, topic: Integers, bodies: Bodies) -> Flags:
    """Which messages keep the promise of their topic; without an id none does."""
    flags = np.zeros(len(body), np.bool_)
    for number, names in promised(bodies).items():
        here = np.flatnonzero(topic == number)
        if len(here):
            places = pa.array(here)
            flags[here] = _of_topic(body.take(places), ids.take(places), names)
    return flags


def _of_topic(body: pa.BinaryArray, ids: pa.StringArray, names: tuple[str, ...]) -> Flags:
    flags = _at_a_glance(body, ids, names)
    for place in np.flatnonzero(~flags).tolist():
        flags[place] = is_promised(body[place].as_py(), ids[place].as_py(), names)
    return flags


def _at_a_glance(body: pa.BinaryArray, ids: pa.StringArray, names: tuple[str, ...]) -> Flags:
    """Which bodies need no parsing; of none that is not what was promised."""
    found = pc.ends_with(body, b"}")
    for name in names[1:]:
        found = pc.and_(found, pc.match_substring(body, f'"{name}":'.encode()))
    stems = [stem.format(names[0]).encode() for stem in _ID_STARTS]
    starts = [pc.starts_with(body, stem) for stem in stems]
    is_right = pa.array(np.zeros(len(body), np.bool_))
    for stem, start in zip(stems, starts, strict=True):
        if pc.any(start).as_py():
            is_right = pc.or_(is_right, pc.and_(start, _has_id_at(body, ids, len(stem))))
    flags: Flags = pc.and_(found, is_right).fill_null(False).to_numpy(zero_copy_only=False)
    return flags.copy()


def _has_id_at(body: pa.BinaryArray, ids: pa.StringArray, place: int) -> pa.BooleanArray:
    """Whether the id, and a quotation mark behind it, are there in each body; ids of one length at a time."""
    wanted = pc.binary_join_element_wise(ids.cast(pa.binary()), b'"', b"")
    widths = pc.binary_length(wanted)
    found = np.zeros(len(body), np.bool_)
    for width in pc.unique(widths.drop_null()).to_pylist():
        is_equal = pc.equal(pc.binary_slice(body, place, place + width), wanted)
        found |= is_equal.fill_null(False).to_numpy(zero_copy_only=False)
    return pa.array(found)


def is_promised(body: bytes | None, message_id: str | None, names: tuple[str, ...]) -> bool:
    """Whether one body, parsed, is what was promised."""
    content = parsed(body)
    is_whole = all(content.get(name) is not None for name in names)
    return is_whole and message_id is not None and content[names[0]] == message_id


def parsed(body: bytes | None) -> dict[str, Any]:
    """The content of a body; empty if it is no JSON object."""
    try:
        content = json.loads(body or b"")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
