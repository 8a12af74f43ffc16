"""Is each record of the log still what was accepted? Looked at a little at a time, as long as a node leads.

    count   the rows of a range against their numbers, where an engine has rows (`sharedlog.postgres_rows`):
            what is lost or doubled
    read    the records of a range against their CRC: what is changed, or unreadable
    begin   the log's first record against what each node reads on from: what somebody has deleted. The leader
            trims nothing that a node needs; believed the second time, as a node may have told it just now
    pass    looks from the log's first record to its end; its faults count until the next pass has ended

A fault is told, with the record's number, and nothing else follows from it here: a reader that meets the
record halts (`sharedlog.reading`, `sharedlog.fold`).

Cost: a count of 200,000 rows and READS reads of READ_BYTES a look, whatever the log's size: a log of 1 GiB is
read through in four hours. Weak spot: a record that is replaced by another sound one of the same cluster, or
that a topic has lost, is found by a reader of the history alone, and by the leader once that one says so
(`sharedlog.faults`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from sharedlog.engine import Engine
from sharedlog.errors import LogDamaged
from sharedlog.faults import READ_BYTES, fault_of, unread

READS: Final = 4
FAULTS_MAX: Final = 100
"""How many faults of a pass are kept."""
DOCTOR: Final = "To see it: tidewheel cluster doctor URL"


class Counted(NamedTuple):
    """What one look has found: a sentence for each fault, and the record from which the next look goes on."""

    faults: list[str]
    next_record: int
    is_whole: bool
    """Whether the look has reached the log's end."""


class Rows(Engine, Protocol):
    """An engine whose rows can be counted."""

    def count_rows(self, from_record: int) -> Counted:
        """Count the rows of a range of records against their numbers; raise `Unknown` or `Refused`."""

    def make_unique(self) -> list[str]:
        """Go on making what keeps a record from being there twice; return what stands in its way."""


class _Pass:
    """Looks from the log's first record to its end, again and again."""

    def __init__(self, now_ms: int) -> None:
        self.next_record, self.ended_ms = 0, now_ms
        """When the last pass ended; of the first, when it began."""
        self.count = 0
        self._found: list[str] = []
        self._found_before: list[str] = []

    @property
    def faults(self) -> list[str]:
        """What this pass has found, and the one before."""
        return list(dict.fromkeys(self._found_before + self._found))

    def took(self, looked: Counted, now_ms: int) -> None:
        """Take in what a look has found."""
        self._found = (self._found + looked.faults)[:FAULTS_MAX]
        self.next_record = looked.next_record
        if looked.is_whole:
            self._found_before, self._found, self.next_record = self._found, [], 0
            self.ended_ms, self.count = now_ms, self.count + 1


class Scrub:
    """The looks at one log of the cluster whose id is `cluster`; `clock` never goes back, in ms.

    `needed` tells from which record on each node reads.
    """

    def __init__(
        self,
        engine: Rows,
        cluster: bytes,
        clock: Callable[[], int],
        needed: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._engine, self._cluster, self._clock, self._needed = engine, cluster, clock, needed
        self._deleted: list[str] = []
        self._deleted_before: list[str] = []
        """What nodes need and the log has no more, as of the last look and of the one before."""
        self._counting, self._reading = _Pass(clock()), _Pass(clock())
        self._differing: list[str] = []
        """Records that keep the engine from having each but once."""

    @property
    def faults(self) -> list[str]:
        """A sentence for each fault that the log had when it was looked at last."""
        deleted = [one for one in self._deleted if one in self._deleted_before]
        return list(
            dict.fromkeys([*self._differing, *deleted, *self._counting.faults, *self._reading.faults])
        )

    def ages(self) -> dict[str, Any]:
        """Return how long ago the last pass of each kind ended, in ms, and how many have ended."""
        now_ms = self._clock()
        return {
            "counted_ms_ago": now_ms - self._counting.ended_ms,
            "read_ms_ago": now_ms - self._reading.ended_ms,
            "counts": self._counting.count,
            "reads": self._reading.count,
        }

    def look(self) -> None:
        """Look at the next ranges; raise `Unknown` or `Refused`: then the next look goes on."""
        needed = sorted(self._needed().items())
        first, _ = self._engine.bounds()
        self._deleted_before = self._deleted
        self._deleted = [_deleted(first, node, record) for node, record in needed if record < first]
        self._counting.took(count_range(self._engine, self._counting.next_record), self._clock())
        for _ in range(READS):
            looked = read_range(self._engine, self._cluster, self._reading.next_record)
            self._reading.took(looked, self._clock())
            if looked.is_whole:
                break
        self._differing = self._engine.make_unique()


def _deleted(first: int, node: str, record: int) -> str:
    return (
        f"The log begins at record {first}, and node {node} reads on from {record}: what it needs was deleted"
        ". Keep every node's --store, and let nobody but nodes delete records."
    )


def count_range(engine: Rows, from_record: int) -> Counted:
    """Count the next range of rows; that the engine cannot is a fault, and all are counted anew.

    Raise `Unknown` or `Refused`.
    """
    try:
        return engine.count_rows(from_record)
    except LogDamaged as error:
        return Counted([error.detail], 0, is_whole=True)


def read_range(engine: Engine, cluster: bytes | None, from_record: int) -> Counted:
    """Read some records from one on, or from the first that is left; raise `Unknown` or `Refused`.

    A record that does not match its CRC is read once more before that is believed.
    """
    try:
        found = engine.read(from_record, READ_BYTES)
    except LogDamaged:
        return _read_one(engine, cluster, from_record)
    faults = [fault for one in found if (fault := fault_of(engine, cluster, one))]
    _, end = engine.bounds()
    is_whole = not found or found[-1].offset + 1 >= end
    return Counted(faults, 0 if is_whole else found[-1].offset + 1, is_whole)


def _read_one(engine: Engine, cluster: bytes | None, record: int) -> Counted:
    """Read one record of a range that the engine cannot read as a whole."""
    _, end = engine.bounds()
    is_whole = record + 1 >= end
    try:
        faults = [fault_of(engine, cluster, one) for one in engine.read(record, 1)[:1]]
    except LogDamaged as error:
        faults = [unread(record, error)]
    return Counted([one for one in faults if one], 0 if is_whole else record + 1, is_whole)
