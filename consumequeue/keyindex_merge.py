"""New entries and old runs of the key index become one run: see `consumequeue.sorted_merge`.

Each source is in order of (hash, physical offset), and the sources cover ascending ranges of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from consumequeue.keyindex_run import Entries
from consumequeue.sorted_merge import kept_count as kept_count
from consumequeue.sorted_merge import passes


def merged(sources: Iterable[Iterator[Entries]], first_offset: int) -> Iterator[Entries]:
    """Yield all entries of records at or above `first_offset`, in order, in chunks."""
    for gathered in passes(sources, "hash", "physical_offset"):
        yield in_order(gathered[gathered["physical_offset"] >= first_offset])


def in_order(entries: Entries) -> Entries:
    """Return the entries by hash; equal hashes keep their order, which is that of the log."""
    return entries[np.argsort(entries["hash"], kind="stable")]
