"""The time at which a follower becomes a candidate, based on how long the leader has been silent.

A node becomes a candidate if no record is accepted for SILENCE_MS plus RANK_MS times the rank of the node.
The rank is the position of the node in the list of nodes sorted by name. Time during which the engine does
not respond is not counted. If the leader announces its departure in its last BEAT record, the named successor
becomes a candidate immediately. If no successor is named, the node with the lowest rank becomes a candidate
immediately, and the other nodes wait according to their ranks. An unfit node waits an additional UNFIT_MS, so
that fit nodes become candidates first.

A node whose candidacy has failed waits for PAUSE_MIN_MS before it becomes a candidate again. The pause
doubles with each failed candidacy, up to PAUSE_MAX_MS. Without the pause, two nodes could depose each other
indefinitely. A candidate that lost to another candidate, or that was named as the successor, does not wait.

A leader that still writes to the shared log is never deposed. Nodes do not probe each other. Two nodes that
cannot reach each other agree on the leader if both can reach the engine.

All times are in ms, and are taken from the node's monotonic clock when the node reads a record. Clocks of
different machines are never compared.
"""

from __future__ import annotations

from typing import Final

SILENCE_MS: Final = 1_500
RANK_MS: Final = 300
UNFIT_MS: Final = 3_000
BEAT_MS: Final = 300
"""The time, in ms, without a confirmed append after which a leader appends a BEAT record."""
PAUSE_MIN_MS: Final = 5_000
PAUSE_MAX_MS: Final = 60_000


class CandidacyTimer:
    """The candidacy timer of a node, based on the leader's last record and the node's own attempts."""

    def __init__(self, now_ms: int) -> None:
        self._heard_ms = now_ms
        self._has_left = self._is_named = False
        self._stood_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def record_sign_of_life(self, now_ms: int, *, leaves: bool = False, is_named: bool = False) -> None:
        """Restart the silence period after a record from the leader has been accepted.

        If `leaves` is true, the record announces that the leader steps down. If `is_named` is true, the
        leader has named this node as its successor.
        """
        self._heard_ms, self._has_left, self._is_named = now_ms, leaves, is_named
        if leaves:
            self._stood_ms = None

    def restart(self, now_ms: int) -> None:
        """Restart the silence period, because no leader could write while the engine was unresponsive."""
        self._heard_ms, self._has_left, self._is_named = now_ms, False, False

    def record_candidacy(self, now_ms: int) -> None:
        """Record that this node becomes a candidate, and double the pause if the last candidacy failed."""
        if self._stood_ms is not None:
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._stood_ms = now_ms

    def record_defeat(self) -> None:
        """Record that this candidate lost to another candidate and therefore did not depose a leader."""
        self._stood_ms = None

    def record_success(self) -> None:
        """Record that the shared log has accepted records that this node appended as leader."""
        self._stood_ms, self._pause_ms = None, PAUSE_MIN_MS

    def candidacy_ms(self, rank: int, *, is_unfit: bool = False) -> int:
        """Return the time, in ms, at which this node becomes a candidate unless it reads more records.

        `rank` is the zero-based position of the node in the list of nodes sorted by name. If `is_unfit` is
        true, the node should lead only if no other node can lead.
        """
        silent_ms = (0 if self._has_left else SILENCE_MS) + (UNFIT_MS if is_unfit else 0)
        candidacy_ms = self._heard_ms + silent_ms + RANK_MS * (0 if self._is_named else rank)
        if self._stood_ms is None:
            return candidacy_ms
        return max(candidacy_ms, self._stood_ms + self._pause_ms)
