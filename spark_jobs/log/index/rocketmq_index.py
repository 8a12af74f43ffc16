"""Reads the queue files of Apache RocketMQ, and determines up to which log offset they are complete.

RocketMQ writes the queue files from the log in log order, with a short delay. While it runs, and after an
unclean stop, there is a file `abort`. RocketMQ then restarts from a time in its `checkpoint`:

    stopped cleanly    queues are complete up to the last record with an entry in any queue
    otherwise          queues are complete at most up to 3 s before the earlier of the first two times in
                       `checkpoint`, as in RocketMQ's own recovery

The log after that offset is scanned. The whole log is scanned if one of the topics has no queue files or has
batch queues (`batchconsumequeue`), or if one of their files is missing between others, is not full although
another follows, or has zeros between entries. Only a scan finds records that RocketMQ adds to no queue
(halves and rollbacks of stores before 4.3).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from commitlog import layout
from commitlog.log.published_log import StoreLog
from consumequeue.entry import ENTRY, ENTRY_BYTES
from spark_jobs.log.columns.ragged import Integers
from spark_jobs.log.index.ranges import bounds

FILLER_BYTES: Final = 0x7FFFFFFF
"""Length in filler entries, for queue offsets that never had a message."""

_BATCHES: Final = "batchconsumequeue"
_ABORT: Final = "abort"
_CHECKPOINT: Final = "checkpoint"
_TIMES: Final = struct.Struct(">qq")
_MARGIN_MS: Final = 3_000


def believed_until(store: Path, log: StoreLog) -> int:
    """Return the log offset up to which the queue files contain every message, or 0."""
    until = min(max(map(_last_end, _queues(store)), default=0), log.end_offset)
    if (store / _ABORT).exists():
        until = min(until, _checkpointed(store, log))
    return until


def files_of(store: Path, topics: frozenset[str]) -> list[list[tuple[str, int]]] | None:
    """Return (path, number of entries) of each queue's files, or None if they cannot be trusted.

    This is the case if a topic has no queues or has batch queues, or if a file is incomplete.
    """
    found_queues: list[list[tuple[str, int]]] = []
    for topic in topics:
        queues = _folders(store / layout.CONSUMEQUEUE / topic)
        if not queues or (store / _BATCHES / topic).exists():
            return None
        for queue in queues:
            found = _queue_files(queue)
            if found is None:
                return None
            found_queues.append(found)
    return found_queues


def _queue_files(queue: Path) -> list[tuple[str, int]] | None:
    """Return (path, number of entries) of a queue's files, or None if one is missing or incomplete."""
    found, next_byte, is_full = list[tuple[str, int]](), -1, True
    for path in _numbered(queue):
        entries = _entries(path)
        used = _used(entries)
        if used is None or next_byte not in (-1, int(path.name)) or (used and not is_full):
            return None
        next_byte, is_full = int(path.name) + len(entries) * ENTRY_BYTES, used == len(entries)
        if used:
            found.append((str(path), used))
    return found


def _used(entries: Any) -> int | None:
    """Return the number of written entries, or None if an unwritten entry precedes a written one."""
    is_written = entries["record_bytes"] != 0
    count = int(np.count_nonzero(is_written))
    return count if bool(is_written[:count].all()) else None


def _last_end(queue: Path) -> int:
    """Return the log offset after the last record in a queue, or 0 if there is none. Skip filler entries."""
    for path in reversed(_numbered(queue)):
        entries = _entries(path)
        last = _last_written(entries["record_bytes"])
        if last >= 0 and entries["record_bytes"][last] != FILLER_BYTES:
            return int(entries["physical_offset"][last]) + int(entries["record_bytes"][last])
    return 0


def _last_written(lengths: Integers) -> int:
    """Return the index of the last entry before the zeros at the end of a file, by bisection, or -1."""
    low, high = -1, len(lengths)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if lengths[middle] else (low, middle)
    return low


def _checkpointed(store: Path, log: StoreLog) -> int:
    path = store / _CHECKPOINT
    stored = path.read_bytes()[: _TIMES.size] if path.exists() else b""
    if len(stored) < _TIMES.size:
        return 0
    return bounds(log, max(0, min(_TIMES.unpack(stored)) - _MARGIN_MS))[0]


def _queues(store: Path) -> Iterator[Path]:
    for topic in _folders(store / layout.CONSUMEQUEUE):
        yield from _folders(topic)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _numbered(folder: Path) -> list[Path]:
    """Return the files of a queue with at least one entry, in order."""
    names = (path for path in folder.iterdir() if path.name.isdigit() and path.stat().st_size >= ENTRY_BYTES)
    return sorted(names, key=lambda path: int(path.name))


def _entries(path: Path) -> Any:
    return np.fromfile(path, ENTRY, path.stat().st_size // ENTRY_BYTES)
