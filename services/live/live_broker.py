"""The broker inside an asyncio loop: the only owner of the core, and the only one that moves its time.

What can be asked of it is in `services.live.verbs`.

    caller -> verb -> core (runs to completion) -> answer waits for its offset -> caller
                        |                               ^
                        +-> flush in a worker thread ---+-> effects: wake receivers, ask producers
                        +-> alarm at the core's next due time -> tick -> effects

Rules:
- The callers of one turn of the loop share one flush, however many they are (`services.live.flushing`).
- A tick that has more to do than its slice is due again soon; the loop serves callers in between, for as many
  turns as a call needs.
- A flush that fails refuses every waiting caller (`ResultUnknown`) and rebuilds the core from the disk.
- Callers speak of real time, the core of the broker's time: this is the border (`services.live.clock`).
- A bug in the core is not survived: `broken` gets the exception, and the process is expected to end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress

import structlog

from commitlog.disk import Disk
from commitlog.errors import ResultUnknown, StoreError, TidewheelError
from commitlog.flush import Flush
from commitlog.message import Message
from commitlog.retention import Retirement
from services.broker.broker import Broker
from services.broker.settings import BrokerSettings
from services.broker.values import (
    CheckBack,
    Effect,
    ReadTimers,
    Retire,
    Wake,
    Warn,
)
from services.live.access import LiveAccess
from services.live.advancing import Advancing
from services.live.alarm import Alarm, CallLater
from services.live.arrivals import Arrivals
from services.live.clock import Clock, KeptOffset
from services.live.durability import DurableOffset
from services.live.flushing import Flushing
from services.live.groups import LiveGroups
from services.live.jumps import Jumps
from services.live.room import Room
from services.live.schedules import LiveSchedules
from services.live.transactions import LiveTransactions
from services.live.verbs import Answer, LiveVerbs
from timingwheel.due_run import ReadAhead

Read = Callable[[], Message | None]
"""Reads a half message, as callers see it; None if damage has taken it."""
Asker = Callable[[CheckBack, Read], str]
"""Asks a producer how its transaction ended, and reads the message only when there is one that can be asked;
returns its client id, empty when there is nobody."""
Share = Callable[[bool], None]
"""Is told when a crowded moment begins (True) and ends."""
Present = Callable[[], Iterable[str]]
"""The ids of the clients that are heard from."""


TURNS_BETWEEN_FULL_TICKS = 80
"""A send needs about ten turns of the loop, in some of which gRPC's thread has yet to get the interpreter."""

log = structlog.get_logger()


def nobody(question: CheckBack, read: Read) -> str:
    """Ask nobody: the asker of a broker that has no producers yet."""
    return ""


def always_alike(is_crowded: bool) -> None:
    """Share the interpreter as ever."""


class LiveBroker(LiveVerbs):
    """A broker that answers coroutines. Make it and use it in one running loop.

    `clock` is real time in milliseconds; with a `kept` offset the broker's clock is virtual.
    """

    def __init__(
        self,
        disk: Disk,
        settings: BrokerSettings,
        clock: Callable[[], int],
        call_later: CallLater,
        executor: Executor,
        kept: KeptOffset | None = None,
    ) -> None:
        self._disk, self.settings, self._executor = disk, settings, executor
        self.clock = Clock(clock, kept)
        self._clock = self.clock.now_ms
        self._loop, self._call_later = asyncio.get_running_loop(), call_later
        self._broker = self._open()
        self._durable = DurableOffset(self._broker.durable_offset)
        self._room = Room(lambda: self._broker.end_offset - self._broker.durable_offset)
        self._arrivals = Arrivals()
        self._alarm = Alarm(self._ring, self._clock, call_later)
        self._is_alarm_stale = self._is_crowded = False
        self._share: Share = always_alike
        self._flushing = Flushing(self, disk, executor)
        self._asker: Asker = nobody
        self._present: Present = tuple
        self._advancing = Advancing(self, self.clock)
        self.schedules = LiveSchedules(lambda: self._broker, self._told, self.clock)
        self.transactions = LiveTransactions(
            lambda: self._broker, self._told, self._ask, self.clock, self._room
        )
        self.groups = LiveGroups(
            lambda: self._broker, self._told, self._settled, self._arrivals.wake, self.clock, self._room
        )
        self.access = LiveAccess(lambda: self._broker.access, self._settled, self.clock)
        self._jumps = Jumps(self.clock.real_ms(), time.monotonic() * 1000)
        self._retiring: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self.broken: asyncio.Future[None] = self._loop.create_future()
        self._stir()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call back after so many seconds."""
        self._call_later(seconds, call)

    async def arrival(self, topic: str, seconds: float) -> bool:
        """Sleep until something arrives in `topic`; False when the time is up."""
        return await self._arrivals.wait(topic, seconds)

    # Time.

    async def advance(self, by_ms: int) -> None:
        """Let `by_ms` pass on a virtual clock; raises `ClockIsReal` or `IllegalAdvance`."""
        await self._advancing.advance(by_ms)

    def renew_with(self, present: Present) -> None:
        """Learn from `present` whose leases are renewed while the clock is advanced."""
        self._present = present

    def renew_present(self) -> None:
        """Renew the leases of clients that are heard from."""
        for client_id in self._present():
            self._broker.client_alive(client_id, self._clock())

    def answered(self, transaction_id: str, answer: str = "UNKNOWN") -> None:
        """A producer has answered a check-back, if only that it does not know."""
        self.transactions.log.answered(transaction_id, answer, self.clock.real_ms())
        self._advancing.answered(transaction_id)

    def tick(self) -> bool:
        """Let the core do what is due now; False if nothing came of it."""
        try:
            self._see_to_jumps()
            effects = self._broker.tick(self._clock())
            self._carry_out(effects)
        except Exception as bug:
            self.break_down(bug)
            raise
        self._stir()
        return bool(effects)

    async def durable(self, offset: int) -> None:
        """Return when the log is durable so far; raises `ResultUnknown`, or what broke the core."""
        await self._durable.reach(offset)
        if self.broken.done():
            self.broken.result()

    async def timers_ready(self) -> None:
        """Return when no timers are being read ahead, nor files rewritten for them."""
        while self._broker.is_checkpoint_due or (self._reading is not None and not self._reading.done()):
            if self._reading is not None:
                await self._reading
            self._flushing.stir()
            await self._flushing.idle()
            if self.broken.done():
                return

    def time_has_moved(self) -> None:
        """Plan the next tick anew."""
        self._alarm.stop()
        self._see_to_alarm()

    # Life.

    def ask_with(self, asker: Asker) -> None:
        """Let `asker` take check-backs to producers."""
        self._asker = asker

    def unasked_topics(self) -> list[str]:
        """Return the topics of which halves wait for a producer that can be asked."""
        return self._broker.unasked_topics()

    def producer_came(self, topic: str) -> None:
        """A producer of a topic can be asked, perhaps again: halves that wait for one are asked about."""
        self._call(self._broker.producer_came, topic)

    def share_with(self, share: Share) -> None:
        """Let `share` give loop and workers their parts of the interpreter."""
        self._share = share

    def release_receivers(self) -> None:
        """End every long poll, now and from now on."""
        self._arrivals.close()

    async def close(self) -> None:
        """Flush what is left, leave a snapshot for the next start, and let the core go.

        The disk stays the caller's.
        """
        self.release_receivers()
        self._stir()
        if self._retiring is not None:
            await self._retiring
        await self._flushing.idle()
        self._alarm.stop()
        if self._reading is not None:
            await self._reading
        if not self.broken.done() and self._broker.is_quiet:
            self._broker.checkpoint(self._clock()).write(self._disk)

    def _call(self, verb: Callable[..., Answer], *arguments: object) -> Answer:
        try:
            return verb(*arguments, self._clock())
        except TidewheelError:
            raise
        except Exception as bug:
            self.break_down(bug)
            raise
        finally:
            self._stir()

    def _stir(self) -> None:
        """After anything that may have appended or planned: see, once a turn, to the flush and the alarm."""
        self._flushing.stir()
        self._see_to_alarm()

    def _see_to_jumps(self) -> None:
        """Tell the core when somebody set the clock, which makes timers late or early for their owners."""
        wall_ms = self.clock.real_ms()
        jump_ms = self._jumps.seen(wall_ms, time.monotonic() * 1000)
        if jump_ms:
            log.warning("the clock was set", by_seconds=jump_ms / 1000)
        if jump_ms > 0:
            now_ms = self._clock()
            self._broker.clock_jumped(now_ms - jump_ms, now_ms)

    def _see_to_alarm(self) -> None:
        if not self._is_alarm_stale:
            self._is_alarm_stale = True
            self._loop.call_soon(self._set_alarm)

    def _set_alarm(self) -> None:
        self._see_to_crowd()
        if self._broker.is_crowded:
            self._turn(TURNS_BETWEEN_FULL_TICKS)
        else:
            self._is_alarm_stale = False
            self._alarm.set(self._broker.next_due_ms())

    def _see_to_crowd(self) -> None:
        """Tell whoever shares out the interpreter when a crowded moment begins and ends."""
        if self._is_crowded != self._broker.is_crowded:
            self._is_crowded = self._broker.is_crowded
            self._share(self._is_crowded)

    def _turn(self, left: int) -> None:
        """In a crowded moment, let callers have some turns of the loop before the next tick."""
        if left > 0:
            self._loop.call_soon(self._turn, left - 1)
        else:
            self._is_alarm_stale = False
            self._alarm.set(self._broker.next_due_ms())

    def settle(self, flush: Flush) -> None:
        """A flush is on disk: give the answers that waited for it, and wake receivers."""
        effects = self._broker.flushed(flush, self._clock())
        self._durable.advance(self._broker.durable_offset)
        self._room.freed()
        self._carry_out(effects)
        self._see_to_alarm()

    def rebuild(self, error: OSError) -> None:
        """A flush has failed: refuse everybody who waits, and start again from what is surely on disk."""
        refusal = ResultUnknown(
            f"Writing to the store failed ({error}). Send again with the same message id once the disk works."
        )
        trusted, before = self._broker.trusted_offset, self._broker
        log.error("write failed", error=str(error), durable_offset=trusted)
        try:
            self._broker = self._open(trusted)
            self._broker.lite.take_over(before.lite)
        finally:
            self._durable.refuse(refusal, trusted)
            self._room.freed()
        self._arrivals.wake_all()
        self._alarm.set(self._broker.next_due_ms())

    @property
    def is_retiring(self) -> bool:
        """Whether segments are being deleted: the core is not to be rebuilt meanwhile."""
        return self._retiring is not None and not self._retiring.done()

    def broker_ms(self) -> int:
        """Return the broker's time."""
        return self._clock()

    async def _read_timers(self, job: ReadAhead) -> None:
        """Read ahead what will soon be due."""
        core = self._broker
        try:
            await self._loop.run_in_executor(self._executor, job.run, self._disk)
        except OSError as error:
            log.warning("timers could not be read ahead", reason=str(error))
            core.read_ahead_failed(job)
        else:
            core.read_ahead(job)
        self._stir()

    async def _retire(self, retirement: Retirement) -> None:
        """Let segments go, once it is sure what of them is still needed."""
        core = self._broker
        try:
            await self._durable.reach(retirement.durable_at)
            await self._loop.run_in_executor(self._executor, retirement.keep_needed, self._disk)
            core.kept(retirement)
            await self._loop.run_in_executor(self._executor, retirement.delete, self._disk)
        except (OSError, ResultUnknown) as error:
            log.warning("segments were not deleted", reason=str(error))
            core.retirement_failed()
        else:
            core.retired(retirement, self._clock())
        self._loop.call_soon(self._flushing.resume)

    def break_down(self, bug: BaseException) -> None:
        """The core has a bug: write nothing more, and let the process end."""
        self._flushing.stop()
        if not self.broken.done():
            self.broken.set_exception(bug)

    def _open(self, trusted_offset: int | None = None) -> Broker:
        try:
            return Broker.open(self._disk, self.settings, self._clock(), trusted_offset)
        except OSError as error:
            raise StoreError(f"Its disk failed ({error}). Start the broker again once it works.") from error

    def _ring(self) -> None:
        with suppress(Exception):  # what it raises has broken us down already
            self.tick()

    def _ask(self, question: CheckBack) -> str:
        """Ask a producer how its transaction ended; returns whom."""
        transaction_id, topic = question.transaction_id, question.topic

        def read() -> Message | None:
            message = self._broker.half_message(question.half_offset)
            return None if message is None else self.clock.outward_message(message)

        client_id = self._asker(question, read)
        self.transactions.log.asked(transaction_id, topic, client_id, self.clock.real_ms())
        self._broker.statistics.checks_asked[topic] += bool(client_id)
        if client_id:
            self._advancing.asked(transaction_id)
        self._broker.check_asked(transaction_id, bool(client_id), self._clock())
        self._stir()
        return client_id

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Wake(bell):
                    self._arrivals.wake(bell)
                case Retire(retirement):
                    self._retiring = self._loop.create_task(self._retire(retirement))
                case Warn(text):
                    log.warning(text)
                case ReadTimers(job):
                    self._reading = self._loop.create_task(self._read_timers(job))
                case CheckBack():
                    self._ask(effect)
