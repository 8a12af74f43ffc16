"""The index of one queue of one topic: entry number n, at byte 20 n, is the record with queue offset n.

    ... files deleted ...|min_offset ... in files ...|written ... gathered in memory ...|end_offset
    consumequeue/<topic>/<queue_id>/<20 digits: first byte>     300,000 entries a file

A pure function of the log, kept in files as RocketMQ's `ConsumeQueue` keeps them; it may be deleted and is
made anew. New entries gather in memory, where they are read, until a worker has written them
(`consumequeue.dispatch`). Entries have no CRC of their own, so a snapshot keeps one for each file: a start
reads the files once and trusts no other bytes. Later a file is compared with its CRC when an entry of it is
a gap, or leads to no record of the queue (`vet`).

Cost: an entry is 20 bytes; a search by log offset some 20 reads. Weak spots: what a start reads grows with
all entries, not with what is new; on a full disk entries gather in memory without a limit of their own.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import dropwhile
from typing import Final, NamedTuple

import numpy as np

from commitlog.bulk import Flags, Integers
from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import CONSUMEQUEUE, OFFSET_DIGITS
from commitlog.limits import QUEUE_FILE_ENTRIES
from consumequeue import entry
from consumequeue.entry import ENTRY_BYTES, Entries, Entry

_READ_AHEAD_COUNT: Final = 64
_MATCHED_AT_FIRST: Final = 64
_MATCHED_TIMES: Final = 8
_FILE_BYTES: Final = QUEUE_FILE_ENTRIES * ENTRY_BYTES
_ADVICE: Final = "The queues are made anew from the log at the next start: restart the broker."


FoundDamaged = Callable[[str, str], None]
"""Takes the path of a damaged file, and a sentence about it."""


def ignore_damage(path: str, what: str) -> None:
    """Take no notice: for tools, which prove the files themselves."""


class QueueWrite(NamedTuple):
    """Entries to be written to a file of a queue, from byte `position` of the file on."""

    path: str
    position: int
    entries: bytes


TakenQueue = tuple[int, dict[int, int], tuple[tuple[int, int, bytes], ...], int]
"""A queue at one moment, for `kept`: entry count, CRCs of its files, what is gathered, where it begins."""


class ConsumeQueue:
    """The index of queue `queue_id` of `topic`, whose files hold `written_count` entries."""

    def __init__(
        self,
        disk: Disk,
        topic: str,
        queue_id: int,
        written_count: int = 0,
        found_damaged: FoundDamaged = ignore_damage,
    ) -> None:
        self._disk, self._found_damaged = disk, found_damaged
        self.key = topic, queue_id
        self._folder = f"{CONSUMEQUEUE}/{topic}/{queue_id}"
        self._unwritten = bytearray()
        self._written_count = written_count
        self._crcs: dict[int, int] = {}
        """Of each file, by its first byte; replaced, never changed: checkpoints share it."""
        self._vetted: dict[int, tuple[int, bool]] = {}
        """By first byte of a file: the CRC with which `vet` last compared it, and whether it matched."""
        self.min_offset = 0
        # In bytes: Python's collector does not count objects that take the place of others, so a look at many
        # queues would leave it more of them than it should examine in one go.
        self._read_ahead = b""
        self._read_ahead_from = 0

    @property
    def end_offset(self) -> int:
        """The queue offset that the next record will have."""
        return self._written_count + len(self._unwritten) // ENTRY_BYTES

    def put(self, queue_offset: int, new: Entry) -> None:
        """Add an entry at its own queue offset; offsets missing before it are filled as a gap."""
        self.put_many(queue_offset, entry.encode(new))

    def put_many(self, queue_offset: int, encoded: bytes) -> None:
        """Add entries that lie back to back, the first at `queue_offset`; a gap before it is filled."""
        end_offset = self.end_offset
        assert queue_offset >= end_offset, f"{self._folder}: offset {queue_offset} was already given"
        if end_offset == 0:
            self._begin_at(queue_offset)
        if queue_offset != end_offset:
            self.pad_to(queue_offset, int.from_bytes(encoded[:8], "big"))
            assert self.end_offset == queue_offset, f"{self._folder}: a gap before {queue_offset} is not full"
        self._unwritten += encoded

    def entry(self, queue_offset: int) -> Entry:
        """Return an entry below `end_offset`, reading ahead, since the next is wanted soon."""
        assert 0 <= queue_offset < self.end_offset, f"{self._folder}: there is no offset {queue_offset}"
        at = (queue_offset - self._read_ahead_from) * ENTRY_BYTES
        if not 0 <= at < len(self._read_ahead):
            self._read_ahead = self._stored(queue_offset, _READ_AHEAD_COUNT)
            self._read_ahead_from, at = queue_offset, 0
        return entry.decode(self._read_ahead, at)

    def entries(self, queue_offset: int, count: int) -> list[Entry]:
        """Return up to `count` entries from `queue_offset` on, as far as they were read ahead."""
        self.entry(queue_offset)
        first = (queue_offset - self._read_ahead_from) * ENTRY_BYTES
        return entry.decode_all(self._read_ahead[first : first + count * ENTRY_BYTES])

    def get(self, queue_offset: int, count: int) -> list[Entry]:
        """Return up to `count` entries from `queue_offset` on, as far as they lie together.

        A gap has `record_bytes` 0.
        """
        return entry.decode_all(self._stored(queue_offset, count))

    def rows(self, queue_offset: int, count: int) -> Entries:
        """Return what `get` returns as an array of `entry.ENTRY`; empty where the file is gone."""
        return np.frombuffer(self._stored(queue_offset, count), entry.ENTRY)

    def next_match(self, queue_offset: int, tags_codes: Integers, count: int) -> int:
        """Return the first of `count` offsets from `queue_offset` on whose tag has one of these hashes.

        The hashes ascend. Where none has, return the offset behind the entries that were looked at, at least
        one.
        """
        # In blocks that grow: a call costs what it passes over, also where one of some entries matches.
        block, at, end = _MATCHED_AT_FIRST, queue_offset, queue_offset + count
        while True:
            rows = self.rows(at, min(block, end - at))
            hits = np.flatnonzero(_is_in(rows["tags_code"], tags_codes))
            if len(hits):
                return at + int(hits[0])
            at, block = at + len(rows), block * _MATCHED_TIMES
            if at >= end or not len(rows) or at >= self.end_offset:
                return at

    def _stored(self, queue_offset: int, count: int) -> bytes:
        """Return the bytes of up to `count` entries from `queue_offset` on, as far as they lie together.

        None below `min_offset` where the file was deleted; raise `StoreDamaged` where it is missing or short.
        """
        in_files = min(count, max(0, self._written_count - queue_offset))
        first = (queue_offset + in_files - self._written_count) * ENTRY_BYTES
        gathered = (
            b"" if first < 0 else bytes(self._unwritten[first : first + (count - in_files) * ENTRY_BYTES])
        )
        if not in_files:
            return gathered
        position, length = queue_offset * ENTRY_BYTES, in_files * ENTRY_BYTES
        inside = position % _FILE_BYTES
        path, wanted_bytes = self._path(position - inside), min(length, _FILE_BYTES - inside)
        found = self._disk.read(path, inside, wanted_bytes)
        if len(found) < wanted_bytes and queue_offset >= self.min_offset:
            found = found[: len(found) // ENTRY_BYTES * ENTRY_BYTES]
            what = f"{path} is missing or cut short: the entry at queue offset {{}} is gone. {_ADVICE}"
            what = what.format(queue_offset + len(found) // ENTRY_BYTES)
            self._found_damaged(path, what)
            if not found:
                raise StoreDamaged(what)
        # A read ends with its file, or early where the file is damaged: what is gathered lies elsewhere then.
        return found + gathered if len(found) == length else found

    def vet(self, queue_offset: int) -> bool:
        """Return whether the file of an entry matches its CRC; report it if not. Entries in memory are sound.

        Reads the file, up to 6 MB, unless it was compared since entries were last written to it.
        """
        first = queue_offset * ENTRY_BYTES // _FILE_BYTES * _FILE_BYTES
        crc = self._crcs.get(first)
        if queue_offset >= self._written_count or crc is None:
            return True
        if (vetted := self._vetted.get(first)) is None or vetted[0] != crc:
            path, length = self._path(first), min(_FILE_BYTES, self._written_count * ENTRY_BYTES - first)
            is_sound = zlib.crc32(self._disk.read(path, 0, length)) == crc
            vetted = self._vetted[first] = crc, is_sound
            if not is_sound:
                what = f"{path} does not match its CRC; met at queue offset {queue_offset}. {_ADVICE}"
                self._found_damaged(path, what)
        return vetted[1]

    def holds(self, physical_offset: int) -> bool:
        """Return whether a record of this queue begins at a log offset; about 20 reads, as offsets ascend."""
        at = bisect_left(
            range(self.end_offset), physical_offset, lo=self.min_offset, key=self._physical_offset
        )
        if at == self.end_offset:
            return False
        (found,) = self.get(at, 1)
        return found.record_bytes > 0 and found.physical_offset == physical_offset

    def write(self) -> list[str]:
        """Write the gathered entries to the files, unsynced: they can always be made again. Return the paths.

        Raise OSError where there is no room; what was not written stays gathered and can be read.
        """
        writes = self.unwritten()
        for one in writes:
            self._disk.write(*one)
            self.written(one)
        return [one.path for one in writes]

    def written(self, one: QueueWrite) -> None:
        """Let go of gathered entries that are in the files now; do nothing if they were let go of before."""
        first_byte, inside = int(one.path[-OFFSET_DIGITS:]), one.position
        if first_byte + inside != self._written_count * ENTRY_BYTES:
            return
        assert self._unwritten.startswith(one.entries), f"{one.path}: others were written than gathered"
        crc = zlib.crc32(one.entries, self._crcs.get(first_byte, 0))
        self._crcs = self._crcs | {first_byte: crc}
        del self._unwritten[: len(one.entries)]
        self._written_count += len(one.entries) // ENTRY_BYTES

    @property
    def has_unwritten(self) -> bool:
        """Whether anything is gathered and not in the files yet."""
        return bool(self._unwritten)

    def unwritten(self) -> list[QueueWrite]:
        """Return what is gathered and not in the files yet, which stays gathered."""
        return [QueueWrite(self._path(at), inside, part) for at, inside, part in self._parts()]

    def _parts(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield what is gathered, by file: the file's first byte, the position in the file, the entries."""
        first, position = 0, self._written_count * ENTRY_BYTES
        while first < len(self._unwritten):
            inside = position % _FILE_BYTES
            part = bytes(self._unwritten[first : first + _FILE_BYTES - inside])
            yield position - inside, inside, part
            first, position = first + len(part), position + len(part)

    def cut(self, queue_offset: int) -> list[str]:
        """Take back the entries from `queue_offset` on; the next entry comes there. Raise OSError.

        Return the paths of files that may be written and not synced.
        """
        paths = self.write()
        assert queue_offset <= self._written_count, f"{self._folder}: nothing lies at {queue_offset}"
        self._written_count = queue_offset
        self.min_offset = min(self.min_offset, queue_offset)
        self._read_ahead = b""
        end = queue_offset * ENTRY_BYTES
        last = end // _FILE_BYTES * _FILE_BYTES
        for name in self._disk.list(self._folder):
            if int(name) > last:
                self._disk.delete(f"{self._folder}/{name}")
        if self._disk.size(self._path(last)) > end - last:
            self._disk.truncate(self._path(last), end - last)
        self._crcs = {at: crc for at, crc in self._crcs.items() if at < last}
        if end > last:
            self._crcs = self._crcs | {last: zlib.crc32(self._disk.read(self._path(last), 0, end - last))}
        return [*paths, self._path(last)]

    def taken(self) -> TakenQueue | None:
        """Return the queue at this moment, of which `kept` makes what a snapshot keeps; None if empty."""
        end_offset = self.end_offset
        if end_offset == 0:
            return None
        return end_offset, self._crcs, tuple(self._parts()) if self._unwritten else (), self.min_offset

    def pad_to(self, queue_offset: int, physical_offset: int) -> None:
        """Fill up to `queue_offset` with gaps: those offsets were once given to records that are gone."""
        # All gaps but one are a hole, which costs nothing. The last is written, since without an entry there
        # would be no file, and `adopt` asks for the last file.
        if self.end_offset == 0 < queue_offset:
            self._begin_at(queue_offset - 1)
        missing_count = queue_offset - self.end_offset
        if missing_count > 0:
            self._unwritten += entry.encode(Entry(physical_offset, 0, 0)) * missing_count

    def first_from(self, log_offset: int) -> int:
        """Return the first queue offset whose record lies at a log offset or behind it."""
        return bisect_left(range(self.end_offset), log_offset, lo=self.min_offset, key=self._physical_offset)

    def rise(self, min_offset: int) -> None:
        """Let the queue begin at `min_offset`, at most at its end, and never lower than before."""
        self.min_offset = max(self.min_offset, min(min_offset, self.end_offset))
        assert self.min_offset <= self.end_offset, f"{self._folder}: begins behind its end"

    def delete_unneeded(self) -> list[str]:
        """Delete the files whose entries all lie below `min_offset`, as far as the disk lets them go.

        Return the paths of files that may be written and not synced.
        """
        paths = [one.path for one in self.unwritten()]
        with suppress(OSError):  # gathered entries of a file that goes would make it again later
            self.write()
        # The file of the last entry stays, though nobody needs its entries: it says where the queue ends.
        first = min(self.min_offset, self.end_offset - 1) * ENTRY_BYTES // _FILE_BYTES * _FILE_BYTES
        for name in self._disk.list(self._folder):
            if int(name) < first:
                with suppress(OSError):  # it is tried again when more of the log goes
                    self._disk.delete(f"{self._folder}/{name}")
        self._crcs = {at: crc for at, crc in self._crcs.items() if at >= first}
        return paths

    def adopt(self, crcs: Iterable[tuple[int, int]]) -> bool:
        """Take over the files of an earlier run, cut behind the last entry; return whether all are sound.

        False if a file is missing or does not match its CRC, as `freeze` told them; the oldest may have been
        deleted since.
        """
        self._crcs = dict(dropwhile(lambda one: self._disk.size(self._path(one[0])) < 0, sorted(crcs)))
        end = self._written_count * ENTRY_BYTES
        last = max(0, end - 1) // _FILE_BYTES * _FILE_BYTES
        for name in self._disk.list(self._folder):
            if int(name) > last:
                self._disk.delete(f"{self._folder}/{name}")
        if end == 0 or self._disk.size(self._path(last)) < end - last:
            return end == 0
        self._disk.truncate(self._path(last), end - last)
        return last in self._crcs and all(self._matches(at, crc) for at, crc in self._crcs.items())

    def _matches(self, first_byte: int, crc: int) -> bool:
        path = self._path(first_byte)
        return self._disk.size(path) >= 0 and zlib.crc32(bytes(self._disk.view(path))) == crc

    def _begin_at(self, queue_offset: int) -> None:
        """Begin a queue whose first records the log no longer has: its file begins with a hole, all gaps."""
        assert self.end_offset == 0, f"{self._folder}: a queue begins once"
        self._written_count = self.min_offset = queue_offset
        inside = queue_offset * ENTRY_BYTES % _FILE_BYTES
        if inside:
            first_byte = queue_offset * ENTRY_BYTES - inside
            self._crcs = self._crcs | {first_byte: zlib.crc32(bytes(inside))}

    def _physical_offset(self, queue_offset: int) -> int:
        """Return where an entry points; -1 for an entry in a hole or in a deleted file."""
        position = queue_offset * ENTRY_BYTES
        if queue_offset < self._written_count and self._disk.size(self._path_at(position)) <= 0:
            return -1
        (found,) = self.get(queue_offset, 1)
        # A gap names the record behind it. It lies before that record in every search: so one byte less.
        return found.physical_offset if found.record_bytes else max(found.physical_offset - 1, -1)

    def _path_at(self, position: int) -> str:
        return self._path(position // _FILE_BYTES * _FILE_BYTES)

    def _path(self, first_byte: int) -> str:
        return _path_of(*self.key, first_byte)


def writes_of(key: tuple[str, int], taken: TakenQueue) -> Iterator[QueueWrite]:
    """Yield what a queue (topic, queue id) that was taken had gathered; in any thread."""
    for first_byte, inside, part in taken[2]:
        yield QueueWrite(_path_of(*key, first_byte), inside, part)


def kept(taken: TakenQueue) -> tuple[int, list[tuple[int, int]], int]:
    """Return what a snapshot keeps of a queue that was taken: entry count, CRCs, where it begins.

    (First byte, CRC-32) of each file, as it will be when what was gathered is in it; in any thread.
    """
    entry_count, of_files, gathered, min_offset = taken
    crcs = of_files.copy()
    for first_byte, _, part in gathered:
        crcs[first_byte] = zlib.crc32(part, crcs.get(first_byte, 0))
    return entry_count, [*crcs.items()], min_offset


def _is_in(codes: Integers, wanted: Integers) -> Flags:
    """Return which of the codes are among those wanted, which ascend: 12 steps for each at 2,048 wanted."""
    at = np.searchsorted(wanted, codes)
    found: Flags = wanted[np.minimum(at, len(wanted) - 1)] == codes
    return found


def files_of(
    topic: str, queue_id: int, entry_count: int, first_bytes: Iterable[int]
) -> Iterator[tuple[str, int]]:
    """Yield (path, length in bytes) of the files of a queue of `entry_count`, by the first byte of each."""
    for first_byte in first_bytes:
        path = _path_of(topic, queue_id, first_byte)
        yield path, min(_FILE_BYTES, entry_count * ENTRY_BYTES - first_byte)


def _path_of(topic: str, queue_id: int, first_byte: int) -> str:
    return f"{CONSUMEQUEUE}/{topic}/{queue_id}/{first_byte:0{OFFSET_DIGITS}d}"
