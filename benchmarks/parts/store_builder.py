"""A large store written in bulk, equal to the store of a broker that took every message.

    build(folder, count, body_bytes) -> bytes of log

A real broker creates the store and its topic. Then come records patched from one encoded by
`commitlog.records.record` (offsets, id and key differ, each has its own CRC), in segments, and their derived
files: queue files, the key index with a checkpoint every 64 MiB of log, and the broker's snapshot with their
ends.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from commitlog import layout, limits
from commitlog.disk.real_disk import RealDisk
from commitlog.records import properties, record
from commitlog.records.message import Message, MessageType
from commitlog.records.record import Record
from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Snapshot
from consumequeue.dispatch import Dispatch
from consumequeue.entry import Entry
from consumequeue.indexes.keyindex import KeyIndex, hash_of
from services.broker import derived
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings

TOPIC = "orders"
QUEUE_COUNT = 4
NOW_MS = 1_763_700_000_000
DIGITS = 20
BATCH_COUNT = 20_000

Offsets = np.ndarray[Any, np.dtype[np.int64]]


def build(folder: Path, count: int, body_bytes: int = 256) -> int:
    """Build a store of `count` messages; return the bytes of its log."""
    folder.mkdir(parents=True)
    disk = RealDisk(folder)
    first_offset = make_empty(disk)
    template = Template(body_bytes)
    offsets = places(first_offset, count, template.record_bytes)
    end_offset = int(offsets[-1]) + template.record_bytes
    write_log(disk, template, offsets)
    layout.reset_durable(disk, end_offset)
    derived_parts = {
        derived.QUEUES: write_queues(disk, offsets, template.record_bytes),
        derived.KEYS: write_keys(disk, offsets),
    }
    write_snapshot(disk, end_offset, count, derived_parts)
    disk.close()
    return end_offset


def id_of(number: int) -> str:
    """Return the id of a message, of the length of a client's."""
    return f"01A2B3C4D5E6{number:0{DIGITS}d}"


def key_of(number: int) -> str:
    """Return the key of a message."""
    return f"order-{number:0{DIGITS}d}"


def place_of(number: int) -> tuple[int, int]:
    """Return the (queue id, queue offset) of a message."""
    return number % QUEUE_COUNT, number // QUEUE_COUNT


def make_empty(disk: RealDisk) -> int:
    """Let a broker create the store and the topic; return the end offset of its log."""
    broker = Broker.open(disk, BrokerSettings(), NOW_MS)
    broker.topics.create(TOPIC, MessageType.MIXED, QUEUE_COUNT, NOW_MS)
    flush = broker.take_flush()
    assert flush is not None
    flush.write()
    broker.complete_flush(flush, NOW_MS)
    broker.checkpoint(NOW_MS).write(disk)
    return broker.durable_offset


class Template:
    """An encoded record to be patched."""

    def __init__(self, body_bytes: int) -> None:
        message = Message(topic=TOPIC, body=bytes(body_bytes), message_id=id_of(0), keys=(key_of(0),))
        stored = properties.encode_message(message)
        whole = record.encode(
            Record(topic=TOPIC, body=message.body, properties=stored, born_ms=NOW_MS, store_ms=NOW_MS)
        )
        self.record_bytes = len(whole)
        self._bytes = bytearray(whole[: -record.CRC_BYTES])
        self._digits_at = [whole.index(name.encode()) + len(name) - DIGITS for name in (id_of(0), key_of(0))]

    def patched(self, number: int, physical_offset: int) -> bytes:
        """Return the record of one message at an offset."""
        queue_id, queue_offset = place_of(number)
        struct.pack_into(">i", self._bytes, 12, queue_id)
        struct.pack_into(">qq", self._bytes, 20, queue_offset, physical_offset)
        for at in self._digits_at:
            self._bytes[at : at + DIGITS] = b"%020d" % number
        return bytes(self._bytes) + record.crc_property(memoryview(self._bytes))


def places(first_offset: int, count: int, record_bytes: int) -> Offsets:
    """Return the offset of each message: adjacent, none across the end of a segment."""
    parts: list[Offsets] = []
    while count > 0:
        left_bytes = limits.SEGMENT_BYTES_DEFAULT - first_offset % limits.SEGMENT_BYTES_DEFAULT
        fitting = min(count, (left_bytes - record.BLANK_BYTES) // record_bytes)
        parts.append(first_offset + np.arange(fitting, dtype=np.int64) * record_bytes)
        first_offset, count = first_offset + left_bytes, count - fitting
    return np.concatenate(parts)


def write_log(disk: RealDisk, template: Template, offsets: Offsets) -> None:
    """Write all records, and the blanks at the end of full segments."""
    segment_bytes = limits.SEGMENT_BYTES_DEFAULT
    for first, part in batches(offsets):
        for segment in np.unique(part // segment_bytes).tolist():
            inside = np.flatnonzero(part // segment_bytes == segment)
            position = int(part[inside[0]]) % segment_bytes
            encoded = [template.patched(first + at, int(part[at])) for at in inside.tolist()]
            path = layout.segment_path(segment * segment_bytes)
            disk.allocate(path, segment_bytes)
            left_bytes = segment_bytes - position - len(encoded) * template.record_bytes
            if left_bytes < template.record_bytes + record.BLANK_BYTES:
                encoded.append(record.blank(left_bytes))
            disk.write(path, position, b"".join(encoded))
    for segment_offset in layout.segment_offsets(disk):
        disk.sync(layout.segment_path(segment_offset))


def write_queues(disk: RealDisk, offsets: Offsets, record_bytes: int) -> Any:
    """Write the files of every queue; return their part of the snapshot."""
    dispatch = Dispatch(disk)
    for queue_id in range(QUEUE_COUNT):
        queue = dispatch.queue(TOPIC, queue_id)
        for queue_offset, physical_offset in enumerate(offsets[queue_id::QUEUE_COUNT].tolist()):
            queue.put(queue_offset, Entry(physical_offset, record_bytes, 0))
        for path in queue.write():
            disk.sync(path)
    return dispatch.freeze()


def write_keys(disk: RealDisk, offsets: Offsets) -> Any:
    """Index every message by id and key, with a merge every 64 MiB of log; return its snapshot part."""
    index, frozen = KeyIndex(disk), None
    per_checkpoint = max(1, len(offsets) * limits.SNAPSHOT_LOG_BYTES // int(offsets[-1]))
    for first, part in batches(offsets, per_checkpoint):
        names = (
            name for number in range(first, first + len(part)) for name in (id_of(number), key_of(number))
        )
        hashes = np.fromiter((hash_of(TOPIC, name) for name in names), np.uint64, 2 * len(part))
        index.put_many(hashes, np.repeat(part, 2).astype(np.uint64))
        to_write = index.to_write(0)
        to_write.write(disk)
        frozen = to_write.freeze()
        to_write.delete_unused(disk)
        index.written(to_write)
    return frozen


def write_snapshot(disk: RealDisk, end_offset: int, count: int, derived_parts: dict[str, Any]) -> None:
    """Rewrite the broker's snapshot with the queue ends and segments of the messages."""
    newest = snapshot.newest(disk)
    assert newest is not None
    counts = [len(range(queue_id, count, QUEUE_COUNT)) for queue_id in range(QUEUE_COUNT)]
    ends = [[TOPIC, queue_id, number] for queue_id, number in enumerate(counts)]
    segments = [[offset, NOW_MS] for offset in layout.segment_offsets(disk)]
    store = newest.parts["store"] | {"next_offsets": ends, "segment_store_ms": segments}
    Snapshot(end_offset, newest.parts | {"store": store} | derived_parts).write(disk)


def batches(offsets: Offsets, count: int = BATCH_COUNT) -> Iterator[tuple[int, Offsets]]:
    """Yield (number of the first, offsets) of the messages in batches."""
    return ((first, offsets[first : first + count]) for first in range(0, len(offsets), count))
