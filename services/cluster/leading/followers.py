"""Follower reports. The leader uses the reports to compute each follower's lag and fitness to lead.

Every REPORT_SECONDS seconds, each follower sends a report to the leader's HTTP interface. The report contains
the follower's name, the end of its applied log, and its fitness to lead. Reports are not written to the
shared log, because each report would require an engine commit. Reports are authenticated with a secret
derived from the newest EPOCH record, so a former leader rejects them.

The lag in bytes is the leader's accepted end minus the end in the follower's last report. The lag in ms is
the time since the leader's accepted end first exceeded the reported end. This lag increases while a follower
is unavailable.

Rules
1. If a node has not sent a report, the lag in bytes is based on the end of its announced copy, and the lag in
   ms is the time since the leader was elected.
2. Removed nodes (`tidewheel cluster forget`) have no lag.
3. If a node's last report is older than FRESH_MS, the node may be down, so the leader does not choose it as a
   successor (`health`).

Cost: one request per follower every REPORT_SECONDS seconds, and up to ENDS_MAX log ends in memory.
Limitation: between two reports, an up-to-date follower can appear to lag by up to REPORT_SECONDS seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from services.cluster import peers
from services.cluster.election.health import Health
from services.cluster.identity import Member
from sharedlog.fold import Fold
from sharedlog.holdings import Holding

REPORT_SECONDS: Final = 1.0
"""Interval in seconds between a follower's reports."""
FRESH_MS: Final = 3_000
"""Maximum age in milliseconds of the last report of a running follower."""
END_INTERVAL_MS: Final = 100
"""Minimum interval in milliseconds between two recorded ends of the leader's log."""
ENDS_MAX: Final = 36_000
"""Maximum number of recorded log ends. A lag of more than one hour may be underestimated."""
REPORT_TIMEOUT_SECONDS: Final = 2.0
"""Timeout in seconds for a follower's report request."""
PATH: Final = "/api/cluster/position"
_SECRET_BYTES: Final = 16


def report_position(leader: Member, node: str, fold: Fold, health: Health) -> None:
    """Report a follower's log end, fitness and clock skew to the leader."""
    facts = {"node": node, "end_offset": fold.end, "unfit": health.unfit_reason()}
    facts["clock_skew_ms"] = health.lag_and_skew.skew_ms
    peers.post(leader.http, leader.certificate, PATH, secret_of(fold), facts, REPORT_TIMEOUT_SECONDS)


def secret_of(fold: Fold) -> str:
    """Return the secret for reports to the leader, derived from the newest EPOCH record."""
    return blake2b(PATH.encode(), key=fold.holder, digest_size=_SECRET_BYTES).hexdigest()


class _FollowerReport(NamedTuple):
    """A follower's last report: its log end, arrival time, and last time without a lag.

    `unfit` is the reason the follower is unfit to lead, "" if it is fit, or None if unreported.
    """

    end: int
    heard_ms: int
    had_all_ms: int
    unfit: str | None


class Followers:
    """The follower reports received by the current leader. `clock` returns monotonic milliseconds."""

    def __init__(self, end: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._began_ms = clock()
        self._ends = [(self._began_ms, end)]
        """The times at which the leader's log advanced, with the new log ends, in ascending order.
        """
        self._end = end
        self._reports: dict[str, _FollowerReport] = {}

    def record_end(self, end: int) -> None:
        """Record the current end of the leader's accepted log."""
        if end > self._end:
            self._end = end
            now_ms = self._clock()
            if now_ms - self._ends[-1][0] < END_INTERVAL_MS and len(self._ends) > 1:
                # Keep the time of the first advance, because a follower with a lower end has been lagging
                # since then.
                self._ends[-1] = (self._ends[-1][0], end)
                return
            self._ends.append((now_ms, end))
            del self._ends[: max(0, len(self._ends) - ENDS_MAX)]

    def record_report(self, node: str, end: int, unfit: str | None) -> None:
        """Record a follower's report that has just arrived."""
        now_ms = self._clock()
        at = bisect_right(self._ends, end, key=lambda mark: mark[1])
        # The follower had no lag until the leader's end first exceeded the reported end.
        had_all_ms = self._ends[at][0] if at < len(self._ends) else now_ms
        before = self._reports.get(node)
        if before is not None and end >= before.end:
            had_all_ms = max(had_all_ms, before.had_all_ms)
        self._reports[node] = _FollowerReport(end, now_ms, had_all_ms, unfit)

    def fittest_follower(self) -> str:
        """Return the fit follower with the highest recently reported log end, or "" if none."""
        since_ms = self._clock() - FRESH_MS
        fit = {
            node: one for node, one in self._reports.items() if one.unfit == "" and one.heard_ms >= since_ms
        }
        return max(fit, key=lambda node: (fit[node].end, node), default="")

    def reported_ends(self) -> dict[str, int]:
        """Return the log end of each follower whose last report is at most FRESH_MS old."""
        since_ms = self._clock() - FRESH_MS
        return {node: one.end for node, one in self._reports.items() if one.heard_ms >= since_ms}

    def view(self, held: Mapping[str, Holding], besides: str) -> dict[str, dict[str, Any]]:
        """Return the lag of each node in `held` other than `besides`, as a JSON-serializable dictionary."""
        now_ms, found = self._clock(), {}
        for node, holding in held.items():
            if node == besides:
                continue
            told = self._reports.get(node)
            end = (holding.end or 0) if told is None else told.end
            found[node] = {
                "lag_bytes": max(0, self._end - end),
                "lag_ms": now_ms - (self._began_ms if told is None else told.had_all_ms),
                "heard_ms_ago": None if told is None else now_ms - told.heard_ms,
            }
        return found
