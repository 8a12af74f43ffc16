"""Which segments may go: the oldest first, never the last, and only what two snapshots cover.

    wish                        deletes                                     respects lagging groups
    age                         segments whose newest record is too old     yes, up to group_pin_ms
    bytes                       the oldest beyond the log's size limit      yes, up to group_pin_ms
    disk used >= 75 %           the oldest covered one, whatever its age    yes, up to group_pin_ms
    disk used >= 85 %           the oldest covered one, whatever its age    no

Without an age or a size nothing is ever deleted, however full the disk: who asked for no deletion gets none.
At 90 % new messages are refused as well (`services.broker.housekeeping`). What is still needed from a deleted
segment is copied to a keep file first (`commitlog.keep`).

    `Keeping.run`         what is still needed is in a keep file
    a record of the cut   and durable: every start knows that nothing below is there
    `Deletion.run`        the segments go, oldest first

Cost: `cut_offset` looks at the segments that go and one more; a keep file is written anew for each cut. Weak
spot: a segment goes whole, by its newest record, so the log may be a segment longer and older than wished.
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
    """How long the log is kept: by age, by size (None: no limit), and how long a lagging group holds it."""

    age_ms: int | None = None
    log_bytes_max: int | None = None
    group_pin_ms: int = 3 * 86_400_000

    @property
    def deletes(self) -> bool:
        """Whether anything is to be deleted at all."""
        return self.age_ms is not None or self.log_bytes_max is not None


class SegmentAge(NamedTuple):
    """A segment, and when its newest record was stored."""

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
    """Return up to where the log should be deleted; the first segment's own offset if nothing should go.

    `segments` ascend, and have only what two snapshots cover. `disk_used` is a share, 0 to 1. `pinned_offset`
    is the lowest one that a group still waits for and that is young enough to hold the log.
    """
    cut = segments[0].first_offset if segments else 0
    if not policy.deletes:
        return cut
    for one, following in pairwise(segments):
        if not (
            _is_old(one, policy, now_ms)
            or _is_beyond(one, segments, segment_bytes, policy)
            # One at a time: how full the disk is then decides about the next.
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
class Keeping:
    """The records to keep from segments that are to go, up to `cut_offset`: the first step.

    It may run once the log is durable up to `durable_at`: only then is it sure what is not needed. Then a
    record says that the log is cut, and when that is durable the second step follows (`Deletion`).

    It may end between any two steps. The keep file is made beside the one of that name, with all that this
    holds, and renamed: so what an earlier attempt has kept, whose segment may be gone, is never lost.
    """

    cut_offset: int
    segments: Segments
    needed_offsets: Sequence[int]
    kept: keep.Keep
    """Has the offsets that an attempt before has kept; asked in the worker, since there may be a million."""
    durable_at: int
    places: keep.Places = field(default_factory=dict)
    """Where in the file the records lie, once it is written."""

    def run(self, disk: Disk) -> None:
        """Write the keep file and sync its name, in a worker thread; raise OSError."""
        needed = [offset for offset in self.needed_offsets if offset not in self.kept]
        if needed:
            self._write(disk, needed)
        if self.needed_offsets:
            # Also where nothing was to be written: a start may have found a file whose name is not on disk,
            # since that sync failed. Once the record of the cut is, nothing else has these records.
            disk.sync_folder(layout.KEEP)
            disk.sync_folder("")

    def _write(self, disk: Disk, needed: Sequence[int]) -> None:
        """Write a file of what the last one of that name has and of what is needed besides."""
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
    """The segments below `cut_offset`, which nobody reads any more, as a durable record says.

    With asynchronous flushes that is not on disk yet: `unsynced_paths` are synced first. `derived_paths` are
    other files that the cut has left without use; each that stays is tried again with a later cut.
    """

    cut_offset: int
    unsynced_paths: tuple[str, ...] = ()
    derived_paths: tuple[str, ...] = ()
    durable_at: int = 0
    gone: list[str] = field(default_factory=list)
    """Those of `derived_paths` that are deleted, once it has run."""

    def run(self, disk: Disk) -> None:
        """Delete the other files, and the segments, oldest first, in a worker thread.

        Raise OSError; if it is `SyncFailed` of the log, the log is to be opened anew.
        """
        # The record of the cut may lie in a file that is not on disk yet: else a power cut would bring a log
        # back that begins where its segments are gone, and knows nothing of it.
        for path in self.unsynced_paths:
            disk.sync(path)
        self.gone.extend(delete_some(disk, self.derived_paths))
        for name in disk.list(layout.COMMITLOG):
            if name.isdigit() and int(name) < self.cut_offset:
                disk.delete(f"{layout.COMMITLOG}/{name}")


Retirement = Keeping | Deletion


def delete_some(disk: Disk, paths: Iterable[str]) -> list[str]:
    """Delete files as far as the disk lets them go; return the paths of those that are gone durably."""
    gone = list[str]()
    for path in paths:
        with suppress(OSError):
            disk.delete(path)
            gone.append(path)
    return gone
