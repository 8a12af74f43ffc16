"""Implements long polls, in which a receiver without a message waits for an arrival or for a timeout.

A wake-up key is a topic, the subscription of one client (for a topic of type LITE), or a poll for
check-backs. Receivers with the same group and filter wait in one line of a key and are notified in the order
in which they began to wait:

    key --> line (group, filter) --> waiters, oldest first

Rules:
- An arrival notifies the first waiter of each line. The notified receiver scans, and notifies the next waiter
  if its batch is full. A message costs one scan for each line, not for each waiter, so thousands of polls of
  one client do not delay other clients.
- A receiver scans and begins to wait without a yield to the event loop, so no arrival is missed.
- A notification does not reserve a message. The notified receiver scans again, and another receiver may lease
  the message first. If the notified waiter was cancelled, the next waiter of the line is notified.

Memory: each waiter has one future.

Weak spot: a lost notification is not repeated. A notified receiver that does not scan must therefore notify
the next receiver (`notify_next`). This file notifies the next receiver after a cancelled wait, and
`services.live.receivers` does so on cancellation and after a full batch.
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
        """Whether all polls have ended because the broker is stopping."""

    async def wait(self, key: Hashable, seconds: float, line: Hashable = None) -> bool:
        """Wait until `key` is notified. Return False after `seconds` or when the broker stops.

        A waiter without a `line` has its own line and is notified of every arrival.
        """
        if seconds <= 0 or self.is_closed:
            return False
        waiter = asyncio.get_running_loop().create_future()
        line = waiter if line is None else line
        self._waiting[key].setdefault(line, {})[waiter] = None
        is_notified = False
        try:  # `asyncio.wait_for` of Python 3.11 can lose a cancellation in the turn of the notification.
            await asyncio.wait([waiter], timeout=seconds)
            is_notified = waiter.done()
        finally:
            self._remove_waiter(key, line, waiter)
            if waiter.done() and not is_notified:  # The wait was cancelled in the turn of its notification.
                self.notify_next(key, line)
        return is_notified and not self.is_closed

    def notify(self, *keys: Hashable) -> None:
        """Notify the first waiter of every line of each key, after an arrival."""
        for key in keys:
            if lines := self._waiting.get(key):
                for line in list(lines):
                    self.notify_next(key, line)

    def notify_others(self, key: Hashable, line: Hashable) -> None:
        """Notify the first waiter of every other line, after a receive has set messages aside for them."""
        for other in list(self._waiting.get(key, ())):
            if other != line:
                self.notify_next(key, other)

    def notify_next(self, key: Hashable, line: Hashable) -> None:
        """Notify the first waiter of a line, because more messages may be available."""
        waiters = self._waiting.get(key, {}).get(line)
        if waiters:
            waiter = next(iter(waiters))
            self._remove_waiter(key, line, waiter)
            assert not waiter.done(), "one in line was notified before, and this notification would be lost"
            waiter.set_result(None)

    def notify_all(self) -> None:
        """Notify every waiter."""
        for key, lines in list(self._waiting.items()):
            for line, waiters in list(lines.items()):
                for _ in list(waiters):
                    self.notify_next(key, line)

    def close(self) -> None:
        """End every current and later wait."""
        self.is_closed = True
        self.notify_all()

    def _remove_waiter(self, key: Hashable, line: Hashable, waiter: Waiter) -> None:
        """Remove a waiter from its line, and remove a line and a key that become empty."""
        lines = self._waiting.get(key, {})
        waiters = lines.get(line, {})
        waiters.pop(waiter, None)
        if not waiters and lines.pop(line, None) is not None and not lines:
            del self._waiting[key]
        assert lines or key not in self._waiting, "a key without waiters stays for ever"
