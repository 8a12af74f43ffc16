"""Write all queues of a store as whole ConsumeQueue files, for tools that read those.

    <target>/consumequeue/<topic>/<queue_id>/<20 digits: first byte>     20 bytes an entry, 300,000 a file

The store's own files lack each queue's last entries, which are in its newest snapshot and in its broker's
memory (`consumequeue.tails`). A start of the core over an overlay has them all; nothing is written into the
store. Where a file of it is damaged the queues are made anew from the log. A queue whose first entries are
gone begins with a hole in its first file.

The files get their name together, when all are written; an export that fails leaves none.

Cost: a start, and 20 bytes an entry. The broker may run meanwhile: the files tell of the store at one moment.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commitlog.errors import StoreDamaged, StoreError
from commitlog.layout import CONSUMEQUEUE, OFFSET_DIGITS, QUEUES_WHOLE
from commitlog.limits import QUEUE_FILE_ENTRIES
from consumequeue.entry import ENTRY_BYTES
from consumequeue.queue import ConsumeQueue
from services.broker.broker import Broker
from services.broker.spine.settings import BrokerSettings
from services.store.copying import check_target
from services.store.opening import OpenStore, open_store

_AT_ONCE: Final = 50_000
"""Entries that are in memory at once."""
_BLOCK_BYTES: Final = 4096
UNFINISHED: Final = f"{CONSUMEQUEUE}.unfinished"
"""The folder of the files until all are written. What a killed export left of it the next one removes."""


@dataclass(slots=True, frozen=True)
class PlannedExport:
    """What will be written, and what it takes on disk, in blocks of 4 KiB."""

    queue_count: int
    entry_count: int
    file_count: int
    disk_bytes: int


@dataclass(slots=True, frozen=True)
class ExportedQueues:
    """What was written."""

    path: str
    queue_count: int
    entry_count: int
    file_count: int


def export_queues(
    root: Path, target: Path, now_ms: int, announce: Callable[[PlannedExport], None] = lambda planned: None
) -> ExportedQueues:
    """Write the queues of the store in `root` below `target`; raise a `StoreError`.

    `announce` is called with what will be written, before anything is. An export that fails leaves nothing.
    """
    _remove_unfinished(target)
    check_target(root, target)
    queues = [queue for _, _, queue in _started(open_store(root), now_ms).store.dispatch.queues()]
    planned = _planned(queues)
    announce(planned)
    was_there = target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(target).free
        if free_bytes < planned.disk_bytes:
            raise StoreError(
                f"{target} has {free_bytes} bytes free, the files take {planned.disk_bytes}. Nothing was "
                "written; name a folder of another disk."
            )
        return _export(queues, target)
    except OSError as error:
        what = "there is no room" if error.errno == errno.ENOSPC else error.strerror
        raise StoreError(
            f"{error.filename or target} cannot be written: {what}. Nothing is left there; name another "
            "folder."
        ) from error
    finally:
        _remove_unfinished(target)
        if not was_there:
            with suppress(OSError):  # it has the files
                target.rmdir()


def _remove_unfinished(target: Path) -> None:
    """Remove what an export that ended before its time has left."""
    if (target / UNFINISHED).is_dir():
        shutil.rmtree(target / UNFINISHED)


def _planned(queues: list[ConsumeQueue]) -> PlannedExport:
    entry_count = sum(queue.end_offset - queue.min_offset for queue in queues)
    files = [part for queue in queues for part in _parts(queue)]
    blocks = sum(-(-len(part) * ENTRY_BYTES // _BLOCK_BYTES) for part in files)
    return PlannedExport(len(queues), entry_count, len(files), blocks * _BLOCK_BYTES)


def _export(queues: list[ConsumeQueue], target: Path) -> ExportedQueues:
    unfinished = target / UNFINISHED
    unfinished.mkdir()
    entry_count = file_count = 0
    for queue in queues:
        topic, queue_id = queue.key
        folder = unfinished / topic / str(queue_id)
        folder.mkdir(parents=True)
        file_count += _write(queue, folder)
        entry_count += queue.end_offset - queue.min_offset
    unfinished.rename(target / CONSUMEQUEUE)
    return ExportedQueues(str(target), len(queues), entry_count, file_count)


def _started(store: OpenStore, now_ms: int) -> Broker:
    """Return the core over an overlay, all of whose queues' files are sound."""
    disk = store.overlay()
    broker = Broker.open(disk, BrokerSettings(), now_ms, store.durable_offset)
    if all(queue.is_sound() for _, _, queue in broker.store.dispatch.queues()):
        return broker
    disk = store.overlay()
    disk.delete(QUEUES_WHOLE)
    broker = Broker.open(disk, BrokerSettings(), now_ms, store.durable_offset)
    if all(queue.is_sound() for _, _, queue in broker.store.dispatch.queues()):
        return broker
    raise StoreDamaged("The queues cannot be made from the log. Look for the cause: tidewheel store verify")


def _parts(queue: ConsumeQueue) -> Iterator[range]:
    """Yield the queue offsets of each file of a queue."""
    at = queue.min_offset
    while at < queue.end_offset:
        end = min(at // QUEUE_FILE_ENTRIES * QUEUE_FILE_ENTRIES + QUEUE_FILE_ENTRIES, queue.end_offset)
        yield range(at, end)
        at = end


def _write(queue: ConsumeQueue, folder: Path) -> int:
    """Write the entries of a queue; return the number of its files."""
    count = 0
    for part in _parts(queue):
        at = part.start
        first = at // QUEUE_FILE_ENTRIES * QUEUE_FILE_ENTRIES
        with open(folder / f"{first * ENTRY_BYTES:0{OFFSET_DIGITS}d}", "wb") as file:
            file.seek((at - first) * ENTRY_BYTES)
            while at < part.stop:
                rows = queue.rows(at, min(_AT_ONCE, part.stop - at))
                file.write(rows.tobytes())
                at += len(rows)
        count += 1
    return count
