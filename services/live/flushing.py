"""Group commit in the loop: what the core has appended goes to disk in worker threads, several at a time.

    flush_soon -> (next turn of the loop) -> take a flush -> worker thread writes and syncs -> settle -> again

Rules:
- Everything appended in one turn shares one flush, however many callers there were. While a flush is under
  way the next one lingers until that has ended, or has taken `LINGER_SECONDS`. With 16 callers who pause, on
  a disk that syncs within that time, flushes one after the other answer in 1.7 ms (p50) for 320 us of
  processor time a call, three side by side in 2.4 ms for 430; on one that syncs in 4 ms in 8.2 and 5.8 ms.
- Once anything fails on the disk the core is void and no flush begins; when the last one under way has
  ended, `rebuild` is called once, so that nothing is still being written while the log is cut; `go_on` says
  that there is a core again.
- Queue entries are written `ENTRIES_SECONDS` after their flush, with all that came meanwhile.
- With asynchronous flushes a sync follows every `SYNC_SECONDS` while there is something to sync.
- A sync that fails, of a flush, of a checkpoint or by itself, is never tried again and believed: `rebuild`.
- While a checkpoint is written the rest goes on, up to a bound: then flushes, and their callers, wait for it,
  so that memory and the next start's work stay bounded.
- When the core wants a checkpoint, no new flush begins; in the turn after the last one has ended, what was
  appended meanwhile is written in the loop itself (one sync), and the checkpoint begins. Its rows are taken
  in the turns that follow, some in each; then a worker writes them down (`services.broker.checkpoint`).

Weak spot: the state is some flags, of which few combinations can be, and not one machine: a rebuild only of
what is void, nothing calm while anything flies. And the flush before a checkpoint blocks the loop for its
sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Protocol

import structlog

from commitlog import limits, snapshot
from commitlog.disk import Disk, SyncFailed
from commitlog.flush import Flush, Sync
from services.broker.broker import Broker
from services.broker.checkpoint import Checkpoint

LINGER_SECONDS = 0.001
SYNC_SECONDS = 0.5
ENTRIES_SECONDS = 0.05
ROWS_PER_TURN = 1_000
"""Rows of a checkpoint that one turn of the loop takes: 1 to 2 ms."""

log = structlog.get_logger()


class Owner(Protocol):
    """Who owns the core, and is told what became of its flushes."""

    @property
    def core(self) -> Broker:
        """The core of this moment."""

    @property
    def is_retiring(self) -> bool:
        """Whether segments are being deleted: no time to rebuild."""

    def broker_ms(self) -> int:
        """Return the broker's time, in ms."""

    def settle(self, flush: Flush) -> None:
        """Give the answers that waited for a flush, which is on disk."""

    def void(self, error: OSError) -> None:
        """Let the core go, which the disk has failed: nobody is to use it any more."""

    def rebuild(self) -> None:
        """Make a new core: the old one is void, and nothing is being written any more."""

    def break_down(self, bug: BaseException) -> None:
        """End, writing nothing more: the core has a bug."""


def log_checkpoint(disk: Disk, checkpoint: Checkpoint, before_offset: int, seconds: float) -> None:
    """Log a checkpoint that was written, after the one at `before_offset`, and how long it took."""
    offset, snapshot_bytes = checkpoint.snapshot.offset, -1
    with suppress(OSError):
        snapshot_bytes = disk.size(snapshot.path_of(offset))
    log.info(
        "checkpoint written",
        offset=offset,
        log_bytes=offset - before_offset,
        snapshot_bytes=snapshot_bytes,
        took_ms=round(seconds * 1000),
    )


class Flushing:
    """Writes what `owner`'s core appends to `disk`, on the threads of `executor`."""

    def __init__(self, owner: Owner, disk: Disk, executor: Executor) -> None:
        self._owner, self._disk, self._executor = owner, disk, executor
        self._loop = asyncio.get_running_loop()
        self.will_flush = False
        """Whether a look is planned, or worth nothing before a flush ends or takes long, which plans one."""
        self._is_waiting = self._is_linger_planned = False
        """Whether none begins before one ends or takes long; and whether a look at how long is planned."""
        self._began_at = 0.0
        """By the loop's clock, when the last flush began."""
        self._is_checkpointing = False
        self._checkpoint_began_at = 0.0
        """By the loop's clock."""
        self._is_stopped = False
        self._is_sync_planned = self._are_entries_planned = False
        self._publishing = Lock()
        self._flying_count, self._flying_max = 0, limits.FLUSHES_IN_FLIGHT_MAX
        self._is_void = self._is_rebuilding = False
        self._idle = asyncio.Event()
        self._idle.set()

    def flush_soon(self) -> None:
        """Look for something to write in the next turn of the loop."""
        if not self.will_flush:
            self.will_flush = True
            self._idle.clear()
            self._loop.call_soon(self._begin)

    async def idle(self) -> None:
        """Return when everything appended has been written, or cannot be."""
        await self._idle.wait()

    def fail(self, error: OSError) -> None:
        """Let the core go, since the disk has failed somewhere; make a new one when all is calm."""
        if self._is_stopped:
            return
        if not self._is_void:
            self._is_void = True
            self._owner.void(error)
        if self._flying_count == 0:
            self._when_idle()
        self.flush_soon()

    def go_on(self) -> None:
        """Flush what a new core appends."""
        assert self._is_rebuilding, "a new core that nobody asked for"
        assert self._flying_count == 0, "writes of the old core go on beside the new one"
        self._is_void = self._is_rebuilding = False
        self.flush_soon()

    def resume(self) -> None:
        """Go on when what kept the core from being rebuilt is over."""
        if self._flying_count == 0:
            self._when_idle()
        self.flush_soon()

    def stop(self) -> None:
        """Write nothing more: the core cannot be trusted."""
        self._is_stopped = True
        self._idle.set()

    def _begin(self) -> None:
        if self._linger():
            return
        self.will_flush = False
        self._checkpoint_if_due()
        if not self._is_held() and (flush := self._owner.core.take_flush()) is not None:
            self._began_at, self._flying_max = self._loop.time(), self._owner.core.flushes_max
            self._submit(partial(flush.write, self._publishing), partial(self._end, flush))
        # Where no more may be under way, nothing begins before one of them ends, and that flushes soon.
        self._is_waiting = self.will_flush = self._flying_count >= self._flying_max
        if self._flying_count > 0 or self._is_checkpointing:
            return
        self._idle.set()

    def _linger(self) -> bool:
        """Return whether a flush is under way that may soon end; what gathers meanwhile waits for it."""
        left_seconds = self._began_at + LINGER_SECONDS - self._loop.time()
        self._is_waiting = self._flying_count > 0 and left_seconds > 0
        if self._is_waiting and not self._is_linger_planned:
            self._is_linger_planned = True
            self._loop.call_later(left_seconds, self._end_linger)
        return self._is_waiting

    def _end_linger(self) -> None:
        self._is_linger_planned = False
        if self._is_waiting:
            self._is_waiting = self.will_flush = False
            self.flush_soon()

    def _submit(self, write: Callable[[], None], end: Callable[[BaseException | None], None]) -> None:
        """Let a worker write, and the loop be told how that ended."""
        self._flying_count += 1
        self._executor.submit(self._write, write, end)

    def _write(self, write: Callable[[], None], end: Callable[[BaseException | None], None]) -> None:
        """Write in a worker thread; tell the loop without a future between, which costs a turn of it."""
        error: BaseException | None = None
        try:
            write()
        except BaseException as raised:  # a write that is never told of: its callers wait for ever
            error = raised
        self._loop.call_soon_threadsafe(self._written, partial(end, error))

    def _is_held(self) -> bool:
        """Return whether no flush may begin, or not before those under way have ended."""
        if self._is_stopped or self._is_void:
            return True
        if self._is_checkpointing and self._owner.core.is_overfull:
            return True
        return self._flying_count > 0 and self._owner.core.is_checkpoint_due

    def _written(self, end: Callable[[], None]) -> None:
        if self._is_waiting:
            self._is_waiting = self.will_flush = False
        self._flying_count -= 1
        assert self._flying_count >= 0, "more writes ended than began"
        self._run_step(end)

    def _run_step(self, step: Callable[[], None]) -> None:
        """Take a step in which the disk may fail; any other error is a bug, and the end."""
        try:
            step()
        except OSError as error:
            self.fail(error)
        except Exception as bug:
            self._owner.break_down(bug)

    def _end(self, flush: Flush, error: BaseException | None) -> None:
        if error is not None:
            raise error
        if not self._is_void:
            self._owner.settle(flush)
            if not flush.sync:
                self._plan_sync()
            if not self._are_entries_planned:
                self._are_entries_planned = True
                self._loop.call_later(ENTRIES_SECONDS, self._take_entries)
        self._go_on_writing()

    def _take_entries(self) -> None:
        self._are_entries_planned = False
        if self._is_stopped or self._is_void or (entries := self._owner.core.take_entries()) is None:
            return
        self._idle.clear()
        self._submit(partial(entries.write, self._disk), self._end_entries)

    def _end_entries(self, error: BaseException | None) -> None:
        if error is not None:
            raise error
        if not self._is_void and self._owner.core.entries_written():
            self._take_entries()  # more may wait
        self._go_on_writing()

    def _go_on_writing(self) -> None:
        if self._flying_count == 0 and self._is_void:
            self._when_idle()
        self.flush_soon()

    def _checkpoint_if_due(self) -> None:
        """Take a checkpoint before anything else is written, where nothing flies.

        In a turn of its own: the flush before it was settled in another, and either takes milliseconds.
        """
        if self._flying_count == 0 and not self._is_held() and self._owner.core.is_checkpoint_due:
            self._when_idle()

    def _when_idle(self) -> None:
        """Rebuild, or take a checkpoint, if either is due: no flush is under way.

        Not while an earlier checkpoint is being written: a rebuilt core would tidy up what that is about to
        name.
        """
        assert self._flying_count == 0, "not calm: something is being written"
        assert self._is_void or not self._is_rebuilding, "a core is rebuilt that is not void"
        if self._is_stopped or self._is_checkpointing or self._is_rebuilding:
            return
        if self._is_void:
            if not self._owner.is_retiring:
                self._is_rebuilding = True
                self._owner.rebuild()
        elif self._owner.core.is_checkpoint_due:
            self._run_step(self._checkpoint)

    def _checkpoint(self) -> None:
        """Begin a checkpoint, when everything is durable."""
        assert not self._is_checkpointing, "two checkpoints at once"
        flush = self._owner.core.take_flush()
        if flush is not None:
            flush.write(self._publishing)
            self._owner.settle(flush)
        # In the loop: nothing may be appended between the flush and the state that is taken.
        self._checkpoint_began_at = self._loop.time()
        checkpoint = self._owner.core.checkpoint(self._owner.broker_ms())
        self._is_checkpointing = True
        self._take_rows(checkpoint)

    def _take_rows(self, checkpoint: Checkpoint) -> None:
        """Take some rows of a checkpoint; let a worker write it once all are taken."""
        if self._is_stopped:
            return
        if not checkpoint.take(ROWS_PER_TURN):
            self._loop.call_soon(self._take_rows, checkpoint)
            return
        written = self._loop.run_in_executor(self._executor, checkpoint.write, self._disk)
        written.add_done_callback(partial(self._checkpointed, checkpoint))

    def _checkpointed(self, checkpoint: Checkpoint, written: asyncio.Future[None]) -> None:
        self._is_checkpointing = False
        self._run_step(partial(self._end_checkpoint, checkpoint, written.exception()))
        self.resume()

    def _end_checkpoint(self, checkpoint: Checkpoint, error: BaseException | None) -> None:
        """Tell the core what came of a checkpoint; a void one has no use for that, the next begins there."""
        if isinstance(error, OSError):
            log.warning("no snapshot was written", reason=str(error))
        elif error is not None:
            raise error
        if self._is_void:
            return
        if error is None:
            before_offset = self._owner.core.written_offset
            self._owner.core.checkpointed(checkpoint)
            log_checkpoint(
                self._disk, checkpoint, before_offset, self._loop.time() - self._checkpoint_began_at
            )
        else:
            self._owner.core.checkpoint_failed(checkpoint)
            if isinstance(error, SyncFailed):
                self.fail(error)

    def _plan_sync(self) -> None:
        if not self._is_sync_planned:
            self._is_sync_planned = True
            self._loop.call_later(SYNC_SECONDS, self._sync)

    def _sync(self) -> None:
        self._is_sync_planned = False
        if self._is_stopped or self._is_void:
            return
        core = self._owner.core
        sync = core.take_sync()
        if sync is not None:
            synced = self._loop.run_in_executor(self._executor, sync.run, self._disk)
            synced.add_done_callback(partial(self._synced, core, sync))

    def _synced(self, core: Broker, sync: Sync, done: asyncio.Future[None]) -> None:
        error = done.exception()
        if self._is_void or core is not self._owner.core:  # the new core has read again what was not synced
            return
        if isinstance(error, OSError):
            self.fail(error)
        else:
            self._run_step(partial(self._end_sync, core, sync, error))

    def _end_sync(self, core: Broker, sync: Sync, error: BaseException | None) -> None:
        if error is not None:
            raise error
        core.synced(sync)
