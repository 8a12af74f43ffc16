"""Several sorted sources become one, in bounded memory: what a checkpoint does with new entries and old runs.

Each source is in order of two fields, the major and the minor one. A pass takes a chunk of every source and
gives out all entries up to the least of the chunks' last ones; so each pass uses one chunk up, and none holds
back more than its own. Entries with both fields equal are in one pass. Memory: one chunk per source.

Which runs are merged is decided by size: a run waits until those behind it, the new entries with them, hold
three times as much as it does. So there are some three runs of each size, a number that grows with the
logarithm of the log, and an entry is written again only when its run grows fourfold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np

from consumequeue.sorted_run import Sorted

_GROWTH: Final = 3


class Counted(Protocol):
    """A run, as far as its size goes."""

    @property
    def entry_count(self) -> int:
        """The number of entries in the run."""


def kept_count(runs: Sequence[Counted], new_count: int) -> int:
    """Return how many of the runs, oldest first, stay as they are when `new_count` entries come behind."""
    behind = new_count + sum(run.entry_count for run in runs)
    for position, run in enumerate(runs):
        behind -= run.entry_count
        if run.entry_count * _GROWTH <= behind:
            return position
    return len(runs)


def passes(sources: Iterable[Iterator[Sorted]], major: str, minor: str) -> Iterator[Sorted]:
    """Yield all entries in chunks, in order among each other, not within: there older sources come first."""
    waiting = [_Source(chunks, major, minor) for chunks in sources]
    while waiting := [source for source in waiting if source.fill()]:
        # The least of the last entries: nothing that any source still has to bring can come before it.
        last = min(source.last for source in waiting)
        gathered = np.concatenate([source.take(*last) for source in waiting])
        assert len(gathered), "a source is not in order: nothing of it comes up to its last entry"
        yield gathered


class _Source:
    """A source, and the part of its chunk at hand that has not been given out."""

    def __init__(self, chunks: Iterator[Sorted], major: str, minor: str) -> None:
        self._chunks = chunks
        self._major, self._minor = major, minor
        self._entries: Sorted | None = None

    def fill(self) -> bool:
        """Get a chunk if none is left; return False at the source's end."""
        while self._entries is None or len(self._entries) == 0:
            self._entries = next(self._chunks, None)
            if self._entries is None:
                return False
        return True

    @property
    def last(self) -> tuple[int, int]:
        """The (major, minor) of the last entry at hand."""
        assert self._entries is not None, "not filled"
        entry = self._entries[-1]
        return int(entry[self._major]), int(entry[self._minor])

    def take(self, last_major: int, last_minor: int) -> Sorted:
        """Return, and let go of, the entries up to (`last_major`, `last_minor`)."""
        assert self._entries is not None, "not filled"
        majors, minors = self._entries[self._major], self._entries[self._minor]
        first = np.searchsorted(majors, np.uint64(last_major))
        end = np.searchsorted(majors, np.uint64(last_major), side="right")
        end = first + np.searchsorted(minors[first:end], np.uint64(last_minor), side="right")
        taken, self._entries = self._entries[:end], self._entries[end:]
        return taken
