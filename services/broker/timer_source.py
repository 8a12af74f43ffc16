"""From timer records in the log to rows for the far partitions: each message ready for its real queue.

A checkpoint moves timers out of memory (`timingwheel.partitions`). What it writes beside a timer's row is the
very record that will be delivered, with its CRC; only its places and its store time are stamped then
(`services.broker.copies`). So delivering reads one file in order and parses nothing.

    row field  here
    queue      number of the (topic, queue id) in `QueueTable`, which the snapshot keeps
    id_hash    hashes of the names that the message is found by (`consumequeue.keyindex`): message id,
    key_hash   first and
    spare      second word of KEYS; `MANY_NAMES` if there are more
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from commitlog import layout, properties, record
from commitlog.disk import Disk
from commitlog.record import Record
from consumequeue.entry import tags_code
from consumequeue.keyindex import hash_of, names_of
from services.broker.timer_records import delivered_record
from timingwheel.partition import ROW, Rows

MANY_NAMES: Final = (1 << 64) - 1
NAME_COLUMNS: Final = ("id_hash", "key_hash", "spare")
_WINDOW_BYTES: Final = 1 << 20
_HEAD: Final = struct.Struct(">I")

Offsets = np.ndarray[Any, np.dtype[np.uint64]]


class QueueTable:
    """Numbers for queues, given in the order of first use."""

    def __init__(self) -> None:
        self.names: list[tuple[str, int]] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def number(self, topic: str, queue_id: int) -> int:
        """The number of a queue."""
        name = (topic, queue_id)
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(name)
        return number

    def freeze(self) -> Any:
        """What a snapshot keeps."""
        return [list(name) for name in self.names]

    def thaw(self, frozen: Any) -> None:
        """Takes a snapshot's part over."""
        for topic, queue_id in frozen:
            self.number(topic, queue_id)


class TimerSource:
    """Reads timer records from the log of a store; used by a checkpoint, in a worker thread."""

    def __init__(self, disk: Disk, segment_bytes: int, queues: QueueTable) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._queues = queues

    def fetch(self, timer_offsets: Offsets) -> tuple[Rows, list[bytes]]:
        """Rows (without due time and place) and records of the timers that can be read; offsets ascend."""
        rows: list[tuple[Any, ...]] = []
        ready_records: list[bytes] = []
        for timer_offset, stored in self._records(timer_offsets.tolist()):
            if record.crc_holds(stored):
                ready = ready_record(record.decode(stored), timer_offset)
                ready_records.append(record.encode(ready))
                rows.append(self._row(ready, len(ready_records[-1])))
        return np.array(rows, ROW), ready_records

    def _records(self, timer_offsets: list[int]) -> Iterator[tuple[int, bytes]]:
        window, window_from = b"", 0
        for timer_offset in timer_offsets:
            at = timer_offset - window_from
            if not 0 <= at <= len(window) - _HEAD.size or at + _length(window, at) > len(window):
                window, window_from, at = self._read(timer_offset), timer_offset, 0
            yield timer_offset, window[at : at + _length(window, at)]

    def _read(self, physical_offset: int) -> bytes:
        position = physical_offset % self._segment_bytes
        path = layout.segment_path(physical_offset - position)
        stored = self._disk.read(path, position, _WINDOW_BYTES)
        if len(stored) >= _HEAD.size and _length(stored, 0) > len(stored):
            stored = self._disk.read(path, position, _length(stored, 0))
        return stored.ljust(_HEAD.size, b"\0")

    def _row(self, ready: Record, record_bytes: int) -> tuple[Any, ...]:
        names = name_hashes(ready)
        queue = self._queues.number(ready.topic, ready.queue_id)
        tag = tags_code(properties.value_of(ready.properties, properties.TAG))
        return 0, ready.physical_offset, 0, record_bytes, queue, tag, *names


def ready_record(timer: Record, timer_offset: int) -> Record:
    """The message of a timer as it will be delivered, with the timer's own place and time."""
    ready = delivered_record(timer, timer_offset)
    ready.physical_offset = timer_offset
    ready.store_ms, ready.store_host = timer.store_ms, timer.store_host
    return ready


def name_hashes(ready: Record) -> tuple[int, int, int]:
    """The hashes for a row; the last is `MANY_NAMES` if they do not fit."""
    topic, names = names_of(ready)
    hashes = [hash_of(topic, name) for name in names]
    if len(hashes) > len(NAME_COLUMNS):
        return hashes[0], hashes[1], MANY_NAMES
    first, second, third = (*hashes, 0, 0, 0)[: len(NAME_COLUMNS)]
    return first, second, third


def _length(stored: bytes, at: int) -> int:
    return int(_HEAD.unpack_from(stored, at)[0])
