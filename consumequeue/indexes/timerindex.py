"""The on-disk index of the newest fact about each timer and timer name.

Its memory is bounded. It is a run store (`consumequeue.runs.run_store`) with its own schema. There are two
timer indexes in separate folders. One contains facts about timer names, keyed by `hashes_of(topic, name)`:
the timer's offset, due time, and store time. The other contains facts about timer offsets: the record that
ended the timer, its time, and the outcome. A hash table holds the facts in memory (`timerindex_recent.py`).

1. Of several facts for the same (key, check), only the one with the highest offset is valid. A lookup
   searches memory, and then every run that may contain a fact with a higher offset. Facts may thus be added
   in any order.
2. A merge keeps the newest facts that have not expired. A lookup may return an expired fact.
3. If retention has deleted a fact's record, the run contains the only copy of the fact. Damaged runs are
   therefore kept until recovery replaces them (`services.broker.timers.timer_facts`).

Cost: adding a fact takes 0.7 us and uses 48 bytes of memory until the next checkpoint. A lookup that finds
nothing takes about 2 us, plus 0.3 us per run. A successful lookup also reads a block. Memory usage is 4 MB,
plus 13 to 25 bits per fact in a run. Limitation: facts cannot be derived from the log, so those in damaged
blocks are lost (rule 3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from consumequeue.indexes.name_hash import wide_digest_of
from consumequeue.indexes.timerindex_fact import FACT, FactContent, Facts, IsExpired, newest_of
from consumequeue.indexes.timerindex_recent import Recent
from consumequeue.runs.bloom_filter import Mask, Probe, Words, probe_of, probes_of
from consumequeue.runs.run_store import RunStore
from consumequeue.runs.sorted_runs import Run, Schema

_HASHES: Final = struct.Struct("<QQ")

FACTS: Final = Schema(
    magic=b"TWFACTS1",
    entry=FACT,
    minor="check",
    merged=newest_of,
    newest_only=True,
    is_derived=False,
    filtered_max=1 << 63,
    advice=(
        "What it says of timers is nowhere else: restore the file from a backup while the broker is stopped. "
        "Timers that it does not concern go on."
    ),
)


@lru_cache(maxsize=1_024)
def hashes_of(topic: str, name: str) -> tuple[int, int]:
    """Return the 64-bit key and check of a timer name in a topic.

    Results are cached, because the names of a new timer are looked up before they are stored. Hashing takes
    1.5 us.
    """
    key, check = _HASHES.unpack(wide_digest_of(topic, name))
    return key, check


class FactIndex(RunStore[Recent]):
    """A timer index in one folder."""

    def __init__(self, disk: Disk, folder: str, is_expired: IsExpired) -> None:
        super().__init__(disk, folder, FACTS, Recent, is_expired)

    def remove_run(self, run: Run) -> int:
        """Remove a run and add its readable facts to memory. Return their number."""
        count = 0
        for facts in run.readable(self._disk, []):
            self.put_many(facts)
            count += len(facts)
        self._runs = tuple(one for one in self._runs if one is not run)
        self._damaged -= {run.number}
        return count

    def check(self, damaged_numbers: Iterable[int], bytes_max: int) -> None:
        """Record damaged runs.

        Read all runs if their total size does not exceed `bytes_max`, and record any damage found.
        """
        known = set(damaged_numbers)
        if sum(run.tail_at for run in self._runs) <= bytes_max:
            known |= {run.number for run in self._runs if not run.is_sound(self._disk)}
        self._damaged = frozenset(run.number for run in self._runs if run.number in known)

    def put(self, key: int, check: int, offset: int, at: int, extra: int) -> None:
        """Add a fact with the fields of `timerindex_fact`."""
        self._recent.put(key, check, offset, at, extra)

    def put_many(self, facts: Facts) -> None:
        """Add several facts in any order."""
        self._recent.put_many(facts)

    def newest(self, key: int, check: int) -> FactContent | None:
        """Return the newest fact for a (key, check), or None.

        It may have expired. Raise `StoreDamaged` if the fact cannot be read, or OSError if the disk fails.
        """
        best = self._recent.find(key, check)
        for closed in self._closed:
            best = _newer(best, closed.find(key, check))
        probe: Probe | None = None
        # Facts may be added in any order, so a newer run may contain an older fact. A run can be skipped only
        # if all of its offsets are lower than the highest offset found so far.
        for run in reversed(self._runs):
            if best is None or best.offset < run.end_offset - 1:
                probe = probe or probe_of(key)
                if run.may_hold(probe):
                    best = _newer(best, self._find(run, key, check))
        return best

    def _find(self, run: Run, key: int, check: int) -> FactContent | None:
        try:
            for facts in run.find(self._disk, key):
                for _, found_check, *said in facts.tolist():
                    if found_check == check:
                        return FactContent(*said)
        except StoreDamaged:
            self.found_damaged((run,))
            raise
        return None

    def contains_each(self, keys: Words, checks: Words) -> Mask:
        """For each (key, check), return whether a fact exists.

        The result is undefined for expired facts. Raise `StoreDamaged` if a fact cannot be read, or OSError
        if the disk fails.
        """
        is_known = np.zeros(len(keys), np.bool_)
        for recent in self.recents():
            is_known |= recent.contains_each(keys, checks)
        probes = probes_of(keys)
        may_be = np.zeros(len(keys), np.bool_)
        for run in self._runs:
            may_be |= run.may_hold_each(*probes)
        for place in np.flatnonzero(may_be & ~is_known).tolist():
            is_known[place] = self.newest(int(keys[place]), int(checks[place])) is not None
        return is_known


def _newer(one: FactContent | None, other: FactContent | None) -> FactContent | None:
    if one is None or (other is not None and other.offset > one.offset):
        return other
    return one
