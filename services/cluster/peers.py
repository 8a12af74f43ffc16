"""Connections from one node to another: over TLS where the other one serves it, and to that one only.

    a node says in the shared log     its certificate: the first of its chain alone, as PEM, which is public
                                      (EPOCH and BEAT of who leads, CHECKPOINT of who gives copies)
    who dials it trusts               exactly that certificate, whoever has signed it: the shared log is what
                                      nodes trust already, and no authority is asked
    it says none                      where only its own machine reaches it and its ports take plaintext

A certificate that is renewed is said anew within seconds. Who dials meanwhile meets one that it does not know
yet, has sent nothing, and asks again (`forwarding`, `http_forwarding`). With `--tls-clients` a node is a
client of the others', and shows its certificate as such: it must be one that those authorities vouch for.

A network that drops what it is given, in silence, leaves a connection that nobody ends. So whoever is not
there is given up after `CONNECT_SECONDS`, and a connection of whose other end nothing is heard, not even that
it has what was sent, after `SILENT_SECONDS`; a node that is there may answer as late as the caller says.

Cost: a handshake a connection, HTTP makes one a request; some 50 us of either node's processor a gRPC call.
Weak spot: gRPC compares a name too, so it is told one that stands in the certificate; one without a name
cannot be a node's.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from services.front.certificates import Following, TlsFiles, grpc_context
from tidewheel.errors import ConfigurationError

SECRET: Final = "x-tidewheel-secret"

CERTIFICATE_BYTES_MAX: Final = 16 * 1024
"""How long a certificate may be that stands in the shared log, and so in every checkpoint."""
_HANDSHAKE_TURNS: Final = 8
CONNECT_SECONDS: Final = 2.0
SILENT_SECONDS: Final = 4
_PROBED: Final = (
    ("TCP_USER_TIMEOUT", SILENT_SECONDS * 1000),
    *(("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", SILENT_SECONDS - 1)),
)
"""What a socket is asked for, where the system has it: questions to a silent end, a second apart."""


class OtherCertificate(ConnectionError):
    """What answers at a node's address is not known to be that node; nothing was sent there."""


class Identity(NamedTuple):
    """What a node shows: its certificate, as others are told it; as a client its chain and key, if asked."""

    certificate: str = ""
    chain: bytes = b""
    key: bytes = b""


def follow(files: TlsFiles) -> Callable[[], Identity]:
    """Return what gives what a node shows, which follows its files; raise `ConfigurationError`."""
    return Following(files, shown).current


def shown(files: TlsFiles) -> Identity:
    """Return what a node shows that serves with these files; raise `ConfigurationError`, or OSError."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    context = grpc_context(files)
    chain = files.certificate.read_bytes()
    certificate = x509.load_pem_x509_certificate(chain).public_bytes(Encoding.PEM).decode()
    if len(certificate) > CERTIFICATE_BYTES_MAX or not name_in(certificate):
        raise ConfigurationError(
            f"{files.certificate} cannot be the certificate of a cluster's node: it names no host, or is "
            f"longer than {CERTIFICATE_BYTES_MAX} bytes. Give another by --tls-certificate."
        )
    if files.clients is None:
        return Identity(certificate)
    _require_let_in(context, files)
    return Identity(certificate, chain, files.key.read_bytes())


def name_in(certificate: str) -> str:
    """Return a name or an address of which a certificate says that it is its; "" if there is none."""
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


def connected_to(url: str, certificate: str, seconds: float) -> HTTPConnection:
    """Return a connection to the HTTP interface that `url` names, of the node with this certificate.

    An answer may take up to `seconds`. Raise `OtherCertificate`, or another OSError: it was sent nothing.
    """
    parts, most_seconds = urlsplit(url), min(seconds, CONNECT_SECONDS)
    host, port = parts.hostname or "", parts.port
    if parts.scheme != "https":
        connection = HTTPConnection(host, port, timeout=most_seconds)
    elif not certificate:
        raise OtherCertificate(
            f"{url} is served over TLS, and its node has told no certificate in the shared log, as older "
            "versions do. Start that node with this version."
        )
    else:
        connection = HTTPSConnection(host, port, timeout=most_seconds, context=_trusting(certificate))
    try:
        connection.connect()
    except ssl.SSLError as error:
        connection.close()
        raise OtherCertificate(other_certificate(url, str(error))) from error
    connection.sock.settimeout(seconds)
    _probe(connection.sock)
    return connection


def _probe(one: socket.socket) -> None:
    """Let a connection end of whose other end nothing is heard."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBED:
        if (option := getattr(socket, name, None)) is not None:
            one.setsockopt(socket.IPPROTO_TCP, option, value)


def post(
    url: str, certificate: str, path: str, secret: str, facts: Mapping[str, Any], seconds: float
) -> bool:
    """Tell another node something; return whether it has taken that in."""
    try:
        connection = connected_to(url, certificate, seconds)
    except OSError:
        return False
    try:
        connection.request("POST", path, json.dumps(facts), {SECRET: secret})
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def other_certificate(where: str, reason: str) -> str:
    """Return the sentence for an address at which another certificate is shown than the shared log says."""
    return (
        f"What answers at {where} does not show the certificate that its node has told in the shared log, so "
        f"it was sent nothing ({reason}). Call again if that was just renewed; else see who answers there."
    )


def _trusting(certificate: str) -> ssl.SSLContext:
    """Return a context that takes one certificate and no other, whatever names it says."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be its own signer's
    context.load_verify_locations(cadata=certificate)
    return context


def _require_let_in(server: ssl.SSLContext, files: TlsFiles) -> None:
    """Shake hands with ourselves as another node will; raise `ConfigurationError` if that is not let in."""
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
