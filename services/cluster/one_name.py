"""Two processes that are one node: who does not lead, and reads that another of its name does, halts.

An EPOCH names its node, and its holder was drawn by the process that stands. Once a process has read all
there was, appends of its own name under a holder that it did not draw are another's: the first one may be
what a process before it had under way when it ended; a second one is of a process that lives.

Weak spot: two that both follow a third are found when one of them leads.
"""

from __future__ import annotations

from typing import Final

from services.cluster.errors import NameTaken

APPENDS_LATE_MAX: Final = 1
"""How many appends of a process that has ended may still come: one is under way at a time."""


class OneName:
    """What a node named `node` has read of others of its name."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._drawn: set[bytes] = set()
        self._count = 0

    def drew(self, holder: bytes) -> None:
        """Note a holder of this process."""
        self._drawn.add(holder)

    def heard(self, leader: str, holder: bytes) -> None:
        """Take in that an append of the node `leader` was accepted, behind all there was at the start."""
        if leader == self._node and holder not in self._drawn:
            self._count += 1

    def check(self, address: str) -> None:
        """Raise `NameTaken` if another process of this name leads, at `address`."""
        if self._count > APPENDS_LATE_MAX:
            raise NameTaken(
                f"Another process is node {self._node} of this cluster too, and leads at {address}. Give one "
                "of the two another --node and an empty --store, and start it again."
            )
