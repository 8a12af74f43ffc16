"""HTTP connections from one node to another."""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPSConnection
from urllib.parse import urlsplit


def connection_to(url: str, seconds: float) -> HTTPConnection:
    """Return a connection, not opened yet, to the HTTP interface that `url` names.

    A node's certificate is its own, so nobody vouches for that: TLS keeps listeners out, and no more.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme != "https":
        return HTTPConnection(host, port, timeout=seconds)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return HTTPSConnection(host, port, timeout=seconds, context=context)
