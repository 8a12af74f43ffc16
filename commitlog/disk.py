"""The operations that a store needs of a disk. `RealDisk` is for production, `MemoryDisk` for simulation.

Paths are relative to the store, with `/`. A write, and the name of a file that it creates, is durable only
after `sync` of the file. `allocate`, `truncate`, `rename` and `delete` are durable when they return. If the
process ends or the power fails during such an operation, the operation may be complete, incomplete or not
done. Reads return all writes, durable or not. Only `write`, `allocate` and `truncate` create a file. Every
method may raise OSError after a part of its work.

After `SyncFailed`, bytes that were written to the file since its last sync must not be trusted. Such bytes
can be read as before, and the next sync succeeds, but the bytes are not on disk (Linux marks pages as clean
when their write has failed). Only bytes that are written again are durable after another sync. `SyncFailed`
is also raised if the sync of a folder failed. Names that were created, renamed or deleted in the folder may
then be lost when the power fails, until a sync of the folder succeeds, because names are in the journal of
the file system, which stops after a failure. `SyncFailed` names the file or the folder that could not be
synced. A disk may sync a file by itself, in order to close it for another file. If this sync fails, the next
`sync` of the file fails. After a failure, contents are written again from another source than the page, or
from bytes that a CRC verifies; a repeated sync of the same pages is not trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from commitlog.view import View

FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750
"""Modes of files and folders in a store, for writes by the owner and reads by the group, minus the umask.
"""


class SyncFailed(OSError):
    """A sync has failed: what was written since the last one may be lost, whatever reads back."""


class Disk(Protocol):
    """The file operations under a store."""

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder, or an empty list if the folder does not exist."""

    def size(self, path: str) -> int:
        """Return the length of a file in bytes, or -1 if the file does not exist."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return `length` bytes from `position`, fewer at the end of the file, or none if it is missing."""

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        """Return the joined bytes of many spans (position, length), or fewer bytes if the file is shorter."""

    def view(self, path: str) -> View:
        """Return a view of the whole file, which is valid until the file is truncated or deleted."""

    def write(self, path: str, position: int, data: bytes) -> None:
        """Write all of `data` at `position`, creating the file and its folders if needed."""

    def write_synced(self, path: str, position: int, data: bytes) -> None:
        """Write all of `data`, and make `data` and the file's name durable. Raise `SyncFailed` on failure."""

    def sync(self, path: str) -> None:
        """Make the written bytes and the name of a file durable. Raise `SyncFailed` if the sync fails."""

    def sync_many(self, paths: Sequence[str]) -> dict[str, OSError]:
        """Sync files, some of them in parallel. Return the errors by path when all syncs have ended."""

    def allocate(self, path: str, length: int) -> None:
        """Extend the file to `length` bytes with zeros, and reserve the disk space."""

    def truncate(self, path: str, length: int) -> None:
        """Cut the file to `length` bytes."""

    def sync_folder(self, folder: str) -> None:
        """Make the names in a folder durable. Do nothing if the folder does not exist."""

    def will_need(self, path: str) -> None:
        """Advise the system that the whole file will be read soon, so that the system may read ahead."""

    def usage(self) -> tuple[int, int]:
        """Return the (free, total) bytes of the file system that this user may use."""

    def rename(self, path: str, new_path: str) -> None:
        """Rename a synced file, durably and atomically. An existing file with the new name is replaced."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents. Do nothing if the path does not exist."""
