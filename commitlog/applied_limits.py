"""Limits that `apply` reads, by the version in the log, so that all nodes which fold a log drop the same
rows.

A table that is part of the state has a bound, and a row above the bound is dropped when the next record is
applied. Two programs with different bounds would build different tables from the same log, for example during
a rolling upgrade of a cluster. Therefore the bounds are rows of `BY_VERSION`:

    the fold of the shared log       the finalized version (`sharedlog.versions`)
    the leader's epoch record        contains the version    (`services.broker.spine.epoch`)
    `apply`, from that record on     uses the row of the highest version up to this version

Rules
1. `apply` reads the limits in `BY_VERSION`, but no settings and no constants that may differ between programs
   (`tests/unit/services/broker/test_apply_reads.py`).
2. A row of `BY_VERSION` never changes. A changed bound is a new row under a new version, which also raises
   `sharedlog.versions.SUPPORTED` and `commitlog.store_format.VERSION`. A program without the new row can
   neither join a cluster nor open a store to which the row may apply.
3. A store outside a cluster uses the row of `OLDEST`.

Weak spot: a version that is finalized during the term of a leader applies from the next epoch on. A store
outside a cluster begins no epochs, and never changes its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

OLDEST: Final = 3
"""The version of the first release. Programs before the first release have lower versions."""


class AppliedLimits(NamedTuple):
    """The bounds of tables, with times in ms of store time."""

    half_receipts_kept_ms: int
    """The time for which the receipt of a half message is kept."""
    half_receipts_max: int
    half_receipts_dropped_max: int
    """The maximum number of receipts dropped per half message, to avoid blocking the event loop."""
    ended_halves_max: int
    """The number of outcomes of half messages in memory. Older outcomes are read from the log."""
    lost_timers_max: int
    """The maximum number of listed timers that ended as UNREADABLE."""
    spent_schedules_kept_ms: int
    """The time for which the cursor of a deleted schedule is kept."""
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
"""The limits by the version from which they apply."""


def row_of(version: int) -> int:
    """Return the version whose row of limits applies under a given version."""
    assert version >= OLDEST, f"version {version} is of no log"
    return max(one for one in BY_VERSION if one <= version)
