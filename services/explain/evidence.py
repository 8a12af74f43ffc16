"""Search for the records of a log that contain given bytes, without decoding the whole log.

The history of an order in a log of gigabytes consists of about a dozen records. Their identifiers occur in
the records unencoded: a key or an id in the properties, the log offset of a half message as eight bytes, the
log offset of a timer as digits, and a queue in the body of an acknowledgement. The bytes of the log are
therefore searched. For each match, the containing record is found by searching backwards for a magic number
whose record contains its own log offset, covers the match, and has a valid CRC. A match may also be part of a
body or of a longer name, so the caller must check the record.

    log       ...|record|record|re[name]ord|record|...
                         <-------             back to its magic

Bytes are read and searched in small windows. Reading releases the interpreter, and searching a window takes a
fraction of a millisecond, so the event loop of a broker is hardly delayed. An inner batch of an imported log
is one record. The search locks nothing and writes nothing.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from commitlog import layout, limits
from commitlog.errors import StoreDamaged
from commitlog.log import imported, keep
from commitlog.log.published_log import open_log
from commitlog.records import record
from commitlog.records.record import Record
from tidewheel.errors import Busy

WINDOW_BYTES: Final = 256 * 1024

FEW: Final = 4
"""Up to this number of log offsets in digits, each is searched for separately, which is then faster."""

_NUMBER: Final = re.compile(rb"\x01[0-9]+")
_WHOLE_FILE_BYTES: Final = 1 << 31
_MAGICS: Final = (record.MAGIC_V1, record.MAGIC_V2)
_MAGIC_START: Final = record.MAGIC_V1.to_bytes(4, "big")[:3]
_HEAD: Final = struct.Struct(">II20xq")
_LOOK_BACK_BYTES: Final = (4 * 1024, 64 * 1024, limits.RECORD_BYTES_MAX)


class Files(Protocol):
    """The file operations that a search requires. `commitlog.disk.disk.Disk` implements them."""

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted. The list is empty if the folder does not exist."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`, or fewer at the end of the file. May raise OSError."""


class Folder:
    """Read-only access to the files below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted. The list is empty if the folder does not exist."""
        path = self._root / folder
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`, or fewer at the end of the file. May raise OSError."""
        with open(self._root / path, "rb", buffering=0) as file:
            return os.pread(file.fileno(), length, position)


class Segment:
    """The durable bytes of one log file. The last window is cached."""

    def __init__(self, files: Files, first_offset: int, length: int) -> None:
        self.first_offset, self.length = first_offset, length
        self._files, self._begin, self._window = files, 0, b""

    def window(self, begin: int, length: int) -> bytes:
        """Return bytes from a position on and cache them for later reads."""
        self._begin, self._window = begin, self._read(begin, length)
        return self._window

    def read(self, position: int, length: int) -> bytes:
        """Return bytes from a position on, or no bytes if retention has deleted the file."""
        at = position - self._begin
        if at >= 0 and at + length <= len(self._window):
            return self._window[at : at + length]
        return self._read(position, length)

    def _read(self, position: int, length: int) -> bytes:
        inside = min(length, self.length - position)
        try:
            return self._files.read(layout.segment_path(self.first_offset), position, inside)
        except FileNotFoundError:
            return b""


class Found(NamedTuple):
    """A record, and its end position in the segment."""

    record: Record
    end: int


def never() -> bool:
    """Never stop the search."""
    return False


def ignore_damage(physical_offset: int) -> None:
    """Ignore damage, because `tidewheel store verify` reports it for a store."""


@dataclass(frozen=True, slots=True)
class SearchedLog:
    """The durable part of a log, for searches by log offset.

    Records before `imported_until` were imported and may lack a CRC. `stops` is called between windows.
    `epoch` is the epoch at the end of the log, or 0 for a store that was never part of a cluster.
    `found_damaged` is called with the log offset of a matching record with an invalid CRC. The search
    continues without it.
    """

    name: str
    files: Files
    end_offset: int
    imported_until: int = 0
    stops: Callable[[], bool] = never
    epoch: int = 0
    found_damaged: Callable[[int], None] = ignore_damage

    @classmethod
    def at(cls, store: Path) -> SearchedLog:
        """Return the log of a store, which may be in use.

        Raises `NotAStore`, `StoreTooNew`, or `StoreError` if the store contains no record yet.
        """
        log = open_log(store)
        imported_until = log.imported_until if log.ours else log.end_offset
        return cls(str(store), Folder(store), log.end_offset, imported_until, epoch=log.epoch)

    @property
    def first_offset(self) -> int:
        """The first log offset that is retained."""
        return min(self._segment_offsets(), default=self.end_offset)

    def holding(
        self, needles: Collection[bytes], from_offset: int = 0, until_offset: int | None = None
    ) -> Iterator[Record]:
        """Yield the undamaged records that contain one of these byte strings between two log offsets, in log
        order.

        A record that extends over one of the offsets is found if a byte string in it begins between them.
        """
        until = self.end_offset if until_offset is None else min(until_offset, self.end_offset)
        if not needles:
            return
        for segment in self._segments():
            start = max(0, from_offset - segment.first_offset)
            stop = min(segment.length, until - segment.first_offset)
            if start < stop:
                yield from self._holding(segment, range(start, stop), needles)

    def store_ms_from(self, from_offset: int) -> int:
        """Return the store time of the first undamaged record that begins at a log offset or later.

        If there is none, return that of the last record before the offset, or 0 if that is damaged, too.
        """
        before_ms = 0
        for one in chain(self._from(from_offset), self._from(from_offset - limits.RECORD_BYTES_MAX)):
            if one.physical_offset >= from_offset:
                return one.store_ms
            before_ms = one.store_ms
        return before_ms

    def record_at(self, physical_offset: int) -> Record | None:
        """Return the undamaged record at a log offset, which may be a kept record of a deleted segment.

        Returns None if there is none.
        """
        for kept in self.kept():
            if kept.physical_offset == physical_offset:
                return kept
        for segment in self._segments():
            position = physical_offset - segment.first_offset
            if 0 <= position < segment.length:
                # the offset is from a caller, so it is unknown whether it refers to a record
                with suppress(StoreDamaged):
                    found = self._decoded(segment, position, position)
                    return found and found.record
        return None

    def kept(self) -> Iterator[Record]:
        """Yield each kept record of deleted segments once (see `commitlog.log.keep`)."""
        seen: set[int] = set()
        for name in self.files.list(layout.KEEP):
            try:
                stored = self.files.read(f"{layout.KEEP}/{name}", 0, _WHOLE_FILE_BYTES)
            except FileNotFoundError:  # the file is no longer needed and was deleted
                continue
            for physical_offset, position, _ in keep.records(stored, self.imported_until):
                if physical_offset < self.first_offset and physical_offset not in seen:
                    seen.add(physical_offset)
                    yield record.decode(stored, position)

    def _segment_offsets(self) -> list[int]:
        names = self.files.list(layout.COMMITLOG)
        return sorted(int(name) for name in names if name.isdigit() and len(name) == layout.OFFSET_DIGITS)

    def _segments(self) -> Iterator[Segment]:
        """Yield the log files that contain durable bytes."""
        firsts = [first for first in self._segment_offsets() if first < self.end_offset]
        for first, end in zip(firsts, [*firsts[1:], self.end_offset], strict=True):
            yield Segment(self.files, first, end - first)

    def _from(self, from_offset: int) -> Iterator[Record]:
        """Yield the undamaged records that begin at a log offset or later, in log order."""
        for segment in self._segments():
            searched = range(max(0, from_offset - segment.first_offset), segment.length)
            for place in self._places(segment, searched, [_MAGIC_START]):
                with suppress(StoreDamaged):
                    found = self._decoded(segment, place - 4, place)
                    if found is not None:
                        yield found.record

    def _holding(self, segment: Segment, searched: range, needles: Collection[bytes]) -> Iterator[Record]:
        done = searched.start
        for place in self._places(segment, searched, needles):
            found = self._around(segment, place) if place >= done else None
            if found is not None:
                done = found.end
                yield found.record

    def _places(self, segment: Segment, searched: range, needles: Collection[bytes]) -> Iterator[int]:
        overlap = max(map(len, needles)) - 1
        numbers = {needle for needle in needles if _NUMBER.fullmatch(needle)}
        numbers = numbers if len(numbers) > FEW else set()
        texts = [needle for needle in needles if needle not in numbers]
        for begin in range(searched.start, searched.stop, WINDOW_BYTES):
            if self.stops():
                raise Busy("The search was given up, because the broker stops. Ask again when it serves.")
            length = min(WINDOW_BYTES, searched.stop - begin)
            window = segment.window(begin, length + overlap)
            found = {place for needle in texts for place in _all_places(window, needle)}
            if numbers:
                found |= {one.start() for one in _NUMBER.finditer(window) if one[0] in numbers}
            yield from (begin + place for place in sorted(found) if place < length)

    def _around(self, segment: Segment, place: int) -> Found | None:
        """Return the undamaged record that covers a position of a segment, or None.

        A matching header counts as damage only if no undamaged record is found, because the body of a record
        may contain a header.
        """
        end, damaged_offset = place, None
        for look_back_bytes in _LOOK_BACK_BYTES:
            begin = max(0, place - look_back_bytes)
            before = segment.read(begin, end - begin)
            at = len(before)
            while (at := before.rfind(_MAGIC_START, 0, at)) >= 0:
                try:
                    found = self._decoded(segment, begin + at - 4, place)
                except StoreDamaged:
                    damaged_offset = segment.first_offset + begin + at - 4
                    continue
                if found is not None:
                    return found
            if begin == 0:
                break
            end = min(end, begin + len(_MAGIC_START) - 1)
        if damaged_offset is not None:
            self.found_damaged(damaged_offset)
        return None

    def _decoded(self, segment: Segment, start: int, place: int) -> Found | None:
        """Return the record that starts at a position of a segment and covers `place`, or None.

        Raises `StoreDamaged` for a record whose header matches but whose CRC is invalid.
        """
        head = segment.read(start, _HEAD.size) if start >= 0 else b""
        if len(head) < _HEAD.size:
            return None
        record_bytes, magic, physical_offset = _HEAD.unpack(head)
        is_its_own = physical_offset == segment.first_offset + start
        end = start + record_bytes
        if magic not in _MAGICS or not is_its_own or not place < end <= segment.length:
            return None
        whole = segment.read(start, record_bytes)
        if not record.is_sound(whole, may_lack_crc=physical_offset < self.imported_until):
            raise StoreDamaged(f"The record at log offset {physical_offset} does not match its CRC.")
        return Found(record.decode(whole), end)


def imported_until(files: Files) -> int:
    """Return the log offset from which all records have a CRC. It is 0 unless the store was imported."""
    if imported.PATH not in files.list(""):
        return 0
    return layout.parse_durable(files.read(imported.PATH, 0, _WHOLE_FILE_BYTES))


def _all_places(window: bytes, needle: bytes) -> Iterator[int]:
    at = window.find(needle)
    while at >= 0:
        yield at
        at = window.find(needle, at + 1)
