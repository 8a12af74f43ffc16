"""One broker per store: a POSIX record lock on byte 0 of the file `lock`, and a lock on the folder itself.

The byte is the one that Apache RocketMQ locks, so that neither opens a store under the other. It is a lock
on an inode: whoever deletes the file and makes another gets one, while the first broker still writes; and a
process that closes any descriptor of the file loses it. The folder cannot be deleted while the store is in
it, and its lock (flock) is held by one descriptor: so both are taken, before any other file of the store is
read. The kernel drops them when the process dies. A file system that has no locks on folders (NFS) leaves
the byte.

What writes to a store takes its lock, so it is here that a node's store (`layout.CLUSTER`) is kept from all
but that node: what another would write to it is in no shared log, and would be cut off again.
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
"""What is wrong with the disk rather than with the choice of the folder."""
HOLDER_BYTES = 32
"""Written over in place: that needs no room on a disk that is full."""


def lock_folder(folder: int) -> None:
    """Lock a folder by its descriptor; raise BlockingIOError if another process has it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return  # no such locks here


class StoreLock:
    """The lock of the store in folder `root`, which is created if missing; `is_node`: for a node to hold."""

    def __init__(self, root: Path, *, is_node: bool = False) -> None:
        self._root, self._is_node = root, is_node
        self._descriptors: list[int] = []

    def acquire(self) -> None:
        """Take the lock; raise `StoreLocked` naming the holder, or `StoreError` if the folder is no use.

        A node's store is a `StoreOfCluster` to all others. A disk that is full or fails is a `NoRoom` or a
        `DiskFailed`.
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
        with suppress(OSError):  # who holds it is only told; a full disk must not keep a store from starting
            os.pwrite(descriptor, f"{os.getpid()}\n".ljust(HOLDER_BYTES).encode(), 0)

    def release(self) -> None:
        """Give the lock back; do nothing when it is not held."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self) -> tuple[int, int]:
        """Open the file and the folder; a link in the file's place is not followed."""
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
