"""When a message of a delay level is due.

RocketMQ writes the time into the tags code of the message's queue entry, which holds even if the broker's
level table was changed since. Where the entry is gone, its own table counts from the store time.
"""

from __future__ import annotations

from typing import Final

from commitlog.layout import CONSUMEQUEUE, OFFSET_DIGITS
from commitlog.records.record import Record
from consumequeue import entry
from consumequeue.entry import ENTRY_BYTES
from services.broker.timers.delays import LEVELS_MS
from services.rocketmq.names import LEVEL_TOPIC
from services.store.read_only.reading import Reader


class LevelTimes:
    """The due times of the store whose files these are."""

    def __init__(self, files: Reader) -> None:
        self._files: Final = files
        self._file_bytes: dict[int, int] = {}

    def due_ms(self, record: Record) -> int:
        """Return when a record of the delay-level topic is due, in milliseconds since 1970."""
        found = self._entry(record)
        if found is not None and found.physical_offset == record.physical_offset and found.tags_code > 0:
            return found.tags_code
        pause_ms = LEVELS_MS[min(max(record.queue_id, 0), len(LEVELS_MS) - 1)]
        return record.store_ms + pause_ms

    def _entry(self, record: Record) -> entry.Entry | None:
        folder = f"{CONSUMEQUEUE}/{LEVEL_TOPIC}/{record.queue_id}"
        file_bytes = self._size_of_files(folder, record.queue_id)
        if file_bytes < ENTRY_BYTES:
            return None
        position = record.queue_offset * ENTRY_BYTES
        first = position // file_bytes * file_bytes
        path = f"{folder}/{first:0{OFFSET_DIGITS}d}"
        if self._files.size(path) < position - first + ENTRY_BYTES:
            return None
        return entry.decode_all(self._files.read(path, position - first, ENTRY_BYTES))[0]

    def _size_of_files(self, folder: str, queue_id: int) -> int:
        """Return all files of a queue have the size of its first."""
        if queue_id not in self._file_bytes:
            names = self._files.list(folder)
            self._file_bytes[queue_id] = self._files.size(f"{folder}/{names[0]}") if names else 0
        return self._file_bytes[queue_id]
