"""The broker inside an asyncio loop: the only owner of the core, and the only one that moves its time.

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
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

import structlog

from commitlog.disk import Disk
from commitlog.errors import RefusedByState, ResultUnknown, StoreError, TidewheelError
from commitlog.flush import Flush
from commitlog.message import Message, MessageType
from commitlog.retention import Retirement
from services.broker.broker import Broker
from services.broker.settings import BrokerSettings
from services.broker.values import (
    CheckBack,
    Delivery,
    Effect,
    EndReceipt,
    PendingTimer,
    ReadTimers,
    Resolution,
    Retire,
    SendReceipt,
    TimerFilter,
    TimerName,
    TimerPage,
    TimerVerdict,
    Topic,
    Wake,
    Warn,
)
from services.live.advancing import Advancing
from services.live.alarm import Alarm, CallLater
from services.live.arrivals import Arrivals
from services.live.clock import Clock, KeptOffset
from services.live.durability import DurableOffset
from services.live.flushing import Flushing
from services.live.jumps import Jumps
from services.live.schedules import LiveSchedules
from services.live.transactions import LiveTransactions
from timingwheel.due_run import ReadAhead
from txn.checkback import CheckBackPolicy

Answer = TypeVar("Answer")


class RestsOnRecord(Protocol):
    """An answer that may be given once the log is durable up to `durable_at`."""

    @property
    def durable_at(self) -> int:
        """A physical offset."""


Resting = TypeVar("Resting", bound=RestsOnRecord)
Asker = Callable[[CheckBack], str]
"""Asks a producer how its transaction ended; returns its client id, empty when there is nobody to ask."""
Present = Callable[[], Iterable[str]]
"""The ids of the clients that are heard from."""


TURNS_BETWEEN_FULL_TICKS = 110
"""gRPC takes one call in two or three turns of the loop, and a send needs about ten in all."""

log = structlog.get_logger()


def nobody(question: CheckBack) -> str:
    """Ask nobody: the asker of a broker that has no producers yet."""
    return ""


class LiveBroker:
    """A broker that answers coroutines. Make it and use it in one running loop.

    `clock` is real time in milliseconds; with a `kept` offset the broker's clock is virtual.

    Errors of every verb are the core's `TidewheelError`s; a verb that stores also raises `ResultUnknown`
    when the disk failed before the record was known to be durable.
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
        self._arrivals = Arrivals()
        self._alarm = Alarm(self._ring, self._clock, call_later)
        self._is_alarm_stale = False
        self._flushing = Flushing(self, disk, executor)
        self._asker: Asker = nobody
        self._present: Present = tuple
        self._advancing = Advancing(self, self.clock)
        self.schedules = LiveSchedules(lambda: self._broker, self._told, self.clock)
        self.transactions = LiveTransactions(lambda: self._broker, self._told, self._ask, self.clock)
        self._jumps = Jumps(self.clock.real_ms(), self._loop.time() * 1000)
        self._retiring: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self.broken: asyncio.Future[None] = self._loop.create_future()
        self._stir()

    # Verbs that store: the answer is given once it is durable.

    async def send(self, message: Message) -> SendReceipt:
        """Store a message (normal, FIFO, delayed or half)."""
        return await self._told(self._broker.send, self.clock.inward(message))

    async def recall(self, topic: str, recall_handle: str) -> TimerVerdict:
        """Cancel a delayed message; the verdict is the truth, whatever it is."""
        return self.clock.outward(await self._told(self._broker.recall, topic, recall_handle))

    async def cancel_timer(self, name: TimerName, reason: str) -> TimerVerdict:
        """Cancel a delayed message by its name."""
        return self.clock.outward(await self._told(self._broker.cancel_timer, name, reason))

    async def move_timer(self, name: TimerName, due_ms: int) -> TimerVerdict:
        """Give a delayed message another time."""
        inward_ms = due_ms + self.clock.offset_ms
        return self.clock.outward(await self._told(self._broker.move_timer, name, inward_ms))

    async def fire_timer(self, name: TimerName) -> TimerVerdict:
        """Deliver a delayed message at once."""
        return self.clock.outward(await self._told(self._broker.fire_timer, name))

    async def set_timers(self, messages: list[Message]) -> list[SendReceipt | TidewheelError]:
        """Store many messages; each has its own answer, and they come when all are durable."""
        inward = [self.clock.inward(message) for message in messages]
        answers = self._call(self._broker.set_timers, inward)
        stored = [answer.durable_at for answer in answers if isinstance(answer, SendReceipt)]
        await self._durable.reach(max(stored, default=0))
        return answers

    async def set_check_back(self, topic: str, policy: CheckBackPolicy | None) -> Topic:
        """Say how a topic's half messages are asked about; None: as the settings say."""
        return await self._told(self._broker.set_check_back, topic, policy)

    async def end_transaction(
        self, topic: str, transaction_id: str, message_id: str, resolution: Resolution
    ) -> EndReceipt:
        """Commit or roll back a half message."""
        return await self._told(self._broker.end_transaction, topic, transaction_id, message_id, resolution)

    async def ack(self, group: str, topic: str, receipt_handle: str) -> None:
        """Acknowledge a delivery."""
        await self._durable.reach(self._call(self._broker.ack, group, topic, receipt_handle))

    async def forward_to_dead_letter(self, group: str, topic: str, receipt_handle: str) -> None:
        """Put a delivery into the group's dead letters and acknowledge it."""
        await self._durable.reach(
            self._call(self._broker.forward_to_dead_letter, group, topic, receipt_handle)
        )

    async def create_topic(self, name: str, message_type: MessageType, queue_count: int) -> Topic:
        """Create a topic."""
        return await self._told(self._broker.create_topic, name, message_type, queue_count)

    async def route(self, name: str) -> Topic:
        """Return a topic, creating it if the settings say so."""
        return await self._told(self._broker.route, name)

    # Verbs that lease.

    async def receive(
        self,
        group: str,
        topic: str,
        tag_expression: str,
        batch_size: int,
        invisible_ms: int,
        client_id: str,
        auto_renew: bool,
        wait_seconds: float,
    ) -> list[Delivery]:
        """Lease up to `batch_size` messages; wait up to `wait_seconds` for the first, then return none."""
        wish = (group, topic, tag_expression, batch_size, invisible_ms, client_id, auto_renew)
        ends = self._loop.time() + wait_seconds
        deliveries = self._call(self._broker.receive, *wish)
        while not deliveries and await self._arrivals.wait(topic, ends - self._loop.time()):
            deliveries = self._call(self._broker.receive, *wish)
        return [self.clock.outward(delivery) for delivery in deliveries]

    def change_invisible(self, group: str, topic: str, receipt_handle: str, invisible_ms: int) -> str:
        """Lease a delivery anew for `invisible_ms` from now; the old handle is void."""
        return self._call(self._broker.change_invisible, group, topic, receipt_handle, invisible_ms)

    def client_alive(self, client_id: str) -> None:
        """Renew the leases that are renewed for this client."""
        self._call(self._broker.client_alive, client_id)

    def client_gone(self, client_id: str) -> None:
        """Give up the leases of a client that has left."""
        self._call(self._broker.client_gone, client_id)

    # Looks.

    @property
    def core(self) -> Broker:
        """The core, to look at only; it is another one after a failed flush."""
        return self._broker

    def now_ms(self) -> int:
        """Return real time, the time of callers."""
        return self.clock.real_ms()

    def read(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[Delivery]:
        """Look at messages without leasing them."""
        found = self._broker.read(topic, queue_id, queue_offset, count)
        return [self.clock.outward(delivery) for delivery in found]

    def find(self, topic: str, key: str, count_max: int) -> list[Delivery]:
        """Look messages up by key or message id, newest first."""
        return [self.clock.outward(delivery) for delivery in self._broker.find(topic, key, count_max)]

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """Return the first queue offset stored at or after a time."""
        return self._broker.offset_at(topic, queue_id, store_ms + self.clock.offset_ms)

    def pending_timers(self, topic_prefix: str, count_max: int) -> list[PendingTimer]:
        """Look at delayed messages that wait for topics with that prefix, the first due first."""
        return [self.clock.outward(one) for one in self._broker.pending_timers(topic_prefix, count_max)]

    def timer(self, name: TimerName) -> PendingTimer | TimerVerdict:
        """Look at one delayed message: waiting, or what became of it."""
        found = self._broker.timer(name, self._clock())
        if isinstance(found, TimerVerdict):
            return self.clock.outward(found)
        return self.clock.outward(found)

    def timers(self, wanted: TimerFilter, after: tuple[int, int] | None, count_max: int) -> TimerPage:
        """Look at delayed messages that wait, by due time."""
        offset_ms = self.clock.offset_ms
        inward = None if after is None else (after[0] + offset_ms, after[1])
        page = self._broker.timers(self._inward(wanted), inward, count_max)
        outward = None if page.after is None else (page.after[0] - offset_ms, page.after[1])
        return TimerPage([self.clock.outward(timer) for timer in page.timers], outward)

    def count_timers(self, wanted: TimerFilter) -> int:
        """Count delayed messages that wait."""
        return self._broker.count_timers(self._inward(wanted))

    def timer_histogram(self, wanted: TimerFilter, width_ms: int) -> list[tuple[int, int]]:
        """Count delayed messages that wait by windows of due time."""
        found = self._broker.timer_histogram(self._inward(wanted), width_ms)
        return [(start_ms - self.clock.offset_ms, count) for start_ms, count in found]

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

    def _inward(self, wanted: TimerFilter) -> TimerFilter:
        """Return a filter in the broker's time; no bound stays none."""
        offset_ms, nothing = self.clock.offset_ms, TimerFilter()
        from_ms = wanted.from_ms + offset_ms if wanted.from_ms != nothing.from_ms else wanted.from_ms
        until_ms = wanted.until_ms + offset_ms if wanted.until_ms != nothing.until_ms else wanted.until_ms
        return replace(wanted, from_ms=from_ms, until_ms=until_ms)

    async def _told(self, verb: Callable[..., Resting], *arguments: object) -> Resting:
        """The verb's answer, or its refusal, once what either rests on is durable."""
        try:
            answer = self._call(verb, *arguments)
        except RefusedByState as refusal:
            await self._durable.reach(refusal.durable_at)
            raise
        await self._durable.reach(answer.durable_at)
        return answer

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
        jump_ms = self._jumps.seen(wall_ms, self._loop.time() * 1000)
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
        if self._broker.is_crowded:
            self._turn(TURNS_BETWEEN_FULL_TICKS)
        else:
            self._is_alarm_stale = False
            self._alarm.set(self._broker.next_due_ms())

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
        self._carry_out(effects)
        self._see_to_alarm()

    def rebuild(self, error: OSError) -> None:
        """A flush has failed: refuse everybody who waits, and start again from what is surely on disk."""
        refusal = ResultUnknown(
            f"Writing to the store failed ({error}). Send again with the same message id once the disk works."
        )
        trusted = self._broker.trusted_offset
        log.error("write failed", error=str(error), durable_offset=trusted)
        try:
            self._broker = self._open(trusted)
        finally:
            self._durable.refuse(refusal, trusted)
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
            await self._loop.run_in_executor(self._executor, retirement.run, self._disk)
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
        message = self.clock.outward_message(question.message)
        client_id = self._asker(replace(question, message=message))
        transaction_id, topic = question.transaction_id, question.message.topic
        self.transactions.log.asked(transaction_id, topic, client_id, self.clock.real_ms())
        self._broker.statistics.checks_asked[topic] += bool(client_id)
        from_ms = self._advancing.asked(transaction_id, bool(client_id))
        self._broker.check_asked(transaction_id, bool(client_id), from_ms)
        self._stir()
        return client_id

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Wake(topic):
                    self._arrivals.wake(topic)
                case Retire(retirement):
                    self._retiring = self._loop.create_task(self._retire(retirement))
                case Warn(text):
                    log.warning(text)
                case ReadTimers(job):
                    self._reading = self._loop.create_task(self._read_timers(job))
                case CheckBack():
                    self._ask(effect)
