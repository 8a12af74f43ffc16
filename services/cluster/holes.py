"""The file `holes`: damage of a node's log and keep files that an operator has accepted (`cluster restore`).

A restore takes the sound records behind damage as well. The bytes of the damage stay as they are, at their
place, and the broker steps over them as over any damage (docs/damage.md). The file keeps a node from taking
them for damage of its own disk, for which it would need the copy of another node: none has these bytes.

    holes   JSON: log, a list of [first offset, end offset], ascending and apart; keep, the number of damaged
            bytes in keep files; then a line feed, and the CRC-32 of the JSON, 8 hex digits

Rules
1. Only a restore writes it, before the new cluster begins. It goes to other nodes with each copy.
2. Damage outside of the holes is damage: the copy is void, as ever.
3. What a read meets (a message, an entry of a queue) names one place, and after a restore also the gap that a
   hole has left in a queue. So the segment of that place is read through before it is believed.

Cost: one read of a small file for each opening and each copy; one read of a segment for each place that a
read has met. Weak spot: timers and halves whose records lie in a hole are told, and are no reason to get a
copy; nor are then those that a damaged file of timers has cost this node alone. A spoiled file counts as
none: the node needs a copy then, or another restore.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from commitlog import layout
from commitlog.disk import Disk
from commitlog.recovery import Damage, LogScan


class Holes(NamedTuple):
    """The damaged places of the log, ascending, and how many bytes of keep files are damaged."""

    log: tuple[Damage, ...] = ()
    keep_bytes: int = 0

    @property
    def are_there(self) -> bool:
        """Whether anything is damaged."""
        return bool(self.log or self.keep_bytes)


def read(disk: Disk) -> Holes:
    """Return the holes of a store; none without a file, or of a spoiled one. Raise OSError."""
    size = disk.size(layout.HOLES)
    content, _, crc = disk.read(layout.HOLES, 0, max(0, size)).partition(b"\n")
    if crc != _crc(content):
        return Holes()
    found = json.loads(content)
    return Holes(tuple(Damage(first, end) for first, end in found["log"]), found["keep"])


def write(disk: Disk, holes: Holes) -> None:
    """Keep what is known to be damaged, durably; without any there is no file. Raise OSError."""
    found = {
        "log": [[one.first_offset, one.end_offset] for one in joined(holes.log)],
        "keep": holes.keep_bytes,
    }
    if not holes.are_there:
        disk.delete(layout.HOLES)
        return
    content, fresh = json.dumps(found).encode(), f"{layout.HOLES}.new"
    disk.delete(fresh)
    disk.write(fresh, 0, content + b"\n" + _crc(content))
    disk.sync(fresh)
    disk.rename(fresh, layout.HOLES)


def make_room(disk: Disk, segment_bytes: int, damaged: Iterable[Damage]) -> None:
    """Make the segments that are gone, of zeros, so that the log is in one piece. Raise OSError."""
    there = layout.segment_offsets(disk)
    for one in damaged:
        at = one.first_offset
        while at < one.end_offset:
            before = max((first for first in there if first <= at), default=-1)
            following = min((first for first in there if first > at), default=at + segment_bytes)
            size = disk.size(layout.segment_path(before)) if before >= 0 else 0
            if before >= 0 and at < before + max(size, segment_bytes):
                at = min(following, before + max(size, segment_bytes))
                continue
            disk.allocate(layout.segment_path(at), min(segment_bytes, following - at))
            at += min(segment_bytes, following - at)


def joined(damaged: Iterable[Damage]) -> list[Damage]:
    """Return damaged places, ascending, in which those that touch are one: a scan parts them by segments."""
    found: list[Damage] = []
    for one in damaged:
        if found and found[-1].end_offset >= one.first_offset:
            one = Damage(found.pop().first_offset, one.end_offset)
        found.append(one)
    return found


def damage_beside(disk: Disk, segment_bytes: int, since: int, end: int) -> list[Damage]:
    """Return what of the log from `since` up to `end` is not what was written, and is no hole.

    A record begins at `since`, unless that was told of another history; then its segment is read whole. Raise
    a `StoreError`, or OSError.
    """
    offsets = layout.segment_offsets(disk)  # retention deletes what was told of before
    begins_at = max((one for one in offsets if one <= since), default=min(offsets, default=0))
    found = _damage(disk, segment_bytes, max(since, begins_at), end)
    if found and found[0].first_offset == since > begins_at:
        found = _damage(disk, segment_bytes, begins_at, end)
    holes = read(disk).log
    return [one for one in found if not any(_is_inside(one, hole) for hole in holes)]


def _damage(disk: Disk, segment_bytes: int, since: int, end: int) -> list[Damage]:
    scan = LogScan(disk, segment_bytes, since, end)
    scan.check()
    # What lies behind `end` is not looked at, and so none of the scan's business.
    found = [
        Damage(one.first_offset, min(one.end_offset, end)) for one in scan.damaged if one.first_offset < end
    ]
    if scan.end_offset < end:
        found.append(Damage(scan.end_offset, end))
    return found


def _is_inside(one: Damage, hole: Damage) -> bool:
    return hole.first_offset <= one.first_offset and one.end_offset <= hole.end_offset


def _crc(content: bytes) -> bytes:
    return b"%08x" % zlib.crc32(content)
