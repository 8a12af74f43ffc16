"""Defines the table limits that `apply` enforces.

The limits depend on the version recorded in the log, so that all nodes that read the log drop the same rows.

The size of each table in the broker state is limited. If a table exceeds its limit, a row is dropped when the
next record is applied. Program versions with different limits would build different tables from the same log,
for example during a rolling upgrade of a cluster. Therefore, the limits are stored as rows of `BY_VERSION`:

    the fold of the shared log       the finalized version (`sharedlog.versions`)
    the leader's epoch record        contains the version    (`services.broker.spine.epoch`)
    `apply`, from that record on     uses the row of the highest version up to this version

Rules
1. `apply` uses only the limits in `BY_VERSION`. `apply` does not use settings or constants that may differ
   between program versions (`tests/unit/services/broker/test_apply_reads.py`).
2. A row of `BY_VERSION` is never changed. To change a limit, add a row with a new version, and increase
   `sharedlog.versions.SUPPORTED` and `commitlog.store_format.VERSION`. A program that does not contain the
   new row cannot join a cluster or open a store to which the row may apply.
3. A store outside a cluster always uses the row for `OLDEST`.

Weak spot: A version that is finalized during a leader's term takes effect in the next epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

OLDEST: Final = 3
"""The version of the first release. Programs that predate the first release have lower version numbers."""


class AppliedLimits(NamedTuple):
    """The table limits for a version. All durations are in milliseconds of store time."""

    half_receipts_kept_ms: int
    """The time for which the receipt of a half message is kept."""
    half_receipts_max: int
    half_receipts_dropped_max: int
    """The maximum number of receipts that are dropped per half message. The limit prevents long event loop
    iterations."""
    ended_halves_max: int
    """The number of half message outcomes that are kept in memory. Older outcomes are read from the log."""
    lost_timers_max: int
    """The maximum number of timers with the outcome UNREADABLE that are kept in the list."""
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
"""The limits, keyed by the version from which they apply."""


def row_of(version: int) -> int:
    """Return the highest version in `BY_VERSION` that is not higher than `version`."""
    assert version >= OLDEST, f"version {version} is of no log"
    return max(one for one in BY_VERSION if one <= version)
