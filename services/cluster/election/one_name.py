"""Detection of two processes with the same node name; the process that does not lead halts.

An EPOCH contains the name of its node, and a random holder that the candidate's process has drawn. Once a
process has read the whole log, an append under its own name with an unknown holder comes from another
process. The first appends with an unknown holder may still come from an earlier process of this node. If the
engine had returned an old state, as a lagging standby does, many appends may be those of the earlier process.
If an append arrives LIVES_MS after the first of them, the other process must be alive.

All times are those of reads by this node, of a monotonic clock, in ms. Weak spot: two processes of the same
name that both follow a third node are detected only once one of them leads.
"""

from __future__ import annotations

from typing import Final

from services.cluster.errors import DuplicateNodeName

LIVES_MS: Final = 3_000
"""The time for which appends of an ended process may still arrive; a live leader writes more often."""


class DuplicateNameCheck:
    """The detection of appends by other processes with the name `node`."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._drawn: set[bytes] = set()
        self._first_ms: int | None = None
        self._has_heard = False

    def record_own_holder(self, holder: bytes) -> None:
        """Record a holder that this process has drawn."""
        self._drawn.add(holder)

    def record_append(self, leader: str, holder: bytes, now_ms: int) -> None:
        """Record an accepted append of the node `leader` after this process has read the whole log."""
        if leader != self._node or holder in self._drawn:
            return
        if self._first_ms is None:
            self._first_ms = now_ms
        self._has_heard = now_ms - self._first_ms >= LIVES_MS

    def check(self, address: str) -> None:
        """Raise `DuplicateNodeName` if another process with the name of this node leads, at `address`."""
        if self._has_heard:
            raise DuplicateNodeName(
                f"Another process is node {self._node} of this cluster too, and leads at {address}. Give one "
                "of the two another --node and an empty --store, and start it again."
            )
