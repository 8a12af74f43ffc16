"""HTTP connections from one node to another."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

SECRET: Final = "x-tidewheel-secret"


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


def told(url: str, path: str, secret: str, facts: Mapping[str, Any], seconds: float) -> bool:
    """Tell another node something; return whether it has taken that in."""
    connection = connection_to(url, seconds)
    try:
        connection.request("POST", path, json.dumps(facts), {SECRET: secret})
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
