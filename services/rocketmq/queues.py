"""The queue files of an exported store, in the form that a genuine broker takes over.

Its files all have 6,000,000 bytes, zeros behind the last entry, and every entry before it must name a record
or the broker stops reading there. So a queue whose first messages are gone begins with RocketMQ's own filler
(0, 0x7FFFFFFF, 0), and a gap left by damage with entries that name the filler record in the damage's place.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

from commitlog.layout import CONSUMEQUEUE, OFFSET_DIGITS
from commitlog.limits import QUEUE_FILE_ENTRIES
from consumequeue import entry
from consumequeue.entry import ENTRY_BYTES, Entry

_FILE_BYTES: Final = QUEUE_FILE_ENTRIES * ENTRY_BYTES
BEFORE_FIRST: Final = Entry(0, 0x7FFFFFFF, 0)
_GATHERED_BYTES: Final = 64 * 1024 * 1024


class QueueFiles:
    """Writes all queues of the store in folder `root`; entries of a queue come in log order."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._gathered: defaultdict[tuple[str, int], bytearray] = defaultdict(bytearray)
        self._gathered_bytes = 0
        self._gathered_from: dict[tuple[str, int], int] = {}
        self._ends: dict[tuple[str, int], int] = {}

    def put(self, topic: str, queue_id: int, queue_offset: int, new: Entry, gap: Entry) -> None:
        """Add an entry at its queue offset; missing offsets before it get `gap`, lower ones begin anew."""
        key = (topic, queue_id)
        end = self._ends.get(key)
        if end is None:
            self._begin(key, queue_offset)
        elif queue_offset < end:
            self._write(key)
            self._gathered_from[key] = queue_offset
        elif queue_offset > end:
            self._gather(key, entry.encode(gap) * (queue_offset - end))
        self._gather(key, entry.encode(new))
        self._ends[key] = queue_offset + 1

    def finish(self) -> None:
        """Write what is gathered and give every file its length."""
        self._write_all()
        for (topic, queue_id), end in self._ends.items():
            first = max(0, end * ENTRY_BYTES - 1) // _FILE_BYTES * _FILE_BYTES
            for path in self._folder(topic, queue_id).iterdir():
                if int(path.name) > first:
                    path.unlink()
                    continue
                with path.open("r+b") as file:
                    if int(path.name) == first:
                        file.truncate(end * ENTRY_BYTES - first)
                    file.truncate(_FILE_BYTES)

    def _begin(self, key: tuple[str, int], queue_offset: int) -> None:
        """Fill the first file of a queue from its own beginning."""
        first = queue_offset // QUEUE_FILE_ENTRIES * QUEUE_FILE_ENTRIES
        self._gathered_from[key] = first
        self._gather(key, entry.encode(BEFORE_FIRST) * (queue_offset - first))

    def _gather(self, key: tuple[str, int], entries: bytes) -> None:
        self._gathered[key] += entries
        self._gathered_bytes += len(entries)
        if self._gathered_bytes >= _GATHERED_BYTES:
            self._write_all()

    def _write_all(self) -> None:
        for key in list(self._gathered):
            self._write(key)
        self._gathered_bytes = 0

    def _write(self, key: tuple[str, int]) -> None:
        data = bytes(self._gathered.pop(key, b""))
        position = self._gathered_from[key] * ENTRY_BYTES
        self._gathered_from[key] += len(data) // ENTRY_BYTES
        folder = self._folder(*key)
        folder.mkdir(parents=True, exist_ok=True)
        while data:
            inside = position % _FILE_BYTES
            part, data = data[: _FILE_BYTES - inside], data[_FILE_BYTES - inside :]
            with (folder / f"{position - inside:0{OFFSET_DIGITS}d}").open("ab") as file:
                pass
            with (folder / f"{position - inside:0{OFFSET_DIGITS}d}").open("r+b") as file:
                file.seek(inside)
                file.write(part)
            position += len(part)

    def _folder(self, topic: str, queue_id: int) -> Path:
        return self._root / CONSUMEQUEUE / topic / str(queue_id)
