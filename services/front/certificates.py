"""The certificate that TLS is served with: the operator's files, or one that the broker has made for itself.

    --tls-certificate FILE --tls-key FILE     PEM; read again when one of them changes, without a restart
    neither                                   <store>/tls/: made at the first start, for this host's names
    --tls-clients FILE                        only clients with a certificate of these authorities may connect

The official clients of Java and Go take any certificate; Python, Node and Rust verify it, so that one made
here must be given to them as an authority.
"""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from commitlog.errors import ConfigurationError
from services.auth_files import write_for_owner

VALID_DAYS: Final = 3_650
WARN_DAYS: Final = 30
CERTIFICATE, KEY = "certificate.pem", "key.pem"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the chain and its key lie, and the authorities of client certificates, all PEM."""

    certificate: Path
    key: Path
    clients: Path | None = None

    def changed_ns(self) -> tuple[int, ...]:
        """Return when each was written; raises OSError."""
        there = (self.certificate, self.key, *([self.clients] if self.clients else []))
        return tuple(path.stat().st_mtime_ns for path in there)


def credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return gRPC's credentials, which follow the files; raises `ConfigurationError` if these do not fit."""
    reloading = Reloading(files)
    first = reloading.read()
    return grpc.dynamic_ssl_server_credentials(
        first, reloading.newer, require_client_authentication=files.clients is not None
    )


class Reloading:
    """The files' content for gRPC, which asks at every handshake, in threads of its own."""

    def __init__(self, files: TlsFiles) -> None:
        self._files, self._lock = files, threading.Lock()
        self._changed_ns: tuple[int, ...] = ()

    def read(self) -> Any:
        """Return what the files hold; raises `ConfigurationError`."""
        files = self._files
        try:
            self._changed_ns = files.changed_ns()
            chain, key = files.certificate.read_bytes(), files.key.read_bytes()
            clients = files.clients.read_bytes() if files.clients else None
        except OSError as error:
            raise ConfigurationError(f"{error.filename} cannot be read: {error.strerror}.") from error
        check(files, chain, key)
        return grpc.ssl_server_certificate_configuration([(key, chain)], clients)

    def newer(self) -> Any:
        """Return what the files hold if they have changed, else None; a bad change is logged and waits."""
        with self._lock:
            try:
                if self._files.changed_ns() == self._changed_ns:
                    return None
                log.info("TLS certificate read again", certificate=str(self._files.certificate))
                return self.read()
            except (OSError, ConfigurationError) as error:
                log.error("TLS certificate not read again; the one before serves on", why=str(error))
                return None


def check(files: TlsFiles, chain: bytes, key: bytes) -> None:
    """Raise `ConfigurationError` unless the key is the certificate's; warn of one that ends soon."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate(chain)
        own = load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{files.certificate} and {files.key} must be a certificate and its key as PEM without password."
        ) from error
    if own != certificate.public_key():
        raise ConfigurationError(
            f"{files.key} is not the key of {files.certificate}. Give its own by --tls-key."
        )
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    if left.total_seconds() <= 0:
        log.error("TLS certificate has expired", certificate=str(files.certificate), days_ago=-left.days - 1)
    elif left.days < WARN_DAYS:
        log.warning("TLS certificate ends", certificate=str(files.certificate), days_left=left.days)


def own_files(folder: Path, hosts: Iterable[str], clients: Path | None = None) -> TlsFiles:
    """Return the files of a folder, made if they are missing: a certificate that nobody else vouches for."""
    files = TlsFiles(folder / CERTIFICATE, folder / KEY, clients)
    if not (files.certificate.exists() and files.key.exists()):
        certificate, key = self_signed(names_of(hosts))
        write_for_owner(files.key, key.decode())
        write_for_owner(files.certificate, certificate.decode())
    return files


def names_of(hosts: Iterable[str]) -> list[str]:
    """Return under which names and addresses a broker on these hosts is dialled."""
    wanted = [*hosts, "localhost", "127.0.0.1", "::1", socket.gethostname()]
    return list(dict.fromkeys(host for host in wanted if host and host not in ("0.0.0.0", "::")))


def self_signed(names: list[str]) -> tuple[bytes, bytes]:
    """Return a certificate for these names or addresses, and its key, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tidewheel")])
    begins = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([_alternative(x509, name) for name in names]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), written


def _alternative(x509: Any, name: str) -> Any:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
