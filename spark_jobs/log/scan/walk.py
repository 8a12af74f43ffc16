"""Locates the records and the damaged bytes of a slice.

A walk steps from one record to the next by the record length alone. Up to 16,384 steps yield candidates,
which are then verified together: magic number, log offset, consistent lengths, CRC. The candidates before the
first one that fails are intact records. The bytes at the failed one are damaged, and the walk resumes at the
next magic number that begins an intact record with the expected offset. The same rule finds the first record
of a slice that starts in the middle of a segment, so adjacent slices neither share nor lose a record. A copy
of a record in a message body has the magic number but not the expected offset.

Single steps are slow in Python. Therefore, about 250 walkers step through 16 MiB together, each from a
position that looks like a record (`_walked_abreast`). A wrong start is harmless: a walker that does not end
exactly where the next one started is discarded with all walkers after it. The walk then continues at its
start, with new walkers or with single steps.

Cost: a few NumPy operations for a step of all walkers, and one CRC-32 call per record.

Limitation: a forged body may contain a record with the expected log offset and correct CRCs. It is treated as
a record if the bytes before it are damaged, or if a slice is cut within that body. Where damage is dense,
chunks are short and most steps are single ones.

    check    requirements in addition to the magic number, the log offset, and consistent lengths
    record   the CRC of the record; for an imported or Apache RocketMQ record without one, the body CRC
    body     the body CRC
    none     nothing
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import numpy as np

from commitlog.log.recovery import Damage
from commitlog.records import record
from spark_jobs.log.columns.ragged import Bytes, Flags, Integers
from spark_jobs.log.columns.records import Records
from spark_jobs.log.scan.ahead import ReadAhead
from spark_jobs.log.scan.slices import Slice

RECORDS_PER_CHUNK: Final = 16_384
_RECORDS_AFTER_DAMAGE: Final = 64
"""Maximum number of candidates in the chunk after damage. With dense damage, more steps would be wasted."""

_MAGIC: Final = re.compile(b"\xda\xa3\x20[\xa7\xab]")
_HEAD: Final = struct.Struct(">II20xq")
_BLANK: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")
_OFFSET: Final = struct.Struct(">q")
_NONE: Final = np.zeros(0, np.int64)
_ABREAST_BYTES: Final = 16 * 1024 * 1024
_STRETCH_BYTES: Final = 64 * 1024
_WALKERS_MIN: Final = 8
_STEPS_MAX: Final = 2 * _STRETCH_BYTES // record.RECORD_BYTES_MIN
_STEPS_PER_LOOK: Final = 8


class Check(Enum):
    """Verification of each record. The values are those of the data source's option `verify`."""

    RECORD = "record"
    BODY = "body"
    NONE = "none"


@dataclass(slots=True)
class Chunk:
    """Intact records and damaged ranges of log offsets.

    In a chunk of a walk, the records are contiguous and the damage, if any, follows them.
    """

    records: Records
    damaged: list[Damage] = field(default_factory=list)


def walk(data: Bytes, part: Slice, check: Check) -> Iterator[Chunk]:
    """Return the records of `part` in log order, in chunks of up to `RECORDS_PER_CHUNK` records.

    `data` is the content of its segment.
    """
    return _Walk(data, part, check).chunks()


def sound(records: Records, first_offset: int, end: int, check: Check, may_lack_crc: bool) -> Flags:
    """Return which candidates are intact records of a segment that starts at log offset `first_offset`.

    `end` is the end of the readable bytes. CRCs are verified only before the first candidate that fails the
    other checks. The flags after this candidate do not include the CRC.
    """
    magic = records.heads["magic"]
    flags: Flags = (magic == record.MAGIC_V1) | (magic == record.MAGIC_V2)
    flags &= records.heads["physical_offset"] == records.positions + first_offset
    flags &= records.adds_up & (records.positions + records.lengths <= end)
    if check is Check.RECORD:
        flags &= records.lengths >= record.RECORD_BYTES_MIN + record.CRC_BYTES * (not may_lack_crc)
    count = len(flags) if flags.all() else int(flags.argmin())
    if count and check is not Check.NONE:
        records = records.chosen(slice(count))
        is_record = check is Check.RECORD
        flags[:count] = crcs_hold(records, may_lack_crc) if is_record else records.body_crcs_hold()
    return flags


def crcs_hold(records: Records, may_lack_crc: bool) -> Flags:
    """Return which records match their CRC property.

    If `may_lack_crc` is true, a record without this property must match its body CRC.
    """
    if not may_lack_crc:
        return records.crcs_hold()
    flags = records.has_crc()
    flags[flags] = records.chosen(flags).crcs_hold()
    bare = ~records.has_crc()
    flags[bare] = records.chosen(bare).body_crcs_hold()
    return flags


def likely_record(view: memoryview, first_offset: int, position: int, until: int) -> int:
    """Return the first position from `position` on where a record seems to start, or -1 if there is none.

    The record's magic number must end at or before `until`, and its log offset must match its position in the
    segment that starts at `first_offset`. Nothing else is checked.
    """
    for match in _MAGIC.finditer(view, position + 4, until):
        start = match.start() - 4
        if _OFFSET.unpack_from(view, start + 28)[0] == first_offset + start:
            return start
    return -1


class _Walk:
    def __init__(self, data: Bytes, part: Slice, check: Check) -> None:
        self._data = data
        self._view = data.data
        self._part = part
        self._check = check
        self._first_offset = part.segment.first_offset
        self._until = min(part.until, part.end - record.RECORD_BYTES_MIN + 1)
        self._ahead = _NONE
        self._disk = ReadAhead(data, self._until)

    def chunks(self) -> Iterator[Chunk]:
        # A segment begins with a record. At any other start, the cut may be within a record.
        position = self._part.start and self._next_record(self._part.start)
        count_max = RECORDS_PER_CHUNK
        while 0 <= position < self._part.until:
            self._disk.reached(position)
            chunk, position = self._run(position, count_max)
            is_cut = len(chunk.records) == count_max and position < self._part.until
            if not is_cut and position < self._part.end:
                position = self._step_over(chunk, position)
            count_max = min(RECORDS_PER_CHUNK, _RECORDS_AFTER_DAMAGE if chunk.damaged else 8 * count_max)
            yield chunk

    def _run(self, position: int, count_max: int) -> tuple[Chunk, int]:
        """Return the intact records from `position` on that start in the slice, up to the first damage.

        Also return the position after them.
        """
        positions = self._candidates(position, count_max)
        records = Records.at(self._data, positions)
        flags = self._sound(records)
        if not flags.all():
            count = int(flags.argmin())
            return Chunk(records.chosen(slice(count))), int(positions[count])
        return Chunk(records), int(positions[-1] + records.lengths[-1]) if len(positions) else position

    def _candidates(self, position: int, count_max: int) -> Integers:
        """Return the positions of records from `position` on, provided that all their lengths are correct."""
        if not (len(self._ahead) and self._ahead[0] == position) and count_max == RECORDS_PER_CHUNK:
            self._ahead = self._walked_abreast(position)
        if len(self._ahead) and self._ahead[0] == position:
            found, self._ahead = self._ahead[:count_max], self._ahead[count_max:]
            return found
        return self._walked(position, self._until, count_max)

    def _walked(self, position: int, until: int, count_max: int) -> Integers:
        length_at, view = _LENGTH.unpack_from, self._view
        positions: list[int] = []
        while position < until and len(positions) < count_max:
            (length,) = length_at(view, position)
            if length < record.RECORD_BYTES_MIN:
                break
            positions.append(position)
            position += length
        return np.array(positions, np.int64)

    def _walked_abreast(self, position: int) -> Integers:
        """Return the positions of candidates in the next `_ABREAST_BYTES`, found by many walkers at once.

        Each walker starts at the first likely record of its stretch, and all walkers take each step together.
        If a walker does not end at the start of the next one, or takes a step shorter than a record, its
        positions and all later ones are omitted. With fewer than `_WALKERS_MIN` walkers, the result is empty.
        """
        end = min(position + _ABREAST_BYTES, self._until)
        starts = [position]
        for stretch in range(position + _STRETCH_BYTES, end - _STRETCH_BYTES, _STRETCH_BYTES):
            start = likely_record(self._view, self._first_offset, stretch, stretch + _STRETCH_BYTES)
            if start < 0:
                break
            starts.append(start)
        if len(starts) < _WALKERS_MIN:
            return _NONE
        # The end of the last walker cannot be verified, so it stops after one step, and is not used.
        ends = np.array([*starts[1:], starts[-1] + 1])
        steps = self._steps(np.array(starts), ends)
        is_inside = steps < ends
        is_short = is_inside[:-1] & (np.diff(steps, axis=0) < record.RECORD_BYTES_MIN)
        met = ((steps == ends).any(axis=0) & ~is_short.any(axis=0))[:-1]
        count = len(met) if met.all() else int(met.argmin())
        found: Integers = steps.T[:count][is_inside.T[:count]]
        return found

    def _steps(self, places: Integers, ends: Integers) -> Integers:
        """Return the positions after each step, with shape (steps, walkers), and the starts in the first row.

        A walker that has passed its end stays one byte after it.
        """
        lengths_at: Any = np.ndarray(len(self._data) - 3, ">u4", self._data, 0, (1,))
        # Stopping one byte after the end keeps positions within the file, and distinguishes a walker that has
        # passed its end from one that has met it.
        behind = ends + 1
        steps = [places]
        while len(steps) < _STEPS_MAX and (places < ends).any():
            for _ in range(_STEPS_PER_LOOK):
                places = np.minimum(places + lengths_at[places].astype(np.int64), behind)
                steps.append(places)
        return np.array(steps)

    def _sound(self, records: Records) -> Flags:
        return sound(records, self._first_offset, self._part.end, self._check, self._part.may_lack_crc)

    def _is_record(self, position: int) -> bool:
        if position + record.RECORD_BYTES_MIN > self._part.end:
            return False
        _, magic, offset = _HEAD.unpack_from(self._view, position)
        if magic not in (record.MAGIC_V1, record.MAGIC_V2) or offset != self._first_offset + position:
            return False
        return bool(self._sound(Records.at(self._data, np.array([position], np.int64))).all())

    def _step_over(self, chunk: Chunk, position: int) -> int:
        """Add the damage at `position`, if any, to the chunk. Return where to resume, or -1 at the end.

        Damage directly after the last record of a slice belongs to this slice, because the next slice skips
        it in the search for its first record.
        """
        if self._is_record(position):
            return position
        if self._is_blank(position):
            return -1
        resumed = self._next_record(position + 1)
        if resumed < 0 and self._part.has_tail:
            return -1
        end = resumed if resumed >= 0 else self._part.end
        chunk.damaged.append(Damage(self._first_offset + position, self._first_offset + end))
        return resumed

    def _is_blank(self, position: int) -> bool:
        if position + record.BLANK_BYTES > self._part.end:
            return False
        left_bytes, magic = _BLANK.unpack_from(self._view, position)
        segment = self._part.segment
        # The blank extends to the end of the file or to the start of the next segment, which may differ.
        ends = (segment.segment_bytes, segment.end_offset - self._first_offset)
        return bool(magic == record.MAGIC_BLANK and position + left_bytes in ends)

    def _next_record(self, position: int) -> int:
        for match in _MAGIC.finditer(self._view, position, self._part.end):
            start = match.start() - 4
            if start >= position and self._is_record(start):
                return start
        return -1
