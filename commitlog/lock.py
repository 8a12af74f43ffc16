"""One broker per store: a POSIX record lock on byte 0 of the file `lock`.

The same byte that Apache RocketMQ locks, so that neither opens a store under the other. The kernel drops
the lock when its process dies. It is taken before any other file of the store is read.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from commitlog.errors import StoreError, StoreLocked, disk_error

FAILURES = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO))
"""What is wrong with the disk rather than with the choice of the folder."""
HOLDER_BYTES = 32
"""Written over in place: that needs no room on a disk that is full."""


class StoreLock:
    """The lock of the store in folder `root`, which is created if missing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptor = -1

    def acquire(self) -> None:
        """Takes the lock; raises `StoreLocked` naming the holder, or `StoreError` if the folder is no use.

        A disk that is full or fails is a `NoRoom` or a `DiskFailed`.
        """
        descriptor = self._open()
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            holder = (
                os.pread(descriptor, HOLDER_BYTES, 0).decode(errors="replace").strip() or "another process"
            )
            os.close(descriptor)
            raise StoreLocked(
                f"{self._root} is held by process {holder}. Stop it, or choose another --store."
            ) from error
        self._descriptor = descriptor
        with suppress(OSError):  # who holds it is only told; a full disk must not keep a store from starting
            os.pwrite(descriptor, f"{os.getpid()}\n".ljust(HOLDER_BYTES).encode(), 0)

    def release(self) -> None:
        """Gives the lock back; harmless when it is not held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            return os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno in FAILURES:
                raise disk_error(error, "Opening the lock", "Then start again.") from error
            raise StoreError(
                f"{self._root} cannot be opened for writing ({error.strerror}). "
                "Choose a folder that this user may write, with --store."
            ) from error
