"""Detects a leader that no client can reach, and makes it step down.

A follower appends a complaint to the shared log if the leader has not responded to forwarded calls for
UNREACHABLE_MS. The leader then probes all connected clients. If no client responds, the leader hands over the
leadership to that follower.

An unreachable leader still writes to the shared log, and the election timeout therefore does not expire. A
complaint does not affect the right to lead, and older versions of the software ignore complaints. Only the
leader itself decides whether to step down. A partitioned or faulty follower therefore cannot depose a leader
that serves clients.

Rules
1. A follower complains only if a forwarded call has failed within the last RECENT_MS.
2. A leader checks each complaint only once, and only in the epoch of the complaint. A follower repeats its
   complaint until the leader responds to calls.
3. Two nodes without clients that cannot reach each other could pass the leadership back and forth. A node
   that has stepped down because of a complaint therefore ignores further complaints during a pause. The pause
   doubles with each such resignation, up to PAUSE_MAX_MS. It is reset if CALM_PAUSES pauses pass without a
   resignation.

All times are monotonic clock readings in milliseconds. Limitation: the leader cannot probe clients that use
only HTTP, because these clients have no open connection.
"""

from __future__ import annotations

from typing import Final

UNREACHABLE_MS: Final = 3_000
"""Time in milliseconds without a response from the leader after which a follower complains."""
RECENT_MS: Final = 2_000
REPEAT_MS: Final = 5_000
"""Time in milliseconds after which a follower repeats its complaint."""
PAUSE_MIN_MS: Final = 10_000
PAUSE_MAX_MS: Final = 600_000
CALM_PAUSES: Final = 4


class LeaderReachability:
    """Tracks whether forwarded calls reach the leader of an epoch."""

    def __init__(self) -> None:
        self._epoch = self._count = 0
        self._answered_ms = 0
        self._since_ms: int | None = None
        """The start of the current period without an answer, in milliseconds, or None."""
        self._failed_ms = 0
        self._told_ms: int | None = None

    def record_answer(self, now_ms: int) -> None:
        """Record that the leader has answered a call, regardless of the status."""
        self._answered_ms, self._since_ms = now_ms, None

    def record_failure(self, epoch: int, began_ms: int, now_ms: int) -> None:
        """Record that the leader of `epoch` has not answered a call that started at `began_ms`."""
        if epoch != self._epoch:
            self._epoch, self._since_ms, self._told_ms = epoch, None, None
        if self._since_ms is None:
            self._since_ms = max(began_ms, self._answered_ms)
        self._failed_ms = now_ms

    def next_complaint(self, epoch: int, now_ms: int) -> int | None:
        """Return the number of a new complaint about the leader of `epoch`, or None if none is due."""
        if self._since_ms is None or epoch != self._epoch:
            return None
        if now_ms - self._since_ms < UNREACHABLE_MS or now_ms - self._failed_ms > RECENT_MS:
            return None
        if self._told_ms is not None and now_ms < self._told_ms + REPEAT_MS:
            return None
        self._told_ms, self._count = now_ms, self._count + 1
        return self._count


class ComplaintFilter:
    """Selects the complaints from followers that the leader must check."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, int]] = {}
        self._left_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def accept_complaint(self, node: str, complaint: tuple[int, int], now_ms: int) -> bool:
        """Record a complaint, and return whether the leader must check it.

        Each complaint is checked at most once. Complaints are ignored during the pause after a resignation.
        """
        if self._heard.get(node) == complaint:
            return False
        self._heard[node] = complaint
        return self._left_ms is None or now_ms >= self._left_ms + self._pause_ms

    def record_departure(self, now_ms: int) -> None:
        """Record that this leader is stepping down because of a complaint."""
        if self._left_ms is not None:
            is_calm = now_ms >= self._left_ms + CALM_PAUSES * self._pause_ms
            self._pause_ms = PAUSE_MIN_MS if is_calm else min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._left_ms = now_ms
