"""Reads the properties of many records: positions of selected values in the segment, and users' pairs.

    strings with the shape of an example    `shapes`: compared as a whole, without parsing
    other strings, if all are regular       `pairs`: split at the positions of 0x01 and 0x02
    other strings, otherwise                parsed one by one, see below

Positions in strings with a shape are looked up on demand. All three methods follow the rules of
`commitlog.records.properties`: pairs without a value are dropped, and the last of several equal names is
used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.log.columns.pairs import Pairs
from spark_jobs.log.columns.ragged import Flags, Integers, ragged, spread, text
from spark_jobs.log.columns.records import Records
from spark_jobs.log.columns.shapes import NO_SHAPE, Shapes
from tidewheel import property_names

MAP: Final = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class _Others:
    """Strings without a shape: their records, the positions of selected values, and users' pairs.

    `starts` and `lengths` have the shape (names, strings), with length -1 if missing. `users` has the shape
    (5, pairs): the index in `records`, start and length of the name, and start and length of the value.
    Starts are relative to the string.
    """

    records: Integers
    starts: Integers
    lengths: Integers
    users: Integers


class Properties:
    """Topics, selected properties, and user properties of records."""

    def __init__(self, records: Records, names: Sequence[str], shapes: Shapes) -> None:
        """Find the properties of records. Each of `names` must be in `pairs.KNOWN`."""
        self._records = records
        self._data = records.data
        self._starts = records.properties_starts
        self._rows = {name: row for row, name in enumerate(names)}
        self._shape_of = shapes.match(records)
        self._shapes = shapes
        self._bare = np.flatnonzero(self._shape_of == NO_SHAPE)
        left = self._bare[records.properties_bytes[self._bare] > 0]
        self._others = self._split(left) if len(left) else None

    @cached_property
    def topics(self) -> pa.DictionaryArray:
        """The topic of each record, dictionary-encoded."""
        bare = pc.dictionary_encode(topics_of(self._records.chosen(self._bare)))
        codes = self._shape_of.astype(np.int32)
        codes[self._bare] = len(self._shapes.known) + bare.indices.to_numpy()
        names = [*(shape.topic for shape in self._shapes.known), *bare.dictionary.to_pylist()]
        return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))

    def has(self, name: str) -> Flags:
        """Return which records have this property."""
        flags: Flags = self._lengths(name) >= 0
        return flags

    def values(self, name: str) -> pa.BinaryArray:
        """Return the value of a selected name in each record, or null."""
        lengths = self._lengths(name)
        places = np.flatnonzero(lengths >= 0)
        starts = self._starts[places] + self._shapes.places(name)[0][self._shape_of[places]]
        if self._others is not None:
            row, records = self._rows[name], self._others.records
            has_any = self._others.lengths[row] >= 0
            starts[np.searchsorted(places, records[has_any])] += self._others.starts[row][has_any]
        return spread(ragged(self._data, starts, lengths[places]), places, len(lengths))

    def of_users(self) -> pa.MapArray:
        """Return the properties that users set, per record: all except the reserved names."""
        edges, pairs = self._users()
        names, values = (text(ragged(self._data, pairs[row], pairs[row + 1])) for row in (0, 2))
        return pa.MapArray.from_arrays(pa.array(edges), names, values)

    def _lengths(self, name: str) -> Integers:
        """Return the length of each record's value of a name, or -1."""
        lengths: Integers = self._shapes.places(name)[1][self._shape_of]
        if self._others is not None:
            lengths[self._others.records] = self._others.lengths[self._rows[name]]
        return lengths

    def _users(self) -> tuple[Integers, Integers]:
        """Return the offsets of each record's user pairs, and the positions of their names and values.

        The arrays have the shapes (records + 1,) and (4, pairs). The rows of the second are position and
        length of the name, and position and length of the value, in the segment.
        """
        known = self._shapes.known
        counts = np.array([*(len(shape.users) for shape in known), 0])
        tables = np.array([pair for shape in known for pair in shape.users], np.int64).reshape(-1, 4).T
        per_record = counts[self._shape_of]
        others = self._others
        if others is not None:
            per_record[others.records] = np.bincount(others.users[0], minlength=len(others.records))
        edges = np.zeros(len(per_record) + 1, np.int32)
        np.cumsum(per_record, out=edges[1:])
        record = np.repeat(np.arange(len(per_record)), per_record)
        firsts = (np.cumsum(counts) - counts)[self._shape_of]
        places = firsts[record] + np.arange(len(record)) - edges[:-1][record]
        if others is None:
            pairs = tables[:, places]
        else:
            pairs = np.zeros((4, len(record)), np.int64)
            is_shaped = self._shape_of[record] != NO_SHAPE
            pairs[:, is_shaped] = tables[:, places[is_shaped]]
            pairs[:, ~is_shaped] = others.users[1:]
        pairs[0::2] += self._starts[record]
        return edges, pairs

    def _split(self, records: Integers) -> _Others:
        stored = ragged(self._data, self._starts[records], self._records.properties_bytes[records])
        pairs = Pairs.of(stored)
        if pairs is None:
            return self._split_slowly(records, stored.to_pylist())
        return _Others(records, *pairs.places(list(self._rows)), pairs.of_users())

    def _split_slowly(self, records: Integers, stored: Sequence[bytes]) -> _Others:
        starts = np.zeros((len(self._rows), len(records)), np.int64)
        lengths = np.full((len(self._rows), len(records)), -1, np.int64)
        users: list[tuple[int, int, int, int, int]] = []
        for at, one in enumerate(stored):
            last = _last_of_name(one)
            for name in last.keys() & self._rows.keys():
                starts[self._rows[name], at], lengths[self._rows[name], at] = last[name][2:]
            users += sorted((at, *pair) for name, pair in last.items() if name not in property_names.RESERVED)
        return _Others(records, starts, lengths, np.array(users, np.int64).reshape(-1, 5).T)


def topics_of(records: Records) -> pa.StringArray:
    """Return the topic of each record."""
    return text(ragged(records.data, records.topic_starts, records.topic_bytes))


def _last_of_name(stored: bytes) -> dict[str, tuple[int, int, int, int]]:
    """Return start and length of name and value, for the last pair of each name with a value."""
    found: dict[str, tuple[int, int, int, int]] = {}
    start = 0
    for pair in stored.split(b"\x02"):
        name, mark, value = pair.partition(b"\x01")
        if mark and value:
            found[name.decode(errors="replace")] = (start, len(name), start + len(name) + 1, len(value))
        start += len(pair) + 1
    return found
