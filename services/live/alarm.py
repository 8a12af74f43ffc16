"""One alarm for everything that is due later: it goes off when the earliest thing is due, and is set again.

Rules: an alarm that is already early enough is left alone; nothing due means no alarm, so an idle broker
sleeps; a far alarm goes off every `LOOK_AGAIN_MS` at the latest, because wall time may jump while we sleep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

LOOK_AGAIN_MS = 1_000


class Handle(Protocol):
    """A planned call that can be taken back."""

    def cancel(self) -> None:
        """Take the call back."""


CallLater = Callable[[float, Callable[[], None]], Handle]
"""Plan a call after so many seconds; `loop.call_later` is one."""


class Alarm:
    """Calls `due` at the wall time it is set for, never before."""

    def __init__(self, due: Callable[[], None], clock: Callable[[], int], call_later: CallLater) -> None:
        self._due, self._clock, self._call_later = due, clock, call_later
        self._handle: Handle | None = None
        self._due_ms = 0
        self._is_closed = False

    def set(self, due_ms: int | None) -> None:
        """Go off at `due_ms` or before that time's turn; None changes nothing."""
        if self._is_closed or due_ms is None or (self._handle is not None and self._due_ms <= due_ms):
            return
        self.stop()
        wait_ms = min(max(due_ms - self._clock(), 0), LOOK_AGAIN_MS)
        self._due_ms = due_ms
        self._handle = self._call_later(wait_ms / 1000, self._fire)

    def stop(self) -> None:
        """Take back what is planned."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """Never go off again, whoever sets the alarm."""
        self._is_closed = True
        self.stop()

    def _fire(self) -> None:
        self._handle = None
        self._due()
