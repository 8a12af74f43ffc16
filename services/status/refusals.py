"""Advice for each reason for which callers are refused, for the command and the console."""

from __future__ import annotations

from typing import Final

_KEY: Final = "give the client the access key and the secret that tidewheel auth user add showed"
_CLOCK: Final = "set the clock of the client's machine, and the broker's, by NTP"
_TLS: Final = "have the client trust the broker's certificate: tidewheel doctor client HOST:PORT"

ADVICE: Final[dict[str, str]] = {
    "unsigned": _KEY,
    "malformed": _KEY,
    "unknown key": _KEY,
    "wrong signature": f"{_KEY}; a lost one is replaced by --new-secret",
    "skewed": _CLOCK,
    "replayed": _CLOCK,
    "no right": "allow it, if it is meant to be: tidewheel auth acl allow USER VERB --topic T --group G",
    "http token": "send a valid token: tidewheel auth token add USER",
    "http host": "name the host by --http-hosts, if browsers and clients may use that name",
    "http page": "nothing: a web page of another site was kept out",
    "said nothing": "nothing, if it is a port scanner or a TCP health check",
    "idle": "nothing: the client connects again when it has something to say",
    "too many connections": "see why one address has so many, or raise --connections-per-address",
    "too many clients": "close clients that are not used; one client a process is enough",
    "not let in": "have the client sign its calls: tidewheel doctor client HOST:PORT",
    "plaintext": "turn TLS on in the client, or start the broker with --plaintext on",
    "HTTP/1": "call the HTTP port, which is not the protocol port: tidewheel status",
    "RocketMQ 4 remoting": "use a client of RocketMQ 5 (gRPC)",
    "unknown": "see what calls the protocol port with another protocol",
    "TLS without HTTP/2": "use a client that offers h2 by ALPN",
    "no answer to a ping": "see whether the client's machine was suspended, or a firewall dropped it",
}
"""Advice by reason."""
_BEGINNINGS: Final = (("HTTP/2: ", "see what calls the protocol port: its detail says more"), ("TLS: ", _TLS))


def advice(reason: str) -> str:
    """Return the advice for a reason, or an empty string for an unknown reason."""
    of_kind = (said for beginning, said in _BEGINNINGS if reason.startswith(beginning))
    return ADVICE.get(reason) or next(of_kind, "")
