"""The table limits that `apply` enforces.

The limits depend on the version in the log, so that all nodes reading it drop the same rows.

Each table of the broker state has a maximum size. If a table is too big, applying the next record drops a
row. During a rolling upgrade, for example, programs with different limits would build different tables from
the same log. The limits are therefore rows of `BY_VERSION`:

    the fold of the shared log       the finalized version (`sharedlog.versions`)
    the leader's epoch record        contains the version    (`services.broker.spine.epoch`)
    `apply`, from that record on     uses the row of the highest version up to this version

Rules
1. `apply` uses only the limits in `BY_VERSION`. It uses neither settings nor constants that may differ
   between program versions (`tests/unit/services/broker/test_apply_reads.py`).
2. Rows of `BY_VERSION` are never changed. To change a limit, add a row with a new version, and increase
   `sharedlog.versions.SUPPORTED` and `commitlog.store_format.VERSION`. A program that lacks the new row can
   then neither join a cluster nor open a store that may use it.
3. A store outside a cluster always uses the row for `OLDEST`.

Limitation: a version finalized during a leader's term takes effect in the next epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

OLDEST: Final = 3
"""Version of the first release. Older programs have lower versions."""


class AppliedLimits(NamedTuple):
    """Table limits for a version. Durations are in milliseconds of store time."""

    half_receipts_kept_ms: int
    """How long the receipt of a half message is kept."""
    half_receipts_max: int
    half_receipts_dropped_max: int
    """Maximum number of receipts dropped per half message, to keep event loop iterations short."""
    ended_halves_max: int
    """Number of half message outcomes in memory. Older ones are read from the log."""
    lost_timers_max: int
    """Maximum number of listed timers with the outcome UNREADABLE."""
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
"""Limits by the version from which they apply."""


def row_of(version: int) -> int:
    """Return the highest version in `BY_VERSION` not exceeding `version`."""
    assert version >= OLDEST, f"version {version} is of no log"
    return max(one for one in BY_VERSION if one <= version)
