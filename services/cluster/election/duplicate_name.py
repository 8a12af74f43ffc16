"""Detects two processes that use the same node name. The one that is not the leader halts.

Each EPOCH record contains the candidate's node name and its holder, which is a random value. Once a process
has read the whole shared log, any new append with its node name and an unknown holder is from another
process. The other process may be an earlier run of the same node. Appends of an earlier run can still be read
if the engine initially returns outdated data, for example from a lagging standby. If appends with an unknown
holder are still read LIVES_MS after the first one, the other process must be running.

All times are monotonic clock readings in milliseconds. Limitation: two followers with the same name are
detected only when one of them becomes the leader.
"""

from __future__ import annotations

from typing import Final

from services.cluster.errors import DuplicateNodeName

LIVES_MS: Final = 3_000
"""Time in milliseconds during which appends of an earlier run may still be read."""


class DuplicateNameCheck:
    """Detects another process that uses the node name `node`."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._drawn: set[bytes] = set()
        self._first_ms: int | None = None
        self._has_heard = False

    def record_own_holder(self, holder: bytes) -> None:
        """Record a holder that this process has generated."""
        self._drawn.add(holder)

    def record_append(self, leader: str, holder: bytes, now_ms: int) -> None:
        """Record an accepted append by the node `leader`.

        Call this method only after the process has read the whole shared log.
        """
        if leader != self._node or holder in self._drawn:
            return
        if self._first_ms is None:
            self._first_ms = now_ms
        self._has_heard = now_ms - self._first_ms >= LIVES_MS

    def check(self, address: str) -> None:
        """Raise `DuplicateNodeName` if the leader at `address` is another process with the same node name."""
        if self._has_heard:
            raise DuplicateNodeName(
                f"Another process is node {self._node} of this cluster too, and leads at {address}. Give one "
                "of the two another --node and an empty --store, and start it again."
            )
