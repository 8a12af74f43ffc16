"""A thread-safe `Disk` that uses operating system files.

If a file is deleted while another thread is reading it, the read returns no bytes. Reads never recreate a
deleted file, because the next startup would then find an empty segment. Reads never return bytes from another
file (`commitlog.disk.descriptors`). Files are not mapped into memory (`commitlog.disk.view`). Each exception
includes the file path. `commitlog.disk.disk` documents the guarantees of each method.

    write         pwrite to the page cache
    write_synced  pwritev with RWF_DSYNC, or pwrite and fdatasync; then the name
    sync          fdatasync on a separate file description; then the name
    allocate      posix_fallocate and fsync; then the name
    rename        replace; then both folders

"The name" means an fsync of the file's folder, done once for each file that the process has created or found.

Cost: `write_synced` requires one system call and one disk sync. Limitation: durability requires a kernel that
reports a failed write on every open file description, as Linux has done since 4.13. Other systems may report
it only once.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from commitlog import limits
from commitlog.disk.descriptors import Descriptors, OpenFile
from commitlog.disk.disk import FILE_MODE, FOLDER_MODE, SyncFailed
from commitlog.disk.view import View

_SYNCED_AT_ONCE: Final = 16
_UNKNOWN_CALL: Final = frozenset((errno.ENOSYS, errno.EOPNOTSUPP))


class RealDisk:
    """The files below a root folder. About `open_max` files can be open at once."""

    def __init__(self, root: Path, open_max: int = limits.FILES_OPEN_MAX) -> None:
        self.root = root
        self._files = Descriptors(open_max, self._open, _sync)
        self._has_synced_writes = hasattr(os, "RWF_DSYNC")
        self._named: set[str] = set()
        """Files whose directory entries this process has made durable. Others may not be durable."""

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
        file = self._files.take(path)
        if file is None:
            return b""
        try:
            return os.pread(file.descriptor, length, position)
        except OSError as error:
            raise _at(path, error) from None
        finally:
            self._files.give_back(file)

    def read_many(self, path: str, spans: Iterable[tuple[int, int]]) -> bytes:
        file, pread = self._files.take(path), os.pread
        if file is None:
            return b""
        try:
            descriptor = file.descriptor
            return b"".join([pread(descriptor, length, position) for position, length in spans])
        except OSError as error:
            raise _at(path, error) from None
        finally:
            self._files.give_back(file)

    def view(self, path: str) -> View:
        return View(lambda position, length: self.read(path, position, length), max(0, self.size(path)))

    def write(self, path: str, position: int, data: bytes) -> None:
        with self._writing(path) as file:
            try:
                written = os.pwrite(
                    file.descriptor, data, position
                )  # A signal or a full disk may cause a short write.
                while written < len(data):
                    written += os.pwrite(file.descriptor, data[written:], position + written)
            # The flag is set after the write, because a concurrent sync may complete before the write does.
            finally:
                file.is_unsynced = True

    def write_synced(self, path: str, position: int, data: bytes) -> None:
        if self._has_synced_writes:
            try:
                with self._writing(path) as file:
                    self._as_one_of_many(
                        file, path, file.failed_syncs, lambda own: _write_synced(own, position, data, path)
                    )
                self._make_name_durable(path)
                return
            except OSError as error:
                if error.errno not in _UNKNOWN_CALL:
                    raise
                # The operating system does not support synced writes, and has not written any bytes.
                self._has_synced_writes = False
        self.write(path, position, data)
        self.sync(path)

    def sync(self, path: str) -> None:
        file = self._files.take(path)
        # The failure is read after the file has been taken, because other threads cannot close a file that is
        # in use.
        failures_before = 0 if file is None else file.failed_syncs
        failure = self._files.take_failure(file, path)
        if file is None:
            if failure is not None:
                raise failure
            return

        def sync_own(own: int) -> None:
            # The flag is cleared before the sync, because the sync may not include a concurrent write by
            # another thread.
            file.is_unsynced = False
            _sync(own, path)

        try:
            if failure is not None:
                raise failure
            self._as_one_of_many(file, path, failures_before, sync_own)
        except FileNotFoundError:
            return
        finally:
            file.close_own()
            self._files.give_back(file)
        self._make_name_durable(path)

    def sync_many(self, paths: Sequence[str]) -> dict[str, OSError]:
        # The file system combines the syncs of several threads into one journal commit. Syncing 3,000 new
        # files takes 0.9 s with 16 threads and 22 s with one thread.
        with ThreadPoolExecutor(min(_SYNCED_AT_ONCE, max(1, len(paths)))) as threads:
            syncs = [(path, threads.submit(self._outcome_of_sync, path)) for path in paths]
        outcomes = [(path, one.result()) for path, one in syncs]
        return {path: error for path, error in outcomes if error is not None}

    def _outcome_of_sync(self, path: str) -> OSError | None:
        try:
            self.sync(path)
        except OSError as error:
            return error
        return None

    def _as_one_of_many(
        self, file: OpenFile, path: str, failures_before: int, step: Callable[[int], None]
    ) -> None:
        """Sync a file that other threads may be syncing concurrently.

        If one of several concurrent syncs fails, all of them fail. Linux reports a failed page write once per
        open file description. If two syncs shared an open file description, one would succeed although its
        pages might be lost. Each sync therefore uses its own open file description. A sync also fails if
        another one has failed since `failures_before` was read. One open file description is kept for the
        next sync, unless it would report an old failure again.
        """
        assert file.users > 0, "its descriptors may be closed at any moment"
        try:
            own = file.own.pop()
        except IndexError:
            own = os.open(self.root / path, os.O_RDWR | os.O_CLOEXEC)
        try:
            step(own)
        except OSError as error:
            os.close(own)
            if error.errno not in _UNKNOWN_CALL:
                file.failed_syncs += 1
                file.is_unsynced = True
                file.close_own()
            raise
        if file.own or file.failed_syncs != failures_before:
            os.close(own)
        else:
            file.own.append(own)
        if file.failed_syncs != failures_before:
            raise SyncFailed(errno.EIO, "another sync of it failed meanwhile", path)

    def _make_name_durable(self, path: str) -> None:
        if path not in self._named:
            self._sync_folder((self.root / path).parent)
            self._named.add(path)

    def allocate(self, path: str, length: int) -> None:
        with self._writing(path) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.descriptor, 0, length)
            else:
                os.ftruncate(file.descriptor, max(length, os.fstat(file.descriptor).st_size))
            _sync_open(file, path, is_whole=True)
        self._sync_folder((self.root / path).parent)
        self._named.add(path)

    def truncate(self, path: str, length: int) -> None:
        with self._writing(path) as file:
            os.ftruncate(file.descriptor, length)
            _sync_open(file, path, is_whole=True)

    def sync_folder(self, folder: str) -> None:
        with suppress(FileNotFoundError):
            self._sync_folder(self.root / folder)

    def will_need(self, path: str) -> None:
        file = self._files.take(path)
        if file is None:
            return
        try:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            self._files.give_back(file)

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
        # The file is removed from the cache again, because another thread may have opened the file in the
        # meantime.
        if target.is_dir():
            _delete_folder(target)
            self._files.forget_within(f"{path}/")
        else:
            target.unlink(missing_ok=True)
            self._files.forget(path)
        if target.parent.exists():
            self._sync_folder(target.parent)

    def close(self) -> None:
        """Close all open files. The disk can still be used."""
        self._files.forget_all()
        self._named.clear()

    @contextmanager
    def _writing(self, path: str) -> Iterator[OpenFile]:
        """Yield the open file for writing.

        Create it if necessary. Errors in the block include the file path.
        """
        file = self._files.take(path, is_made=True)
        assert file is not None
        try:
            yield file
        except OSError as error:
            raise _at(path, error) from None
        finally:
            self._files.give_back(file)

    def _open(self, path: str, is_made: bool) -> int:
        target = self.root / path
        if is_made:
            self._make_folder(target.parent)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if is_made else 0)
        return os.open(target, flags, FILE_MODE)

    def _forget(self, path: str) -> None:
        """Forget a file, or all files in a folder."""
        self._files.forget(path)
        self._named.discard(path)
        if os.path.isdir(self.root / path):  # Listing the folder may fail.
            self._files.forget_within(f"{path}/")
            self._named.difference_update([one for one in self._named.copy() if one.startswith(f"{path}/")])

    def _make_folder(self, folder: Path) -> None:
        """Durably create a folder and its missing parents."""
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
            self._sync_folder(folder.parent)

    def _sync_folder(self, folder: Path) -> None:
        """Sync a folder. On failure, raise `SyncFailed` with the folder path.

        The path of the store folder is `.`.
        """
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            is_inside = folder.is_relative_to(self.root)
            name = folder.relative_to(self.root).as_posix() if is_inside else str(folder)
            _sync(descriptor, name, is_whole=True)
        finally:
            os.close(descriptor)


def _delete_folder(folder: Path) -> None:
    """Delete a folder and its contents.

    On errors, delete as much as possible and raise the first error.
    """
    failed: list[BaseException] = []
    shutil.rmtree(folder, onerror=lambda _, __, found: failed.append(found[1]))
    if failed:
        raise failed[0]


def _sync_open(file: OpenFile, path: str, *, is_whole: bool = False) -> None:
    """Sync an open file. Raise `SyncFailed` on failure. Concurrent writes may not be included."""
    file.is_unsynced = False
    try:
        _sync(file.descriptor, path, is_whole=is_whole)
    except SyncFailed:
        file.failed_syncs += 1
        file.is_unsynced = True
        raise


def _sync(descriptor: int, path: str, *, is_whole: bool = False) -> None:
    """Sync a file. Raise `SyncFailed` on failure.

    If `is_whole` is true, also sync all of the file's metadata.
    """
    try:
        os.fsync(descriptor) if is_whole or not hasattr(os, "fdatasync") else os.fdatasync(descriptor)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, path) from error


def _write_synced(descriptor: int, position: int, data: bytes, path: str) -> None:
    """Write and sync data in a single system call.

    Raise `SyncFailed` if the sync fails, or another OSError if the disk is full.
    """
    try:
        written = os.pwritev(descriptor, [data], position, os.RWF_DSYNC)
        while written < len(data):
            written += os.pwritev(descriptor, [data[written:]], position + written, os.RWF_DSYNC)
    except OSError as error:
        # If the disk is full, earlier pages have not been lost.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, *_UNKNOWN_CALL):
            raise
        raise SyncFailed(error.errno, error.strerror, path) from error


def _at(path: str, error: OSError) -> OSError:
    """Add the file path to an error and return the error."""
    if error.filename is None:
        error.filename = path
    return error
