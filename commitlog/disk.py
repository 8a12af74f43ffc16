"""The disk operations of a store. `RealDisk` is for production, and `MemoryDisk` is for simulation.

Paths are relative to the store, with `/`. A write, and the name of a file created by the write, is durable
only after `sync` of the file. `allocate`, `truncate`, `rename` and `delete` are durable when they return. If
the process ends or the power fails during an operation, the operation may be complete, incomplete, or not
started. Reads return the bytes of all writes, durable or not. Only `write`, `allocate` and `truncate` create
a file. Every method may raise OSError after a part of its work.

After `SyncFailed`, bytes that were written to the file since its last sync must not be trusted. Such bytes
can still be read, and the next sync succeeds, but the bytes may not be on disk, because Linux marks pages as
clean after a failed write. Only bytes that are written again are durable after another sync. `SyncFailed` is
also raised if the sync of a folder fails. Names that were created, renamed, or deleted in the folder may be
lost in a power failure until a sync of the folder succeeds. Names are in the journal of the file system,
which stops after a failure. `SyncFailed` contains the path of the file or folder that could not be synced. A
disk may sync a file implicitly, in order to close the file. If an implicit sync fails, the next `sync` of the
file fails. After a failure, contents are written again from a source other than the page cache, or from bytes
that a CRC verifies. A repeated sync of the same pages is not trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from commitlog.view import View

FILE_MODE: Final = 0o640
FOLDER_MODE: Final = 0o750
"""The modes of files and folders before the umask: written by the owner, and readable by the group."""


class SyncFailed(OSError):
    """A sync has failed, and writes since the last sync may be lost even if they can be read."""


class Disk(Protocol):
    """The file operations under a store."""

    def list(self, folder: str) -> list[str]:
        """Return the sorted names in a folder, or an empty list if the folder does not exist."""

    def size(self, path: str) -> int:
        """Return the length of a file in bytes, or -1 if the file does not exist."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return `length` bytes from `position`, fewer at the end of a file, or b"" for a missing file."""

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        """Return the joined bytes of the spans (position, length), or fewer bytes if the file is shorter."""

    def view(self, path: str) -> View:
        """Return a view of the whole file, which is valid until the file is truncated or deleted."""

    def write(self, path: str, position: int, data: bytes) -> None:
        """Write all of `data` at `position`, creating the file and its folders if needed."""

    def write_synced(self, path: str, position: int, data: bytes) -> None:
        """Write all of `data` durably, with the name of the file, or raise `SyncFailed`."""

    def sync(self, path: str) -> None:
        """Make the written bytes and the name of a file durable, or raise `SyncFailed`."""

    def sync_many(self, paths: Sequence[str]) -> dict[str, OSError]:
        """Sync several files, in parallel, and return the errors by path after all syncs."""

    def allocate(self, path: str, length: int) -> None:
        """Extend the file to `length` bytes with zeros, and reserve the disk space."""

    def truncate(self, path: str, length: int) -> None:
        """Truncate the file to `length` bytes."""

    def sync_folder(self, folder: str) -> None:
        """Make the names in a folder durable, if the folder exists."""

    def will_need(self, path: str) -> None:
        """Advise the operating system to read the whole file ahead, because it will be read soon."""

    def usage(self) -> tuple[int, int]:
        """Return the (free, total) bytes of the file system that are available to the user."""

    def rename(self, path: str, new_path: str) -> None:
        """Rename a synced file durably and atomically, in place of any file with the new name."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents, if the path exists."""
