"""The lag of each follower, and its fitness to lead, according to the reports to the leader.

    follower --every TELL_SECONDS: its name, the end of the log it has folded, why it is unfit--> leader

A follower reports over the HTTP interface of the leader. In the shared log, each report would cost one commit
of the engine. The report is authenticated by a secret that is derived from the newest EPOCH, so an earlier
leader refuses the report.

    lag in bytes    the leader's accepted end, less the end that the follower reported last
    lag in ms       the time since the follower had all records: since the last moment at which the leader's
                    end was within the end reported later. The lag in ms of a missing follower grows

Rules
1. The lag in bytes of a node without a report is the leader's end minus the end of the announced copy, and
   its lag in ms is the time since the start of the lead. A missing report never results in a lag of zero.
2. A forgotten node is not counted.
3. Only followers report. A node whose last report is older than FRESH_MS may be gone, and is not fit to lead
   (`health`).

Cost: one request for each follower in TELL_SECONDS, and memory for the leader's end at up to MARKS_MAX times.
Weak spot: the lag in ms of a follower without delay rises to TELL_SECONDS before it returns to zero.
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
"""The interval between two reports of a follower."""
FRESH_MS: Final = 3_000
"""The maximum age of a report that counts as proof that a follower could lead."""
MARK_MS: Final = 100
"""The minimum interval between marks of the leader's end."""
MARKS_MAX: Final = 36_000
"""The maximum number of marks; the lag in ms is exact up to one hour, and too small for slower followers."""
TOLD_SECONDS: Final = 2.0
"""The time for which a follower waits for the leader's answer to a report."""
PATH: Final = "/api/cluster/position"
_SECRET_BYTES: Final = 16


def report_position(leader: Member, node: str, fold: Fold, health: Health) -> None:
    """Report the end, the fitness and the clock skew of a follower to the leader.

    Wait for the answer, and ignore its content.
    """
    facts = {"node": node, "end_offset": fold.end, "unfit": health.unfit_reason()}
    facts["clock_skew_ms"] = health.pace.skew_ms
    peers.post(leader.http, leader.certificate, PATH, secret_of(fold), facts, TOLD_SECONDS)


def secret_of(fold: Fold) -> str:
    """Return the secret of reports to the leader of the newest epoch, derived from the EPOCH."""
    return blake2b(PATH.encode(), key=fold.holder, digest_size=_SECRET_BYTES).hexdigest()


class _FollowerReport(NamedTuple):
    """The last report of a follower: its end, the time of the report, and the last time without a lag.

    `unfit` is the reason why the follower is unfit to lead, "" if the follower is fit, or None if its fitness
    was not reported.
    """

    end: int
    heard_ms: int
    had_all_ms: int
    unfit: str | None


class Followers:
    """The reports of all followers since the leader began to lead; `clock` is monotonic, in ms."""

    def __init__(self, end: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._began_ms = clock()
        self._marks = [(self._began_ms, end)]
        """The times at which the leader's end moved, and the ends, in ascending order."""
        self._end = end
        self._told: dict[str, _FollowerReport] = {}

    def record_end(self, end: int) -> None:
        """Record the current end of the leader's accepted log."""
        if end > self._end:
            self._end = end
            now_ms = self._clock()
            if now_ms - self._marks[-1][0] < MARK_MS and len(self._marks) > 1:
                # Keep the time of the first move: a follower with a lower end lags since that time.
                self._marks[-1] = (self._marks[-1][0], end)
                return
            self._marks.append((now_ms, end))
            del self._marks[: max(0, len(self._marks) - MARKS_MAX)]

    def record_report(self, node: str, end: int, unfit: str | None) -> None:
        """Record a report that a follower has just sent."""
        now_ms = self._clock()
        at = bisect_right(self._marks, end, key=lambda mark: mark[1])
        # The follower had no lag until the leader's end first moved past the reported end.
        had_all_ms = self._marks[at][0] if at < len(self._marks) else now_ms
        before = self._told.get(node)
        if before is not None and end >= before.end:
            had_all_ms = max(had_all_ms, before.had_all_ms)
        self._told[node] = _FollowerReport(end, now_ms, had_all_ms, unfit)

    def fittest_follower(self) -> str:
        """Return the fit follower with the smallest lag by recent reports, or "" if no follower is fit."""
        since_ms = self._clock() - FRESH_MS
        fit = {node: one for node, one in self._told.items() if one.unfit == "" and one.heard_ms >= since_ms}
        return max(fit, key=lambda node: (fit[node].end, node), default="")

    def reported_ends(self) -> dict[str, int]:
        """Return the end of each follower that has reported recently."""
        since_ms = self._clock() - FRESH_MS
        return {node: one.end for node, one in self._told.items() if one.heard_ms >= since_ms}

    def view(self, held: Mapping[str, Holding], besides: str) -> dict[str, dict[str, Any]]:
        """Return the lag of each node in `held`, except `besides`, for JSON."""
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
