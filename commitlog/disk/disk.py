"""The disk operations of a store.

Production uses `RealDisk`, and simulations use `MemoryDisk`.

Paths are relative to the store and use `/` as the separator. Written data and the directory entry of a new
file are durable only after a `sync` of the file. `allocate`, `truncate`, `rename`, and `delete` are durable
when they return. If the process ends or the power fails during an operation, the operation may have been
performed fully, partly, or not at all. Reads return all written bytes, durable or not. Only `write`,
`allocate`, and `truncate` create files. Any method may raise OSError after partial completion.

After `SyncFailed`, do not trust bytes written to the file since its last successful sync. They can still be
read, and another sync may succeed, but they may not be on disk: Linux marks pages as clean after a failed
write. The bytes become durable only if they are written again and synced. They must come from a source other
than the page cache or be verified against a CRC. `SyncFailed` is also raised for folders. Until the folder is
synced, files created, renamed, or deleted in it may be lost or reappear after a power failure. Directory
entries are written to the file system journal, which stops after a failure. `SyncFailed` includes the path of
the file or folder. A file may be synced implicitly before it is closed. If this sync fails, the file's next
`sync` fails too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from commitlog.disk.view import View

FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750
"""File and folder modes before the umask: the owner can write, the group can read."""


class SyncFailed(OSError):
    """A sync has failed. Data written after the last successful sync may be lost, even if it can be read."""


class Disk(Protocol):
    """File operations on a store."""

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder, or an empty list if it does not exist."""

    def size(self, path: str) -> int:
        """Return the length of a file in bytes, or -1 if it does not exist."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return `length` bytes from `position`.

        Return fewer bytes at the end of the file, and b"" if the file does not exist.
        """

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        """Return the concatenated bytes of the given (position, length) ranges.

        Return fewer bytes if a range extends beyond the end of the file.
        """

    def view(self, path: str) -> View:
        """Return a view of the whole file. The view is valid until the file is truncated or deleted."""

    def write(self, path: str, position: int, data: bytes) -> None:
        """Write all of `data` at `position`. Create the file and its folders if necessary."""

    def write_synced(self, path: str, position: int, data: bytes) -> None:
        """Durably write all of `data` and the file's directory entry. Raise `SyncFailed` on failure."""

    def sync(self, path: str) -> None:
        """Make the data and directory entry of a file durable. Raise `SyncFailed` on failure."""

    def sync_many(self, paths: Sequence[str]) -> dict[str, OSError]:
        """Sync several files in parallel. Return any errors by path."""

    def allocate(self, path: str, length: int) -> None:
        """Extend the file with zeros to `length` bytes, and reserve the space."""

    def truncate(self, path: str, length: int) -> None:
        """Truncate the file to `length` bytes."""

    def sync_folder(self, folder: str) -> None:
        """Make the directory entries of a folder durable, if it exists."""

    def will_need(self, path: str) -> None:
        """Advise the operating system to prefetch the whole file."""

    def usage(self) -> tuple[int, int]:
        """Return the user's free and total disk space in bytes."""

    def rename(self, path: str, new_path: str) -> None:
        """Durably and atomically rename a synced file. Replace any existing file with the new name."""

    def delete(self, path: str) -> None:
        """Delete a file or a folder with its contents, if it exists."""
