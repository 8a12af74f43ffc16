"""Read-only access to a store, and an overlay that keeps writes in memory.

The tools replay the log with the broker's own code, which writes during its start (it truncates the tail and
updates the queues). `Overlay` stores these writes in memory and never in a file. Writes to the log are
discarded, because nothing is read after the offset at which the tools stop. A store in use can therefore be
examined without its lock, and by a user without write permission. Memory: the writes of a start, which are 20
bytes per record after the newest snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from commitlog import layout
from commitlog.disk.view import View, whole
from commitlog.errors import StoreError
from services.store.read_only.unreadable import FileUnreadable

_NEVER_WRITTEN: Final = (layout.COMMITLOG, layout.RESERVE)


class Reader(Protocol):
    """The read operations of `commitlog.disk.disk.Disk`."""

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted. The list is empty if the folder does not exist."""

    def size(self, path: str) -> int:
        """Return the file's length in bytes, or -1 if the file does not exist."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`, or fewer at the end of the file."""

    def view(self, path: str) -> View:
        """Return a view of the whole file."""


class StoreFiles:
    """Read-only access to the files under `root`. Files are opened for each read and not kept open.

    A read error of the disk raises `FileUnreadable`, which is both a `StoreError` and an OSError. A missing
    permission or a file that was deleted in the meantime raises a plain `StoreError`, because it is not
    damage.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def list(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unreadable(folder, error) from error

    def size(self, path: str) -> int:
        try:
            return os.stat(self.root / path).st_size
        except (FileNotFoundError, NotADirectoryError):
            return -1
        except OSError as error:
            raise self._unreadable(path, error) from error

    def read(self, path: str, position: int, length: int) -> bytes:
        descriptor = self.open(path)
        try:
            return os.pread(descriptor, length, position)
        except OSError as error:
            raise self._unreadable(path, error) from error
        finally:
            os.close(descriptor)

    def view(self, path: str) -> View:
        descriptor = self.open(path)
        try:
            length = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        return View(lambda position, wanted: self.read(path, position, wanted), length)

    def open(self, path: str) -> int:
        """Open a file for reading and return its descriptor, which the caller must close; raise
        `StoreError`.
        """
        try:
            return os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: str, error: OSError) -> StoreError:
        there = self.root / path if path else self.root
        if isinstance(error, PermissionError):
            return StoreError(f"{there} may not be read by this user. Run this as the user of the broker.")
        if isinstance(error, FileNotFoundError):
            return StoreError(f"{there} was deleted while it was being read. Run this again.")
        return FileUnreadable(
            f"{there} cannot be read ({error.strerror}). Check the disk, then run this again.", error
        )


@dataclass(slots=True)
class _Patched:
    """A file that consists of the first `kept_bytes` of the underlying file, followed by `tail`."""

    kept_bytes: int
    tail: bytearray = field(default_factory=bytearray)


class Overlay:
    """A `Disk` that keeps writes to the files of `below` in memory. The log is never written."""

    def __init__(self, below: Reader) -> None:
        self._below = below
        self._patched: dict[str, _Patched] = {}
        self._deleted: set[str] = set()

    def list(self, folder: str) -> list[str]:
        inside = f"{folder}/" if folder else ""
        names = [] if self._is_deleted(folder) else self._below.list(folder)
        below = [name for name in names if not self._is_deleted(inside + name)]
        above = [path[len(inside) :].split("/")[0] for path in self._patched if path.startswith(inside)]
        return sorted({*below, *above})

    def size(self, path: str) -> int:
        patched = self._patched.get(path)
        if patched is not None:
            return patched.kept_bytes + len(patched.tail)
        return -1 if self._is_deleted(path) else self._below.size(path)

    def read(self, path: str, position: int, length: int) -> bytes:
        patched = self._patched.get(path)
        if patched is None:
            return b"" if self._is_deleted(path) else self._below.read(path, position, length)
        kept = max(0, min(length, patched.kept_bytes - position))
        below = self._below.read(path, position, kept) if kept else b""
        start = max(0, position - patched.kept_bytes)
        return below + bytes(patched.tail[start : start + length - kept])

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        """Return the concatenated bytes of many (position, length) ranges."""
        return b"".join([self.read(path, position, length) for position, length in spans])

    def view(self, path: str) -> View:
        if path in self._patched:
            return whole(self.read(path, 0, self.size(path)))
        return whole(b"") if self._is_deleted(path) else self._below.view(path)

    def write(self, path: str, position: int, data: bytes) -> None:
        if path.startswith(_NEVER_WRITTEN):
            return
        patched = self._patch(path, position)
        start = position - patched.kept_bytes
        patched.tail.extend(bytes(max(0, start + len(data) - len(patched.tail))))
        patched.tail[start : start + len(data)] = data

    def truncate(self, path: str, length: int) -> None:
        if path.startswith(_NEVER_WRITTEN):
            return
        patched = self._patch(path, length)
        del patched.tail[length - patched.kept_bytes :]

    def rename(self, path: str, new_path: str) -> None:
        content = bytes(self.view(path))
        self.delete(path)
        self.delete(new_path)
        self.write(new_path, 0, content)

    def delete(self, path: str) -> None:
        if path.startswith(_NEVER_WRITTEN):
            return
        self._deleted.add(path)
        for name in [name for name in self._patched if name == path or name.startswith(f"{path}/")]:
            del self._patched[name]

    def allocate(self, path: str, length: int) -> None:
        """Do nothing, because only the log is preallocated."""

    def write_synced(self, path: str, position: int, data: bytes) -> None:
        self.write(path, position, data)

    def sync(self, path: str) -> None:
        """Do nothing."""

    def sync_many(self, paths: Sequence[str]) -> dict[str, OSError]:
        """Do nothing."""
        return {}

    def sync_folder(self, folder: str) -> None:
        """Do nothing."""

    def will_need(self, path: str) -> None:
        """Do nothing."""

    def usage(self) -> tuple[int, int]:
        """Return the usage of an empty disk, so that no space is freed."""
        return 1, 1

    def _patch(self, path: str, position: int) -> _Patched:
        """Return the patch of a file, which is extended so that `position` is not in the kept part."""
        patched = self._patched.get(path)
        size = -1 if self._is_deleted(path) else self._below.size(path)
        if patched is None:
            patched = self._patched[path] = _Patched(max(0, size))
        if position < patched.kept_bytes:
            whole = self._below.read(path, position, patched.kept_bytes - position)
            patched.kept_bytes, patched.tail = position, bytearray(whole) + patched.tail
        return patched

    def _is_deleted(self, path: str) -> bool:
        return any(path == gone or path.startswith(f"{gone}/") for gone in self._deleted)
