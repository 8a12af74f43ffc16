"""Reads the newest intact snapshot of a store. The broker may be running."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Final

from commitlog import layout
from commitlog.log.published_log import StoreLog

_CRC_AT: Final = 16
_HEAD_BYTES: Final = 20


def newest_parts(store: Path, log: StoreLog) -> tuple[int, dict[str, Any]]:
    """Return (log offset, parts) of the newest intact snapshot within the log, or (0, {}) without one."""
    folder = store / layout.SNAPSHOTS
    names = sorted((path.name for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else ())
    for name in reversed(names):
        try:
            stored = (folder / name).read_bytes()
        except OSError:  # The broker has deleted it, or it is unreadable.
            continue
        body = stored[_HEAD_BYTES:]
        is_sound = int.from_bytes(stored[_CRC_AT:_HEAD_BYTES], "big") == zlib.crc32(body)
        if is_sound and int(name) <= log.end_offset:
            return int(name), json.loads(zlib.decompress(body))
    return 0, {}
