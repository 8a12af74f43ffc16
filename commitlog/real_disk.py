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


class RealDisk:
    """Files under `root`; descriptors stay open until their file is deleted or the disk is closed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._descriptors: dict[str, int] = {}
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
        os.fdatasync(descriptor) if hasattr(os, "fdatasync") else os.fsync(descriptor)

    def allocate(self, path: str, length: int) -> None:
        descriptor = self._descriptor(path)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, length)
        else:
            os.ftruncate(descriptor, length)
        os.fsync(descriptor)
        self._sync_folder((self.root / path).parent)

    def truncate(self, path: str, length: int) -> None:
        descriptor = self._descriptor(path)
        os.ftruncate(descriptor, length)
        os.fsync(descriptor)

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
        os.replace(self.root / path, self.root / new_path)
        self._sync_folder((self.root / new_path).parent)

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
                    target.parent.mkdir(parents=True, exist_ok=True)
                self._descriptors[path] = os.open(target, os.O_RDWR | creating | os.O_CLOEXEC, 0o644)
            return self._descriptors[path]

    def _forget(self, prefix: str) -> None:
        inside = f"{prefix}/" if prefix else ""
        with self._opening:
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

    def _sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
