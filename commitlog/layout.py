"""Layout of a store, and the formats of the files `durable` and `clock`.

    commitlog/<20 digits>                      log segments, named by their first physical offset
    consumequeue/<topic>/<queue>/<20 digits>   derived: the index of each queue
    keyindex/<20 digits>                       derived: see `consumequeue.indexes.keyindex`
    consumequeue.whole                         marker file: the queue files match the snapshots
    consumequeue.aside-<n>                     set aside and not read, like keyindex.aside-<n>; see
                                               `consumequeue.aside`
    snapshots/<20 digits>                      the state at a log offset, see `commitlog.snapshots.snapshot`
    timers/<level>-<20 digits>                 timers in the far future, ordered by time; see
                                               `timingwheel.partition`
    timers-names/<20 digits>                   names of timers; see `consumequeue.indexes.timerindex`
    timers-ends/<20 digits>                    outcomes of timers; see `consumequeue.indexes.timerindex`
    keep/<20 digits>                           records that are kept after their segment is deleted; see
                                               `commitlog.log.keep`
    reserve                                    an empty segment, which is deleted when the disk is full
    durable                                    the published durable offset; see below
    imported                                   exists only after an import; see `commitlog.log.imported`
    clock                                      exists only with a virtual clock: the clock's offset; see below
    format                                     the store version and the segment size; see
                                               `commitlog.store_format`
    cluster                                    only on a cluster node: cluster ID and node name in JSON format
    access/                                    only on a cluster node: how commands are sent to all nodes
    fetched/                                   only on a cluster node: an incomplete copy; see
                                               `services.cluster.copies`
    evidence                                   only on a cluster node: see `services.cluster.evidence_file`
    aside/<20 digits>                          only on a cluster node: see `services.cluster.tail`
    holes                                      only on a cluster node: see `services.cluster.holes`
    refetch                                    only on a cluster node: the store must be replaced with a copy
    lock                                       see `commitlog.lock`
    tls/, users.key, .gitignore                the broker's certificate; the users' key; the files that git
                                               must ignore

A process that reads a live log stops at the published durable offset, which is never beyond the end of the
log on disk. The `durable` file has three lines of 32 bytes in the format `<20 digits> <CRC-32 of the digits,
8 hex digits>`. The published offset is the largest number in an intact line. The first two lines are written
alternately, without a sync. A reader may find one of them half-written, but the other is then intact. A power
failure may destroy both. The third line is written only when the file is created. Each startup creates the
file under a new name, syncs it, and renames it, so at least one line is always intact. A `durable` file
without an intact line is damaged. It does not mean that no offset was published. The file is created before
the first segment.

Once an epoch has begun (`services.broker.spine.epoch`), `durable` contains three additional lines with the
epoch of the published offset. These lines have the same format and follow the same rules. Without these
lines, the epoch is 0. An epoch is written before its first offset.

On a follower, two more lines hold the accepted offset: the end of the records that the cluster has accepted
and the follower has copied. They are also written alternately, and only readers use them. Readers stop at the
accepted or the durable offset, whichever is higher. Records between the two are not synced. Recovery does not
trust them, and removes the accepted offset from the file.

The `clock` file has two lines in the format of `durable`. Each line is synced before the other is written.
The number is the difference in milliseconds between the broker's time and real time. It never decreases.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged, StoreError

COMMITLOG: Final = "commitlog"
CONSUMEQUEUE: Final = "consumequeue"
QUEUES_WHOLE: Final = "consumequeue.whole"
KEYINDEX: Final = "keyindex"
QUEUES_ASIDE: Final = f"{CONSUMEQUEUE}.aside-"
KEYS_ASIDE: Final = f"{KEYINDEX}.aside-"
"""Name prefixes of folders that were set aside. A number follows."""
SNAPSHOTS: Final = "snapshots"
TIMER_NAMES: Final = "timers-names"
TIMER_ENDS: Final = "timers-ends"
KEEP: Final = "keep"
TIMERS: Final = "timers"
RESERVE: Final = "reserve"
TLS: Final = "tls"
ACCESS: Final = "access"
DURABLE: Final = "durable"
CLOCK: Final = "clock"
FORMAT: Final = "format"
CLUSTER: Final = "cluster"
FETCHED: Final = "fetched"
EVIDENCE: Final = "evidence"
ASIDE: Final = "aside"
HOLES: Final = "holes"
REFETCH: Final = "refetch"
OFFSET_DIGITS: Final = 20


def is_aside(name: str) -> bool:
    """Return whether this is the name of a folder that was set aside."""
    return name.startswith((QUEUES_ASIDE, KEYS_ASIDE))


def segment_path(first_offset: int) -> str:
    """Return the path of the segment that begins at `first_offset`."""
    return f"{COMMITLOG}/{first_offset:0{OFFSET_DIGITS}d}"


def segment_offsets(disk: Disk) -> list[int]:
    """Return the first offsets of all segments in ascending order.

    Raise `StoreError` if the folder contains any other file.
    """
    names = disk.list(COMMITLOG)
    for name in names:
        if not (name.isdigit() and len(name) == OFFSET_DIGITS):
            raise StoreError(
                f"commitlog/{name} is not a log segment. Move it out of the store, then open again."
            )
    return [int(name) for name in names]


@dataclass(slots=True, frozen=True)
class PublishedOffset:
    """Content of the `durable` file.

    `is_sound` indicates whether the offset is reliable. `problem` describes damage to the file, and is empty
    if the file is intact or missing.
    """

    offset: int
    is_sound: bool
    problem: str = ""
    epoch: int = 0
    accepted_offset: int = 0
    """Offset up to which a follower has copied the accepted log, or 0 if unpublished."""


def published(disk: Disk) -> PublishedOffset:
    """Read the `durable` file. Raise OSError if the disk fails."""
    size = disk.size(DURABLE)
    if size < 0:
        return PublishedOffset(0, is_sound=False)
    stored = disk.read(DURABLE, 0, size)
    is_sound = any(line == _durable_line(line) for line in _lines(stored))
    if is_sound:
        epoch, accepted_offset = _largest(stored, _EPOCHS_AT), _largest(stored, _ACCEPTED_AT)
        return PublishedOffset(parse_durable(stored), is_sound, epoch=epoch, accepted_offset=accepted_offset)
    return PublishedOffset(0, is_sound, f"none of its lines is what was written ({size} bytes)")


def read_durable(disk: Disk) -> int:
    """Return the published durable offset, or 0 if there is no valid one."""
    return published(disk).offset


def parse_durable(stored: bytes) -> int:
    """Return the offset in the content of `durable`, or 0 if there is no valid one."""
    return _largest(stored, 0)


def publish_durable(disk: Disk, offset: int, turn: int) -> None:
    """Publish the durable offset to processes that read the live log, without a sync.

    After a power failure, the published offset may be too low. `turn` selects one of the two lines and must
    alternate between even and odd values.
    """
    disk.write(DURABLE, turn % 2 * _LINE_BYTES, _durable_line(b"%020d" % offset))


def publish_epoch(disk: Disk, epoch: int, turn: int) -> None:
    """Publish the epoch of subsequent offsets to readers in the same way as `publish_durable`."""
    disk.write(DURABLE, _EPOCHS_AT + turn % 2 * _LINE_BYTES, _durable_line(b"%020d" % epoch))


def publish_accepted(disk: Disk, offset: int, turn: int) -> None:
    """Publish a follower's accepted offset to readers in the same way as `publish_durable`."""
    disk.write(DURABLE, _ACCEPTED_AT + turn % 2 * _LINE_BYTES, _durable_line(b"%020d" % offset))


def parse_readable(stored: bytes) -> int | None:
    """Return the end of the readable log stated in `durable`, or None if no line is intact."""
    if all(line != _durable_line(line) for line in _lines(stored)):
        return None
    return max(parse_durable(stored), _largest(stored, _ACCEPTED_AT))


def parse_epoch(stored: bytes) -> int:
    """Return the epoch in the content of `durable`, or 0 if no epoch has begun."""
    return _largest(stored, _EPOCHS_AT)


def reset_durable(disk: Disk, offset: int) -> None:
    """Durably replace any published offset in a store that has never been used."""
    disk.write(DURABLE, 0, durable_lines(offset))
    disk.sync(DURABLE)


def republish_durable(disk: Disk, offset: int, epoch: int = 0, *, may_go_back: bool = False) -> None:
    """Durably publish the `offset` at which recovery has truncated the log.

    `offset` must not be lower than the published one unless `may_go_back` is true. A cluster node sets
    `may_go_back`, because the shared log contains the records that the node has published. The file is not
    overwritten in place, because a power failure may destroy lines that an earlier process wrote without a
    sync.
    """
    before = published(disk)
    assert may_go_back or offset >= before.offset, "what is durable is never cut"
    fresh = f"{DURABLE}.new"
    disk.delete(fresh)
    disk.write(fresh, 0, durable_lines(offset, max(epoch, before.epoch)))
    disk.sync(fresh)
    disk.rename(fresh, DURABLE)


def durable_lines(offset: int, epoch: int = 0) -> bytes:
    """Return the content of a `durable` file for this offset."""
    of_epoch = 3 * _durable_line(b"%020d" % epoch) if epoch else b""
    return 3 * _durable_line(b"%020d" % offset) + of_epoch


def has_records(disk: Disk) -> bool:
    """Return whether a record has ever been appended to the log."""
    offsets = segment_offsets(disk)
    return any(disk.read(segment_path(offset), 0, 8).strip(b"\0") for offset in offsets)


def read_clock(disk: Disk) -> int | None:
    """Return the virtual clock offset in milliseconds, or None if there is no virtual clock.

    Raise `StoreDamaged` if no line is intact, because the broker's time must never decrease.
    """
    size = disk.size(CLOCK)
    if size < 0:
        return None
    stored = disk.read(CLOCK, 0, size)
    if all(line != _durable_line(line) for line in _lines(stored)):
        raise StoreDamaged(f"The file {CLOCK} cannot be read; nothing was changed. Restore it from a backup.")
    return parse_durable(stored)


def begin_clock(disk: Disk) -> None:
    """Durably create the virtual clock file. The clock starts at the current real time."""
    fresh = f"{CLOCK}.new"
    disk.write(fresh, 0, 2 * _durable_line(b"%020d" % 0))
    disk.sync(fresh)
    disk.rename(fresh, CLOCK)


def keep_clock(disk: Disk, offset_ms: int, turn: int) -> None:
    """Durably update the virtual clock offset.

    See `publish_durable` for `turn`.
    """
    assert offset_ms >= 0, "the clock of a store is never behind real time"
    disk.write(CLOCK, turn % 2 * _LINE_BYTES, _durable_line(b"%020d" % offset_ms))
    disk.sync(CLOCK)


_LINE_BYTES: Final = 32
_EPOCHS_AT: Final = 3 * _LINE_BYTES
_ACCEPTED_AT: Final = 6 * _LINE_BYTES
KNOWN_NAMES: Final = frozenset(
    {
        COMMITLOG,
        CONSUMEQUEUE,
        QUEUES_WHOLE,
        KEYINDEX,
        SNAPSHOTS,
        TIMER_NAMES,
        TIMER_ENDS,
        TLS,
        ACCESS,
        KEEP,
        TIMERS,
        RESERVE,
        DURABLE,
        CLOCK,
        f"{CLOCK}.new",
        FORMAT,
        f"{FORMAT}.new",
        f"{KEEP}.new",
        f"{DURABLE}.new",
        CLUSTER,
        FETCHED,
        EVIDENCE,
        HOLES,
        f"{HOLES}.new",
        f"{EVIDENCE}.new",
        ASIDE,
        REFETCH,
        "lock",
        "boots",
    }
)


def _durable_line(line: bytes) -> bytes:
    """Return the valid line for the 20 digits at the start of `line`.

    If there are no digits, return bytes that match no line in a file.
    """
    digits = line[:OFFSET_DIGITS]
    return b"%s %08x\n\n\n" % (digits, zlib.crc32(digits)) if digits.isdigit() else b"no offset"


def _largest(stored: bytes, first: int) -> int:
    lines = _lines(stored, first)
    return max(int(line[:OFFSET_DIGITS]) if line == _durable_line(line) else 0 for line in lines)


def _lines(stored: bytes, first: int = 0) -> list[bytes]:
    return [stored[at : at + _LINE_BYTES] for at in range(first, first + 3 * _LINE_BYTES, _LINE_BYTES)]
