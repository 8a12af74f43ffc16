"""Retention: the deletion of the oldest segments.

A segment is deleted only if two snapshots cover it. The last segment is never deleted.

    limit                       deletes                                     retains for lagging groups
    age                         segments in which all records are too old   yes, up to group_pin_ms
    bytes                       the oldest segments above the size limit    yes, up to group_pin_ms
    disk used >= 75 %           the oldest covered segment, of any age      yes, up to group_pin_ms
    disk used >= 85 %           the oldest covered segment, of any age      no

Without an age or size limit, no segment is deleted, even on a full disk. At 90 % disk usage, the broker also
rejects new messages (`services.broker.housekeeping`). Records that are still needed are copied to a keep file
before their segment is deleted (`commitlog.log.keep`).

    `KeepFileWrite.run`    writes the records that are still needed to a keep file
    a record of the cut    is made durable, so that recovery does not expect the deleted part of the log
    `Deletion.run`         deletes the segments, oldest first

Cost: `cut_offset` examines the segments to delete and the one after them. Each retention run writes one keep
file. Limitation: the age of a segment is determined by its newest record. The log may exceed the limits by
one segment.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.limits import RECORD_BYTES_MAX
from commitlog.log import imported, keep
from commitlog.log.segments import Segments

DISK_USED_EARLY: Final = 0.75
DISK_USED_FORCED: Final = 0.85
_HEAD: Final = struct.Struct(">I")


@dataclass(slots=True, frozen=True)
class RetentionPolicy:
    """Maximum age and size of the log.

    None means no limit. `group_pin_ms` is the maximum time that a lagging group can delay deletion.
    """

    age_ms: int | None = None
    log_bytes_max: int | None = None
    group_pin_ms: int = 3 * 86_400_000

    @property
    def deletes(self) -> bool:
        """Whether the policy allows deleting segments."""
        return self.age_ms is not None or self.log_bytes_max is not None


class SegmentAge(NamedTuple):
    """A segment and the store time of its newest record."""

    first_offset: int
    last_store_ms: int


def cut_offset(
    segments: Sequence[SegmentAge],
    segment_bytes: int,
    policy: RetentionPolicy,
    disk_used: float,
    pinned_offset: int | None,
    now_ms: int,
) -> int:
    """Return the end of the segments to delete, or the first offset of the log if there are none.

    `segments` must be in ascending order, and two snapshots must cover each of them. `disk_used` is between 0
    and 1. `pinned_offset` is the lowest offset of an unfinished message that is recent enough to prevent
    deletion.
    """
    cut = segments[0].first_offset if segments else 0
    if not policy.deletes:
        return cut
    for one, following in pairwise(segments):
        if not (
            _is_old(one, policy, now_ms)
            or _is_beyond(one, segments, segment_bytes, policy)
            # Segments are examined one at a time, because the disk usage after each deletion determines
            # whether the next segment is deleted.
            or (disk_used >= DISK_USED_EARLY and cut == segments[0].first_offset)
        ):
            break
        if _is_pinned(following.first_offset, pinned_offset, disk_used):
            break
        assert following.first_offset > cut, "segments are not in order"
        cut = following.first_offset
    return cut


def _is_old(one: SegmentAge, policy: RetentionPolicy, now_ms: int) -> bool:
    return policy.age_ms is not None and one.last_store_ms < now_ms - policy.age_ms


def _is_beyond(
    one: SegmentAge, segments: Sequence[SegmentAge], segment_bytes: int, policy: RetentionPolicy
) -> bool:
    kept_bytes = segments[-1].first_offset + segment_bytes - one.first_offset
    return policy.log_bytes_max is not None and kept_bytes > policy.log_bytes_max


def _is_pinned(end_offset: int, pinned_offset: int | None, disk_used: float) -> bool:
    return pinned_offset is not None and pinned_offset < end_offset and disk_used < DISK_USED_FORCED


@dataclass(slots=True, frozen=True)
class KeepFileWrite:
    """First step of a retention run, which copies needed records from segments below `cut_offset`.

    It may run only once the log is durable up to `durable_at`, because records that end half messages must be
    durable. A retention record is appended next. Once that record is durable, the second step (`Deletion`)
    runs.

    The process may end between any two of these steps. A new keep file includes the records from an existing
    one with the same name and atomically replaces it. Records copied by another attempt are thus not lost,
    even if their segments are gone.
    """

    cut_offset: int
    segments: Segments
    needed_offsets: Sequence[int]
    kept: keep.KeepFiles
    """Records kept by other attempts. The worker thread looks them up: there may be a million."""
    durable_at: int
    places: keep.Places = field(default_factory=dict)
    """Positions of the records in the keep file, set when it is written."""

    def run(self, disk: Disk) -> None:
        """Write the keep file and sync its folder, in a worker thread. Raise OSError if the disk fails."""
        needed = [offset for offset in self.needed_offsets if offset not in self.kept]
        if needed:
            self._write(disk, needed)
        if self.needed_offsets:
            # The folder is synced even if no file was written, because recovery may have found a keep file
            # whose directory entry is not on disk after a failed sync. Once the retention record is durable,
            # the keep file may contain the only copies of records.
            disk.sync_folder(layout.KEEP)
            disk.sync_folder("")

    def _write(self, disk: Disk, needed: Sequence[int]) -> None:
        """Write a keep file that contains the needed records and those of an existing keep file."""
        imported_until = imported.read(disk)
        path, fresh = keep.path_of(self.cut_offset), f"{layout.KEEP}.new"
        before = bytes(disk.view(path)) if disk.size(path) > 0 else b""
        kept = [before[at : at + length] for _, at, length in keep.records(before, imported_until)]
        kept += (self._read(disk, offset) for offset in needed)
        content = b"".join(one for one in kept if keep.is_sound(one, imported_until))
        self.places.update(keep.places_in(path, content, imported_until))
        disk.delete(fresh)
        disk.write(fresh, 0, content)
        disk.sync(fresh)
        disk.rename(fresh, path)

    def _read(self, disk: Disk, physical_offset: int) -> bytes:
        path, position = self.segments.place(physical_offset)
        (record_bytes,) = _HEAD.unpack(disk.read(path, position, _HEAD.size).ljust(_HEAD.size, b"\0"))
        return disk.read(
            path, position, min(record_bytes, max(self.segments.segment_bytes, RECORD_BYTES_MAX))
        )


@dataclass(slots=True, frozen=True)
class Deletion:
    """The second step of a retention run, which deletes the segments below `cut_offset`.

    With asynchronous flushes, the retention record may not be on disk yet, so `unsynced_paths` are synced
    first. `derived_paths` holds other files that are useless without the segments. If any of these cannot be
    deleted, a later retention run tries again.
    """

    cut_offset: int
    unsynced_paths: tuple[str, ...] = ()
    derived_paths: tuple[str, ...] = ()
    durable_at: int = 0
    gone: list[str] = field(default_factory=list)
    """Files in `derived_paths` that `run` has deleted."""

    def run(self, disk: Disk) -> None:
        """Delete the derived files and then the segments, oldest first, in a worker thread.

        Raise OSError if the disk fails. After `SyncFailed` for a segment file, the log must be reopened.
        """
        # The retention record may be in a file that has not been synced yet. Without the sync, the log could
        # be missing its first segments and contain no retention record after a power failure.
        for path in self.unsynced_paths:
            disk.sync(path)
        self.gone.extend(delete_some(disk, self.derived_paths))
        for name in disk.list(layout.COMMITLOG):
            if name.isdigit() and int(name) < self.cut_offset:
                disk.delete(f"{layout.COMMITLOG}/{name}")


Retirement = KeepFileWrite | Deletion


def delete_some(disk: Disk, paths: Iterable[str]) -> list[str]:
    """Delete as many files as possible. Return the paths that were durably deleted."""
    gone = list[str]()
    for path in paths:
        with suppress(OSError):
            disk.delete(path)
            gone.append(path)
    return gone
