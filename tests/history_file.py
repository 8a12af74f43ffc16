"""Histories and raw logs as `tests/checker` reads them, written by those who watch clients and engines.

A history is kept as lines while it happens; their order is that in which things happened, as the one observer
saw it: a call is noted before it is made, and its end after it was told.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

LOG_MAGIC: Final = b"TWRAWLOG"
_FRAME: Final = struct.Struct(">QQI")
_HASH_DIGITS: Final = 16


class HistoryFile:
    """The lines of a history."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._count = 0
        self._ended: set[int] = set()

    def invoke(self, process: str, time_ms: int, verb: str, **fields: Any) -> int:
        """Note that a call begins; return its number."""
        self._count += 1
        head = {"type": "invoke", "call": self._count, "process": process, "time_ms": time_ms, "verb": verb}
        self.lines.append(head | fields)
        return self._count

    def end(self, call: int, outcome: str, time_ms: int, **told: Any) -> None:
        """Note what came of a call: ok, fail or unknown. What comes later of the same call counts no more."""
        if call not in self._ended:
            self._ended.add(call)
            self.lines.append({"type": outcome, "call": call, "time_ms": time_ms, **told})

    def saw(self, call: int, time_ms: int, message_id: str, queue: int, offset: int, attempt: int) -> None:
        """Note a message that a receive has given out."""
        seen = {"id": message_id, "queue": queue, "offset": offset, "attempt": attempt}
        self.lines.append({"type": "seen", "call": call, "time_ms": time_ms, **seen})

    def note(self, kind: str, **fields: Any) -> None:
        """Note a line that is no call's."""
        self.lines.append({"type": kind, **fields})

    def write(self, path: Path) -> None:
        """Write the file."""
        path.write_text("".join(f"{json.dumps(line)}\n" for line in self.lines))


def content_hash(body: bytes) -> str:
    """Return the hash by which a history names a content."""
    return sha256(body).hexdigest()[:_HASH_DIGITS]


def write_log(path: Path, first_offset: int, records: Iterable[tuple[int, int, bytes]]) -> None:
    """Write the raw log of an engine: its (offset, time in ms or 0, bytes)."""
    with path.open("wb") as file:
        file.write(LOG_MAGIC + first_offset.to_bytes(8, "big"))
        for offset, taken_ms, stored in records:
            file.write(_FRAME.pack(offset, taken_ms, len(stored)) + stored)
