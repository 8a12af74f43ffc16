"""Defines the disk operations of a store.

`RealDisk` is used in production, and `MemoryDisk` is used in simulations.

Paths are relative to the store and use `/` as the separator. Written data, and the directory entry of a file
created by a write, are durable only after `sync` has been called for the file. The effects of `allocate`,
`truncate`, `rename`, and `delete` are durable when the method returns. If the process ends or the power fails
during an operation, the operation may have been performed completely, partially, or not at all. Reads return
all written bytes, whether or not they are durable. Only `write`, `allocate`, and `truncate` create files. Any
method may raise OSError after the operation has been partially performed.

After `SyncFailed`, bytes that were written to the file after its last sync must not be trusted. These bytes
can still be read, and another sync may succeed. However, the bytes may not be on disk, because Linux marks
pages as clean after a failed write. The bytes become durable only if they are written again and then synced.
`SyncFailed` is also raised if syncing a folder fails. In this case, files that were created, renamed, or
deleted in the folder may be lost or reappear after a power failure, until the folder has been synced
successfully. Directory entries are written to the file system journal, which stops after a failure.
`SyncFailed` includes the path of the file or folder that could not be synced. Files may be synced implicitly
before they are closed. If an implicit sync fails, the next call of `sync` for the file fails. After a sync
failure, the unsynced content must be written again. The content must come from a source other than the page
cache, or must be verified with a CRC. Syncing the same pages again is not sufficient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from commitlog.view import View

FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750
"""The modes of files and folders before the umask is applied: the owner can write, and the group can read."""


class SyncFailed(OSError):
    """A sync has failed. Data written after the last successful sync may be lost, even if it can be read."""


class Disk(Protocol):
    """The file operations of a store."""

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder in sorted order, or an empty list if the folder does not exist."""

    def size(self, path: str) -> int:
        """Return the length of a file in bytes, or -1 if the file does not exist."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return `length` bytes starting at `position`.

        The result is shorter if the requested range extends beyond the end of the file, and b"" if the file
        does not exist.
        """

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        """Return the bytes of the given (position, length) ranges as a single bytes object.

        The result is shorter if a range extends beyond the end of the file.
        """

    def view(self, path: str) -> View:
        """Return a view of the whole file. The view is valid until the file is truncated or deleted."""

    def write(self, path: str, position: int, data: bytes) -> None:
        """Write all of `data` at `position`. The file and its folders are created if necessary."""

    def write_synced(self, path: str, position: int, data: bytes) -> None:
        """Write all of `data` durably, including the directory entry of the file, or raise `SyncFailed`."""

    def sync(self, path: str) -> None:
        """Make the written data and the directory entry of a file durable, or raise `SyncFailed`."""

    def sync_many(self, paths: Sequence[str]) -> dict[str, OSError]:
        """Sync several files in parallel, and return the errors, keyed by path."""

    def allocate(self, path: str, length: int) -> None:
        """Extend the file with zeros to `length` bytes, and reserve the disk space."""

    def truncate(self, path: str, length: int) -> None:
        """Truncate the file to `length` bytes."""

    def sync_folder(self, folder: str) -> None:
        """Make the directory entries in a folder durable, if the folder exists."""

    def will_need(self, path: str) -> None:
        """Advise the operating system to read ahead the whole file."""

    def usage(self) -> tuple[int, int]:
        """Return the free space and the total space in bytes that are available to the user."""

    def rename(self, path: str, new_path: str) -> None:
        """Durably and atomically rename a synced file, replacing any existing file with the new name."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder including its contents, if it exists."""
