"""A thread-safe, bounded cache of open file descriptors for the files of a store.

    take(path) --> opened, or found open --> in use --> returned --> idle, closed in LRU order

Rules:
- A descriptor in use is never closed, because the operating system may then reuse its number for another
  file.
- The cache drops deleted and renamed files. Threads may keep using the file's descriptor, but `take` no
  longer returns it.
- Files with unsynced bytes are closed last, after a sync. Without the sync, the kernel would discard a write
  error when the file's last descriptor is closed, and a later sync would succeed. If the sync fails, the file
  is closed anyway, and the next sync of the file fails (`take_failure`). The error is not raised immediately,
  because the caller was opening another file. A sync calls `take` before `take_failure`. A file in use is
  never closed, so no failure can occur between the two calls.
- When the limit on open files is reached, the cache closes up to half of its unused files and retries.

Cost: taking and returning a file takes 0.6 us in total, for a lock and a few lookups. The cost of closing or
removing a file does not depend on the number of files.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

Sync = Callable[[int, str], None]
"""Syncs the file of a descriptor. Raises OSError if the sync fails."""
OUT_OF_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE))


class OpenFile:
    """An open file with its state and number of users.

    `own` holds additional descriptors for the file, rarely more than one. Each descriptor is used by one
    thread at a time.
    """

    __slots__ = ("descriptor", "failed_syncs", "is_forgotten", "is_unsynced", "own", "path", "users")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self.descriptor, self.users, self.failed_syncs = path, descriptor, 0, 0
        self.is_unsynced = self.is_forgotten = False
        self.own: list[int] = []

    def close(self) -> None:
        """Close all descriptors of the file."""
        os.close(self.descriptor)
        self.close_own()

    def close_own(self) -> None:
        """Close the descriptors in `own`. They must not be in use."""
        with suppress(IndexError):
            while True:
                os.close(self.own.pop())


class Descriptors:
    """Caches open files by path. `open_file` opens a file and may raise OSError."""

    def __init__(self, open_max: int, open_file: Callable[[str, bool], int], sync: Sync) -> None:
        self._open_max, self._open_file, self._sync = open_max, open_file, sync
        self._open: dict[str, OpenFile] = {}
        # The files without users, with the least recently used file first. `is_unsynced` does not change for
        # these files, because a file must be taken before it is written or synced.
        self._idle: OrderedDict[str, OpenFile] = OrderedDict()
        self._idle_unsynced: OrderedDict[str, OpenFile] = OrderedDict()
        self._failures: dict[str, OSError] = {}
        """Failed syncs of closed files, by path. An error stays until the next sync of the file."""
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._open)

    def take(self, path: str, *, is_made: bool = False) -> OpenFile | None:
        """Return the open file for a path, or None if it does not exist and `is_made` is false.

        The caller must call `give_back`. Raise OSError if the file cannot be opened.
        """
        with self._lock:
            one = self._open.get(path)
            if one is None:
                if len(self._open) >= self._open_max:
                    self._close_some(len(self._open) - self._open_max + 1)
                try:
                    one = self._open[path] = OpenFile(path, self._opened(path, is_made))
                except FileNotFoundError:
                    return None
            elif not one.users:
                del self._idle_of(one)[path]
            assert not one.is_forgotten, "a file that is gone would be used"
            one.users += 1
            return one

    def give_back(self, one: OpenFile) -> None:
        """Return a file to the cache."""
        with self._lock:
            assert one.users > 0, "given back more often than taken"
            one.users -= 1
            if one.users:
                return
            if one.is_forgotten:
                one.close()
            else:
                self._idle_of(one)[one.path] = one

    def take_failure(self, one: OpenFile | None, path: str) -> OSError | None:
        """Return the error from a failed sync before the file was closed, or None.

        Each error is returned only once. The caller must take the file first (`one` is None if the file does
        not exist). Otherwise another thread could close the file after a failed sync. Concurrent syncs detect
        failures through `failed_syncs`.
        """
        with self._lock:
            failure = self._failures.pop(path, None)
            if failure is not None and one is not None:
                one.failed_syncs += 1
            return failure

    def forget(self, path: str) -> None:
        """Remove a file from the cache."""
        with self._lock:
            self._failures.pop(path, None)
            if path in self._open:
                self._forget(path)

    def forget_within(self, inside: str) -> None:
        """Remove all files whose paths begin with a prefix from the cache."""
        with self._lock:
            for path in [one for one in self._open if one.startswith(inside)]:
                self._forget(path)
            for path in [one for one in self._failures if one.startswith(inside)]:
                del self._failures[path]

    def forget_all(self) -> None:
        """Remove all files from the cache."""
        with self._lock:
            for path in [*self._open]:
                self._forget(path)
            self._failures.clear()

    def _forget(self, path: str) -> None:
        one = self._open.pop(path)
        one.is_forgotten = True
        if not one.users:
            del self._idle_of(one)[path]
            one.close()

    def _idle_of(self, one: OpenFile) -> OrderedDict[str, OpenFile]:
        return self._idle_unsynced if one.is_unsynced else self._idle

    def _opened(self, path: str, is_made: bool) -> int:
        """Open a file and return its descriptor. Close other files if necessary.

        Raise OSError on failure.
        """
        try:
            return self._open_file(path, is_made)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._close_some(len(self._open) // 2 + 1):
                raise
            return self._open_file(path, is_made)

    def _close_some(self, count: int) -> int:
        """Close unused files in LRU order, synced files first. Return the number closed."""
        closed_count = 0
        while closed_count < count and (idle := self._idle or self._idle_unsynced):
            path, one = next(iter(idle.items()))
            if one.is_unsynced:
                try:
                    self._sync(one.descriptor, path)
                except OSError as error:
                    self._failures[path] = error
            del idle[path], self._open[path]
            one.close()
            closed_count += 1
        return closed_count
