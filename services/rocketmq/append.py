"""Records written behind a copied log, outside any broker."""

from __future__ import annotations

from typing import Final

from commitlog.disk.disk import Disk
from commitlog.log.log import CommitLog
from commitlog.records.record import TYPE_SYSTEM, Record

_FLUSH_BYTES: Final = 8 * 1024 * 1024


class Appender:
    """Appends to `log` on `disk`; each record gets the next offset of its queue, and `store_ms`."""

    def __init__(
        self, disk: Disk, log: CommitLog, next_offsets: dict[tuple[str, int], int], store_ms: int
    ) -> None:
        self.next_offsets = next_offsets
        self.last_offset = -1
        self._disk = disk
        self._log = log
        self._store_ms = store_ms

    def append(self, new: Record) -> int:
        """Append one record and sets its places (`last_offset` in the log); return its length in bytes."""
        new.store_ms = self._store_ms
        new.queue_offset = 0
        if new.type != TYPE_SYSTEM:
            key = (new.topic, new.queue_id)
            new.queue_offset = self.next_offsets.get(key, 0)
            self.next_offsets[key] = new.queue_offset + 1
        self.last_offset = self._log.append(new)
        record_bytes = self._log.end_offset - self.last_offset
        if self._log.end_offset - self._log.durable_offset >= _FLUSH_BYTES:
            self.flush()
        return record_bytes

    def flush(self) -> None:
        """Make all of it durable."""
        flush = self._log.take_flush()
        if flush is not None:
            flush.write()
            self._log.complete_flush(flush)
