"""Implements recovery from disk failures: the core is discarded, and is rebuilt once the disk works again.

    WELL --(an operation on the disk fails)--> VOID --(all writes have ended)--------------> REBUILDING
      ^                                                                                        |     |
      +-----------------------------(a core was opened)----------------------------------------+     |
                                                       REBUILDING <--(after a pause)-- PAUSING <-----+

Rules:
- After a disk failure, a change to the core's state may be incomplete, and the broker cannot determine which
  of the core's writes have reached the disk. The core is therefore discarded immediately, and later calls
  raise `StoreUnwell`.
- Calls that were waiting for flushes of the void core fail with `ResultUnknown`, after which the official
  clients resend their messages.
- The first attempt to open a new core runs immediately in the event loop, so a transient failure does not
  cause errors in later calls. However, the first attempt runs in a worker thread if the queues must be
  rebuilt, because this requires a scan of the entire log. Later attempts also run in a worker thread, after
  pauses that double up to `PAUSE_SECONDS_MAX`.
- When the store is opened, acknowledged records that were not synced (`--flush async`) are read, verified,
  and rewritten (`commitlog.recovery`). Unreadable records are reported as damage, together with their
  offsets. After a failed sync, a later successful sync is never trusted.
- Any error other than a `StoreError` is an internal error, and terminates the process (`break_down`).

Weak spot: the first attempt blocks the event loop while the store is being opened. The duration of the first
attempt depends on the length of the log after the last snapshot, which is limited by
`SNAPSHOT_LOG_BYTES_MAX`. If the disk can be read but not written, the store is opened repeatedly, and only
the pauses limit the rate of attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

import structlog

from commitlog.errors import StoreError
from services.broker.broker import Broker
from services.live.alarm import CallLater
from services.live.errors import StoreUnwell

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.1, 5.0

log = structlog.get_logger()

Open = Callable[[int], Broker]
"""A function that opens the store and verifies the log after the given offset.

The function raises a `StoreError` if the store cannot be opened.
"""


class Owner(Protocol):
    """The owner of the broker core."""

    def adopt(self, core: Broker) -> None:
        """Resume service with a new core."""

    def break_down(self, bug: BaseException) -> None:
        """Stop the broker without further writes after an internal error in the core."""


class StoreRebuilder:
    """Opens a new core for the owner after a disk failure, and retries if the attempt fails."""

    def __init__(
        self,
        owner: Owner,
        open_core: Open,
        call_later: CallLater,
        executor: Executor,
        reads_all: Callable[[], bool] = lambda: False,
    ) -> None:
        """The function `reads_all` returns whether opening the store requires a scan of the entire log."""
        self._owner, self._open, self._call_later, self._executor = owner, open_core, call_later, executor
        self._reads_all = reads_all
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        self._trusted_offset = 0
        self._attempt: asyncio.Future[Broker] | None = None
        self._is_closed = False
        self.unwell: StoreUnwell | None = None
        """The reason why the core is unavailable, or None if the core is available."""

    def refuse_callers(self, core: Broker, error: OSError) -> None:
        """Reject new calls, and trust the log only up to the durable offset of the failed `core`."""
        self._trusted_offset = core.durable_offset
        self.unwell = StoreUnwell(f"{error}. It goes on by itself once the disk works; send again then.")
        log.error(
            "the core is let go, nothing is served", reason=str(error), trusted_offset=self._trusted_offset
        )

    def begin(self) -> None:
        """Open a new core.

        If no write has succeeded since an earlier attempt, the attempt begins after a pause. No write may be
        in progress.
        """
        assert self.unwell is not None, "a core is made anew though none was let go"
        assert self._attempt is None, "two attempts at once would open one store"
        if self._failures:
            self._pause()
            return
        if self._reads_all():
            self._try_again()
            return
        try:
            core = self._open(self._trusted_offset)
        except StoreError as error:
            self._failed(error)
        else:
            self._adopt(core)

    def reset_failures(self) -> None:
        """Reset the failure count after a successful write."""
        self._failures = 0

    async def close(self) -> None:
        """Prevent further attempts, and wait until the current attempt has ended."""
        self._is_closed = True
        if self._attempt is not None:
            await asyncio.wait([self._attempt])

    def _pause(self) -> None:
        seconds = min(PAUSE_SECONDS_MIN * 2 ** min(self._failures, 10), PAUSE_SECONDS_MAX)
        self._call_later(seconds, self._try_again)

    def _try_again(self) -> None:
        if not self._is_closed:
            assert self._attempt is None, "two attempts at once would open one store"
            self._attempt = self._loop.run_in_executor(self._executor, self._open, self._trusted_offset)
            self._attempt.add_done_callback(self._end_attempt)

    def _end_attempt(self, attempt: asyncio.Future[Broker]) -> None:
        self._attempt = None
        error = attempt.exception()
        if isinstance(error, StoreError):
            self._failed(error)
        elif error is not None:
            self._owner.break_down(error)
        elif not self._is_closed:
            self._adopt(attempt.result())

    def _failed(self, error: StoreError) -> None:
        self._failures += 1
        self.unwell = StoreUnwell(f"{error} It is tried again by itself; send again once it works.")
        log.error("store could not be opened again", reason=str(error), attempts=self._failures)
        self._pause()

    def _adopt(self, core: Broker) -> None:
        # The failure count is reset by a successful write. If the disk fails again before a write succeeds,
        # the next attempt begins after a pause.
        self._failures += 1
        self.unwell = None
        log.warning("store opened again", durable_offset=core.durable_offset)
        self._owner.adopt(core)
