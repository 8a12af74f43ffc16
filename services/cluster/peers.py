"""Connections between nodes. A node uses TLS with a pinned certificate if the other node supports TLS.

A node announces its own PEM certificate in the shared log, without the rest of the chain. EPOCH and BEAT
records contain the leader's certificate. CHECKPOINT records contain the certificate of a node that provides a
copy. Other nodes trust exactly the announced certificate, regardless of the issuer. No certificate authority
is needed, because all nodes trust the shared log. A node without a certificate uses plaintext and is
reachable only from its own machine.

A node announces a renewed certificate within seconds. Before the announcement, other nodes reject the renewed
certificate, send no data, and retry the connection (`forwarding`). With `--tls-clients`, a node also presents
its certificate when connecting to other nodes. In this case, the certificate must have been issued by an
authority in the `--tls-clients` file.

A network that silently drops packets causes half-open connections. Connection attempts therefore time out
after CONNECT_SECONDS. An open connection is closed if no packet arrives for SILENT_SECONDS, not even a TCP
acknowledgement. A node that sends TCP acknowledgements may take up to the caller's timeout to respond.

Cost: one TLS handshake per gRPC connection and per HTTP request, and about 50 us of CPU time per gRPC call on
each node. Limitation: gRPC verifies a host name, and the caller takes this name from the certificate. A
certificate without a host name or an address therefore cannot be used.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from services.front.certificates import CertificateReloader, TlsFiles, make_grpc_context
from tidewheel.errors import ConfigurationError

SECRET: Final = "x-tidewheel-secret"

CERTIFICATE_BYTES_MAX: Final = 16 * 1024
"""Maximum size of a certificate in bytes. The shared log and every checkpoint contain certificates."""
_HANDSHAKE_TURNS: Final = 8
CONNECT_SECONDS: Final = 2.0
SILENT_SECONDS: Final = 4
_PROBED: Final = (
    ("TCP_USER_TIMEOUT", SILENT_SECONDS * 1000),
    *(("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", SILENT_SECONDS - 1)),
)
"""Socket options that probe a silent peer every second, if the platform supports these options."""


class CertificateMismatch(ConnectionError):
    """The server at the address of a node does not have the node's certificate, and no data was sent."""


class Identity(NamedTuple):
    """The certificate of a node. The fields `chain` and `key` are set if the node is also a TLS client."""

    certificate: str = ""
    chain: bytes = b""
    key: bytes = b""


def follow_certificate(files: TlsFiles) -> Callable[[], Identity]:
    """Return a function that reads the current identity of a node from its TLS files.

    Raise `ConfigurationError` if the files cannot be used.
    """
    return CertificateReloader(files, load_identity).current


def load_identity(files: TlsFiles) -> Identity:
    """Load a node's identity from its TLS files.

    Raise `ConfigurationError` if the files cannot be used, or OSError if they cannot be read.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    context = make_grpc_context(files)
    chain = files.certificate.read_bytes()
    certificate = x509.load_pem_x509_certificate(chain).public_bytes(Encoding.PEM).decode()
    if len(certificate) > CERTIFICATE_BYTES_MAX or not name_in(certificate):
        raise ConfigurationError(
            f"{files.certificate} cannot be the certificate of a cluster's node: it names no host, or is "
            f"longer than {CERTIFICATE_BYTES_MAX} bytes. Give another by --tls-certificate."
        )
    if files.clients is None:
        return Identity(certificate)
    _require_client_certificate(context, files)
    return Identity(certificate, chain, files.key.read_bytes())


def name_in(certificate: str) -> str:
    """Return a host name or an address from a certificate, or "" if the certificate contains neither."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate.encode())
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common = found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return str(common[0].value) if common else ""
    hosts = sorted(names.get_values_for_type(x509.DNSName), key=lambda name: name.startswith("*"))
    told = [*hosts, *map(str, names.get_values_for_type(x509.IPAddress))]
    return told[0].replace("*", "node") if told else ""


def connect_to(url: str, certificate: str, seconds: float) -> HTTPConnection:
    """Connect to the HTTP interface at `url`. The peer must present the given certificate.

    Reads time out after `seconds`. Raise `CertificateMismatch` if the peer presents a different certificate,
    or another OSError if the connection fails. No request has been sent when this function raises an error.
    """
    parts, most_seconds = urlsplit(url), min(seconds, CONNECT_SECONDS)
    host, port = parts.hostname or "", parts.port
    if parts.scheme != "https":
        connection = HTTPConnection(host, port, timeout=most_seconds)
    elif not certificate:
        raise CertificateMismatch(
            f"{url} is served over TLS, and its node has told no certificate in the shared log, as older "
            "versions do. Start that node with this version."
        )
    else:
        connection = HTTPSConnection(
            host, port, timeout=most_seconds, context=_make_pinned_context(certificate)
        )
    try:
        connection.connect()
    except ssl.SSLError as error:
        connection.close()
        raise CertificateMismatch(certificate_mismatch_text(url, str(error))) from error
    connection.sock.settimeout(seconds)
    _enable_keepalive(connection.sock)
    return connection


def _enable_keepalive(one: socket.socket) -> None:
    """Enable TCP keepalive on a socket. The operating system then closes connections to silent peers."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBED:
        if (option := getattr(socket, name, None)) is not None:
            one.setsockopt(socket.IPPROTO_TCP, option, value)


def post(
    url: str, certificate: str, path: str, secret: str, facts: Mapping[str, Any], seconds: float
) -> bool:
    """Send `facts` to another node in a POST request, and return whether the request was accepted."""
    try:
        connection = connect_to(url, certificate, seconds)
    except OSError:
        return False
    try:
        connection.request("POST", path, json.dumps(facts), {SECRET: secret})
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def certificate_mismatch_text(where: str, reason: str) -> str:
    """Return the error message for a certificate that differs from the announced certificate."""
    return (
        f"What answers at {where} does not show the certificate that its node has told in the shared log, so "
        f"it was sent nothing ({reason}). Call again if that was just renewed; else see who answers there."
    )


def _make_pinned_context(certificate: str) -> ssl.SSLContext:
    """Return an SSL context that accepts exactly one certificate and ignores the host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate need not be self-signed
    context.load_verify_locations(cadata=certificate)
    return context


def _require_client_certificate(server: ssl.SSLContext, files: TlsFiles) -> None:
    """Verify that this node's own TLS server accepts the certificate as a client certificate.

    Raise `ConfigurationError` if the TLS handshake fails.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.load_cert_chain(files.certificate, files.key)
    heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(heard, said), server.wrap_bio(said, heard, server_side=True)
    try:
        for turn in range(_HANDSHAKE_TURNS * len(sides)):
            try:
                sides[turn % len(sides)].do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"Nodes are each other's clients, and by --tls-clients {files.clients} no other node would let "
            f"this one in ({error.reason}): its --tls-certificate must be signed by those authorities, and "
            "good for clients."
        ) from error
