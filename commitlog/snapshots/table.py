"""Tables that a snapshot can capture without copying rows.

A table consists of parts that are copied on write.

    parts, in the order of insertion           | 32,768 rows | 32,768 rows | 32,768 rows | <- new rows
    freeze    shares every part with the snapshot, which a worker writes
    put, pop  copy a shared part before modifying it

Rules:
- A key is a number or a string. A row is stored as `marshal` bytes, but only in memory, because this format
  depends on the interpreter. Python's garbage collector does not traverse a dictionary of bytes. With 200,000
  rows as tuples, a copy blocked the event loop for 12 to 17 ms, and garbage collection blocked it twice for
  another 10 to 25 ms.
- A row that replaces another takes its position. Parts with few remaining rows are merged.

Cost: with 200,000 rows, a lookup takes 0.6 us for the newest rows and 1.4 us for the oldest. Copying a part
takes 1.1 ms. Limitation: a lookup searches the parts one after another, so its cost grows with their number.
Lookups of missing rows cost most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from marshal import dumps, loads
from typing import Any, Final, Generic, TypeVar

from commitlog.snapshots.snapshot import Rows

PART_ROWS_MAX: Final = 32_768
GONE_MAX: Final = 1_024

Key = TypeVar("Key", int, str)
Row = tuple[Any, ...]
"""Tuple of numbers, strings, and tuples of these."""


class Table(Generic[Key]):
    """A table of keyed rows in insertion order."""

    def __init__(self) -> None:
        self._parts: list[dict[Key, bytes]] = [{}]
        self._is_shared = [False]
        self._count = 0
        self._gone_count = 0
        """Number of rows removed from the first part. Their empty entries slow down `first`."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Key) -> bool:
        return self._place_of(key) >= 0

    def __iter__(self) -> Iterator[Key]:
        return (key for part in self._parts for key in part)

    def items(self) -> Iterator[tuple[Key, Row]]:
        """Return all (key, row) pairs in insertion order."""
        return ((key, loads(row)) for part in self._parts for key, row in part.items())

    def between(self, first: Key, end: Key) -> list[Key]:
        """Return the keys from `first` to `end` (exclusive).

        Keys must have been inserted in ascending order.
        """
        found: list[Key] = []
        for part in self._parts:
            if part and next(iter(part)) < end and next(reversed(part)) >= first:
                found += [key for key in part if first <= key < end]
        return found

    def some_from(self, first: Key, count: int) -> list[Key]:
        """Return up to `count` keys, starting at `first`. Keys must have been inserted in ascending order."""
        found: list[Key] = []
        for part in self._parts:
            if part and next(reversed(part)) >= first:
                found += islice((key for key in part if key >= first), count - len(found))
                if len(found) == count:
                    break
        return found

    def get(self, key: Key) -> Row | None:
        """Return the row for a key, or None if there is none."""
        place = self._place_of(key)
        return None if place < 0 else loads(self._parts[place][key])

    def first(self) -> tuple[Key, Row] | None:
        """Return the first key and its row, or None if the table is empty."""
        return next(((key, loads(row)) for key, row in self._parts[0].items()), None)

    def put(self, key: Key, row: Row) -> None:
        """Insert or replace the row for a key."""
        place = self._place_of(key)
        if place < 0:
            self._count += 1
            if len(self._parts[-1]) >= PART_ROWS_MAX:
                self._parts.append({})
                self._is_shared.append(False)
        self._owned(place)[key] = dumps(row)

    def pop(self, key: Key) -> Row | None:
        """Remove and return the row for a key, or None if there is none."""
        place = self._place_of(key)
        if place < 0:
            return None
        row: Row = loads(self._owned(place).pop(key))
        self._count -= 1
        self._tidy(place)
        assert self._parts, "the table has no part for new rows"
        return row

    def freeze(self, row: Callable[[Any, Row], Row]) -> Rows:
        """Capture the current rows for a snapshot. `row` builds a snapshot row from a key and a row."""
        held = sum(map(len, self._parts))
        assert self._count == held, f"{self._count} rows are counted, {held} are there"
        self._is_shared = [True] * len(self._parts)
        return Rows(self._parts, lambda key, kept: row(key, loads(kept)))

    def _place_of(self, key: Key) -> int:
        """Return the index of the part that holds a key, or -1 if there is none.

        The newest part is searched first.
        """
        parts = self._parts
        place = len(parts) - 1
        while place >= 0 and key not in parts[place]:
            place -= 1
        return place

    def _owned(self, place: int) -> dict[Key, bytes]:
        """Return a part to modify. If the part is shared with a snapshot, copy it first."""
        if self._is_shared[place]:
            self._parts[place] = self._parts[place].copy()
            self._is_shared[place] = False
        return self._parts[place]

    def _tidy(self, place: int) -> None:
        """Drop, merge, or compact a part that has lost a row."""
        parts, left = self._parts, max(place - 1, 0)
        if len(parts) > 1 and len(parts[left]) + len(parts[left + 1]) <= PART_ROWS_MAX // 2:
            self._replace(left, left + 2, parts[left] | parts[left + 1])
        elif len(parts) > 1 and not parts[place]:
            del parts[place], self._is_shared[place]
            self._gone_count = 0
        elif place == 0:
            self._gone_count += 1
            if self._gone_count >= GONE_MAX:
                self._replace(0, 1, {**parts[0]})

    def _replace(self, first: int, end: int, part: dict[Key, bytes]) -> None:
        """Replace adjacent parts with one."""
        self._parts[first:end], self._is_shared[first:end] = [part], [False]
        assert len(self._parts) == len(self._is_shared), "a part is not known to be shared or not"
        self._gone_count = 0
