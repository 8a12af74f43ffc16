"""Open descriptors of a store's files, at most so many; safe for several threads.

    take(path) --> open, or found open --> in use --> given back --> idle, the least used is closed first

Rules:
- A descriptor is closed only while nobody uses it: its number may be another file's the moment after.
- A file that is deleted or renamed is forgotten: who uses it goes on with what it had, the next finds none.
- A file with bytes that were not synced is closed last, and synced first: the kernel would drop the news of a
  failed write with the last descriptor, and a later sync would believe that all is well. Where that sync
  fails, the file is closed all the same, and its next sync is to fail (`take_failure`): the one that opens
  another file could only take it for a failure of its own. A sync takes the file first, and then its failure:
  a file in use is not closed, so none can come between.
- Where the process may open no more, half of what is not in use is closed, and it is tried again.

Cost of taking and giving back: a lock and some look-ups, 0.6 us in all; to close one or to forget one costs
the same however many there are.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from threading import Lock

Sync = Callable[[int, str], None]
"""Takes a descriptor's file to disk, or raises the OSError that says that it could not."""
OUT_OF_DESCRIPTORS = frozenset((errno.EMFILE, errno.ENFILE))


class Open:
    """An open file: how many use it, whether it was written to since its last sync, whether it is gone.

    `own` are more descriptors of it, each for one thread at a time, of which hardly ever two are kept.
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
        """Close the own descriptors that no thread uses."""
        with suppress(IndexError):
            while True:
                os.close(self.own.pop())


class Descriptors:
    """Descriptors by path; `open_file` opens one, raising OSError."""

    def __init__(self, open_max: int, open_file: Callable[[str, bool], int], sync: Sync) -> None:
        self._open_max, self._open_file, self._sync = open_max, open_file, sync
        self._open: dict[str, Open] = {}
        # Files without users, the least used first. Here `is_unsynced` does not change: a write or a sync
        # takes the file.
        self._idle: OrderedDict[str, Open] = OrderedDict()
        self._idle_unsynced: OrderedDict[str, Open] = OrderedDict()
        self._failures: dict[str, OSError] = {}
        """By path, of files whose sync failed when they were closed, and that were not synced since."""
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._open)

    def take(self, path: str, *, is_made: bool = False) -> Open | None:
        """Return the open file at a path, to be given back; None if no file is there and none is to be made.

        Raise OSError.
        """
        with self._lock:
            one = self._open.get(path)
            if one is None:
                if len(self._open) >= self._open_max:
                    self._close_some(len(self._open) - self._open_max + 1)
                try:
                    one = self._open[path] = Open(path, self._opened(path, is_made))
                except FileNotFoundError:
                    return None
            elif not one.users:
                del self._idle_of(one)[path]
            assert not one.is_forgotten, "a file that is gone would be used"
            one.users += 1
            return one

    def give_back(self, one: Open) -> None:
        """Use a file no longer."""
        with self._lock:
            assert one.users > 0, "given back more often than taken"
            one.users -= 1
            if one.users:
                return
            if one.is_forgotten:
                one.close()
            else:
                self._idle_of(one)[one.path] = one

    def take_failure(self, one: Open | None, path: str) -> OSError | None:
        """Return, once, what a file's sync failed with when it was closed for another; None if it did not.

        Take the file before, None if it is not there: until then another thread may close it, and its sync
        may fail. Other syncs of it that are under way learn of the failure by its count.
        """
        with self._lock:
            failure = self._failures.pop(path, None)
            if failure is not None and one is not None:
                one.failed_syncs += 1
            return failure

    def forget(self, path: str) -> None:
        """Let a file go."""
        with self._lock:
            self._failures.pop(path, None)
            if path in self._open:
                self._forget(path)

    def forget_within(self, inside: str) -> None:
        """Let all files go whose paths begin so."""
        with self._lock:
            for path in [one for one in self._open if one.startswith(inside)]:
                self._forget(path)
            for path in [one for one in self._failures if one.startswith(inside)]:
                del self._failures[path]

    def forget_all(self) -> None:
        """Let every file go."""
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

    def _idle_of(self, one: Open) -> OrderedDict[str, Open]:
        return self._idle_unsynced if one.is_unsynced else self._idle

    def _opened(self, path: str, is_made: bool) -> int:
        """Return a new descriptor, if need be after others were closed; raise OSError."""
        try:
            return self._open_file(path, is_made)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._close_some(len(self._open) // 2 + 1):
                raise
            return self._open_file(path, is_made)

    def _close_some(self, count: int) -> int:
        """Close files that are not in use, synced ones first, then by last use; return how many."""
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
