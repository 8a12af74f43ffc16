"""A thread-safe cache of open file descriptors for the files of a store. The size of the cache is limited.

    take(path) --> opened, or found open --> in use --> returned --> idle, closed in LRU order

Rules:
- A descriptor is closed only if it is not in use, because the operating system may immediately reuse its
  number for another file.
- Files that are deleted or renamed are removed from the cache. Threads that are using the descriptor can
  continue to use it, but later calls of `take` do not return the descriptor.
- Files with unsynced bytes are closed after all other unused files, and are synced before they are closed.
  Without the sync, the kernel would discard a write error when the last descriptor of the file is closed, and
  a later sync would succeed. If the sync fails, the file is closed anyway, and the next sync of the file
  fails (`take_failure`). The error is not raised immediately, because the call that closed the file was
  opening a different file. A sync calls `take` before it calls `take_failure`. Files that are in use are
  never closed, so no failure can be added between the two calls.
- If the process has reached its limit on open files, up to half of the open files are closed, provided that
  they are unused, and the open operation is retried.

Cost: Taking and returning a file requires a lock and a few lookups, which take 0.6 us in total. The cost of
closing or removing a file does not depend on the number of files.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

Sync = Callable[[int, str], None]
"""A function that syncs the file of a descriptor, or raises OSError if the sync fails."""
OUT_OF_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE))


class OpenFile:
    """An open file, with its number of users and its state.

    `own` contains additional descriptors of the file, each of which is used by one thread at a time. `own`
    rarely contains more than one descriptor.
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
        """Close the additional descriptors in `own`, which must not be in use."""
        with suppress(IndexError):
            while True:
                os.close(self.own.pop())


class Descriptors:
    """A cache of open files, keyed by path. `open_file` opens a file, and may raise OSError."""

    def __init__(self, open_max: int, open_file: Callable[[str, bool], int], sync: Sync) -> None:
        self._open_max, self._open_file, self._sync = open_max, open_file, sync
        self._open: dict[str, OpenFile] = {}
        # The files without users, with the least recently used file first. `is_unsynced` does not change for
        # these files, because a file must be taken before it is written or synced.
        self._idle: OrderedDict[str, OpenFile] = OrderedDict()
        self._idle_unsynced: OrderedDict[str, OpenFile] = OrderedDict()
        self._failures: dict[str, OSError] = {}
        """The errors of syncs that failed before a file was closed, keyed by path. An error is kept until the
        next sync of the file."""
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._open)

    def take(self, path: str, *, is_made: bool = False) -> OpenFile | None:
        """Return the open file at a path, or None if the file does not exist and `is_made` is false.

        The caller must return the file by calling `give_back`. Raise OSError if the file cannot be opened.
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
        """Return a file to the cache after it has been used."""
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
        """Return the error of a failed sync that closed the file, or None if there is none.

        Each error is returned only once. The caller must take the file before this call (`one` is None if the
        file does not exist). If the file were not in use, another thread could close the file after a failed
        sync. Concurrent syncs of the file detect the failure through `failed_syncs`.
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
        """Remove from the cache all files whose paths begin with the given prefix."""
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
        """Open a file, closing other files first if necessary, and return the descriptor.

        Raise OSError on failure.
        """
        try:
            return self._open_file(path, is_made)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._close_some(len(self._open) // 2 + 1):
                raise
            return self._open_file(path, is_made)

    def _close_some(self, count: int) -> int:
        """Close unused files in LRU order, synced files first, and return the number of closed files."""
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
