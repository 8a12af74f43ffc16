"""The lock of a store for one broker: a POSIX record lock on byte 0 of the file `lock`, and a folder lock.

Apache RocketMQ locks the same byte, so that RocketMQ and Tidewheel never open a store at the same time. A
POSIX record lock applies to an inode. If the file is deleted and created again, a second broker can lock the
new file while the first broker still writes. A process also loses a POSIX record lock when it closes any
descriptor of the file. The folder lock (flock) has neither weakness, because a folder that contains the store
cannot be deleted, and the lock belongs to one descriptor. Both locks are taken before any other file of the
store is read. The kernel releases both locks when the process dies. On a file system without folder locks
(NFS), only the byte is locked.

Every writer of a store takes the lock. The lock also reserves the store of a node (`layout.CLUSTER`) for the
node, because records of another writer would not be in the shared log, and would be cut off later.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from commitlog.disk import FILE_MODE, FOLDER_MODE
from commitlog.errors import StoreError, StoreLocked, StoreOfCluster, disk_error
from commitlog.layout import CLUSTER

FAILURES = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO))
"""The error numbers that are caused by the disk, not by the choice of the folder."""
HOLDER_BYTES = 32
"""The size of the holder text, which is overwritten in place and needs no room on a full disk."""


def lock_folder(folder: int) -> None:
    """Lock a folder by its descriptor, or raise BlockingIOError if another process holds the lock."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return  # The file system has no folder locks.


class StoreLock:
    """The lock of the store in the folder `root`, which is created if missing. `is_node` is set by nodes."""

    def __init__(self, root: Path, *, is_node: bool = False) -> None:
        self._root, self._is_node = root, is_node
        self._descriptors: list[int] = []

    def acquire(self) -> None:
        """Take the lock, or raise `StoreLocked` with the name of the holder if another process has the lock.

        Raise `StoreOfCluster` if the store belongs to a node and `is_node` is false, `NoRoom` or `DiskFailed`
        if the disk is full or fails, and `StoreError` if the folder cannot be used.
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
        # The holder text is informational, and a full disk must not prevent a startup.
        with suppress(OSError):
            os.pwrite(descriptor, f"{os.getpid()}\n".ljust(HOLDER_BYTES).encode(), 0)

    def release(self) -> None:
        """Release the lock, if it is held."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self) -> tuple[int, int]:
        """Open the lock file, unless it is a symbolic link, and the folder."""
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
