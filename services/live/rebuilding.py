"""Recovery from disk failures. The core is discarded, and a new core is opened once the disk works again.

    WELL --(a disk operation fails)----------> VOID --(all writes have ended)--------------> REBUILDING
      ^                                                                                        |     |
      +-----------------------------(a new core is open)---------------------------------------+     |
                                                       REBUILDING <--(pause has ended)-- PAUSING <---+

Rules:
- After a disk failure, the state of the core may be incomplete, and the set of writes that have reached the
  disk is unknown. The core is therefore discarded immediately, and later calls raise `StoreUnavailable`.
- Calls that are waiting for a flush of the discarded core fail with `ResultUnknown`. The official clients
  then resend the messages.
- The first attempt to open a new core runs immediately in the event loop thread, so a transient failure
  causes no errors in later calls. If the queues must be rebuilt, which requires a scan of the whole log, the
  first attempt runs in a worker thread. Later attempts run in a worker thread after pauses that double each
  time, up to `PAUSE_SECONDS_MAX` seconds.
- When the store is opened, acknowledged records that were not synced (`--flush async`) are read, verified,
  and rewritten (`commitlog.log.recovery`). Unreadable records are reported as damage with their offsets.
  After a failed sync, a later successful sync of the same data is never trusted.
- Any error other than a `StoreError` is an internal error and ends the process (`stop_on_internal_error`).

Limitation: the first attempt blocks the event loop. The duration of an attempt depends on the size of the log
after the last snapshot, which is at most `SNAPSHOT_LOG_BYTES_MAX` bytes. If the disk is readable but not
writable, the store is opened again after every pause.
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
from services.live.errors import StoreUnavailable

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.1, 5.0

log = structlog.get_logger()

Open = Callable[[int], Broker]
"""Opens the store, and verifies the log from the given offset onwards.

Raises a `StoreError` if the store cannot be opened.
"""


class Owner(Protocol):
    """The owner of the broker core."""

    def adopt(self, core: Broker) -> None:
        """Resume service with a new core."""

    def stop_on_internal_error(self, bug: BaseException) -> None:
        """Stop the broker without further writes after an internal error."""


class StoreRebuilder:
    """Opens a new core after a disk failure, and retries if an attempt fails."""

    def __init__(
        self,
        owner: Owner,
        open_core: Open,
        call_later: CallLater,
        executor: Executor,
        reads_all: Callable[[], bool] = lambda: False,
    ) -> None:
        """`reads_all` returns whether opening the store requires a scan of the whole log."""
        self._owner, self._open, self._call_later, self._executor = owner, open_core, call_later, executor
        self._reads_all = reads_all
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        self._trusted_offset = 0
        self._attempt: asyncio.Future[Broker] | None = None
        self._is_closed = False
        self.disk_failure: StoreUnavailable | None = None
        """The error that made the core unavailable, or None if the core is available."""

    def refuse_callers(self, core: Broker, error: OSError) -> None:
        """Reject new calls, and trust the log only up to the durable offset of the failed core."""
        self._trusted_offset = core.durable_offset
        self.disk_failure = StoreUnavailable(
            f"{error}. It goes on by itself once the disk works; send again then."
        )
        log.error(
            "the core is let go, nothing is served", reason=str(error), trusted_offset=self._trusted_offset
        )

    def begin(self) -> None:
        """Open a new core. No write may be running.

        If no write has succeeded since an earlier attempt, the new attempt starts after a pause.
        """
        assert self.disk_failure is not None, "a core is made anew though none was let go"
        assert self._attempt is None, "two attempts at once would open one store"
        if self._failures:
            self._pause()
            return
        if self._reads_all():
            self._retry_rebuild()
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
        """Prevent further attempts, and wait for the current attempt."""
        self._is_closed = True
        if self._attempt is not None:
            await asyncio.wait([self._attempt])

    def _pause(self) -> None:
        seconds = min(PAUSE_SECONDS_MIN * 2 ** min(self._failures, 10), PAUSE_SECONDS_MAX)
        self._call_later(seconds, self._retry_rebuild)

    def _retry_rebuild(self) -> None:
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
            self._owner.stop_on_internal_error(error)
        elif not self._is_closed:
            self._adopt(attempt.result())

    def _failed(self, error: StoreError) -> None:
        self._failures += 1
        self.disk_failure = StoreUnavailable(
            f"{error} It is tried again by itself; send again once it works."
        )
        log.error("store could not be opened again", reason=str(error), attempts=self._failures)
        self._pause()

    def _adopt(self, core: Broker) -> None:
        # Only a successful write resets the failure count. If the disk fails again before that, the next
        # attempt begins after a pause.
        self._failures += 1
        self.disk_failure = None
        log.warning("store opened again", durable_offset=core.durable_offset)
        self._owner.adopt(core)
