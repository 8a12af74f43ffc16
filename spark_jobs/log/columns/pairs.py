"""Finds the pairs of many property strings by the positions of 0x01 and 0x02 in one buffer.

Every string must be a repetition of `name 0x01 value 0x02`, as Tidewheel and Apache RocketMQ write it. Known
names are found in a small hash table: the length and the first and last eight bytes of a name, as integers,
determine its slot, where all three must match. Only names of more than 16 bytes need a further comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from spark_jobs.log.columns.ragged import Bytes, Integers
from tidewheel import property_names

_NAME_END: Final = 1
_PAIR_END: Final = 2
_WORD: Final = 8
_SLOT_BITS: Final = 12
_NEIGHBOURS_MAX: Final = 16
_TIMER_KEY: Final = property_names.TIMER_KEY.encode()
_MASKS: Final = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)


class _Names:
    """The known names, numbered from 1."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [b"", *(name.encode() for name in names)]
        self.codes = {name: code for code, name in enumerate(encoded) if name}
        self.long = [name for name in encoded if len(name) > 2 * _WORD]
        self._lengths = np.array([len(name) for name in encoded])
        self._firsts = np.array([_word(name[:_WORD]) for name in encoded], np.uint64)
        self._lasts = np.array([_word(name[_WORD:][-_WORD:]) for name in encoded], np.uint64)
        self._factor, self._table = self._without_collision()

    def code(self, mixed: Integers, firsts: Integers, lasts: Integers, lengths: Integers) -> Integers:
        """Return the number of each name by the `mix` of its words and length, or 0 if unknown.

        The middle of a name of more than 16 bytes is not compared.
        """
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
    """Return one number per name. Different numbers mean different names."""
    mixed: Integers = firsts ^ (lasts << np.uint64(1)) ^ (lengths.astype(np.uint64) << np.uint64(56))
    return mixed


def _slots(mixed: Integers, factor: int) -> Integers:
    slots: Integers = ((mixed * np.uint64(factor)) >> np.uint64(64 - _SLOT_BITS)).astype(np.intp)
    return slots


def _word(part: bytes) -> int:
    return int.from_bytes(part, "little")


KNOWN: Final = _Names(sorted(property_names.RESERVED | {property_names.TIMER_KEY}))


class Pairs:
    """All pairs of regular strings, in order, with their positions in one buffer."""

    def __init__(self, rows: Integers, marks: Integers, data: Bytes) -> None:
        """Create the pairs from the offsets of the strings (`rows`) and of the bytes 0x01 and 0x02 (`marks`).

        At least 8 bytes of `data` must follow every name.
        """
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

    @classmethod
    def of(cls, stored: pa.BinaryArray) -> Pairs | None:
        """Return the pairs of `stored`, or None if a string is not regular.

        Also return None if there are no bytes, or if the first string is not at the start of the buffer.
        """
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
        return cls(rows, marks, data)

    def places(self, names: Sequence[str]) -> tuple[Integers, Integers]:
        """Return the starts of the values in their strings, and their lengths.

        Both arrays have the shape (names, strings). The length is -1 for a missing name.
        """
        pair_of = self._placed(names)
        starts = self._name_ends[pair_of] + 1
        lengths = self._pair_ends[pair_of] - starts
        lengths[pair_of < 0] = -1
        return starts - self._rows[:-1], lengths

    def of_users(self) -> Integers:
        """Return the pairs with unreserved names, as an array of shape (5, pairs).

        The rows are the index of the string, start and length of the name, and start and length of the value.
        """
        found = np.flatnonzero((self._codes == 0) | (self._codes == KNOWN.codes[_TIMER_KEY]))
        found = found[self._has_value[found]]
        strings = self._record_of_pair[found]
        if _may_repeat(self._names[found], strings):
            found = found[self._last_of_name(found)]
            strings = self._record_of_pair[found]
        first, name_start, name_end = self._rows[strings], self._name_starts[found], self._name_ends[found]
        value_bytes = self._pair_ends[found] - name_end - 1
        return np.array(
            [strings, name_start - first, name_end - name_start, name_end + 1 - first, value_bytes]
        )

    def _last_of_name(self, found: Integers) -> Integers:
        """Return the indexes in `found` of the last pair of each name in each string."""
        data, starts, ends = self._data.tobytes(), self._name_starts[found], self._name_ends[found]
        names = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        pairs = zip(self._record_of_pair[found].tolist(), names, strict=True)
        places = {pair: at for at, pair in enumerate(pairs)}
        return np.array(sorted(places.values()), np.int64)

    def _placed(self, names: Sequence[str]) -> Integers:
        """Return the index of the pair of each name in each string, or -1, with shape (names, strings)."""
        column_of_code = np.full(256, len(names), np.uint8)
        column_of_code[[KNOWN.codes[name.encode()] for name in names]] = range(len(names))
        columns = column_of_code[self._codes]
        if not self._has_value.all():
            columns[~self._has_value] = len(names)
        placed = np.full((len(names) + 1, len(self._rows) - 1), -1, np.int32)
        placed[columns, self._record_of_pair] = np.arange(len(columns), dtype=np.int32)
        return placed[:-1]

    def _recognised(self) -> Integers:
        """Return the code of the name of each pair, or 0 if unknown, and set `_names`."""
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


def _may_repeat(names: Integers, strings: Integers) -> bool:
    """Return whether two pairs of a string may have the same name."""
    distance_max = int(np.bincount(strings).max()) if len(strings) else 0
    if distance_max > _NEIGHBOURS_MAX:
        return True
    return any(
        ((names[distance:] == names[:-distance]) & (strings[distance:] == strings[:-distance])).any()
        for distance in range(1, distance_max)
    )


def _is_regular(data: Bytes, rows: Integers, marks: Integers) -> bool:
    """Return whether 0x01 and 0x02 alternate and every nonempty string ends with 0x02."""
    kinds = data[marks]
    ends = rows[1:][rows[1:] > rows[:-1]] - 1
    return bool(
        len(marks) > 0
        and len(marks) % 2 == 0
        and (kinds[0::2] == _NAME_END).all()
        and (kinds[1::2] == _PAIR_END).all()
        and (data[ends] == _PAIR_END).all()
    )
