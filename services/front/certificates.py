"""The TLS certificate of the broker, which is provided by the operator or self-signed.

    --tls-certificate FILE --tls-key FILE     PEM files, reloaded when a file changes
    neither                                   self-signed, created in <store>/tls/ at the first startup
    --tls-clients FILE                        clients need a certificate that is signed by one of these CAs

The official Java and Go clients accept any certificate. The official Python, Node, and Rust clients verify
the certificate, and must be configured to trust a self-signed certificate. The self-signed certificate is not
a certificate authority (RFC 5280, Sections 4.2.1.9 and 4.2.1.12). A client that trusts the certificate
therefore does not trust other certificates signed with the same key. The self-signed certificate has no key
usage extension, because BoringSSL, the TLS library of gRPC clients, rejects a self-signed certificate whose
key usage excludes certificate signing. The running broker renews a self-signed certificate `RENEW_DAYS` days
before expiry. At startup, the broker also replaces a self-signed certificate that does not match its key, for
example after a crash between the two writes. After a renewal, the new certificate must be installed on all
clients that verify it. If TLS is enabled for the HTTP interface, it uses the same certificate.
"""

from __future__ import annotations

import datetime
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import structlog

from services.process.private_files import GROUP_READS, write_for_owner
from tidewheel.errors import ConfigurationError

VALID_DAYS: Final = 3_650
WARN_DAYS: Final = 60
RENEW_DAYS: Final = 30
CERTIFICATE, KEY = "certificate.pem", "key.pem"
OUR_NAME: Final = "CN=tidewheel"

log = structlog.get_logger()

T = TypeVar("T")
Now = Callable[[], datetime.datetime]
"""Returns the current time as a timezone-aware datetime."""


def utc_now() -> datetime.datetime:
    """Return the current time in UTC."""
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of the certificate chain, the private key, and the client authorities, all in PEM format.

    `own_names` contains the host names for a self-signed certificate, and is empty for a certificate of the
    operator.
    """

    certificate: Path
    key: Path
    clients: Path | None = None
    own_names: tuple[str, ...] = ()

    def read_change_times(self) -> tuple[int, ...]:
        """Return the modification times of the files in nanoseconds. Raise OSError if a file is missing."""
        there = (self.certificate, self.key, *([self.clients] if self.clients else []))
        return tuple(path.stat().st_mtime_ns for path in there)


def make_https_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the TLS context for the HTTP interface.

    Changed files are reloaded at the next handshake.

    Python calls `sni_callback` in every handshake, even if the client sends no server name. Raise
    `ConfigurationError` if the files cannot be used.
    """
    following = CertificateReloader(files, make_server_context)

    def set_current(sealed: Any, _name: str | None, _first: ssl.SSLContext) -> None:
        sealed.context = following.current()

    first = following.current()
    first.sni_callback = set_current
    return first


def make_grpc_context_source(files: TlsFiles) -> Callable[[], ssl.SSLContext]:
    """Return a function that returns the gRPC port's TLS context for the current files.

    Raise `ConfigurationError` if the files cannot be used.
    """
    return CertificateReloader(files, make_grpc_context).current


def make_grpc_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the TLS context for the gRPC port.

    If `files.clients` is set, clients must present a certificate that one of these authorities has signed.
    """
    context = make_server_context(files, "h2")
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        # Comments in a PEM file may have any encoding.
        authorities = files.clients.read_bytes().decode("ascii", "ignore")
        try:
            context.load_verify_locations(cadata=authorities)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"{files.clients} must hold the certificates of authorities as PEM: {error}."
            ) from error
    return context


def make_server_context(files: TlsFiles, protocol: str = "http/1.1") -> ssl.SSLContext:
    """Return a TLS server context with the certificate and key in `files`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([protocol])
    context.load_cert_chain(files.certificate, files.key)
    return context


class CertificateReloader(Generic[T]):
    """Holds an object that is created from TLS files, and recreated when they change."""

    def __init__(self, files: TlsFiles, make: Callable[[TlsFiles], T], now: Now = utc_now) -> None:
        """Read the TLS files. Raise `ConfigurationError` if the files cannot be used."""
        self._files, self._make, self._now = files, make, now
        self._changed_ns: tuple[int, ...] = ()
        self._renew_at: datetime.datetime | None = None
        self._failure = ""
        self._made = self._load_files()

    def current(self) -> T:
        """Return the object that was created from the current files.

        Renew a self-signed certificate first if it is due. If the files cannot be used, log an error, and
        return the previous object.
        """
        try:
            if self._renew_at is not None and self._now() >= self._renew_at:
                renew_certificate(self._files, self._now)
            if self._files.read_change_times() != self._changed_ns:
                self._made = self._load_files()
                log.info("TLS certificate read again", certificate=str(self._files.certificate))
            self._failure = ""
        except (OSError, ConfigurationError) as error:
            if (
                str(error) != self._failure
            ):  # An unchanged error is logged only once, not for every handshake.
                log.error("TLS certificate not read again; the one before serves on", why=str(error))
            self._failure = str(error)
        return self._made

    def _load_files(self) -> T:
        files = self._files
        try:
            self._changed_ns = files.read_change_times()
            chain, key = files.certificate.read_bytes(), files.key.read_bytes()
            ends = check_expiry(files, chain, key, self._now())
            made = self._make(files)
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"{files.certificate} and {files.key} cannot be used for TLS: {error}. Give others."
            ) from error
        except OSError as error:
            raise ConfigurationError(f"{error.filename} cannot be read: {error.strerror}.") from error
        self._renew_at = ends - datetime.timedelta(days=RENEW_DAYS) if files.own_names else None
        return made


def check_expiry(files: TlsFiles, chain: bytes, key: bytes, now: datetime.datetime) -> datetime.datetime:
    """Return the expiry time of a certificate.

    Log an error if the certificate has expired, or a warning if it expires in fewer than `WARN_DAYS` days.
    Raise `ConfigurationError` if the key does not match the certificate.
    """
    ends: datetime.datetime = load_matching_certificate(files, chain, key).not_valid_after_utc
    left = ends - now
    if left.total_seconds() <= 0:
        log.error("TLS certificate has expired", certificate=str(files.certificate), days_ago=-left.days - 1)
    elif left.days < WARN_DAYS:
        log.warning("TLS certificate ends", certificate=str(files.certificate), days_left=left.days)
    return ends


def load_matching_certificate(files: TlsFiles, chain: bytes, key: bytes) -> Any:
    """Return the first certificate in a chain as an `x509.Certificate`.

    Raise `ConfigurationError` if the key does not match or a file cannot be parsed.
    """
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
    return certificate


def ensure_own_files(
    folder: Path, hosts: Iterable[str], clients: Path | None = None, now: Now = utc_now
) -> TlsFiles:
    """Return the TLS files in a directory. Create a self-signed certificate if the directory has none.

    A certificate that the operator has placed in the directory is never changed or renewed.
    """
    files = TlsFiles(folder / CERTIFICATE, folder / KEY, clients, tuple(list_own_names(hosts)))
    found = load_certificate(files)
    if found is not None and not is_self_signed(found):
        return replace(files, own_names=())
    renew_certificate(files, now)
    if found is not None and is_authority(found):
        log.warning(
            "TLS certificate of an older version is an authority to who trusts it; delete it to have another",
            certificate=str(files.certificate),
        )
    return files


def renew_certificate(files: TlsFiles, now: Now) -> None:
    """Create a self-signed certificate and its key, unless the current certificate is still usable.

    Raise OSError if a file cannot be read or written.
    """
    if is_certificate_current(files, now()):
        return
    certificate, key = make_self_signed(list(files.own_names), now())
    write_for_owner(files.key, key.decode())
    write_for_owner(files.certificate, certificate.decode(), GROUP_READS)
    log.info("TLS certificate made; clients that verify it need it", certificate=str(files.certificate))


def is_certificate_current(files: TlsFiles, now: datetime.datetime) -> bool:
    """Return whether the certificate matches its key and is not yet due for renewal."""
    try:
        certificate = load_matching_certificate(files, files.certificate.read_bytes(), files.key.read_bytes())
    except (FileNotFoundError, ConfigurationError):
        return False
    return bool(certificate.not_valid_after_utc - now > datetime.timedelta(days=RENEW_DAYS))


def load_certificate(files: TlsFiles) -> Any:
    """Return the certificate as an `x509.Certificate`, or None if the file is missing or invalid."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(files.certificate.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def is_self_signed(certificate: Any) -> bool:
    """Return whether a certificate was created and signed by a broker."""
    return bool(
        certificate.subject == certificate.issuer and certificate.subject.rfc4514_string() == OUR_NAME
    )


def is_authority(certificate: Any) -> bool:
    """Return whether a certificate may sign other certificates."""
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return False
    return bool(found.value.ca)


def list_own_names(hosts: Iterable[str]) -> list[str]:
    """Return the host names and addresses at which clients can reach a broker that listens on `hosts`."""
    wanted = [*hosts, "localhost", "127.0.0.1", "::1", socket.gethostname()]
    return list(dict.fromkeys(host for host in wanted if host and host not in ("0.0.0.0", "::")))


def make_self_signed(names: list[str], now: datetime.datetime | None = None) -> tuple[bytes, bytes]:
    """Return a self-signed certificate for the given names, and the private key, both in PEM format.

    The certificate is valid for `VALID_DAYS` days, beginning one day before `now`.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name.from_rfc4514_string(OUR_NAME)
    begins = (now or utc_now()) - datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=VALID_DAYS))
        .add_extension(
            x509.SubjectAlternativeName([_encode_alternative_name(x509, name) for name in names]), False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), written


def _encode_alternative_name(x509: Any, name: str) -> Any:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
