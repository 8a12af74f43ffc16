"""gRPC channels between nodes. A channel uses TLS if the target node has a certificate (`peers`).

gRPC accepts a pinned certificate as a trust anchor, even if it is not self-signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from services.cluster.peers import Identity, name_in

_CERTIFICATE_ERRORS: Final = ("CERTIFICATE_VERIFY_FAILED", "handshake failed")
"""Texts in gRPC error messages that indicate a failed TLS handshake."""


def channel_to(
    listen: str, certificate: str, own: Identity, options: Sequence[tuple[str, Any]]
) -> grpc.aio.Channel:
    """Return a channel to the gRPC port of a node. The channel is plaintext if `certificate` is empty."""
    if not certificate:
        return grpc.aio.insecure_channel(listen, options=options)
    credentials = grpc.ssl_channel_credentials(certificate.encode(), own.key or None, own.chain or None)
    named = [*options, ("grpc.ssl_target_name_override", name_in(certificate))]
    return grpc.aio.secure_channel(listen, credentials, options=named)


def is_certificate_error(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call failed because the peer presented an unexpected certificate."""
    told = error.details() or ""
    return any(words in told for words in _CERTIFICATE_ERRORS)
