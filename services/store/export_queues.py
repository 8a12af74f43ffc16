"""Write all queues of a store as whole ConsumeQueue files, for tools that read those.

    <target>/consumequeue/<topic>/<queue_id>/<20 digits: first byte>     20 bytes an entry, 300,000 a file

The store's own files lack each queue's last entries, which are in its newest snapshot and in its broker's
memory (`consumequeue.tails`). A start of the core over an overlay has them all; nothing is written into the
store. Where a file of it is damaged the queues are made anew from the log. A queue whose first entries are
gone begins with a hole in its first file.

Cost: a start, and 20 bytes an entry. The broker may run meanwhile: the files tell of the store at one moment.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from commitlog.errors import StoreDamaged, StoreError
from commitlog.layout import CONSUMEQUEUE, OFFSET_DIGITS, QUEUES_WHOLE
from commitlog.limits import QUEUE_FILE_ENTRIES
from consumequeue.entry import ENTRY_BYTES
from consumequeue.queue import ConsumeQueue
from services.broker.broker import Broker
from services.broker.settings import BrokerSettings
from services.store.copying import check_target
from services.store.opening import OpenStore, open_store

_AT_ONCE: Final = 50_000
"""Entries that are in memory at once."""


@dataclass(slots=True, frozen=True)
class ExportedQueues:
    """What was written."""

    path: str
    queue_count: int
    entry_count: int
    file_count: int


def export_queues(root: Path, target: Path, now_ms: int) -> ExportedQueues:
    """Write the queues of the store in `root` below `target`; raise a `StoreError`."""
    check_target(root, target)
    try:
        return _export(open_store(root), target, now_ms)
    except OSError as error:
        what = "there is no room" if error.errno == errno.ENOSPC else error.strerror
        raise StoreError(f"{error.filename or target} cannot be written: {what}.") from error


def _export(store: OpenStore, target: Path, now_ms: int) -> ExportedQueues:
    queues = [queue for _, _, queue in _started(store, now_ms).store.dispatch.queues()]
    entry_count = file_count = 0
    for queue in queues:
        topic, queue_id = queue.key
        folder = target / CONSUMEQUEUE / topic / str(queue_id)
        folder.mkdir(parents=True)
        file_count += _write(queue, folder)
        entry_count += queue.end_offset - queue.min_offset
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


def _write(queue: ConsumeQueue, folder: Path) -> int:
    """Write the entries of a queue; return the number of its files."""
    at, count = queue.min_offset, 0
    while at < queue.end_offset:
        first = at // QUEUE_FILE_ENTRIES * QUEUE_FILE_ENTRIES
        end = min(first + QUEUE_FILE_ENTRIES, queue.end_offset)
        with open(folder / f"{first * ENTRY_BYTES:0{OFFSET_DIGITS}d}", "wb") as file:
            file.seek((at - first) * ENTRY_BYTES)
            while at < end:
                rows = queue.rows(at, min(_AT_ONCE, end - at))
                file.write(rows.tobytes())
                at += len(rows)
        count += 1
    return count
