"""A log for measuring the audit: orders' records of every kind, of many lengths, written in bulk by numpy.

    build(folder, count) -> bytes of log

Records are about 450 bytes on average, in random order of kind and length, so that a reader cannot predict
the offset of the next one. Each has its own id, key, offsets, times and CRCs. The store further has the queue
files and a snapshot that contains only these, so no broker can open it.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog import layout, limits
from commitlog.disk.real_disk import RealDisk
from commitlog.records import properties, record
from commitlog.records.record import Record
from parts.columns import QUEUE_COUNT, Array, Queues, digits_of, put_integers
from tidewheel import property_names

FIRST_MS: Final = 1_763_700_000_000
RECORDS_PER_SECOND: Final = 1_000
DIGITS: Final = 20
BODY_BYTES: Final = (90, 150, 210, 270)
BLOCK_COUNT: Final = 50_000
DUE_MS: Final = "1763700030000"


class Shape(NamedTuple):
    """Records of one kind: topic, sys_flag, share in percent, and properties in addition to id and key."""

    topic: str
    sys_flag: int
    share: int
    marks: dict[str, str]


SHAPES: Final = (
    Shape("RMQ_SYS_TRANS_HALF_TOPIC", 0, 15, {"PGROUP": "orders", "TRAN_MSG": "true",
          "REAL_TOPIC": "order-created", "REAL_QID": "1", "TAGS": "created"}),
    Shape("order-created", record.TYPE_COMMIT, 15, {"PGROUP": "orders", "TRAN_MSG": "true",
          "TAGS": "created", "__transactionId__": "0" * 24}),
    Shape("order-paid", 0, 15, {"TAGS": "paid", "currency": "GBP", "trace": "1-5f84c7a1-a1b2c3"}),
    Shape("order-changes", 0, 25, {"TAGS": "changed", "source": "web"}),
    Shape("rmq_sys_wheel_timer", 0, 15, {"REAL_TOPIC": "order-timeouts", "REAL_QID": "2",
          "TIMER_OUT_MS": DUE_MS, "TW_TIMER_KEY": "order:1"}),
    Shape("order-timeouts", 0, 5, {"TIMER_OUT_MS": DUE_MS, "TW_TIMER_OFFSET": "123456789"}),
    Shape("carts", 0, 10, {"TAGS": "cart", "__SHARDINGKEY": "customer-17"}),
)  # fmt: skip

TOPICS: Final = [shape.topic for shape in SHAPES]


class Template:
    """An encoded record of one kind and length, from which many records are patched at a time."""

    def __init__(self, shape: Shape, body_bytes: int) -> None:
        marks = {
            property_names.MESSAGE_ID: "01A2B3C4D5E6" + "7" * DIGITS,
            property_names.KEYS: "order-" + "8" * DIGITS,
        }
        body = json.dumps({"order_id": "8" * DIGITS}).encode().ljust(body_bytes)
        whole = record.encode(
            Record(
                topic=shape.topic,
                body=body,
                properties=properties.encode(marks | shape.marks),
                sys_flag=shape.sys_flag,
                born_host=("10.0.0.7", 50_000),
                store_host=("10.0.0.1", 9_876),
                half_offset=4096 if shape.sys_flag == record.TYPE_COMMIT else 0,
            )
        )
        self.record_bytes = len(whole)
        self._row = np.frombuffer(whole, np.uint8)
        split = whole.index(b"UNIQ_KEY")
        self._id_at = whole.index(b"7" * DIGITS, split)
        self._key_at = whole.index(b"8" * DIGITS, split)

    def patched(self, numbers: Array, offsets: Array, queue_offsets: Array) -> Array:
        """Return the records of these numbers at their offsets: rows of `record_bytes` bytes."""
        rows = np.tile(self._row, (len(numbers), 1))
        store_ms = FIRST_MS + numbers * 1000 // RECORDS_PER_SECOND
        for at, width, values in (
            (12, 4, numbers % QUEUE_COUNT),
            (20, 8, queue_offsets),
            (28, 8, offsets),
            (40, 8, store_ms - 3),
            (56, 8, store_ms),
        ):
            put_integers(rows, at, width, values)
        written = digits_of(numbers, DIGITS)
        for at in (self._id_at, self._key_at):
            rows[:, at : at + DIGITS] = written
        self._put_crcs(rows)
        return rows

    def _put_crcs(self, rows: Array) -> None:
        covered, view = self.record_bytes - record.CRC_BYTES, memoryview(rows.reshape(-1).data)
        starts = range(0, rows.size, self.record_bytes)
        crcs = np.array([zlib.crc32(view[start : start + covered]) for start in starts], np.int64)
        rows[:, covered + 9 : covered + 19] = digits_of(crcs & record.CRC_MASK, 10)[:, ::-1]


def build(folder: Path, count: int, segment_bytes: int = limits.SEGMENT_BYTES_DEFAULT) -> int:
    """Write a log of `count` records; return its size in bytes."""
    (folder / layout.COMMITLOG).mkdir(parents=True)
    (folder / layout.FORMAT).write_text("tidewheel 1\n")
    queues = Queues(folder)
    random = np.random.default_rng(7)
    templates = [Template(shape, size) for shape in SHAPES for size in BODY_BYTES]
    shares = np.repeat([shape.share / 100 / len(BODY_BYTES) for shape in SHAPES], len(BODY_BYTES))
    offset = written = 0
    while written < count:
        kinds = random.choice(len(templates), min(BLOCK_COUNT, count - written), p=shares)
        offset, taken = write_block(folder, templates, queues, kinds, written, offset, segment_bytes)
        written += taken
    disk = RealDisk(folder)
    queues.write_snapshot(disk, offset)
    layout.reset_durable(disk, offset)
    disk.close()
    return offset


def write_block(
    folder: Path, templates: list[Template], queues: Queues, kinds: Array, first: int, offset: int,
    segment_bytes: int,
) -> tuple[int, int]:  # fmt: skip
    """Write records of these kinds until the segment is full; return (end offset, number written)."""
    lengths = np.array([template.record_bytes for template in templates])[kinds]
    ends = np.cumsum(lengths)
    left_bytes = segment_bytes - offset % segment_bytes
    count = int(np.searchsorted(ends, left_bytes - record.BLANK_BYTES, side="right"))
    kinds, lengths, starts = kinds[:count], lengths[:count], (ends - lengths)[:count]
    block = np.zeros(int(ends[count - 1]) if count else 0, np.uint8)
    numbers = np.arange(first, first + count)
    queue_offsets = queues.add(
        kinds // len(BODY_BYTES), TOPICS, numbers % QUEUE_COUNT, offset + starts, lengths
    )
    for kind, template in enumerate(templates):
        here = np.flatnonzero(kinds == kind)
        rows = template.patched(numbers[here], offset + starts[here], queue_offsets[here])
        item = f"V{template.record_bytes}"
        room: Any = np.ndarray(max(0, len(block) - template.record_bytes + 1), item, block, 0, (1,))
        room[starts[here]] = rows.view(item)[:, 0]
    path = folder / layout.segment_path(offset // segment_bytes * segment_bytes)
    is_full = count < len(ends)
    with open(path, "ab") as file:
        file.write(block.tobytes())
        if is_full:
            file.write(record.blank(left_bytes - len(block)).ljust(left_bytes - len(block), b"\0"))
    return offset + (left_bytes if is_full else len(block)), count
