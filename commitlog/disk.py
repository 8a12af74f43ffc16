"""What the store needs of a disk, as a protocol: `RealDisk` for production, `MemoryDisk` for simulation.

Paths are relative to the store, with `/`. A write, and the name of a file that it makes, is durable only
after `sync` of the file; `allocate`, `truncate`, `rename` and `delete` are durable when they return, and may
be done or not, or in part, when the process ends or the power goes meanwhile. Reads see all writes, durable
or not.
Only `write`, `allocate` and `truncate` make a file. Every method may raise OSError, with a part of it done.

After `SyncFailed` nothing that was written to the file since its last sync may be trusted: it can be read as
before, the next sync succeeds, and it is not on disk (Linux marks pages clean whose writing has failed). Only
what is written once more is durable after another sync. It is raised too where the sync of a folder failed:
what was made, renamed or deleted there is so, and may not be so when the power has gone, until a sync of that
folder succeeds: names are in the file system's journal, which a failure ends. It names what could not be
synced: the file, or that folder. A disk may sync a file by itself, to close it for another; where that fails,
the next `sync` of the file does. Contents are written anew, from a source that is no such page or is checked
by a CRC; they are not synced again and believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from commitlog.view import View

FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750
"""Of what is made in a store: its owner writes, the owner's group reads, others do not; umask may take
more."""


class SyncFailed(OSError):
    """A sync has failed: what was written since the last one may be lost, whatever reads back."""


class Disk(Protocol):
    """The file operations under a store."""

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""

    def size(self, path: str) -> int:
        """Return the file's length in bytes; -1 if there is no such file."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`; fewer at the end of the file, none of no file."""

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        """Return the bytes of many (position, length) back to back; fewer where a file ends before."""

    def view(self, path: str) -> View:
        """Return the whole file, to read in place as long as it is neither truncated nor deleted."""

    def write(self, path: str, position: int, data: bytes) -> None:
        """Write all of `data` at `position`, creating the file and its folders if needed."""

    def write_synced(self, path: str, position: int, data: bytes) -> None:
        """Write all of `data` and make it durable, with the file's name; raise `SyncFailed`."""

    def sync(self, path: str) -> None:
        """Make the file's written bytes and its name durable; raise `SyncFailed`."""

    def sync_many(self, paths: Sequence[str]) -> dict[str, OSError]:
        """Sync files, some at once; return by path what `sync` raised, when none is being synced any more."""

    def allocate(self, path: str, length: int) -> None:
        """Make the file `length` bytes long, new bytes zero, with its disk space reserved."""

    def truncate(self, path: str, length: int) -> None:
        """Cut the file to `length` bytes."""

    def sync_folder(self, folder: str) -> None:
        """Make durable which names a folder has; do nothing if it does not exist."""

    def will_need(self, path: str) -> None:
        """Tell the system that the file will soon be read all over, so that it may be read ahead."""

    def usage(self) -> tuple[int, int]:
        """Return (free, total) bytes of the file system, as far as this user may fill it."""

    def rename(self, path: str, new_path: str) -> None:
        """Give a synced file its name, durably and at once; a file that had the name is gone."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder and all in it; do nothing if it does not exist."""
