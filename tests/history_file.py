"""Histories and raw logs as `tests/checker` reads them, written by those who watch clients and engines.

A history is kept as lines while it happens; their order is that in which things happened, as the one observer
saw it: a call is noted before it is made, and its end after it was told.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

LOG_MAGIC: Final = b"TWRAWLOG"
_FRAME: Final = struct.Struct(">QQI")
_HASH_DIGITS: Final = 16
CALLS_MAX: Final = 1_000_000_000
"""How many calls one writer of a file notes."""


class HistoryFile:
    """The lines of a history.

    With `path` each is written there at once, and none is kept: several processes may write to one file. A
    line is one write to its end, so their order is that in which things happened. Each has its own `number`.
    """

    def __init__(self, path: Path | None = None, number: int = 0) -> None:
        self.lines: list[dict[str, Any]] = []
        self._count = number * CALLS_MAX
        self._ended: set[int] = set()
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def invoke(self, process: str, time_ms: int, verb: str, **fields: Any) -> int:
        """Note that a call begins; return its number."""
        self._count += 1
        head = {"type": "invoke", "call": self._count, "process": process, "time_ms": time_ms, "verb": verb}
        self._add(head | fields)
        return self._count

    def end(self, call: int, outcome: str, time_ms: int, **told: Any) -> None:
        """Note what came of a call: ok, fail or unknown. What comes later of the same call counts no more."""
        if call not in self._ended:
            self._ended.add(call)
            self._add({"type": outcome, "call": call, "time_ms": time_ms, **told})

    def saw(self, call: int, time_ms: int, message_id: str, queue: int, offset: int, attempt: int) -> None:
        """Note a message that a receive has given out."""
        seen = {"id": message_id, "queue": queue, "offset": offset, "attempt": attempt}
        self._add({"type": "seen", "call": call, "time_ms": time_ms, **seen})

    def note(self, kind: str, **fields: Any) -> None:
        """Note a line that is no call's."""
        self._add({"type": kind, **fields})

    def write(self, path: Path) -> None:
        """Write the file."""
        path.write_text("".join(f"{json.dumps(line)}\n" for line in self.lines))

    def _add(self, line: dict[str, Any]) -> None:
        if self._file is None:
            self.lines.append(line)
        else:
            timed = line | {"s": time.monotonic()}
            os.write(self._file, f"{json.dumps(timed)}\n".encode())


def content_hash(body: bytes) -> str:
    """Return the hash by which a history names a content."""
    return sha256(body).hexdigest()[:_HASH_DIGITS]


def write_log(path: Path, first_offset: int, records: Iterable[tuple[int, int, bytes]]) -> None:
    """Write the raw log of an engine: its (offset, time in ms or 0, bytes)."""
    with path.open("wb") as file:
        file.write(LOG_MAGIC + first_offset.to_bytes(8, "big"))
        for offset, taken_ms, stored in records:
            file.write(_FRAME.pack(offset, taken_ms, len(stored)) + stored)
