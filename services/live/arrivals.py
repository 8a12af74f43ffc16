"""Long polls: receivers that found nothing sleep until their topic has something for them.

Those who want the same (one group with one filter) stand in line. An arrival rings the first of each line;
who is rung looks, and who took as much as it could rings the next. So a message costs one look a line, not
one a sleeper, and thousands of polls of one client keep nobody else waiting.

A receiver looks and goes to sleep without letting the loop run in between, so no arrival is missed. A ring is
a hint: whoever is rung looks again and may find that another receiver was quicker. A ring that reaches
somebody who has just given up is handed to the next in line.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Hashable

Ring = asyncio.Future[None]


class Arrivals:
    """Who sleeps on which topic, in which line."""

    def __init__(self) -> None:
        self._asleep: defaultdict[str, dict[Hashable, dict[Ring, None]]] = defaultdict(dict)
        self._closed = False

    async def wait(self, topic: str, seconds: float, line: Hashable = None) -> bool:
        """Sleep until something arrives in `topic`; False when the time is up or the broker stops.

        Without a `line` every arrival rings.
        """
        if seconds <= 0 or self._closed:
            return False
        ring = asyncio.get_running_loop().create_future()
        line = ring if line is None else line
        self._asleep[topic].setdefault(line, {})[ring] = None
        is_heard = False
        try:  # asyncio.wait_for of Python 3.11 would lose a cancellation that comes with the ring
            await asyncio.wait([ring], timeout=seconds)
            is_heard = ring.done()
        finally:
            self._forget(topic, line, ring)
            if ring.done() and not is_heard:
                self.ring(topic, line)
        return is_heard and not self._closed

    def wake(self, topic: str) -> None:
        """Something has arrived: ring the first of every line."""
        for line in list(self._asleep.get(topic, ())):
            self.ring(topic, line)

    def ring(self, topic: str, line: Hashable) -> None:
        """Ring the first of one line: there may be more than the last one took."""
        waiting = self._asleep.get(topic, {}).get(line)
        if waiting:
            ring = next(iter(waiting))
            self._forget(topic, line, ring)
            ring.set_result(None)

    def wake_all(self) -> None:
        """Ring everybody."""
        for topic, lines in list(self._asleep.items()):
            for line, waiting in list(lines.items()):
                for _ in list(waiting):
                    self.ring(topic, line)

    def close(self) -> None:
        """Send every sleeper home, now and from now on."""
        self._closed = True
        self.wake_all()

    def _forget(self, topic: str, line: Hashable, ring: Ring) -> None:
        lines = self._asleep.get(topic, {})
        waiting = lines.get(line, {})
        waiting.pop(ring, None)
        if not waiting and lines.pop(line, None) is not None and not lines:
            del self._asleep[topic]
