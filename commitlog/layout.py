"""Where things lie in a store, and what says that it is one.

    commitlog/<20 digits>                      log segments, named by their first physical offset
    consumequeue/<topic>/<queue>/<20 digits>   derived: the index of each queue
    keyindex/<20 digits>-<20 digits>           derived: see `consumequeue.keyindex`
    consumequeue.whole                         says that the queues are as the snapshots say
    snapshots/<20 digits>                      the state at a log offset, see `commitlog.snapshot`
    timers/<level>-<20 digits>                 far timers by time, see `timingwheel.partition`
    timers-names/<20 digits>                   names of timers, see `consumequeue.timerindex`
    timers-ends/<20 digits>                    how timers ended, likewise
    keep/<20 digits>                           records that outlive their segment, see `commitlog.keep`
    reserve                                    an empty segment for when the disk is full
    durable                                    the published durable offset, see below
    imported                                   only after an import: see `commitlog.foreign`
    clock                                      only of a virtual clock: its offset, see below
    format                                     the version of this layout, "1"
    lock                                       see `commitlog.lock`
    tls/, users.key, .gitignore                the broker's certificate; the key of users, hidden from git

A live reader stops at the published durable offset: it is never ahead of what is on disk. The file has two
lines of 32 bytes, `<20 digits> <CRC-32 of them, 8 hex digits>`, written in turn; the larger sound one counts,
so that a torn write of one leaves the other. The file `clock` has the same form; it holds by how many
milliseconds the broker's time is ahead of real time, which only grows.
"""

from __future__ import annotations

import zlib
from typing import Final

from commitlog.disk import Disk
from commitlog.errors import NotAStore, StoreDamaged, StoreError, StoreTooNew

COMMITLOG: Final = "commitlog"
CONSUMEQUEUE: Final = "consumequeue"
QUEUES_WHOLE: Final = "consumequeue.whole"
KEYINDEX: Final = "keyindex"
SNAPSHOTS: Final = "snapshots"
TIMER_NAMES: Final = "timers-names"
TIMER_ENDS: Final = "timers-ends"
KEEP: Final = "keep"
TIMERS: Final = "timers"
RESERVE: Final = "reserve"
DURABLE: Final = "durable"
CLOCK: Final = "clock"
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
    version = disk.read(FORMAT, 0, 64).decode(errors="replace").strip() if disk.size(FORMAT) >= 0 else ""
    if version:
        _check_version(version)
        return
    if disk.list(COMMITLOG):
        raise NotAStore(
            f"It has a commitlog, but no version in its file '{FORMAT}'. If tidewheel wrote it, write "
            f"{FORMAT_VERSION} into that file; if Apache RocketMQ did: tidewheel store import."
        )
    foreign = [name for name in disk.list("") if name not in _KNOWN_NAMES]
    if foreign:
        raise NotAStore(f"It holds {foreign[0]!r}. Nothing was touched; choose an empty folder with --store.")
    disk.write(FORMAT, 0, f"{FORMAT_VERSION}\n".encode())
    disk.sync(FORMAT)


def read_durable(disk: Disk) -> int:
    """The published durable offset; 0 if none was published. Raises `StoreDamaged` if its file was cut.

    Without it nobody could tell a damaged record from the torn end of the log.
    """
    size = disk.size(DURABLE)
    if 0 <= size < 2 * _LINE_BYTES and disk.list(COMMITLOG):
        raise StoreDamaged(
            f"The file {DURABLE} has {size} bytes instead of {2 * _LINE_BYTES}; nothing was changed. "
            "Restore it from a backup, or delete it: then a damaged end of the log is taken for a torn one."
        )
    return parse_durable(disk.read(DURABLE, 0, size)) if size > 0 else 0


def parse_durable(stored: bytes) -> int:
    """The offset that the bytes of the file `durable` publish; 0 if none."""
    lines = (stored[:_LINE_BYTES], stored[_LINE_BYTES:])
    return max(int(line[:OFFSET_DIGITS]) if line == _durable_line(line) else 0 for line in lines)


def publish_durable(disk: Disk, offset: int, turn: int) -> None:
    """Tells live readers how far the log is on disk; itself not synced, so it may lag after a power cut.

    `turn` alternates between calls, so that they write the two lines in turn.
    """
    disk.write(DURABLE, turn % 2 * _LINE_BYTES, _durable_line(b"%020d" % offset))


def reset_durable(disk: Disk, offset: int) -> None:
    """Publishes `offset` in place of whatever was published, durably; used when the log was cut."""
    disk.write(DURABLE, 0, durable_lines(offset))
    disk.sync(DURABLE)


def durable_lines(offset: int) -> bytes:
    """Both lines of a file in the form of `durable` that publishes `offset`."""
    return 2 * _durable_line(b"%020d" % offset)


def holds_records(disk: Disk) -> bool:
    """Whether anything was ever stored in the log."""
    offsets = segment_offsets(disk)
    return any(disk.read(segment_path(offset), 0, 8).strip(b"\0") for offset in offsets)


def read_clock(disk: Disk) -> int | None:
    """The offset of the store's virtual clock in milliseconds; None if it never had one.

    Raises `StoreDamaged` when neither line of its file is sound: time must not go back.
    """
    size = disk.size(CLOCK)
    if size < 0:
        return None
    stored = disk.read(CLOCK, 0, size)
    lines = (stored[:_LINE_BYTES], stored[_LINE_BYTES:])
    if all(line != _durable_line(line) for line in lines):
        raise StoreDamaged(f"The file {CLOCK} cannot be read; nothing was changed. Restore it from a backup.")
    return parse_durable(stored)


def begin_clock(disk: Disk) -> None:
    """Makes a store one with a virtual clock, durably; it is still at real time."""
    fresh = f"{CLOCK}.new"
    disk.write(fresh, 0, durable_lines(0))
    disk.sync(fresh)
    disk.rename(fresh, CLOCK)


def keep_clock(disk: Disk, offset_ms: int, turn: int) -> None:
    """Writes the offset of the virtual clock durably; `turn` alternates, see `publish_durable`."""
    disk.write(CLOCK, turn % 2 * _LINE_BYTES, _durable_line(b"%020d" % offset_ms))
    disk.sync(CLOCK)


_LINE_BYTES: Final = 32
_KNOWN_NAMES: Final = frozenset(
    {
        COMMITLOG,
        CONSUMEQUEUE,
        QUEUES_WHOLE,
        KEYINDEX,
        SNAPSHOTS,
        TIMER_NAMES,
        TIMER_ENDS,
        KEEP,
        TIMERS,
        RESERVE,
        DURABLE,
        CLOCK,
        f"{CLOCK}.new",
        FORMAT,
        "lock",
        "boots",
    }
)


def _durable_line(line: bytes) -> bytes:
    digits = line[:OFFSET_DIGITS]
    return b"%s %08x\n\n\n" % (digits, zlib.crc32(digits))


def _check_version(version: str) -> None:
    if not version.isdigit():
        raise NotAStore(f"Its format file says {version!r}. Choose another folder with --store.")
    if int(version) > FORMAT_VERSION:
        raise StoreTooNew(
            f"It has format {version}, this version reads up to {FORMAT_VERSION}. Upgrade tidewheel."
        )
