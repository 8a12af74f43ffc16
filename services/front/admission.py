"""Limits the number and idle time of connections. This module uses neither sockets nor a clock.

The number of connections per client address is limited. A client must send the first bytes within
`hello_seconds`. A connection on which no bytes arrive for `idle_seconds` is considered dead. `idle_seconds`
must exceed the ping interval. If authentication is required, the number of unauthenticated connections per
address is also limited.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from commitlog.limits import STRANGER_MS_MAX, STRANGERS_PER_ADDRESS_MAX

TOO_MANY = "too many connections"
SILENT = "said nothing"
IDLE = "idle"
UNAUTHENTICATED = "not let in"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits per client address and per connection. Times are in seconds."""

    connections_per_address: int = 4_096
    hello_seconds: float = 10.0
    idle_seconds: float = 600.0
    stranger_seconds: float = STRANGER_MS_MAX / 1000
    strangers_per_address: int = STRANGERS_PER_ADDRESS_MAX


class Admission:
    """Counts the connections from each client address."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._connections: Counter[str] = Counter()

    def admit(self, host: str) -> bool:
        """Count a new connection. Return False if the address has reached its limit."""
        if self._connections[host] >= self.limits.connections_per_address:
            return False
        self._connections[host] += 1
        return True

    def release(self, host: str) -> None:
        """Decrement the connection count of the address when an admitted connection ends."""
        self._connections[host] -= 1
        assert self._connections[host] >= 0
        if not self._connections[host]:
            del self._connections[host]

    @property
    def connection_count(self) -> int:
        """Return the total number of admitted connections."""
        return self._connections.total()
