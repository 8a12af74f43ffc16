"""Implements retention, which deletes the oldest segments.

A segment is deleted only if it is covered by two snapshots. The last segment is never deleted.

    limit                       deletes                                     retains for lagging groups
    age                         segments in which all records are too old   yes, up to group_pin_ms
    bytes                       the oldest segments above the size limit    yes, up to group_pin_ms
    disk used >= 75 %           the oldest covered segment, of any age      yes, up to group_pin_ms
    disk used >= 85 %           the oldest covered segment, of any age      no

If there is no age or size limit, no segments are deleted, even if the disk is full. At 90 % disk usage, new
messages are also rejected (`services.broker.housekeeping`). Records that are still needed are copied to a
keep file before their segment is deleted (`commitlog.keep`).

    `KeepFileWrite.run`         writes the records that are still needed to a keep file
    a record of the cut   is made durable, so that recovery does not expect the deleted part of the log
    `Deletion.run`        deletes the segments, oldest first

Cost: The function `cut_offset` examines the segments to be deleted and one additional segment. Each retention
run writes one keep file. Weak spot: The age of a segment is the age of its newest record. The log may exceed
the limits by one segment.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from commitlog import imported, keep, layout
from commitlog.disk import Disk
from commitlog.limits import RECORD_BYTES_MAX
from commitlog.segments import Segments

DISK_USED_EARLY: Final = 0.75
DISK_USED_FORCED: Final = 0.85
_HEAD: Final = struct.Struct(">I")


@dataclass(slots=True, frozen=True)
class RetentionPolicy:
    """The maximum age and size of the log.

    A value of None means that there is no limit. `group_pin_ms` limits the time for which a lagging group can
    prevent deletion.
    """

    age_ms: int | None = None
    log_bytes_max: int | None = None
    group_pin_ms: int = 3 * 86_400_000

    @property
    def deletes(self) -> bool:
        """True if the policy allows segments to be deleted."""
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
    """Return the end offset of the segments to be deleted.

    If no segment needs to be deleted, return the first offset of the log. `segments` must be in ascending
    order, and each segment must be covered by two snapshots. `disk_used` is a fraction between 0 and 1.
    `pinned_offset` is the lowest offset of an unfinished message that is recent enough to prevent deletion.
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
    """The first step of a retention run, which copies needed records from the segments below `cut_offset`.

    The first step may run as soon as the log is durable up to `durable_at`, because records that end half
    messages must be durable. After the first step, a retention record is appended. The second step
    (`Deletion`) is run when the retention record is durable.

    The process may end between any two of these steps. A new keep file includes all records of an existing
    keep file with the same name, and atomically replaces the existing file. Therefore, records that were
    copied by an earlier attempt are not lost, even if their segments have been deleted.
    """

    cut_offset: int
    segments: Segments
    needed_offsets: Sequence[int]
    kept: keep.Keep
    """The records from earlier attempts. The worker thread looks up these records, because there may be up to
    a million of them."""
    durable_at: int
    places: keep.Places = field(default_factory=dict)
    """The positions of the records in the keep file, which are set when the file is written."""

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
        """Write a keep file with the needed records and the records of any existing keep file."""
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

    If flushes are asynchronous, the retention record may not be on disk yet. Therefore, `unsynced_paths` are
    synced first. `derived_paths` contains other files that are not needed after the segments have been
    deleted. If a file in `derived_paths` cannot be deleted, a later retention run retries the deletion.
    """

    cut_offset: int
    unsynced_paths: tuple[str, ...] = ()
    derived_paths: tuple[str, ...] = ()
    durable_at: int = 0
    gone: list[str] = field(default_factory=list)
    """The files in `derived_paths` that `run` has deleted."""

    def run(self, disk: Disk) -> None:
        """Delete the derived files and then the segments, oldest first, in a worker thread.

        Raise OSError if the disk fails. If `SyncFailed` is raised for a segment file, the log must be opened
        again.
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
    """Delete as many files as possible, and return the paths of the files that were durably deleted."""
    gone = list[str]()
    for path in paths:
        with suppress(OSError):
            disk.delete(path)
            gone.append(path)
    return gone
