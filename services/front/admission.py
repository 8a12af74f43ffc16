"""Limits on the number and idle time of connections, implemented without sockets or a clock.

The number of connections per client address is limited. A client must send the first bytes of a connection
within `hello_seconds` seconds. A connection is considered dead if no data is received for `idle_seconds`
seconds, which is longer than the ping interval. If authentication is enabled, the number of unauthenticated
connections per client address is also limited.
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
    """The limits for client addresses and connections, with times in seconds."""

    connections_per_address: int = 4_096
    hello_seconds: float = 10.0
    idle_seconds: float = 600.0
    stranger_seconds: float = STRANGER_MS_MAX / 1000
    strangers_per_address: int = STRANGERS_PER_ADDRESS_MAX


class Admission:
    """A counter of the connections from each client address."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._connections: Counter[str] = Counter()

    def admit(self, host: str) -> bool:
        """Count a new connection, or return False if its address has reached the limit."""
        if self._connections[host] >= self.limits.connections_per_address:
            return False
        self._connections[host] += 1
        return True

    def release(self, host: str) -> None:
        """Remove an admitted connection from the count."""
        self._connections[host] -= 1
        assert self._connections[host] >= 0
        if not self._connections[host]:
            del self._connections[host]

    @property
    def connection_count(self) -> int:
        """The total number of connections."""
        return self._connections.total()
