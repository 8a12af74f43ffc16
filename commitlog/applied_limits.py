"""Limits that `apply` reads, by the version that the log says: all that fold a log drop the same rows.

A table that is part of the state has a bound, and a row beyond it is dropped by the record that comes next.
Two programs with different bounds would fold one log into different tables, as in a cluster whose nodes are
upgraded one after the other. So such bounds are in rows of `BY_VERSION`:

    the fold of the shared log       the finalized version (`sharedlog.versions`)
    the leader's epoch record        names it                (`services.broker.spine.epoch`)
    `apply`, from that record on     the row of the highest version that is not above it

Rules
1. `apply` reads no setting, and no constant that another program may have otherwise, but these
   (`tests/unit/services/broker/test_apply_reads.py`).
2. A row stays as it is for good. Another bound is another row under a new version, with which
   `sharedlog.versions.SUPPORTED` and `commitlog.store_format.VERSION` rise: programs that lack the row join
   no cluster and open no store where it may hold.
3. A store that is alone has `OLDEST`.

Weak spot: a version that is finalized while a leader leads holds from the next epoch on; a store that is
alone begins no epochs, and keeps the row that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

OLDEST: Final = 3
"""The version of the first release; lower ones are of programs before it."""


class AppliedLimits(NamedTuple):
    """Bounds of tables; spans of time in ms of store time."""

    half_receipts_kept_ms: int
    """How long the receipt of a half is kept."""
    half_receipts_max: int
    half_receipts_dropped_max: int
    """The old receipts that one half drops: after a pause, 200,000 at once would stop the loop."""
    ended_halves_max: int
    """The ends of halves that are remembered; older ones are read from the log."""
    lost_timers_max: int
    """The timers that ended as UNREADABLE and are listed."""
    spent_schedules_kept_ms: int
    """How long the cursor of a deleted schedule is kept."""
    spent_schedules_max: int


BY_VERSION: Final[Mapping[int, AppliedLimits]] = {
    OLDEST: AppliedLimits(
        half_receipts_kept_ms=600_000,
        half_receipts_max=1_000_000,
        half_receipts_dropped_max=4,
        ended_halves_max=10_000,
        lost_timers_max=10_000,
        spent_schedules_kept_ms=86_400_000,
        spent_schedules_max=10_000,
    )
}
"""The limits from a version on."""


def row_of(version: int) -> int:
    """Return the version whose row holds under a version."""
    assert version >= OLDEST, f"version {version} is of no log"
    return max(one for one in BY_VERSION if one <= version)
