"""The certificate: made once, checked against its key, read again when its file changes."""

from __future__ import annotations

import os
import ssl
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from services.front.certificates import (
    RENEW_DAYS,
    VALID_DAYS,
    CertificateReloader,
    TlsFiles,
    ensure_own_files,
    list_own_names,
    make_grpc_context,
    make_self_signed,
    make_server_context,
)
from tidewheel.errors import ConfigurationError


def given(folder: Path, certificate: bytes, key: bytes) -> TlsFiles:
    files = TlsFiles(folder / "c.pem", folder / "k.pem")
    files.certificate.write_bytes(certificate)
    files.key.write_bytes(key)
    return files


def later(path: Path, content: bytes) -> None:
    """Write a file so that it is surely newer than before."""
    before_ns = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(before_ns + 1_000_000_000,) * 2)


def test_a_certificate_of_our_own_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    files = ensure_own_files(tmp_path / "tls", ["broker.example"])
    made = files.certificate.read_bytes()
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.certificate.stat().st_mode) & 0o137 == 0
    assert stat.S_IMODE(files.key.parent.stat().st_mode) & 0o007 == 0
    assert ensure_own_files(tmp_path / "tls", ["other.example"]).certificate.read_bytes() == made
    CertificateReloader(files, make_server_context)


def test_a_certificate_names_the_hosts_that_are_dialled() -> None:
    names = list_own_names(["0.0.0.0", "broker.example", "", "10.0.0.7"])
    assert names[:5] == ["broker.example", "10.0.0.7", "localhost", "127.0.0.1", "::1"]


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    files = given(tmp_path, make_self_signed(["a"])[0], make_self_signed(["b"])[1])
    with pytest.raises(ConfigurationError, match=r"k\.pem is not the key of .*c\.pem"):
        CertificateReloader(files, make_server_context)


@pytest.mark.parametrize(
    "content", [b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_certificate_is_refused(tmp_path: Path, content: bytes) -> None:
    files = given(tmp_path, content, make_self_signed(["a"])[1])
    with pytest.raises(ConfigurationError, match="as PEM without password"):
        CertificateReloader(files, make_server_context)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere.*No such file"):
        CertificateReloader(TlsFiles(tmp_path / "nowhere", tmp_path / "k.pem"), make_server_context)


def test_a_newer_certificate_is_read_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    certificate, key = make_self_signed(["a"])
    files = given(tmp_path, certificate, key)
    following = CertificateReloader(files, make_server_context)
    first = following.current()
    assert following.current() is first
    later(files.certificate, b"half")
    assert following.current() is first
    newer_certificate, newer_key = make_self_signed(["b"])
    later(files.key, newer_key)
    later(files.certificate, newer_certificate)
    second = following.current()
    assert second is not first
    assert following.current() is second


@pytest.mark.parametrize(
    "content", [b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_are_no_authorities_is_refused_by_its_name_and_a_bad_change_of_them_waits(
    tmp_path: Path, content: bytes
) -> None:
    authorities = tmp_path / "authorities.pem"
    files = replace(given(tmp_path, *make_self_signed(["a"])), clients=authorities)
    authorities.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"authorities\.pem must hold"):
        CertificateReloader(files, make_grpc_context)
    authorities.write_bytes("Zürich\n".encode() + files.certificate.read_bytes())
    following = CertificateReloader(files, make_grpc_context)
    first = following.current()
    assert first.cert_store_stats()["x509"] == 1
    later(authorities, content)
    assert following.current() is first


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Shake hands in memory; raises what the client raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for side in (theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert theirs.getpeercert()


def serving_with(folder: Path, certificate: bytes, key: bytes) -> ssl.SSLContext:
    files = given(folder, certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context


@pytest.mark.parametrize("flags", [ssl.VerifyFlags(0), ssl.VERIFY_X509_STRICT, ssl.VERIFY_X509_PARTIAL_CHAIN])
@pytest.mark.parametrize("name", ["broker.example", "localhost", "127.0.0.1"])
def test_who_trusts_our_certificate_verifies_the_broker(
    tmp_path: Path, flags: ssl.VerifyFlags, name: str
) -> None:
    files = ensure_own_files(tmp_path / "tls", ["broker.example"])
    trusting = ssl.create_default_context(cafile=str(files.certificate))
    trusting.verify_flags |= flags
    handshake(make_server_context(files), trusting, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(make_server_context(files), trusting, "other.example")


def test_who_has_stolen_our_key_is_nobody_else_to_those_that_trust_our_certificate(tmp_path: Path) -> None:
    """With a certificate that may sign others, the key of a broker would vouch for any site."""
    files = ensure_own_files(tmp_path / "tls", [])
    stolen = serialization.load_pem_private_key(files.key.read_bytes(), None)
    ours = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    forged = (
        x509.CertificateBuilder()
        .subject_name(x509.Name.from_rfc4514_string("CN=bank.example"))
        .issuer_name(ours.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ours.not_valid_before_utc)
        .not_valid_after(ours.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("bank.example")]), critical=False)
        .sign(stolen, hashes.SHA256())  # type: ignore[arg-type]
        .public_bytes(serialization.Encoding.PEM)
    )
    written = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    attacker = serving_with(tmp_path, forged + files.certificate.read_bytes(), written)
    trusting = ssl.create_default_context(cafile=str(files.certificate))
    with pytest.raises(ssl.SSLCertVerificationError, match="invalid CA certificate"):
        handshake(attacker, trusting, "bank.example")
    assert ours.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    usage = ours.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.ExtendedKeyUsageOID.SERVER_AUTH]


def test_our_certificate_is_renewed_before_it_ends_while_the_broker_serves(tmp_path: Path) -> None:
    clock = [datetime.now(UTC)]
    files = ensure_own_files(tmp_path / "tls", [], now=lambda: clock[0])
    following = CertificateReloader(files, make_server_context, lambda: clock[0])
    first = following.current()
    before = files.certificate.read_bytes()
    clock[0] += timedelta(days=VALID_DAYS - RENEW_DAYS - 2)
    assert following.current() is first
    assert files.certificate.read_bytes() == before
    clock[0] += timedelta(days=2)
    second = following.current()
    assert second is not first
    renewed = files.certificate.read_bytes()
    ends = x509.load_pem_x509_certificate(renewed).not_valid_after_utc
    assert ends - clock[0] > timedelta(days=RENEW_DAYS)
    assert following.current() is second
    clock[0] = ends
    assert ensure_own_files(tmp_path / "tls", [], now=lambda: clock[0]).certificate.read_bytes() != renewed


def test_a_death_between_key_and_certificate_does_not_keep_a_broker_from_starting(tmp_path: Path) -> None:
    files = ensure_own_files(tmp_path / "tls", [])
    files.key.write_bytes(make_self_signed(["other"])[1])
    ensure_own_files(tmp_path / "tls", [])
    CertificateReloader(files, make_server_context)
    files.certificate.write_bytes(b"")
    ensure_own_files(tmp_path / "tls", [])
    CertificateReloader(files, make_server_context)


def test_a_certificate_that_somebody_else_has_put_there_is_never_renewed(tmp_path: Path) -> None:
    ours = ensure_own_files(tmp_path / "tls", [])
    key = serialization.load_pem_private_key(ours.key.read_bytes(), None)
    name = x509.Name.from_rfc4514_string("CN=broker.example")
    yesterday = datetime.now(UTC) - timedelta(days=1)
    theirs = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())  # type: ignore[arg-type]
        .serial_number(1)
        .not_valid_before(yesterday - timedelta(days=9))
        .not_valid_after(yesterday)
        .sign(key, hashes.SHA256())  # type: ignore[arg-type]
        .public_bytes(serialization.Encoding.PEM)
    )
    ours.certificate.write_bytes(theirs)
    files = ensure_own_files(tmp_path / "tls", [])
    CertificateReloader(files, make_server_context).current()
    assert files.certificate.read_bytes() == theirs
