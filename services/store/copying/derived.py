"""The derived files of a copy: queues and key index, as named by a snapshot.

They could be built from the log at about 25 us per record. Their size is about a tenth of the log. Copying
them is optional and may fail. Queue files are sent with the mark that makes a start use them only if all of
them can be read and match the CRC in the snapshot. Otherwise all queues are built from the log. Each block of
the key index has its own CRC. A missing file is omitted, and incomplete or unreadable files are rebuilt.

The key index has only a few files, which merges may delete, so they are held open. There may be many queue
files, so each is read when it is sent. If there are many small queue files, none is sent, because syncing
them takes longer than copying the log.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Final

from commitlog import layout
from commitlog.errors import StoreError
from commitlog.snapshots.snapshot import Snapshot
from consumequeue import dispatch
from consumequeue.entry import ENTRY_BYTES
from consumequeue.indexes import keyindex
from services.broker import derived
from services.store.copying.copying import CHUNK_BYTES, FileCopy, content_of, file_of
from services.store.read_only.reading import StoreFiles

ENTRIES_PER_FILE_MIN: Final = 100
"""Minimum average number of entries per queue file. Below this, queue files are not sent."""


class HeldDerived:
    """The derived files of a store that `newest` names.

    The files of the key index are held open by `stack`.
    """

    def __init__(self, files: StoreFiles, newest: Snapshot, stack: ExitStack) -> None:
        self._files, self._queues = files, newest.parts[derived.QUEUES]
        self._keys: dict[str, int] = {}
        """The open files of the key index, by path."""
        with suppress(StoreError):  # a merge has deleted the file
            for run in keyindex.runs_named(newest.parts[derived.KEYS]):
                if files.size(run.path) > run.tail_at:
                    self._keys[run.path] = files.open(run.path)
                    stack.callback(os.close, self._keys[run.path])

    def copies(self) -> Iterator[FileCopy]:
        """Yield the files. Each must be read before the next is requested."""
        for path, descriptor in self._keys.items():
            file = file_of(path, descriptor, None)
            yield replace(file, chunks=_all_of(file))
        named = list(dispatch.files_named(self._queues))
        entry_count = sum(length for _, length, _ in named) // ENTRY_BYTES
        if entry_count < ENTRIES_PER_FILE_MIN * len(named):
            return
        if not self._read(layout.QUEUES_WHOLE, dispatch.MARK_BYTES_MAX):
            return
        for path, length, crc in named:
            stored = self._read(path, length)
            if len(stored) < length or zlib.crc32(stored) != crc:
                return
            yield content_of(path, stored)
        if mark := self._read(layout.QUEUES_WHOLE, dispatch.MARK_BYTES_MAX):
            yield content_of(layout.QUEUES_WHOLE, mark)

    def _read(self, path: str, length: int) -> bytes:
        """Return up to `length` bytes of a queue file, or no bytes if it is missing or unreadable."""
        with suppress(StoreError):
            return self._files.read(path, 0, length)
        return b""


def _all_of(file: FileCopy) -> Iterator[tuple[int, bytes]]:
    """Yield the content of a file.

    From an unreadable position on, it is padded with zeros to the announced length.

    The padded blocks have no valid CRC, so the file is treated as damaged.
    """
    end = 0
    with suppress(OSError):
        for position, chunk in file.chunks:
            yield position, chunk
            end = position + len(chunk)
        return
    for position in range(end, file.length, CHUNK_BYTES):
        yield position, bytes(min(CHUNK_BYTES, file.length - position))
