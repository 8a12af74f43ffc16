"""Tests that bodies of imported logs are sent to clients uncompressed or in gzip format."""

from __future__ import annotations

import gzip
import sys
import zlib

import pytest

from commitlog import limits
from commitlog.records.compression import check_library, plain, to_client_format
from tidewheel.errors import LibraryMissing

TEXT = b"paid and paid and paid again" * 20
LZ4, ZSTD = 0x101, 0x201


def compressed(sys_flag: int, body: bytes) -> bytes:
    if sys_flag == LZ4:
        return bytes(pytest.importorskip("lz4.frame").compress(body))
    if sys_flag == ZSTD:
        return bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(body))
    return zlib.compress(body)


@pytest.mark.parametrize("sys_flag", [0x1, 0x301, LZ4, ZSTD])
def test_what_no_client_knows_is_unpacked(sys_flag: int) -> None:
    assert to_client_format(compressed(sys_flag, TEXT), sys_flag) == (TEXT, False)


def test_gzip_goes_out_as_it_is() -> None:
    packed = gzip.compress(TEXT)
    assert to_client_format(packed, 0x1) == (packed, True)
    assert plain(packed, 0x1) == TEXT


def test_without_the_flag_nothing_is_unpacked() -> None:
    packed = zlib.compress(TEXT)
    assert to_client_format(packed, 0) == (packed, False)


@pytest.mark.parametrize("sys_flag", [0x1, LZ4, ZSTD])
def test_what_does_not_unpack_is_given_out_as_stored(sys_flag: int) -> None:
    assert to_client_format(b"no such format", sys_flag) == (b"no such format", sys_flag == 0x1)


@pytest.mark.parametrize("sys_flag", [0x1, LZ4])
def test_what_is_cut_off_or_goes_on_behind_its_end_is_given_out_as_stored(sys_flag: int) -> None:
    packed = compressed(sys_flag, TEXT)
    for stored in (packed[: len(packed) // 2], packed[:-1], packed + b"more", packed + packed, packed[:1]):
        assert to_client_format(stored, sys_flag)[0] == stored
        assert plain(stored, sys_flag) == stored


@pytest.mark.parametrize("sys_flag", [0x1, LZ4, ZSTD])
def test_a_body_that_would_fill_the_memory_stays_packed(sys_flag: int) -> None:
    bomb = compressed(sys_flag, bytes(limits.BODY_UNPACKED_BYTES_MAX + 1))
    assert to_client_format(bomb, sys_flag)[0] == bomb


@pytest.mark.parametrize(("sys_flag", "library"), [(LZ4, "lz4.frame"), (ZSTD, "zstandard")])
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, sys_flag: int, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(LibraryMissing, match=r"tidewheel\[import\]"):
        check_library(sys_flag)
    with pytest.raises(LibraryMissing):
        to_client_format(b"any", sys_flag)
    check_library(0x1)
