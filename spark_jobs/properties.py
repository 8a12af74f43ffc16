"""Properties of many records at once: a column of stored property bytes -> one column per name, or a map.

A batch in which every record's bytes are exactly `name 0x01 value 0x02`, repeated, is split with numpy by
the places of 0x01 and 0x02; that is every batch that Tidewheel or Apache RocketMQ writes. Each pair's name
is then recognised at once among the names that have a meaning: its first and last eight bytes as two
integers lead to one place of a small table, and length and integers there must be the same. Only names of
more than 16 bytes are compared further.

Any other batch goes record by record through `commitlog.properties`, whose rules hold for both ways: pairs
without a value are dropped, the last of two equal names wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from commitlog import properties
from spark_jobs.ragged import Bytes, Flags, Integers, ragged, text

MAP: Final = pa.map_(pa.string(), pa.string())
_NAME_END: Final = 1
_PAIR_END: Final = 2
_WORD: Final = 8
_SLOT_BITS: Final = 12
_NEIGHBOURS_MAX: Final = 16
_TIMER_KEY: Final = properties.TIMER_KEY.encode()
_MASKS: Final = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)


def split(stored: pa.BinaryArray, names: Sequence[str]) -> dict[str, pa.BinaryArray]:
    """The values of `names` in each record of `stored`, null where a record has none."""
    found = Properties(stored, names)
    return {name: found.values(name) for name in names}


class Properties:
    """The properties of some records, of which those of some names are wanted."""

    def __init__(self, stored: pa.BinaryArray, names: Sequence[str]) -> None:
        """Each of `names` is one that is reserved or known (see `commitlog.properties`)."""
        self._stored = stored
        self._pairs = _Pairs.of(stored, names)
        self._decoded: list[dict[str, str]] | None = None

    def has(self, name: str) -> Flags:
        """Which records have a property of that name."""
        if self._pairs is not None:
            return self._pairs.has(name)
        return np.array([name in one for one in self._slowly()], np.bool_)

    def values(self, name: str) -> pa.BinaryArray:
        """The value of one of the names in each record, null where it has none."""
        if self._pairs is not None:
            return self._pairs.values(name)
        return pa.array([_encoded(one.get(name)) for one in self._slowly()], pa.binary())

    def of_users(self) -> pa.MapArray:
        """Those that users set: all but the names that are reserved."""
        if self._pairs is not None:
            return self._pairs.of_users()
        kept = [
            [(name, value) for name, value in one.items() if name not in properties.RESERVED]
            for one in self._slowly()
        ]
        return pa.array(kept, MAP)

    def _slowly(self) -> list[dict[str, str]]:
        if self._decoded is None:
            self._decoded = [properties.decode(pairs) for pairs in self._stored.to_pylist()]
        return self._decoded


class _Names:
    """The names that have a meaning, numbered from 1, found by two words of theirs."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [b"", *(name.encode() for name in names)]
        self.codes = {name: code for code, name in enumerate(encoded) if name}
        self.long = [name for name in encoded if len(name) > 2 * _WORD]
        self._lengths = np.array([len(name) for name in encoded])
        self._firsts = np.array([_word(name[:_WORD]) for name in encoded], np.uint64)
        self._lasts = np.array([_word(name[_WORD:][-_WORD:]) for name in encoded], np.uint64)
        self._factor, self._table = self._without_collision()

    def code(self, mixed: Integers, firsts: Integers, lasts: Integers, lengths: Integers) -> Integers:
        """The number of each name by `mix` of its words and length; 0 for a name without meaning."""
        codes = self._table[_slots(mixed, self._factor)]
        is_same = (self._firsts[codes] == firsts) & (self._lasts[codes] == lasts)
        codes *= is_same & (self._lengths[codes] == lengths)
        return codes

    def _without_collision(self) -> tuple[int, Integers]:
        mixed = mix(self._firsts, self._lasts, self._lengths)[1:]
        assert len(np.unique(mixed)) == len(mixed)
        factor = 0x9E3779B97F4A7C15
        while len(np.unique(_slots(mixed, factor))) < len(mixed):
            factor = factor * 0xD1342543DE82EF95 % (1 << 64)
        table = np.zeros(1 << _SLOT_BITS, np.uint8)
        table[_slots(mixed, factor)] = np.arange(1, len(mixed) + 1, dtype=np.uint8)
        return factor, table


def mix(firsts: Integers, lasts: Integers, lengths: Integers) -> Integers:
    """One number for each name: unequal ones come of unequal names."""
    mixed: Integers = firsts ^ (lasts << np.uint64(1)) ^ (lengths.astype(np.uint64) << np.uint64(56))
    return mixed


def _slots(mixed: Integers, factor: int) -> Integers:
    slots: Integers = ((mixed * np.uint64(factor)) >> np.uint64(64 - _SLOT_BITS)).astype(np.intp)
    return slots


def _word(part: bytes) -> int:
    return int.from_bytes(part, "little")


KNOWN: Final = _Names(sorted(properties.RESERVED | {properties.TIMER_KEY}))


class _Pairs:
    """All pairs of a regular batch, in order, by their places in its one data buffer."""

    def __init__(self, rows: Integers, marks: Integers, data: Bytes, names: Sequence[str]) -> None:
        """A word of bytes follows the end of every name in `data`."""
        self._data = data
        self._rows = rows
        self._name_ends = marks[0::2]
        self._pair_ends = marks[1::2]
        self._name_starts = np.empty_like(self._name_ends)
        self._name_starts[:1] = 0
        self._name_starts[1:] = self._pair_ends[:-1] + 1
        self._has_value = self._pair_ends - self._name_ends > 1
        firsts = np.searchsorted(self._name_starts, rows)
        self._record_of_pair = np.repeat(np.arange(len(rows) - 1), np.diff(firsts))
        self._codes = self._recognised()
        self._columns = {name: column for column, name in enumerate(names)}
        self._pair_of = self._placed(names)

    @classmethod
    def of(cls, stored: pa.BinaryArray, names: Sequence[str]) -> _Pairs | None:
        """The pairs of `stored`; None if any record's bytes are not regular."""
        _, offsets, values = stored.buffers()
        rows = np.frombuffer(offsets, np.int32)[stored.offset : stored.offset + len(stored) + 1]
        if len(stored) == 0 or values is None or rows[0] != 0:
            return None
        data = np.frombuffer(values, np.uint8)[: rows[-1]]
        marks = np.flatnonzero(data - np.uint8(1) <= 1)
        if not _is_regular(data, rows, marks):
            return None
        if len(data) - marks[-2] <= _WORD:
            data = np.concatenate((data, np.zeros(_WORD, np.uint8)))
        return cls(rows, marks, data, names)

    def has(self, name: str) -> Flags:
        """Which records have the name."""
        flags: Flags = self._pair_of[self._columns[name]] >= 0
        return flags

    def values(self, name: str) -> pa.BinaryArray:
        """The value of the name in each record."""
        pair = self._pair_of[self._columns[name]]
        present = pair >= 0
        count = np.count_nonzero(present)
        if count == 0:
            return pa.nulls(len(pair), pa.binary())
        starts = self._name_ends[pair] + 1
        return ragged(
            self._data, starts, self._pair_ends[pair] - starts, None if count == len(pair) else present
        )

    def of_users(self) -> pa.MapArray:
        """A map of the pairs whose names are not reserved, of each record."""
        found = np.flatnonzero((self._codes == 0) | (self._codes == KNOWN.codes[_TIMER_KEY]))
        found = found[self._has_value[found]]
        if _may_repeat(self._names[found], self._record_of_pair[found]):
            found = found[_last_places(self._keys(found), self._record_of_pair[found])]
        edges = np.searchsorted(self._record_of_pair[found], np.arange(len(self._rows)))
        starts = self._name_ends[found] + 1
        items = text(ragged(self._data, starts, self._pair_ends[found] - starts))
        return pa.MapArray.from_arrays(pa.array(edges.astype(np.int32)), self._keys(found), items)

    def _keys(self, found: Integers) -> pa.StringArray:
        starts = self._name_starts[found]
        return text(ragged(self._data, starts, self._name_ends[found] - starts))

    def _placed(self, names: Sequence[str]) -> Integers:
        """For each of `names` a row: which pair each record has of that name, -1 for none."""
        column_of_code = np.full(256, len(names), np.uint8)
        column_of_code[[KNOWN.codes[name.encode()] for name in names]] = range(len(names))
        columns = column_of_code[self._codes]
        if not self._has_value.all():
            columns[~self._has_value] = len(names)
        placed = np.full((len(names) + 1, len(self._rows) - 1), -1, np.int32)
        placed[columns, self._record_of_pair] = np.arange(len(columns), dtype=np.int32)
        return placed

    def _recognised(self) -> Integers:
        """The code of each pair's name."""
        lengths = self._name_ends - self._name_starts
        words = np.ndarray(len(self._data) - _WORD + 1, "<u8", self._data, 0, (1,))
        firsts = words[self._name_starts] & _MASKS[np.minimum(lengths, _WORD)]
        lasts = np.zeros_like(firsts)
        is_longer = np.flatnonzero(lengths > _WORD)
        rest = np.minimum(lengths[is_longer] - _WORD, _WORD)
        lasts[is_longer] = words[self._name_ends[is_longer] - rest] & _MASKS[rest]
        self._names = mix(firsts, lasts, lengths)
        codes = KNOWN.code(self._names, firsts, lasts, lengths)
        for name in KNOWN.long:
            alike = np.flatnonzero(codes == KNOWN.codes[name])
            for place in range(_WORD, len(name) - _WORD) if len(alike) else ():
                is_same = self._data[self._name_starts[alike] + place] == name[place]
                codes[alike[~is_same]] = 0
                alike = alike[is_same]
        return codes


def _may_repeat(names: Integers, records: Integers) -> bool:
    """Whether two pairs of one record could have equal names."""
    distance_max = int(np.bincount(records).max()) if len(records) else 0
    if distance_max > _NEIGHBOURS_MAX:
        return True
    return any(
        ((names[distance:] == names[:-distance]) & (records[distance:] == records[:-distance])).any()
        for distance in range(1, distance_max)
    )


def _last_places(keys: pa.Array, records: Integers) -> Integers:
    """The places of the last pair of each name in each record."""
    places = {pair: at for at, pair in enumerate(zip(records.tolist(), keys.to_pylist(), strict=True))}
    return np.array(sorted(places.values()), np.int64)


def _is_regular(data: Bytes, rows: Integers, marks: Integers) -> bool:
    """Marks alternate over the whole batch and every record ends with a pair's end."""
    kinds = data[marks]
    ends = rows[1:][rows[1:] > rows[:-1]] - 1
    return bool(
        len(marks) > 0
        and len(marks) % 2 == 0
        and (kinds[0::2] == _NAME_END).all()
        and (kinds[1::2] == _PAIR_END).all()
        and (data[ends] == _PAIR_END).all()
    )


def _encoded(value: str | None) -> bytes | None:
    return None if value is None else value.encode()
