"""Builds columns from byte ranges of one buffer. Arrow or NumPy copies the bytes once, without a Python loop.

An Arrow binary array is a buffer with offsets: value i is between the offsets i and i+1. If the offsets are
alternately the starts and ends of the selected ranges, `take` copies every second value. Ranges must ascend
without overlap, and the buffer must be smaller than 2 GiB, as a log segment is. Ranges of equal length, such
as IDs, are copied by NumPy and may be in any order. `Ranges` compares bytes in place, in about 10 ns per
byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

_POOL: Final = pa.system_memory_pool()
"""Memory pool that reuses freed memory for the next batch. Arrow's default pool returns it to the kernel."""


def ragged(data: Bytes, starts: Integers, lengths: Integers) -> pa.BinaryArray:
    """Return the ranges of `data` as a binary column."""
    is_even = len(lengths) > 0 and lengths[0] > 0 and bool((lengths == lengths[0]).all())
    return _even(data, starts, int(lengths[0])) if is_even else _uneven(data, starts, lengths)


def spread(values: pa.BinaryArray, places: Integers, count: int) -> pa.BinaryArray:
    """Return a column of `count` values: `values` at the ascending indexes `places`, and nulls elsewhere."""
    if len(values) in (0, count):
        return values if len(values) == count else pa.nulls(count, values.type)
    _, edges, stored = values.buffers()
    steps = np.zeros(count + 1, np.int32)
    steps[places + 1] = np.diff(np.frombuffer(edges, np.int32)[: len(values) + 1])
    is_there = np.zeros(count, np.bool_)
    is_there[places] = True
    validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    offsets = pa.py_buffer(np.cumsum(steps, dtype=np.int32))
    return pa.Array.from_buffers(values.type, count, [validity, offsets, stored])


def _even(data: Bytes, starts: Integers, length: int) -> pa.BinaryArray:
    """Return ranges of equal length, copied by NumPy as items of that length."""
    edges = np.arange(0, (len(starts) + 1) * length, length, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(edges), pa.py_buffer(items(data, f"V{length}")[starts])]
    )


def _uneven(data: Bytes, starts: Integers, lengths: Integers) -> pa.BinaryArray:
    edges = np.empty(2 * len(starts) + 1, np.int32)
    edges[0:-1:2] = starts
    np.add(starts, lengths, out=edges[1::2], casting="unsafe")
    edges[-1] = edges[-2] if len(starts) else 0
    whole = pa.Array.from_buffers(
        pa.binary(), 2 * len(starts), [None, pa.py_buffer(edges), pa.py_buffer(data)]
    )
    return pc.take(whole, pa.array(np.arange(0, 2 * len(starts), 2)), memory_pool=_POOL)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of a buffer, in any order."""

    data: Bytes
    starts: Integers
    lengths: Integers

    @classmethod
    def of(cls, values: pa.Array) -> Ranges:
        """Return the values of a binary or string array as ranges. A null is an empty range."""
        _, edges, stored = values.buffers()
        offsets = np.frombuffer(edges, np.int32)[values.offset : values.offset + len(values) + 1]
        lengths = np.diff(offsets)
        if values.null_count:
            lengths *= values.is_valid().to_numpy(zero_copy_only=False)
        return cls(np.frombuffer(stored or b"", np.uint8), offsets[:-1], lengths)

    def __len__(self) -> int:
        return len(self.starts)

    def chosen(self, kept: Flags | Integers) -> Ranges:
        """Return some of these ranges."""
        return Ranges(self.data, self.starts[kept], self.lengths[kept])

    def one(self, at: int) -> bytes:
        """Return the bytes of one range."""
        start = self.starts[at]
        return self.data[start : start + self.lengths[at]].tobytes()

    def have_at(self, places: Integers | int, wanted: bytes) -> Flags:
        """Return which ranges contain the bytes `wanted` at `places`, relative to their starts."""
        return self._equal_at(places, len(wanted), np.void(wanted))

    def equal_at(self, places: Integers | int, others: Ranges) -> Flags:
        """Return which ranges contain the bytes of the other range at `places`, relative to their starts.

        `others` has one range per range. An empty one never matches.
        """
        if len(others) and (others.lengths == others.lengths[0]).all():
            length = int(others.lengths[0])
            return self._equal_at(places, length, others._items(others.starts, length))
        found, all_places = np.zeros(len(self), np.bool_), np.broadcast_to(places, len(self))
        for length in np.unique(others.lengths).tolist():
            some = np.flatnonzero(others.lengths == length)
            wanted = others._items(others.starts[some], length)
            found[some] = self.chosen(some)._equal_at(all_places[some], length, wanted)
        return found

    def _equal_at(self, places: Integers | int, length: int, wanted: Any) -> Flags:
        if not 0 < length <= len(self.data):
            return np.zeros(len(self), np.bool_)
        is_inside: Flags = (places >= 0) & (places + length <= self.lengths)
        is_inside &= self._items(self.starts + places, length) == wanted
        return is_inside

    def _items(self, starts: Integers, length: int) -> Any:
        """Return `length` bytes from each start. A start too close to the end of the buffer is moved back."""
        return items(self.data, f"V{length}")[np.minimum(starts, len(self.data) - length)]


def items(data: Bytes, numpy_type: str) -> Any:
    """Return a view with an item of this type at every byte of `data`, without alignment."""
    kind = np.dtype(numpy_type)
    return np.ndarray(max(0, len(data) - kind.itemsize + 1), kind, data, 0, (1,))


def numbers_at(data: Bytes, places: Integers, numpy_type: str) -> Integers:
    """Return the numbers at byte positions `places` in native byte order. Positions are clipped to `data`."""
    kind = np.dtype(numpy_type)
    inside = np.minimum(np.maximum(places, 0), len(data) - kind.itemsize)
    found: Integers = items(data, numpy_type)[inside].astype(kind.newbyteorder("="), copy=False)
    return found


def text(values: pa.BinaryArray) -> pa.StringArray:
    """Return the values as strings. Invalid UTF-8 is replaced with replacement characters."""
    try:
        return pc.cast(values, pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if value is None else value.decode(errors="replace") for value in values.to_pylist()],
            pa.string(),
        )


def numbers(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Return the integers in decimal text. Text that is not a number of this width becomes null.

    Limitation: Arrow also accepts hexadecimal text with the prefix 0x if all values are valid.
    """
    try:
        return pc.cast(text(values), kind)
    except pa.ArrowInvalid:
        return pa.array([_number(value, kind.bit_width) for value in text(values).to_pylist()], kind)


def _number(value: str | None, bits: int) -> int | None:
    digits = (value or "").removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return None
    number = int(value or "")
    return number if -(1 << (bits - 1)) <= number < 1 << (bits - 1) else None
