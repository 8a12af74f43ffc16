"""The broker in an asyncio loop. Only this module owns the core and moves the time of the core.

The interface is `call(verb, ...)` and `query(verb, ...)`, with a verb of the core. A verb that stores a
record answers once the record is durable. Operations of several steps have a method here or in `receivers`.
Methods raise the `TidewheelError`s of the core. Verbs that store records also raise `ResultUnknown` if the
disk failed before the record was known to be durable.

    caller -> verb -> core (runs to completion) -> answer waits for its offset -> caller
                        |                               ^
                        +-> flush in a worker thread ---+-> effects: wake receivers, check back
                        +-> alarm at the core's next due time -> tick -> effects

Rules:
- All callers of one turn of the loop share one flush (`services.live.flushing`).
- A tick with more work than its slice is due again soon. Between two ticks the loop serves callers for as
  many turns as a call needs.
- After a disk failure every waiting call gets `ResultUnknown`, and the core is discarded and rebuilt from the
  disk (`services.live.rebuilding`).
- Callers use real time, and the core uses the broker's time. This module converts between real time and the
  broker's time (`services.live.clock`).
- A bug in the core ends the broker. The future `broken` gets the exception, and the process is expected to
  end.

Weak spot: after each `await` the core may have been replaced or discarded, and objects of the earlier core
are void. Methods therefore read `_broker` again, or keep their first core and report to that core only.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import structlog

from commitlog import layout, limits, snapshot
from commitlog.disk import Disk, SyncFailed
from commitlog.errors import DiskFailed, disk_error
from commitlog.flush import Flush
from commitlog.message import Message
from commitlog.recovery import trusted_until
from commitlog.retention import Retirement
from services.broker.broker import Broker
from services.broker.spine.finding import FoundMessages
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import (
    CheckBack,
    Damaged,
    Delivery,
    Effect,
    Notify,
    PendingTimer,
    ReadTimers,
    Retire,
    SendReceipt,
    TimerFilter,
    TimerName,
    TimerPage,
    TimersJob,
    TimerVerdict,
    Warn,
)
from services.live.access import LiveAccess
from services.live.advancing import Advancing
from services.live.alarm import Alarm, CallLater
from services.live.check_back_polls import CheckBackPolls, Read
from services.live.clock import Clock, KeptOffset
from services.live.durability import OWN_MS, Answers, LeadershipProofs, required_offset
from services.live.errors import BrokerBroken, DiskBehind, ResultUnknown, StoreUnwell
from services.live.flushing import Flushing, log_checkpoint
from services.live.groups import LiveGroups
from services.live.long_polls import LongPolls
from services.live.rebuilding import Rebuilding
from services.live.receivers import Receivers
from services.live.room import Room
from services.live.transactions import LiveTransactions
from tidewheel.errors import Busy, TidewheelError

Asker = Callable[[CheckBack, Read], str]
"""Send a check-back to a producer. Return the client id, or "" if there is no producer.

The message is read only if there is a producer.
"""
Share = Callable[[bool], None]
"""A function that is called when a crowded period begins (True) and ends (False)."""
Present = Callable[[], Iterable[str]]
"""Return the ids of live clients."""


TURNS_BETWEEN_FULL_TICKS = 80
"""The number of turns between two ticks in a crowded period.

A send needs about ten turns of the loop, and some of these turns wait until the thread of gRPC gets the
interpreter.
"""

Answer = TypeVar("Answer")
Given = ParamSpec("Given")


class DurableAnswer(Protocol):
    """An answer that may be sent once the log is durable up to the offset `durable_at`."""

    @property
    def durable_at(self) -> int:
        """A physical offset."""


Resting = TypeVar("Resting", bound=DurableAnswer | int)


log = structlog.get_logger()


def ignore_health(is_well: bool) -> None:
    """Ignore the health."""


def ignore_crowding(is_crowded: bool) -> None:
    """Ignore crowded periods."""


def log_damage(found: Damaged) -> None:
    """Log that a part of the store is damaged."""
    given = {"rebuilt": found.rebuilt_count, "lost": found.lost_count} if found.part == "partition" else {}
    log.error("store damaged", part=found.part, path=found.path, what=found.what, **given)


class LiveBroker:
    """A broker for coroutines, which must be created and used in one running loop.

    `clock` is real time in ms. With a `kept` offset the broker's clock is virtual. `counted_ms` is a
    monotonic clock, with which steps of `clock` are detected. Without `counted_ms` no steps are detected. A
    cluster leader passes its `core`. In a cluster, the core is not rebuilt here, and `stepped_down` is called
    when the core is void. `proving` provides the proofs of leadership.
    """

    def __init__(
        self,
        disk: Disk,
        settings: BrokerSettings,
        clock: Callable[[], int],
        call_later: CallLater,
        executor: Executor,
        kept: KeptOffset | None = None,
        core: Broker | None = None,
        stepped_down: Callable[[OSError], None] | None = None,
        proving: LeadershipProofs | None = None,
        counted_ms: Callable[[], float] | None = None,
    ) -> None:
        self._disk, self.settings, self._executor = disk, settings, executor
        self.clock = Clock(clock, kept, counted_ms)
        self.clock.set_step_callback(self._clock_was_set)
        self._clock = self.clock.now_ms
        self._unreported_step_ms = 0
        """Sum of clock steps without a core, in ms, since the next core began to open."""
        self._loop, self._call_later = asyncio.get_running_loop(), call_later
        self._core: Broker | None = core or self._open()
        self._core.damage.add_listener(log_damage)
        self._stepped_down = stepped_down
        self._void_reason: OSError | None = None
        self._lite_before, self._begun_ahead_before_ms = self._core.lite, self.clock.begun_ahead_ms
        self.answers = Answers(self._broker.durable_offset, proving, self._schedule_own_refusals)
        self._is_own_limited = False
        self.room = Room(self._waiting_bytes)
        long_polls = LongPolls()
        self.receivers = Receivers(
            lambda: self._broker, self.decide, self.call, self.clock, self.answers, long_polls
        )
        self.check_back_polls = CheckBackPolls(long_polls, self.send_check_backs)
        self._alarm = Alarm(self._tick_due, self._clock, call_later)
        self._is_alarm_stale = self._is_crowded = False
        self._share_callback: Share = ignore_crowding
        self._flushing = Flushing(self, disk, executor)
        self._rebuilding = Rebuilding(self, self._open, call_later, executor, self._must_rebuild_queues)
        self.warnings: Callable[[], Sequence[str]] = tuple
        """Return the sentences that the owner of the core adds to `/readyz`."""
        self._health_callback: Callable[[bool], None] = ignore_health
        self._well = asyncio.Event()
        self._well.set()
        self._askers: list[Asker] = [self.check_back_polls.add_check_back]
        self._present_clients: Present = tuple
        self._advancing = Advancing(self, self.clock)
        self.transactions = LiveTransactions(lambda: self._broker, self.call, self._ask, self.room)
        self.transactions.set_producer_views(self.check_back_polls.producer_views)
        self.groups = LiveGroups(
            lambda: self._broker,
            self.call,
            self.receivers.notify,
            self.room,
            self.offset_at,
            self.clock.outward,
        )
        self.access = LiveAccess(lambda: self._broker.access, self.call, self.clock)
        self._retiring: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self.broken: asyncio.Future[None] = self._loop.create_future()
        self._flush_and_plan()

    @property
    def _broker(self) -> Broker:
        """The core. Raises `StoreUnwell` or `BrokerBroken` while there is no core."""
        if self._core is None:
            raise self.unwell or BrokerBroken("Its log says more; start it again.")
        return self._core

    @property
    def unwell(self) -> StoreUnwell | None:
        """The disk failure that stops service, or None if the disk works."""
        return self._rebuilding.unwell

    def refuse_new_messages(self, why: Busy | None) -> None:
        """Refuse new messages with `why`, but no other calls. Accept new messages again if `why` is None."""
        if self._core is not None:
            self._core.housekeeping.stopped = why

    @contextmanager
    def refusing_new_messages(self, why: Busy) -> Iterator[None]:
        """Refuse new messages with `why` within the block, but not repeats of stored messages.

        A message without room may be a repeat, which an earlier send has stored (`services.broker.sending`).
        """
        core = self._core
        if core is None:  # all calls are refused
            yield
            return
        stopped, core.housekeeping.stopped = core.housekeeping.stopped, why
        try:
            yield
        finally:
            core.housekeeping.stopped = stopped

    def set_health_callback(self, told: Callable[[bool], None]) -> None:
        """Call `told` when the disk fails (False), and when it works again (True)."""
        self._health_callback = told

    async def wait_until_well(self) -> None:
        """Return at once if the disk works, or else when the disk works again."""
        await self._well.wait()

    def schedule_call(self, seconds: float, call: Callable[[], None]) -> None:
        """Schedule a call after the given number of seconds."""
        self._call_later(seconds, call)

    # Verbs.

    def call(self, verb: Callable[..., Resting], *arguments: object) -> Coroutine[Any, Any, Resting]:
        """Call a verb of the core at once. The answer or refusal is returned when its records are durable.

        There is no await before the call, so the verb belongs to the current core.
        """
        try:
            answer = self.decide(verb, *map(self.clock.inward, arguments))
        except TidewheelError as refusal:
            return self._raise_when_durable(refusal)
        return self._await_durable(answer)

    def query(self, verb: Callable[Given, Answer], *arguments: Given.args, **named: Given.kwargs) -> Answer:
        """Call a read-only verb of the core."""
        inward = map(self.clock.inward, arguments)
        return self.clock.outward(cast(Callable[..., Answer], verb)(*inward, **named))

    async def send(self, message: Message) -> SendReceipt:
        """Store a normal, FIFO, delayed or half message."""
        if self.room.has_room_for(len(message.body)):
            return await self.call(self._broker.sending.send, message)
        with await self._wait_for_room(len(message.body)):
            told = self.call(self._broker.sending.send, message)
        return await told

    async def send_many(self, messages: list[Message]) -> list[SendReceipt | TidewheelError]:
        """Store many messages. Return one answer for each message, when all messages are durable."""
        body_bytes = sum(len(message.body) for message in messages)
        with await self._wait_for_room(
            max(body_bytes, len(messages) * limits.CALLERS_UNFLUSHED_RECORD_BYTES)
        ):
            answers = self.decide(self._broker.sending.send_many, self.clock.inward(messages))
        offsets = [
            one.durable_at if isinstance(one, SendReceipt) else required_offset(one) for one in answers
        ]
        await self.answers.wait_until_durable(max(offsets, default=0))
        return answers

    async def _wait_for_room(self, new_bytes: int) -> AbstractContextManager[None]:
        """Wait for room. Return a context for the decision, which refuses new messages without room."""
        try:
            await self.room.wait(new_bytes)
        except DiskBehind as behind:
            return self.refusing_new_messages(behind)
        return nullcontext()

    async def wait_until_all_durable(self) -> None:
        """Return when all records that are appended now are durable."""
        await self.answers.wait_until_durable(self._broker.store.log.end_offset)

    async def move_timer(self, name: TimerName, due_ms: int, reason: str = "") -> TimerVerdict:
        """Change the due time of a delayed message."""
        await self.room.wait_for_copy()
        move = partial(self._broker.timers.move, reason=reason)
        return await self.call(move, name, due_ms + self.clock.offset_ms)

    async def fire_timer(self, name: TimerName, reason: str = "") -> TimerVerdict:
        """Deliver a delayed message at once."""
        await self.room.wait_for_copy()
        return await self.call(partial(self._broker.timers.fire, reason=reason), name)

    def decide(self, verb: Callable[..., Answer], *arguments: object) -> Answer:
        """Call a verb of the core with the broker's time as its last argument."""
        try:
            return verb(*arguments, self._clock())
        except TidewheelError:
            raise
        except OSError as error:
            self._flushing.fail(error)
            raise StoreUnwell(f"{error}. Send again once it works.") from error
        except Exception as bug:
            self.break_down(bug)
            raise
        finally:  # also after a refusal, which may depend on a record; many calls of a turn schedule once
            if not (self._is_alarm_stale and self._flushing.will_flush):
                self._flush_and_plan()

    async def _await_durable(self, answer: Resting) -> Resting:
        await self.answers.wait_until_durable(answer if isinstance(answer, int) else answer.durable_at)
        return self.clock.outward(answer)

    async def _raise_when_durable(self, refusal: TidewheelError) -> Any:
        await self.answers.wait_until_durable(required_offset(refusal))
        raise refusal

    def _schedule_own_refusals(self) -> None:
        """Schedule `_fail_own_refusals`, which sends refusals that still wait for a proof after OWN_MS."""
        if not self._is_own_limited:
            self._is_own_limited = True
            self._call_later(OWN_MS / 1000, self._fail_own_refusals)

    def _fail_own_refusals(self) -> None:
        why = self._core and (self._core.housekeeping.stopped or self._core.housekeeping.refusal())
        said = (
            f"this one was refused: {type(why).code} {why}" if why else "send again with the same message id."
        )
        self._is_own_limited = False
        if self.answers.fail_own_refusals(ResultUnknown(f"An earlier call may have stored it; {said}")):
            self._schedule_own_refusals()

    # Queries.

    @property
    def core(self) -> Broker:
        """The core, for reading only. A disk failure replaces the core.

        Raises `StoreUnwell` while there is no core.
        """
        return self._broker

    def now_ms(self) -> int:
        """Return real time, which is the time of callers."""
        return self.clock.real_ms()

    def find(self, topic: str, key: str, count_max: int) -> FoundMessages:
        """Find messages by key or message id, newest first. Large messages reduce the number of results."""
        found = self._broker.finding.find(topic, key, count_max)
        return FoundMessages(self.clock.outward(found.messages), found.is_cut)

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """Return the queue offset of the first message stored at or after a time."""
        return self._broker.finding.offset_at(topic, queue_id, store_ms + self.clock.offset_ms)

    def timer(self, name: TimerName) -> PendingTimer | TimerVerdict:
        """Return the pending timer or the outcome of a delayed message."""
        return self.query(self._broker.timers.get_timer, name, self.clock.now_ms())

    def find_timer_verdict(self, timer: Delivery) -> TimerVerdict | None:
        """Return the outcome of the timer of a timer record, or None while the timer is pending."""
        return self.query(self._broker.timers.find_verdict, timer, self.clock.now_ms())

    def timers(self, wanted: TimerFilter, after: tuple[int, int] | None, count_max: int) -> TimerPage:
        """Return a page of pending timers by due time."""
        sort_key = None if after is None else (after[0] + self.clock.offset_ms, after[1])
        return self.query(self._broker.timer_views.read_page, wanted, sort_key, count_max)

    def timer_histogram(self, wanted: TimerFilter, width_ms: int) -> list[tuple[int, int]]:
        """Count pending timers by windows of due time."""
        found = self.query(self._broker.timer_views.histogram, wanted, width_ms)
        return [(start_ms - self.clock.offset_ms, count) for start_ms, count in found]

    # Time.

    async def advance(self, by_ms: int) -> None:
        """Advance a virtual clock by `by_ms`. Raise `IllegalAdvance`, or `ClockIsReal` for a real clock."""
        await self._advancing.advance(by_ms)

    def set_present_clients(self, present: Present) -> None:
        """Renew the leases of the clients in `present` while the clock is advanced."""
        self._present_clients = present

    def renew_present(self) -> None:
        """Renew the leases of live clients, and end waiting calls whose token has expired."""
        self.access.check_waiting_calls()
        for client_id in self._present_clients():
            self._broker.receiving.renew_client(client_id, self._clock())

    def record_answer(self, transaction_id: str, answer: str = "UNKNOWN") -> None:
        """Record a producer's answer to a check-back, which may be UNKNOWN."""
        self.transactions.log.record_answer(transaction_id, answer, self.clock.real_ms())
        self._advancing.end_wait_for_answer(transaction_id)

    def tick(self) -> bool:
        """Run the core's due work. Return False if the work had no effects."""
        if self._core is None:
            return False
        try:
            effects = self._core.tick(self._clock())
            self._apply_effects(effects)
        except OSError as error:
            self._flushing.fail(error)
            return False
        except Exception as bug:
            self.break_down(bug)
            raise
        self._flush_and_plan()
        return bool(effects)

    async def wait_until_durable(self, offset: int) -> None:
        """Return when the log is durable up to `offset`.

        Raise `ResultUnknown` if the disk fails, or the original exception if the core has a bug.
        """
        await self.answers.wait_until_durable(offset)
        if self.broken.done():
            self.broken.result()

    async def wait_until_timers_ready(self) -> None:
        """Return when no timers are being read ahead and no checkpoint is due."""
        while self._broker.is_checkpoint_due or (self._reading is not None and not self._reading.done()):
            if self._reading is not None:
                await self._reading
            self._flushing.flush_soon()
            await self._flushing.idle()
            if self.broken.done():
                return

    def reschedule_tick(self) -> None:
        """Reschedule the next tick."""
        self._alarm.stop()
        self._schedule_tick()

    # Start and stop.

    def add_asker(self, asker: Asker) -> None:
        """Add a function that sends check-backs. Functions that reach a producer are called in rotation."""
        self._askers.append(asker)

    def unasked_topics(self) -> list[str]:
        """Return the topics with halves that wait for a producer, or an empty list without a core."""
        return [] if self._core is None else self._core.transactions.unasked.topics()

    def send_check_backs(self, topic: str) -> None:
        """Send the check-backs that wait for a producer of a topic, after a producer has connected.

        Do nothing without a core, because the next core checks every half that is due.
        """
        if self._core is not None:
            self.decide(self._core.transactions.producer_came, topic)

    def set_share_callback(self, share: Share) -> None:
        """Call `share`, which divides the interpreter between threads, as a crowded period begins or ends."""
        self._share_callback = share

    async def close(self) -> None:
        """Flush the remaining appends, write a snapshot for the next start, and stop.

        The disk is not closed. Raise a `StoreError` if a disk failure prevents a clean end.
        """
        self.receivers.close()
        self._alarm.close()  # no ticks run after this line
        self.answers.stop_proofs(ResultUnknown("This node leads no more. Call again."))
        self._flush_and_plan()
        await self._flushing.idle()
        await self._rebuilding.close()
        # Each retirement or read may cause another retirement or read, and a flush.
        while (under_way := self._running_retirement() or self._running_read()) is not None:
            await under_way
            await self._flushing.idle()
        if self.unwell is not None and self._stepped_down is not None:
            return  # the cluster continues with the next leader
        if self.unwell is not None:
            raise DiskFailed(
                f"{self.unwell.detail} The broker ends all the same; start it once the disk works."
            )
        self._flushing.stop()
        if self._core is not None and self._core.is_quiet:
            self._leave_snapshot(self._core)

    def _leave_snapshot(self, core: Broker) -> None:
        began_s = time.monotonic()
        checkpoint = core.checkpoint(self._clock())
        try:
            checkpoint.write(self._disk)
        except OSError as error:
            kept = (
                "All that was acknowledged is on disk"
                if self.settings.sync_flush
                else "What is on disk stays"
            )
            raise disk_error(
                error,
                "Writing a snapshot at the end",
                f"{kept}: the next start only has more of the log to read.",
            ) from error
        log_checkpoint(self._disk, checkpoint, core.written_offset, time.monotonic() - began_s)

    def _flush_and_plan(self) -> None:
        """Schedule the flush and the alarm, once a turn, after any change of the log or of due times."""
        self._flushing.flush_soon()
        self._schedule_tick()

    def _clock_was_set(self, from_ms: int, until_ms: int) -> None:
        """Report a step of the system clock to the core.

        Leases keep their length, but timers fire early or late.
        """
        if abs(until_ms - from_ms) >= limits.CLOCK_JUMP_MS_MIN:
            log.warning("the clock was set", by_seconds=(until_ms - from_ms) / 1000)
        if self._core is None:
            self._unreported_step_ms += until_ms - from_ms
        else:
            self._core.clock_jumped(from_ms, until_ms)
            self.reschedule_tick()

    def _schedule_tick(self) -> None:
        if not self._is_alarm_stale:
            self._is_alarm_stale = True
            self._loop.call_soon(self._set_alarm)

    def _set_alarm(self) -> None:
        if self._core is None:
            self._is_alarm_stale = False
            return
        self._share_interpreter()
        if self._core.is_crowded:  # otherwise ticks would follow at once and block calls
            self._count_down_turns(TURNS_BETWEEN_FULL_TICKS)
        else:
            self._is_alarm_stale = False
            self._alarm.set(self._core.next_due_ms())

    def _share_interpreter(self) -> None:
        """Call `share` when a crowded period begins or ends."""
        is_crowded = self._core is not None and self._core.is_crowded
        if self._is_crowded != is_crowded:
            self._is_crowded = is_crowded
            self._share_callback(self._is_crowded)

    def _count_down_turns(self, left: int) -> None:
        """Leave `left` turns of the loop to callers in a crowded period, before the next tick."""
        if left > 0:
            self._loop.call_soon(self._count_down_turns, left - 1)
        else:
            self._is_alarm_stale = False
            if self._core is not None:
                self._alarm.set(self._core.next_due_ms())

    def apply_flush(self, flush: Flush) -> None:
        """Send the answers that waited for a flush that is now on disk, and wake receivers."""
        core = self._broker
        effects = core.flushed(flush, self._clock())
        assert core.durable_offset >= self.answers.offset, "what was told as durable is not any more"
        self.answers.advance(core.durable_offset)
        self.room.admit_waiting()
        self._rebuilding.reset_failures()
        self._apply_effects(effects)
        self._schedule_tick()

    def discard_core(self, error: OSError) -> None:
        """Refuse waiting calls and discard the core after a disk failure."""
        core, self._void_reason = self._broker, error
        self._lite_before, self._begun_ahead_before_ms = core.lite, self.clock.begun_ahead_ms
        self._rebuilding.refuse_callers(core, error)
        self._drop_core(
            core, f"Writing to the store failed ({error}). Send again with the same message id once it works."
        )

    def rebuild(self) -> None:
        """Rebuild the core from the durable log while no write is under way."""
        if self._stepped_down is None:
            self._rebuilding.begin()
        else:
            assert self._void_reason is not None, "a core is made anew though none was let go"
            self._stepped_down(self._void_reason)

    def fail(self, error: OSError) -> None:
        """Discard the core, because the durability of its appends is unknown."""
        self._flushing.fail(error)

    def adopt(self, core: Broker) -> None:
        """Continue with a reopened core and with the subscriptions of the earlier core."""
        assert self._core is None, "two cores over one store"
        core.lite.adopt_subscriptions(
            self._lite_before, self.clock.begun_ahead_ms - self._begun_ahead_before_ms
        )
        self._core = core
        if self._unreported_step_ms:
            now_ms = self._clock()
            core.clock_jumped(now_ms - self._unreported_step_ms, now_ms)
            self._unreported_step_ms = 0
        core.damage.add_listener(log_damage)
        self.answers.advance(core.durable_offset)
        self._well.set()
        self._health_callback(True)
        self._flushing.resume_with_core()
        self.receivers.notify_all()
        self._schedule_tick()

    def unflushed_bytes(self) -> int:
        """Return the number of unflushed bytes, or 0 without a core, when every call is refused."""
        return 0 if self._core is None else self._core.end_offset - self._core.durable_offset

    def _waiting_bytes(self) -> int:
        """Return the number of unflushed bytes, with a minimum number of bytes for each record."""
        if self._core is None:
            return 0
        counted = self._core.store.unflushed_count * limits.CALLERS_UNFLUSHED_RECORD_BYTES
        return max(self.unflushed_bytes(), counted)

    def _drop_core(self, core: Broker, refusal: str) -> None:
        """Remove the core, and refuse calls that wait for the core."""
        assert core is self._core, "a core is let go that serves nobody"
        self._core = None
        self._well.clear()
        self._health_callback(False)
        self._alarm.stop()
        self.answers.refuse(ResultUnknown(refusal), core.durable_offset)
        self.room.admit_waiting()

    @property
    def is_retiring(self) -> bool:
        """Whether segments are being deleted. The core must not be rebuilt meanwhile."""
        return self._running_retirement() is not None

    def broker_ms(self) -> int:
        """Return the broker's time."""
        return self._clock()

    async def _read_timers(self, core: Broker, job: TimersJob, before: asyncio.Task[None] | None) -> None:
        """Read files of timers that are due soon or may be damaged.

        The core that requested the read may be void when the read begins. `before` is the read under way,
        which is awaited, too, so a task that awaits the last read awaits all reads.
        """
        try:
            await self._loop.run_in_executor(self._executor, job.run, self._disk)
        except OSError as error:
            log.warning("timers could not be read ahead", reason=str(error))
            core.read_ahead_failed(job)
        else:
            core.read_ahead(job)
        self._flush_and_plan()
        if before is not None:
            await before

    def _running_retirement(self) -> asyncio.Task[None] | None:
        return None if self._retiring is None or self._retiring.done() else self._retiring

    def _running_read(self) -> asyncio.Task[None] | None:
        return None if self._reading is None or self._reading.done() else self._reading

    async def _retire(self, core: Broker, retirement: Retirement) -> None:
        """Run a step of a retirement once the records of the step are durable."""
        try:
            await self.answers.wait_until_durable(retirement.durable_at)
            await self._loop.run_in_executor(self._executor, retirement.run, self._disk)
        except (OSError, ResultUnknown) as error:
            log.warning("segments were not deleted", reason=str(error))
            core.abandon_retirement()
            if isinstance(error, SyncFailed):
                self._flushing.fail(error)
        else:
            await self._cut(core, retirement)
        self._loop.call_soon(self._flushing.resume)

    async def _cut(self, core: Broker, retirement: Retirement) -> None:
        """Apply a retirement to the core, some queues in each turn of the loop."""
        try:
            while self._core is core and not core.retired(retirement, self._clock()):
                await asyncio.sleep(0)
        except OSError as error:
            self._flushing.fail(error)
        except Exception as bug:
            self.break_down(bug)
            raise

    def break_down(self, bug: BaseException) -> None:
        """Stop writes and service, and let the process end, because the core has a bug."""
        self._flushing.stop()
        if self._core is not None:
            self._drop_core(self._core, "The broker has met a bug and ends. Send again once it is back.")
        if not self.broken.done():
            self.broken.set_exception(bug)

    def _open(self, acknowledged_offset: int | None = None) -> Broker:
        """Open the store. On a full disk, delete the reserve file and try again."""
        try:
            try:
                return self._open_once(acknowledged_offset)
            except OSError as error:
                if error.errno != errno.ENOSPC or self._disk.size(layout.RESERVE) < 0:
                    raise
                log.warning("the disk is full: the reserve gives its room", reason=str(error))
                self._disk.delete(layout.RESERVE)
                return self._open_once(acknowledged_offset)
        except OSError as error:
            raise disk_error(
                error, "Opening the store", "Nothing acknowledged is lost; then start again."
            ) from error

    def _open_once(self, acknowledged_offset: int | None) -> Broker:
        until = None if acknowledged_offset is None else trusted_until(self._disk, acknowledged_offset)
        self._unreported_step_ms = 0
        return Broker.open(self._disk, self.settings, self.clock.begin(), until)

    def _must_rebuild_queues(self) -> bool:
        """Return whether opening the store reads the whole log.

        Return False if the disk fails, because opening the store then reports the failure.
        """
        with suppress(OSError):
            return bool(snapshot.offsets(self._disk)) and self._disk.size(layout.QUEUES_WHOLE) < 0
        return False

    def _tick_due(self) -> None:
        with suppress(Exception):  # `break_down` has handled its exception
            self.tick()

    def _ask(self, question: CheckBack) -> str:
        """Send a check-back to a producer. Return the client id, or "" if no producer was found."""
        transaction_id, topic = question.transaction_id, question.topic

        def read() -> Message | None:
            message = self._broker.transactions.message(question.half_offset)
            return None if message is None else self.clock.outward(message)

        client_id = self._ask_next(question, read)
        self.transactions.log.record_check_back(transaction_id, topic, client_id, self.clock.real_ms())
        self._broker.statistics.checks_asked[topic] += bool(client_id)
        if client_id:
            self._advancing.expect_answer(transaction_id)
        self._broker.transactions.check_asked(transaction_id, bool(client_id), self._clock())
        self._flush_and_plan()
        return client_id

    def _ask_next(self, question: CheckBack, read: Read) -> str:
        for asker in list(self._askers):
            if client_id := asker(question, read):
                self._askers.remove(asker)
                self._askers.append(asker)
                return client_id
        return ""

    def _apply_effects(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Notify(keys):
                    self.receivers.notify(*keys)
                case Retire(retirement):
                    assert not self.is_retiring, "two retirements at once"
                    self._retiring = self._loop.create_task(self._retire(self._broker, retirement))
                case Warn(text):
                    log.warning(text)
                case ReadTimers(job):
                    reading = self._read_timers(self._broker, job, self._running_read())
                    self._reading = self._loop.create_task(reading)
                case CheckBack():
                    self._ask(effect)
