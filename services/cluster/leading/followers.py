"""Follower reports, from which the leader derives the lag and the fitness of each follower.

Each follower sends a report to the leader's HTTP interface every REPORT_SECONDS. A report contains the
follower's name, the end of the log that it has applied, its fitness to lead, and its clock skew. Reports are
not written to the shared log, because each report would require an engine commit. Reports are authenticated
with a secret that is derived from the newest EPOCH record. A former leader therefore rejects the reports of a
newer epoch.

The lag in bytes is the accepted end of the leader's log minus the last reported end. The lag in milliseconds
is the time since the leader's accepted end first exceeded the reported end. It increases while a follower is
unavailable.

Rules
1. If a node has not sent a report, the lag in bytes is computed from the end of its announced copy. The lag
   in milliseconds is then the time since the leader was elected.
2. The leader computes no lag for removed nodes (`tidewheel cluster forget`).
3. The leader does not select a successor whose last report is older than FRESH_MS, because that node may be
   down (`health`).

Cost: one request per follower every REPORT_SECONDS, and up to ENDS_MAX log ends in memory. Limitation: an
up-to-date follower can appear to lag by up to REPORT_SECONDS between two reports.
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
"""Interval in seconds between two reports of a follower."""
FRESH_MS: Final = 3_000
"""Maximum age in milliseconds of a follower's last report. Followers with older reports may be down."""
END_INTERVAL_MS: Final = 100
"""Minimum interval in milliseconds between two recorded ends of the leader's log."""
ENDS_MAX: Final = 36_000
"""Maximum number of recorded log ends. The leader may underestimate a lag of more than one hour."""
REPORT_TIMEOUT_SECONDS: Final = 2.0
"""Timeout in seconds for a follower's report request."""
PATH: Final = "/api/cluster/position"
_SECRET_BYTES: Final = 16


def report_position(leader: Member, node: str, fold: Fold, health: Health) -> None:
    """Send a follower's log end, fitness to lead and clock skew to the leader."""
    facts = {"node": node, "end_offset": fold.end, "unfit": health.unfit_reason()}
    facts["clock_skew_ms"] = health.lag_and_skew.skew_ms
    peers.post(leader.http, leader.certificate, PATH, secret_of(fold), facts, REPORT_TIMEOUT_SECONDS)


def secret_of(fold: Fold) -> str:
    """Return the secret for reports to the leader. The secret is derived from the newest EPOCH record."""
    return blake2b(PATH.encode(), key=fold.holder, digest_size=_SECRET_BYTES).hexdigest()


class _FollowerReport(NamedTuple):
    """The last report of a follower: its log end, its arrival time, and the last time without a lag.

    The field `unfit` contains the reason why the follower is unfit to lead. The field is "" if the follower
    is fit, or None if the report does not contain the field.
    """

    end: int
    heard_ms: int
    had_all_ms: int
    unfit: str | None


class Followers:
    """The follower reports received by a leader. The function `clock` returns monotonic milliseconds."""

    def __init__(self, end: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._began_ms = clock()
        self._ends = [(self._began_ms, end)]
        """The times at which the leader's log grew, with the new log ends, in ascending order."""
        self._end = end
        self._reports: dict[str, _FollowerReport] = {}

    def record_end(self, end: int) -> None:
        """Record the current accepted end of the leader's log."""
        if end > self._end:
            self._end = end
            now_ms = self._clock()
            if now_ms - self._ends[-1][0] < END_INTERVAL_MS and len(self._ends) > 1:
                # Keep the time of the first advance, because a follower with a lower end has lagged since
                # that time.
                self._ends[-1] = (self._ends[-1][0], end)
                return
            self._ends.append((now_ms, end))
            del self._ends[: max(0, len(self._ends) - ENDS_MAX)]

    def record_report(self, node: str, end: int, unfit: str | None) -> None:
        """Record a report that has just arrived from a follower."""
        now_ms = self._clock()
        at = bisect_right(self._ends, end, key=lambda mark: mark[1])
        # The follower had no lag until the leader's end first exceeded the reported end.
        had_all_ms = self._ends[at][0] if at < len(self._ends) else now_ms
        before = self._reports.get(node)
        if before is not None and end >= before.end:
            had_all_ms = max(had_all_ms, before.had_all_ms)
        self._reports[node] = _FollowerReport(end, now_ms, had_all_ms, unfit)

    def fittest_follower(self) -> str:
        """Return the fit follower with the highest recently reported log end, or "" if no follower is fit."""
        since_ms = self._clock() - FRESH_MS
        fit = {
            node: one for node, one in self._reports.items() if one.unfit == "" and one.heard_ms >= since_ms
        }
        return max(fit, key=lambda node: (fit[node].end, node), default="")

    def reported_ends(self) -> dict[str, int]:
        """Return the reported log end of each follower whose last report is at most FRESH_MS old."""
        since_ms = self._clock() - FRESH_MS
        return {node: one.end for node, one in self._reports.items() if one.heard_ms >= since_ms}

    def view(self, held: Mapping[str, Holding], besides: str) -> dict[str, dict[str, Any]]:
        """Return the lag of each node in `held` except `besides` as a JSON-serializable dictionary."""
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
