"""Detection of two processes with the same node name. The process that is not the leader halts.

An EPOCH record contains the node name and a random value called the holder, which the candidate process
generates. After a process has read the whole shared log, any append under its own node name with an unknown
holder comes from another process. The first appends with an unknown holder may still come from a previous
process of the same node. Many such appends may arrive if the engine initially returned outdated data, as a
lagging standby does. If an append with an unknown holder arrives LIVES_MS after the first such append, the
other process must still be running.

All times are in ms, and are taken from a monotonic clock when this node reads a record. Weak spot: two
processes with the same name that both follow a third node are detected only when one of them becomes the
leader.
"""

from __future__ import annotations

from typing import Final

from services.cluster.errors import DuplicateNodeName

LIVES_MS: Final = 3_000
"""The time, in ms, for which appends from a previous process may still arrive after the first one."""


class DuplicateNameCheck:
    """A check for appends by other processes that use the node name `node`."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._drawn: set[bytes] = set()
        self._first_ms: int | None = None
        self._has_heard = False

    def record_own_holder(self, holder: bytes) -> None:
        """Record a holder that this process has generated."""
        self._drawn.add(holder)

    def record_append(self, leader: str, holder: bytes, now_ms: int) -> None:
        """Record an accepted append by the node `leader`. The caller must have read the whole shared log."""
        if leader != self._node or holder in self._drawn:
            return
        if self._first_ms is None:
            self._first_ms = now_ms
        self._has_heard = now_ms - self._first_ms >= LIVES_MS

    def check(self, address: str) -> None:
        """Raise `DuplicateNodeName` if the leader at `address` is another process with this node's name."""
        if self._has_heard:
            raise DuplicateNodeName(
                f"Another process is node {self._node} of this cluster too, and leads at {address}. Give one "
                "of the two another --node and an empty --store, and start it again."
            )
