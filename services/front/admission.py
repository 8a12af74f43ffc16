"""Who may connect, and for how long one may say nothing; no sockets and no clock.

An address may have so many connections at once. A connection must say within `hello_seconds` what it speaks,
and is taken for dead when it has said nothing for `idle_seconds`; clients are pinged far more often. Where
clients are asked who they are, an address may have so many connections on which nobody has been let in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from commitlog.limits import STRANGER_MS_MAX, STRANGERS_PER_ADDRESS_MAX

TOO_MANY = "too many connections"
SILENT = "said nothing"
IDLE = "idle"
STRANGER = "not let in"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one address and one connection may take."""

    connections_per_address: int = 4_096
    hello_seconds: float = 10.0
    idle_seconds: float = 600.0
    stranger_seconds: float = STRANGER_MS_MAX / 1000
    strangers_per_address: int = STRANGERS_PER_ADDRESS_MAX


class Admission:
    """The connections of each address."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._connections: Counter[str] = Counter()

    def admit(self, host: str) -> bool:
        """Count a connection in, unless its address has as many as it may."""
        if self._connections[host] >= self.limits.connections_per_address:
            return False
        self._connections[host] += 1
        return True

    def leave(self, host: str) -> None:
        """Count a connection out that was admitted."""
        self._connections[host] -= 1
        assert self._connections[host] >= 0
        if not self._connections[host]:
            del self._connections[host]

    @property
    def connection_count(self) -> int:
        """The number of connections."""
        return self._connections.total()
