"""Reads a shared log in offset order, and applies the records to the state of a reader (`sharedlog.fold`).

A record that does not match its CRC is read up to `fold.READS_MAX` times. `LogTrimmed` is raised if the next
record was trimmed. The node then needs a checkpoint from another node. In a dense engine, a gap raises
`LogDamaged`. In other engines, the history chain reveals missing bytes. `records` reads the log without
applying its records.

Limitation: if the first record is missing, a reader cannot determine whether the record was lost or trimmed.
The scrub detects lost records (`sharedlog.scrub`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from sharedlog.engine import Engine, Stored
from sharedlog.errors import Halted, LogDamaged, LogTrimmed
from sharedlog.fold import Fold, Outcome, Step
from sharedlog.record import CorruptRecord, ForeignRecord, SharedRecord, decode

READ_BYTES: Final = 4 * 1024 * 1024


def read_steps(engine: Engine, fold: Fold) -> Iterator[tuple[Stored, Step]]:
    """Read and apply all records from `fold.next_offset` to the end of the log.

    Yield each record with the result of applying it. Raise `LogTrimmed` if the next record was trimmed,
    `Halted` if the reader halts at a record, or `EngineUnavailable` if the engine does not respond.
    """
    while found := engine.read(fold.next_offset, READ_BYTES):
        for one in records_before_gap(engine, fold, found):
            step = fold.apply_record(one.offset, one.stored)
            if step.outcome is Outcome.READ_AGAIN:
                break
            yield one, step


def read_until(engine: Engine, fold: Fold, until: int) -> None:
    """Read and apply records until `fold.next_offset` is at least `until`.

    Raise the same exceptions as `read_steps`, and also `Halted` if the log ends before `until`.
    """
    if fold.next_offset >= until:
        return
    for _ in read_steps(engine, fold):
        if fold.next_offset >= until:
            return
    raise Halted(
        f"Record {until - 1} of the shared log was accepted and is gone: the engine has lost its end."
    )


def records(engine: Engine, cluster: bytes | None = None) -> Iterator[SharedRecord]:
    """Yield all records of a shared log in offset order, without applying them.

    Skip records that are unreadable, do not match their CRC, or belong to another cluster. If `cluster` is
    None, yield the records of all clusters. Raise `EngineUnavailable` if the engine does not respond, or
    `LogDamaged` if the engine reports an unreadable record without a record number.
    """
    next_offset, _ = engine.bounds()
    while True:
        try:
            found = engine.read(next_offset, READ_BYTES)
        except LogDamaged as error:
            if error.record is None:
                raise
            next_offset = max(next_offset, error.record) + 1
            continue
        if not found:
            return
        for one in found:
            with suppress(ForeignRecord, CorruptRecord):
                yield decode(one.stored, cluster)
        next_offset = found[-1].offset + 1


def records_before_gap(engine: Engine, fold: Fold, found: Sequence[Stored]) -> Sequence[Stored]:
    """Return the records in `found` that precede the first gap, or all records if the engine is not dense.

    Raise `LogTrimmed` if the next record to apply was trimmed, or `LogDamaged` if the next record is missing
    from a dense engine.
    """
    expected = fold.next_offset
    for number, one in enumerate(found):
        if one.offset > expected:
            if number and engine.is_dense:
                return found[:number]
            _explain_gap(engine, expected, one.offset, found)
        expected = one.offset + 1
    return found


def _explain_gap(engine: Engine, expected: int, offset: int, found: Sequence[Stored]) -> None:
    """Raise the exception for a gap between the offset `expected` and the record at `offset`.

    Raise `LogTrimmed` if the record at `expected` was trimmed, or `LogDamaged` if the engine is dense and a
    record was lost or returned out of order. Otherwise, return normally.
    """
    first, end = engine.bounds()
    if first > expected:
        raise LogTrimmed(
            f"The shared log begins at record {first}, and this node has read up to {expected}: it "
            "needs the checkpoint of another node."
        )
    if not engine.is_dense:
        return
    if any(expected <= one.offset < offset for one in found):
        why = f"Record {expected} came after record {offset}: the answer is out of order."
        raise LogDamaged(why, expected)
    gone = f"Record {expected} is" if offset == expected + 1 else f"Records {expected} to {offset - 1} are"
    has = f"the log has records {first} to {end - 1}, and a gap before {offset}"
    raise LogDamaged(f"{gone} missing: {has}.", expected)
