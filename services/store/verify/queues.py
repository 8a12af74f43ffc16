"""Verification of the queues against the log: entry n of a queue must refer to the record with queue offset
n.

Each record of the log is compared with its entry. An entry without a record must be a gap, or refer to an
offset below the start of the log, in a damaged region, or after the published end (a running broker is
ahead). Entries are in files, and the last entries of each queue (its tail) are in the newest snapshot. Only
entries covered by the snapshot can be damaged: the next start rewrites all later entries, which a power
failure may have left torn or missing. If the disk cannot read a file or folder, a finding is reported and the
rest is compared.

Memory: the tails, and two integers per queue and gap. Files are mapped and not loaded.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from commitlog import layout
from commitlog.disk.view import View, whole
from commitlog.limits import QUEUE_FILE_ENTRIES
from commitlog.log.recovery import Damage, FoundRecord
from commitlog.records.inner_batch import message_count
from commitlog.records.kinds import RETENTION_TOPIC, TOPIC_TOPIC
from commitlog.records.record import Record
from commitlog.snapshots import snapshot
from consumequeue import entry
from consumequeue.dispatch import MARK_BYTES_MAX, entry_of, is_indexed, is_marked
from consumequeue.entry import ENTRY_BYTES, Entry
from consumequeue.queue import ConsumeQueue, StoredQueue, files_of, is_unrelated_error, stored_queues
from services.broker import derived
from services.store.findings import Finding
from services.store.read_only.opening import OpenStore

_LOOK_BYTES: Final = 16 * 1024
"""Number of bytes of each queue in memory, because the log alternates between queues."""
_NOTHING: Final = whole(b"")
_FILE_BYTES: Final = QUEUE_FILE_ENTRIES * ENTRY_BYTES


class QueueFiles:
    """The entries in the files of one queue, and its tail if the newest snapshot contains the queue."""

    def __init__(
        self, store: OpenStore, key: tuple[str, int], names: Iterable[str], stored: StoredQueue | None
    ) -> None:
        """`names` are the names of the queue's files."""
        self.folder = _folder(*key)
        self.unreadable: dict[str, str] = {}
        """The reasons why files cannot be read, by path."""
        self._views: dict[int, View] = {}
        for name in names:
            path = f"{self.folder}/{name}"
            with _noting(path, self.unreadable):
                self._views[int(name)] = store.files.view(path).by(_LOOK_BYTES)
        self.tail_from, self._tail = (stored.written_count, stored.tail) if stored else (0, b"")
        self.needed_from = stored.min_offset if stored else 0
        self.first_offset = min(self._views, default=self.tail_from * ENTRY_BYTES) // ENTRY_BYTES
        last = max(self._views, default=0)
        self.file_end_offset = (last + len(self._views.get(last, _NOTHING))) // ENTRY_BYTES
        self.tail_end_offset = self.tail_from + len(self._tail) // ENTRY_BYTES
        self.end_offset = max(self.file_end_offset, self.tail_end_offset)

    def entry(self, queue_offset: int) -> Entry | None:
        """Return an entry, or None if it is neither in a file nor in the tail."""
        if self.tail_from <= queue_offset < self.tail_end_offset:
            first = (queue_offset - self.tail_from) * ENTRY_BYTES
            return entry.decode_all(self._tail[first : first + ENTRY_BYTES])[0]
        position = queue_offset * ENTRY_BYTES
        inside = position % _FILE_BYTES
        view, stored = self._views.get(position - inside, _NOTHING), b""
        with _noting(self.path(queue_offset), self.unreadable):
            stored = bytes(view[inside : inside + ENTRY_BYTES])
        if len(stored) == ENTRY_BYTES:
            return entry.decode_all(stored)[0]
        if self.path(queue_offset) in self.unreadable:
            self._views[position - inside] = _NOTHING
        return None

    def path(self, queue_offset: int) -> str:
        """Return the path of the file for a queue offset."""
        first_byte = queue_offset * ENTRY_BYTES // _FILE_BYTES * _FILE_BYTES
        return f"{self.folder}/{first_byte:0{layout.OFFSET_DIGITS}d}"


def stored_in(store: OpenStore) -> Iterator[StoredQueue]:
    """Yield the queues that the next start takes over from the newest snapshot."""
    newest = snapshot.newest(store.overlay())
    if newest is None or not is_marked(store.overlay(), newest.parts[derived.QUEUES_MADE_AT]):
        return iter(())
    return stored_queues(newest.parts[derived.QUEUES])


@dataclass(slots=True)
class _Queue:
    files: QueueFiles
    seen_offset: int = -1
    unseen: list[range] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)

    def begin(self, queue_offset: int) -> None:
        """Record a queue offset: skipped entries are unseen, and comparisons at or after a repeated offset
        are discarded.
        """
        if queue_offset > self.seen_offset + 1:
            self.unseen.append(range(self.seen_offset + 1, queue_offset))
        elif queue_offset <= self.seen_offset:
            self.wrong = [one for one in self.wrong if one < queue_offset]

    def compare(self, queue_offset: int, wanted: Entry) -> bool:
        """Compare an entry with the expected entry. Returns whether the entry exists."""
        self.seen_offset = queue_offset
        stored = self.files.entry(queue_offset)
        if stored is not None and stored != wanted:
            self.wrong.append(queue_offset)
        return stored is not None


@dataclass(frozen=True, slots=True)
class LostEntry:
    """An entry that refers to a damaged region, which identifies a lost message."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int


class QueueCheck:
    """All queues of a store compared with its log."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._stored = {(one.topic, one.queue_id): one for one in stored_in(store)}
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._unreadable: dict[str, str] = {}
        """The reasons why folders or the mark cannot be read, by path."""
        self._names = dict(self._names_there())
        self._present = self._names.keys() | self._stored.keys()
        topics = {topic for topic, _ in self._names}
        self._gone = {one.topic for one in self._stored.values() if one.has_files} - topics
        self._is_all_gone = not topics
        self.entry_count = 0
        """Number of entries of the log's records."""
        self.unwritten_count = 0
        """Number of these entries that are neither in a file nor in a snapshot."""

    def see(self, found: FoundRecord) -> None:
        """Compare the next record of the log with its entry."""
        record = found.record
        if record.topic in (RETENTION_TOPIC, TOPIC_TOPIC):
            self._cut(record)
        if not is_indexed(record):
            return
        entries = range(record.queue_offset, record.queue_offset + message_count(record))
        self.entry_count += len(entries)
        if not self._present:
            self.unwritten_count += len(entries)
            return
        queue = self._queue(record.topic, record.queue_id)
        queue.begin(record.queue_offset)
        for queue_offset in entries:
            wanted = entry_of(record, found.record_bytes, queue_offset)
            self.unwritten_count += not queue.compare(queue_offset, wanted)

    def _cut(self, record: Record) -> None:
        """Expect no entries that were removed since the newest snapshot; their files may be gone."""
        for topic, queue_id, min_offset in json.loads(record.body).get("queues") or ():
            stored = self._stored.get((topic, queue_id))
            if stored is not None and stored.min_offset < min_offset:
                risen = stored._replace(min_offset=min(min_offset, stored.end_offset))
                self._stored[topic, queue_id] = risen
                self._queue(topic, queue_id).files.needed_from = risen.min_offset

    def lost(self, damaged: list[Damage]) -> list[LostEntry]:
        """Return the entries that refer to damaged regions. Every record must have been passed."""
        return [
            LostEntry(topic, queue_id, queue_offset, stored.physical_offset)
            for (topic, queue_id), queue in self._all()
            for queue_offset, stored in _unseen(queue)
            if _is_in(damaged, stored.physical_offset)
        ]

    def findings(self, damaged: list[Damage]) -> Iterator[Finding]:
        """Yield all findings."""
        yield from self._of_folders()
        told: set[str] = set()
        for one in chain(self._of_entries(damaged), self._of_files()):
            if one.is_damage:
                told |= {one.path, one.path.rsplit("/", 1)[0]}
            yield one
        told |= self._unreadable.keys()
        for key, stored in self._stored.items():
            if stored.topic not in self._gone and _folder(*key) not in told:
                yield from _crc_findings(self._store, stored, self._names.get(key, ()))

    def _of_folders(self) -> Iterator[Finding]:
        """Yield the folders that are missing or cannot be listed."""
        gone = [f"{layout.CONSUMEQUEUE}/{topic}" for topic in sorted(self._gone)]
        if self._is_all_gone and gone:
            gone = [layout.CONSUMEQUEUE]
        for folder in gone:
            if not {folder, layout.CONSUMEQUEUE} & self._unreadable.keys():
                yield Finding("queue", folder, -1, -1, "is not there; the next start makes it", False)
        for folder, why in self._unreadable.items():
            yield Finding(
                "queue", folder, -1, -1, f"cannot be listed ({why}); what is in it can be made anew"
            )
        yield from _of_mark(self._store)

    def _of_files(self) -> Iterator[Finding]:
        """Yield the files that could not be read, as far as their entries were needed."""
        for _, queue in sorted(self._queues.items()):
            for path, why in queue.files.unreadable.items():
                yield Finding("queue", path, -1, -1, f"cannot be read ({why}); it can be made anew")

    def _of_entries(self, damaged: list[Damage]) -> Iterator[Finding]:
        for (topic, _), queue in self._all():
            if topic in self._gone or queue.files.folder in self._unreadable:
                continue
            adopted_count = queue.files.tail_end_offset
            yield from _told(queue, queue.wrong, adopted_count, "do not say where their records lie")
            strays = self._strays(queue, damaged)
            yield from _told(queue, strays, adopted_count, "point where the log has no record of this queue")
            yield from _short(queue)

    def _strays(self, queue: _Queue, damaged: list[Damage]) -> list[int]:
        first_offset, durable_offset = self._store.first_offset, self._store.durable_offset
        return [
            queue_offset
            for queue_offset, stored in _unseen(queue)
            if stored.record_bytes
            and first_offset <= stored.physical_offset < durable_offset
            and not _is_in(damaged, stored.physical_offset)
        ]

    def _all(self) -> Iterable[tuple[tuple[str, int], _Queue]]:
        for key in self._present:
            self._queue(*key)
        return sorted(self._queues.items())

    def _names_there(self) -> Iterator[tuple[tuple[str, int], list[str]]]:
        """Yield each queue that has a folder as (topic, queue id), with the names of its files."""
        for topic in self._listed(layout.CONSUMEQUEUE):
            for queue_id in filter(str.isdigit, self._listed(f"{layout.CONSUMEQUEUE}/{topic}")):
                key = topic, int(queue_id)
                names = list[str]()
                with _noting(_folder(*key), self._unreadable):
                    names = names_of(self._store, *key)
                yield key, names

    def _listed(self, folder: str) -> list[str]:
        with _noting(folder, self._unreadable):
            return self._store.files.list(folder)
        return []

    def _queue(self, topic: str, queue_id: int) -> _Queue:
        key = (topic, queue_id)
        if key not in self._queues:
            files = QueueFiles(self._store, key, self._names.get(key, ()), self._stored.get(key))
            self._queues[key] = _Queue(files, files.first_offset - 1)
        return self._queues[key]


def _crc_findings(store: OpenStore, one: StoredQueue, names: Collection[str]) -> Iterator[Finding]:
    """Yield a finding if the files of a queue do not match the CRCs in the newest snapshot.

    Entries whose records are no longer in the log cannot be compared, and a start uses only files with valid
    CRCs. `names` are the files that existed before. A broker may have deleted one in the meantime
    (`StoreError`).
    """
    folder = _folder(one.topic, one.queue_id)
    missing = [path for path in _needed(one) if path.rpartition("/")[2] not in names]
    for path in missing:
        yield Finding("queue", path, -1, -1, "is missing, and the newest snapshot counts on it")
    queue = ConsumeQueue(store.overlay(), one.topic, one.queue_id, one.written_count)
    queue.adopt(one.crcs, one.tail, one.min_offset, one.begins_at)
    if not missing and not queue.is_sound():
        count = one.written_count
        what = f"its first {count} entries do not match their CRC; the next start makes them anew"
        yield Finding("queue", folder, 0, count, what)


def _needed(one: StoredQueue) -> Iterator[str]:
    """Yield the paths of the files that a start requires. Files below the cut may be deleted."""
    for path, length, _ in files_of(one):
        if int(path.rpartition("/")[2]) + length > one.min_offset * ENTRY_BYTES:
            yield path


def _of_mark(store: OpenStore) -> Iterator[Finding]:
    """Yield a finding if the mark that makes a start use the queue files cannot be read."""
    unreadable: dict[str, str] = {}
    with _noting(layout.QUEUES_WHOLE, unreadable):
        if store.files.size(layout.QUEUES_WHOLE) >= 0:
            store.files.read(layout.QUEUES_WHOLE, 0, MARK_BYTES_MAX)
    for path, why in unreadable.items():
        yield Finding(
            "queue", path, -1, -1, f"cannot be read ({why}); the next start makes all queues anew", False
        )


def names_of(store: OpenStore, topic: str, queue_id: int) -> list[str]:
    """Return the names of the files of a queue. Raises OSError or `StoreError`."""
    return [name for name in store.files.list(_folder(topic, queue_id)) if name.isdigit()]


@contextmanager
def _noting(path: str, into: dict[str, str]) -> Iterator[None]:
    """Record the reason why the disk cannot read a path. Errors with other causes are raised."""
    try:
        yield
    except OSError as error:
        if is_unrelated_error(error):
            raise
        into[path] = error.strerror or str(error)


def _folder(topic: str, queue_id: int) -> str:
    return f"{layout.CONSUMEQUEUE}/{topic}/{queue_id}"


def _unseen(queue: _Queue) -> Iterator[tuple[int, Entry]]:
    tail = range(queue.seen_offset + 1, queue.files.end_offset)
    for queue_offset in chain(*queue.unseen, tail):
        stored = queue.files.entry(queue_offset)
        if stored is not None:
            yield queue_offset, stored


def _told(queue: _Queue, queue_offsets: list[int], adopted_count: int, what: str) -> Iterator[Finding]:
    """Yield findings about entries, separated into those that the next start takes over and the others."""
    split = bisect_left(queue_offsets, adopted_count)
    for part in _runs(queue_offsets[:split]):
        yield _finding(queue, part, what, True)
    for part in _runs(queue_offsets[split:]):
        yield _finding(queue, part, f"{what}; the next start writes them again", False)


def _short(queue: _Queue) -> Iterator[Finding]:
    files = queue.files
    if files.file_end_offset < files.tail_from and files.needed_from < files.tail_from:
        end_offset, wanted_offset = files.file_end_offset, files.tail_from
        what = f"ends at entry {end_offset}, the newest snapshot counts on {wanted_offset}"
        yield Finding("queue", files.folder, end_offset, wanted_offset, what)


def _finding(queue: _Queue, part: range, what: str, is_damage: bool) -> Finding:
    sentence = f"{len(part)} entries from {part.start} on {what}"
    return Finding("queue", queue.files.path(part.start), part.start, part.stop, sentence, is_damage)


def _runs(queue_offsets: list[int]) -> Iterator[range]:
    start = 0
    for at in range(1, len(queue_offsets) + 1):
        if at == len(queue_offsets) or queue_offsets[at] != queue_offsets[at - 1] + 1:
            yield range(queue_offsets[start], queue_offsets[at - 1] + 1)
            start = at


def _is_in(damaged: list[Damage], offset: int) -> bool:
    return any(one.first_offset <= offset < one.end_offset for one in damaged)
