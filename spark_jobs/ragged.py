"""Columns of unequal length cut out of one buffer, copied once by Arrow and never by Python.

An Arrow binary array is a buffer and its offsets: value i lies between offset i and i+1. With the starts
and ends of the wanted ranges as interleaved offsets, every second value is a wanted one, and `take` copies
those. Ranges must ascend and not overlap; a buffer must stay below 2 GiB, as a log segment does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]


def ragged(data: Bytes, starts: Integers, lengths: Integers, present: Flags | None = None) -> pa.BinaryArray:
    """The ranges of `data` as a binary column; null where `present` is false."""
    chosen = np.arange(len(starts)) if present is None else np.flatnonzero(present)
    edges = np.empty(2 * len(chosen) + 1, np.int32)
    edges[0:-1:2] = starts[chosen]
    edges[1::2] = starts[chosen] + lengths[chosen]
    edges[-1] = edges[-2] if len(chosen) else 0
    whole = pa.Array.from_buffers(
        pa.binary(), 2 * len(chosen), [None, pa.py_buffer(edges), pa.py_buffer(data)]
    )
    return whole.take(_places(len(starts), present))


def text(values: pa.BinaryArray) -> pa.StringArray:
    """Binary as text; bytes that are not UTF-8 become replacement characters."""
    try:
        return pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if value is None else value.decode(errors="replace") for value in values.to_pylist()],
            pa.string(),
        )


def numbers(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Decimal text as integers; null where it is no number of that width."""
    try:
        return pc.cast(text(values), kind)
    except pa.ArrowInvalid:
        return pa.array([_number(value, kind.bit_width) for value in text(values).to_pylist()], kind)


def _places(count: int, present: Flags | None) -> pa.Array:
    if present is None:
        return pa.array(np.arange(0, 2 * count, 2))
    return pa.array((np.cumsum(present) - 1) * 2, mask=~present)


def _number(value: str | None, bits: int) -> int | None:
    digits = (value or "").removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(value or "")
    return number if -(1 << (bits - 1)) <= number < 1 << (bits - 1) else None
