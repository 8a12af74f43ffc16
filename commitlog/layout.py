"""Where things lie in a store, and what says that it is one.

    commitlog/<20 digits>                      log segments, named by their first physical offset
    consumequeue/<topic>/<queue>/<20 digits>   derived: the index of each queue
    keyindex/<20 digits>                       derived: see `consumequeue.keyindex`
    consumequeue.whole                         says that the queues are as the snapshots say
    consumequeue.aside-<n>                     put aside, as is keyindex.aside-<n>; nothing reads them, see
                                               `consumequeue.aside`
    snapshots/<20 digits>                      the state at a log offset, see `commitlog.snapshot`
    timers/<level>-<20 digits>                 far timers by time, see `timingwheel.partition`
    timers-names/<20 digits>                   names of timers, see `consumequeue.timerindex`
    timers-ends/<20 digits>                    how timers ended, likewise
    keep/<20 digits>                           records that outlive their segment, see `commitlog.keep`
    reserve                                    an empty segment for when the disk is full
    durable                                    the published durable offset, see below
    imported                                   only after an import: see `commitlog.imported`
    clock                                      only of a virtual clock: its offset, see below
    format                                     version and size of segments, see `commitlog.store_format`
    cluster                                    only of a node: its cluster's id and its name, JSON
    access/                                    only of a node: how commands reach all nodes
    fetched/                                   only of a node: a copy on its way, `services.cluster.copies`
    evidence                                   only of a node: see `services.cluster.evidence_file`
    aside/<20 digits>                          only of a node: see `services.cluster.tail`
    holes                                      only of a node: see `services.cluster.holes`
    refetch                                    only of a node: another's copy is to take its place
    lock                                       see `commitlog.lock`
    tls/, users.key, .gitignore                the broker's certificate; the key of users, hidden from git

A live reader stops at the published durable offset: it is never ahead of what is on disk. The file has three
lines of 32 bytes, `<20 digits> <CRC-32 of them, 8 hex digits>`; the largest sound one counts. Two are written
in turn, unsynced, so that a reader who comes upon one amid its writing has the other; a power cut may tear
both. The third is only ever written with the whole file, which each start makes anew beside it, synced, and
renames: so one line is always sound, and where none is, the file is damaged, which never counts as "nothing
was published". It is there before the first segment.

Behind them are three lines of the same form, and with the same rules, that say under which epoch
(`services.broker.spine.epoch`) that was, once one has begun; without them it is 0. An epoch is written before
the first offset that was reached under it.

Behind those, at a node that follows, are two lines that say how far it has taken in what its cluster has
accepted. They are written in turn, too, and are for readers only, who may read up to the larger of the two
numbers: what lies between is not synced, so a start believes nothing there, and writes the file without them.

The file `clock` has two such lines, each of which is synced before the other one is written; it holds by how
many milliseconds the broker's time is ahead of real time, which only grows.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from commitlog.disk import Disk
from commitlog.errors import StoreDamaged, StoreError

COMMITLOG: Final = "commitlog"
CONSUMEQUEUE: Final = "consumequeue"
QUEUES_WHOLE: Final = "consumequeue.whole"
KEYINDEX: Final = "keyindex"
QUEUES_ASIDE: Final = f"{CONSUMEQUEUE}.aside-"
KEYS_ASIDE: Final = f"{KEYINDEX}.aside-"
"""How the names of folders begin that nothing reads, and no one could delete; a number follows."""
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
    """Return whether a name in a store is that of a folder that was put aside."""
    return name.startswith((QUEUES_ASIDE, KEYS_ASIDE))


def segment_path(first_offset: int) -> str:
    """Return the path of the segment that starts at `first_offset`."""
    return f"{COMMITLOG}/{first_offset:0{OFFSET_DIGITS}d}"


def segment_offsets(disk: Disk) -> list[int]:
    """Return the first offsets of all segments, ascending; raise `StoreError` on any other name."""
    names = disk.list(COMMITLOG)
    for name in names:
        if not (name.isdigit() and len(name) == OFFSET_DIGITS):
            raise StoreError(
                f"commitlog/{name} is not a log segment. Move it out of the store, then open again."
            )
    return [int(name) for name in names]


@dataclass(slots=True, frozen=True)
class Published:
    """What the file `durable` says: an offset with its epoch, and whether the offset can be relied on.

    `problem` says what is wrong with it; empty also where there is no such file.
    """

    offset: int
    is_sound: bool
    problem: str = ""
    epoch: int = 0
    accepted_offset: int = 0
    """How far a node that follows has taken in what its cluster accepted; 0 where nothing says so."""


def published(disk: Disk) -> Published:
    """Read the file `durable`; raise OSError."""
    size = disk.size(DURABLE)
    if size < 0:
        return Published(0, is_sound=False)
    stored = disk.read(DURABLE, 0, size)
    is_sound = any(line == _durable_line(line) for line in _lines(stored))
    if is_sound:
        epoch, accepted_offset = _largest(stored, _EPOCHS_AT), _largest(stored, _ACCEPTED_AT)
        return Published(parse_durable(stored), is_sound, epoch=epoch, accepted_offset=accepted_offset)
    return Published(0, is_sound, f"none of its lines is what was written ({size} bytes)")


def read_durable(disk: Disk) -> int:
    """Return the published durable offset; 0 if none was published, or none that can be read."""
    return published(disk).offset


def parse_durable(stored: bytes) -> int:
    """Return the offset that the bytes of the file `durable` publish; 0 if they publish none."""
    return _largest(stored, 0)


def publish_durable(disk: Disk, offset: int, turn: int) -> None:
    """Tell live readers how far the log is on disk; itself not synced, so it may lag after a power cut.

    `turn` alternates between calls, so that they write two of the lines in turn.
    """
    disk.write(DURABLE, turn % 2 * _LINE_BYTES, _durable_line(b"%020d" % offset))


def publish_epoch(disk: Disk, epoch: int, turn: int) -> None:
    """Tell live readers under which epoch comes what is published next; see `publish_durable`."""
    disk.write(DURABLE, _EPOCHS_AT + turn % 2 * _LINE_BYTES, _durable_line(b"%020d" % epoch))


def publish_accepted(disk: Disk, offset: int, turn: int) -> None:
    """Tell live readers how far a node that follows has taken in what was accepted; see `publish_durable`."""
    disk.write(DURABLE, _ACCEPTED_AT + turn % 2 * _LINE_BYTES, _durable_line(b"%020d" % offset))


def parse_readable(stored: bytes) -> int | None:
    """Return up to where the file `durable` lets anybody read; None if none of its lines is sound."""
    if all(line != _durable_line(line) for line in _lines(stored)):
        return None
    return max(parse_durable(stored), _largest(stored, _ACCEPTED_AT))


def parse_epoch(stored: bytes) -> int:
    """Return the epoch that the bytes of the file `durable` publish; 0 if none has begun."""
    return _largest(stored, _EPOCHS_AT)


def reset_durable(disk: Disk, offset: int) -> None:
    """Publish `offset` in place of whatever was published, durably; for a store that nobody has used."""
    disk.write(DURABLE, 0, durable_lines(offset))
    disk.sync(DURABLE)


def republish_durable(disk: Disk, offset: int, epoch: int = 0, *, may_go_back: bool = False) -> None:
    """Publish the `offset` at which a start has cut the log, durably; not below what was published.

    A node of a cluster `may_go_back`: what it has published lies in the shared log. Never in place: what an
    earlier process wrote there may be in memory only, and the power take all of it.
    """
    before = published(disk)
    assert may_go_back or offset >= before.offset, "what is durable is never cut"
    fresh = f"{DURABLE}.new"
    disk.delete(fresh)
    disk.write(fresh, 0, durable_lines(offset, max(epoch, before.epoch)))
    disk.sync(fresh)
    disk.rename(fresh, DURABLE)


def durable_lines(offset: int, epoch: int = 0) -> bytes:
    """Return all lines of a file `durable` that publishes `offset`."""
    of_epoch = 3 * _durable_line(b"%020d" % epoch) if epoch else b""
    return 3 * _durable_line(b"%020d" % offset) + of_epoch


def holds_records(disk: Disk) -> bool:
    """Tell whether anything was ever stored in the log."""
    offsets = segment_offsets(disk)
    return any(disk.read(segment_path(offset), 0, 8).strip(b"\0") for offset in offsets)


def read_clock(disk: Disk) -> int | None:
    """Return the offset of the store's virtual clock in milliseconds; None if it never had one.

    Raise `StoreDamaged` when neither line of its file is sound: time must not go back.
    """
    size = disk.size(CLOCK)
    if size < 0:
        return None
    stored = disk.read(CLOCK, 0, size)
    if all(line != _durable_line(line) for line in _lines(stored)):
        raise StoreDamaged(f"The file {CLOCK} cannot be read; nothing was changed. Restore it from a backup.")
    return parse_durable(stored)


def begin_clock(disk: Disk) -> None:
    """Make a store one with a virtual clock, durably; it is still at real time."""
    fresh = f"{CLOCK}.new"
    disk.write(fresh, 0, 2 * _durable_line(b"%020d" % 0))
    disk.sync(fresh)
    disk.rename(fresh, CLOCK)


def keep_clock(disk: Disk, offset_ms: int, turn: int) -> None:
    """Write the offset of the virtual clock durably; `turn` alternates, see `publish_durable`."""
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
    """Return the whole line that begins with these 20 digits; what no line can be if they are no digits."""
    digits = line[:OFFSET_DIGITS]
    return b"%s %08x\n\n\n" % (digits, zlib.crc32(digits)) if digits.isdigit() else b"no offset"


def _largest(stored: bytes, first: int) -> int:
    lines = _lines(stored, first)
    return max(int(line[:OFFSET_DIGITS]) if line == _durable_line(line) else 0 for line in lines)


def _lines(stored: bytes, first: int = 0) -> list[bytes]:
    return [stored[at : at + _LINE_BYTES] for at in range(first, first + 3 * _LINE_BYTES, _LINE_BYTES)]
