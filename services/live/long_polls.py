"""Long polls: receivers that found nothing wait until there is something for them, or their time is up.

A wake-up key is a topic; where that is of type LITE, one client's subscription there; or a poll for
check-backs. Receivers that want the same (one group with one filter) wait in one line of the key, first come,
first notified:

    key --> line (group, filter) --> waiters, oldest first

Rules:
- An arrival notifies the first waiter of each line; it looks, and notifies the next if it took as much as it
  could. So a message costs one look a line, not one a waiter, and thousands of polls of one client
  keep nobody else waiting.
- A receiver looks and begins to wait without letting the loop run in between, so no arrival is missed.
- A notification is a hint: whoever gets it looks again, and may find that another receiver was quicker. One
  that reaches a waiter which has just given up goes on to the next of its line.

Memory: one future for each waiter.

Weak spot: a notification that is lost is not sent again. Whoever is notified and does not look has to pass
it on (`notify_next`): on giving up here, on cancellation and after a full batch in `services.live.receivers`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable

Waiter = asyncio.Future[None]


class LongPolls:
    """The waiters by wake-up key and line."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Hashable, dict[Hashable, dict[Waiter, None]]] = defaultdict(dict)
        self.is_closed = False
        """Whether polls have ended for good: the broker stops."""

    async def wait(self, key: Hashable, seconds: float, line: Hashable = None) -> bool:
        """Wait until `key` is notified; False when `seconds` are over or the broker stops.

        Without a `line` the waiter has one of its own, so every arrival notifies it.
        """
        if seconds <= 0 or self.is_closed:
            return False
        waiter = asyncio.get_running_loop().create_future()
        line = waiter if line is None else line
        self._waiting[key].setdefault(line, {})[waiter] = None
        is_notified = False
        try:  # asyncio.wait_for of Python 3.11 would lose a cancellation that comes with the notification
            await asyncio.wait([waiter], timeout=seconds)
            is_notified = waiter.done()
        finally:
            self._forget(key, line, waiter)
            if waiter.done() and not is_notified:  # cancelled in the very turn in which it was notified
                self.notify_next(key, line)
        return is_notified and not self.is_closed

    def notify(self, *keys: Hashable) -> None:
        """Notify the first waiter of every line of each key: something has arrived."""
        for key in keys:
            if lines := self._waiting.get(key):
                for line in list(lines):
                    self.notify_next(key, line)

    def notify_others(self, key: Hashable, line: Hashable) -> None:
        """Notify the first waiter of every other line: a receive left messages to other filters."""
        for other in list(self._waiting.get(key, ())):
            if other != line:
                self.notify_next(key, other)

    def notify_next(self, key: Hashable, line: Hashable) -> None:
        """Notify the first waiter of one line: there may be more than the last one took."""
        waiters = self._waiting.get(key, {}).get(line)
        if waiters:
            waiter = next(iter(waiters))
            self._forget(key, line, waiter)
            assert not waiter.done(), "one in line was notified before, and this notification would be lost"
            waiter.set_result(None)

    def notify_all(self) -> None:
        """Notify every waiter."""
        for key, lines in list(self._waiting.items()):
            for line, waiters in list(lines.items()):
                for _ in list(waiters):
                    self.notify_next(key, line)

    def close(self) -> None:
        """End every wait, now and from now on."""
        self.is_closed = True
        self.notify_all()

    def _forget(self, key: Hashable, line: Hashable, waiter: Waiter) -> None:
        """Take a waiter out of its line, if it is there; a line or key without waiters goes, too."""
        lines = self._waiting.get(key, {})
        waiters = lines.get(line, {})
        waiters.pop(waiter, None)
        if not waiters and lines.pop(line, None) is not None and not lines:
            del self._waiting[key]
        assert lines or key not in self._waiting, "a key without waiters stays for ever"
