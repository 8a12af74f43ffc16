"""A leader that reaches the shared log and no client: its detection, and the leader's decision to leave.

    clients --call--> follower --forwarded call--> leader        no answer for UNREACHED_MS
    follower --note: unreached, by its epoch--> shared log       a fact in the follower's holding
    leader --question--> every client that has a connection      no answer: it leaves, to that follower

Such a leader writes, so silence in the log does not reveal it. A note changes no right, and readers of an
older version skip it. Only the leader decides to leave: it asks its own clients first, so a follower that is
partitioned, or wrong, does not depose a leader that serves clients.

Rules
1. A follower complains only if clients call: `failed` is called for their calls only, and the last one failed
   within RECENT_MS.
2. A complaint counts once, and in its epoch. It is repeated as long as it holds.
3. Two nodes that cannot reach each other could pass the lead back and forth while neither has clients. So a
   node that has left leaves again only after a pause, which doubles each time; it is reset once the node has
   not left for CALM_PAUSES pauses.

Times are of one machine's monotonic clock, in ms. Weak spot: clients of the leader that use HTTP alone have
no connection for the question, so they are not counted.
"""

from __future__ import annotations

from typing import Final

UNREACHED_MS: Final = 3_000
"""How long the leader must leave calls unanswered before a follower complains."""
RECENT_MS: Final = 2_000
REPEAT_MS: Final = 5_000
"""How long a follower waits before it repeats a complaint."""
PAUSE_MIN_MS: Final = 10_000
PAUSE_MAX_MS: Final = 600_000
CALM_PAUSES: Final = 4


class Reach:
    """Whether the calls that a follower forwards reach the leader of an epoch."""

    def __init__(self) -> None:
        self._epoch = self._count = 0
        self._answered_ms = 0
        self._since_ms: int | None = None
        """Start of the period without answers; None after an answer, or without calls."""
        self._failed_ms = 0
        self._told_ms: int | None = None

    def answered(self, now_ms: int) -> None:
        """Record that the leader has answered a call, with any status."""
        self._answered_ms, self._since_ms = now_ms, None

    def failed(self, epoch: int, began_ms: int, now_ms: int) -> None:
        """Record that a call to the leader of an epoch, begun at `began_ms`, was not answered."""
        if epoch != self._epoch:
            self._epoch, self._since_ms, self._told_ms = epoch, None, None
        if self._since_ms is None:
            self._since_ms = max(began_ms, self._answered_ms)
        self._failed_ms = now_ms

    def complain(self, epoch: int, now_ms: int) -> int | None:
        """Number the next complaint of the leader of an epoch, and return it; None if none is due."""
        if self._since_ms is None or epoch != self._epoch:
            return None
        if now_ms - self._since_ms < UNREACHED_MS or now_ms - self._failed_ms > RECENT_MS:
            return None
        if self._told_ms is not None and now_ms < self._told_ms + REPEAT_MS:
            return None
        self._told_ms, self._count = now_ms, self._count + 1
        return self._count


class Leaving:
    """The leader's decision which complaints to check."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, int]] = {}
        self._left_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def heed(self, node: str, complaint: tuple[int, int], now_ms: int) -> bool:
        """Record a complaint; return whether to check it: each once, and none during the pause."""
        if self._heard.get(node) == complaint:
            return False
        self._heard[node] = complaint
        return self._left_ms is None or now_ms >= self._left_ms + self._pause_ms

    def left(self, now_ms: int) -> None:
        """Record that the leader leaves because of a complaint."""
        if self._left_ms is not None:
            is_calm = now_ms >= self._left_ms + CALM_PAUSES * self._pause_ms
            self._pause_ms = PAUSE_MIN_MS if is_calm else min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._left_ms = now_ms
