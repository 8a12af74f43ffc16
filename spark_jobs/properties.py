"""Properties of many records at once: where the value of each wanted name lies in the log, and users' pairs.

    strings that have the shape of an example    `shapes`: no byte of them is looked at on its own
    the others, if each is regular               `pairs`: split by the places of 0x01 and 0x02
    the others, if one is not                    one by one, below

The rules are those of `commitlog.properties` in all three: pairs without a value are dropped, the last of two
equal names wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from commitlog import properties
from spark_jobs.pairs import Pairs
from spark_jobs.ragged import Bytes, Flags, Integers, ragged, text
from spark_jobs.shapes import Shape, Shapes

MAP: Final = pa.map_(pa.string(), pa.string())
_NO_PAIRS: Final = np.zeros((5, 0), np.int64)


class Properties:
    """The properties of some records, of which those of some names are wanted, and users' if `with_users`."""

    def __init__(
        self,
        data: Bytes,
        starts: Integers,
        lengths: Integers,
        names: Sequence[str],
        shapes: Shapes,
        with_users: bool = False,
    ) -> None:
        """`starts` and `lengths` say where each record's string lies in `data`.

        Each of `names` is one that is reserved or known (see `commitlog.properties`).
        """
        self._data = data
        self._starts = starts
        self._lengths = lengths
        self._row_of = {name: row for row, name in enumerate(names)}
        self._value_starts = np.zeros((len(names), len(starts)), np.int64)
        self._value_bytes = np.full((len(names), len(starts)), -1, np.int32)
        self._users: list[Integers] | None = [] if with_users else None
        self._find(shapes)

    def has(self, name: str) -> Flags:
        """Which records have a property of that name."""
        flags: Flags = self._value_bytes[self._row_of[name]] >= 0
        return flags

    def values(self, name: str) -> pa.BinaryArray:
        """The value of one of the names in each record, null where it has none."""
        row = self._row_of[name]
        starts, lengths, present = self._value_starts[row], self._value_bytes[row], self.has(name)
        if present.all():
            return ragged(self._data, starts, lengths)
        if not present.any():
            return pa.nulls(len(starts), pa.binary())
        return ragged(self._data, starts, lengths, present)

    def of_users(self) -> pa.MapArray:
        """Those that users set: all but the names that are reserved."""
        records, name_starts, name_bytes, value_starts, value_bytes = self._users_in_order()
        edges = np.searchsorted(records, np.arange(len(self._starts) + 1)).astype(np.int32)
        names = text(ragged(self._data, name_starts, name_bytes))
        return pa.MapArray.from_arrays(
            pa.array(edges), names, text(ragged(self._data, value_starts, value_bytes))
        )

    def _find(self, shapes: Shapes) -> None:
        is_left = np.ones(len(self._starts), np.bool_)
        for records, shape in shapes.match(self._data, self._starts, self._lengths):
            self._place(records, shape)
            is_left[records] = False
        left = np.flatnonzero(is_left & (self._lengths > 0))
        if len(left):
            self._split(left)

    def _place(self, records: Integers, shape: Shape) -> None:
        starts = self._starts[records]
        for name, row in self._row_of.items():
            if name in shape.values:
                start, length = shape.values[name]
                self._value_starts[row, records] = starts + start
                self._value_bytes[row, records] = length
        if self._users is not None:
            same = np.ones_like(records)
            self._users += [
                np.array([records, starts + pair[0], same * pair[1], starts + pair[2], same * pair[3]])
                for pair in shape.users
            ]

    def _split(self, records: Integers) -> None:
        stored = ragged(self._data, self._starts[records], self._lengths[records])
        pairs = Pairs.of(stored)
        if pairs is None:
            self._split_slowly(records.tolist(), stored.to_pylist())
            return
        if self._row_of:
            starts, lengths = pairs.places(list(self._row_of))
            self._value_starts[:, records] = starts + self._starts[records]
            self._value_bytes[:, records] = lengths
        if self._users is not None:
            found = pairs.of_users()
            self._add_users(records[found[0]], found)

    def _split_slowly(self, records: Sequence[int], stored: Sequence[bytes]) -> None:
        users: list[tuple[int, int, int, int, int]] = []
        for at, (record, one) in enumerate(zip(records, stored, strict=True)):
            last = _last_of_name(one)
            for name, (_, _, value_start, value_bytes) in last.items():
                if name in self._row_of:
                    self._value_starts[self._row_of[name], record] = self._starts[record] + value_start
                    self._value_bytes[self._row_of[name], record] = value_bytes
            users += sorted((at, *pair) for name, pair in last.items() if name not in properties.RESERVED)
        if self._users is not None and users:
            found = np.array(users, np.int64).T
            self._add_users(np.array(records)[found[0]], found)

    def _add_users(self, records: Integers, found: Integers) -> None:
        """Notes users' pairs whose places are counted from the start of their records' strings."""
        assert self._users is not None
        starts = self._starts[records]
        self._users.append(np.array([records, starts + found[1], found[2], starts + found[3], found[4]]))

    def _users_in_order(self) -> Integers:
        """Users' pairs as they lie in the log: rows of record, name's start and length, value's likewise."""
        assert self._users is not None, "users' properties were not asked for"
        found = np.concatenate([_NO_PAIRS, *self._users], axis=1)
        ordered: Integers = found[:, np.argsort(found[1], kind="stable")]
        return ordered


def _last_of_name(stored: bytes) -> dict[str, tuple[int, int, int, int]]:
    """Name's start and length, value's start and length, of the last pair of each name that has a value."""
    found: dict[str, tuple[int, int, int, int]] = {}
    start = 0
    for pair in stored.split(b"\x02"):
        name, mark, value = pair.partition(b"\x01")
        if mark and value:
            found[name.decode(errors="replace")] = (start, len(name), start + len(name) + 1, len(value))
        start += len(pair) + 1
    return found
