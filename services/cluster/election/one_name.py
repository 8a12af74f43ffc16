"""Detect two processes with the same node name: the one that is not leader halts.

An EPOCH has the name of its node, and a holder drawn by the candidate's process. Once a process has read the
whole log, appends under its own name with an unknown holder come from another process. The first ones may be
the last appends of an earlier process of this node, or all its latest records, if the engine had returned an
old state (a lagging standby). An append LIVES_MS after the first one proves that the other process is alive.

Times are those of reads by this node, of a monotonic clock, in ms. Weak spot: two processes that both follow
a third node are detected once one of them leads.
"""

from __future__ import annotations

from typing import Final

from services.cluster.errors import NameTaken

LIVES_MS: Final = 3_000
"""How long appends of an ended process may still arrive; a leader writes more often."""


class OneName:
    """Appends of other processes with the name `node`."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._drawn: set[bytes] = set()
        self._first_ms: int | None = None
        self._has_heard = False

    def drew(self, holder: bytes) -> None:
        """Record a holder of this process."""
        self._drawn.add(holder)

    def heard(self, leader: str, holder: bytes, now_ms: int) -> None:
        """Record an accepted append of the node `leader`, later than the log at the start."""
        if leader != self._node or holder in self._drawn:
            return
        if self._first_ms is None:
            self._first_ms = now_ms
        self._has_heard = now_ms - self._first_ms >= LIVES_MS

    def check(self, address: str) -> None:
        """Raise `NameTaken` if another process of this name leads, at `address`."""
        if self._has_heard:
            raise NameTaken(
                f"Another process is node {self._node} of this cluster too, and leads at {address}. Give one "
                "of the two another --node and an empty --store, and start it again."
            )
