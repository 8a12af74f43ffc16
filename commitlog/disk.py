"""What the store needs of a disk, as a protocol: `RealDisk` for production, `MemoryDisk` for simulation.

Paths are relative to the store, with `/`. A write is durable only after `sync` of its file; `allocate`,
`truncate`, `rename` and `delete` are durable when they return. Reads see all writes, durable or not.
Only `write`, `allocate` and `truncate` make a file. Every method may raise OSError.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Disk(Protocol):
    """The file operations under a store."""

    def list(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder."""

    def size(self, path: str) -> int:
        """The file's length in bytes; -1 if there is no such file."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer at the end of the file, none of no file."""

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        """The bytes of many (position, length) back to back; less where a file ends before."""

    def view(self, path: str) -> memoryview:
        """The whole file to read in place; valid until the file is truncated or deleted."""

    def write(self, path: str, position: int, data: bytes) -> None:
        """Writes all of `data`, creating the file and its folders if needed."""

    def sync(self, path: str) -> None:
        """Makes the file's written bytes durable."""

    def allocate(self, path: str, length: int) -> None:
        """Makes the file `length` bytes long, new bytes zero, with its disk space reserved."""

    def truncate(self, path: str, length: int) -> None:
        """Cuts the file to `length` bytes."""

    def sync_folder(self, folder: str) -> None:
        """Makes the names of files created in a folder durable."""

    def will_need(self, path: str) -> None:
        """Says that the file will soon be read all over, so that it may be read ahead."""

    def usage(self) -> tuple[int, int]:
        """(free, total) bytes of the file system, as far as this user may fill it."""

    def rename(self, path: str, new_path: str) -> None:
        """Gives a synced file its name, durably and at once; a file that had the name is gone."""

    def delete(self, path: str) -> None:
        """Deletes a file, or a folder and all in it; nothing happens if it does not exist."""
