"""The lag of each follower, and its fitness to lead, as the leader knows them.

    follower --every TELL_SECONDS: its name, the end of the log it has folded, why it is unfit--> leader

A follower reports over the leader's HTTP, not in the shared log, which would grow by one engine commit a
report. The secret of the epoch authenticates the report. Only nodes that have folded the EPOCH know it, so a
report to an earlier leader is refused.

    lag in bytes    the leader's accepted end, less the end that the follower reported last
    lag in ms       the time since the follower had all records: since the last moment at which the leader's
                    end was within the end reported later. It grows if the follower is slow, or is gone

Rules
1. A node in the shared log without a report lags by all that its copy lacks, since the leader began. A lag is
   never zero for want of reports.
2. A forgotten node is not counted.
3. Only followers report; a node whose report is older than FRESH_MS may be gone, and is not fit (`health`).

Cost: one request a follower and TELL_SECONDS; in memory, the leader's end at up to MARKS_MAX moments. Weak
spot: the lag in ms of a follower that keeps up rises to TELL_SECONDS before it returns to zero.
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
"""The interval between reports of a follower."""
FRESH_MS: Final = 3_000
"""How long a report counts as proof that a follower could lead."""
MARK_MS: Final = 100
"""The minimum interval between marks of the leader's end."""
MARKS_MAX: Final = 36_000
"""The limit of marks: the lag in ms of a slow follower is exact up to an hour, and then too small."""
TOLD_SECONDS: Final = 2.0
"""How long a follower waits for the leader's answer to a report."""
PATH: Final = "/api/cluster/position"
_SECRET_BYTES: Final = 16


def tell(leader: Member, node: str, fold: Fold, health: Health) -> None:
    """Report to the leader a follower's end, why it is unfit, and the skew of its clock.

    Wait for the answer, and ignore it.
    """
    facts = {"node": node, "end_offset": fold.end, "unfit": health.unfit()}
    facts["clock_skew_ms"] = health.pace.skew_ms
    peers.post(leader.http, leader.certificate, PATH, secret_of(fold), facts, TOLD_SECONDS)


def secret_of(fold: Fold) -> str:
    """Return the secret of reports to the leader of the newest epoch, derived from its EPOCH alone."""
    return blake2b(PATH.encode(), key=fold.holder, digest_size=_SECRET_BYTES).hexdigest()


class _Told(NamedTuple):
    """The last report of a follower: its end, when it was received, when it had all, and why it is unfit.

    `unfit` is "" for a follower that may lead, None for one that does not report it.
    """

    end: int
    heard_ms: int
    had_all_ms: int
    unfit: str | None


class Followers:
    """The leader's knowledge of its followers since it began to lead; `clock` is monotonic, in ms."""

    def __init__(self, end: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._began_ms = clock()
        self._marks = [(self._began_ms, end)]
        """When the leader's end moved, and to where; ascending."""
        self._end = end
        self._told: dict[str, _Told] = {}

    def moved(self, end: int) -> None:
        """Record the end of the leader's accepted log."""
        if end > self._end:
            self._end = end
            now_ms = self._clock()
            if now_ms - self._marks[-1][0] < MARK_MS and len(self._marks) > 1:
                # Keep the time of the first move: a follower with less lags since then.
                self._marks[-1] = (self._marks[-1][0], end)
                return
            self._marks.append((now_ms, end))
            del self._marks[: max(0, len(self._marks) - MARKS_MAX)]

    def told(self, node: str, end: int, unfit: str | None) -> None:
        """Record a report that a follower has just sent."""
        now_ms = self._clock()
        at = bisect_right(self._marks, end, key=lambda mark: mark[1])
        # It had all until the first move beyond its end; without such a move, until now.
        had_all_ms = self._marks[at][0] if at < len(self._marks) else now_ms
        before = self._told.get(node)
        if before is not None and end >= before.end:
            had_all_ms = max(had_all_ms, before.had_all_ms)
        self._told[node] = _Told(end, now_ms, had_all_ms, unfit)

    def fit(self) -> str:
        """Return the follower with the least lag among those that may lead, by recent reports.

        Return "" if there is none.
        """
        since_ms = self._clock() - FRESH_MS
        fit = {node: one for node, one in self._told.items() if one.unfit == "" and one.heard_ms >= since_ms}
        return max(fit, key=lambda node: (fit[node].end, node), default="")

    def ends(self) -> dict[str, int]:
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
