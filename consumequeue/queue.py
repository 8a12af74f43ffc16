"""The index of one queue of one topic: entry number n, at byte 20 n, is the record with queue offset n.

    ... files deleted ...|min_offset ... in files ...|written_count ... tail in memory ...|end_offset
    consumequeue/<topic>/<queue_id>/<20 digits: first byte>     300,000 entries a file

A pure function of the log, in files as RocketMQ's `ConsumeQueue` keeps them; it may be deleted and is made
anew. New entries are the tail, which is read in memory, until a worker has written them
(`consumequeue.dispatch`). A snapshot keeps the tail, and a CRC for each file: entries have none of their own.

Rules:
- A start opens no file. The bytes of a file behind `written_count` are void, and are written over.
- Every read of a file is compared, block by block, with the CRCs of what was written: what is returned was
  written, and nothing is passed over for an entry that damage has made. The first read in this process reads
  all of the file, for a snapshot has one CRC for it, and gives its blocks theirs.
- What differs, or is short, or cannot be read by the disk is damage: it can be made anew, and a broker that
  stopped for it would serve nothing. It is told once, and the file is not read again: its entries are
  refused, and the next start makes the queues anew.

Cost: an entry is 20 bytes; the first read of a file up to 6 MB, a later one a block of 2,560 bytes or two; a
search by log offset some 20 reads. A queue takes 500 bytes of memory, one entry and its place in `Dispatch`
included; the CRCs of blocks up to 9 KB for each file that is read. Weak spots: what is damaged on disk is
found at its first read, not by the start; on a full disk tails grow without a limit.
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

from commitlog.bulk import Flags, Integers
from commitlog.descriptors import OUT_OF_DESCRIPTORS
from commitlog.disk import Disk, SyncFailed
from commitlog.errors import StoreDamaged
from commitlog.layout import CONSUMEQUEUE, OFFSET_DIGITS
from commitlog.limits import QUEUE_FILE_ENTRIES
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
"""Takes the path of a damaged file, and a sentence about it."""


def ignore_damage(path: str, what: str) -> None:
    """Take no notice: for tools, which prove the files themselves."""


def is_of_others(error: OSError) -> bool:
    """Return whether what failed says nothing of the file that was to be opened.

    The process is out of descriptors, or a folder could not be synced.
    """
    return error.errno in OUT_OF_DESCRIPTORS or isinstance(error, SyncFailed)


def is_of_folder(path: str, error: OSError) -> bool:
    """Return whether what failed is the sync of a folder of queues in which a file of one lies.

    It says of the file's name what a failed sync of the file says of its bytes.
    """
    failed = str(error.filename)
    is_of_queues = f"{failed}/".startswith(f"{CONSUMEQUEUE}/")
    return isinstance(error, SyncFailed) and is_of_queues and path.startswith(f"{failed}/")


class QueueWrite(NamedTuple):
    """Entries to be written to a file of a queue, from byte `position` of the file on."""

    path: str
    position: int
    entries: bytes


class TakenQueue(NamedTuple):
    """A queue at one moment, of which `kept` makes the row of a snapshot."""

    written_count: int
    crcs: dict[int, int]
    tail: bytes
    min_offset: int
    begins_at: int


class _Blocks:
    """The CRC-32 of each block of a file, of its first `length` bytes."""

    __slots__ = ("_crcs", "length")

    def __init__(self, stored: bytes) -> None:
        self.length = 0
        self._crcs = array("I")
        self.extend(stored)

    def extend(self, more: bytes) -> None:
        """Go on with what was written behind the rest."""
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
        """Return where the blocks begin and end in which some bytes lie."""
        begin = position // _BLOCK_BYTES * _BLOCK_BYTES
        return begin, min(-(-(position + length) // _BLOCK_BYTES) * _BLOCK_BYTES, self.length)

    def match(self, begin: int, stored: bytes) -> bool:
        """Return whether whole blocks, from byte `begin` of the file on, are what was written."""
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
    """The index of queue `queue_id` of `topic`, whose files hold `written_count` entries."""

    __slots__ = (
        "_begins_at",
        "_blocks",
        "_crcs",
        "_damaged",
        "_disk",
        "_doubted",
        "_found_damaged",
        "_read_ahead",
        "_read_ahead_from",
        "_tail",
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
        """Of each file, by its first byte; replaced, never changed: checkpoints share it."""
        self._doubted = _NO_DOUBT
        """First bytes of files whose sync has failed: no later process may believe them."""
        self._damaged = _NO_DAMAGE
        """By first byte, what is wrong with files that were found damaged; replaced, never changed."""
        self._blocks = _NO_BLOCKS
        """By first byte, of files that were read; replaced, but for blocks that are added."""
        self.min_offset = 0
        self._begins_at = UNKNOWN
        # In bytes: Python's collector does not count objects that take the place of others, so a look at many
        # queues would leave it more of them than it should examine in one go.
        self._read_ahead = b""
        self._read_ahead_from = 0
        self.compared_bytes = 0
        """The size of the files that were read as a whole, which is what a turn of the loop notices."""
        self.noted_bytes = 0
        """The size of the tail when `consumequeue.tails` last looked at it."""

    @property
    def tail_bytes(self) -> int:
        """The size of the entries that are in memory only."""
        return len(self._tail)

    @property
    def end_offset(self) -> int:
        """The queue offset that the next record will have."""
        return self._written_count + len(self._tail) // ENTRY_BYTES

    def put(self, queue_offset: int, new: Entry) -> None:
        """Add an entry at its own queue offset; offsets missing before it are filled as a gap."""
        self.put_many(queue_offset, entry.encode(new))

    def put_many(self, queue_offset: int, encoded: bytes) -> int:
        """Add entries that lie back to back, the first at `queue_offset`; a gap before it is filled.

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

        A gap counts as a match: the tags of lost messages are unknown. The hashes ascend. Without a match
        return the offset behind the entries that were looked at, at least one.
        """
        # In blocks that grow: a call costs what it passes over, also where one of some entries matches.
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
        """Return the offset behind a gap that has `queue_offset`, or up to which it was looked for.

        Gaps of several damages that lie back to back are several: each names the record behind its own.
        """
        # In blocks that grow, as `next_match`: most gaps are short, and there may be many.
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
        """Return the offset behind a gap that has `queue_offset`, however long it is; some 20 reads.

        The record behind it has one entry, so it is no inner batch. Raise `StoreDamaged`.
        """
        end = self._search(self._physical_offset(queue_offset) + 1)
        assert end > queue_offset, f"{self._folder}: places do not ascend behind {queue_offset}"
        return end

    def place_before_gap(self, queue_offset: int) -> int:
        """Return where the entry before a gap that has `queue_offset` points; -1 where the queue begins.

        A gap before it counts as a place just before the record behind that. Raise `StoreDamaged`.
        """
        first = self._search(self._physical_offset(queue_offset))
        return self._physical_offset(first - 1) if first > self.min_offset else -1

    def _stored(self, queue_offset: int, count: int) -> bytes:
        """Return the bytes of up to `count` entries from `queue_offset` on, as far as they lie together.

        None below `min_offset` where the file is not needed; raise `StoreDamaged` where one is missing or
        short.
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
        # A read ends with its file: what is gathered lies elsewhere then.
        return found + gathered if len(found) == length else found

    def _compared(self, first_byte: int, inside: int, length: int, queue_offset: int) -> bytes:
        """Return bytes of a file as they were written; raise `StoreDamaged`, met at a queue offset."""
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
        """Return bytes of a file; report and raise `StoreDamaged` where the disk cannot read them."""
        path = self._path(first_byte)
        try:
            return self._disk.read(path, position, length)
        except OSError as error:
            if is_of_others(error):
                raise
            what = f"{path} cannot be read ({error.strerror or error}). {_ADVICE}"
            raise self._damage(first_byte, what) from error

    def _damage(self, first_byte: int, what: str) -> StoreDamaged:
        """Record and report a damaged file; return the error for its reader."""
        self._damaged = self._damaged | {first_byte: what}
        self._found_damaged(self._path(first_byte), what)
        return StoreDamaged(what)

    def _read_all(self, first_byte: int, queue_offset: int) -> bytes:
        """Return a file's bytes; raise `StoreDamaged`, met at a queue offset, unless they match its CRC."""
        self.compared_bytes += self._length(first_byte)
        stored = self._read(first_byte, 0, self._length(first_byte))
        if len(stored) != self._length(first_byte) or zlib.crc32(stored) != self._crcs[first_byte]:
            raise self._damage(first_byte, self._what(first_byte, queue_offset))
        return stored

    def _what(self, first_byte: int, queue_offset: int) -> str:
        """Return what is wrong with a file that does not match its CRC."""
        path, how = self._path(first_byte), "cannot be read"
        with suppress(OSError):
            is_short = self._disk.size(path) < self._length(first_byte)
            how = "is missing or cut short" if is_short else "does not match its CRC"
        return f"{path} {how}; met at queue offset {queue_offset}. {_ADVICE}"

    def _matches(self, first_byte: int, crc: int) -> bool:
        """Return whether a file is as long as it should be, and matches its CRC as far as entries count."""
        length = self._length(first_byte)
        try:
            stored = self._disk.read(self._path(first_byte), 0, length)
        except OSError as error:
            if is_of_others(error):
                raise
            return False
        return len(stored) == length and zlib.crc32(stored) == crc

    def _length(self, first_byte: int) -> int:
        """Return how many bytes of a file are entries that count."""
        return min(_FILE_BYTES, self._written_count * ENTRY_BYTES - first_byte)

    def is_sound(self, *, may_be_cut: bool = False) -> bool:
        """Return whether all files are whole that hold entries from `min_offset` on.

        `may_be_cut`: a cut that is not known yet may have deleted the oldest.
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
        """Return whether a record of this queue begins at a log offset; about 20 reads, as offsets ascend."""
        at = self._search(physical_offset)
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
        assert self._tail.startswith(one.entries), f"{one.path}: others were written than gathered"
        before = _crc_before(self._crcs, first_byte, inside)
        self._crcs = self._crcs | {first_byte: zlib.crc32(one.entries, before)}
        if (blocks := self._blocks.get(first_byte)) is not None:
            assert blocks.length == inside, f"{one.path}: {blocks.length} bytes are known of {inside}"
            blocks.extend(one.entries)
        del self._tail[: len(one.entries)]
        self._written_count += len(one.entries) // ENTRY_BYTES

    def doubt(self, path: str) -> None:
        """Let no later process believe a file: what was written to it may be lost (`SyncFailed`).

        This one reads it on as long as the disk gives what was written.
        """
        self._doubted |= {int(path[-OFFSET_DIGITS:])}

    def let_go(self) -> list[str]:
        """Forget what is gathered, which no file has: until the next start its files are read no more.

        Their CRCs go on as if they had it, so a read compares them, and raises `StoreDamaged`. Return their
        paths.
        """
        writes = self.unwritten()
        for one in writes:
            self.written(one)
            first_byte = int(one.path[-OFFSET_DIGITS:])
            self._blocks = {at: blocks for at, blocks in self._blocks.items() if at != first_byte}
        self._read_ahead = b""
        return [one.path for one in writes]

    def unwritten(self, count_max: int | None = None) -> list[QueueWrite]:
        """Return what is gathered and not in the files yet, which stays gathered; up to so many entries."""
        some = self._tail if count_max is None else self._tail[: count_max * ENTRY_BYTES]
        return [
            QueueWrite(self._path(at), inside, part) for at, inside, part in _parts(self._written_count, some)
        ]

    def cut(self, queue_offset: int) -> list[str]:
        """Take back the entries from `queue_offset` on; the next entry comes there. Raise OSError.

        Return the paths of files that may be written and not synced.
        """
        paths = self.write()
        assert queue_offset <= self._written_count, f"{self._folder}: nothing lies at {queue_offset}"
        end = queue_offset * ENTRY_BYTES
        last = end // _FILE_BYTES * _FILE_BYTES
        crc = self._crc_of_cut(last, end - last, queue_offset) if end > last and last in self._crcs else None
        what, is_doubted = self._damaged.get(last), last in self._doubted
        self._written_count = queue_offset
        self.min_offset, self._begins_at = min(self.min_offset, queue_offset), UNKNOWN
        self._read_ahead = b""
        for name in self._disk.list(self._folder):
            if int(name) > last:
                self._disk.delete(f"{self._folder}/{name}")
        kept_bytes = 0 if crc is None else end - last  # a file that is not known begins with a hole
        if self._disk.size(self._path(last)) > kept_bytes:
            self._disk.truncate(self._path(last), kept_bytes)
        self._forget({at for at in self._crcs if at >= last})
        if crc is not None:
            self._crcs = self._crcs | {last: crc}
            if what is not None:  # damage does not become sound by a cut
                self._damaged = self._damaged | {last: what}
            if is_doubted:
                self._doubted |= {last}
        return [*paths, self._path(last)]

    def _crc_of_cut(self, first_byte: int, length: int, queue_offset: int) -> int:
        """Return the CRC of a file that is cut to `length` bytes; another one where it is damaged.

        Also where the disk cannot read it: what is damaged can be made anew, and costs no start.
        """
        if first_byte not in self._damaged:
            with suppress(StoreDamaged):
                return zlib.crc32(self._read_all(first_byte, queue_offset)[:length])
        try:
            stored = self._disk.read(self._path(first_byte), 0, length)
        except OSError as error:
            if is_of_others(error):
                raise
            stored = b""
        return ~zlib.crc32(stored) & 0xFFFFFFFF

    def taken(self) -> TakenQueue | None:
        """Return the queue at this moment, of which `kept` makes the row of a snapshot; None if empty."""
        if self.end_offset == 0:
            return None
        crcs = self._crcs
        if self._doubted:
            crcs = {at: ~crc & 0xFFFFFFFF if at in self._doubted else crc for at, crc in crcs.items()}
        return TakenQueue(self._written_count, crcs, bytes(self._tail), self.min_offset, self._begins_at)

    def pad_to(self, queue_offset: int, physical_offset: int) -> None:
        """Fill up to `queue_offset` with gaps: those offsets were once given to records that are gone."""
        # All gaps but one are a hole, which costs nothing. The last is written, since without an entry there
        # would be no file, and `adopt` asks for the last file.
        if self.end_offset == 0 < queue_offset:
            self._begin_at(queue_offset - 1)
        missing_count = queue_offset - self.end_offset
        if missing_count > 0:
            self._tail += entry.encode(Entry(physical_offset, 0, 0)) * missing_count

    def begin_with_gap(self, queue_offset: int, lost_until: int, physical_offset: int) -> None:
        """Begin an empty queue at an offset, with a gap up to `lost_until`, whose records damage has taken.

        The gap is written over what files of a run before may have there.
        """
        assert queue_offset < lost_until, f"{self._folder}: no gap before {lost_until}"
        self._begin_at(queue_offset)
        self._tail += entry.encode(Entry(physical_offset, 0, 0)) * (lost_until - queue_offset)

    def first_from(self, log_offset: int) -> int:
        """Return the first queue offset whose record lies at a log offset or behind it.

        A damaged file tells nothing of that: then the queue begins where it did.
        """
        with suppress(StoreDamaged):
            if self.min_offset < self.end_offset and self._begin() < log_offset:
                return self._search(log_offset)
        return self.min_offset

    def _search(self, log_offset: int) -> int:
        """Return the first queue offset whose record lies at a log offset or behind it; raise `StoreDamaged`.

        Reads at most two files as a whole: what is only met on the way is not compared. The answer is, with
        the entry before it, and as places ascend, that proves it.
        """
        offsets = range(self.end_offset)
        found = bisect_left(offsets, log_offset, lo=self.min_offset, key=self._uncompared_place)
        is_first = found == self.min_offset or self._physical_offset(found - 1) < log_offset
        if is_first and (found == self.end_offset or self._physical_offset(found) >= log_offset):
            return found
        return bisect_left(offsets, log_offset, lo=self.min_offset, key=self._physical_offset)

    def _uncompared_place(self, queue_offset: int) -> int:
        """Return where an entry points, as its file has it now."""
        return _place_of(self.peek(queue_offset))

    def peek(self, queue_offset: int) -> Entry:
        """Return an entry as its file has it now, to be proven by what is compared: no file is read whole.

        A gap where the file has none. Raise `StoreDamaged`.
        """
        inside = queue_offset * ENTRY_BYTES % _FILE_BYTES
        first_byte = queue_offset * ENTRY_BYTES - inside
        if queue_offset >= self._written_count or first_byte in self._blocks:
            return self.get(queue_offset, 1)[0]
        stored = self._read(first_byte, inside, ENTRY_BYTES)
        return entry.decode(stored, 0) if len(stored) == ENTRY_BYTES else Entry(0, 0, 0)

    @property
    def knows_begin(self) -> bool:
        """Whether it is known where the first entry points; `first_from` notes it."""
        return self._begins_at != UNKNOWN

    def _begin(self) -> int:
        """Return where the first entry points; known, so that a cut reads no file that it does not change."""
        if self._begins_at == UNKNOWN:
            self._begins_at = self._physical_offset(self.min_offset)
        return self._begins_at

    @property
    def unread_bytes(self) -> int:
        """The bytes of its files that were not read yet; each file is, as a whole, at its first read."""
        known = self._blocks.keys() | self._damaged.keys()
        return sum(self._length(first_byte) for first_byte in self._crcs if first_byte not in known)

    def whole_bytes(self, queue_offset: int) -> int:
        """Return how many bytes a read of an entry reads because none of its file was read before."""
        if 0 <= (queue_offset - self._read_ahead_from) * ENTRY_BYTES < len(self._read_ahead):
            return 0  # perhaps since before it was written: then no read makes the file a known one
        first_byte = queue_offset * ENTRY_BYTES // _FILE_BYTES * _FILE_BYTES
        is_known = first_byte in self._blocks or first_byte in self._damaged or first_byte not in self._crcs
        return 0 if is_known or queue_offset >= self._written_count else self._length(first_byte)

    def place(self, queue_offset: int) -> int:
        """Return where in the log an entry points; `UNKNOWN` for none, and in a damaged file."""
        with suppress(StoreDamaged):
            if queue_offset < self.end_offset:
                return (
                    self._begin() if queue_offset == self.min_offset else self._physical_offset(queue_offset)
                )
        return UNKNOWN

    def rise(self, min_offset: int, begins_at: int = UNKNOWN) -> None:
        """Let the queue begin at `min_offset`, at most at its end, and never lower than before.

        `begins_at` is where the entry there points, if that is known (`place`): then no start looks for it.
        """
        risen = max(self.min_offset, min(min_offset, self.end_offset))
        if risen != self.min_offset:
            self.min_offset, self._begins_at = risen, begins_at if risen == min_offset else UNKNOWN
        assert self.min_offset <= self.end_offset, f"{self._folder}: begins behind its end"

    @property
    def has_unneeded(self) -> bool:
        """Whether entries of a whole file all lie below `min_offset`."""
        return bool(self._crcs) and min(self._crcs) < self._needed_from

    @property
    def may_be_unneeded(self) -> bool:
        """Whether entries of a whole file lie below `min_offset`, though the file may be the last one as yet.

        Where they do not, none will before the queue rises again.
        """
        oldest = min(self._crcs, default=self._written_count * ENTRY_BYTES)
        return self.min_offset * ENTRY_BYTES // _FILE_BYTES > oldest // _FILE_BYTES

    @property
    def _needed_from(self) -> int:
        """The first byte of the first file that stays.

        That of the last entry stays, whether or not it is needed: its CRC goes on with the entries that come.
        """
        return min(self.min_offset, self.end_offset - 1) * ENTRY_BYTES // _FILE_BYTES * _FILE_BYTES

    def unneeded(self) -> list[str]:
        """Return the paths of the files to be deleted, whose entries all lie below `min_offset`.

        No read asks for them any more. One in which the tail goes on stays, as its write would make it again.
        """
        first = min(self._needed_from, self._written_count * ENTRY_BYTES // _FILE_BYTES * _FILE_BYTES)
        return [self._path(at) for at in self._crcs if at < first]

    def deleted(self, paths: Iterable[str]) -> None:
        """Forget files of `unneeded` that are deleted now."""
        first_bytes = {int(path[-OFFSET_DIGITS:]) for path in paths}
        # Not `_needed_from`: a cut meanwhile may have made the last entry one of such a file.
        assert all(at + _FILE_BYTES <= self.min_offset * ENTRY_BYTES for at in first_bytes), (
            f"{self._folder}: a file with entries that are needed is gone"
        )
        self._forget(first_bytes)

    def write_what_goes(self) -> list[str]:
        """Write what is gathered if it begins in a file that goes, as far as the disk takes it.

        Return the paths of files that were written. Raise `SyncFailed` of a folder that holds more: the
        operating system reports it once.
        """
        if self._written_count * ENTRY_BYTES >= self._needed_from:
            return []
        paths: list[str] = []
        for one in self.unwritten():
            try:
                self._disk.write(*one)
            except OSError as error:
                if isinstance(error, SyncFailed) and not is_of_folder(one.path, error):
                    raise
                break
            self.written(one)
            paths.append(one.path)
        return paths

    def _forget(self, first_bytes: Set[int]) -> None:
        """Forget what is known of files that are deleted or changed."""
        self._crcs = {at: crc for at, crc in self._crcs.items() if at not in first_bytes}
        self._blocks = {at: blocks for at, blocks in self._blocks.items() if at not in first_bytes}
        self._damaged = {at: what for at, what in self._damaged.items() if at not in first_bytes}
        self._doubted -= first_bytes

    def adopt(self, crcs: Iterable[tuple[int, int]], tail: bytes, min_offset: int, begins_at: int) -> None:
        """Take over what a snapshot kept of an earlier run; no file is looked at."""
        assert self.end_offset == self._written_count, f"{self._folder}: a queue that goes on adopts nothing"
        self._crcs = dict(crcs) or _NO_FILES
        self._tail += tail
        self.min_offset, self._begins_at = min_offset, begins_at
        assert min_offset <= self.end_offset, f"{self._folder}: begins behind its end"

    def _begin_at(self, queue_offset: int) -> None:
        """Begin a queue whose first records the log no longer has: its file will begin with gaps."""
        assert self.end_offset == 0, f"{self._folder}: a queue begins once"
        self._written_count = self.min_offset = queue_offset
        self._begins_at = UNKNOWN

    def _physical_offset(self, queue_offset: int) -> int:
        """Return where an entry points; raise `StoreDamaged`."""
        (found,) = self.get(queue_offset, 1)
        return _place_of(found)

    @property
    def _folder(self) -> str:
        return f"{CONSUMEQUEUE}/{self.key[0]}/{self.key[1]}"

    def _path(self, first_byte: int) -> str:
        return _path_of(*self.key, first_byte)


Row = tuple[int, list[tuple[int, int]], int, str, int]


def kept(taken: TakenQueue) -> Row:
    """Return what a snapshot keeps of a queue; in any thread.

    Entries in files, (first byte, CRC-32) of each file, where it begins, the tail in base64, and where in the
    log its first entry points, `UNKNOWN` where that was not looked for.
    """
    tail = b64encode(taken.tail).decode()
    return taken.written_count, [*taken.crcs.items()], taken.min_offset, tail, taken.begins_at


def _crc_before(crcs: dict[int, int], first_byte: int, inside: int) -> int:
    """Return the CRC of a file up to byte `inside`; one that is not there yet will begin with a hole."""
    crc = crcs.get(first_byte)
    return zlib.crc32(bytes(inside)) if crc is None else crc


class StoredQueue(NamedTuple):
    """A queue as the row of a snapshot has it."""

    topic: str
    queue_id: int
    written_count: int
    crcs: list[tuple[int, int]]
    min_offset: int
    tail: bytes
    begins_at: int

    @property
    def has_files(self) -> bool:
        """Whether entries from `min_offset` on are in files."""
        return self.written_count > self.min_offset

    @property
    def end_offset(self) -> int:
        """The queue offset behind the last entry."""
        return self.written_count + len(self.tail) // ENTRY_BYTES


def stored_queues(rows: Any) -> Iterator[StoredQueue]:
    """Yield the queues of a snapshot's rows; nothing of None.

    Their topics are interned: rows of JSON have a string each, the process one for each topic.
    """
    for topic, queue_id, written_count, crcs, min_offset, tail, begins_at in rows or ():
        yield StoredQueue(
            intern(topic), queue_id, written_count, crcs, min_offset, b64decode(tail), begins_at
        )


def _place_of(found: Entry) -> int:
    """Return where an entry points in the log, for searches.

    A gap names the record behind it. It lies before that record in every search: so one byte less.
    """
    return found.physical_offset if found.record_bytes else max(found.physical_offset - 1, -1)


def writes_of(key: tuple[str, int], taken: TakenQueue) -> Iterator[QueueWrite]:
    """Yield the tail of a queue (topic, queue id) that was taken, to be written to files; in any thread."""
    for first_byte, inside, part in _parts(taken.written_count, taken.tail):
        yield QueueWrite(_path_of(*key, first_byte), inside, part)


def _parts(written_count: int, tail: bytes | bytearray) -> Iterator[tuple[int, int, bytes]]:
    """Yield a tail by file: the file's first byte, the position in the file, the entries."""
    first, position = 0, written_count * ENTRY_BYTES
    while first < len(tail):
        inside = position % _FILE_BYTES
        part = bytes(tail[first : first + _FILE_BYTES - inside])
        yield position - inside, inside, part
        first, position = first + len(part), position + len(part)


def _is_in(codes: Integers, wanted: Integers) -> Flags:
    """Return which of the codes are among those wanted, which ascend: 12 steps for each at 2,048 wanted."""
    at = np.searchsorted(wanted, codes)
    found: Flags = wanted[np.minimum(at, len(wanted) - 1)] == codes
    return found


def files_of(stored: StoredQueue) -> Iterator[tuple[str, int, int]]:
    """Yield (path, length in bytes, CRC-32) of the files that hold a queue's entries from its beginning.

    And of its last file, whatever it holds: its CRC goes on with the entries that come.
    """
    last = max((first_byte for first_byte, _ in stored.crcs), default=0)
    for first_byte, crc in stored.crcs:
        length = min(_FILE_BYTES, stored.written_count * ENTRY_BYTES - first_byte)
        if first_byte == last or first_byte + length > stored.min_offset * ENTRY_BYTES:
            yield _path_of(stored.topic, stored.queue_id, first_byte), length, crc


def _path_of(topic: str, queue_id: int, first_byte: int) -> str:
    return f"{CONSUMEQUEUE}/{topic}/{queue_id}/{first_byte:0{OFFSET_DIGITS}d}"
