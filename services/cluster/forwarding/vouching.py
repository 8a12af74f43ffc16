"""A node vouches for a client's call that it forwards: where that came from, when, and that it still stands.

A client signs a call's date, which holds for some minutes (`services.auth.signature`). Its Telemetry stream
stands for days, and each new leader is told of it with what the client signed at its beginning. So the node
adds when the call came to it and when it says so, under the key that all nodes have; the leader then holds
the client's date against the first, and takes no word that is older than `WINDOW_MS`.

The signature itself is checked as ever: a user whose secret is void is refused. Who overhears a node can say
its words again within the window, so nodes that others can listen to speak TLS (`services.cluster.peers`).

With each call a node also sends the client's address and connection (ORIGIN): the leader counts clients by
these (`services.rpc.clients.client_room`). The proof is under the key; without --auth-key, under the
cluster's id, which is in the shared log. A call without a valid proof counts by the connection it came on.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Final

from services.auth.signature import WINDOW_MS
from services.rpc.wire.caller import Origin

VOUCHED: Final = "x-tidewheel-vouched"
ORIGIN: Final = "x-tidewheel-origin"
_PURPOSE: Final = b"tidewheel: calls that a node says again"
_SIGNED: Final = ("authorization", "x-mq-date-time", "x-mq-client-id")


def origin_said(key: bytes, node: str, host: str, number: int) -> str:
    """Return the value of the header field that tells the client's address and connection at a node."""
    said = f"{host} {node}.{number}"
    return f"{said} {hmac.digest(key, ORIGIN.encode() + said.encode(), 'sha256').hex()}"


def origin_of(key: bytes, fields: Mapping[str, str]) -> Origin | None:
    """Return where a call came from to the node that forwards it; None if no node vouches for that."""
    said, _, proof = fields.get(ORIGIN, "").rpartition(" ")
    host, _, connection = said.partition(" ")
    if not connection:
        return None
    expected = hmac.digest(key, ORIGIN.encode() + said.encode(), "sha256").hex()
    return Origin(host, connection) if hmac.compare_digest(proof.encode(), expected.encode()) else None


def vouch(key: bytes, fields: Iterable[tuple[str, str]], came_ms: int, now_ms: int) -> str:
    """Return the value of the header field that vouches for a call with these fields."""
    return f"{came_ms}.{now_ms}.{_proof(key, dict(fields), came_ms, now_ms)}"


def came_ms_of(key: bytes, fields: dict[str, str], now_ms: int) -> int | None:
    """Return when a call came to the node that says it again; None if no node vouches for that now."""
    came, _, rest = fields.get(VOUCHED, "").partition(".")
    said, _, proof = rest.partition(".")
    if not key or not all(one.isascii() and one.isdecimal() and len(one) < 16 for one in (came, said)):
        return None
    is_sound = hmac.compare_digest(proof.encode(), _proof(key, fields, int(came), int(said)).encode())
    return int(came) if is_sound and abs(now_ms - int(said)) <= WINDOW_MS else None


def _proof(key: bytes, fields: dict[str, str], came_ms: int, said_ms: int) -> str:
    said = "\n".join((*(fields.get(name, "") for name in _SIGNED), str(came_ms), str(said_ms)))
    own = hmac.digest(key, _PURPOSE, "sha256")
    return hmac.digest(own, said.encode(), "sha256").hex()
