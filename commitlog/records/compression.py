"""Converts compressed message bodies for clients.

The RocketMQ 5 protocol supports plain and gzip bodies. RocketMQ stores may also contain other formats. Bit
0x1 of sys_flag marks a compressed body, and bits 0x700 hold the compression type:

    0x000, 0x300   zlib from clients of RocketMQ 4, or gzip from clients of RocketMQ 5 (determined by the
                   first bytes)
    0x100          LZ4 frame
    0x200          Zstandard

Gzip bodies are delivered unchanged. Other bodies stay compressed on disk and are decompressed on delivery.
Most compressed bodies in a Tidewheel log are gzip. The C++ client, however, sends zlib bodies declared as
gzip, which clients in other languages cannot read. `tidewheel[import]` installs the LZ4 and Zstandard
libraries. A body is delivered as stored if it cannot be decompressed or if its decompressed size would exceed
`limits.BODY_UNPACKED_FOR_CLIENT_BYTES_MAX`. For tools, the limit is `BODY_UNPACKED_BYTES_MAX`. The body CRC
ensures that the stored body matches the one that was sent. Clients check the 4 MiB limit before compressing a
body. A larger body comes from a broker with other settings or is meant to block the event loop (150 ms for 60
MiB).
"""

from __future__ import annotations

import importlib
import io
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from commitlog.limits import BODY_UNPACKED_BYTES_MAX, BODY_UNPACKED_FOR_CLIENT_BYTES_MAX
from commitlog.records.record import COMPRESSED, COMPRESSION_TYPE
from tidewheel.errors import LibraryMissing

_GZIP_START: Final = b"\x1f\x8b"
_RATIO_MAX: Final = 1_032
"""Maximum compression ratio of zlib."""
_LZ4: Final = 0x100
_ZSTD: Final = 0x200
_LIBRARIES: Final = {_LZ4: "lz4.frame", _ZSTD: "zstandard"}


def to_client_format(body: bytes, sys_flag: int) -> tuple[bytes, bool]:
    """Return a body readable by clients, and whether it uses gzip.

    Raise `LibraryMissing` if the compression library is not installed.
    """
    if not sys_flag & COMPRESSED:
        return body, False
    if body.startswith(_GZIP_START):
        return body, True
    unpacked = plain(body, sys_flag, BODY_UNPACKED_FOR_CLIENT_BYTES_MAX)
    said_gzip = not sys_flag & COMPRESSION_TYPE and unpacked is body
    return unpacked, said_gzip


def unpacked_bytes(stored: bytes, given: bytes) -> int:
    """Return an upper bound on the bytes decompressed to deliver a body.

    Even a body delivered as stored may have been decompressed up to the limit.
    """
    if given is not stored or stored.startswith(_GZIP_START):
        return len(given)
    return min(_RATIO_MAX * len(stored), BODY_UNPACKED_FOR_CLIENT_BYTES_MAX)


def plain(body: bytes, sys_flag: int, bytes_max: int = BODY_UNPACKED_BYTES_MAX) -> bytes:
    """Return the decompressed body, or the stored body if decompression fails.

    `bytes_max` is the maximum decompressed size. Raise `LibraryMissing` if the compression library is not
    installed.
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

    Adding 32 to the window bits enables format detection.
    """
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    return _whole(unpacker, unpacker.decompress(body, bytes_max + 1))


def _unpack_lz4(body: bytes, bytes_max: int) -> bytes:
    unpacker = _load("lz4.frame").LZ4FrameDecompressor()
    return _whole(unpacker, unpacker.decompress(body, max_length=bytes_max + 1))


def _whole(unpacker: Any, unpacked: bytes) -> bytes:
    """Return the decompressed body. Raise `ValueError` if the data is truncated or has trailing bytes."""
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("the body does not end where its compression does")
    return unpacked


def _unpack_zstd(body: bytes, bytes_max: int) -> bytes:
    reader = _load("zstandard").ZstdDecompressor().stream_reader(io.BytesIO(body))
    unpacked: bytes = reader.read(bytes_max + 1)
    return unpacked


_UNPACK: Final[dict[int, Callable[[bytes, int], bytes]]] = {_LZ4: _unpack_lz4, _ZSTD: _unpack_zstd}
