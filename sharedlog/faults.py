"""Finds faulty records in a shared log by reading them again.

    another node cannot read past record N     --> The leader reads record N and the last leader record before
                                                   it (`fault_at`).
    a scrub of the whole log                   --> `find_fault` verifies each record (`sharedlog.scrub`).

    record                                               fault
    a leader record that this node has applied           missing, changed, or stored twice with different
      (`sharedlog.leader_records`)                       bytes
    a BYTES record with corrupt CommitLog records        corrupted in the memory of the leader that sent it
    a record with a CRC mismatch                         changed
    a record that the engine cannot read                 the engine's error
    no record at N, in a dense engine                    missing

Nodes read records in order. If another node stops at record N, the fault is therefore in record N or in the
last leader record before it. If both records match those that the leader has applied, the log is valid up to
record N, and the disk or memory of the other node is faulty.

Cost: a few reads of up to `READ_BYTES`. Limitation: in an engine that is not dense, a lost record is not
detected if it is older than the records in `sharedlog.leader_records`. A node that cannot read past the lost
record can fetch a newer checkpoint from the leader.
"""

from __future__ import annotations

import zlib
from typing import Final

from sharedlog.bodies import verify_records
from sharedlog.engine import Engine, Stored
from sharedlog.errors import LogDamaged
from sharedlog.fold import Fold
from sharedlog.leader_records import LeaderRecord
from sharedlog.record import CorruptRecord, ForeignRecord, Kind, decode

READ_BYTES: Final = 1024 * 1024
"""Maximum size of a read in bytes. The size is limited because an append may have to wait for a read."""


def fault_at(engine: Engine, fold: Fold, record: int) -> str:
    """Return a message about the fault that stops another node at `record`, or "" if no fault is found.

    The records in the log are compared with the records that `fold` has applied. A trimmed record is not a
    fault. Raise `Halted` if the log contains a different history, or `EngineUnavailable` or `EngineRefused`
    if the engine does not respond.
    """
    for led in fold.led.records_up_to(record):
        if fault := _find_leader_fault(engine, fold, led):
            return fault
    try:
        rows = _read_rows(engine, record)
    except LogDamaged as error:
        return describe_unreadable(record, error)
    first, end = engine.bounds()
    if not first <= record < end:
        return ""
    if not rows:
        return f"Record {record} is missing: the log has records {first} to {end - 1}." * engine.is_dense
    return next(
        (fault for one in rows if (fault := find_fault(engine, fold.cluster, one))), _find_duplicate(rows)
    )


def _find_duplicate(rows: list[Stored]) -> str:
    """Return a message if rows with the same record number contain different bytes, or "" otherwise."""
    is_other = any(one.stored != rows[0].stored for one in rows)
    return f"Record {rows[0].offset} is there more than once, with other bytes." * is_other


def _find_leader_fault(engine: Engine, fold: Fold, led: LeaderRecord) -> str:
    """Return a message about the fault in a leader record that `fold` has applied, or "" if there is none.

    A trimmed record is not a fault.
    """
    try:
        rows = _read_rows(engine, led.offset)
    except LogDamaged as error:
        return describe_unreadable(led.offset, error)
    first, end = engine.bounds()
    if led.offset < first:
        return ""
    if not rows:
        return f"Record {led.offset} is missing, which a leader wrote: the log ends at record {end - 1}."
    if fault := find_fault(engine, fold.cluster, rows[0]):
        return fault
    if twice := _find_duplicate(rows):
        return twice
    if zlib.crc32(rows[0].stored) != led.crc:
        return f"Record {led.offset} holds other bytes than the leader has."
    found = decode(rows[0].stored, fold.cluster)
    try:
        if found.kind == Kind.BYTES:
            verify_records(found, led.offset)
    except LogDamaged as error:
        return error.detail
    return ""


def _read_rows(engine: Engine, record: int) -> list[Stored]:
    return [one for one in engine.read(record, READ_BYTES) if one.offset == record]


def describe_unreadable(record: int, error: LogDamaged) -> str:
    """Return a message about a record that the engine cannot read."""
    return error.detail if error.record == record else f"Record {record} or one behind it: {error.detail}"


def find_fault(engine: Engine, cluster: bytes | None, one: Stored) -> str:
    """Return a message if a record of the cluster does not match its CRC, or "" otherwise.

    A CRC mismatch is reported only after a second read has confirmed it.
    """
    if not _is_corrupt(one, cluster):
        return ""
    again = engine.read(one.offset, 1)
    if any(each.offset == one.offset and not _is_corrupt(each, cluster) for each in again):
        return ""
    return f"Record {one.offset} does not match its CRC: {len(one.stored)} bytes are not what was written."


def _is_corrupt(one: Stored, cluster: bytes | None) -> bool:
    try:
        decode(one.stored, cluster)
    except CorruptRecord:
        return True
    except ForeignRecord:
        return False
    return False
