"""Converts compressed message bodies to formats that clients can read.

The RocketMQ 5 protocol supports uncompressed bodies and gzip bodies. RocketMQ stores may also contain bodies
in other formats. If a body is compressed, bit 0x1 of sys_flag is set, and the bits 0x700 contain the
compression type:

    0x000, 0x300   zlib from clients of RocketMQ 4, or gzip from clients of RocketMQ 5 (determined by the
                   first bytes)
    0x100          LZ4 frame
    0x200          Zstandard

Gzip bodies are sent to clients unchanged. Bodies in any other format are decompressed when they are
delivered, and remain compressed on disk. Most compressed bodies in a log written by Tidewheel are in gzip
format. The C++ client sends zlib bodies that are declared as gzip. Clients in other languages cannot read
such bodies. The LZ4 and Zstandard libraries are installed with `tidewheel[import]`. A body is delivered as
stored if it cannot be decompressed, or if its decompressed size exceeds
`limits.BODY_UNPACKED_FOR_CLIENT_BYTES_MAX`. The limit for tools is `BODY_UNPACKED_BYTES_MAX`. The body CRC
ensures that the stored body is identical to the body that was sent. Clients check the 4 MiB body size limit
before compression. A body that exceeds 4 MiB when decompressed either is an attempt to block the event loop
(150 ms for 60 MiB) or was imported from a broker with different settings.
"""

from __future__ import annotations

import importlib
import io
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from commitlog.limits import BODY_UNPACKED_BYTES_MAX, BODY_UNPACKED_FOR_CLIENT_BYTES_MAX
from commitlog.record import COMPRESSED, COMPRESSION_TYPE
from tidewheel.errors import LibraryMissing

_GZIP_START: Final = b"\x1f\x8b"
_RATIO_MAX: Final = 1_032
"""The maximum ratio of decompressed bytes to compressed bytes with zlib."""
_LZ4: Final = 0x100
_ZSTD: Final = 0x200
_LIBRARIES: Final = {_LZ4: "lz4.frame", _ZSTD: "zstandard"}


def for_client(body: bytes, sys_flag: int) -> tuple[bytes, bool]:
    """Return a body in a format that clients can read, and whether the returned body is in gzip format.

    Raise `LibraryMissing` if the required compression library is not installed.
    """
    if not sys_flag & COMPRESSED:
        return body, False
    if body.startswith(_GZIP_START):
        return body, True
    unpacked = plain(body, sys_flag, BODY_UNPACKED_FOR_CLIENT_BYTES_MAX)
    said_gzip = not sys_flag & COMPRESSION_TYPE and unpacked is body
    return unpacked, said_gzip


def unpacked_bytes(stored: bytes, given: bytes) -> int:
    """Return an upper bound on the number of bytes that were decompressed to deliver a compressed body.

    A body that is delivered as stored may have been decompressed up to the size limit.
    """
    if given is not stored or stored.startswith(_GZIP_START):
        return len(given)
    return min(_RATIO_MAX * len(stored), BODY_UNPACKED_FOR_CLIENT_BYTES_MAX)


def plain(body: bytes, sys_flag: int, bytes_max: int = BODY_UNPACKED_BYTES_MAX) -> bytes:
    """Return the decompressed body, or the stored body if it cannot be decompressed.

    `bytes_max` is the maximum size of the decompressed body. Raise `LibraryMissing` if the required
    compression library is not installed.
    """
    if not sys_flag & COMPRESSED:
        return body
    check_library(sys_flag)
    try:
        unpacked = _UNPACK.get(sys_flag & COMPRESSION_TYPE, _unpack_zlib)(body, bytes_max)
    except MemoryError:
        raise
    except Exception:  # Each library raises its own exceptions.
        return body
    return body if len(unpacked) > bytes_max else unpacked


def check_library(sys_flag: int) -> None:
    """Raise `LibraryMissing` if the library for a compression type is not installed."""
    library = _LIBRARIES.get(sys_flag & COMPRESSION_TYPE) if sys_flag & COMPRESSED else None
    if library is not None:
        _load(library)


def _load(library: str) -> ModuleType:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise LibraryMissing(
            f"A body is compressed in a way that needs the library {library.split('.')[0]}. "
            "Install it with: pip install 'tidewheel[import]'"
        ) from error


def _unpack_zlib(body: bytes, bytes_max: int) -> bytes:
    """Decompress zlib or gzip data.

    Adding 32 to the window bits enables automatic detection of the format.
    """
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    return _whole(unpacker, unpacker.decompress(body, bytes_max + 1))


def _unpack_lz4(body: bytes, bytes_max: int) -> bytes:
    unpacker = _load("lz4.frame").LZ4FrameDecompressor()
    return _whole(unpacker, unpacker.decompress(body, max_length=bytes_max + 1))


def _whole(unpacker: Any, unpacked: bytes) -> bytes:
    """Return the decompressed body, or raise `ValueError` if the body is truncated or has trailing bytes."""
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("the body does not end where its compression does")
    return unpacked


def _unpack_zstd(body: bytes, bytes_max: int) -> bytes:
    reader = _load("zstandard").ZstdDecompressor().stream_reader(io.BytesIO(body))
    unpacked: bytes = reader.read(bytes_max + 1)
    return unpacked


_UNPACK: Final[dict[int, Callable[[bytes, int], bytes]]] = {_LZ4: _unpack_lz4, _ZSTD: _unpack_zstd}
