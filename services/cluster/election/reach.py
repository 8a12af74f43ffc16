"""Detection of a leader that reaches the shared log but no client, and the leader's decision to leave.

    clients --call--> follower --forwarded call--> leader        no answer for UNREACHED_MS
    follower --note: unreached, by its epoch--> shared log       a fact in the follower's holding
    leader --question--> every client that has a connection      no answer: it leaves, to that follower

A leader that clients cannot reach still writes, so silence in the log does not reveal the failure. A
complaint of a follower in the log does not change the right to lead, and older versions skip the complaint.
Only the leader decides to leave, and asks its own clients first. Therefore, a follower that is partitioned or
wrong cannot depose a leader that serves clients.

Rules
1. A follower complains only while clients call the follower: a complaint requires that a forwarded call has
   failed within RECENT_MS.
2. A leader checks a complaint once, and only in the epoch of the complaint. A follower repeats its complaint
   as long as the leader does not answer.
3. Two nodes that cannot reach each other could pass the lead back and forth while neither of them has
   clients. Therefore, a node that has left the lead leaves again only after a pause, which doubles each time.
   The pause is reset once the node has not left for CALM_PAUSES pauses.

All times are of the monotonic clock of one machine, in ms. Weak spot: clients that use only HTTP have no
connection on which the leader can ask them, so the leader does not count such clients.
"""

from __future__ import annotations

from typing import Final

UNREACHED_MS: Final = 3_000
"""The time without answers of the leader after which a follower complains."""
RECENT_MS: Final = 2_000
REPEAT_MS: Final = 5_000
"""The time after which a follower repeats a complaint."""
PAUSE_MIN_MS: Final = 10_000
PAUSE_MAX_MS: Final = 600_000
CALM_PAUSES: Final = 4


class LeaderReachability:
    """Whether the calls that a follower forwards reach the leader of an epoch."""

    def __init__(self) -> None:
        self._epoch = self._count = 0
        self._answered_ms = 0
        self._since_ms: int | None = None
        """The start of the period without answers, or None if no call has failed since the last answer."""
        self._failed_ms = 0
        self._told_ms: int | None = None

    def record_answer(self, now_ms: int) -> None:
        """Record that the leader has answered a call with any status."""
        self._answered_ms, self._since_ms = now_ms, None

    def record_failure(self, epoch: int, began_ms: int, now_ms: int) -> None:
        """Record that the leader of an epoch has not answered a call, which began at `began_ms`."""
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
    """The leader's choice of the complaints to check."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[int, int]] = {}
        self._left_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def accept_complaint(self, node: str, complaint: tuple[int, int], now_ms: int) -> bool:
        """Record a complaint, and return whether the leader must check it.

        A complaint is checked only once, and not during the pause after this node has left.
        """
        if self._heard.get(node) == complaint:
            return False
        self._heard[node] = complaint
        return self._left_ms is None or now_ms >= self._left_ms + self._pause_ms

    def record_departure(self, now_ms: int) -> None:
        """Record that the leader leaves because of a complaint."""
        if self._left_ms is not None:
            is_calm = now_ms >= self._left_ms + CALM_PAUSES * self._pause_ms
            self._pause_ms = PAUSE_MIN_MS if is_calm else min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._left_ms = now_ms
