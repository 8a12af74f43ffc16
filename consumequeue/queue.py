"""The index of a single queue.

Entry n begins at byte 20 n and holds the location of the record with queue offset n.

    ... files deleted ...|min_offset ... in files ...|written_count ... tail in memory ...|end_offset
    consumequeue/<topic>/<queue_id>/<20 digits: first byte>     300,000 entries per file

The index is derived from the log and can be rebuilt. The files have RocketMQ's `ConsumeQueue` format. New
entries are kept in an in-memory tail until a worker has written them to a file (`consumequeue.dispatch`). A
snapshot contains the tail and one CRC per file, because entries have no CRCs of their own.

Rules:
- Startup opens no file. Bytes beyond `written_count` are invalid and will be overwritten.
- All data read from a file is verified against the CRCs of its blocks. Thus, a damaged entry is never
  returned and never hides a message. When a process first reads a file, it reads the whole file and computes
  the CRCs of its blocks, because a snapshot contains only one CRC per file.
- A file is damaged if it is too short, cannot be read, or does not match its CRC. Such damage does not stop
  the broker, because the queues can be rebuilt. The damage is reported once, and the file is not read again.
  Attempts to read its entries fail until the queues are rebuilt at the next startup.

Cost: 20 bytes per entry. The first access to a file reads up to 6 MB, and each subsequent access reads one or
two 2,560-byte blocks. A search by log offset needs about 20 reads. A queue with one entry takes up 500 bytes
of memory, including the references to it in `Dispatch`. The block CRCs of each file that was read use up to 9
KB. Limitations: damage to a file is detected only when the file is first read. If the disk stays full, tails
are dropped.
"""

from __future__ import annotations

import zlib
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import suppress
from itertools import dropwhile
from sys import intern
from typing import Any, Final, NamedTuple

import numpy as np

from commitlog.disk.descriptors import OUT_OF_DESCRIPTORS
from commitlog.disk.disk import Disk, SyncFailed
from commitlog.errors import StoreDamaged
from commitlog.layout import CONSUMEQUEUE, OFFSET_DIGITS
from commitlog.limits import QUEUE_FILE_ENTRIES
from commitlog.records.bulk import Flags, Integers
from consumequeue import entry
from consumequeue.entry import ENTRY_BYTES, Entries, Entry

_READ_AHEAD_COUNT: Final = 64
_MATCHED_AT_FIRST: Final = 64
_MATCHED_TIMES: Final = 8
_GAP_AT_ONCE: Final = 8_192
UNKNOWN: Final = -2
_FILE_BYTES: Final = QUEUE_FILE_ENTRIES * ENTRY_BYTES
_BLOCK_BYTES: Final = 128 * ENTRY_BYTES
_ADVICE: Final = "The queues are made anew from the log at the next start: restart the broker."


FoundDamaged = Callable[[str, str], None]
"""Called with the path of a damaged file and a description of the damage."""


def ignore_damage(path: str, what: str) -> None:
    """Do nothing. This is for tools that verify the files themselves."""


def is_unrelated_error(error: OSError) -> bool:
    """Return whether an error is unrelated to the file being accessed.

    Examples are a lack of file descriptors and a failed folder sync.
    """
    return error.errno in OUT_OF_DESCRIPTORS or isinstance(error, SyncFailed)


def is_folder_error(path: str, error: OSError) -> bool:
    """Return whether an error is a failed sync of a file's queue folder.

    The file's directory entry may then be lost, just as its content may be lost if syncing the file fails.
    """
    failed = str(error.filename)
    is_of_queues = f"{failed}/".startswith(f"{CONSUMEQUEUE}/")
    return isinstance(error, SyncFailed) and is_of_queues and path.startswith(f"{failed}/")


class QueueWrite(NamedTuple):
    """Entries to be written to a queue file at byte `position`."""

    path: str
    position: int
    entries: bytes


class TakenQueue(NamedTuple):
    """State of a queue at a point in time. `kept` converts it to a snapshot row."""

    written_count: int
    crcs: dict[int, int]
    tail: bytes
    min_offset: int
    begins_at: int


class _Blocks:
    """CRC-32s of the blocks in the first `length` bytes of a file."""

    __slots__ = ("_crcs", "length")

    def __init__(self, stored: bytes) -> None:
        self.length = 0
        self._crcs = array("I")
        self.extend(stored)

    def extend(self, more: bytes) -> None:
        """Update the CRCs for appended bytes."""
        at = 0
        while at < len(more):
            inside = self.length % _BLOCK_BYTES
            part = more[at : at + _BLOCK_BYTES - inside]
            if inside:
                self._crcs[-1] = zlib.crc32(part, self._crcs[-1])
            else:
                self._crcs.append(zlib.crc32(part))
            at, self.length = at + len(part), self.length + len(part)

    def span(self, position: int, length: int) -> tuple[int, int]:
        """Return the byte range of the blocks that contain these bytes."""
        begin = position // _BLOCK_BYTES * _BLOCK_BYTES
        return begin, min(-(-(position + length) // _BLOCK_BYTES) * _BLOCK_BYTES, self.length)

    def match(self, begin: int, stored: bytes) -> bool:
        """Return whether the complete blocks starting at byte `begin` match their CRCs."""
        first = begin // _BLOCK_BYTES
        starts = range(0, len(stored), _BLOCK_BYTES)
        return all(
            zlib.crc32(stored[at : at + _BLOCK_BYTES]) == self._crcs[first + number]
            for number, at in enumerate(starts)
        )


_NO_FILES: Final[dict[int, int]] = {}
_NO_BLOCKS: Final[dict[int, _Blocks]] = {}
_NO_DAMAGE: Final[dict[int, str]] = {}
_NO_DOUBT: Final = frozenset[int]()


class ConsumeQueue:
    """The index of a queue. Initially, its files contain `written_count` entries."""

    __slots__ = (
        "_begins_at",
        "_blocks",
        "_crcs",
        "_damaged",
        "_disk",
        "_found_damaged",
        "_read_ahead",
        "_read_ahead_from",
        "_tail",
        "_untrusted",
        "_written_count",
        "compared_bytes",
        "key",
        "min_offset",
        "noted_bytes",
    )

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
        self._tail = bytearray()
        self._written_count = written_count
        self._crcs = _NO_FILES
        """CRC of each file, by its first byte. Checkpoints share this dictionary, so it never changes.
        """
        self._untrusted = _NO_DOUBT
        """First bytes of files that could not be synced. Later processes must not trust them."""
        self._damaged = _NO_DAMAGE
        """Descriptions of damaged files, by first byte. The dictionary is replaced, never changed."""
        self._blocks = _NO_BLOCKS
        """Blocks of the files that were read, by first byte. They are extended in place."""
        self.min_offset = 0
        self._begins_at = UNKNOWN
        # The entries are stored as bytes, because the objects created by reading many queues would slow down
        # the Python garbage collector.
        self._read_ahead = b""
        self._read_ahead_from = 0
        self.compared_bytes = 0
        """Bytes of all files read as a whole: a measure of how long the event loop was blocked."""
        self.noted_bytes = 0
        """Size of the tail in bytes when `consumequeue.tails` last checked it."""

    @property
    def tail_bytes(self) -> int:
        """Total size in bytes of the entries that exist only in memory."""
        return len(self._tail)

    @property
    def end_offset(self) -> int:
        """Queue offset of the next record."""
        return self._written_count + len(self._tail) // ENTRY_BYTES

    def put(self, queue_offset: int, new: Entry) -> None:
        """Add an entry at its queue offset. Fill missing offsets with a gap."""
        self.put_many(queue_offset, entry.encode(new))

    def put_many(self, queue_offset: int, encoded: bytes) -> int:
        """Add contiguous entries, starting at `queue_offset`. Fill missing offsets with a gap.

        Return the size of the tail in bytes.
        """
        end_offset = self._written_count + len(self._tail) // ENTRY_BYTES
        assert queue_offset >= end_offset, f"{self._folder}: offset {queue_offset} was already given"
        if end_offset == 0:
            self._begin_at(queue_offset)
            end_offset = queue_offset
        if self.min_offset == queue_offset:
            self._begins_at = _place_of(entry.decode_all(encoded[:ENTRY_BYTES])[0])
        if queue_offset != end_offset:
            self.pad_to(queue_offset, int.from_bytes(encoded[:8], "big"))
            assert self.end_offset == queue_offset, f"{self._folder}: a gap before {queue_offset} is not full"
        self._tail += encoded
        return len(self._tail)

    def entry(self, queue_offset: int) -> Entry:
        """Return the entry at an offset below `end_offset`, and read ahead."""
        assert 0 <= queue_offset < self.end_offset, f"{self._folder}: there is no offset {queue_offset}"
        at = (queue_offset - self._read_ahead_from) * ENTRY_BYTES
        if not 0 <= at < len(self._read_ahead):
            self._read_ahead = self._stored(queue_offset, _READ_AHEAD_COUNT)
            self._read_ahead_from, at = queue_offset, 0
        return entry.decode(self._read_ahead, at)

    def entries(self, queue_offset: int, count: int) -> list[Entry]:
        """Return up to `count` entries, starting at `queue_offset`.

        Return only entries that were read ahead.
        """
        self.entry(queue_offset)
        first = (queue_offset - self._read_ahead_from) * ENTRY_BYTES
        return entry.decode_all(self._read_ahead[first : first + count * ENTRY_BYTES])

    def get(self, queue_offset: int, count: int) -> list[Entry]:
        """Return up to `count` entries, starting at `queue_offset` and stopping at the end of a file.

        `record_bytes` is 0 in gap entries.
        """
        return entry.decode_all(self._stored(queue_offset, count))

    def rows(self, queue_offset: int, count: int) -> Entries:
        """Return the same entries as `get`, as an array of `entry.ENTRY`.

        The array is empty if the file was deleted.
        """
        return np.frombuffer(self._stored(queue_offset, count), entry.ENTRY)

    def next_match(self, queue_offset: int, tags_codes: Integers, count: int) -> int:
        """Return the first of `count` offsets from `queue_offset` on whose tag hash is in `tags_codes`.

        A gap entry always matches, because the tag of a lost message is unknown. `tags_codes` must be
        ascending. If nothing matches, return the offset after the last entry examined; at least one entry is
        examined.
        """
        # The block size increases, so that the cost of a call is proportional to the number of skipped
        # entries.
        block, at, end = _MATCHED_AT_FIRST, queue_offset, queue_offset + count
        while True:
            rows = self.rows(at, min(block, end - at))
            hits = np.flatnonzero(_is_in(rows["tags_code"], tags_codes) | (rows["record_bytes"] == 0))
            if len(hits):
                return at + int(hits[0])
            at, block = at + len(rows), block * _MATCHED_TIMES
            if at >= end or not len(rows) or at >= self.end_offset:
                return at

    def gap_end(self, queue_offset: int) -> int:
        """Return the end of the gap at `queue_offset`, or the offset where the search stopped.

        The number of entries examined is limited. Adjacent gaps caused by different damaged ranges are
        treated as separate, because each entry in a gap contains the offset of the record after the damaged
        range.
        """
        # The block size increases as in `next_match`, because a queue may have many gaps, most of which are
        # short.
        at, block, place = queue_offset, _MATCHED_AT_FIRST, None
        while at < queue_offset + _GAP_AT_ONCE:
            rows = self.rows(at, min(block, queue_offset + _GAP_AT_ONCE - at))
            if not len(rows):
                break
            if place is None:
                assert not rows["record_bytes"][0], f"{self._folder}: no gap at {queue_offset}"
                place = rows["physical_offset"][0]
            others = np.flatnonzero((rows["record_bytes"] != 0) | (rows["physical_offset"] != place))
            if len(others):
                return at + int(others[0])
            at, block = at + len(rows), block * _MATCHED_TIMES
            if at >= self.end_offset:
                break
        return at

    def whole_gap_end(self, queue_offset: int) -> int:
        """Return the end of the gap at `queue_offset`, regardless of its length.

        This requires about 20 reads. The record after the gap must not be an inner batch. Raise
        `StoreDamaged` if a file is damaged.
        """
        end = self._search(self._physical_offset(queue_offset) + 1)
        assert end > queue_offset, f"{self._folder}: places do not ascend behind {queue_offset}"
        return end

    def place_before_gap(self, queue_offset: int) -> int:
        """Return the log offset in the entry before the gap at `queue_offset`.

        Return -1 for a gap at the start of the queue. If that entry belongs to another gap, return the offset
        of the record after that gap, minus 1. Raise `StoreDamaged` if a file is damaged.
        """
        first = self._search(self._physical_offset(queue_offset))
        return self._physical_offset(first - 1) if first > self.min_offset else -1

    def _stored(self, queue_offset: int, count: int) -> bytes:
        """Return up to `count` encoded entries from `queue_offset` on, up to the end of a file.

        Return b"" if all entries in the file are below `min_offset`. Raise `StoreDamaged` if a file is
        missing or too short.
        """
        in_files = min(count, max(0, self._written_count - queue_offset))
        first = (queue_offset + in_files - self._written_count) * ENTRY_BYTES
        gathered = b"" if first < 0 else bytes(self._tail[first : first + (count - in_files) * ENTRY_BYTES])
        if not in_files:
            return gathered
        position, length = queue_offset * ENTRY_BYTES, in_files * ENTRY_BYTES
        inside = position % _FILE_BYTES
        first_byte, wanted_bytes = position - inside, min(length, _FILE_BYTES - inside)
        # A worker may be deleting the files below `_needed_from`.
        if first_byte in self._crcs and first_byte >= self._needed_from:
            found = self._compared(first_byte, inside, wanted_bytes, queue_offset)
        else:
            assert queue_offset < self.min_offset, f"{self._folder}: no file has offset {queue_offset}"
            found = b""
        # A read stops at the end of a file, and the entries of the tail are returned by a later read.
        return found + gathered if len(found) == length else found

    def _compared(self, first_byte: int, inside: int, length: int, queue_offset: int) -> bytes:
        """Return verified bytes from a file. Raise `StoreDamaged` if it is damaged."""
        if first_byte in self._damaged:
            raise StoreDamaged(self._damaged[first_byte])
        blocks = self._blocks.get(first_byte)
        if blocks is None:
            stored = self._read_all(first_byte, queue_offset)
            self._blocks = self._blocks | {first_byte: _Blocks(stored)}
            return stored[inside : inside + length]
        begin, end = blocks.span(inside, length)
        stored = self._read(first_byte, begin, end - begin)
        if len(stored) != end - begin or not blocks.match(begin, stored):
            raise self._damage(first_byte, self._what(first_byte, queue_offset))
        return stored[inside - begin : inside - begin + length]

    def _read(self, first_byte: int, position: int, length: int) -> bytes:
        """Return bytes from a file. If the read fails, report the damage and raise `StoreDamaged`."""
        path = self._path(first_byte)
        try:
            return self._disk.read(path, position, length)
        except OSError as error:
            if is_unrelated_error(error):
                raise
            what = f"{path} cannot be read ({error.strerror or error}). {_ADVICE}"
            raise self._damage(first_byte, what) from error

    def _damage(self, first_byte: int, what: str) -> StoreDamaged:
        """Record and report damage to a file. Return the exception to raise."""
        self._damaged = self._damaged | {first_byte: what}
        self._found_damaged(self._path(first_byte), what)
        return StoreDamaged(what)

    def _read_all(self, first_byte: int, queue_offset: int) -> bytes:
        """Return the entire content of a file. Raise `StoreDamaged` if it does not match its CRC."""
        self.compared_bytes += self._length(first_byte)
        stored = self._read(first_byte, 0, self._length(first_byte))
        if len(stored) != self._length(first_byte) or zlib.crc32(stored) != self._crcs[first_byte]:
            raise self._damage(first_byte, self._what(first_byte, queue_offset))
        return stored

    def _what(self, first_byte: int, queue_offset: int) -> str:
        """Return the error message for a file that does not match its CRC."""
        path, how = self._path(first_byte), "cannot be read"
        with suppress(OSError):
            is_short = self._disk.size(path) < self._length(first_byte)
            how = "is missing or cut short" if is_short else "does not match its CRC"
        return f"{path} {how}; met at queue offset {queue_offset}. {_ADVICE}"

    def _matches(self, first_byte: int, crc: int) -> bool:
        """Return whether a file has the expected length and its valid entries match its CRC."""
        length = self._length(first_byte)
        try:
            stored = self._disk.read(self._path(first_byte), 0, length)
        except OSError as error:
            if is_unrelated_error(error):
                raise
            return False
        return len(stored) == length and zlib.crc32(stored) == crc

    def _length(self, first_byte: int) -> int:
        """Return the total size in bytes of the valid entries in a file."""
        return min(_FILE_BYTES, self._written_count * ENTRY_BYTES - first_byte)

    def is_sound(self, *, may_be_cut: bool = False) -> bool:
        """Return whether all files with entries at or above `min_offset` are undamaged.

        If `may_be_cut` is true, the oldest files may be missing, because retention may have deleted them
        before the retention record is replayed.
        """
        begins_at = self.min_offset * ENTRY_BYTES
        needed = sorted(one for one in self._crcs if one + self._length(one) > begins_at)
        if may_be_cut:
            needed = [*dropwhile(self._is_gone, needed)]
        return all(self._matches(one, self._crcs[one]) for one in needed)

    def _is_gone(self, first_byte: int) -> bool:
        with suppress(OSError):
            return self._disk.size(self._path(first_byte)) < 0
        return False

    def holds(self, physical_offset: int) -> bool:
        """Return whether a record in the queue begins at a log offset. This requires about 20 reads."""
        at = self._search(physical_offset)
        if at == self.end_offset:
            return False
        (found,) = self.get(at, 1)
        return found.record_bytes > 0 and found.physical_offset == physical_offset

    def write(self) -> list[str]:
        """Write the tail to files without syncing them. Return their paths.

        No sync is needed, because the files can be rebuilt. Raise OSError if the disk is full. Unwritten
        entries stay in the tail and can still be read.
        """
        writes = self.unwritten()
        for one in writes:
            self._disk.write(*one)
            self.written(one)
        return [one.path for one in writes]

    def written(self, one: QueueWrite) -> None:
        """Remove written entries from the tail, unless they have already been removed."""
        first_byte, inside = int(one.path[-OFFSET_DIGITS:]), one.position
        if first_byte + inside != self._written_count * ENTRY_BYTES:
            return
        assert self._tail.startswith(one.entries), f"{one.path}: others were written than gathered"
        before = _crc_before(self._crcs, first_byte, inside)
        self._crcs = self._crcs | {first_byte: zlib.crc32(one.entries, before)}
        if (blocks := self._blocks.get(first_byte)) is not None:
            assert blocks.length == inside, f"{one.path}: {blocks.length} bytes are known of {inside}"
            blocks.extend(one.entries)
        del self._tail[: len(one.entries)]
        self._written_count += len(one.entries) // ENTRY_BYTES

    def mark_untrusted(self, path: str) -> None:
        """Mark a file as untrusted for later processes, because its data may be lost after `SyncFailed`.

        This process continues to use the file as long as reads return the data that was written.
        """
        self._untrusted |= {int(path[-OFFSET_DIGITS:])}

    def drop_tail(self) -> list[str]:
        """Drop a tail that could not be written. Return the tail's file paths.

        Their CRCs are updated as if the entries had been written. Reading these files then raises
        `StoreDamaged` until the next startup.
        """
        writes = self.unwritten()
        for one in writes:
            self.written(one)
            first_byte = int(one.path[-OFFSET_DIGITS:])
            self._blocks = {at: blocks for at, blocks in self._blocks.items() if at != first_byte}
        self._read_ahead = b""
        return [one.path for one in writes]

    def unwritten(self, count_max: int | None = None) -> list[QueueWrite]:
        """Return the file writes for up to `count_max` entries from the tail.

        The entries remain in the tail.
        """
        some = self._tail if count_max is None else self._tail[: count_max * ENTRY_BYTES]
        return [
            QueueWrite(self._path(at), inside, part) for at, inside, part in _parts(self._written_count, some)
        ]

    def cut(self, queue_offset: int) -> list[str]:
        """Truncate the queue at `queue_offset`. Raise OSError on failure.

        Return the paths of files that may have unsynced changes.
        """
        paths = self.write()
        assert queue_offset <= self._written_count, f"{self._folder}: nothing lies at {queue_offset}"
        end = queue_offset * ENTRY_BYTES
        last = end // _FILE_BYTES * _FILE_BYTES
        crc = self._crc_of_cut(last, end - last, queue_offset) if end > last and last in self._crcs else None
        what, is_doubted = self._damaged.get(last), last in self._untrusted
        self._written_count = queue_offset
        self.min_offset, self._begins_at = min(self.min_offset, queue_offset), UNKNOWN
        self._read_ahead = b""
        for name in self._disk.list(self._folder):
            if int(name) > last:
                self._disk.delete(f"{self._folder}/{name}")
        kept_bytes = 0 if crc is None else end - last  # A file without a known CRC begins with a hole.
        if self._disk.size(self._path(last)) > kept_bytes:
            self._disk.truncate(self._path(last), kept_bytes)
        self._forget({at for at in self._crcs if at >= last})
        if crc is not None:
            self._crcs = self._crcs | {last: crc}
            if what is not None:  # Truncating a damaged file does not repair it.
                self._damaged = self._damaged | {last: what}
            if is_doubted:
                self._untrusted |= {last}
        return [*paths, self._path(last)]

    def _crc_of_cut(self, first_byte: int, length: int, queue_offset: int) -> int:
        """Return the CRC of a file truncated to `length` bytes.

        For a damaged file, return a CRC that does not match. An unreadable file is treated as damaged,
        because it can be rebuilt and must not prevent startup.
        """
        if first_byte not in self._damaged:
            with suppress(StoreDamaged):
                return zlib.crc32(self._read_all(first_byte, queue_offset)[:length])
        try:
            stored = self._disk.read(self._path(first_byte), 0, length)
        except OSError as error:
            if is_unrelated_error(error):
                raise
            stored = b""
        return ~zlib.crc32(stored) & 0xFFFFFFFF

    def taken(self) -> TakenQueue | None:
        """Return the current state for a snapshot row (see `kept`), or None if the queue is empty."""
        if self.end_offset == 0:
            return None
        crcs = self._crcs
        if self._untrusted:
            crcs = {at: ~crc & 0xFFFFFFFF if at in self._untrusted else crc for at, crc in crcs.items()}
        return TakenQueue(self._written_count, crcs, bytes(self._tail), self.min_offset, self._begins_at)

    def pad_to(self, queue_offset: int, physical_offset: int) -> None:
        """Extend the queue to `queue_offset` with gap entries for lost records."""
        # All gap entries except the last are stored as a hole in the file, which uses no disk space. The last
        # gap entry is written, because `adopt` requires that the last file exist and contain at least one
        # entry.
        if self.end_offset == 0 < queue_offset:
            self._begin_at(queue_offset - 1)
        missing_count = queue_offset - self.end_offset
        if missing_count > 0:
            self._tail += entry.encode(Entry(physical_offset, 0, 0)) * missing_count

    def begin_with_gap(self, queue_offset: int, lost_until: int, physical_offset: int) -> None:
        """Start an empty queue at an offset.

        The range up to `lost_until` becomes a gap, because its records were lost to damage. Gap entries
        overwrite old data in files left by an earlier process.
        """
        assert queue_offset < lost_until, f"{self._folder}: no gap before {lost_until}"
        self._begin_at(queue_offset)
        self._tail += entry.encode(Entry(physical_offset, 0, 0)) * (lost_until - queue_offset)

    def first_from(self, log_offset: int) -> int:
        """Return the first queue offset whose record begins at or above a log offset.

        If a file is damaged, return the current first offset.
        """
        with suppress(StoreDamaged):
            if self.min_offset < self.end_offset and self._begin() < log_offset:
                return self._search(log_offset)
        return self.min_offset

    def _search(self, log_offset: int) -> int:
        """Return the first queue offset whose record begins at or above a log offset.

        Raise `StoreDamaged` if a file is damaged. The search verifies only the entry it returns and the
        preceding entry, so it reads at most two whole files. This suffices, because log offsets are
        ascending.
        """
        offsets = range(self.end_offset)
        found = bisect_left(offsets, log_offset, lo=self.min_offset, key=self._uncompared_place)
        is_first = found == self.min_offset or self._physical_offset(found - 1) < log_offset
        if is_first and (found == self.end_offset or self._physical_offset(found) >= log_offset):
            return found
        return bisect_left(offsets, log_offset, lo=self.min_offset, key=self._physical_offset)

    def _uncompared_place(self, queue_offset: int) -> int:
        """Return an entry's log offset without verifying the entry."""
        return _place_of(self.peek(queue_offset))

    def peek(self, queue_offset: int) -> Entry:
        """Return an entry without verifying it or reading the whole file.

        The caller must verify it. If the entry is not in the file, return a gap entry. Raise `StoreDamaged`
        if the file cannot be read.
        """
        inside = queue_offset * ENTRY_BYTES % _FILE_BYTES
        first_byte = queue_offset * ENTRY_BYTES - inside
        if queue_offset >= self._written_count or first_byte in self._blocks:
            return self.get(queue_offset, 1)[0]
        stored = self._read(first_byte, inside, ENTRY_BYTES)
        return entry.decode(stored, 0) if len(stored) == ENTRY_BYTES else Entry(0, 0, 0)

    @property
    def has_known_begin(self) -> bool:
        """Whether the log offset in the first entry is known. `first_from` caches it."""
        return self._begins_at != UNKNOWN

    def _begin(self) -> int:
        """Return the log offset in the first entry.

        It is cached so that retention reads fewer files.
        """
        if self._begins_at == UNKNOWN:
            self._begins_at = self._physical_offset(self.min_offset)
        return self._begins_at

    @property
    def unread_bytes(self) -> int:
        """Total size in bytes of all files not yet read.

        The first access to a file reads the entire file.
        """
        known = self._blocks.keys() | self._damaged.keys()
        return sum(self._length(first_byte) for first_byte in self._crcs if first_byte not in known)

    def whole_bytes(self, queue_offset: int) -> int:
        """Return how many bytes of a file must be verified before an entry can be read.

        Return 0 if the file need not be read in full.
        """
        if 0 <= (queue_offset - self._read_ahead_from) * ENTRY_BYTES < len(self._read_ahead):
            return 0  # The entry may have been read from the tail without reading the file.
        first_byte = queue_offset * ENTRY_BYTES // _FILE_BYTES * _FILE_BYTES
        is_known = first_byte in self._blocks or first_byte in self._damaged or first_byte not in self._crcs
        return 0 if is_known or queue_offset >= self._written_count else self._length(first_byte)

    def place(self, queue_offset: int) -> int:
        """Return an entry's log offset, or `UNKNOWN` if the entry is missing or its file is damaged."""
        with suppress(StoreDamaged):
            if queue_offset < self.end_offset:
                return (
                    self._begin() if queue_offset == self.min_offset else self._physical_offset(queue_offset)
                )
        return UNKNOWN

    def advance_first_offset(self, min_offset: int, begins_at: int = UNKNOWN) -> None:
        """Advance the queue's first offset to `min_offset`, but not beyond its end.

        If known, `begins_at` is the log offset in the new first entry (see `place`). Passing it avoids a
        later read.
        """
        risen = max(self.min_offset, min(min_offset, self.end_offset))
        if risen != self.min_offset:
            self.min_offset, self._begins_at = risen, begins_at if risen == min_offset else UNKNOWN
        assert self.min_offset <= self.end_offset, f"{self._folder}: begins behind its end"

    @property
    def has_deletable_files(self) -> bool:
        """Whether a file may be deleted because all its entries are below `min_offset`."""
        return bool(self._crcs) and min(self._crcs) < self._needed_from

    @property
    def has_unneeded_files(self) -> bool:
        """Whether any file, including the last, contains only entries below `min_offset`.

        Once False, it stays False until the queue's first offset is advanced again.
        """
        oldest = min(self._crcs, default=self._written_count * ENTRY_BYTES)
        return self.min_offset * ENTRY_BYTES // _FILE_BYTES > oldest // _FILE_BYTES

    @property
    def _needed_from(self) -> int:
        """Byte position of the first file to keep.

        The file containing the last entry is always kept, because new entries update its CRC.
        """
        return min(self.min_offset, self.end_offset - 1) * ENTRY_BYTES // _FILE_BYTES * _FILE_BYTES

    def deletable_files(self) -> list[str]:
        """Return the paths of the files to delete. All of their entries are below `min_offset`.

        These files are no longer read. The file in which the tail begins is kept, because writing the tail
        would recreate it.
        """
        first = min(self._needed_from, self._written_count * ENTRY_BYTES // _FILE_BYTES * _FILE_BYTES)
        return [self._path(at) for at in self._crcs if at < first]

    def deleted(self, paths: Iterable[str]) -> None:
        """Forget the deleted files that `deletable_files` returned."""
        first_bytes = {int(path[-OFFSET_DIGITS:]) for path in paths}
        # `_needed_from` is not used, because the last entry may be in a deleted file after the queue was
        # truncated.
        assert all(at + _FILE_BYTES <= self.min_offset * ENTRY_BYTES for at in first_bytes), (
            f"{self._folder}: a file with entries that are needed is gone"
        )
        self._forget(first_bytes)

    def write_tail_before_deletion(self) -> list[str]:
        """If the tail begins in a file to be deleted, write as much of the tail as possible.

        Return the paths of the written files. Raise `SyncFailed` if syncing a folder with other files fails,
        because the operating system reports the failure only once.
        """
        if self._written_count * ENTRY_BYTES >= self._needed_from:
            return []
        paths: list[str] = []
        for one in self.unwritten():
            try:
                self._disk.write(*one)
            except OSError as error:
                if isinstance(error, SyncFailed) and not is_folder_error(one.path, error):
                    raise
                break
            self.written(one)
            paths.append(one.path)
        return paths

    def _forget(self, first_bytes: Set[int]) -> None:
        """Forget files that were deleted or changed."""
        self._crcs = {at: crc for at, crc in self._crcs.items() if at not in first_bytes}
        self._blocks = {at: blocks for at, blocks in self._blocks.items() if at not in first_bytes}
        self._damaged = {at: what for at, what in self._damaged.items() if at not in first_bytes}
        self._untrusted -= first_bytes

    def adopt(self, crcs: Iterable[tuple[int, int]], tail: bytes, min_offset: int, begins_at: int) -> None:
        """Restore an earlier process's state from a snapshot without reading any files."""
        assert self.end_offset == self._written_count, f"{self._folder}: a queue that goes on adopts nothing"
        self._crcs = dict(crcs) or _NO_FILES
        self._tail += tail
        self.min_offset, self._begins_at = min_offset, begins_at
        assert min_offset <= self.end_offset, f"{self._folder}: begins behind its end"

    def _begin_at(self, queue_offset: int) -> None:
        """Start a queue whose first records are no longer in the log. Its first file begins with a hole."""
        assert self.end_offset == 0, f"{self._folder}: a queue begins once"
        self._written_count = self.min_offset = queue_offset
        self._begins_at = UNKNOWN

    def _physical_offset(self, queue_offset: int) -> int:
        """Return the log offset in an entry. Raise `StoreDamaged` if the file is damaged."""
        (found,) = self.get(queue_offset, 1)
        return _place_of(found)

    @property
    def _folder(self) -> str:
        return f"{CONSUMEQUEUE}/{self.key[0]}/{self.key[1]}"

    def _path(self, first_byte: int) -> str:
        return _path_of(*self.key, first_byte)


Row = tuple[int, list[tuple[int, int]], int, str, int]


def kept(taken: TakenQueue) -> Row:
    """Return the snapshot row for a queue. Thread-safe.

    The row contains the number of entries in files, a (first byte, CRC-32) pair for each file, the first
    queue offset, the base64-encoded tail, and the log offset of the first entry or `UNKNOWN`.
    """
    tail = b64encode(taken.tail).decode()
    return taken.written_count, [*taken.crcs.items()], taken.min_offset, tail, taken.begins_at


def _crc_before(crcs: dict[int, int], first_byte: int, inside: int) -> int:
    """Return the CRC of the first `inside` bytes of a file. A missing file is treated as a hole."""
    crc = crcs.get(first_byte)
    return zlib.crc32(bytes(inside)) if crc is None else crc


class StoredQueue(NamedTuple):
    """A queue read from a snapshot."""

    topic: str
    queue_id: int
    written_count: int
    crcs: list[tuple[int, int]]
    min_offset: int
    tail: bytes
    begins_at: int

    @property
    def has_files(self) -> bool:
        """Whether any file contains entries at or above `min_offset`."""
        return self.written_count > self.min_offset

    @property
    def end_offset(self) -> int:
        """Queue offset after the last entry."""
        return self.written_count + len(self.tail) // ENTRY_BYTES


def stored_queues(rows: Any) -> Iterator[StoredQueue]:
    """Yield the queues in snapshot rows, or nothing if `rows` is None.

    Topic names are interned, because parsing JSON would otherwise create one string per row.
    """
    for topic, queue_id, written_count, crcs, min_offset, tail, begins_at in rows or ():
        yield StoredQueue(
            intern(topic), queue_id, written_count, crcs, min_offset, b64decode(tail), begins_at
        )


def _place_of(found: Entry) -> int:
    """Return the log offset used to order an entry in searches.

    A gap entry contains the offset of the record after the gap. For a gap entry, return the offset it
    contains minus 1, because the gap precedes the record.
    """
    return found.physical_offset if found.record_bytes else max(found.physical_offset - 1, -1)


def writes_of(key: tuple[str, int], taken: TakenQueue) -> Iterator[QueueWrite]:
    """Yield the file writes that store the tail in `taken`. `key` is (topic, queue ID). Thread-safe."""
    for first_byte, inside, part in _parts(taken.written_count, taken.tail):
        yield QueueWrite(_path_of(*key, first_byte), inside, part)


def _parts(written_count: int, tail: bytes | bytearray) -> Iterator[tuple[int, int, bytes]]:
    """Yield (first byte of the file, position in the file, entries) for each part of a tail."""
    first, position = 0, written_count * ENTRY_BYTES
    while first < len(tail):
        inside = position % _FILE_BYTES
        part = bytes(tail[first : first + _FILE_BYTES - inside])
        yield position - inside, inside, part
        first, position = first + len(part), position + len(part)


def _is_in(codes: Integers, wanted: Integers) -> Flags:
    """For each code, return whether `wanted`, an array in ascending order, contains it.

    With 2,048 wanted codes, each search takes 12 steps.
    """
    at = np.searchsorted(wanted, codes)
    found: Flags = wanted[np.minimum(at, len(wanted) - 1)] == codes
    return found


def files_of(stored: StoredQueue) -> Iterator[tuple[str, int, int]]:
    """Yield (path, length in bytes, CRC-32) for each queue file that still contains entries.

    The last file is always included, because new entries update its CRC.
    """
    last = max((first_byte for first_byte, _ in stored.crcs), default=0)
    for first_byte, crc in stored.crcs:
        length = min(_FILE_BYTES, stored.written_count * ENTRY_BYTES - first_byte)
        if first_byte == last or first_byte + length > stored.min_offset * ENTRY_BYTES:
            yield _path_of(stored.topic, stored.queue_id, first_byte), length, crc


def _path_of(topic: str, queue_id: int, first_byte: int) -> str:
    return f"{CONSUMEQUEUE}/{topic}/{queue_id}/{first_byte:0{OFFSET_DIGITS}d}"
