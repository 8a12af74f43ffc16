"""The operating system's files as a `Disk`. Safe for one writer thread beside one reading loop.

The one may delete a file while the other reads it. Then the read finds nothing: it never makes the file anew,
which would leave an empty segment for the next start, and never reads another file, for the number of a
descriptor that is let go leads to the null device until the next one is.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from threading import Lock

from commitlog.disk import SyncFailed


class RealDisk:
    """Files under `root`; descriptors stay open until their file is deleted or the disk is closed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._descriptors: dict[str, int] = {}
        self._named: set[str] = set()
        """Files whose names this process has made durable; those of files that it finds may not be."""
        self._opening = Lock()
        self._let_go: list[int] = []

    def list(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        try:
            return os.stat(self.root / path).st_size
        except FileNotFoundError:
            return -1

    def read(self, path: str, position: int, length: int) -> bytes:
        descriptor = self._existing(path)
        return b"" if descriptor is None else os.pread(descriptor, length, position)

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        descriptor, pread = self._existing(path), os.pread
        if descriptor is None:
            return b""
        return b"".join([pread(descriptor, length, position) for position, length in spans])

    def view(self, path: str) -> memoryview:
        descriptor = self._existing(path)
        if descriptor is None or self.size(path) <= 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))

    def write(self, path: str, position: int, data: bytes) -> None:
        descriptor = self._descriptor(path)
        written = os.pwrite(descriptor, data, position)
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], position + written)

    def sync(self, path: str) -> None:
        descriptor = self._existing(path)
        if descriptor is None:
            return
        _sync(descriptor, path)
        if path not in self._named:
            self._sync_folder((self.root / path).parent)
            self._named.add(path)

    def allocate(self, path: str, length: int) -> None:
        descriptor = self._descriptor(path)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, length)
        else:
            os.ftruncate(descriptor, max(length, os.fstat(descriptor).st_size))
        _sync(descriptor, path, is_whole=True)
        self._sync_folder((self.root / path).parent)
        self._named.add(path)

    def truncate(self, path: str, length: int) -> None:
        descriptor = self._descriptor(path)
        os.ftruncate(descriptor, length)
        _sync(descriptor, path, is_whole=True)

    def sync_folder(self, folder: str) -> None:
        self._sync_folder(self.root / folder)

    def will_need(self, path: str) -> None:
        descriptor = self._existing(path)
        if descriptor is not None and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)

    def usage(self) -> tuple[int, int]:
        system = os.statvfs(self.root)
        used_blocks = system.f_blocks - system.f_bfree
        return system.f_bavail * system.f_frsize, (used_blocks + system.f_bavail) * system.f_frsize

    def rename(self, path: str, new_path: str) -> None:
        self._forget(path)
        self._forget(new_path)
        target = self.root / new_path
        self._make_folder(target.parent)
        os.replace(self.root / path, target)
        self._sync_folder(target.parent)
        if (self.root / path).parent != target.parent:
            self._sync_folder((self.root / path).parent)
        self._named.add(new_path)

    def delete(self, path: str) -> None:
        self._forget(path)
        target = self.root / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        if target.parent.exists():
            self._sync_folder(target.parent)

    def close(self) -> None:
        """Closes every descriptor; the disk can be used again afterwards."""
        self._forget("")
        self._close_those_let_go()

    def _descriptor(self, path: str) -> int:
        """Of a file that is made if it is not there."""
        descriptor = self._descriptors.get(path)
        return self._open(path, os.O_CREAT) if descriptor is None else descriptor

    def _existing(self, path: str) -> int | None:
        """Of a file that is there."""
        descriptor = self._descriptors.get(path)
        if descriptor is not None:
            return descriptor
        try:
            return self._open(path, 0)
        except FileNotFoundError:
            return None

    def _open(self, path: str, creating: int) -> int:
        with self._opening:
            if path not in self._descriptors:
                target = self.root / path
                if creating:
                    self._make_folder(target.parent)
                self._descriptors[path] = os.open(target, os.O_RDWR | creating | os.O_CLOEXEC, 0o644)
            return self._descriptors[path]

    def _forget(self, prefix: str) -> None:
        inside = f"{prefix}/" if prefix else ""
        with self._opening:
            self._named -= {path for path in list(self._named) if path == prefix or path.startswith(inside)}
            self._close_those_let_go()
            for path in [path for path in self._descriptors if path == prefix or path.startswith(inside)]:
                self._let_go.append(self._descriptors.pop(path))
            if self._let_go:
                self._lead_to_nothing(self._let_go)

    def _close_those_let_go(self) -> None:
        while self._let_go:
            os.close(self._let_go.pop())

    def _lead_to_nothing(self, descriptors: Iterable[int]) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        for descriptor in descriptors:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)

    def _make_folder(self, folder: Path) -> None:
        """Makes a folder and those above it that are missing, each durably."""
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            self._sync_folder(folder.parent)

    def _sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sync(descriptor: int, path: str, *, is_whole: bool = False) -> None:
    """Takes a file to disk, with all of its metadata if `is_whole`; raises `SyncFailed`."""
    try:
        os.fsync(descriptor) if is_whole or not hasattr(os, "fdatasync") else os.fdatasync(descriptor)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, path) from error
