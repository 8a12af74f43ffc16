"""Logs written in bulk (`audit/store.py`, `shop/log.py`): fields of many records at a time, and queue files.

Records of one length are rows of a byte array; each of their fields is a range of its columns.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from commitlog import layout, limits
from commitlog.disk.disk import Disk
from commitlog.snapshots.snapshot import Snapshot
from consumequeue import dispatch
from consumequeue.entry import ENTRY, ENTRY_BYTES
from consumequeue.queue import UNKNOWN

Array = np.ndarray[Any, Any]

QUEUE_COUNT: Final = 4
_UNINDEXED_PREFIX: Final = "TW_SYS_"
_TRIPLES: Final = np.frombuffer(b"".join(b"%03d" % number for number in range(1000)), np.uint8).reshape(-1, 3)


def digits_of(numbers: Array, width: int) -> Array:
    """Return the decimal digits of numbers as ASCII: a row of `width` bytes for each number."""
    count = -(-width // 3)
    digits = np.empty((len(numbers), 3 * count), np.uint8)
    for place in range(count - 1, -1, -1):
        numbers, triple = np.divmod(numbers, 1000)
        digits[:, 3 * place : 3 * place + 3] = _TRIPLES[triple]
    return digits[:, 3 * count - width :]


def put_integers(rows: Array, at: int, width: int, values: Array) -> None:
    """Write big-endian integers of `width` bytes into the columns that begin at `at`."""
    rows[:, at : at + width] = values.astype(f">i{width}").view(np.uint8).reshape(-1, width)


class Queues:
    """The queue files of all topics, appended as the log grows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: dict[tuple[str, int], int] = {}
        self._crcs: dict[tuple[str, int], list[tuple[int, int]]] = {}

    def add(self, topics: Array, names: list[str], queue_ids: Array, offsets: Array, lengths: Array) -> Array:
        """Index records by `names[topic]` and queue id; return their queue offsets."""
        queue_offsets = np.zeros(len(topics), np.int64)
        keys = topics * QUEUE_COUNT + queue_ids
        order = np.argsort(keys, kind="stable")
        found, firsts = np.unique(keys[order], return_index=True)
        for key, here in zip(found.tolist(), np.split(order, firsts[1:]), strict=True):
            name, queue_id = names[key // QUEUE_COUNT], key % QUEUE_COUNT
            if name.startswith(_UNINDEXED_PREFIX):
                continue
            entries = np.zeros(len(here), ENTRY)
            entries["physical_offset"], entries["record_bytes"] = offsets[here], lengths[here]
            queue_offsets[here] = np.arange(len(here)) + self._append(name, queue_id, entries)
        return queue_offsets

    def _append(self, name: str, queue_id: int, entries: Array) -> int:
        """Add the entries to the files of one queue; return the first entry's queue offset."""
        key = (name, queue_id)
        first = count = self._counts.get(key, 0)
        self._counts[key] = count + len(entries)
        while len(entries):
            room = limits.QUEUE_FILE_ENTRIES - count % limits.QUEUE_FILE_ENTRIES
            self._append_to_file(key, count, entries[:room].tobytes())
            count += min(room, len(entries))
            entries = entries[room:]
        return first

    def _append_to_file(self, key: tuple[str, int], count: int, stored: bytes) -> None:
        first_byte = count // limits.QUEUE_FILE_ENTRIES * limits.QUEUE_FILE_ENTRIES * ENTRY_BYTES
        crcs = self._crcs.setdefault(key, [])
        if not crcs or crcs[-1][0] != first_byte:
            crcs.append((first_byte, 0))
        crcs[-1] = (first_byte, zlib.crc32(stored, crcs[-1][1]))
        folder = self._folder / layout.CONSUMEQUEUE / key[0] / str(key[1])
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{first_byte:020d}", "ab") as file:
            file.write(stored)

    def write_snapshot(self, disk: Disk, end_offset: int) -> None:
        """Write a snapshot with the queues at the end of the log, and mark their files as complete."""
        rows = [[*key, count, self._crcs[key], 0, "", UNKNOWN] for key, count in self._counts.items()]
        Snapshot(end_offset, {"queues": rows, "queues_made_at": end_offset}).write(disk)
        dispatch.mark(disk, end_offset)
