"""Keep files, which preserve records from deleted segments.

A keep file holds exact copies of the records for open and expired half messages and for held timers. Before
retention deletes segments, it copies the records still needed, without gaps, to the file `keep/<20 digits:
the offset up to which the log was deleted>`. Thus, half messages open for weeks and timers held for weeks do
not block retention. A keep file is deleted when none of its records are still needed. Cost: four integers in
memory per kept record. They are computed on the retention run's worker thread.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Final

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import KEEP, OFFSET_DIGITS
from commitlog.log import imported
from commitlog.records import record

_MAGIC: Final = re.compile(b"\xda\xa3\x20[\xa7\xab]")
_HEAD_BYTES: Final = 4
_OFFSET_AT: Final = 28
_OFFSET: Final = struct.Struct(">q")
_LOOKED_AT_ONCE: Final = 20_000

Places = dict[int, tuple[str, int, int]]
"""File path, byte position, and length in bytes of each kept record, by log offset."""


class KeepFiles:
    """The keep files of a store."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._imported_until = imported.read(disk)
        self._places: Places = {}
        self._undecided: dict[str, list[int]] = {}
        """Records that may still be needed, by file. They are checked from last to first."""
        self.damaged: list[str] = []
        """Descriptions of damage to keep files."""
        self.damaged_bytes = 0
        for name in filter(str.isdigit, disk.list(KEEP)):
            self.adopt(int(name))

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, physical_offset: int) -> bool:
        return physical_offset in self._places

    def adopt(self, cut_offset: int) -> None:
        """Load the keep file for `cut_offset`. Raise OSError if the disk fails."""
        path = path_of(cut_offset)
        stored = bytes(self._disk.view(path))
        places = places_in(path, stored, self._imported_until)
        self.add(cut_offset, places)
        sound_bytes = sum(record_bytes for _, _, record_bytes in places.values())
        if sound_bytes < len(stored):
            self.damaged_bytes += len(stored) - sound_bytes
            self.damaged.append(
                f"{path} is damaged: {len(stored) - sound_bytes} of its {len(stored)} bytes are not what was "
                "written. Halves that lay there, if their segment is gone, nobody has any more."
            )

    def add(self, cut_offset: int, places: Places) -> None:
        """Add a keep file with the positions of its records."""
        if places:
            self._places.update(places)
            self._undecided[path_of(cut_offset)] = [*places]

    def read(self, physical_offset: int) -> bytes:
        """Return the bytes of a kept record.

        Raise `StoreDamaged` if the record was not kept, or OSError if the disk fails.
        """
        place = self._places.get(physical_offset)
        if place is None:
            raise StoreDamaged(f"The record at log offset {physical_offset} was deleted and not kept.")
        return self._disk.read(*place)

    def file_of(self, physical_offset: int) -> str:
        """Return the path of the keep file that contains this record."""
        return self._places[physical_offset][0]

    def forget(self, is_needed: Callable[[int], bool]) -> list[str]:
        """Stop tracking keep files that contain no needed records, and return their paths.

        The caller must delete the files. Once a record is found to be unneeded, it is never checked again.
        Each call checks a limited number of records per file.
        """
        for offsets in self._undecided.values():
            unneeded = takewhile(lambda offset: not is_needed(offset), reversed(offsets))
            count = sum(1 for _ in islice(unneeded, _LOOKED_AT_ONCE))
            del offsets[len(offsets) - count :]
        unneeded_paths = sorted(path for path, offsets in self._undecided.items() if not offsets)
        for path in unneeded_paths:
            del self._undecided[path]
        if unneeded_paths:
            gone = frozenset(unneeded_paths)
            self._places = {at: place for at, place in self._places.items() if place[0] not in gone}
        return unneeded_paths


def path_of(cut_offset: int) -> str:
    """Return the path of the keep file for a log deleted up to `cut_offset`."""
    return f"{KEEP}/{cut_offset:0{OFFSET_DIGITS}d}"


def places_in(path: str, stored: bytes, imported_until: int) -> Places:
    """Return the positions of the intact records in a keep file.

    See `records` for `imported_until`.
    """
    return {offset: (path, position, length) for offset, position, length in records(stored, imported_until)}


def records(stored: bytes, imported_until: int) -> Iterator[tuple[int, int, int]]:
    """Yield (physical offset, position, length) for each intact record in a keep file.

    Skip damaged bytes. Records below `imported_until` were imported (see `commitlog.log.imported`).
    """
    position = 0
    while 0 <= position < len(stored):
        record_bytes = int.from_bytes(stored[position : position + _HEAD_BYTES], "big")
        one = stored[position : position + record_bytes]
        if is_sound(one, imported_until):
            yield _OFFSET.unpack_from(one, _OFFSET_AT)[0], position, record_bytes
            position += record_bytes
        else:
            magic = _MAGIC.search(stored, position + 1 + _HEAD_BYTES)
            position = magic.start() - _HEAD_BYTES if magic else -1


def is_sound(stored: bytes, imported_until: int) -> bool:
    """Return whether the bytes consist of exactly one intact record."""
    if len(stored) < record.RECORD_BYTES_MIN:
        return False
    (physical_offset,) = _OFFSET.unpack_from(stored, _OFFSET_AT)
    return record.is_sound(stored, may_lack_crc=physical_offset < imported_until)
