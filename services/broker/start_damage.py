"""What a start finds damaged, for operators to be told: snapshots, the log, keep files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commitlog import layout, snapshot
from commitlog.disk import Disk
from commitlog.log import CommitLog
from commitlog.recovery import Damage
from commitlog.snapshot import Snapshot
from services.broker.mending import log_damage
from services.broker.values import Damaged


def found_at_start(
    disk: Disk, log: CommitLog, start: Snapshot | None, damaged: Sequence[Damage], may_begin_at: int
) -> Iterator[Damaged]:
    """Yield all that is not what was written; the derived files are made anew and told of apart."""
    for offset in snapshot.offsets(disk):
        if (start is None or offset != start.offset) and snapshot.read(disk, offset) is None:
            path = snapshot.path_of(offset)
            yield Damaged("snapshot", path, f"{path} is not what was written; the other one is used.")
    if log.first_offset > may_begin_at:
        what = missing_from(may_begin_at, log.first_offset)
        yield Damaged("log", layout.segment_path(may_begin_at), what)
    for one in damaged:
        yield log_damage(log, one)
    for what in log.keep.damaged:
        yield Damaged("keep", layout.KEEP, what)


def missing_from(may_begin_at: int, first_offset: int) -> str:
    """Return what is said of segments that are gone though the broker did not delete them."""
    return (
        f"the log begins at {first_offset}, though it was deleted only up to {may_begin_at}: segments are "
        "missing. Restore them from a backup; what lay there is lost."
    )
