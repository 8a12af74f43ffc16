"""Long polls. A receive that finds no message waits until a message arrives or the wait times out.

A wake-up key is a topic, the LITE topic subscription of a client, or a poll for transaction check-backs.
Receives with the same key, group, and filter wait in the same FIFO queue, which is called a line:

    key --> line (group, filter) --> waiters, from oldest to newest

Rules:
- When a message arrives, the first waiter of each line is notified and scans the queues. If the batch of the
  waiter is then full, the next waiter is notified. Each message causes one scan per line, not one scan per
  waiter. Thousands of polls from one client therefore do not delay other clients.
- A receive does not yield to the event loop between the scan and the wait, so no arrival is missed.
- A notification does not reserve a message, so another receive may lease the message first. If the notified
  waiter has been cancelled, the next waiter is notified.

Memory usage is one future per waiter.

Limitation: a lost notification is not repeated. A notified receive that does not scan must notify the next
waiter (`notify_next`). This module notifies the next waiter after a cancelled wait, and
`services.live.clients.receivers` notifies the next waiter after a cancelled receive or a full batch.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable

Waiter = asyncio.Future[None]


class LongPolls:
    """The waiting receives for each wake-up key and line."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Hashable, dict[Hashable, dict[Waiter, None]]] = defaultdict(dict)
        self.is_closed = False
        """True if all polls have ended because the broker is stopping."""

    async def wait(self, key: Hashable, seconds: float, line: Hashable = None) -> bool:
        """Wait until a notification for `key` arrives. Return False on a timeout or when the broker stops.

        If `line` is None, the waiter is in a separate line and is notified of every arrival.
        """
        if seconds <= 0 or self.is_closed:
            return False
        waiter = asyncio.get_running_loop().create_future()
        line = waiter if line is None else line
        self._waiting[key].setdefault(line, {})[waiter] = None
        is_notified = False
        try:  # In Python 3.11, `asyncio.wait_for` can lose a cancellation that coincides with a notification.
            await asyncio.wait([waiter], timeout=seconds)
            is_notified = waiter.done()
        finally:
            self._remove_waiter(key, line, waiter)
            if waiter.done() and not is_notified:  # The wait was cancelled after the notification.
                self.notify_next(key, line)
        return is_notified and not self.is_closed

    def notify(self, *keys: Hashable) -> None:
        """Notify the first waiter in every line of the given keys, after a message has arrived."""
        for key in keys:
            if lines := self._waiting.get(key):
                for line in list(lines):
                    self.notify_next(key, line)

    def notify_others(self, key: Hashable, line: Hashable) -> None:
        """Notify the first waiter in every line of a key except `line`.

        This method is called after a receive has set messages aside for other filters.
        """
        for other in list(self._waiting.get(key, ())):
            if other != line:
                self.notify_next(key, other)

    def notify_next(self, key: Hashable, line: Hashable) -> None:
        """Notify the first waiter in a line, because further messages may be available."""
        waiters = self._waiting.get(key, {}).get(line)
        if waiters:
            waiter = next(iter(waiters))
            self._remove_waiter(key, line, waiter)
            assert not waiter.done(), "one in line was notified before, and this notification would be lost"
            waiter.set_result(None)

    def notify_all(self) -> None:
        """Notify all waiters."""
        for key, lines in list(self._waiting.items()):
            for line, waiters in list(lines.items()):
                for _ in list(waiters):
                    self.notify_next(key, line)

    def close(self) -> None:
        """End all current and future waits."""
        self.is_closed = True
        self.notify_all()

    def _remove_waiter(self, key: Hashable, line: Hashable, waiter: Waiter) -> None:
        """Remove a waiter from its line, and remove an empty line or key."""
        lines = self._waiting.get(key, {})
        waiters = lines.get(line, {})
        waiters.pop(waiter, None)
        if not waiters and lines.pop(line, None) is not None and not lines:
            del self._waiting[key]
        assert lines or key not in self._waiting, "a key without waiters stays for ever"
