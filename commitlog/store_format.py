"""The file `format`, which identifies a store and holds its version and segment size.

    offset  width  field
    0       64     "tidewheel 1", the version, a line feed, spaces, a line feed
    64      56     "tidewheel 1 segment_bytes <20 digits> <CRC-32 of the line before it, 8 hex digits>",
                   line feed

The first release uses version 1, and each release can open stores of the previous release. A store with a
newer version is rejected (`StoreTooNew`). Programs older than the first release wrote only a version number.
Releases reject the stores written by these programs (`StoreTooOld`), and vice versa.

When the store is created, the file is written under a temporary name, synced, and renamed. If it is damaged,
the segment size is derived from the segments, and the damage is reported. If it is missing, a folder with a
commitlog is recognized as a Tidewheel store only if it also contains a file that no other program creates.
Apache RocketMQ stores are thus never modified.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.errors import NotAStore, StoreTooNew, StoreTooOld
from commitlog.records import record
from commitlog.snapshots import snapshot

VERSION: Final = 1
_NAME: Final = "tidewheel"
_FIRST_BYTES: Final = 64
_LINE: Final = re.compile(rb"(tidewheel (\d+) segment_bytes (\d{20})) ([0-9a-f]{8})\n")
_WAY: Final = (
    "Hand over what waits: tidewheel store export FOLDER --store THIS with the program that wrote it, then "
    "tidewheel store import FOLDER --store NEW with this one. Schedules, users and policies of groups are "
    "to be set again: an export has none."
)
FRESH: Final = f"{layout.FORMAT}.new"


@dataclass(slots=True, frozen=True)
class Format:
    """Content of the `format` file. `segment_bytes` is 0 if the size is unreadable.

    `problem` describes damage to the file, and is empty if the file is intact.
    """

    version: int
    segment_bytes: int
    problem: str = ""


def encode(segment_bytes: int, version: int = VERSION) -> bytes:
    """Return the content of the `format` file."""
    line = b"tidewheel %d segment_bytes %020d" % (version, segment_bytes)
    first = (b"tidewheel %d\n" % version).ljust(_FIRST_BYTES - 1) + b"\n"
    return first + b"%s %08x\n" % (line, zlib.crc32(line))


def parse(stored: bytes) -> Format | None:
    """Parse the content of the `format` file.

    Return None if it is empty or truncated. Raise `NotAStore`, `StoreTooNew`, or `StoreTooOld` if the store
    cannot be opened.
    """
    first = stored[:_FIRST_BYTES].decode(errors="replace").strip("\0 \n\r\t")
    found = _LINE.fullmatch(stored[_FIRST_BYTES:])
    if found is not None and zlib.crc32(found[1]) == int(found[4], 16):
        _check_version(int(found[2]))
        segment_bytes = int(found[3])
        is_whole = stored == encode(segment_bytes)
        return Format(VERSION, segment_bytes, "" if is_whole else "its first line is not what was written")
    if _NAME.startswith(first):  # The file is empty or truncated.
        return None
    name, _, version = first.rpartition(" ")
    if not (version.isascii() and version.isdigit() and name in ("", _NAME)):
        raise NotAStore(
            f"Its format file says {first[:40]!r}. Choose another folder with --store; if it is a store, and "
            f"its file '{layout.FORMAT}' was spoiled, move that file away."
        )
    if not name:
        raise StoreTooOld(f"A program from before the first release wrote it, as format {version}. {_WAY}")
    _check_version(int(version))
    return Format(VERSION, 0, "it does not say how large the log's segments are")


def open_format(disk: Disk, wanted_bytes: int) -> Format:
    """Return the format of the store on a disk.

    If the `format` file is missing, create it with the segment size `wanted_bytes`. If it is damaged, rewrite
    it, and derive the size from the segments if necessary. Raise `NotAStore`, `StoreTooNew`, or `StoreTooOld`
    without changing any file.
    """
    found = read(disk)
    if found is None:
        check_names(disk.list(""), knows_format=False)
        write(disk, encode(wanted_bytes))
        return Format(VERSION, wanted_bytes)
    if not found.problem:
        return found
    segment_bytes = found.segment_bytes or derived_segment_bytes(disk, wanted_bytes)
    write(disk, encode(segment_bytes))
    return Format(VERSION, segment_bytes, found.problem)


def check_names(names: Collection[str], *, knows_format: bool = True) -> None:
    """Raise `NotAStore` if a folder contains files from other programs.

    Such files are allowed if `knows_format` is true and a file `format` or a commitlog exists.
    """
    if knows_format and not {layout.FORMAT, layout.COMMITLOG}.isdisjoint(names):
        return
    known = (name for name in names if name in layout.KNOWN_NAMES or layout.is_aside(name))
    if unknown := sorted({*names}.difference(known)):
        raise NotAStore(f"It holds {unknown[0]!r}. Nothing was touched; choose an empty folder with --store.")


def read(disk: Disk) -> Format | None:
    """Return the format from the file or, if it is missing, from other files. None means no store.

    Raise `NotAStore`, `StoreTooNew`, or `StoreTooOld` if the store cannot be opened. Also raise `NotAStore`
    if another program may have written the commitlog.
    """
    size = disk.size(layout.FORMAT)
    found = parse(disk.read(layout.FORMAT, 0, size)) if size > 0 else None
    if found is not None or not disk.list(layout.COMMITLOG):
        return found
    if disk.size(layout.DURABLE) >= 0 or snapshot.newest(disk) is not None:
        return Format(VERSION, 0, "it is missing" if size < 0 else "it is empty or cut short")
    raise NotAStore(
        f"It has a commitlog, but no version in its file '{layout.FORMAT}', and nothing else says that "
        "tidewheel wrote it. If Apache RocketMQ did: tidewheel store import."
    )


def write(disk: Disk, content: bytes) -> None:
    """Durably and atomically replace the `format` file. Raise OSError on failure."""
    disk.delete(FRESH)
    disk.write(FRESH, 0, content)
    disk.sync(FRESH)
    disk.rename(FRESH, layout.FORMAT)


def derived_segment_bytes(disk: Disk, wanted_bytes: int) -> int:
    """Return the probable segment size for a store whose `format` file does not specify it.

    If there are several segments, this is the most common distance between their offsets. If another distance
    is not a multiple of it, the segments have different sizes, and the maximum of `wanted_bytes` and all
    distances is returned. A single segment is assumed to have its full length if it ends like an allocated
    file rather than with a record. The reserve file is the size of a segment.
    """
    offsets = layout.segment_offsets(disk)
    if not offsets:
        return wanted_bytes
    distances = [following - offset for offset, following in pairwise(offsets)]
    if distances:
        ((distance, _),) = Counter(distances).most_common(1)
        return distance if all(one % distance == 0 for one in distances) else max(wanted_bytes, *distances)
    path = layout.segment_path(offsets[0])
    size, reserve_bytes = disk.size(path), disk.size(layout.RESERVE)
    if size > 0 and _is_allocated(disk, path, size):
        return max(size, reserve_bytes)
    return reserve_bytes if reserve_bytes > size else max(wanted_bytes, size)


def _is_allocated(disk: Disk, path: str, size: int) -> bool:
    """Return whether a segment ends with zeros or a blank, as segments of full length do."""
    end = disk.read(path, max(0, size - record.BLANK_BYTES), record.BLANK_BYTES)
    return not end.strip(b"\0") or end == record.blank(record.BLANK_BYTES)


def _check_version(version: int) -> None:
    if version < VERSION:
        raise StoreTooOld(f"It has format {version}, this version reads format {VERSION}. {_WAY}")
    if version > VERSION:
        raise StoreTooNew(f"It has format {version}, this version reads format {VERSION}. Upgrade tidewheel.")
