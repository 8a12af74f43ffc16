"""Two processes that are one node: who does not lead, and reads that another of its name does, halts.

An EPOCH names its node, and its holder was drawn by the process that stands. Once a process has read all
there was, appends of its own name under a holder that it did not draw are another's: the first ones may be
what a process before it had under way when it ended, or all that it wrote last, where an engine had told of
the past (a standby that is behind); one that comes LIVES_MS after the first is of a process that lives.

Times are those at which this node read, by a clock that never goes back, in ms. Weak spot: two that both
follow a third are found when one of them leads.
"""

from __future__ import annotations

from typing import Final

from services.cluster.errors import NameTaken

LIVES_MS: Final = 3_000
"""For how long appends of a process that has ended may still come; one that leads writes more often."""


class OneName:
    """What a node named `node` has read of others of its name."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._drawn: set[bytes] = set()
        self._first_ms: int | None = None
        self._has_heard = False

    def drew(self, holder: bytes) -> None:
        """Note a holder of this process."""
        self._drawn.add(holder)

    def heard(self, leader: str, holder: bytes, now_ms: int) -> None:
        """Take in that an append of the node `leader` was accepted, behind all there was at the start."""
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
