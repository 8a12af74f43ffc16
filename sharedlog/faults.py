"""What is wrong with a record of the shared log, found by reading it again.

    another node cannot read on at record N    --> the leader reads N, and its own before (`fault_at`)
    a pass through the log                     --> `fault_of` each record (`sharedlog.scrub`)

    found                                                fault
    a record of a leader's that this node has taken      missing, or other bytes, or twice with other bytes
      (`sharedlog.led`), at N or next before it
    BYTES whose CommitLog records are not sound          spoiled in the memory of the leader that sent them
    any record that does not match its CRC               changed
    a row that the engine cannot read                    what the engine says
    no record at N, of an engine that leaves no gap      missing

A node reads in order, so what makes it stop lies at N, or is the leader's record that belongs before N. Where
both are what this node has taken, the log is sound there, and the disk or the memory of the other is not.

Cost: some reads of READ_BYTES. Weak spot: without density nothing tells of a record that is older than what
`sharedlog.led` remembers; this node has a checkpoint behind it then, which the other gets.
"""

from __future__ import annotations

import zlib
from typing import Final

from sharedlog.bodies import sound_records
from sharedlog.engine import Engine, Stored
from sharedlog.errors import LogDamaged
from sharedlog.fold import Fold
from sharedlog.led import Led
from sharedlog.record import Foreign, Garbled, Kind, decode

READ_BYTES: Final = 1024 * 1024
"""What one read returns: an append may wait for it."""


def fault_at(engine: Engine, fold: Fold, record: int) -> str:
    """Return what is wrong where another node cannot read on; "" if the log is what `fold` has.

    Raise `Unknown`, `Refused`, or `Halted` where the log is another one. What was trimmed is no fault.
    """
    for led in fold.led.up_to(record):
        if fault := _fault_of_led(engine, fold, led):
            return fault
    try:
        rows = _rows(engine, record)
    except LogDamaged as error:
        return unread(record, error)
    first, end = engine.bounds()
    if not first <= record < end:
        return ""
    if not rows:
        return f"Record {record} is missing: the log has records {first} to {end - 1}." * engine.is_dense
    return next((fault for one in rows if (fault := fault_of(engine, fold.cluster, one))), _twice(rows))


def _twice(rows: list[Stored]) -> str:
    """Return the fault of rows of one record that are not equal; "" of others."""
    is_other = any(one.stored != rows[0].stored for one in rows)
    return f"Record {rows[0].offset} is there more than once, with other bytes." * is_other


def _fault_of_led(engine: Engine, fold: Fold, led: Led) -> str:
    """Return what is wrong with a leader's record that this node has taken; "" too if it was trimmed."""
    try:
        rows = _rows(engine, led.offset)
    except LogDamaged as error:
        return unread(led.offset, error)
    first, end = engine.bounds()
    if led.offset < first:
        return ""
    if not rows:
        return f"Record {led.offset} is missing, which a leader wrote: the log ends at record {end - 1}."
    if fault := fault_of(engine, fold.cluster, rows[0]):
        return fault
    if twice := _twice(rows):
        return twice
    if zlib.crc32(rows[0].stored) != led.crc:
        return f"Record {led.offset} holds other bytes than the leader has."
    found = decode(rows[0].stored, fold.cluster)
    try:
        if found.kind == Kind.BYTES:
            sound_records(found, led.offset)
    except LogDamaged as error:
        return error.detail
    return ""


def _rows(engine: Engine, record: int) -> list[Stored]:
    return [one for one in engine.read(record, READ_BYTES) if one.offset == record]


def unread(record: int, error: LogDamaged) -> str:
    """Return the fault of a record that the engine cannot read."""
    return error.detail if error.record == record else f"Record {record} or one behind it: {error.detail}"


def fault_of(engine: Engine, cluster: bytes | None, one: Stored) -> str:
    """Return what is wrong with a record; "" if it matches its CRC, or is no record of the cluster's.

    It is read once more before that is believed.
    """
    if not _is_garbled(one, cluster):
        return ""
    again = engine.read(one.offset, 1)
    if any(each.offset == one.offset and not _is_garbled(each, cluster) for each in again):
        return ""
    return f"Record {one.offset} does not match its CRC: {len(one.stored)} bytes are not what was written."


def _is_garbled(one: Stored, cluster: bytes | None) -> bool:
    try:
        decode(one.stored, cluster)
    except Garbled:
        return True
    except Foreign:
        return False
    return False
