"""Create partition rows and ready records from timer records in the log.

A checkpoint moves timers from memory to files (`timingwheel.partitions`). For each timer, it writes a row and
a ready record, which is the encoded record to deliver, with its CRC. Delivery sets only the offsets and the
store time (`commitlog.records.bulk.stamp`), and can therefore read one file sequentially without parsing
records.

    row field  contents
    queue      number of the (topic, queue id) in `QueueTable`, which is part of the snapshot
    id_hash    hash of the message id (`consumequeue.indexes.keyindex`)
    key_hash   hash of the first message key
    spare      hash of the second message key, or `MANY_NAMES` if there are more keys

Records of the most common form are converted by copying byte ranges (`services.broker.timers.cutting`). All
other records, such as those with IPv6 hosts, are decoded and encoded again, which takes three times as long.
Both methods produce identical bytes.

Limitation: only a test (`test_timer_source.py`) verifies that the two methods produce identical bytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.log import imported
from commitlog.log.segments import Segments
from commitlog.records import bulk, properties, record
from commitlog.records.record import Record
from consumequeue.entry import tags_code
from consumequeue.indexes.keyindex import hash_of, keys_of, names_of
from services.broker.timers.cutting import CutRecords
from services.broker.timers.timer_records import delivered_record
from tidewheel import property_names
from timingwheel import sectors
from timingwheel.partition import ROW, Rows

MANY_NAMES: Final = (1 << 64) - 1
NAME_COLUMNS: Final = ("id_hash", "key_hash", "spare")
_WINDOW_BYTES: Final = 1 << 17
"""The read size in bytes if the next timer record is near."""
_ALONE_BYTES: Final = 1 << 12
_ALONE_GAP_BYTES: Final = 1 << 14
"""If the next timer record is farther away than this (in bytes), only `_ALONE_BYTES` bytes are read."""
_HEAD: Final = struct.Struct(">I")

Offsets = np.ndarray[Any, np.dtype[np.uint64]]


class QueueTable:
    """A table of queues, numbered in the order of first use."""

    def __init__(self) -> None:
        self.names: list[tuple[str, int]] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def number_of(self, topic: str, queue_id: int) -> int:
        """Return the number of a queue. Assign a number on first use."""
        name = (topic, queue_id)
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
            assert len(self.names) == len(self._numbers), "a queue without a number, or with two"
        return number

    def freeze(self) -> Any:
        """Return [topic, queue id] pairs in the order of queue numbers for a snapshot."""
        return [list(name) for name in self.names]

    def thaw(self, frozen: Any) -> None:
        """Restore the state from a snapshot."""
        for topic, queue_id in frozen:
            self.number_of(topic, queue_id)


class TimerSource:
    """Read timer records from the log, for delivery and for checkpoints."""

    def __init__(self, disk: Disk, segments: Segments, queues: QueueTable) -> None:
        self._disk = disk
        self._segments = segments
        self._queues = queues
        self._imported_until = imported.read(disk)

    def fetch(self, timer_offsets: Offsets) -> tuple[Rows, list[bytes]]:
        """Return the rows and the ready records of the timers with readable records, sorted by offset.

        `timer_offsets` (u64) must be sorted. The due times and the record positions in the rows are not set.
        """
        assert (timer_offsets[1:] >= timer_offsets[:-1]).all(), "the log is read forwards, a window at a time"
        offsets, stored = self._read_valid_records(timer_offsets.tolist())
        rows, ready = np.zeros(len(offsets), ROW), [b""] * len(offsets)
        rows["timer_offset"] = offsets
        # Imported records are decoded, because they may lack the CRC that `CutRecords` requires.
        first_own = bisect_left(offsets, self._imported_until)
        cut = CutRecords(stored[first_own:], offsets[first_own:])
        places = [first_own + place for place in cut.places]
        for place, encoded in zip(places, cut.records(), strict=True):
            ready[place] = encoded
        rows["queue"][places] = [self._queues.number_of(*name) for name in cut.queues]
        rows["id_hash"][places] = cut.id_hashes()
        for place, kept in cut.named:
            self._set_hashes(rows[first_own + place], kept)
        for place in set(range(len(offsets))).difference(places):
            ready[place] = self._decode(rows[place], stored[place], offsets[place])
        assert all(ready), "a timer was neither cut nor decoded"
        rows["record_bytes"] = list(map(len, ready))
        return rows, ready

    def contain(self, timer_offsets: Offsets, texts: Sequence[bytes]) -> Any:
        """Return a Boolean array that is true for records that contain all `texts` or are unreadable.

        `timer_offsets` (u64) must be sorted. Raise OSError if a read fails.
        """
        stored = self._read_records(timer_offsets.tolist())
        found = (len(one) <= _HEAD.size or all(text in one for text in texts) for one in stored)
        return np.fromiter(found, np.bool_, len(timer_offsets))

    def _decode(self, row: Any, stored: bytes, timer_offset: int) -> bytes:
        """Return the ready record for a timer record of any format, and set the columns of the row."""
        ready = ready_record(record.decode(stored), timer_offset)
        row["queue"] = self._queues.number_of(ready.topic, ready.queue_id)
        self._set_hashes(row, ready.properties)
        return record.encode(ready)

    def _set_hashes(self, row: Any, kept: bytes) -> None:
        """Set the tag hash and the name hashes in the row of a message.

        `kept` contains the encoded properties of the message. The queue number in the row must be set.
        """
        topic, _ = self._queues.names[int(row["queue"])]
        row["tags_code"] = tags_code(properties.value_of(kept, property_names.TAG))
        for name, hashed in zip(NAME_COLUMNS, _hashes(topic, keys_of(kept)), strict=True):
            row[name] = hashed

    def _read_valid_records(self, timer_offsets: list[int]) -> tuple[list[int], list[bytes]]:
        """Return the offsets and the bytes of the records whose CRC is correct."""
        stored = list(self._read_records(timer_offsets))
        content = bytearray(b"".join(stored))
        lengths = np.array(list(map(len, stored)), np.int64)
        ends = np.cumsum(lengths)
        is_long = lengths >= record.RECORD_BYTES_MIN + record.CRC_BYTES
        sound = np.flatnonzero(is_long)
        sound = sound[bulk.are_sound(content, (ends - lengths)[sound], ends[sound])].tolist()
        return [timer_offsets[place] for place in sound], [stored[place] for place in sound]

    def _read_records(self, timer_offsets: list[int]) -> Iterator[bytes]:
        window, window_from = b"", 0
        for timer_offset, following in pairwise([*timer_offsets, 1 << 63]):
            at = timer_offset - window_from
            # A new window is read unless the current window contains the entire record. If the next timer
            # record is far away, only a small window is read, because a large window would mostly contain
            # unrelated records.
            if not 0 <= at <= len(window) - _HEAD.size or at + _length(window, at) > len(window):
                is_alone = following - timer_offset > _ALONE_GAP_BYTES
                window = self._read(timer_offset, _ALONE_BYTES if is_alone else _WINDOW_BYTES)
                window_from, at = timer_offset, 0
            yield window[at : at + _length(window, at)]

    def _read(self, physical_offset: int, window_bytes: int) -> bytes:
        try:
            path, position = self._segments.place(physical_offset)
        except StoreDamaged:  # A missing record is skipped, as is a record with a wrong CRC.
            return bytes(_HEAD.size)
        unread: list[sectors.Extent] = []  # Unreadable bytes are read as zeros, which do not match the CRC.
        stored = sectors.read(self._disk, path, position, window_bytes, unread)
        if len(stored) >= _HEAD.size and _length(stored, 0) > len(stored):
            stored = sectors.read(self._disk, path, position, _length(stored, 0), unread)
        return stored.ljust(_HEAD.size, b"\0")


def ready_record(timer: Record, timer_offset: int) -> Record:
    """Return the record that delivers the message of a timer.

    The returned record has the offset and the store time of the timer record.
    """
    ready = delivered_record(timer, timer_offset)
    ready.physical_offset = timer_offset
    ready.store_ms, ready.store_host = timer.store_ms, timer.store_host
    return ready


def name_hashes(ready: Record) -> tuple[int, int, int]:
    """Return the name hashes for the row of a ready record.

    If the record has more names than the row has columns, the last hash is `MANY_NAMES`.
    """
    return _hashes(*names_of(ready))


def _hashes(topic: str, names: dict[str, None]) -> tuple[int, int, int]:
    hashes = [hash_of(topic, name) for name in names]
    if len(hashes) > len(NAME_COLUMNS):
        return hashes[0], hashes[1], MANY_NAMES
    first, second, third = (*hashes, 0, 0, 0)[: len(NAME_COLUMNS)]
    return first, second, third


def _length(stored: bytes, at: int) -> int:
    return int(_HEAD.unpack_from(stored, at)[0])
