"""Property strings of the same shape, found by comparing whole strings with an example.

Brokers write the same names in the same order, and many values have the same length in every record: ids,
times, trace contexts. So most strings of a batch have one of a few shapes: the same length and, but for the
values, the same bytes. An example of each is parsed once, in Python; then strings of that length are laid
under it eight bytes at a time, values masked out, and those that differ nowhere are of its shape. Their
values lie where the example's do, if no value holds a mark (0x01 or 0x02): all bytes below 3 are counted, and
there must be as many as the example has marks.

    cost per string   one copy, two passes to compare, one to count
    cost per shape    some twenty calls of numpy, so groups of less than `STRINGS_MIN` are left to `pairs`

An example that is not `name 0x01 value 0x02`, repeated, is no shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from commitlog import properties
from spark_jobs.ragged import Bytes, Flags, Integers

STRINGS_MIN: Final = 64
NO_SHAPE: Final = -1
"""As an index it leads to the last place of a table, where a table of shapes has what holds for none."""

_SHAPES_MAX: Final = 512
_SHAPES_PER_LENGTH_MAX: Final = 8
_WORD: Final = 8
_BELOW_MARKS: Final = 3
_FILLER: Final = 0x20


@dataclass(frozen=True, slots=True)
class Shape:
    """Where names and values lie in strings like an example.

    `values`: (start, length) by name, of pairs that have a value, the last of equal names. `users`: name's
    start and length, value's start and length, of those whose names are not reserved, in order.
    """

    values: dict[str, tuple[int, int]]
    users: tuple[tuple[int, int, int, int], ...]
    words: Integers
    masks: Integers
    mark_count: int

    @classmethod
    def of(cls, example: bytes) -> Shape | None:
        """The shape of an example; None if it is not regular."""
        pairs = _parsed(example)
        if pairs is None:
            return None
        padding = -len(example) % _WORD
        mask = np.zeros(padding + len(example), np.uint8)
        for name_start, name_bytes, value_start, value_bytes in pairs:
            mask[padding + name_start : padding + name_start + name_bytes + 1] = 0xFF
            mask[padding + value_start + value_bytes] = 0xFF
        words = np.frombuffer(bytes(padding) + example, np.uint64)
        masks = mask.view(np.uint64)
        last = {_name(example, pair): pair for pair in pairs if pair[3]}
        users = tuple(pair for name, pair in last.items() if name not in properties.RESERVED)
        values = {name: (start, length) for name, (_, _, start, length) in last.items()}
        return cls(values, tuple(sorted(users)), words & masks, masks, 2 * len(pairs))


def _name(example: bytes, pair: tuple[int, int, int, int]) -> str:
    return example[pair[0] : pair[0] + pair[1]].decode(errors="replace")


def _parsed(example: bytes) -> list[tuple[int, int, int, int]] | None:
    """Name's start and length, value's start and length of each pair; None if it is not regular."""
    if not example.endswith(b"\x02") or 0 in example:
        return None
    pairs, start = [], 0
    for pair in example[:-1].split(b"\x02"):
        name, mark, value = pair.partition(b"\x01")
        if not mark or b"\x01" in value:
            return None
        pairs.append((start, len(name), start + len(name) + 1, len(value)))
        start += len(pair) + 1
    return pairs


@dataclass(slots=True)
class Shapes:
    """The shapes that were met so far; batches share them."""

    known: list[Shape] = field(default_factory=list)
    _of_length: dict[int, list[int]] = field(default_factory=dict)

    def match(self, data: Bytes, starts: Integers, lengths: Integers) -> Integers:
        """The place in `known` of each string's shape, or `NO_SHAPE`.

        In front of each string `data` has at least seven more bytes.
        """
        shape_of = np.full(len(starts), NO_SHAPE, np.int16)
        order = np.argsort(lengths.astype(np.uint16), kind="stable")
        cuts = np.flatnonzero(np.diff(lengths[order])) + 1
        for strings in np.split(order, cuts):
            if len(strings) >= STRINGS_MIN:
                self._match_even(data, starts, strings, int(lengths[strings[0]]), shape_of)
        return shape_of

    def _match_even(
        self, data: Bytes, starts: Integers, strings: Integers, length: int, shape_of: Integers
    ) -> None:
        """Fills in the shapes of strings of one length."""
        rows = _Rows.at(data, starts[strings], length)
        places = self._of_length.setdefault(length, [])
        tried = 0
        while len(strings) >= STRINGS_MIN and tried < _SHAPES_PER_LENGTH_MAX:
            if tried == len(places) and not self._learn(places, rows.example()):
                return
            flags = rows.of_shape(self.known[places[tried]])
            if flags is None:
                shape_of[strings] = places[tried]
                return
            shape_of[strings[flags]] = places[tried]
            strings, rows = strings[~flags], rows.chosen(~flags)
            tried += 1

    def _learn(self, places: list[int], example: bytes) -> bool:
        found = Shape.of(example) if len(self.known) < _SHAPES_MAX else None
        if found is not None:
            places.append(len(self.known))
            self.known.append(found)
        return found is not None


@dataclass(frozen=True, slots=True)
class _Rows:
    """Strings of one length, one under the other, each aligned to the end of a row of words."""

    words: Any
    length: int

    @classmethod
    def at(cls, data: Bytes, starts: Integers, length: int) -> _Rows:
        padding = -length % _WORD
        row = np.dtype(f"V{padding + length}")
        rows: Any = np.ndarray(len(data) - row.itemsize + 1, row, data, 0, (1,))
        words = rows[starts - padding].view(np.uint64).reshape(len(starts), -1)
        if padding:
            words.view(np.uint8)[:, :padding] = _FILLER
        return cls(words, length)

    def chosen(self, kept: Flags) -> _Rows:
        return _Rows(self.words[kept], self.length)

    def example(self) -> bytes:
        stored: bytes = self.words[0].tobytes()[-self.length :]
        return stored

    def of_shape(self, shape: Shape) -> Flags | None:
        """Which rows are of the shape; None for all."""
        differing = self.words & shape.masks
        differing ^= shape.words
        is_low = self.words.view(np.uint8) < _BELOW_MARKS
        if np.count_nonzero(is_low) == len(is_low) * shape.mark_count and not differing.any():
            return None
        flags: Flags = np.bitwise_or.reduce(differing, axis=1) == 0
        flags &= is_low.sum(axis=1) == shape.mark_count
        return flags
