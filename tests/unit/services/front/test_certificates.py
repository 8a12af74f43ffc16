"""The certificate: made once, checked against its key, read again when its file changes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from commitlog.errors import ConfigurationError
from services.front.certificates import Reloading, TlsFiles, names_of, own_files, self_signed


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
    files = own_files(tmp_path / "tls", ["broker.example"])
    made = files.certificate.read_bytes()
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert own_files(tmp_path / "tls", ["other.example"]).certificate.read_bytes() == made
    assert Reloading(files).read() is not None


def test_a_certificate_names_the_hosts_that_are_dialled() -> None:
    names = names_of(["0.0.0.0", "broker.example", "", "10.0.0.7"])
    assert names[:5] == ["broker.example", "10.0.0.7", "localhost", "127.0.0.1", "::1"]


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    files = given(tmp_path, self_signed(["a"])[0], self_signed(["b"])[1])
    with pytest.raises(ConfigurationError, match=r"k\.pem is not the key of .*c\.pem"):
        Reloading(files).read()


@pytest.mark.parametrize(
    "content", [b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_certificate_is_refused(tmp_path: Path, content: bytes) -> None:
    files = given(tmp_path, content, self_signed(["a"])[1])
    with pytest.raises(ConfigurationError, match="as PEM without password"):
        Reloading(files).read()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere.*No such file"):
        Reloading(TlsFiles(tmp_path / "nowhere", tmp_path / "k.pem")).read()


def test_a_newer_certificate_is_read_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    certificate, key = self_signed(["a"])
    files = given(tmp_path, certificate, key)
    reloading = Reloading(files)
    reloading.read()
    assert reloading.newer() is None
    later(files.certificate, b"half")
    assert reloading.newer() is None
    newer_certificate, newer_key = self_signed(["b"])
    later(files.key, newer_key)
    later(files.certificate, newer_certificate)
    assert reloading.newer() is not None
    assert reloading.newer() is None
