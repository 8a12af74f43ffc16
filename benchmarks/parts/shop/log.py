"""A log of patched templates: records in the order of their times, each with its offset and CRCs.

Events are rows of `EVENT`: store time, order and kind of a record. `LogWriter.write` appends a block of them
to the log: offsets by the running sum of lengths, queue offsets by counting, and the bytes by whole columns,
one template at a time. A record that refers to an earlier one (a commit to its half, a delivery to its timer)
gets the offset of that one by its order from `LogWriter._places`, a ring: no story may be longer than the
ring.

Cost: about 4 us per record on one core, most of it two CRCs and the copying. Memory: one block and the ring.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from commitlog import layout, limits, store_format
from commitlog.disk.real_disk import RealDisk
from commitlog.records import record
from commitlog.records.kinds import HALF_TOPIC
from parts.columns import Array, Queues, digits_of, put_integers
from parts.shop.stories import KINDS, SLOT_COUNT
from parts.shop.templates import OFFSET_DIGITS, VARIANT_COUNT, Lifted, Template

EVENT: Final = np.dtype([("ms", "i8"), ("order", "i8"), ("kind", "i2"), ("first", "i8"), ("count", "i4")])
"""`first` and `count` are the queue offsets of an acknowledgement, whose `order` is its queue."""

RING: Final = 1 << 17
ACKED_TOGETHER: Final = 12
_KIND_NAMES: Final = tuple(KINDS)
_ACK_PREFIX: Final = "acked"
_UNINDEXED_PREFIX: Final = "TW_SYS_"
_ONE_QUEUE_PREFIXES: Final = (_UNINDEXED_PREFIX, "%DLQ%")
_ONE_QUEUE: Final = frozenset({HALF_TOPIC, "rmq_sys_wheel_timer"})

Fields = dict[str, Array]
"""Digits by the name of their field: a row for each index of the ring."""


class LogWriter:
    """Appends events to the log of a new store."""

    def __init__(
        self, folder: Path, lifted: Lifted, segment_bytes: int = limits.SEGMENT_BYTES_DEFAULT
    ) -> None:
        (folder / layout.COMMITLOG).mkdir(parents=True)
        (folder / layout.FORMAT).write_bytes(store_format.encode(segment_bytes))
        self._folder, self._segment_bytes = folder, segment_bytes
        self._queues = Queues(folder)
        self._templates = _Templates(lifted)
        self._places = np.zeros((SLOT_COUNT, RING), np.int64)
        self.end_offset = self.record_count = 0
        self._append(np.frombuffer(lifted.opening, np.uint8))

    def write(self, events: Array, variants: Array, queues: Array, fields: Fields) -> Array:
        """Append events, sorted by time; return the acknowledgements that they need, as events.

        `variants`, `queues` and `fields` are per order, by its index in the ring.
        """
        acks = []
        while len(events):
            ring = events["order"] % RING
            chosen = self._templates.of(events["kind"], variants[ring])
            lengths = self._templates.lengths[chosen]
            ends = np.cumsum(lengths)
            left_bytes = self._segment_bytes - self.end_offset % self._segment_bytes
            count = int(np.searchsorted(ends, left_bytes - record.BLANK_BYTES, side="right"))
            starts = (ends - lengths)[:count]
            some = _Block(
                self._templates, events[:count], ring[:count], chosen[:count], starts, lengths[:count]
            )
            acks.append(self._write_block(some, queues, fields))
            if count < len(events):
                self._fill_segment()
            events = events[count:]
        return np.concatenate(acks) if acks else np.zeros(0, EVENT)

    def close(self) -> None:
        """Write the snapshot and publish the end of the log."""
        disk = RealDisk(self._folder)
        self._queues.write_snapshot(disk, self.end_offset)
        layout.reset_durable(disk, self.end_offset)
        disk.close()

    def _write_block(self, block: _Block, queues: Array, fields: Fields) -> Array:
        if not len(block.events):
            return np.zeros(0, EVENT)
        offsets = self.end_offset + block.starts
        self._remember(block, offsets)
        queue_ids = queues[block.ring]
        queue_ids[self._templates.has_one_queue[block.chosen]] = 0
        topics = self._templates.topics[block.chosen]
        queue_offsets = self._queues.add(
            topics, self._templates.topic_names, queue_ids, offsets, block.lengths
        )
        content = block.content(offsets, queue_ids, queue_offsets, self._places, fields)
        self._append(content)
        self.record_count += len(block.events)
        return _acknowledgements(block.events, queue_ids, queue_offsets)

    def _remember(self, block: _Block, offsets: Array) -> None:
        out = _OUTS[block.events["kind"]]
        kept = out >= 0
        self._places[out[kept], block.ring[kept]] = offsets[kept]

    def _append(self, content: Array) -> None:
        first = self.end_offset // self._segment_bytes * self._segment_bytes
        with open(self._folder / layout.segment_path(first), "ab") as file:
            file.write(content.data)
        self.end_offset += len(content)

    def _fill_segment(self) -> None:
        left_bytes = self._segment_bytes - self.end_offset % self._segment_bytes
        self._append(np.frombuffer(record.blank(left_bytes).ljust(left_bytes, b"\0"), np.uint8))


class _Templates:
    """All templates, numbered by kind and variant."""

    def __init__(self, lifted: Lifted) -> None:
        self.all: list[Template] = [
            one for name in _KIND_NAMES for one in lifted.templates[KINDS[name].template]
        ]
        self.lengths = np.array([len(one.content) for one in self.all])
        self.topic_names = sorted({one.topic for one in self.all})
        self.topics = np.array([self.topic_names.index(one.topic) for one in self.all])
        self.has_one_queue = np.array(
            [one.topic in _ONE_QUEUE or one.topic.startswith(_ONE_QUEUE_PREFIXES) for one in self.all]
        )

    @staticmethod
    def of(kinds: Array, variants: Array) -> Array:
        """Return the number of each event's template."""
        numbers: Array = kinds.astype(np.int64) * VARIANT_COUNT + variants
        return numbers


def _slots(name: str) -> Array:
    found = [getattr(kind, name) for kind in KINDS.values()]
    return np.array([-1 if slot is None else slot for slot in found])


_OUTS: Final = _slots("out")
_HALVES: Final = _slots("half")
_TIMERS: Final = _slots("timer")
_ACKS: Final = np.array(
    [_KIND_NAMES.index(kind.acked_by) if kind.acked_by else -1 for kind in KINDS.values()]
)
_IS_ACK: Final = np.array([name.startswith(_ACK_PREFIX) for name in _KIND_NAMES])


class _Block:
    """Events whose records are adjacent in one segment."""

    def __init__(
        self, templates: _Templates, events: Array, ring: Array, chosen: Array, starts: Array, lengths: Array
    ) -> None:
        self._templates = templates
        self.events, self.ring, self.chosen, self.starts, self.lengths = events, ring, chosen, starts, lengths

    def content(
        self, offsets: Array, queue_ids: Array, queue_offsets: Array, places: Array, fields: Fields
    ) -> Array:
        """Return the bytes of all records."""
        content = np.zeros(int(self.lengths.sum()), np.uint8)
        by_template = np.argsort(self.chosen, kind="stable")
        numbers, firsts = np.unique(self.chosen[by_template], return_index=True)
        for number, here in zip(numbers.tolist(), np.split(by_template, firsts[1:]), strict=True):
            template = self._templates.all[number]
            rows = np.tile(np.frombuffer(template.content, np.uint8), (len(here), 1))
            self._put_head(rows, here, offsets, queue_ids, queue_offsets, places)
            self._put_fields(rows, here, template, places, fields)
            _put_crcs(rows, template)
            item = f"V{len(template.content)}"
            room: Any = np.ndarray(max(0, len(content) - len(template.content) + 1), item, content, 0, (1,))
            room[self.starts[here]] = rows.view(item)[:, 0]
        return content

    def _put_head(
        self, rows: Array, here: Array, offsets: Array, queue_ids: Array, queue_offsets: Array, places: Array
    ) -> None:
        events = self.events[here]
        kind = int(events["kind"][0])
        put_integers(rows, 12, 4, queue_ids[here])
        put_integers(rows, 20, 8, queue_offsets[here])
        put_integers(rows, 28, 8, offsets[here])
        if rows[0, 40:48].any():
            put_integers(rows, 40, 8, events["ms"] - 3)
        put_integers(rows, 56, 8, events["ms"])
        if _HALVES[kind] >= 0:
            put_integers(rows, 76, 8, places[_HALVES[kind], self.ring[here]])

    def _put_fields(
        self, rows: Array, here: Array, template: Template, places: Array, fields: Fields
    ) -> None:
        events, ring = self.events[here], self.ring[here]
        kind = int(events["kind"][0])
        for at, width, name in template.fields:
            is_timer = name == "timer"
            digits = digits_of(places[_TIMERS[kind], ring], OFFSET_DIGITS) if is_timer else fields[name][ring]
            rows[:, at : at + width] = digits
        if _IS_ACK[kind]:
            end = record.RECORD_BYTES_MIN - 3 + template.body_bytes
            put_integers(rows, end - 16, 2, events["order"])
            put_integers(rows, end - 12, 8, events["first"])
            put_integers(rows, end - 4, 4, events["count"])


def _put_crcs(rows: Array, template: Template) -> None:
    body, covered = record.RECORD_BYTES_MIN - 3, rows.shape[1] - record.CRC_BYTES
    if template.body_bytes:
        put_integers(rows, 8, 4, _crcs(rows, body, body + template.body_bytes))
    rows[:, covered + 9 : covered + 19] = digits_of(_crcs(rows, 0, covered), 10)[:, ::-1]


def _crcs(rows: Array, start: int, end: int) -> Array:
    view: Any = memoryview(rows.reshape(-1).data)
    crc = zlib.crc32
    firsts = range(0, rows.size, rows.shape[1])
    return np.array([crc(view[first + start : first + end]) for first in firsts], np.int64) & record.CRC_MASK


def _acknowledgements(events: Array, queue_ids: Array, queue_offsets: Array) -> Array:
    """Return the ranges of adjacent queue offsets that a group acknowledges, as events without a time."""
    acked_by = _ACKS[events["kind"]]
    chosen = np.flatnonzero(acked_by >= 0)
    kinds, queues, offsets = acked_by[chosen], queue_ids[chosen], queue_offsets[chosen]
    order = np.lexsort((offsets, queues, kinds))
    kinds, queues, offsets = kinds[order], queues[order], offsets[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(kinds) != 0) | (np.diff(queues) != 0) | (np.diff(offsets) != 1)
    is_first |= offsets % ACKED_TOGETHER == 0
    firsts = np.flatnonzero(is_first)
    found = np.zeros(len(firsts), EVENT)
    found["order"], found["kind"], found["first"] = queues[firsts], kinds[firsts], offsets[firsts]
    found["count"] = np.diff(np.append(firsts, len(order)))
    return found
