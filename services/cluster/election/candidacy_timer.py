"""The election timeout, which determines when a follower becomes a candidate.

A node becomes a candidate if no record is accepted for LEADER_TIMEOUT_MS + rank * RANK_DELAY_MS milliseconds.
The rank is the node's position in the list of nodes sorted by name. The timeout is restarted while the engine
is not responding. A leader can announce in its last BEAT record that it is stepping down, and name a
successor. The successor then becomes a candidate immediately. If no successor is named, each node waits only
rank * RANK_DELAY_MS. An unfit node waits an additional UNFIT_DELAY_MS to let fit nodes go first.

After a failed candidacy, a node waits PAUSE_MIN_MS before it tries again. The pause doubles with each
failure, up to PAUSE_MAX_MS. Without it, two nodes could depose each other indefinitely. A candidate that lost
to another candidate does not pause, and neither does a named successor.

Followers never depose a leader that is still writing to the shared log. Nodes do not probe each other. Two
nodes that can both reach the engine agree on the leader, even if they cannot reach each other.

All times are readings of the node's own monotonic clock, in milliseconds. Clocks on different machines are
never compared.
"""

from __future__ import annotations

from typing import Final

LEADER_TIMEOUT_MS: Final = 1_500
RANK_DELAY_MS: Final = 300
UNFIT_DELAY_MS: Final = 3_000
HEARTBEAT_MS: Final = 300
"""Milliseconds without a confirmed append before a leader appends a BEAT record."""
PAUSE_MIN_MS: Final = 5_000
PAUSE_MAX_MS: Final = 60_000


class CandidacyTimer:
    """The election timeout of one node."""

    def __init__(self, now_ms: int) -> None:
        self._heard_ms = now_ms
        self._has_left = self._is_named = False
        self._stood_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def record_leader_activity(self, now_ms: int, *, leaves: bool = False, is_named: bool = False) -> None:
        """Restart the timeout because a record from the leader has been accepted.

        If `leaves` is true, the leader is stepping down. If `is_named` is true, it has named this node as its
        successor.
        """
        self._heard_ms, self._has_left, self._is_named = now_ms, leaves, is_named
        if leaves:
            self._stood_ms = None

    def restart(self, now_ms: int) -> None:
        """Restart the timeout, because no leader could write while the engine was unresponsive."""
        self._heard_ms, self._has_left, self._is_named = now_ms, False, False

    def record_candidacy(self, now_ms: int) -> None:
        """Record this node's candidacy. Double the pause if the previous candidacy failed."""
        if self._stood_ms is not None:
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._stood_ms = now_ms

    def record_defeat(self) -> None:
        """Record that this candidate lost to another candidate without deposing a leader."""
        self._stood_ms = None

    def record_success(self) -> None:
        """Record that the shared log has accepted an append by this node as leader."""
        self._stood_ms, self._pause_ms = None, PAUSE_MIN_MS

    def candidacy_due_ms(self, rank: int, *, is_unfit: bool = False) -> int:
        """Return the time in milliseconds at which this node becomes a candidate.

        `rank` is the node's zero-based position in the list of nodes sorted by name. If `is_unfit` is true,
        other nodes get a head start.
        """
        silent_ms = (0 if self._has_left else LEADER_TIMEOUT_MS) + (UNFIT_DELAY_MS if is_unfit else 0)
        candidacy_due_ms = self._heard_ms + silent_ms + RANK_DELAY_MS * (0 if self._is_named else rank)
        if self._stood_ms is None:
            return candidacy_due_ms
        return max(candidacy_due_ms, self._stood_ms + self._pause_ms)
