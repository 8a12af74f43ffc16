"""How far behind the leader each follower is, and whether it could lead, as the leader sees it.

    follower --every TELL_SECONDS: its name, the end of the log that it has folded, why it is unfit--> leader

A follower tells it over the leader's HTTP, not in the shared log: that would grow by it, and each word would
be a commit of the engine's. The secret of an epoch lets in; only who has folded its EPOCH knows it, so what
was meant for an earlier leader is refused.

    lag in bytes    the leader's accepted end, less the end that the follower told last
    lag in ms       how long ago the follower had all: the last moment at which the leader's end was not
                    beyond what it told later. So it grows when the follower is slow, or is gone

Rules
1. Who has told nothing, and of whom the shared log tells, is behind by all that its copy lacks, since the
   leader began. A lag is never zero because nobody has heard.
2. A node that is forgotten is not counted.
3. Only who follows tells; whose word is older than FRESH_MS may be gone, and is not fit (`health`).

Cost: one request a follower and TELL_SECONDS; in memory, the leader's end at MARKS_MAX moments at most. Weak
spot: of a follower that keeps up the lag in ms goes up to TELL_SECONDS before it comes back to nothing.
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
"""How often a follower tells how far it is."""
FRESH_MS: Final = 3_000
"""How long the word of a follower counts that it could lead."""
MARK_MS: Final = 100
"""How long the leader's end may have moved before that is marked."""
MARKS_MAX: Final = 36_000
"""So the lag in ms of a follower that is slow is exact up to an hour, and then told too small."""
TOLD_SECONDS: Final = 2.0
"""How long a follower waits until the leader has taken in how far it is."""
PATH: Final = "/api/cluster/position"
_SECRET_BYTES: Final = 16


def tell(leader: Member, node: str, fold: Fold, health: Health) -> None:
    """Tell the leader how far a follower is, why it is unfit, and by how much its clock is ahead.

    Waits for its answer, and ignores it.
    """
    facts = {"node": node, "end_offset": fold.end, "unfit": health.unfit()}
    facts["clock_skew_ms"] = health.pace.skew_ms
    peers.post(leader.http, leader.certificate, PATH, secret_of(fold), facts, TOLD_SECONDS)


def secret_of(fold: Fold) -> str:
    """Return what a follower must say to the leader of the newest epoch: it follows from that EPOCH alone."""
    return blake2b(PATH.encode(), key=fold.holder, digest_size=_SECRET_BYTES).hexdigest()


class _Told(NamedTuple):
    """What a follower told last: its end, when, at what moment it had all, and why it is unfit.

    `unfit` is empty of one that may lead, None of one that does not tell.
    """

    end: int
    heard_ms: int
    had_all_ms: int
    unfit: str | None


class Followers:
    """What a leader knows of its followers since it began to lead; `clock` never goes back, in ms."""

    def __init__(self, end: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._began_ms = clock()
        self._marks = [(self._began_ms, end)]
        """When the leader's end moved, and to where; in order."""
        self._end = end
        self._told: dict[str, _Told] = {}

    def moved(self, end: int) -> None:
        """Note how far the leader's accepted log goes."""
        if end > self._end:
            self._end = end
            now_ms = self._clock()
            if now_ms - self._marks[-1][0] < MARK_MS and len(self._marks) > 1:
                # The moment stays that of the first move: who has less than that is behind since then.
                self._marks[-1] = (self._marks[-1][0], end)
                return
            self._marks.append((now_ms, end))
            del self._marks[: max(0, len(self._marks) - MARKS_MAX)]

    def told(self, node: str, end: int, unfit: str | None) -> None:
        """Take in how far a follower is, and why it is unfit, which told that right now."""
        now_ms = self._clock()
        at = bisect_right(self._marks, end, key=lambda mark: mark[1])
        # Up to the move that it has not got it had all; with all moves, until now.
        had_all_ms = self._marks[at][0] if at < len(self._marks) else now_ms
        before = self._told.get(node)
        if before is not None and end >= before.end:
            had_all_ms = max(had_all_ms, before.had_all_ms)
        self._told[node] = _Told(end, now_ms, had_all_ms, unfit)

    def fit(self) -> str:
        """Return the follower that is least behind of those that may lead, as they told just now.

        Empty if none has.
        """
        since_ms = self._clock() - FRESH_MS
        fit = {node: one for node, one in self._told.items() if one.unfit == "" and one.heard_ms >= since_ms}
        return max(fit, key=lambda node: (fit[node].end, node), default="")

    def ends(self) -> dict[str, int]:
        """Return how far each follower is that told it just now."""
        since_ms = self._clock() - FRESH_MS
        return {node: one.end for node, one in self._told.items() if one.heard_ms >= since_ms}

    def view(self, held: Mapping[str, Holding], besides: str) -> dict[str, dict[str, Any]]:
        """Return how far behind each node is of which the log tells, but for one, as JSON can hold it."""
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
