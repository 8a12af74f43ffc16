"""Long polls: receivers that found nothing sleep until their topic has something for them, or where
that is of type LITE, one of their lite topics.

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

from services.broker.values import Bell

Ring = asyncio.Future[None]


class Arrivals:
    """Who sleeps at which bell, in which line."""

    def __init__(self) -> None:
        self._asleep: defaultdict[Bell, dict[Hashable, dict[Ring, None]]] = defaultdict(dict)
        self._closed = False

    async def wait(self, bell: Bell, seconds: float, line: Hashable = None) -> bool:
        """Sleep until something arrives at `bell`; False when the time is up or the broker stops.

        Without a `line` every arrival rings.
        """
        if seconds <= 0 or self._closed:
            return False
        ring = asyncio.get_running_loop().create_future()
        line = ring if line is None else line
        self._asleep[bell].setdefault(line, {})[ring] = None
        is_heard = False
        try:  # asyncio.wait_for of Python 3.11 would lose a cancellation that comes with the ring
            await asyncio.wait([ring], timeout=seconds)
            is_heard = ring.done()
        finally:
            self._forget(bell, line, ring)
            if ring.done() and not is_heard:
                self.ring(bell, line)
        return is_heard and not self._closed

    def wake(self, bell: Bell) -> None:
        """Something has arrived: ring the first of every line."""
        for line in list(self._asleep.get(bell, ())):
            self.ring(bell, line)

    def ring(self, bell: Bell, line: Hashable) -> None:
        """Ring the first of one line: there may be more than the last one took."""
        waiting = self._asleep.get(bell, {}).get(line)
        if waiting:
            ring = next(iter(waiting))
            self._forget(bell, line, ring)
            ring.set_result(None)

    def wake_all(self) -> None:
        """Ring everybody."""
        for bell, lines in list(self._asleep.items()):
            for line, waiting in list(lines.items()):
                for _ in list(waiting):
                    self.ring(bell, line)

    def close(self) -> None:
        """Send every sleeper home, now and from now on."""
        self._closed = True
        self.wake_all()

    def _forget(self, bell: Bell, line: Hashable, ring: Ring) -> None:
        lines = self._asleep.get(bell, {})
        waiting = lines.get(line, {})
        waiting.pop(ring, None)
        if not waiting and lines.pop(line, None) is not None and not lines:
            del self._asleep[bell]
