"""What a start finds damaged, for those who must know: snapshots, the log, keep files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commitlog import layout, snapshot
from commitlog.disk import Disk
from commitlog.log import CommitLog
from commitlog.recovery import Damage
from commitlog.snapshot import Snapshot
from services.broker.values import Damaged


def found_at_start(
    disk: Disk, log: CommitLog, start: Snapshot | None, damaged: Sequence[Damage]
) -> Iterator[Damaged]:
    """All that is not what was written; the derived files are made anew and told of apart."""
    for offset in snapshot.offsets(disk):
        if (start is None or offset != start.offset) and snapshot.read(disk, offset) is None:
            path = snapshot.path_of(offset)
            yield Damaged("snapshot", path, f"{path} is not what was written; the other one is used.")
    for one in damaged:
        path = layout.segment_path(one.first_offset // log.segment_bytes * log.segment_bytes)
        what = f"the log is damaged from {one.first_offset} to {one.end_offset}; what lay there is lost."
        yield Damaged("log", path, what)
    for what in log.keep.damaged:
        yield Damaged("keep", layout.KEEP, what)
