"""The `holes` file, which lists the damage in a store that an operator has accepted.

A restore (`cluster restore`) keeps valid records that follow damaged records. The damaged bytes stay on disk,
and the broker skips these bytes like any other damage (docs/damage.md). The `holes` file distinguishes
accepted damage from new damage. A node repairs new damage by fetching a copy from another node. A copy cannot
repair a hole, because no node has the missing bytes.

The file contains a JSON object, a line feed, and the CRC-32 of the JSON as 8 hex digits. The field `log` is a
list of [first offset, end offset] pairs, in ascending order and without overlaps. The field `keep` is the
number of damaged bytes in keep files.

Rules
1. Only a restore writes the `holes` file, before the new cluster is created. Every copy of the store includes
   the file.
2. Damage outside the holes makes the store unusable.
3. A failed read reports only one damaged location. This location may be a gap that a hole has left in a
   queue. The node therefore scans the whole segment before it reports the store as damaged.

Cost: the `holes` file is read whenever a store is opened or copied, and one segment is scanned for each
damaged location. Limitation: if a store has holes, the loss of timers or half messages is reported, but the
node does not fetch a copy. The same applies if a timer file is damaged on this node. A damaged `holes` file
is treated as empty. In this case, the node needs a copy from another node or another restore.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.log.recovery import Damage, LogScan


class Holes(NamedTuple):
    """The accepted damage: log ranges in ascending order, and the number of damaged bytes in keep files."""

    log: tuple[Damage, ...] = ()
    keep_bytes: int = 0

    @property
    def has_any(self) -> bool:
        """Whether the store has any accepted damage."""
        return bool(self.log or self.keep_bytes)


def read(disk: Disk) -> Holes:
    """Return the accepted damage in a store. Raise OSError if the `holes` file cannot be read.

    If the `holes` file is missing or damaged, return an empty `Holes`.
    """
    size = disk.size(layout.HOLES)
    content, _, crc = disk.read(layout.HOLES, 0, max(0, size)).partition(b"\n")
    if crc != _crc(content):
        return Holes()
    found = json.loads(content)
    return Holes(tuple(Damage(first, end) for first, end in found["log"]), found["keep"])


def write(disk: Disk, holes: Holes) -> None:
    """Write the `holes` file durably, or delete it if there are no holes.

    Raise OSError if the disk fails.
    """
    found = {
        "log": [[one.first_offset, one.end_offset] for one in join_ranges(holes.log)],
        "keep": holes.keep_bytes,
    }
    if not holes.has_any:
        disk.delete(layout.HOLES)
        return
    content, fresh = json.dumps(found).encode(), f"{layout.HOLES}.new"
    disk.delete(fresh)
    disk.write(fresh, 0, content + b"\n" + _crc(content))
    disk.sync(fresh)
    disk.rename(fresh, layout.HOLES)


def fill_missing_segments(disk: Disk, segment_bytes: int, damaged: Iterable[Damage]) -> None:
    """Create a zero-filled segment for each log segment that is missing in the damaged ranges.

    Raise OSError if the disk fails.
    """
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


def join_ranges(damaged: Iterable[Damage]) -> list[Damage]:
    """Join damaged ranges that are adjacent or overlap. The ranges must be in ascending order.

    A log scan splits damaged ranges at segment boundaries.
    """
    found: list[Damage] = []
    for one in damaged:
        if found and found[-1].end_offset >= one.first_offset:
            one = Damage(found.pop().first_offset, one.end_offset)
        found.append(one)
    return found


def damage_outside_holes(disk: Disk, segment_bytes: int, since: int, end: int) -> list[Damage]:
    """Return the damaged ranges of the log between `since` and `end`, without those inside a hole.

    The whole segment is scanned if no record starts at `since`, because the offset may belong to a different
    history. Raise a `StoreError` if the log cannot be scanned, or OSError if the disk fails.
    """
    offsets = layout.segment_offsets(disk)  # retention may have deleted the segment that contains `since`
    begins_at = max((one for one in offsets if one <= since), default=min(offsets, default=0))
    found = _damage(disk, segment_bytes, max(since, begins_at), end)
    if found and found[0].first_offset == since > begins_at:
        found = _damage(disk, segment_bytes, begins_at, end)
    holes = read(disk).log
    return [one for one in found if not any(_is_inside(one, hole) for hole in holes)]


def _damage(disk: Disk, segment_bytes: int, since: int, end: int) -> list[Damage]:
    scan = LogScan(disk, segment_bytes, since, end)
    scan.check()
    # Omit damage after `end`.
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
