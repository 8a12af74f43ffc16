"""The identity of a node: its name, its addresses, its certificate, its key and its version."""

from __future__ import annotations

from typing import Any, NamedTuple

from sharedlog.versions import OLDEST


class Member(NamedTuple):
    """A node as described by its EPOCH: its name, its address for clients (`HOST:PORT`), its HTTP URL."""

    node: str
    listen: str
    http: str
    version: str = ""
    key: str = ""
    """The id of its key of users' secrets (`services.cluster.one_key`)."""
    certificate: str = ""
    """Its certificate as PEM; "" if other nodes connect to it in plaintext (`services.cluster.peers`)."""
    supports: int = OLDEST
    """The newest version of records that its program supports (`sharedlog.versions`)."""

    def told(self) -> dict[str, Any]:
        """Return the fields for status output, with the certificate reduced to whether there is one."""
        return self._asdict() | {"certificate": bool(self.certificate)}
