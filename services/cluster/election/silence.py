"""The time at which a follower becomes a candidate, which depends only on silence in the shared log.

    silence             no accepted record for SILENCE_MS, plus RANK_MS times the node's rank by name, while
                        the engine answers: else a silent leader and a lost engine would look the same
    the leader leaves   its last BEAT announces it: the first node by rank stands at once; if it names a
                        successor, that node stands at once, and the others wait as in silence
    it is unfit         UNFIT_MS later than all of that: a fit node, if there is any, has stood by then
    it has just stood   not again within PAUSE_MIN_MS, which doubles up to PAUSE_MAX_MS with each failed
                        attempt: otherwise two nodes could depose each other forever. A candidate that lost
                        the race, or was named successor, does not wait

A leader that still writes to the log is never deposed. Nodes do not probe each other, so two nodes that
cannot reach each other still agree on the leader if both can reach the engine.

All times are times of reads by this node, in ms, from its monotonic clock; clocks of different machines are
not compared.
"""

from __future__ import annotations

from typing import Final

SILENCE_MS: Final = 1_500
RANK_MS: Final = 300
UNFIT_MS: Final = 3_000
BEAT_MS: Final = 300
"""The time without an append after which a leader writes a BEAT."""
PAUSE_MIN_MS: Final = 5_000
PAUSE_MAX_MS: Final = 60_000


class CandidacyTimer:
    """The last sign of life of the leader, and the time at which this node becomes a candidate."""

    def __init__(self, now_ms: int) -> None:
        self._heard_ms = now_ms
        self._has_left = self._is_named = False
        self._stood_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def record_sign_of_life(self, now_ms: int, *, leaves: bool = False, is_named: bool = False) -> None:
        """Record that the log has accepted a leader's record; with `leaves`, the leader has stepped down.

        With `is_named`, the leader has named this node as its successor.
        """
        self._heard_ms, self._has_left, self._is_named = now_ms, leaves, is_named
        if leaves:
            self._stood_ms = None

    def restart(self, now_ms: int) -> None:
        """Restart the measurement of silence: the engine does not answer, so a leader cannot write either."""
        self._heard_ms, self._has_left, self._is_named = now_ms, False, False

    def record_candidacy(self, now_ms: int) -> None:
        """Record that this node is a candidate; after a failed attempt, double the pause."""
        if self._stood_ms is not None:
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._stood_ms = now_ms

    def record_defeat(self) -> None:
        """Record that another candidate was first, so this node's attempt did not depose a leader."""
        self._stood_ms = None

    def record_success(self) -> None:
        """Record the success of an attempt: the log has accepted records of this node as leader."""
        self._stood_ms, self._pause_ms = None, PAUSE_MIN_MS

    def candidacy_ms(self, rank: int, *, is_unfit: bool = False) -> int:
        """Return the time, in ms, at which the node becomes a candidate if it reads no further record.

        `rank` is the zero-based position of the node in order of names. With `is_unfit`, the node should lead
        only as a last resort.
        """
        silent_ms = (0 if self._has_left else SILENCE_MS) + (UNFIT_MS if is_unfit else 0)
        candidacy_ms = self._heard_ms + silent_ms + RANK_MS * (0 if self._is_named else rank)
        if self._stood_ms is None:
            return candidacy_ms
        return max(candidacy_ms, self._stood_ms + self._pause_ms)
