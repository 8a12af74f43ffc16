"""A leader that reaches the shared log and no client: who finds that out, and when the leader leaves for it.

    clients --call--> follower --the call goes on--> leader      nothing comes back for UNREACHED_MS
    follower --note: unreached, by its epoch--> shared log       a fact beside what the follower holds
    leader --question--> every client that has a connection      nobody answers: it leaves, to that follower

Silence in the log cannot tell such a leader: it writes. A note changes no right, and readers of an older
version step over it. Whether the leader leaves is for itself to say: it asks its own clients first, so a
follower that is cut off, or wrong, deposes nobody who serves anybody.

Rules
1. Nothing is complained of unless clients call: `failed` is told of their calls only, and the last one failed
   within RECENT_MS.
2. A complaint counts once, and in its epoch. As long as it holds it is repeated.
3. Two nodes that cannot see each other could hand the lead to and fro, each while it has no client. So a node
   that has left leaves again only behind a pause, which doubles; it is short again once the node has not left
   for CALM_PAUSES of them.

Times are of one machine's monotonic clock, in ms. Weak spot: clients of the leader that use HTTP alone have
no connection on which they could be asked, so they are not counted.
"""

from __future__ import annotations

from typing import Final

UNREACHED_MS: Final = 3_000
"""How long nothing comes back from the leader before a follower complains."""
RECENT_MS: Final = 2_000
REPEAT_MS: Final = 5_000
"""How long a follower waits before it says the same again."""
PAUSE_MIN_MS: Final = 10_000
PAUSE_MAX_MS: Final = 600_000
CALM_PAUSES: Final = 4


class Reach:
    """Whether the calls that a follower passes on reach the leader of an epoch."""

    def __init__(self) -> None:
        self._epoch = self._count = 0
        self._answered_ms = 0
        self._since_ms: int | None = None
        """Since when nothing has come back; None if something has, or nothing was asked."""
        self._failed_ms = 0
        self._told_ms: int | None = None

    def answered(self, now_ms: int) -> None:
        """Note that the leader has answered a call, whatever it said."""
        self._answered_ms, self._since_ms = now_ms, None

    def failed(self, epoch: int, began_ms: int, now_ms: int) -> None:
        """Note that a call to the leader of an epoch, which began at `began_ms`, was not answered."""
        if epoch != self._epoch:
            self._epoch, self._since_ms, self._told_ms = epoch, None, None
        if self._since_ms is None:
            self._since_ms = max(began_ms, self._answered_ms)
        self._failed_ms = now_ms

    def complain(self, epoch: int, now_ms: int) -> int | None:
        """Return the number of the complaint to be made now of the leader of an epoch; None: of none."""
        if self._since_ms is None or epoch != self._epoch:
            return None
        if now_ms - self._since_ms < UNREACHED_MS or now_ms - self._failed_ms > RECENT_MS:
            return None
        if self._told_ms is not None and now_ms < self._told_ms + REPEAT_MS:
            return None
        self._told_ms, self._count = now_ms, self._count + 1
        return self._count


class Leaving:
    """When a leader heeds complaints."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, int]] = {}
        self._left_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def heed(self, node: str, complaint: tuple[int, int], now_ms: int) -> bool:
        """Return whether a node's complaint is to be looked into: each once, and none amid the pause."""
        if self._heard.get(node) == complaint:
            return False
        self._heard[node] = complaint
        return self._left_ms is None or now_ms >= self._left_ms + self._pause_ms

    def left(self, now_ms: int) -> None:
        """Note that the leader leaves for a complaint."""
        if self._left_ms is not None:
            is_calm = now_ms >= self._left_ms + CALM_PAUSES * self._pause_ms
            self._pause_ms = PAUSE_MIN_MS if is_calm else min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._left_ms = now_ms
