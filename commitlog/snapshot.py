"""What every state machine needs from before one log offset, so that a start need not read the log from its
beginning, and retention may delete what lies before.

A snapshot at offset S is the state after all records below S, taken when the log was durable up to S. A file
`snapshots/<20 digits of S>`:

    offset width  field
    0      8      "TWSNAP01"
    8      8      S
    16     4      CRC-32 of the body
    20     ...    body: zlib-compressed JSON, one member per part of the broker

It is written beside, synced, then renamed, so it is whole or not there; the two newest are kept, and one
whose CRC is wrong gives way to the other. Cost: size of the state, not of the log. Weak spot: it is written
whole each time, and read into memory whole at a start.

A large table is frozen as dictionaries that never change again (`Rows`, `commitlog.table`), or, where its
values change in place, as rows that the event loop takes afterwards, in slices
(`commitlog.deferred_rows`). They become JSON while they are written, in a worker thread, so many rows at a
time that other threads get their turns. At the freeze itself the loop copies dictionaries of references and
makes no row.
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

from commitlog.deferred_rows import DeferredRows
from commitlog.disk import Disk
from commitlog.errors import StoreDamaged
from commitlog.layout import OFFSET_DIGITS, SNAPSHOTS

_MAGIC: Final = b"TWSNAP01"
_HEAD: Final = struct.Struct(">8sQI")
_UNFINISHED: Final = f"{SNAPSHOTS}/unfinished"
_KEPT_COUNT: Final = 2
_ROWS_AT_ONCE: Final = 2_000

Frozen = dict[str, Any]
"""The state of each part by its name, as JSON can hold it; large tables in it as `Rows` or `DeferredRows`.

A part is such a table, or a dictionary of which some values are.
"""


class Rows:
    """A large table at one moment: what `row` makes of each key and value of parts that never change.

    The values do not change either. Two are equal that have equal rows.
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
    """A large dictionary at one moment, whose values `row` makes of values that never change."""

    def __init__(self, values: dict[str, Any], row: Callable[[Any], Any]) -> None:
        self._values, self._row = values, row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowsByName) and dict(self.items()) == dict(other.items())

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return each name with its row."""
        return ((name, self._row(value)) for name, value in self._values.items())


@dataclass(slots=True, frozen=True)
class Snapshot:
    """The frozen state after all records below `offset`."""

    offset: int
    parts: Frozen

    def deferred(self) -> list[DeferredRows[Any, Any]]:
        """Return the tables whose rows are still to be taken."""
        within = [one.values() if isinstance(one, dict) else [one] for one in self.parts.values()]
        tables = [one for values in within for one in values if isinstance(one, DeferredRows)]
        return [one for one in tables if one.is_open]

    def encode(self) -> bytes:
        """Return the bytes of the snapshot's file."""
        packing = zlib.compressobj(1)
        body = b"".join([*map(packing.compress, _json(self.parts)), packing.flush()])
        return _HEAD.pack(_MAGIC, self.offset, zlib.crc32(body)) + body

    def write(self, disk: Disk) -> None:
        """Make the snapshot durable, and drop all older than the one before it; raise OSError."""
        disk.delete(_UNFINISHED)
        disk.write(_UNFINISHED, 0, self.encode())
        disk.sync(_UNFINISHED)
        disk.rename(_UNFINISHED, path_of(self.offset))
        with suppress(OSError):  # the snapshot is there; the next one deletes them
            for offset in offsets(disk)[:-_KEPT_COUNT]:
                disk.delete(path_of(offset))


def offsets(disk: Disk) -> list[int]:
    """Return the log offsets of all snapshots, ascending."""
    return [int(name) for name in disk.list(SNAPSHOTS) if name.isdigit()]


def newest(disk: Disk) -> Snapshot | None:
    """Return the newest sound snapshot; None if there is none."""
    for offset in reversed(offsets(disk)):
        found = read(disk, offset)
        if found is not None:
            return found
    return None


def others(disk: Disk, start: Snapshot) -> list[Snapshot]:
    """Return the sound snapshots beside the one that a start begins with; what they name is kept too."""
    found = (read(disk, offset) for offset in offsets(disk) if offset != start.offset)
    return [one for one in found if one is not None]


def unsound(disk: Disk) -> list[str]:
    """Return, in words, which snapshots are not what was written."""
    bad = [offset for offset in offsets(disk) if not is_sound(disk, offset)]
    return [
        f"{path_of(offset)}: it does not match its CRC; another one, or the log, took its place"
        for offset in bad
    ]


def read(disk: Disk, offset: int) -> Snapshot | None:
    """Return the snapshot at `offset`; None if its file is not what was written."""
    return decode(_stored(disk, offset), offset)


def decode(stored: bytes, offset: int) -> Snapshot | None:
    """Return the snapshot at `offset` whose file has these bytes; None if they are not what was written."""
    body = _body(stored, offset)
    return None if body is None else Snapshot(offset, json.loads(zlib.decompress(body)))


def is_sound(disk: Disk, offset: int) -> bool:
    """Return whether there is a snapshot at `offset` whose file is what was written."""
    return _body(_stored(disk, offset), offset) is not None


def _stored(disk: Disk, offset: int) -> bytes:
    path = path_of(offset)
    return disk.read(path, 0, max(0, disk.size(path)))


def _body(stored: bytes, offset: int) -> bytes | None:
    """Return the packed state in the bytes of a snapshot's file; None if they are not what was written."""
    body = stored[_HEAD.size :]
    return body if stored[: _HEAD.size] == _HEAD.pack(_MAGIC, offset, zlib.crc32(body)) else None


def check_reach(start: Snapshot | None, log_first_offset: int) -> None:
    """Raise `StoreDamaged` if neither a snapshot nor the log tells what was before `log_first_offset`."""
    if start is None and log_first_offset > 0:
        raise StoreDamaged(
            f"The log begins at {log_first_offset}, and no sound snapshot tells what was before. "
            f"Restore {SNAPSHOTS}/ from a backup; nothing was changed."
        )


def path_of(offset: int) -> str:
    """Return the path of the snapshot at `offset`."""
    return f"{SNAPSHOTS}/{offset:0{OFFSET_DIGITS}d}"


def _json(value: Any) -> Iterator[bytes]:
    """Yield JSON in pieces, of which none takes long to make: other threads get their turns in between."""
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
    """Yield parts between brackets, commas between them; also where there are none."""
    separator = opening
    for part in parts:
        yield separator
        yield from part
        separator = b","
    yield closing if separator == b"," else opening + closing


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
