"""Snapshots: the state of all parts of the broker at a log offset.

Recovery can skip the log before a snapshot, and retention can delete that part.

A snapshot at offset S is the state after applying all records below S. It is taken when the log is durable up
to S, and is stored in the file `snapshots/<20 digits of S>`:

    offset width  field
    0      8      "TWSNAP01"
    8      8      S
    16     4      CRC-32 of the body
    20     ...    body: zlib-compressed JSON, one member per part of the broker

A snapshot is written to a new file, synced, and renamed, so the file is either complete or absent. The two
newest snapshots are kept. If the newest is damaged, the other is used. Cost: the write time depends on the
size of the state, not on the size of the log. Limitation: a snapshot is always written in full, and at
startup it is read into memory in full.

A large table is captured as dictionaries that never change again (`Rows`, `commitlog.snapshots.table`). A
table whose values change in place is captured as rows that the event loop copies in batches
(`commitlog.snapshots.deferred_rows`). To capture the state, the event loop copies dictionaries of references,
but no rows. A worker thread converts the rows to JSON in small groups as it writes them, so that other
threads can run.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from commitlog.disk.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import OFFSET_DIGITS, SNAPSHOTS
from commitlog.snapshots.deferred_rows import DeferredRows

_MAGIC: Final = b"TWSNAP01"
_HEAD: Final = struct.Struct(">8sQI")
_UNFINISHED: Final = f"{SNAPSHOTS}/unfinished"
_KEPT_COUNT: Final = 2
_ROWS_AT_ONCE: Final = 2_000

Frozen = dict[str, Any]
"""State of each part of the broker by name, as JSON types. Large tables are `Rows` or `DeferredRows`.

The state of a part is a large table, or a dictionary with some large tables as values.
"""


class Rows:
    """The rows of a large table at a point in time. `row` builds a row from a key and a value.

    Captured values never change. Two `Rows` are equal if their rows are equal.
    """

    def __init__(self, parts: Iterable[dict[Any, Any]], row: Callable[[Any, Any], Any]) -> None:
        self._parts, self._row = tuple(parts), row
        self._counts = [len(part) for part in self._parts]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and [*self] == [*other]

    def __iter__(self) -> Iterator[Any]:
        assert self._counts == [len(part) for part in self._parts], "a part has changed that was frozen"
        return (self._row(*item) for part in self._parts for item in part.items())


class RowsByName:
    """The rows of a large dictionary at a point in time. `row` builds a row from an immutable value."""

    def __init__(self, values: dict[str, Any], row: Callable[[Any], Any]) -> None:
        self._values, self._row = values, row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowsByName) and dict(self.items()) == dict(other.items())

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return all names with their rows."""
        return ((name, self._row(value)) for name, value in self._values.items())


@dataclass(slots=True, frozen=True)
class Snapshot:
    """The state of the broker at log offset `offset`."""

    offset: int
    parts: Frozen

    def deferred(self) -> list[DeferredRows[Any, Any]]:
        """Return the tables with rows that have not been copied yet."""
        within = [one.values() if isinstance(one, dict) else [one] for one in self.parts.values()]
        tables = [one for values in within for one in values if isinstance(one, DeferredRows)]
        return [one for one in tables if one.is_open]

    def encode(self) -> bytes:
        """Return the content of the snapshot file."""
        packing = zlib.compressobj(1)
        body = b"".join([*map(packing.compress, _json(self.parts)), packing.flush()])
        return _HEAD.pack(_MAGIC, self.offset, zlib.crc32(body)) + body

    def write(self, disk: Disk) -> None:
        """Write the snapshot durably, and delete all but the two newest.

        Raise OSError on failure.
        """
        disk.delete(_UNFINISHED)
        disk.write(_UNFINISHED, 0, self.encode())
        disk.sync(_UNFINISHED)
        disk.rename(_UNFINISHED, path_of(self.offset))
        # The new snapshot is durable, and the old files will be deleted when the next snapshot is written.
        with suppress(OSError):
            for offset in offsets(disk)[:-_KEPT_COUNT]:
                disk.delete(path_of(offset))


def offsets(disk: Disk) -> list[int]:
    """Return the log offsets of all snapshots in ascending order."""
    return [int(name) for name in disk.list(SNAPSHOTS) if name.isdigit()]


def newest(disk: Disk) -> Snapshot | None:
    """Return the newest intact snapshot, or None if there is none."""
    for offset in reversed(offsets(disk)):
        found = read(disk, offset)
        if found is not None:
            return found
    return None


def others(disk: Disk, start: Snapshot) -> list[Snapshot]:
    """Return all intact snapshots except `start`. The files listed in them must also be kept."""
    found = (read(disk, offset) for offset in offsets(disk) if offset != start.offset)
    return [one for one in found if one is not None]


def unsound(disk: Disk) -> list[str]:
    """Return a message for each damaged snapshot."""
    bad = [offset for offset in offsets(disk) if not is_sound(disk, offset)]
    return [
        f"{path_of(offset)}: it does not match its CRC; another one, or the log, took its place"
        for offset in bad
    ]


def read(disk: Disk, offset: int) -> Snapshot | None:
    """Return the snapshot at `offset`, or None if its file is damaged."""
    return decode(_stored(disk, offset), offset)


def decode(stored: bytes, offset: int) -> Snapshot | None:
    """Return the snapshot decoded from the content of a file, or None if it is damaged."""
    body = _body(stored, offset)
    return None if body is None else Snapshot(offset, json.loads(zlib.decompress(body)))


def is_sound(disk: Disk, offset: int) -> bool:
    """Return whether there is an intact snapshot at `offset`."""
    return _body(_stored(disk, offset), offset) is not None


def _stored(disk: Disk, offset: int) -> bytes:
    path = path_of(offset)
    return disk.read(path, 0, max(0, disk.size(path)))


def _body(stored: bytes, offset: int) -> bytes | None:
    """Return the compressed state in the content of a snapshot file, or None if it is damaged."""
    body = stored[_HEAD.size :]
    return body if stored[: _HEAD.size] == _HEAD.pack(_MAGIC, offset, zlib.crc32(body)) else None


def check_reach(start: Snapshot | None, log_first_offset: int) -> None:
    """Raise `StoreDamaged` if the log does not begin at offset 0 and there is no snapshot."""
    if start is None and log_first_offset > 0:
        raise StoreDamaged(
            f"The log begins at {log_first_offset}, and no sound snapshot tells what was before. "
            f"Restore {SNAPSHOTS}/ from a backup; nothing was changed."
        )


def path_of(offset: int) -> str:
    """Return the path of the snapshot at `offset`."""
    return f"{SNAPSHOTS}/{offset:0{OFFSET_DIGITS}d}"


def _json(value: Any) -> Iterator[bytes]:
    """Yield JSON in small pieces so that other threads get a chance to run."""
    if isinstance(value, dict):
        yield from _joined(b"{", (_member(str(name), one) for name, one in value.items()), b"}")
    elif isinstance(value, RowsByName):
        members = iter(value.items())
        named = iter(lambda: dict(islice(members, _ROWS_AT_ONCE)), {})
        yield from _joined(b"{", ([_dumped(some)[1:-1]] for some in named), b"}")
    elif isinstance(value, (list, Rows, DeferredRows)):
        rows = iter(value)
        chunks = iter(lambda: [*islice(rows, _ROWS_AT_ONCE)], [])
        yield from _joined(b"[", ([_dumped(chunk)[1:-1]] for chunk in chunks), b"]")
    else:
        yield _dumped(value)


def _member(name: str, value: Any) -> Iterator[bytes]:
    yield _dumped(name) + b":"
    yield from _json(value)


def _joined(opening: bytes, parts: Iterable[Iterable[bytes]], closing: bytes) -> Iterator[bytes]:
    """Yield an opening bracket, the parts separated by commas, and a closing bracket."""
    separator = opening
    for part in parts:
        yield separator
        yield from part
        separator = b","
    yield closing if separator == b"," else opening + closing


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
