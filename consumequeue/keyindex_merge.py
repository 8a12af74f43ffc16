"""Several sorted sources become one, in bounded memory: what a checkpoint does with new entries and old runs.

Each source is in order of (hash, physical offset), and the sources cover ascending ranges of the log. A pass
takes a chunk of every source and gives out all entries up to the least of the chunks' last ones; so each
pass uses one chunk up, and none holds back more than its own. Memory: one chunk per source.

Which runs are merged is decided by size: a run waits until those behind it, the new entries with them, hold
three times as much as it does. So there are some three runs of each size, a number that grows with the
logarithm of the log, and an entry is written again only when its run grows fourfold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from consumequeue.keyindex_run import ENTRY, Entries, Run

_GROWTH: Final = 3
_NOTHING: Final[Entries] = np.empty(0, ENTRY)


def kept_count(runs: Sequence[Run], new_count: int) -> int:
    """How many of the runs, oldest first, stay as they are when `new_count` entries come behind them."""
    behind = new_count + sum(run.entry_count for run in runs)
    for position, run in enumerate(runs):
        behind -= run.entry_count
        if run.entry_count * _GROWTH <= behind:
            return position
    return len(runs)


def merged(sources: Iterable[Iterator[Entries]], first_offset: int) -> Iterator[Entries]:
    """All entries of records at or above `first_offset`, in order, in chunks."""
    waiting = [_Source(chunks) for chunks in sources]
    while waiting := [source for source in waiting if source.fill()]:
        last = min((source.last for source in waiting), key=lambda entry: (entry[0], entry[1]))
        chunk = np.concatenate([source.take(*last) for source in waiting])
        chunk = chunk[chunk["physical_offset"] >= first_offset]
        yield in_order(chunk)


def in_order(entries: Entries) -> Entries:
    """The entries by hash; equal hashes keep their order, which is that of the log."""
    return entries[np.argsort(entries["hash"], kind="stable")]


class _Source:
    """One source, and what of it has not been given out."""

    def __init__(self, chunks: Iterator[Entries]) -> None:
        self._chunks = chunks
        self._entries = _NOTHING

    def fill(self) -> bool:
        """Has something to give out; False at the source's end."""
        while len(self._entries) == 0:
            following = next(self._chunks, None)
            if following is None:
                return False
            self._entries = following
        return True

    @property
    def last(self) -> tuple[int, int]:
        """The (hash, physical offset) of the last entry at hand."""
        entry = self._entries[-1]
        return int(entry["hash"]), int(entry["physical_offset"])

    def take(self, last_hash: int, last_offset: int) -> Entries:
        """Gives out the entries up to that one."""
        hashes, offsets = self._entries["hash"], self._entries["physical_offset"]
        first = np.searchsorted(hashes, np.uint64(last_hash))
        end = np.searchsorted(hashes, np.uint64(last_hash), side="right")
        end = first + np.searchsorted(offsets[first:end], np.uint64(last_offset), side="right")
        taken, self._entries = self._entries[:end], self._entries[end:]
        return taken
