"""Finds records with the same shape of topic and properties by comparing them with an example.

The topic and properties of a record are adjacent, and are treated as one string. Brokers write the same names
in the same order, and many values have the same length in every record: IDs, times, trace contexts. Most
strings of a batch thus have one of a few shapes: the same length and, apart from the values, the same bytes.
Python parses one example per shape. Strings of the same length are then compared with it eight bytes at a
time, with the values masked out. Their values are at the same positions if no value contains 0x01 or 0x02.
Therefore, the number of bytes below 3 must be the same as in the example.

    cost per string   one copy, two passes to compare, one pass to count
    cost per shape    about twenty NumPy calls, so `pairs` parses groups of fewer than `STRINGS_MIN` strings

The properties of an example must be a repetition of `name 0x01 value 0x02`, without zero bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from spark_jobs.log.columns.ragged import Flags, Integers, items
from spark_jobs.log.columns.records import Records
from tidewheel import property_names

STRINGS_MIN: Final = 64
NO_SHAPE: Final = -1
"""Index for records without a shape. As -1, it selects the last row of a table."""

_NOTHING: Final = (0, -1)
_SHAPES_MAX: Final = 512
_SHAPES_PER_LENGTH_MAX: Final = 8
_WORD: Final = 8
_BELOW_MARKS: Final = 3
_FILLER: Final = 0x20
_ALL: Final = 0xFF
_LENGTH_BYTES: Final = 2
"""Size of the properties length field, between topic and properties."""

_STRING_BYTES_MAX: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class Shape:
    """Common features of records like an example: the topic, and the positions of names and values.

    `values` maps names to (start, length) of the last value that is not empty. `users` holds start and length
    of name and value for unreserved names, in order. Starts are relative to the first property. `words` is
    the example with its values masked out by `masks`, and `low_count` is its number of bytes below 3.
    """

    topic: str
    topic_bytes: int
    values: dict[str, tuple[int, int]]
    users: tuple[tuple[int, int, int, int], ...]
    words: Integers
    masks: Integers
    low_count: int

    @classmethod
    def of(cls, example: bytes, topic_bytes: int) -> Shape | None:
        """Return the shape of an example, or None if it is not regular."""
        head_bytes = topic_bytes + _LENGTH_BYTES
        stored = example[head_bytes:]
        pairs = _parsed(stored)
        if pairs is None:
            return None
        mask = np.zeros(len(example), np.uint8)
        mask[:head_bytes] = _ALL
        for name_start, name_bytes, value_start, value_bytes in pairs:
            mask[head_bytes + name_start : head_bytes + name_start + name_bytes + 1] = _ALL
            mask[head_bytes + value_start + value_bytes] = _ALL
        padding = bytes(-len(example) % _WORD)
        masks = np.frombuffer(padding + mask.tobytes(), np.uint64)
        words = np.frombuffer(padding + example, np.uint64) & masks
        low_count = int(np.count_nonzero(np.frombuffer(example, np.uint8) < _BELOW_MARKS))
        last = {_name(stored, pair): pair for pair in pairs if pair[3]}
        users = sorted(pair for name, pair in last.items() if name not in property_names.RESERVED)
        values = {name: (start, length) for name, (_, _, start, length) in last.items()}
        topic = example[:topic_bytes].decode(errors="replace")
        return cls(topic, topic_bytes, values, tuple(users), words, masks, low_count)


def _name(example: bytes, pair: tuple[int, int, int, int]) -> str:
    return example[pair[0] : pair[0] + pair[1]].decode(errors="replace")


def _parsed(example: bytes) -> list[tuple[int, int, int, int]] | None:
    """Return start and length of name and value of each pair, or None if the properties are not regular."""
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
    """Shapes found so far, shared by batches."""

    known: list[Shape] = field(default_factory=list)
    _of_length: dict[int, list[int]] = field(default_factory=dict)
    _places: dict[str, Integers] = field(default_factory=dict)

    def match(self, records: Records) -> Integers:
        """Return the index in `known` of each record's shape, or `NO_SHAPE`."""
        shape_of = np.full(len(records), NO_SHAPE, np.int16)
        lengths = records.topic_bytes + _LENGTH_BYTES + records.properties_bytes
        order = np.argsort(np.minimum(lengths, _STRING_BYTES_MAX).astype(np.uint16), kind="stable")
        cuts = np.flatnonzero(np.diff(lengths[order])) + 1
        for some in np.split(order, cuts):
            if len(some) >= STRINGS_MIN and lengths[some[0]] < _STRING_BYTES_MAX:
                self._match_even(records, some, int(lengths[some[0]]), shape_of)
        return shape_of

    def places(self, name: str) -> Integers:
        """Return the starts and lengths of a name's values, or 0 and -1 if missing.

        The array has the shape (2, shapes + 1). The last column stands for `NO_SHAPE`.
        """
        found = self._places.get(name)
        if found is None or len(found[0]) <= len(self.known):
            values = [shape.values.get(name, _NOTHING) for shape in self.known]
            found = self._places[name] = np.array([*values, _NOTHING], np.int64).T.copy()
        return found

    def _match_even(self, records: Records, some: Integers, length: int, shape_of: Integers) -> None:
        """Set `shape_of` for the records `some`, whose strings have the same length in bytes."""
        rows = _Rows.at(records, some, length)
        places = self._of_length.setdefault(length, [])
        tried = 0
        while len(some) >= STRINGS_MIN and tried < _SHAPES_PER_LENGTH_MAX:
            if tried == len(places) and not self._learn(places, rows):
                return
            flags = rows.of_shape(self.known[places[tried]])
            if flags is None:
                shape_of[some] = places[tried]
                return
            shape_of[some[flags]] = places[tried]
            some, rows = some[~flags], rows.chosen(~flags)
            tried += 1

    def _learn(self, places: list[int], rows: _Rows) -> bool:
        found = Shape.of(*rows.example()) if len(self.known) < _SHAPES_MAX else None
        if found is not None:
            places.append(len(self.known))
            self.known.append(found)
        return found is not None


@dataclass(frozen=True, slots=True)
class _Rows:
    """Strings of the same length in bytes, each aligned to the end of a row of 64-bit words."""

    words: Any
    topic_bytes: Integers
    length: int

    @classmethod
    def at(cls, records: Records, some: Integers, length: int) -> _Rows:
        padding = -length % _WORD
        rows = items(records.data, f"V{padding + length}")
        words = rows[records.topic_starts[some] - padding].view(np.uint64).reshape(len(some), -1)
        if padding:
            words.view(np.uint8)[:, :padding] = _FILLER
        return cls(words, records.topic_bytes[some], length)

    def chosen(self, kept: Flags) -> _Rows:
        return _Rows(self.words[kept], self.topic_bytes[kept], self.length)

    def example(self) -> tuple[bytes, int]:
        """Return the first string and the length of its topic."""
        return self.words[0].tobytes()[-self.length :], int(self.topic_bytes[0])

    def of_shape(self, shape: Shape) -> Flags | None:
        """Return which strings have the shape, or None if all have it."""
        differing = self.words & shape.masks
        differing ^= shape.words
        is_low = self.words.view(np.uint8) < _BELOW_MARKS
        is_topic: Flags = self.topic_bytes == shape.topic_bytes
        is_alike = np.count_nonzero(is_low) == len(is_low) * shape.low_count
        if is_alike and is_topic.all() and not differing.any():
            return None
        is_topic &= np.bitwise_or.reduce(differing, axis=1) == 0
        is_topic &= is_low.sum(axis=1) == shape.low_count
        return is_topic
