"""Format of a timer file, `timers/<level>-<20 digits start_ms>`.

A timer file is an append-only sequence of batches.

A batch consists of a header, rows, and, for kind 1, the contiguous records. Integers are little-endian.

    head   width  field                                   kind  rows
    0      8      "TWTIMER1"                              1     `ROW`, 64 bytes: a timer and its record
    8      8      the batch's own position in the file    2     `PAIR`, 16 bytes: a timer without a record
    16     4      batch_bytes, with the head              3     `PAIR`, 16 bytes: a deleted timer (tombstone)
    20     4      count of rows
    24     4      kind
    28     4      CRC-32 of bytes 0 to 27 and of the rows

    ROW    width  field
    0      8      due_ms
    8      8      timer_offset      log offset of the timer's record, which identifies the timer
    16     8      record_at         position of the record in the file
    24     4      record_bytes
    28     4      queue             index in the caller's table of queues
    32     8      tags_code
    40     8      id_hash
    48     8      key_hash
    56     8      spare

The rows of a batch are sorted by timer_offset. The records are stored in due order, so that those due at the
same time are adjacent. Each record has its own CRC, which every reader must verify. A snapshot contains the
name and length of each file. Bytes beyond this length are ignored. A batch that does not match its CRC is a
`Gap`. Reading continues at the next intact batch, found through batch_bytes or, if that is damaged too,
through the magic number. A missing or truncated file has a gap up to the length recorded in the snapshot. An
unreadable sector reads as zeros (`timingwheel.sectors`) and thus also produces a gap.
`services.broker.timers.timer_repair` determines which timers were in a gap.

Cost: a file is read through a window, so memory usage is bounded for files of any length. Limitation: all
rows of a batch share one CRC. A damaged byte in the rows turns the whole batch of up to 65,536 timers into a
gap.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.limits import TIMER_BATCH_BYTES_MAX, TIMER_ROWS_PER_BATCH_MAX
from timingwheel import sectors
from timingwheel.boundaries import Numbers

ROW: Final = np.dtype(
    [
        ("due_ms", "<u8"),
        ("timer_offset", "<u8"),
        ("record_at", "<u8"),
        ("record_bytes", "<u4"),
        ("queue", "<u4"),
        ("tags_code", "<i8"),
        ("id_hash", "<u8"),
        ("key_hash", "<u8"),
        ("spare", "<u8"),
    ]
)
"""Timer with the position of its record."""

PAIR: Final = np.dtype([("due_ms", "<u8"), ("timer_offset", "<u8")])
"""Timer without a record, or tombstone of a deleted timer."""

Rows = np.ndarray[Any, np.dtype[np.void]]
"""Array with the dtype `ROW` or `PAIR`."""

IN_LOG: Final = (1 << 64) - 2
"""`record_at` of a timer whose record is only in the log, at `timer_offset`."""

WITH_RECORDS: Final = 1
WITHOUT_RECORDS: Final = 2
TOMBSTONE: Final = 3

MAGIC: Final = b"TWTIMER1"
HEAD: Final = struct.Struct("<8sQIIII")
_COVERED: Final = struct.Struct("<8sQIII")
_WINDOW_BYTES: Final = 256 * 1024
_COALESCED_ROWS: Final = 16_384


class Batch(NamedTuple):
    """An intact batch: its kind and rows, and its start and end in the file.

    The kind determines whether the rows are `ROW` or `PAIR`.
    """

    kind: int
    rows: Rows
    position: int
    end: int


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """A damaged byte range in a file, from `position` to `end` (exclusive)."""

    path: str
    position: int
    end: int
    is_unread: bool = field(default=False, compare=False)
    """Whether the disk could not read some bytes of the gap."""

    def freeze(self) -> Any:
        """Return the gap as [path, start, end] for a snapshot."""
        return [self.path, self.position, self.end]

    def __str__(self) -> str:
        if self.is_unread:
            return sectors.sentence(self.path, self.position, self.end)
        return f"{self.path} does not match its CRC from byte {self.position} to {self.end}."


class Window:
    """The first `length` bytes of a file, only one window of which is in memory at a time."""

    def __init__(self, disk: Disk, path: str, length: int, window_bytes: int = _WINDOW_BYTES) -> None:
        self._disk, self.path, self.length, self._window_bytes = disk, path, length, window_bytes
        self._there_bytes = min(length, disk.size(path))
        self._position, self._held = 0, b""
        self._unread: list[sectors.Extent] = []

    def bytes_at(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes starting at `position`, or fewer at the end of the file.

        Unreadable bytes are zeros. Raise OSError for any error other than EIO.
        """
        length = max(0, min(length, self._there_bytes - position))
        if length == 0:
            return b""
        first = position - self._position
        if first < 0 or first + length > len(self._held):
            wanted = min(max(length, self._window_bytes), self._there_bytes - position)
            # The old window is released first, so that memory never contains two windows.
            self._held = b""
            self._held = sectors.read(self._disk, self.path, position, wanted, self._unread)
            self._position, first = position, 0
        return self._held[first : first + length]

    def is_unread(self, first: int, end: int) -> bool:
        """Return whether any bytes from `first` to `end` were unreadable."""
        return any(one_first < end and first < one_end for one_first, one_end in self._unread)


def batches(
    window: Window, damage: list[Gap], position: int = 0, without: Collection[Gap] = ()
) -> Iterator[Batch]:
    """Yield the intact batches in file order, starting at `position`. Add damaged ranges to `damage`.

    Batches that overlap a gap in `without` are treated as damaged, even if they are readable now.
    """
    while position < window.length:
        batch = _batch_at(window, position)
        if batch is not None and (known := _around(batch, window.path, without)) is not None:
            damage.append(known)
            position = batch.end
        elif batch is None:
            found = _next_sound(window, position)
            assert found > position, "a gap has no end"
            damage.append(Gap(window.path, position, found, window.is_unread(position, found)))
            position = found
        else:
            yield batch
            position = batch.end


def parts(
    disk: Disk, path: str, length: int, damage: list[Gap], without: Collection[Gap] = ()
) -> Iterator[Rows]:
    """Yield all timers of a file, including deleted ones, in arrays of `ROW` or `PAIR`.

    Small batches are joined. For `damage` and `without`, see `batches`.
    """
    held: list[Rows] = []
    for batch in batches(Window(disk, path, length), damage, 0, without):
        if batch.kind == TOMBSTONE:
            continue
        if held and (held[0].dtype != batch.rows.dtype or sum(map(len, held)) >= _COALESCED_ROWS):
            yield np.concatenate(held)
            held = []
        held.append(batch.rows)
    if held:
        yield np.concatenate(held)


def _around(batch: Batch, path: str, gaps: Collection[Gap]) -> Gap | None:
    """Return a gap that overlaps a batch, or None."""
    touching = (
        one for one in gaps if one.path == path and one.position < batch.end and batch.position < one.end
    )
    return next(touching, None)


def tombstone_offsets(
    disk: Disk, path: str, length: int, damage: list[Gap] | None = None, without: Collection[Gap] = ()
) -> Numbers:
    """Return the sorted offsets of the timers with tombstones in a file. Raise OSError on failure.

    For `damage` and `without`, see `batches`. Do not treat timers in a gap added to `damage` as pending, even
    if a later read of the gap succeeds.
    """
    damage = [] if damage is None else damage
    found = [
        batch.rows["timer_offset"].copy()
        for batch in batches(Window(disk, path, length), damage, 0, without)
        if batch.kind == TOMBSTONE
    ]
    return np.sort(np.concatenate([np.empty(0, np.uint64), *found]))


def alive(rows: Rows, tombstones: Numbers) -> Rows:
    """Return the rows whose offsets are not in the sorted array `tombstones`."""
    if not len(tombstones):
        return rows
    offsets = rows["timer_offset"]
    places = np.minimum(np.searchsorted(tombstones, offsets), len(tombstones) - 1)
    kept: Rows = rows[tombstones[places] != offsets]
    return kept


def as_rows(rows: Rows) -> Rows:
    """Convert rows to `ROW`. A pair becomes a row whose record is only in the log."""
    if rows.dtype == ROW:
        return rows
    made = np.zeros(len(rows), ROW)
    made["due_ms"], made["timer_offset"], made["record_at"] = rows["due_ms"], rows["timer_offset"], IN_LOG
    return made


def encode_pairs(position: int, kind: int, pairs: Rows) -> Iterator[bytes]:
    """Yield contiguous batches of timers without records, or of tombstones (`PAIR`).

    The first batch must be written at `position`.
    """
    for first in range(0, len(pairs), TIMER_ROWS_PER_BATCH_MAX):
        stored = pairs[first : first + TIMER_ROWS_PER_BATCH_MAX].tobytes()
        batch = _sealed(position, kind, stored, len(stored) // PAIR.itemsize, 0) + stored
        position += len(batch)
        yield batch


def encode_rows(position: int, rows: Rows, records: list[bytes]) -> Iterator[bytes]:
    """Yield contiguous batches of timers (`ROW`) with their records.

    The first batch must be written at `position`.
    """
    assert len(rows) == len(records), "a row without its record, or a record without its row"
    for first, end in _cuts(list(map(len, records))):
        batch = _encode(position, rows[first:end].copy(), records[first:end])
        position += len(batch)
        yield batch


def _encode(position: int, rows: Rows, records: list[bytes]) -> bytes:
    lengths = np.fromiter(map(len, records), np.uint64, len(records))
    rows["record_bytes"] = lengths
    first = np.uint64(position + HEAD.size + rows.nbytes)
    order = np.argsort(rows["due_ms"], kind="stable")
    # The records of a batch are in due order, whereas the rows are sorted by offset.
    rows["record_at"][order] = first + np.cumsum(lengths[order], dtype=np.uint64) - lengths[order]
    rows["record_at"][lengths == 0] = IN_LOG
    stored = rows.tobytes()
    head = _sealed(position, WITH_RECORDS, stored, len(rows), int(lengths.sum()))
    return b"".join((head, stored, *[records[place] for place in order.tolist()]))


def _cuts(lengths: list[int]) -> list[tuple[int, int]]:
    """Split the records into ranges that each fit in a batch.

    A record larger than the batch size is placed in its own batch.
    """
    cuts, first, batch_bytes = [], 0, 0
    for number, length in enumerate(lengths):
        batch_bytes += length + ROW.itemsize
        is_full = batch_bytes > TIMER_BATCH_BYTES_MAX - HEAD.size
        if number > first and (is_full or number - first == TIMER_ROWS_PER_BATCH_MAX):
            cuts.append((first, number))
            first, batch_bytes = number, length + ROW.itemsize
    return [*cuts, (first, len(lengths))] if lengths else []


def _sealed(position: int, kind: int, stored: bytes, count: int, records_bytes: int) -> bytes:
    covered = _COVERED.pack(MAGIC, position, HEAD.size + len(stored) + records_bytes, count, kind)
    return covered + struct.pack("<I", zlib.crc32(stored, zlib.crc32(covered)))


def _batch_at(window: Window, position: int) -> Batch | None:
    """Return the intact batch at a position, or None."""
    head = window.bytes_at(position, HEAD.size)
    if len(head) < HEAD.size:
        return None
    magic, own_position, batch_bytes, count, kind, crc = HEAD.unpack(head)
    row_bytes = ROW.itemsize if kind == WITH_RECORDS else PAIR.itemsize
    is_possible = HEAD.size + count * row_bytes <= batch_bytes <= window.length - position
    if magic != MAGIC or own_position != position or not is_possible or kind not in (1, 2, 3):
        return None
    stored = window.bytes_at(position + HEAD.size, count * row_bytes)
    if zlib.crc32(stored, zlib.crc32(head[: _COVERED.size])) != crc:
        return None
    rows = np.frombuffer(stored, ROW if kind == WITH_RECORDS else PAIR)
    return Batch(kind, rows, position, position + batch_bytes)


def _next_sound(window: Window, position: int) -> int:
    """Return the start of the next intact batch after a damaged one, or the file length."""
    head = window.bytes_at(position, HEAD.size)
    if len(head) == HEAD.size and head[:8] == MAGIC:
        end = position + int(HEAD.unpack(head)[2])
        # The header may be damaged, so its length field is used only if an intact batch begins at the
        # resulting position.
        if position < end < window.length and _batch_at(window, end) is not None:
            return end
    return next(_sound_after(window, position + 1), window.length)


def _sound_after(window: Window, position: int) -> Iterator[int]:
    """Yield the start of each intact batch at or after a position, located by its magic number."""
    while position < window.length:
        held = window.bytes_at(position, _WINDOW_BYTES)
        if len(held) < HEAD.size:
            return
        at = held.find(MAGIC)
        while at >= 0:
            if _batch_at(window, position + at) is not None:
                yield position + at
            at = held.find(MAGIC, at + 1)
        position += max(1, len(held) - len(MAGIC) + 1)  # A magic number may cross the end of a window.
