"""The lock that prevents two brokers from using the same store.

It consists of a POSIX record lock on byte 0 of the `lock` file and a folder lock.

Apache RocketMQ locks the same byte, so RocketMQ and Tidewheel never have the same store open at once. A POSIX
record lock applies to an inode. If the file is deleted, a second broker can lock a new one while the first is
still writing. A process also loses its record lock when it closes any descriptor for the file. The folder
lock (`flock`) has neither weakness: a nonempty folder cannot be deleted, and the lock belongs to one open
file description. A broker acquires both locks before it reads any other file of the store. The kernel
releases both when the process ends. On file systems without folder locks, such as NFS, only the record lock
is used.

Every process that writes to a store must hold the lock. The lock also reserves a node's store
(`layout.CLUSTER`) for that node. Records from any other process would not be in the shared log and would be
removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from commitlog.disk.disk import FILE_MODE, FOLDER_MODE
from commitlog.errors import StoreError, StoreLocked, StoreOfCluster, disk_error
from commitlog.layout import CLUSTER

FAILURES = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO))
"""Error numbers of a disk problem, as opposed to an unsuitable folder."""
HOLDER_BYTES = 32
"""Size of the text that names the holder. It is overwritten in place, which usually works on a full disk."""


def lock_folder(folder: int) -> None:
    """Lock an open folder. Raise BlockingIOError if another process holds the lock."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return  # The file system does not support folder locks.


class StoreLock:
    """The lock on the store in the folder `root`. The folder is created if necessary.

    `is_node` indicates whether the broker is a cluster node.
    """

    def __init__(self, root: Path, *, is_node: bool = False) -> None:
        self._root, self._is_node = root, is_node
        self._descriptors: list[int] = []

    def acquire(self) -> None:
        """Acquire the lock. Raise `StoreLocked` if another process holds the lock.

        Raise `StoreOfCluster` if the store belongs to a cluster node and `is_node` is false. Raise `NoRoom`
        if the disk is full, `DiskFailed` if it fails, or `StoreError` if the folder cannot be used.
        """
        assert not self._descriptors, "it is held already"
        if not self._is_node and (self._root / CLUSTER).exists():
            raise StoreOfCluster(
                f"What is written to {self._root} has to be in the cluster's log first. Serve it with "
                "--cluster and --node, or give another folder."
            )
        descriptor, folder = self._open()
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            lock_folder(folder)
        except OSError as error:
            told = os.pread(descriptor, HOLDER_BYTES, 0).decode(errors="replace").strip()
            os.close(descriptor)
            os.close(folder)
            holder = f"process {told}" if told else "another process"
            raise StoreLocked(
                f"{self._root} is held by {holder}. Stop it, or choose another --store."
            ) from error
        self._descriptors = [descriptor, folder]
        # The text that identifies the holder is informational, so a failure to write it must not prevent
        # startup.
        with suppress(OSError):
            os.pwrite(descriptor, f"{os.getpid()}\n".ljust(HOLDER_BYTES).encode(), 0)

    def release(self) -> None:
        """Release the lock if it is held."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self) -> tuple[int, int]:
        """Open the folder and the lock file. The lock file must not be a symbolic link."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._root.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            descriptor = os.open(self._root / "lock", flags, FILE_MODE)
            try:
                return descriptor, os.open(self._root, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            if error.errno in FAILURES:
                raise disk_error(error, "Opening the lock", "Then start again.") from error
            raise StoreError(
                f"{self._root} cannot be opened for writing ({error.strerror}). "
                "Choose a folder that this user may write, with --store."
            ) from error
