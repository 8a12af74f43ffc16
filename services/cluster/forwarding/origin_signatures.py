"""Signatures of the origin and the arrival time of forwarded calls.

A client signs the date of a call, and the signature is valid for a few minutes (`services.auth.signature`). A
Telemetry stream may stay open for days. The node reopens the stream with each new leader and sends the
client's original signature. The node therefore adds a signed statement that the client is still connected.
The statement contains the arrival time of the call and the current time, and is signed with the cluster key.
The leader compares the client's date with the arrival time, and rejects statements that are older than
WINDOW_MS.

The leader also verifies the client's signature, and therefore rejects invalid secrets. An eavesdropper can
replay the header within WINDOW_MS. TLS is therefore required on untrusted networks
(`services.cluster.peers`).

With each call, a node also sends the address and the connection number of the client in the header field
ORIGIN. The leader uses this field to count clients (`services.rpc.clients.client_room`). The field is signed
with the cluster key or, without --auth-key, with the cluster id from the shared log. If the signature is
missing or invalid, the leader attributes the call to the connection of the forwarding node.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import Final

from services.auth.signature import WINDOW_MS
from services.rpc.wire.caller import Origin

ARRIVAL: Final = "x-tidewheel-vouched"
ORIGIN: Final = "x-tidewheel-origin"
_PURPOSE: Final = b"tidewheel: calls that a node says again"
_SIGNED: Final = ("authorization", "x-mq-date-time", "x-mq-client-id")


def sign_origin(key: bytes, node: str, host: str, number: int) -> str:
    """Return the value of the header field ORIGIN for the address and the connection of a client."""
    said = f"{host} {node}.{number}"
    return f"{said} {hmac.digest(key, ORIGIN.encode() + said.encode(), 'sha256').hex()}"


def verify_origin(key: bytes, fields: Mapping[str, str]) -> Origin | None:
    """Return the origin of a forwarded call, or None if the signature is missing or invalid."""
    said, _, proof = fields.get(ORIGIN, "").rpartition(" ")
    host, _, connection = said.partition(" ")
    if not connection:
        return None
    expected = hmac.digest(key, ORIGIN.encode() + said.encode(), "sha256").hex()
    return Origin(host, connection) if hmac.compare_digest(proof.encode(), expected.encode()) else None


def sign_arrival(key: bytes, fields: Iterable[tuple[str, str]], arrived_ms: int, now_ms: int) -> str:
    """Return the value of the header field ARRIVAL for a call with the header fields `fields`."""
    return f"{arrived_ms}.{now_ms}.{_proof(key, dict(fields), arrived_ms, now_ms)}"


def verify_arrival_ms(key: bytes, fields: dict[str, str], now_ms: int) -> int | None:
    """Return the time at which a call arrived at the forwarding node, in milliseconds since the Unix epoch.

    Return None if the statement of the node is missing, invalid or too old.
    """
    came, _, rest = fields.get(ARRIVAL, "").partition(".")
    said, _, proof = rest.partition(".")
    if not key or not all(one.isascii() and one.isdecimal() and len(one) < 16 for one in (came, said)):
        return None
    is_sound = hmac.compare_digest(proof.encode(), _proof(key, fields, int(came), int(said)).encode())
    return int(came) if is_sound and abs(now_ms - int(said)) <= WINDOW_MS else None


def _proof(key: bytes, fields: dict[str, str], arrived_ms: int, said_ms: int) -> str:
    said = "\n".join((*(fields.get(name, "") for name in _SIGNED), str(arrived_ms), str(said_ms)))
    own = hmac.digest(key, _PURPOSE, "sha256")
    return hmac.digest(own, said.encode(), "sha256").hex()
