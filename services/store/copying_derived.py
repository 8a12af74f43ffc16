"""The derived files that a copy may bring along: queues and key index, as a snapshot counts on them.

They could be made anew from the log, at some 25 us a record; taken along they cost their bytes, a tenth of
the log's. Nothing here must succeed. The files of queues are sent with the mark that has a start believe them
only if each can be read and matches the CRC that the snapshot has of it; else all queues are made anew. Each
block of the key index has a CRC of its own: a file that is gone is left out, and what is not whole, or cannot
be read, is made anew.

The key index has a handful of files, of which a merge deletes some now and then: they are held open. Files of
queues may be many: each is read when it is sent. Where they are many and small none is sent, for syncing them
takes longer than the log.
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
from commitlog.snapshot import Snapshot
from consumequeue import dispatch, keyindex
from consumequeue.entry import ENTRY_BYTES
from services.broker import derived
from services.store.copying import CHUNK_BYTES, FileCopy, content_of, file_of
from services.store.reading import StoreFiles

ENTRIES_PER_FILE_MIN: Final = 100
"""How many entries the files of queues have at least, on average, if they are sent."""


class HeldDerived:
    """The derived files of a store that `newest` names; those of the key index are open for `stack`."""

    def __init__(self, files: StoreFiles, newest: Snapshot, stack: ExitStack) -> None:
        self._files, self._queues = files, newest.parts[derived.QUEUES]
        self._keys: dict[str, int] = {}
        """The open files of the key index, by path."""
        with suppress(StoreError):  # a merge was quicker
            for run in keyindex.runs_named(newest.parts[derived.KEYS]):
                if files.size(run.path) > run.tail_at:
                    self._keys[run.path] = files.open(run.path)
                    stack.callback(os.close, self._keys[run.path])

    def copies(self) -> Iterator[FileCopy]:
        """Yield the files; read each before the next is asked for."""
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
        """Return up to `length` bytes of a file of queues; none where it is gone, or cannot be read."""
        with suppress(StoreError):
            return self._files.read(path, 0, length)
        return b""


def _all_of(file: FileCopy) -> Iterator[tuple[int, bytes]]:
    """Yield all of a file: zeros from where the disk cannot read it, for its length was said before.

    Their blocks lack their CRCs, so the file is taken for a damaged one.
    """
    end = 0
    with suppress(OSError):
        for position, chunk in file.chunks:
            yield position, chunk
            end = position + len(chunk)
        return
    for position in range(end, file.length, CHUNK_BYTES):
        yield position, bytes(min(CHUNK_BYTES, file.length - position))
