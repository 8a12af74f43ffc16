"""The time at which a follower stands to lead: after silence in the shared log, and for no other reason.

    silence             no accepted record for SILENCE_MS, plus RANK_MS times the node's rank by name, while
                        the engine answers: else a silent leader and a lost engine would look the same
    the leader leaves   its last BEAT announces it: the first node by rank stands at once; if it names a
                        successor, that node stands at once, and the others wait as in silence
    it is unfit         UNFIT_MS later than all of that: a fit node, if there is any, has stood by then
    it has just stood   not again within PAUSE_MIN_MS, which doubles up to PAUSE_MAX_MS with each failed
                        attempt: otherwise two nodes could depose each other forever. A candidate that lost
                        the race, or was named successor, does not wait

A leader that still writes is never deposed: nodes do not probe each other, so two nodes that cannot reach
each other but reach the engine still agree.

Times are those of reads by this node, of its monotonic clock, in ms: clocks of machines are not compared.
"""

from __future__ import annotations

from typing import Final

SILENCE_MS: Final = 1_500
RANK_MS: Final = 300
UNFIT_MS: Final = 3_000
BEAT_MS: Final = 300
"""How long a leader may write nothing before it writes a BEAT."""
PAUSE_MIN_MS: Final = 5_000
PAUSE_MAX_MS: Final = 60_000


class Silence:
    """The last sign of life of the leader, and the time to stand."""

    def __init__(self, now_ms: int) -> None:
        self._heard_ms = now_ms
        self._has_left = self._is_named = False
        self._stood_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def heard(self, now_ms: int, *, leaves: bool = False, is_named: bool = False) -> None:
        """Record an accepted record of a leader; with `leaves`, its last one.

        `is_named`: the leader names this node as its successor.
        """
        self._heard_ms, self._has_left, self._is_named = now_ms, leaves, is_named
        if leaves:
            self._stood_ms = None

    def away(self, now_ms: int) -> None:
        """Record that the engine does not answer: a leader cannot write either, so silence restarts."""
        self._heard_ms, self._has_left, self._is_named = now_ms, False, False

    def stood(self, now_ms: int) -> None:
        """Record a candidacy."""
        if self._stood_ms is not None:
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._stood_ms = now_ms

    def lost(self) -> None:
        """Record that another node was first, so the candidacy has deposed no leader."""
        self._stood_ms = None

    def led(self) -> None:
        """Record the success of a candidacy: records of this node were accepted."""
        self._stood_ms, self._pause_ms = None, PAUSE_MIN_MS

    def stands_ms(self, rank: int, *, is_unfit: bool = False) -> int:
        """Return when the node stands if no record follows; `rank` is its position by name, from 0.

        `is_unfit`: the node should lead only if no other can.
        """
        silent_ms = (0 if self._has_left else SILENCE_MS) + (UNFIT_MS if is_unfit else 0)
        stands_ms = self._heard_ms + silent_ms + RANK_MS * (0 if self._is_named else rank)
        if self._stood_ms is None:
            return stands_ms
        return max(stands_ms, self._stood_ms + self._pause_ms)
