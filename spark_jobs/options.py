"""Options of an audit: its orders, the time of the judgement, and the limits that make a delay a finding."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spark_jobs.layout import RUNS


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """The options of one run. Durations are in milliseconds, times in milliseconds since 1970.

    run_id               sortable; the name of the run's folders
    from_ms, to_ms       only orders placed in [from, to)
    grace_ms             the allowed difference between the clocks of shop and broker
    undecided_limit_ms   a half without an outcome that is older is a finding
    late_limit_ms        a deadline that was delivered later, or is overdue by more, is a finding
    unconsumed_limit_ms  a message that is not acknowledged for longer is a finding
    as_of_ms             the "now" of the judgement; None for the newest store time in the log
    window_ms            the width of the windows of event time
    has_plan             whether a repair plan is written too
    """

    run_id: str
    from_ms: int | None = None
    to_ms: int | None = None
    grace_ms: int = 60_000
    undecided_limit_ms: int = 600_000
    late_limit_ms: int = 60_000
    unconsumed_limit_ms: int = 3_600_000
    as_of_ms: int | None = None
    window_ms: int = 300_000
    has_plan: bool = False


def new_run_id(out: Path, now: datetime | None = None) -> str:
    """Return an id for a run that starts now, unused in `out`, such as 20261121T221530Z (UTC)."""
    stem = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    taken = {path.name for path in (out / RUNS).glob(f"{stem}*")}
    number = 1
    while (run_id := stem if number == 1 else f"{stem}-{number}") in taken:
        number += 1
    return run_id
