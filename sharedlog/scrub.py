"""The scrub, by which the leader verifies all records of the log in small steps.

    count   compares the number of rows of a range with their record numbers, in engines with rows
            (`sharedlog.postgres_rows`): detects lost and duplicated records
    read    verifies the records of a range by their CRC: detects changed and unreadable records
    begin   compares the first record of the log with the next record of each node: detects deletions by other
            programs, as the leader trims no record that a node needs. A fault is reported at the second
            check, as a node may have just announced its holding
    pass    checks from the first record of the log to its end; its faults are reported until the end of the
            next pass

A fault is reported with its record number, and has no other effect here. A reader halts when it reaches the
record (`sharedlog.reading`, `sharedlog.fold`).

Cost: each check counts 200,000 rows and makes READS reads of READ_BYTES, independent of the size of the log.
A pass through 1 GiB takes four hours. Weak spot: the scrub does not detect a record that was replaced by
another valid record of the same cluster, or was lost by a topic. A reader of the history detects the fault,
and the leader checks the record after the reader has reported it (`sharedlog.faults`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from sharedlog.engine import Engine
from sharedlog.errors import LogDamaged
from sharedlog.faults import READ_BYTES, describe_unreadable, find_fault

READS: Final = 4
FAULTS_MAX: Final = 100
"""The maximum number of faults that are kept for a pass."""
DOCTOR: Final = "To see it: tidewheel cluster doctor URL"


class CheckResult(NamedTuple):
    """The result of a check, with a sentence for each fault and the record at which the next check begins."""

    faults: list[str]
    next_record: int
    is_whole: bool
    """Whether the check has reached the end of the log."""


class Rows(Engine, Protocol):
    """An engine whose rows can be counted."""

    def count_rows(self, from_record: int) -> CheckResult:
        """Compare a range of rows with their record numbers.

        Raise `Unknown` or `Refused` if the engine cannot answer.
        """


class _ScrubPass:
    """Repeated checks from the first record of the log to its end."""

    def __init__(self, now_ms: int) -> None:
        self.next_record, self.ended_ms = 0, now_ms
        """The next record to check, and the time at which the last pass ended or the first pass began."""
        self.count = 0
        self._found: list[str] = []
        self._found_before: list[str] = []

    @property
    def faults(self) -> list[str]:
        """Return the faults of this pass and of the previous pass."""
        return list(dict.fromkeys(self._found_before + self._found))

    def add_result(self, looked: CheckResult, now_ms: int) -> None:
        """Record the result of a check."""
        self._found = (self._found + looked.faults)[:FAULTS_MAX]
        self.next_record = looked.next_record
        if looked.is_whole:
            self._found_before, self._found, self.next_record = self._found, [], 0
            self.ended_ms, self.count = now_ms, self.count + 1


class Scrub:
    """The scrub of the shared log of a cluster. `cluster` is its id, and `clock` is a monotonic clock in ms.

    `needed` returns the next record of each node.
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
        """The faults of deleted records that nodes need, at the last check and at the previous check."""
        self._counting, self._reading = _ScrubPass(clock()), _ScrubPass(clock())

    @property
    def faults(self) -> list[str]:
        """Return a sentence for each current fault of the log."""
        deleted = [one for one in self._deleted if one in self._deleted_before]
        return list(dict.fromkeys([*deleted, *self._counting.faults, *self._reading.faults]))

    def ages(self) -> dict[str, Any]:
        """Return the time since the last pass of each kind, in ms, and the number of passes."""
        now_ms = self._clock()
        return {
            "counted_ms_ago": now_ms - self._counting.ended_ms,
            "read_ms_ago": now_ms - self._reading.ended_ms,
            "counts": self._counting.count,
            "reads": self._reading.count,
        }

    def check_next_ranges(self) -> None:
        """Check the next ranges.

        Raise `Unknown` or `Refused` if the engine cannot answer. The next call continues at the same record.
        """
        needed = sorted(self._needed().items())
        first, _ = self._engine.bounds()
        self._deleted_before = self._deleted
        self._deleted = [_describe_deletion(first, node, record) for node, record in needed if record < first]
        self._counting.add_result(count_range(self._engine, self._counting.next_record), self._clock())
        for _ in range(READS):
            looked = read_range(self._engine, self._cluster, self._reading.next_record)
            self._reading.add_result(looked, self._clock())
            if looked.is_whole:
                break


def _describe_deletion(first: int, node: str, record: int) -> str:
    return (
        f"The log begins at record {first}, and node {node} reads on from {record}: what it needs was deleted"
        ". Keep every node's --store, and let nobody but nodes delete records."
    )


def count_range(engine: Rows, from_record: int) -> CheckResult:
    """Count the next range of rows. If the rows cannot be read, return a fault and end the pass.

    Raise `Unknown` or `Refused` if the engine cannot answer.
    """
    try:
        return engine.count_rows(from_record)
    except LogDamaged as error:
        return CheckResult([error.detail], 0, is_whole=True)


def read_range(engine: Engine, cluster: bytes | None, from_record: int) -> CheckResult:
    """Verify some records from `from_record` on, or from the first remaining record.

    A mismatch of a CRC is confirmed by a second read. Raise `Unknown` or `Refused` if the engine fails.
    """
    try:
        found = engine.read(from_record, READ_BYTES)
    except LogDamaged:
        return _check_record(engine, cluster, from_record)
    faults = [fault for one in found if (fault := find_fault(engine, cluster, one))]
    _, end = engine.bounds()
    is_whole = not found or found[-1].offset + 1 >= end
    return CheckResult(faults, 0 if is_whole else found[-1].offset + 1, is_whole)


def _check_record(engine: Engine, cluster: bytes | None, record: int) -> CheckResult:
    """Verify a single record, after the engine has failed to read its range as a whole."""
    _, end = engine.bounds()
    is_whole = record + 1 >= end
    try:
        faults = [find_fault(engine, cluster, one) for one in engine.read(record, 1)[:1]]
    except LogDamaged as error:
        faults = [describe_unreadable(record, error)]
    return CheckResult([one for one in faults if one], 0 if is_whole else record + 1, is_whole)
