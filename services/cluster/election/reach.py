"""Detection of a leader that can reach the shared log but no clients, and that must therefore step down.

If the leader does not respond to forwarded calls for UNREACHED_MS, the follower adds a complaint about the
leader's epoch to its own holding in the shared log. The leader then probes every client that has a connection
to it. If no client responds, the leader hands over the leadership to the follower that complained.

A leader that clients cannot reach still writes to the shared log, so its failure does not cause an election
timeout. A complaint in the log does not affect the right to lead, and older versions of the software ignore
it. Only the leader itself decides whether to step down, and it probes its own clients first. A partitioned or
faulty follower therefore cannot depose a leader that serves clients.

Rules
1. A follower complains only as long as it receives client calls, that is, only if a forwarded call has failed
   within the last RECENT_MS.
2. A leader checks each complaint once, and only in the epoch of the complaint. A follower repeats its
   complaint as long as the leader does not respond to calls.
3. Two nodes that cannot reach each other could pass the leadership back and forth if neither has clients. For
   this reason, a node that has stepped down because of a complaint ignores further complaints during a pause.
   The pause doubles each time the node steps down because of a complaint, and is reset after CALM_PAUSES
   pauses without a departure.

All times are in ms and come from the monotonic clock of a single machine. Weak spot: the leader does not take
HTTP-only clients into account, because it has no connection on which to probe them.
"""

from __future__ import annotations

from typing import Final

UNREACHED_MS: Final = 3_000
"""The time, in ms, without a response from the leader after which a follower complains."""
RECENT_MS: Final = 2_000
REPEAT_MS: Final = 5_000
"""The time, in ms, after which a follower repeats its complaint."""
PAUSE_MIN_MS: Final = 10_000
PAUSE_MAX_MS: Final = 600_000
CALM_PAUSES: Final = 4


class LeaderReachability:
    """A record of whether forwarded calls reach the leader of an epoch."""

    def __init__(self) -> None:
        self._epoch = self._count = 0
        self._answered_ms = 0
        self._since_ms: int | None = None
        """The time, in ms, since which calls have not been answered, or None if the last call was answered.
        """
        self._failed_ms = 0
        self._told_ms: int | None = None

    def record_answer(self, now_ms: int) -> None:
        """Record that the leader has answered a call, regardless of the status."""
        self._answered_ms, self._since_ms = now_ms, None

    def record_failure(self, epoch: int, began_ms: int, now_ms: int) -> None:
        """Record that the leader of an epoch has not answered a call that started at `began_ms`."""
        if epoch != self._epoch:
            self._epoch, self._since_ms, self._told_ms = epoch, None, None
        if self._since_ms is None:
            self._since_ms = max(began_ms, self._answered_ms)
        self._failed_ms = now_ms

    def next_complaint(self, epoch: int, now_ms: int) -> int | None:
        """Return the number of a new complaint about the leader of an epoch, or None if none is due."""
        if self._since_ms is None or epoch != self._epoch:
            return None
        if now_ms - self._since_ms < UNREACHED_MS or now_ms - self._failed_ms > RECENT_MS:
            return None
        if self._told_ms is not None and now_ms < self._told_ms + REPEAT_MS:
            return None
        self._told_ms, self._count = now_ms, self._count + 1
        return self._count


class ComplaintFilter:
    """A filter that selects the follower complaints that the leader must check."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, int]] = {}
        self._left_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def accept_complaint(self, node: str, complaint: tuple[int, int], now_ms: int) -> bool:
        """Record a complaint, and return whether the leader must check it.

        Each complaint is checked at most once. No complaint is checked during the pause after this node has
        stepped down.
        """
        if self._heard.get(node) == complaint:
            return False
        self._heard[node] = complaint
        return self._left_ms is None or now_ms >= self._left_ms + self._pause_ms

    def record_departure(self, now_ms: int) -> None:
        """Record that the leader steps down because of a complaint."""
        if self._left_ms is not None:
            is_calm = now_ms >= self._left_ms + CALM_PAUSES * self._pause_ms
            self._pause_ms = PAUSE_MIN_MS if is_calm else min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._left_ms = now_ms
