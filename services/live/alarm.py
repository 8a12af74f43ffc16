"""A single alarm for all due work. The alarm fires at the earliest due time and must then be set again.

Setting a time later than the current due time has no effect. Without pending work, no alarm is set, and the
broker is idle. An alarm always fires within `RECHECK_MS` milliseconds, because the system clock may be
changed after the alarm is set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

RECHECK_MS = 1_000


class Handle(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the scheduled call."""


CallLater = Callable[[float, Callable[[], None]], Handle]
"""Schedules a call after a delay in seconds, like `loop.call_later`."""


class Alarm:
    """An alarm that calls `due` when it fires."""

    def __init__(self, due: Callable[[], None], clock: Callable[[], int], call_later: CallLater) -> None:
        self._due, self._clock, self._call_later = due, clock, call_later
        self._handle: Handle | None = None
        self._due_ms = 0
        self._is_closed = False

    def set(self, due_ms: int | None) -> None:
        """Set the alarm to fire at `due_ms` or earlier. If `due_ms` is None, do nothing."""
        if self._is_closed or due_ms is None or (self._handle is not None and self._due_ms <= due_ms):
            return
        self.stop()
        wait_ms = min(max(due_ms - self._clock(), 0), RECHECK_MS)
        self._due_ms = due_ms
        self._handle = self._call_later(wait_ms / 1000, self._fire)

    def stop(self) -> None:
        """Cancel the scheduled call."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def close(self) -> None:
        """Cancel the scheduled call, and disable the alarm permanently."""
        self._is_closed = True
        self.stop()

    def _fire(self) -> None:
        self._handle = None
        self._due()
