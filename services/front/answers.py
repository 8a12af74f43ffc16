"""Error messages for refused connections, encoded in the protocol of the client.

An HTTP/1 client receives an HTTP response. A RocketMQ 4 client receives a response to its request, and
reports the text of the response. A TLS client receives the alert `access_denied` (RFC 8446, Section 6.2),
which has no text. An HTTP/2 client receives a response to the first call (`services.front.refusing`).

A frame of the RocketMQ 4 remoting protocol (RemotingCommand in Apache RocketMQ), with big-endian numbers:

| bytes | content                                                    |
|-------|------------------------------------------------------------|
| 4     | length of the following fields                             |
| 1     | encoding of the header: 0 JSON, 1 binary                   |
| 3     | length of the header                                       |
| ...   | header; in binary: code 2, language 1, version 2, opaque 4 |
"""

from __future__ import annotations

import json
import struct
from typing import Final, NamedTuple

from services.front.client_hello import is_complete_record
from services.front.first_bytes import Protocol
from services.front.grpc_wire import Status

SYSTEM_ERROR: Final = 1
IS_RESPONSE: Final = 1
HEADER_BYTES_MAX: Final = 64 * 1024

_LENGTHS: Final = struct.Struct(">II")
_OPAQUE: Final = struct.Struct(">5xI")
_HEADER_LENGTH_MASK: Final = 0xFFFFFF
_BINARY: Final = 1
_ACCESS_DENIED: Final = bytes((21, 3, 3, 0, 2, 2, 49))
NO_HTTP2_ALERT: Final = bytes((21, 3, 3, 0, 2, 2, 120))
"""The alert `no_application_protocol` for a client that does not offer HTTP/2 (RFC 7301, Section 3.2)."""
TOO_MANY_SENTENCE: Final = (
    "Your address has as many connections here as one address may have, or as many that have not said yet who"
    " they are: close some, let clients share one process, or have the broker allow more with"
    " --connections-per-address."
)
PLAINTEXT_SENTENCE: Final = (
    "This broker takes TLS only: switch it on in the client (enableSsl, tls_enable, ...), with a certificate"
    " of its own if the broker has --tls-clients."
)


def error_text(protocol: Protocol, http: str) -> str:
    """Return the error message for a client with an unsupported protocol.

    `http` is the URL of the HTTP interface.
    """
    spoken = "an unknown protocol" if protocol is Protocol.UNKNOWN else protocol.value
    other = {
        Protocol.HTTP1: f"metrics, health and commands are at {http}",
        Protocol.REMOTING: "use a client of RocketMQ 5 that speaks gRPC, as rocketmq-client-java does",
    }.get(protocol, f"for commands see {http}")
    here = "this port serves RocketMQ 5 clients by gRPC over HTTP/2, with or without TLS"
    return f"This is {spoken}; {here}: {other}."


def encode_error(protocol: Protocol, first: bytes, http: str) -> bytes:
    """Encode the error message for an unsupported protocol.

    `first` contains the first bytes from the client.
    """
    return encode_text(error_text(protocol, http), protocol, first, "400 Bad Request")


class ClientRefusal(NamedTuple):
    """The reason for refusing a client, as a text, a gRPC status, and an HTTP status."""

    text: str
    grpc_status: Status
    http_status: str


TOO_MANY_REFUSAL: Final = ClientRefusal(TOO_MANY_SENTENCE, Status.RESOURCE_EXHAUSTED, "429 Too Many Requests")
PLAINTEXT_REFUSAL: Final = ClientRefusal(PLAINTEXT_SENTENCE, Status.UNAUTHENTICATED, "426 Upgrade Required")


def encode_refusal(protocol: Protocol, first: bytes, why: ClientRefusal = TOO_MANY_REFUSAL) -> bytes:
    """Encode a refusal in the protocol of the client.

    `first` contains the first bytes from the client.
    """
    return encode_text(why.text, protocol, first, why.http_status)


def encode_text(text: str, protocol: Protocol, first: bytes, http_status: str) -> bytes:
    """Encode a message in the protocol of the client.

    `first` contains the first bytes from the client.
    """
    match protocol:
        case Protocol.HTTP1:
            return _encode_http1(text, http_status)
        case Protocol.TLS:
            return _ACCESS_DENIED
        case Protocol.REMOTING:
            return _encode_remoting(text, first)
    return text.encode() + b"\n"


def _encode_http1(text: str, status: str) -> bytes:
    body = f"{text}\n".encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _encode_remoting(text: str, first: bytes) -> bytes:
    header = {
        "code": SYSTEM_ERROR, "flag": IS_RESPONSE, "language": "OTHER", "opaque": read_opaque(first),
        "remark": text, "serializeTypeCurrentRPC": "JSON", "version": 0,
    }  # fmt: skip
    written = json.dumps(header).encode()
    return _LENGTHS.pack(len(written) + 4, len(written)) + written


def read_opaque(frame: bytes) -> int:
    """Return the request id of a remoting frame, or 0 if there is none.

    The response contains the same request id.
    """
    length = _LENGTHS.unpack_from(frame)[1]
    header = frame[_LENGTHS.size : _LENGTHS.size + (length & _HEADER_LENGTH_MASK)]
    try:
        if length >> 24 == _BINARY:
            return int(_OPAQUE.unpack_from(header)[0])
        return int(json.loads(header)["opaque"])
    except (struct.error, ValueError, KeyError, TypeError):
        return 0


def is_complete(protocol: Protocol, first: bytes) -> bool:
    """Return whether `first` contains the complete request head, ClientHello, or frame header."""
    if protocol is Protocol.HTTP1:
        return b"\r\n\r\n" in first or len(first) > HEADER_BYTES_MAX
    if protocol is Protocol.TLS:
        return is_complete_record(first)
    if protocol is Protocol.REMOTING:
        length = _LENGTHS.unpack_from(first)[1] & _HEADER_LENGTH_MASK
        return bool(len(first) >= min(_LENGTHS.size + length, HEADER_BYTES_MAX))
    return True
