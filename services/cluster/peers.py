"""Connections between nodes. A connection uses TLS with a pinned certificate if the other node offers TLS.

A node announces its certificate in the shared log in PEM format. The rest of the certificate chain is not
announced. The leader announces its certificate in EPOCH and BEAT records, and nodes that provide copies
announce theirs in CHECKPOINT records. A node that connects to another node trusts exactly the announced
certificate, regardless of its issuer. Nodes already trust the shared log, so no certificate authority is
involved. A node without a certificate is reachable only from its own machine, and its ports use plaintext.

A node announces a renewed certificate within seconds. Until a renewed certificate is announced, other nodes
reject it, send no data to the node, and retry the connection (`forwarding`). If `--tls-clients` is set, a
node also presents its certificate as a TLS client of the other nodes. In this case, the certificate must be
issued by an authority in the file that `--tls-clients` specifies.

A network that silently drops packets leaves half-open connections. For this reason, a connection attempt is
abandoned after `CONNECT_SECONDS`, and an open connection is closed if nothing, not even a TCP
acknowledgement, is received for `SILENT_SECONDS`. A live node may take as long to respond as the caller's
timeout allows.

Cost: each gRPC connection and each HTTP request requires a TLS handshake, and each gRPC call takes about 50
us of CPU time on each of the two nodes. Weak spot: gRPC also verifies the host name. The caller takes the
expected host name from the certificate, so a certificate without a name cannot be used.
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
"""The maximum size, in bytes, of a certificate, which is stored in the shared log and in every checkpoint."""
_HANDSHAKE_TURNS: Final = 8
CONNECT_SECONDS: Final = 2.0
SILENT_SECONDS: Final = 4
_PROBED: Final = (
    ("TCP_USER_TIMEOUT", SILENT_SECONDS * 1000),
    *(("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", SILENT_SECONDS - 1)),
)
"""The socket options that make the operating system probe a silent peer every second, where supported."""


class CertificateMismatch(ConnectionError):
    """The server at a node's address could not be verified as that node, so no data was sent."""


class Identity(NamedTuple):
    """The announced certificate of a node, with its chain and key if the node is also a TLS client."""

    certificate: str = ""
    chain: bytes = b""
    key: bytes = b""


def follow_certificate(files: TlsFiles) -> Callable[[], Identity]:
    """Return a function that reads the current identity from the TLS files.

    Raise `ConfigurationError` if the files cannot be used.
    """
    return CertificateReloader(files, load_identity).current


def load_identity(files: TlsFiles) -> Identity:
    """Load the identity of a node from its TLS files.

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
    """Open a connection to the HTTP interface at `url`, and require the peer to have the given certificate.

    Reads from the connection time out after `seconds`. Raise `CertificateMismatch` if the peer has a
    different certificate, or another OSError if the connection fails. If an error is raised, no request has
    been sent.
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
        connection = HTTPSConnection(host, port, timeout=most_seconds, context=_context_trusting(certificate))
    try:
        connection.connect()
    except ssl.SSLError as error:
        connection.close()
        raise CertificateMismatch(certificate_mismatch_text(url, str(error))) from error
    connection.sock.settimeout(seconds)
    _probe(connection.sock)
    return connection


def _probe(one: socket.socket) -> None:
    """Enable TCP keepalive probes on a socket, so that a connection to a silent peer is closed."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBED:
        if (option := getattr(socket, name, None)) is not None:
            one.setsockopt(socket.IPPROTO_TCP, option, value)


def post(
    url: str, certificate: str, path: str, secret: str, facts: Mapping[str, Any], seconds: float
) -> bool:
    """Send `facts` to another node in a POST request, and return whether the node accepted the request."""
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
    """Return the error message for an address whose certificate differs from the one in the shared log."""
    return (
        f"What answers at {where} does not show the certificate that its node has told in the shared log, so "
        f"it was sent nothing ({reason}). Call again if that was just renewed; else see who answers there."
    )


def _context_trusting(certificate: str) -> ssl.SSLContext:
    """Return an SSL context that accepts exactly one certificate, regardless of the host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate need not be self-signed
    context.load_verify_locations(cadata=certificate)
    return context


def _require_client_certificate(server: ssl.SSLContext, files: TlsFiles) -> None:
    """Perform a TLS handshake with this node's own server.

    Raise `ConfigurationError` if the handshake fails.
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
