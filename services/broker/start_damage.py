"""Reports of damage that startup finds in snapshots, the log, or keep files.

Damage to derived files is reported by the code that rebuilds these files.
"""

from __future__ import annotations

from collections.abc import Sequence

from commitlog import layout
from commitlog.disk.disk import Disk
from commitlog.log.log import CommitLog
from commitlog.log.recovery import Damage
from commitlog.snapshots import snapshot
from commitlog.snapshots.snapshot import Snapshot
from services.broker.spine.damage import DamageList
from services.broker.spine.values import DamagedPart


def report_startup_damage(
    disk: Disk,
    log: CommitLog,
    start: Snapshot | None,
    damaged: Sequence[Damage],
    may_begin_at: int,
    into: DamageList,
) -> None:
    """Report the damage that recovery found in snapshots, the log, and keep files."""
    for offset in snapshot.offsets(disk):
        if (start is None or offset != start.offset) and snapshot.read(disk, offset) is None:
            path = snapshot.path_of(offset)
            into.report_file("snapshot", path, f"{path} is not what was written; the other one is used.")
    if log.first_offset > may_begin_at:
        what = describe_missing_segments(may_begin_at, log.first_offset)
        into.report_file("log", layout.segment_path(may_begin_at), what)
    for one in damaged:
        into.report_log_range(one)
    for what in log.keep.damaged:
        into.report(DamagedPart("keep", layout.KEEP, what))


def clip_to_cut(damaged: Sequence[Damage], cut_offset: int) -> list[Damage]:
    """Return the damaged ranges of the log without the parts below `cut_offset`."""
    rest = [Damage(max(one.first_offset, cut_offset), one.end_offset) for one in damaged]
    return [one for one in rest if one.first_offset < one.end_offset]


def describe_missing_segments(may_begin_at: int, first_offset: int) -> str:
    """Describe segments that are missing although the broker has not deleted them."""
    return (
        f"the log begins at {first_offset}, though it was deleted only up to {may_begin_at}: segments are "
        "missing. Restore them from a backup; what lay there is lost."
    )
