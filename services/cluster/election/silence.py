"""The time at which a follower becomes a candidate, based on the leader's silence in the shared log.

    silence             no accepted record for SILENCE_MS, plus RANK_MS times the node's rank by name, while
                        the engine answers; a failure of the engine does not count as silence of the leader
    departure           the leader's last BEAT announces its departure: the first node by rank becomes a
                        candidate at once, or the named successor, while the others wait as after silence
    unfit node          UNFIT_MS later than other nodes, so that a fit node becomes a candidate first
    failed candidate    not again within PAUSE_MIN_MS, which doubles up to PAUSE_MAX_MS with each failed
                        attempt: otherwise two nodes could depose each other indefinitely. A candidate that
                        lost to another candidate, or was named successor, does not wait.

A leader that still writes to the shared log is never deposed. Nodes do not probe each other, so two nodes
that cannot reach each other still agree on the leader if both can reach the engine.

All times are times of reads by this node, in ms of its monotonic clock. The clocks of different machines are
not compared.
"""

from __future__ import annotations

from typing import Final

SILENCE_MS: Final = 1_500
RANK_MS: Final = 300
UNFIT_MS: Final = 3_000
BEAT_MS: Final = 300
"""The time without a confirmed append, in ms, after which a leader writes a BEAT."""
PAUSE_MIN_MS: Final = 5_000
PAUSE_MAX_MS: Final = 60_000


class CandidacyTimer:
    """The candidacy timer of one node, based on the leader's last sign of life and the node's attempts."""

    def __init__(self, now_ms: int) -> None:
        self._heard_ms = now_ms
        self._has_left = self._is_named = False
        self._stood_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def record_sign_of_life(self, now_ms: int, *, leaves: bool = False, is_named: bool = False) -> None:
        """Record an accepted record of the leader; with `leaves`, the leader has stepped down.

        With `is_named`, the leader has named this node as its successor.
        """
        self._heard_ms, self._has_left, self._is_named = now_ms, leaves, is_named
        if leaves:
            self._stood_ms = None

    def restart(self, now_ms: int) -> None:
        """Restart the period of silence, because no leader can write while the engine does not respond."""
        self._heard_ms, self._has_left, self._is_named = now_ms, False, False

    def record_candidacy(self, now_ms: int) -> None:
        """Record that this node becomes a candidate; after a failed attempt, double the pause."""
        if self._stood_ms is not None:
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._stood_ms = now_ms

    def record_defeat(self) -> None:
        """Record that this candidate lost to another candidate, so its attempt has not deposed a leader."""
        self._stood_ms = None

    def record_success(self) -> None:
        """Record that the shared log has accepted records of this node as leader."""
        self._stood_ms, self._pause_ms = None, PAUSE_MIN_MS

    def candidacy_ms(self, rank: int, *, is_unfit: bool = False) -> int:
        """Return the time, in ms, at which this node becomes a candidate unless it reads further records.

        `rank` is the zero-based position of the node in the order of names. With `is_unfit`, the node should
        lead only if no other node can.
        """
        silent_ms = (0 if self._has_left else SILENCE_MS) + (UNFIT_MS if is_unfit else 0)
        candidacy_ms = self._heard_ms + silent_ms + RANK_MS * (0 if self._is_named else rank)
        if self._stood_ms is None:
            return candidacy_ms
        return max(candidacy_ms, self._stood_ms + self._pause_ms)
