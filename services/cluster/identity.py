"""The identity of a node, which consists of its name, addresses, certificate, key id and version."""

from __future__ import annotations

from typing import Any, NamedTuple

from sharedlog.versions import OLDEST


class Member(NamedTuple):
    """A node as described in its EPOCH record, with its name, client address (`HOST:PORT`) and HTTP URL."""

    node: str
    listen: str
    http: str
    version: str = ""
    key: str = ""
    """The id of the node's key for user secrets (`services.cluster.key_check`), or "" if it has no key."""
    certificate: str = ""
    """The node's certificate in PEM format, or "" if other nodes connect to it in plaintext (`peers`)."""
    supports: int = OLDEST
    """The newest record version that the node supports (`sharedlog.versions`)."""

    def status_fields(self) -> dict[str, Any]:
        """Return the fields for status output.

        The certificate is replaced with a Boolean value that indicates whether the node has a certificate.
        """
        return self._asdict() | {"certificate": bool(self.certificate)}
