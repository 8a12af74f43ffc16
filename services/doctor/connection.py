"""Steps from the host name to the protocol: name resolution, port, plaintext, and TLS."""

from __future__ import annotations

import datetime
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from services.doctor.finding import Finding, Verdict, fine, warning, wrong
from services.settings.config import Address

SECONDS: Final = 5.0
PREFACE_AND_SETTINGS: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes of an HTTP/2 client: the preface and an empty SETTINGS frame (RFC 9113, 3.4)."""
PING: Final = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + bytes(8)
SETTINGS, PING_TYPE, WINDOW_UPDATE = 4, 6, 8
_FRAME_HEAD_BYTES: Final = 9
_TYPE_AT: Final = 3


def answers_pings(stream: BinaryIO, head: bytes) -> bool:
    """Return whether HTTP/2 is served.

    A TLS-only broker also sends SETTINGS in plaintext, to report an error to a call.
    """
    while len(head) == _FRAME_HEAD_BYTES and head[_TYPE_AT] in (SETTINGS, PING_TYPE, WINDOW_UPDATE):
        if head[_TYPE_AT] == PING_TYPE:
            return True
        stream.read(int.from_bytes(head[:_TYPE_AT], "big"))
        head = stream.read(_FRAME_HEAD_BYTES)
    return False


@dataclass(slots=True)
class Connection:
    """The address, the trusted authority, and the results: `speaks` contains "plaintext", "TLS", or both."""

    address: Address
    authority: Path | None = None
    speaks: list[str] = field(default_factory=list)
    chain: bytes = b""

    def examined(self) -> Iterator[Finding]:
        """Run the steps from the name to the certificate."""
        name = self.name()
        yield name
        if name.verdict is Verdict.WRONG:
            return
        port = self.port()
        yield port
        if not port.advice:
            yield from self.protocols()

    def name(self) -> Finding:
        """Resolve the host name."""
        host = self.address.host
        try:
            found = socket.getaddrinfo(host, self.address.port, type=socket.SOCK_STREAM)
        except OSError as error:
            return wrong("name", f"{host}: {error.strerror}", "Correct the name, or the DNS of this machine.")
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        seen = f"{host} is {', '.join(addresses)}"
        if all(":" in address for address in addresses):
            return warning(
                "name", seen, "The Python client knows no IPv6: use a name with an IPv4 address too."
            )
        return fine("name", seen)

    def port(self) -> Finding:
        """Check whether the port accepts connections."""
        try:
            self._dial().close()
        except ConnectionRefusedError:
            return wrong(
                "port", f"nobody listens at {self.address}", "Start the broker there, or correct the port."
            )
        except OSError as error:
            return wrong(
                "port",
                f"{self.address} does not answer ({error.strerror or error})",
                "A firewall or a wrong address: let this machine reach the port.",
            )
        return fine("port", f"{self.address} answers")

    def protocols(self) -> Iterator[Finding]:
        """Check the protocols without and with TLS."""
        plaintext = self.plaintext()
        yield plaintext
        if plaintext.verdict is not Verdict.WRONG:
            yield from self.tls()

    def plaintext(self) -> Finding:
        """Check whether HTTP/2 is served without TLS."""
        try:
            with self._dial() as connection, connection.makefile("rb") as stream:
                connection.sendall(PREFACE_AND_SETTINGS + PING)
                told = stream.read(_FRAME_HEAD_BYTES)
                is_served = answers_pings(stream, told)
        except OSError as error:
            told, is_served = str(error).encode(), False
        if is_served:
            self.speaks.append("plaintext")
            return fine("plaintext", "HTTP/2 is spoken")
        if told.startswith(b"HTTP/1"):
            return wrong(
                "plaintext",
                "an HTTP/1 server answers",
                "This is another port, perhaps the one for metrics and commands: use that of --listen.",
            )
        return warning("plaintext", "no HTTP/2 without TLS", "Clients must switch TLS on.")

    def tls(self) -> Iterator[Finding]:
        """Check whether HTTP/2 is served with TLS, and whether the certificate is trusted."""
        try:
            with self._dial() as plain, self._sealed(plain) as sealed:
                agreed, self.chain = sealed.selected_alpn_protocol(), sealed.getpeercert(True) or b""
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", None) or str(error)
            advice = "Java, Go, C# and C++ clients must switch TLS off (enableSsl false)."
            yield warning("TLS", f"no TLS ({why})", advice)
            return
        if agreed != "h2":
            yield wrong("TLS", "TLS without HTTP/2 (ALPN h2)", "This is no gRPC server: correct the port.")
            return
        self.speaks.append("TLS")
        yield fine("TLS", "HTTP/2 is spoken within TLS")
        yield self.certificate()

    def certificate(self) -> Finding:
        """Check whether the certificate is valid and trusted on this machine."""
        from cryptography import x509

        certificate = x509.load_der_x509_certificate(self.chain)
        ends = certificate.not_valid_after_utc
        seen = f"{certificate.subject.rfc4514_string()}, until {ends:%Y-%m-%d}"
        if ends < datetime.datetime.now(datetime.UTC):
            return wrong(
                "certificate", f"{seen}: expired", "Give the broker a new one; it reads it by itself."
            )
        trusted = ssl.create_default_context(cafile=str(self.authority) if self.authority else None)
        try:
            with self._dial() as plain, trusted.wrap_socket(plain, server_hostname=self.address.host):
                return fine("certificate", seen)
        except ssl.SSLCertVerificationError as error:
            return warning(
                "certificate",
                f"{seen}: {error.verify_message}",
                "Java and Go clients take it all the same; to Python's give its authority by "
                "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH, to this command by --ca.",
            )

    @contextmanager
    def opened(self) -> Iterator[socket.socket]:
        """Connect to the broker, without TLS if it allows plaintext. Raises OSError."""
        with self._dial() as plain:
            if "plaintext" in self.speaks:
                yield plain
                return
            with self._sealed(plain) as sealed:
                yield sealed

    def _sealed(self, plain: socket.socket) -> ssl.SSLSocket:
        """Wrap a connection in TLS without verification. The certificate is checked separately."""
        blind = ssl.create_default_context()
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        blind.set_alpn_protocols(["h2"])
        return blind.wrap_socket(plain, server_hostname=self.address.host)

    def _dial(self) -> socket.socket:
        return socket.create_connection(self.address, SECONDS)
