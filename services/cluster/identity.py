"""The identity of a node: its name, its addresses, its certificate, its key and its version."""

from __future__ import annotations

from typing import Any, NamedTuple

from sharedlog.versions import OLDEST


class Member(NamedTuple):
    """A node as described in its EPOCH, with its name, its client address (`HOST:PORT`) and its HTTP URL."""

    node: str
    listen: str
    http: str
    version: str = ""
    key: str = ""
    """The id of the node's key for users' secrets (`services.cluster.one_key`), or "" without a key."""
    certificate: str = ""
    """The node's certificate as PEM, or "" if nodes connect to it in plaintext (`services.cluster.peers`)."""
    supports: int = OLDEST
    """The newest record version that the node supports (`sharedlog.versions`)."""

    def status_fields(self) -> dict[str, Any]:
        """Return the fields for status output, in which a flag replaces the certificate."""
        return self._asdict() | {"certificate": bool(self.certificate)}
