"""A store to be looked at: its files opened read-only, and a disk over them whose writes go nowhere.

The tools fold the log with the broker's own code, which writes while it starts (it cuts the tail, catches up
its queues). `Overlay` takes those writes into memory and never into a file; what it is told to write to the
log it drops, since nobody reads behind the offset at which the tools stop. So a live store can be looked at,
without its lock, by a user who may not even write there. Memory: what a start would write, 20 bytes per
record behind the newest snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from commitlog import layout
from commitlog.errors import StoreError
from commitlog.view import View, whole
from services.store.unreadable import FileUnreadable

_NEVER_WRITTEN: Final = (layout.COMMITLOG, layout.RESERVE)


class Reader(Protocol):
    """The reading half of `commitlog.disk.Disk`."""

    def list(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""

    def size(self, path: str) -> int:
        """Return the file's length in bytes; -1 if there is no such file."""

    def read(self, path: str, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer at the end of the file."""

    def view(self, path: str) -> View:
        """Return the whole file to read in place."""


class StoreFiles:
    """The files under `root`, read-only; a file is opened anew for each read, so nothing stays open.

    What the disk cannot read is a `FileUnreadable`: a `StoreError`, and as of any disk an OSError. Of a file
    that may not be read, or has gone meanwhile, a plain `StoreError` says what to do: that is no damage.
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
        """Return a descriptor to read one file, to be closed by the caller; raise `StoreError`."""
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
    """A file whose first `kept_bytes` are those below, followed by `tail`."""

    kept_bytes: int
    tail: bytearray = field(default_factory=bytearray)


class Overlay:
    """A `Disk` over `below` that keeps its writes in memory; the log below is never written."""

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
        """Return the bytes of many (position, length) back to back."""
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
        """Only the log allocates, and the log is not written."""

    def write_synced(self, path: str, position: int, data: bytes) -> None:
        self.write(path, position, data)

    def sync(self, path: str) -> None:
        """Keep nothing."""

    def sync_many(self, paths: Sequence[str]) -> dict[str, OSError]:
        """Keep nothing."""
        return {}

    def sync_folder(self, folder: str) -> None:
        """Keep nothing."""

    def will_need(self, path: str) -> None:
        """Read nothing ahead: this is a look."""

    def usage(self) -> tuple[int, int]:
        """As an empty disk: whoever only looks never makes room."""
        return 1, 1

    def _patch(self, path: str, position: int) -> _Patched:
        """Return the patch of a file, made so that `position` does not lie in what is kept from below."""
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
