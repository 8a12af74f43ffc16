"""Compressed bodies, as clients can read them.

RocketMQ 5's protocol knows plain and gzip; its stores hold more. Bit 0x1 of sys_flag says that a body is
compressed, and 0x700 how:

    0x000, 0x300   zlib, from clients of RocketMQ 4; or gzip, from clients of RocketMQ 5: the bytes tell
    0x100          LZ4 frame
    0x200          Zstandard

Gzip goes to clients as it is. The others are unpacked when a message is given out, never on disk. Our own
log holds gzip, and zlib that the C++ client declares as gzip, which clients in other languages do not read.
The libraries for the other two come with `tidewheel[import]`. A body that does not unpack to at most
`limits.BODY_UNPACKED_FOR_CLIENT_BYTES_MAX` (tools: BODY_UNPACKED_BYTES_MAX) is given out as stored: its CRC
holds, so that is what was sent. Clients compare a body with their limit, 4 MiB, before they compress it; a
larger one is made to hold the event loop (150 ms for 60 MiB), or imported from a broker with other settings.
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
"""How many bytes zlib makes of one at most."""
_LZ4: Final = 0x100
_ZSTD: Final = 0x200
_LIBRARIES: Final = {_LZ4: "lz4.frame", _ZSTD: "zstandard"}


def for_client(body: bytes, sys_flag: int) -> tuple[bytes, bool]:
    """Return the body as a client can read it, and whether it is gzip; raise `LibraryMissing`."""
    if not sys_flag & COMPRESSED:
        return body, False
    if body.startswith(_GZIP_START):
        return body, True
    unpacked = plain(body, sys_flag, BODY_UNPACKED_FOR_CLIENT_BYTES_MAX)
    said_gzip = not sys_flag & COMPRESSION_TYPE and unpacked is body
    return unpacked, said_gzip


def unpacked_bytes(stored: bytes, given: bytes) -> int:
    """Return how many bytes it took to find out how a compressed body is given out, at most.

    A body that is given out as stored may have been unpacked up to the bound.
    """
    if given is not stored or stored.startswith(_GZIP_START):
        return len(given)
    return min(_RATIO_MAX * len(stored), BODY_UNPACKED_FOR_CLIENT_BYTES_MAX)


def plain(body: bytes, sys_flag: int, bytes_max: int = BODY_UNPACKED_BYTES_MAX) -> bytes:
    """Return the body without its compression, or as stored if it cannot be; raise `LibraryMissing`.

    `bytes_max` is how many bytes it may have then.
    """
    if not sys_flag & COMPRESSED:
        return body
    check_library(sys_flag)
    try:
        unpacked = _UNPACK.get(sys_flag & COMPRESSION_TYPE, _unpack_zlib)(body, bytes_max)
    except MemoryError:
        raise
    except Exception:  # each library has errors of its own
        return body
    return body if len(unpacked) > bytes_max else unpacked


def check_library(sys_flag: int) -> None:
    """Raise `LibraryMissing` if bodies compressed in this way cannot be unpacked here."""
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
    """Unpack zlib or gzip: with 32 added to the window bits, zlib tells them apart by the head."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    return _whole(unpacker, unpacker.decompress(body, bytes_max + 1))


def _unpack_lz4(body: bytes, bytes_max: int) -> bytes:
    unpacker = _load("lz4.frame").LZ4FrameDecompressor()
    return _whole(unpacker, unpacker.decompress(body, max_length=bytes_max + 1))


def _whole(unpacker: Any, unpacked: bytes) -> bytes:
    """Return what was unpacked of a whole body; raise `ValueError` for one that is cut off, or goes on."""
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("the body does not end where its compression does")
    return unpacked


def _unpack_zstd(body: bytes, bytes_max: int) -> bytes:
    reader = _load("zstandard").ZstdDecompressor().stream_reader(io.BytesIO(body))
    unpacked: bytes = reader.read(bytes_max + 1)
    return unpacked


_UNPACK: Final[dict[int, Callable[[bytes, int], bytes]]] = {_LZ4: _unpack_lz4, _ZSTD: _unpack_zstd}
