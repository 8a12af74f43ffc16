"""The identity of a node: its name, addresses, certificate, key id and version."""

from __future__ import annotations

from typing import Any, NamedTuple

from sharedlog.versions import OLDEST


class Member(NamedTuple):
    """A node as described in its EPOCH record. `listen` is the client address (`HOST:PORT`)."""

    node: str
    listen: str
    http: str
    version: str = ""
    key: str = ""
    """The id of the node's key for user secrets (`services.cluster.key_check`), or ""."""
    certificate: str = ""
    """The node's PEM certificate, or "" if other nodes connect in plaintext (`peers`)."""
    supports: int = OLDEST
    """The newest supported record version (`sharedlog.versions`)."""

    def status_fields(self) -> dict[str, Any]:
        """Return the fields for status output. `certificate` becomes a Boolean."""
        return self._asdict() | {"certificate": bool(self.certificate)}
