"""gRPC channels between nodes. A channel uses TLS if the called node offers TLS (`services.cluster.peers`).

The gRPC core accepts a pinned certificate as a trust anchor, even if another authority signed the
certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import grpc

from services.cluster.peers import Identity, name_in

_NOT_ITS_OWN: Final = ("CERTIFICATE_VERIFY_FAILED", "handshake failed")
"""The texts that indicate a failed handshake in gRPC error messages."""


def channel_to(
    listen: str, certificate: str, own: Identity, options: Sequence[tuple[str, Any]]
) -> grpc.aio.Channel:
    """Return a channel to the gRPC port of a node. If `certificate` is empty, the channel uses plaintext."""
    if not certificate:
        return grpc.aio.insecure_channel(listen, options=options)
    credentials = grpc.ssl_channel_credentials(certificate.encode(), own.key or None, own.chain or None)
    named = [*options, ("grpc.ssl_target_name_override", name_in(certificate))]
    return grpc.aio.secure_channel(listen, credentials, options=named)


def is_certificate_error(error: grpc.aio.AioRpcError) -> bool:
    """Return whether a call failed because the peer did not present the expected certificate."""
    told = error.details() or ""
    return any(words in told for words in _NOT_ITS_OWN)
