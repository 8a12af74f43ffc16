"""What a broker does when its disk fails: it lets the core go, and makes a new one when the disk works again.

    WELL --(an operation on the disk fails)--> VOID --(nothing is being written any more)--> REBUILDING
      ^                                                                                        |     |
      +-----------------------------(a core was opened)----------------------------------------+     |
                                                       REBUILDING <--(after a pause)-- PAUSING <-----+

Rules:
- A core that met a failure may be half way through a change, and nobody knows what of its writes is on disk.
  It is let go at once: whoever asks for it gets `StoreUnwell`, so no code path can be served by it.
- Whoever waited for its flushes is told `ResultUnknown`; official clients send again.
- The first attempt is made at once, in the loop: callers of a failure that has passed wait for it and see
  nothing. It runs in a worker where the queues are to be made anew, which reads the whole log; and so do the
  others, after pauses that double up to `PAUSE_SECONDS_MAX`.
- What was acknowledged and not synced (`--flush async`) is read again, checked and written once more by the
  start (`commitlog.recovery`); what cannot be read is damage, told with its offsets. A failed sync is never
  tried again and believed.
- An error that is not the disk's is a bug, and ends the process (`break_down`).

Weak spot: the first attempt holds the loop for as long as opening takes, which grows with what lies behind
the last snapshot (`SNAPSHOT_LOG_BYTES_MAX`). And a disk that takes reads but no writes is opened again and
again, with only the pauses between.
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
"""Open the store, trusting nothing of the log behind an offset; raise a `StoreError`."""


class Owner(Protocol):
    """Who owns the core."""

    def adopt(self, core: Broker) -> None:
        """Go on with a new core."""

    def break_down(self, bug: BaseException) -> None:
        """End, writing nothing more: the core has a bug."""


class Rebuilding:
    """Makes new cores for `owner` with `open_core`."""

    def __init__(
        self,
        owner: Owner,
        open_core: Open,
        call_later: CallLater,
        executor: Executor,
        reads_all: Callable[[], bool] = lambda: False,
    ) -> None:
        """`reads_all`: whether opening the store would read the whole log."""
        self._owner, self._open, self._call_later, self._executor = owner, open_core, call_later, executor
        self._reads_all = reads_all
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        self._trusted_offset = 0
        self._attempt: asyncio.Future[Broker] | None = None
        self._is_closed = False
        self.unwell: StoreUnwell | None = None
        """Why nothing is served; None while the core can be."""

    def let_go(self, core: Broker, error: OSError) -> None:
        """Refuse callers from now on; trust of the log what was durable in `core`, which the disk failed."""
        self._trusted_offset = core.durable_offset
        self.unwell = StoreUnwell(f"{error}. It goes on by itself once the disk works; send again then.")
        log.error(
            "the core is let go, nothing is served", reason=str(error), trusted_offset=self._trusted_offset
        )

    def begin(self) -> None:
        """Make a new core, at once unless that has just been tried; nothing is being written any more."""
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

    def went_well(self) -> None:
        """Learn that the disk has taken a write: the next failure is a new one."""
        self._failures = 0

    async def close(self) -> None:
        """Make no more cores; return when none is being made."""
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
            self._attempt.add_done_callback(self._tried)

    def _tried(self, attempt: asyncio.Future[Broker]) -> None:
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
        # Until a write succeeds: a disk that fails again is not to be asked without a pause.
        self._failures += 1
        self.unwell = None
        log.warning("store opened again", durable_offset=core.durable_offset)
        self._owner.adopt(core)
