"""The election timeout, after which a follower becomes a candidate.

A node becomes a candidate if it accepts no record from the leader for LEADER_TIMEOUT_MS + rank *
RANK_DELAY_MS milliseconds. A node's rank is its zero-based position in the list of nodes sorted by name. A
follower restarts the timeout after each failed engine read. A leader can announce its resignation and name a
successor in its last BEAT record. The successor then becomes a candidate immediately. If no successor is
named, each node waits only rank * RANK_DELAY_MS. An unfit node waits UNFIT_DELAY_MS longer, so that fit nodes
become candidates first.

After a failed candidacy, a node waits PAUSE_MIN_MS before its next candidacy. The pause doubles with each
failure, up to PAUSE_MAX_MS. Without the pause, two nodes could depose each other indefinitely. The pause does
not apply to a node that may succeed a resigning leader, or to a candidate that lost to another candidate.

A follower never deposes a leader that still writes to the shared log. Nodes do not probe each other. Two
nodes that can reach the engine agree on the leader, even if they cannot reach each other.

All times are readings of the local monotonic clock, in milliseconds. Clocks of different machines are never
compared.
"""

from __future__ import annotations

from typing import Final

LEADER_TIMEOUT_MS: Final = 1_500
RANK_DELAY_MS: Final = 300
UNFIT_DELAY_MS: Final = 3_000
HEARTBEAT_MS: Final = 300
"""Time in milliseconds without a confirmed append after which a leader appends a BEAT record."""
PAUSE_MIN_MS: Final = 5_000
PAUSE_MAX_MS: Final = 60_000


class CandidacyTimer:
    """The election timeout of a node."""

    def __init__(self, now_ms: int) -> None:
        self._heard_ms = now_ms
        self._has_left = self._is_named = False
        self._stood_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def record_leader_activity(self, now_ms: int, *, leaves: bool = False, is_named: bool = False) -> None:
        """Restart the timeout after a record from the leader was accepted.

        If `leaves` is true, the leader is stepping down. If `is_named` is true, the leader has named this
        node as its successor.
        """
        self._heard_ms, self._has_left, self._is_named = now_ms, leaves, is_named
        if leaves:
            self._stood_ms = None

    def restart(self, now_ms: int) -> None:
        """Restart the timeout after a failed engine read, or after the replica was opened."""
        self._heard_ms, self._has_left, self._is_named = now_ms, False, False

    def record_candidacy(self, now_ms: int) -> None:
        """Record a candidacy of this node. Double the pause if the previous candidacy failed."""
        if self._stood_ms is not None:
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._stood_ms = now_ms

    def record_defeat(self) -> None:
        """Record that this candidate has lost to another candidate and has not deposed a leader."""
        self._stood_ms = None

    def record_success(self) -> None:
        """Record that the engine has confirmed an append by this node as the leader."""
        self._stood_ms, self._pause_ms = None, PAUSE_MIN_MS

    def candidacy_due_ms(self, rank: int, *, is_unfit: bool = False) -> int:
        """Return the time in milliseconds at which this node becomes a candidate.

        The argument `rank` is the zero-based position of the node in the list of nodes sorted by name. If
        `is_unfit` is true, the candidacy is delayed by UNFIT_DELAY_MS.
        """
        silent_ms = (0 if self._has_left else LEADER_TIMEOUT_MS) + (UNFIT_DELAY_MS if is_unfit else 0)
        candidacy_due_ms = self._heard_ms + silent_ms + RANK_DELAY_MS * (0 if self._is_named else rank)
        if self._stood_ms is None:
            return candidacy_due_ms
        return max(candidacy_due_ms, self._stood_ms + self._pause_ms)
