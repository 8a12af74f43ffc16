"""Export of all queues of a store as complete ConsumeQueue files, for tools that read them.

    <target>/consumequeue/<topic>/<queue_id>/<20 digits: first byte>     20 bytes an entry, 300,000 a file

The files in the store lack the last entries of each queue, which are in the newest snapshot and in the
broker's memory (`consumequeue.tails`). The core is started on an overlay to obtain all entries. The store is
not written. If a queue file is damaged, the queues are built from the log. If the first entries of a queue
are deleted, its first file begins with a hole.

The folder is renamed after all files are written. A failed export leaves no files.

Cost: a start of the core, and 20 bytes per entry. The broker may be running. The files represent the store at
one point in time.
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
from services.store.copying.copying import check_target
from services.store.read_only.opening import OpenStore, open_store

_AT_ONCE: Final = 50_000
"""Number of entries in memory at a time."""
_BLOCK_BYTES: Final = 4096
UNFINISHED: Final = f"{CONSUMEQUEUE}.unfinished"
"""Temporary folder of the files. The next export removes the folder of an interrupted export."""


@dataclass(slots=True, frozen=True)
class PlannedExport:
    """The extent of an export, including the disk space in blocks of 4 KiB."""

    queue_count: int
    entry_count: int
    file_count: int
    disk_bytes: int


@dataclass(slots=True, frozen=True)
class ExportedQueues:
    """The result of an export."""

    path: str
    queue_count: int
    entry_count: int
    file_count: int


def export_queues(
    root: Path, target: Path, now_ms: int, announce: Callable[[PlannedExport], None] = lambda planned: None
) -> ExportedQueues:
    """Write the queues of the store in `root` below `target`; raise a `StoreError`.

    `announce` is called with the planned extent before anything is written. A failed export leaves no files.
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
            with suppress(OSError):  # fails if the folder contains the exported files
                target.rmdir()


def _remove_unfinished(target: Path) -> None:
    """Remove the temporary folder of an interrupted export."""
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
    """Return a core on an overlay whose queue files are all sound."""
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
    """Yield the range of queue offsets of each file."""
    at = queue.min_offset
    while at < queue.end_offset:
        end = min(at // QUEUE_FILE_ENTRIES * QUEUE_FILE_ENTRIES + QUEUE_FILE_ENTRIES, queue.end_offset)
        yield range(at, end)
        at = end


def _write(queue: ConsumeQueue, folder: Path) -> int:
    """Write the entries of a queue and return the number of files."""
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
