"""From timer records in the log to rows for the far partitions: each message ready for its real queue.

A checkpoint moves timers out of memory (`timingwheel.partitions`). What it writes beside a timer's row is the
very record that will be delivered, with its CRC; only its places and its store time are stamped then
(`services.broker.copies`). So delivering reads one file in order and parses nothing.

    row field  here
    queue      number of the (topic, queue id) in `QueueTable`, which the snapshot keeps
    id_hash    hashes of the names that the message is found by (`consumequeue.keyindex`): message id,
    key_hash   first and
    spare      second word of KEYS; `MANY_NAMES` if there are more

Records as this broker writes them are cut and joined (`_ready_bytes`); others, those between IPv6 hosts among
them, are decoded and encoded, which takes twice as long. The bytes are the same.
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
from services.broker.timer_records import NOT_DELIVERED, TIMER_TOPIC, delivered_record
from timingwheel.partition import ROW, Rows

MANY_NAMES: Final = (1 << 64) - 1
NAME_COLUMNS: Final = ("id_hash", "key_hash", "spare")
_WINDOW_BYTES: Final = 1 << 20
_HEAD: Final = struct.Struct(">I")
_FRONT: Final = struct.Struct(">IIIiiqqi")
_BACK: Final = struct.Struct(">iqi")
_BACK_AT: Final = 72
_BODY_AT: Final = _BACK_AT + _BACK.size
_TOPIC_FIELD: Final = bytes((len(TIMER_TOPIC),)) + TIMER_TOPIC.encode()

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
                row, ready = self._made_ready(stored, timer_offset)
                rows.append(row)
                ready_records.append(ready)
        return np.array(rows, ROW), ready_records

    def _made_ready(self, stored: bytes, timer_offset: int) -> tuple[tuple[Any, ...], bytes]:
        cut = _ready_bytes(stored, timer_offset)
        if cut is None:
            ready = ready_record(record.decode(stored), timer_offset)
            encoded = record.encode(ready)
            return self._row(ready, len(encoded)), encoded
        pairs, encoded = cut
        topic = pairs[properties.REAL_TOPIC]
        queue = self._queues.number(topic, int(pairs[properties.REAL_QUEUE_ID]))
        tag = tags_code(pairs.get(properties.TAG, ""))
        names = dict.fromkeys(pairs.get(properties.KEYS, "").split())
        if message_id := pairs.get(properties.MESSAGE_ID):
            names[message_id] = None
        return (0, timer_offset, 0, len(encoded), queue, tag, *_hashes(topic, names)), encoded

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
    return _hashes(*names_of(ready))


def _hashes(topic: str, names: dict[str, None]) -> tuple[int, int, int]:
    hashes = [hash_of(topic, name) for name in names]
    if len(hashes) > len(NAME_COLUMNS):
        return hashes[0], hashes[1], MANY_NAMES
    first, second, third = (*hashes, 0, 0, 0)[: len(NAME_COLUMNS)]
    return first, second, third


def _ready_bytes(stored: bytes, timer_offset: int) -> tuple[dict[str, str], bytes] | None:
    """The properties of a timer record whose CRC holds, and what `ready_record` makes of it, encoded.

    None if it is not as this broker writes timers between IPv4 hosts: then it is to be decoded.
    """
    _, magic, body_crc, _, flag, _, _, sys_flag = _FRONT.unpack_from(stored)
    (body_bytes,) = _HEAD.unpack_from(stored, _BODY_AT - _HEAD.size)
    topic_at = _BODY_AT + body_bytes
    properties_at = topic_at + len(_TOPIC_FIELD) + 2
    is_plain = magic == record.MAGIC_V1 and flag == 0 and not sys_flag & ~record.COMPRESSION
    if not is_plain or stored[topic_at : properties_at - 2] != _TOPIC_FIELD:
        return None
    pairs = _pairs(stored[properties_at : -record.CRC_BYTES])
    if pairs is None:
        return None
    kept = [f"{name}\x01{value}\x02" for name, value in pairs.items() if name not in NOT_DELIVERED]
    kept.append(f"{properties.TIMER_OFFSET}\x01{timer_offset}\x02")
    encoded, topic = "".join(kept).encode(), _topic_field(pairs[properties.REAL_TOPIC])
    tail_bytes = len(topic) + 2 + len(encoded) + record.CRC_BYTES
    queue_id = int(pairs[properties.REAL_QUEUE_ID])
    front = _FRONT.pack(topic_at + tail_bytes, magic, body_crc, queue_id, 0, 0, timer_offset, sys_flag)
    hosts, body = stored[_FRONT.size : _BACK_AT], stored[_BODY_AT:topic_at]
    length = (len(encoded) + record.CRC_BYTES).to_bytes(2, "big")
    made = b"".join((front, hosts, _BACK.pack(0, 0, body_bytes), body, topic, length, encoded))
    return pairs, made + record.crc_property(made)


def _topic_field(topic: str) -> bytes:
    return bytes((len(topic),)) + topic.encode()


def _pairs(stored: bytes) -> dict[str, str] | None:
    """The properties if each is there once, has a value and is closed, and they are those of a timer."""
    try:
        found = stored[:-1].decode().split("\x02")
        pairs = dict([pair.split("\x01") for pair in found])
    except ValueError:
        return None
    is_whole = len(pairs) == len(found) and stored.endswith(b"\x02") and all(pairs.values())
    topic = pairs.get(properties.REAL_TOPIC, "")
    is_timer = 0 < len(topic) <= record.TOPIC_V1_CHARACTERS_MAX and properties.REAL_QUEUE_ID in pairs
    is_timer = is_timer and topic.isascii()
    return pairs if is_whole and is_timer and properties.TIMER_OFFSET not in pairs else None


def _length(stored: bytes, at: int) -> int:
    return int(_HEAD.unpack_from(stored, at)[0])
