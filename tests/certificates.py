"""Certificates as operators have them: an authority's, and one that it has signed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from services.process.private_files import write_for_owner


def write_pair(folder: Path, name: str, certificate: bytes, key: bytes) -> tuple[Path, Path]:
    """A certificate and its key as files."""
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(certificate)
    write_for_owner(files[1], key.decode())
    return files


def an_authority() -> tuple[bytes, bytes]:
    """A certificate that may sign others, unlike a broker's own, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name.from_rfc4514_string("CN=authority")
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now + timedelta(days=99))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), pem


def issued(authority: Path, days_left: int) -> tuple[bytes, bytes]:
    """A certificate that the authority beside this file's key has signed, and its key."""
    issuer = x509.load_pem_x509_certificate(authority.read_bytes())
    signing = serialization.load_pem_private_key(authority.with_suffix(".key").read_bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    own = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "somebody")]))
        .issuer_name(issuer.subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=9))
        .not_valid_after(now + timedelta(days=days_left))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
        .sign(signing, hashes.SHA256())
    )
    pem = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), pem
