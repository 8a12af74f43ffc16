"""Verification of the key index: each run that the newest snapshot names, block by block, and its number of
keys.

The keys of all records are counted for each run. A run may also contain entries of records that retention has
deleted or that are damaged. Memory: some blocks of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from commitlog.layout import KEYINDEX
from commitlog.log.recovery import Damage
from commitlog.records.record import Record
from commitlog.snapshots import snapshot
from consumequeue.dispatch import is_indexed
from consumequeue.indexes.keyindex import names_of, runs_named
from consumequeue.queue import is_unrelated_error
from consumequeue.runs.sorted_runs import Entries, Run
from services.broker.derived import KEYS
from services.store.findings import Finding
from services.store.read_only.opening import OpenStore
from services.store.verify.facts import RunCheck


class IndexCheck:
    """The key index of a store compared with its log."""

    def __init__(self, store: OpenStore) -> None:
        newest = snapshot.newest(store.overlay())
        self._runs = runs_named(newest.parts[KEYS] if newest else None)
        self._key_counts = [0] * len(self._runs)
        self._store = store

    def see(self, record: Record) -> None:
        """Count the keys of the next record of the log."""
        if self._runs and is_indexed(record):
            for at, run in enumerate(self._runs):
                if run.first_offset <= record.physical_offset < run.end_offset:
                    self._key_counts[at] += len(names_of(record)[1])

    def findings(self, damaged: Sequence[Damage]) -> Iterator[Finding]:
        """Yield all findings. Every record must have been passed."""
        if self._runs and not self._store.files.list(KEYINDEX):
            yield Finding("index", KEYINDEX, -1, -1, "is not there; the next start makes it", False)
            return
        for run, key_count in zip(self._runs, self._key_counts, strict=True):
            for what in self._problems(run, key_count, bool(damaged)):
                yield Finding("index", run.path, run.first_offset, run.end_offset, what)

    def _problems(self, run: Run, key_count: int, is_log_damaged: bool) -> Iterator[str]:
        first_offset, entry_count = self._store.first_offset, 0

        def count(entries: Entries) -> Iterator[str]:
            nonlocal entry_count
            entry_count += int(np.count_nonzero(entries["offset"] >= first_offset))
            return iter(())

        try:
            found = [what for _, _, what in RunCheck(self._store, run, count).problems()]
        except OSError as error:
            if is_unrelated_error(error):
                raise
            found = [f"cannot be read ({error.strerror or error}); it can be made anew"]
        yield from found
        if not found and (entry_count < key_count or (entry_count > key_count and not is_log_damaged)):
            yield f"holds {entry_count} entries, its records have {key_count} keys"
