"""A hash table of facts in memory, with chaining.

It consists of two flat arrays and uses 48 bytes per fact.

    heads    2**19 - 1 slots, selected by the key modulo the number of slots; each contains the start of its
             chain, or 0
    words    key, check, offset, at, extra, and the next fact in the chain; the first six words are unused

A fact replaces an older one for the same (key, check), so chains stay short even if the same timer is set
repeatedly. With one million facts, a chain has two entries on average. `put_many` adds facts to the same
arrays with NumPy. Limitation: the number of slots is fixed. If ten million facts accumulate in memory due to
a full disk, a chain has about twenty entries.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import Struct
from typing import Final

import numpy as np

from consumequeue.indexes.timerindex_fact import FACT, FactContent, Facts, newest_of
from consumequeue.runs.bloom_filter import Mask, Words

_SLOTS: Final = (1 << 19) - 1
_WIDTH: Final = 6
_WORDS: Final = Struct(f"={_WIDTH}Q")
_CHUNK_FACTS: Final = 16_384


class Recent:
    """Facts of a timer index in memory, one per (key, check)."""

    def __init__(self) -> None:
        # The operating system fills each page with zeros when the page is first accessed.
        self._heads = np.zeros(_SLOTS, np.uint32).data
        self._words = array("Q", bytes(8 * _WIDTH))

    def __len__(self) -> int:
        return len(self._words) // _WIDTH - 1

    def put(self, key: int, check: int, offset: int, at: int, extra: int) -> None:
        """Add a fact, unless there is a newer one for the same (key, check)."""
        words = self._words
        slot = key % _SLOTS
        first = place = self._heads[slot]
        while place:
            if words[place] == key and words[place + 1] == check:
                if offset >= words[place + 2]:
                    words[place + 2], words[place + 3], words[place + 4] = offset, at, extra
                return
            place = words[place + 5]
        self._heads[slot] = len(words)
        words.frombytes(_WORDS.pack(key, check, offset, at, extra, first))

    def find(self, key: int, check: int) -> FactContent | None:
        """Return the fact for a (key, check), or None."""
        words = self._words
        place = self._heads[key % _SLOTS]
        while place:
            if words[place] == key and words[place + 1] == check:
                return FactContent(words[place + 2], words[place + 3], words[place + 4])
            place = words[place + 5]
        return None

    def put_many(self, facts: Facts) -> None:
        """Add several facts in any order."""
        facts = newest_of(facts)
        rows = self._rows_of(facts["key"], facts["check"])
        self._replace(rows, facts)
        self._append(facts[rows == 0])

    def contains_each(self, keys: Words, checks: Words) -> Mask:
        """For each (key, check), return whether a fact exists."""
        return self._rows_of(keys, checks) > 0

    def take(self, newer: Recent) -> None:
        """Take over all facts from `newer`."""
        self.put_many(_facts(newer._table()[1:]))

    def chunks(self) -> Iterator[Facts]:
        """Yield all facts in order. Do not add facts during the iteration."""
        keys = self._column(0)
        order = np.argsort(keys)
        keys = keys[order]
        if (keys[1:] == keys[:-1]).any():
            order = np.lexsort((self._column(1), self._column(0)))
        for at in range(0, len(order), _CHUNK_FACTS):
            yield _facts(self._table()[1 + order[at : at + _CHUNK_FACTS]])

    def _table(self) -> Words:
        """Return a two-dimensional view of the words, with one row per fact.

        No fact can be added while this view exists.
        """
        return np.frombuffer(self._words, np.uint64).reshape(-1, _WIDTH)

    def _column(self, number: int) -> Words:
        return self._table()[1:, number].copy()

    def _rows_of(self, keys: Words, checks: Words) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the table row of each (key, check), or 0 if there is none."""
        table, heads = self._table(), np.frombuffer(self._heads, np.uint32)
        places = heads[keys % np.uint64(_SLOTS)]
        rows = np.zeros(len(keys), np.int64)
        going = np.flatnonzero(places)
        row = places[going].astype(np.int64) // _WIDTH
        # All chains are followed in parallel, one step per iteration. `going` contains the chains whose end
        # has not been reached yet.
        while len(going):
            is_it = (table[row, 0] == keys[going]) & (table[row, 1] == checks[going])
            rows[going[is_it]] = row[is_it]
            following = table[row, 5].astype(np.int64) // _WIDTH
            goes_on = ~is_it & (following > 0)
            going, row = going[goes_on], following[goes_on]
        return rows

    def _replace(self, rows: np.ndarray[tuple[int], np.dtype[np.int64]], facts: Facts) -> None:
        table = self._table()
        is_newer = (rows > 0) & (facts["offset"] >= table[rows, 2])
        for column, field in enumerate(("offset", "at", "extra"), 2):
            table[rows[is_newer], column] = facts[field][is_newer]

    def _append(self, facts: Facts) -> None:
        """Add facts for new (key, check) pairs.

        Each fact becomes the head of its slot's chain.
        """
        if len(facts) == 0:
            return
        slots = (facts["key"] % np.uint64(_SLOTS)).astype(np.int64)
        facts = facts[order := np.argsort(slots, kind="stable")]
        slots = slots[order]
        places = np.arange(len(self._words), len(self._words) + _WIDTH * len(facts), _WIDTH)
        assert places[-1] < 1 << 32, "more words than a head of 32 bits can name"
        heads = np.frombuffer(self._heads, np.uint32)
        added = np.empty((len(facts), _WIDTH), np.uint64)
        for column, field in enumerate(("key", "check", "offset", "at", "extra")):
            added[:, column] = facts[field]
        added[:, 5] = heads[slots]
        # The facts are sorted by slot. Within a slot, each fact except the first links to the preceding fact.
        # The last fact becomes the new head, because NumPy keeps the last of several writes to the same
        # position.
        shares = np.flatnonzero(slots[1:] == slots[:-1])
        added[shares + 1, 5] = places[shares]
        heads[slots] = places
        self._words.frombytes(added.tobytes())


def _facts(rows: Words) -> Facts:
    """Return the facts in the given table rows."""
    return np.ascontiguousarray(rows[:, :5]).view(FACT).reshape(-1)
