"""Where things lie in a store, and what says that it is one.

    commitlog/<20 digits>                      log segments, named by their first physical offset
    consumequeue/<topic>/<queue>/<20 digits>   derived: the index of each queue
    durable                                    the published durable offset, 20 digits and a newline
    format                                     the version of this layout, "1"
    lock                                       see `commitlog.lock`

A live reader stops at the published durable offset: it is never ahead of what is on disk.
"""

from __future__ import annotations

from typing import Final

from commitlog.disk import Disk
from commitlog.errors import NotAStore, StoreError, StoreTooNew

COMMITLOG: Final = "commitlog"
CONSUMEQUEUE: Final = "consumequeue"
DURABLE: Final = "durable"
FORMAT: Final = "format"
FORMAT_VERSION: Final = 1
OFFSET_DIGITS: Final = 20


def segment_path(first_offset: int) -> str:
    """The path of the segment that starts at `first_offset`."""
    return f"{COMMITLOG}/{first_offset:0{OFFSET_DIGITS}d}"


def segment_offsets(disk: Disk) -> list[int]:
    """The first offsets of all segments, ascending; raises `StoreError` on a name that is none."""
    names = disk.list(COMMITLOG)
    for name in names:
        if not (name.isdigit() and len(name) == OFFSET_DIGITS):
            raise StoreError(
                f"commitlog/{name} is not a log segment. Move it out of the store, then open again."
            )
    return [int(name) for name in names]


def check_format(disk: Disk) -> None:
    """Marks an empty store with our format; raises `StoreTooNew` or `NotAStore` for what we cannot open."""
    if disk.size(FORMAT) > 0:
        _check_version(disk.read(FORMAT, 0, 64).decode(errors="replace").strip())
        return
    foreign = [name for name in disk.list("") if name not in _KNOWN_NAMES]
    if foreign:
        raise NotAStore(f"It holds {foreign[0]!r}. Nothing was touched; choose an empty folder with --store.")
    disk.write(FORMAT, 0, f"{FORMAT_VERSION}\n".encode())
    disk.sync(FORMAT)


def read_durable(disk: Disk) -> int:
    """The published durable offset; 0 if none was published."""
    text = disk.read(DURABLE, 0, OFFSET_DIGITS) if disk.size(DURABLE) > 0 else b""
    return int(text) if text.isdigit() else 0


def publish_durable(disk: Disk, offset: int) -> None:
    """Tells live readers how far the log is on disk; itself not synced, so it may lag after a power cut."""
    disk.write(DURABLE, 0, b"%020d\n" % offset)


_KNOWN_NAMES: Final = frozenset({COMMITLOG, CONSUMEQUEUE, DURABLE, FORMAT, "lock", "boots"})


def _check_version(version: str) -> None:
    if not version.isdigit():
        raise NotAStore(f"Its format file says {version!r}. Choose another folder with --store.")
    if int(version) > FORMAT_VERSION:
        raise StoreTooNew(
            f"It has format {version}, this version reads up to {FORMAT_VERSION}. Upgrade tidewheel."
        )
