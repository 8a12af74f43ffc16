"""When a node that follows stands to lead: after silence in the shared log, and nothing else.

    silence             no accepted record for SILENCE_MS, plus RANK_MS times the node's rank by name, while
                        the engine answers: who cannot read cannot tell a silent leader from a lost engine
    the leader leaves   its last BEAT says so: the first by rank stands at once; where it names who is to
                        lead, that one does, and the others wait as in silence
    it is unfit         UNFIT_MS later than all of that: another one, if there is any, has stood by then
    it has just stood   not again within PAUSE_MIN_MS, which doubles up to PAUSE_MAX_MS with each attempt that
                        led to nothing: two nodes that depose each other must not do so for ever. Who was
                        not first has deposed nobody, and who is asked to lead by a leader that leaves need
                        not wait either

A leader that still writes is never deposed: no node probes another, so two nodes that cannot see each other
but see the engine agree all the same.

Times are those at which this node read, by its monotonic clock, in ms: no two machines' clocks are compared.
"""

from __future__ import annotations

from typing import Final

SILENCE_MS: Final = 1_500
RANK_MS: Final = 300
UNFIT_MS: Final = 3_000
BEAT_MS: Final = 300
"""How long a leader writes nothing before it writes a BEAT."""
PAUSE_MIN_MS: Final = 5_000
PAUSE_MAX_MS: Final = 60_000


class Silence:
    """What a follower has heard, and when it stands."""

    def __init__(self, now_ms: int) -> None:
        self._heard_ms = now_ms
        self._has_left = self._is_named = False
        self._stood_ms: int | None = None
        self._pause_ms = PAUSE_MIN_MS

    def heard(self, now_ms: int, *, leaves: bool = False, is_named: bool = False) -> None:
        """Note that an accepted record of a leader was read; the last one if the leader `leaves`.

        `is_named` says that it wants this node to lead.
        """
        self._heard_ms, self._has_left, self._is_named = now_ms, leaves, is_named
        if leaves:
            self._stood_ms = None

    def away(self, now_ms: int) -> None:
        """Note that the engine does not answer: a leader cannot write either, so silence begins anew."""
        self._heard_ms, self._has_left, self._is_named = now_ms, False, False

    def stood(self, now_ms: int) -> None:
        """Note an attempt to lead."""
        if self._stood_ms is not None:
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS)
        self._stood_ms = now_ms

    def lost(self) -> None:
        """Note that the attempt deposed nobody: another node was first."""
        self._stood_ms = None

    def led(self) -> None:
        """Note that an attempt was worth it: records of this node's own were accepted."""
        self._stood_ms, self._pause_ms = None, PAUSE_MIN_MS

    def stands_ms(self, rank: int, *, is_unfit: bool = False) -> int:
        """Return when the node stands if nothing more is heard; `rank` is its place by name, from 0.

        `is_unfit` says that it should lead only where no other can.
        """
        silent_ms = (0 if self._has_left else SILENCE_MS) + (UNFIT_MS if is_unfit else 0)
        stands_ms = self._heard_ms + silent_ms + RANK_MS * (0 if self._is_named else rank)
        if self._stood_ms is None:
            return stands_ms
        return max(stands_ms, self._stood_ms + self._pause_ms)
