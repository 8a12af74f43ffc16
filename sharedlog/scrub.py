"""The scrub, a background task of the leader that verifies the shared log in small steps.

    count   In engines with rows (`sharedlog.postgres_rows`), verifies that a range of the log contains each
            record number exactly once. This check detects lost and duplicate records.
    read    Verifies the CRC of each record in a range. This check detects changed and unreadable records.
    begin   Compares the log start offset with the first record that each node still needs. This check detects
            deletions by other programs, because the leader does not trim records that a node needs. A fault
            is reported only if two consecutive checks find it, because a node's announcement may be newer
            than the last trim.
    pass    A sequence of checks that covers the log from the first record to the end. The faults found by a
            pass are reported until the end of the next pass.

The scrub reports faults with their record numbers, and takes no other action. Readers halt at a faulty record
(`sharedlog.reading`, `sharedlog.fold`).

Cost: a step counts up to 200,000 rows and performs up to `RANGE_READS` reads of `READ_BYTES`, regardless of
the size of the log. A pass over 1 GiB takes four hours. Limitation: the scrub cannot detect that a record was
replaced by another valid record of the same cluster, or that a Kafka topic has lost a record. A node that
reads the history detects and reports such a fault, and the leader verifies it (`sharedlog.faults`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from sharedlog.engine import Engine
from sharedlog.errors import LogDamaged
from sharedlog.faults import READ_BYTES, describe_unreadable, find_fault

RANGE_READS: Final = 4
FAULTS_MAX: Final = 100
"""Maximum number of faults that are stored per pass."""
DOCTOR: Final = "To see it: tidewheel cluster doctor URL"


class CheckResult(NamedTuple):
    """The messages about the faults that a check found, and the first record number of the next check."""

    faults: list[str]
    next_record: int
    is_whole: bool
    """Whether the check reached the end of the log."""


class Rows(Engine, Protocol):
    """An engine that can verify the record numbers of rows."""

    def count_rows(self, from_record: int) -> CheckResult:
        """Verify that each record number in a range of the log exists exactly once.

        The range begins at `from_record`. Raise `EngineUnavailable` or `EngineRefused` if the engine does not
        respond.
        """


class _ScrubPass:
    """The progress of repeated passes over the log, from the first record to the end."""

    def __init__(self, now_ms: int) -> None:
        self.next_record, self.ended_ms = 0, now_ms
        """Number of the next record to check, and the time at which the last pass ended.

        Until the first pass has ended, this is the time at which it began.
        """
        self.count = 0
        self._found: list[str] = []
        self._found_before: list[str] = []

    @property
    def faults(self) -> list[str]:
        """Return the messages about the faults found by the current pass and by the previous pass."""
        return list(dict.fromkeys(self._found_before + self._found))

    def add_result(self, looked: CheckResult, now_ms: int) -> None:
        """Add the result of a check to the current pass.

        A check that reached the end of the log ends the pass, and the next check begins a new pass.
        """
        self._found = (self._found + looked.faults)[:FAULTS_MAX]
        self.next_record = looked.next_record
        if looked.is_whole:
            self._found_before, self._found, self.next_record = self._found, [], 0
            self.ended_ms, self.count = now_ms, self.count + 1


class Scrub:
    """The scrub of a shared log.

    `clock` returns monotonic time in milliseconds, and `needed` returns the number of the first record that
    each node still needs, by node name.
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
        """Deletions found by the previous check.

        A deletion is reported only if two consecutive checks have found it.
        """
        self._counting, self._reading = _ScrubPass(clock()), _ScrubPass(clock())

    @property
    def faults(self) -> list[str]:
        """Return a message for each known fault."""
        deleted = [one for one in self._deleted if one in self._deleted_before]
        return list(dict.fromkeys([*deleted, *self._counting.faults, *self._reading.faults]))

    def ages(self) -> dict[str, Any]:
        """Return the number of passes and the milliseconds since the last pass, for each kind of check."""
        now_ms = self._clock()
        return {
            "counted_ms_ago": now_ms - self._counting.ended_ms,
            "read_ms_ago": now_ms - self._reading.ended_ms,
            "counts": self._counting.count,
            "reads": self._reading.count,
        }

    def check_next_ranges(self) -> None:
        """Check the next ranges of the log.

        Raise `EngineUnavailable` or `EngineRefused` if the engine does not respond. After an exception, the
        next call repeats the failed check.
        """
        needed = sorted(self._needed().items())
        first, _ = self._engine.bounds()
        self._deleted_before = self._deleted
        self._deleted = [_describe_deletion(first, node, record) for node, record in needed if record < first]
        self._counting.add_result(count_range(self._engine, self._counting.next_record), self._clock())
        for _ in range(RANGE_READS):
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
    """Check the record numbers in the range that begins at `from_record`.

    If the rows are unreadable, the result contains a fault and ends the pass. Raise `EngineUnavailable` or
    `EngineRefused` if the engine does not respond.
    """
    try:
        return engine.count_rows(from_record)
    except LogDamaged as error:
        return CheckResult([error.detail], 0, is_whole=True)


def read_range(engine: Engine, cluster: bytes | None, from_record: int) -> CheckResult:
    """Verify the CRC of records in a range, beginning with the first record at or after `from_record`.

    A CRC mismatch is reported only after a second read has confirmed it. Raise `EngineUnavailable` or
    `EngineRefused` if the engine does not respond.
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
    """Verify a single record after a read of the range that begins at `record` has failed."""
    _, end = engine.bounds()
    is_whole = record + 1 >= end
    try:
        faults = [find_fault(engine, cluster, one) for one in engine.read(record, 1)[:1]]
    except LogDamaged as error:
        faults = [describe_unreadable(record, error)]
    return CheckResult([one for one in faults if one], 0 if is_whole else record + 1, is_whole)
