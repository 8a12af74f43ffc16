"""Long polls: receivers that found nothing sleep until their topic has something.

A receiver looks and goes to sleep without letting the loop run in between, so no arrival is missed.
A wake-up is a hint: whoever wakes looks again and may find that another receiver was quicker.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict


class Arrivals:
    """Who sleeps on which topic."""

    def __init__(self) -> None:
        self._asleep: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._closed = False

    async def wait(self, topic: str, seconds: float) -> bool:
        """Sleep until something arrives in `topic`; False when the time is up or the broker stops."""
        if seconds <= 0 or self._closed:
            return False
        ring = asyncio.get_running_loop().create_future()
        self._asleep[topic].add(ring)
        try:
            await asyncio.wait_for(ring, seconds)
        except TimeoutError:
            return False
        finally:
            self._forget(topic, ring)
        return not self._closed

    def wake(self, topic: str) -> None:
        """Wake everybody who sleeps on `topic`."""
        for ring in self._asleep.get(topic, ()):
            if not ring.done():
                ring.set_result(None)

    def wake_all(self) -> None:
        """Wake everybody."""
        for topic in self._asleep:
            self.wake(topic)

    def close(self) -> None:
        """Send every sleeper home, now and from now on."""
        self._closed = True
        self.wake_all()

    def _forget(self, topic: str, ring: asyncio.Future[None]) -> None:
        asleep = self._asleep[topic]
        asleep.discard(ring)
        if not asleep:
            del self._asleep[topic]
