"""The identity of a node: its name, its addresses, its certificate, its key and its version."""

from __future__ import annotations

from typing import Any, NamedTuple

from sharedlog.versions import OLDEST


class Member(NamedTuple):
    """A node as described in its EPOCH: its name, its address for clients (`HOST:PORT`) and its HTTP URL."""

    node: str
    listen: str
    http: str
    version: str = ""
    key: str = ""
    """The id of the node's key of users' secrets (`services.cluster.one_key`)."""
    certificate: str = ""
    """The node's certificate as PEM, or "" if other nodes connect in plaintext (`services.cluster.peers`)."""
    supports: int = OLDEST
    """The newest version of records that the node's program supports (`sharedlog.versions`)."""

    def status_fields(self) -> dict[str, Any]:
        """Return the fields for status output, with a flag in place of the certificate."""
        return self._asdict() | {"certificate": bool(self.certificate)}
