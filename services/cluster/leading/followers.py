"""The lag of each follower and its fitness to lead, which the leader derives from the follower's reports.

Every TELL_SECONDS seconds, each follower sends a report to the HTTP interface of the leader. The report
contains the follower's name, the end of its applied log, and its fitness to lead. Reports are not written to
the shared log, because each report would require an engine commit. A report is authenticated with a secret
that is derived from the newest EPOCH record, so a former leader rejects the report.

The lag in bytes is the leader's accepted end minus the end in the follower's last report. The lag in ms is
the time since the follower last had all records, that is, since the leader's accepted end first exceeded the
reported end. The lag in ms increases as long as a follower is unavailable.

Rules
1. If a node has not sent a report, its lag in bytes is the leader's accepted end minus the end of the node's
   announced copy. The lag in ms of such a node is the time since the leader was elected, and is never
   reported as 0 ms.
2. A node that was removed from the cluster (`tidewheel cluster forget`) has no lag.
3. Only followers send reports. A node whose last report is older than FRESH_MS may be down, so the leader
   does not choose it as a successor (`health`).

Cost: each follower sends one request every TELL_SECONDS seconds, and the leader keeps up to MARKS_MAX
recorded log ends in memory. Weak spot: between two reports, the reported lag of an up-to-date follower grows
to as much as TELL_SECONDS seconds.
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

TELL_SECONDS: Final = 1.0
"""The interval, in seconds, between two reports from a follower."""
FRESH_MS: Final = 3_000
"""The maximum age, in ms, of the last report of a follower that is considered to be running."""
MARK_MS: Final = 100
"""The minimum interval, in ms, between two recorded ends of the leader's log."""
MARKS_MAX: Final = 36_000
"""The maximum number of recorded log ends. A lag of more than one hour may be underestimated."""
TOLD_SECONDS: Final = 2.0
"""The timeout, in seconds, for the request with which a follower sends a report."""
PATH: Final = "/api/cluster/position"
_SECRET_BYTES: Final = 16


def report_position(leader: Member, node: str, fold: Fold, health: Health) -> None:
    """Send the leader a report with the log end, the fitness and the clock skew of a follower."""
    facts = {"node": node, "end_offset": fold.end, "unfit": health.unfit_reason()}
    facts["clock_skew_ms"] = health.pace.skew_ms
    peers.post(leader.http, leader.certificate, PATH, secret_of(fold), facts, TOLD_SECONDS)


def secret_of(fold: Fold) -> str:
    """Return the secret for reports to the leader, which is derived from the newest EPOCH record."""
    return blake2b(PATH.encode(), key=fold.holder, digest_size=_SECRET_BYTES).hexdigest()


class _FollowerReport(NamedTuple):
    """A follower's last report, with the log end, the arrival time, and the last time without a lag.

    `unfit` is the reason why the follower is unfit to lead, "" if the follower is fit, or None if the report
    did not include the fitness.
    """

    end: int
    heard_ms: int
    had_all_ms: int
    unfit: str | None


class Followers:
    """The follower reports that the current leader has received. `clock` returns the monotonic time in ms."""

    def __init__(self, end: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._began_ms = clock()
        self._marks = [(self._began_ms, end)]
        """The times at which the leader's log advanced, each paired with the new log end, in ascending order.
        """
        self._end = end
        self._told: dict[str, _FollowerReport] = {}

    def record_end(self, end: int) -> None:
        """Record the current end of the leader's accepted log."""
        if end > self._end:
            self._end = end
            now_ms = self._clock()
            if now_ms - self._marks[-1][0] < MARK_MS and len(self._marks) > 1:
                # Keep the time of the first advance, because a follower with a lower end has been lagging
                # since then.
                self._marks[-1] = (self._marks[-1][0], end)
                return
            self._marks.append((now_ms, end))
            del self._marks[: max(0, len(self._marks) - MARKS_MAX)]

    def record_report(self, node: str, end: int, unfit: str | None) -> None:
        """Record a report from a follower, with the current time as the arrival time."""
        now_ms = self._clock()
        at = bisect_right(self._marks, end, key=lambda mark: mark[1])
        # The follower had no lag until the leader's end first exceeded the reported end.
        had_all_ms = self._marks[at][0] if at < len(self._marks) else now_ms
        before = self._told.get(node)
        if before is not None and end >= before.end:
            had_all_ms = max(had_all_ms, before.had_all_ms)
        self._told[node] = _FollowerReport(end, now_ms, had_all_ms, unfit)

    def fittest_follower(self) -> str:
        """Return the fit follower that recently reported the smallest lag, or "" if no follower is fit."""
        since_ms = self._clock() - FRESH_MS
        fit = {node: one for node, one in self._told.items() if one.unfit == "" and one.heard_ms >= since_ms}
        return max(fit, key=lambda node: (fit[node].end, node), default="")

    def reported_ends(self) -> dict[str, int]:
        """Return the log end of each follower whose last report is at most FRESH_MS old."""
        since_ms = self._clock() - FRESH_MS
        return {node: one.end for node, one in self._told.items() if one.heard_ms >= since_ms}

    def view(self, held: Mapping[str, Holding], besides: str) -> dict[str, dict[str, Any]]:
        """Return the lag of each node in `held`, except `besides`, as a JSON-serializable dictionary."""
        now_ms, found = self._clock(), {}
        for node, holding in held.items():
            if node == besides:
                continue
            told = self._told.get(node)
            end = (holding.end or 0) if told is None else told.end
            found[node] = {
                "lag_bytes": max(0, self._end - end),
                "lag_ms": now_ms - (self._began_ms if told is None else told.had_all_ms),
                "heard_ms_ago": None if told is None else now_ms - told.heard_ms,
            }
        return found
