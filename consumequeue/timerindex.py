"""The timer index: the newest fact about each timer or name, on disk, in bounded memory, exact.

A schema of `consumequeue.run_store`. Two instances, in folders of their own. About a name, `hashes_of(topic,
name)`: the timer's offset, when it is due, when it was stored. About a timer, by its offset: the record that
ended it, when and how. In memory facts are in a hash table (`timerindex_recent.py`).

1. Of the facts about one (key, check) only that with the highest offset counts. A look-up asks memory first,
   then every run that may hold a higher one, so facts may be put in any order.
2. A merge keeps the newest facts that are not expired; an expired fact may be found or not.
3. A fact whose record retention has deleted is nowhere else, so a damaged run stays until a start rebuilds it
   (`services.broker.timers.timer_facts`).

Cost: a put 0.7 us and 48 bytes until the next checkpoint; a look-up that finds nothing about 2 us and 0.3 us
a run; one that finds, a block more. Memory: 4 MB, and 13 to 25 bits a fact in runs. Weak spot: the log cannot
tell these facts again, so what damage takes is lost (rule 3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np

from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from consumequeue.bloom_filter import Mask, Probe, Words, probe_of, probes_of
from consumequeue.name_hash import wide_digest_of
from consumequeue.run_store import RunStore
from consumequeue.sorted_runs import Run, Schema
from consumequeue.timerindex_fact import FACT, Facts, IsExpired, Said, newest_of
from consumequeue.timerindex_recent import Recent

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
    """Return the key and the check, 64 bits each, that stand for a timer's name under a topic.

    A timer that is set is asked for by its names first, and gets them next: hashed once (1.5 us).
    """
    key, check = _HASHES.unpack(wide_digest_of(topic, name))
    return key, check


class FactIndex(RunStore[Recent]):
    """The facts in one folder."""

    def __init__(self, disk: Disk, folder: str, is_expired: IsExpired) -> None:
        super().__init__(disk, folder, FACTS, Recent, is_expired)

    def take_out(self, run: Run) -> int:
        """Remove a run; what can be read of it is recent again. Return how many facts that were."""
        count = 0
        for facts in run.readable(self._disk, []):
            self.put_many(facts)
            count += len(facts)
        self._runs = tuple(one for one in self._runs if one is not run)
        self._damaged -= {run.number}
        return count

    def check(self, damaged_numbers: Iterable[int], bytes_max: int) -> None:
        """Note which runs are damaged: those known to be, and, of up to `bytes_max`, those read to be."""
        known = set(damaged_numbers)
        if sum(run.tail_at for run in self._runs) <= bytes_max:
            known |= {run.number for run in self._runs if not run.is_sound(self._disk)}
        self._damaged = frozenset(run.number for run in self._runs if run.number in known)

    def put(self, key: int, check: int, offset: int, at: int, extra: int) -> None:
        """Put one fact: see `timerindex_fact`."""
        self._recent.put(key, check, offset, at, extra)

    def put_many(self, facts: Facts) -> None:
        """Put many facts, in any order."""
        self._recent.put_many(facts)

    def newest(self, key: int, check: int) -> Said | None:
        """Return what is said of one (key, check); None if nothing is, and maybe if it is expired.

        Raise `StoreDamaged` where the answer cannot be read, OSError where the disk fails.
        """
        best = self._recent.find(key, check)
        for closed in self._closed:
            best = _newer(best, closed.find(key, check))
        probe: Probe | None = None
        # Facts come in any order, so a newer run may hold an older fact. Only a run whose offsets are all
        # lower than that of the best so far cannot change the answer.
        for run in reversed(self._runs):
            if best is None or best.offset < run.end_offset - 1:
                probe = probe or probe_of(key)
                if run.may_hold(probe):
                    best = _newer(best, self._find(run, key, check))
        return best

    def _find(self, run: Run, key: int, check: int) -> Said | None:
        try:
            for facts in run.find(self._disk, key):
                for _, found_check, *said in facts.tolist():
                    if found_check == check:
                        return Said(*said)
        except StoreDamaged:
            self.found_damaged((run,))
            raise
        return None

    def knows_each(self, keys: Words, checks: Words) -> Mask:
        """Return of which (key, check) something is said, and maybe of which it was and is expired.

        Raise `StoreDamaged` if any of the answers cannot be read, OSError where the disk fails.
        """
        is_known = np.zeros(len(keys), np.bool_)
        for recent in self.recents():
            is_known |= recent.knows_each(keys, checks)
        probes = probes_of(keys)
        may_be = np.zeros(len(keys), np.bool_)
        for run in self._runs:
            may_be |= run.may_hold_each(*probes)
        for place in np.flatnonzero(may_be & ~is_known).tolist():
            is_known[place] = self.newest(int(keys[place]), int(checks[place])) is not None
        return is_known


def _newer(one: Said | None, other: Said | None) -> Said | None:
    if one is None or (other is not None and other.offset > one.offset):
        return other
    return one
