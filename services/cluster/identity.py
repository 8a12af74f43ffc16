"""The identity of a node: its name, addresses, certificate, key id and version."""

from __future__ import annotations

from typing import Any, NamedTuple

from sharedlog.versions import OLDEST


class Member(NamedTuple):
    """A node as described in its EPOCH record. Clients connect to the address `listen` (`HOST:PORT`)."""

    node: str
    listen: str
    http: str
    version: str = ""
    key: str = ""
    """The id of the node's key for user secrets (`services.cluster.key_check`), or ""."""
    certificate: str = ""
    """The node's PEM certificate, or "" if other nodes connect in plaintext (`peers`)."""
    supports: int = OLDEST
    """The newest record version that the node supports (`sharedlog.versions`)."""

    def status_fields(self) -> dict[str, Any]:
        """Return the fields for the status output, with `certificate` replaced by a Boolean."""
        return self._asdict() | {"certificate": bool(self.certificate)}
