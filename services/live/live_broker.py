"""Runs the broker core in an asyncio event loop, and manages the lifetime and the clock of the core.

The main methods are `call(verb, ...)` and `query(verb, ...)`, where `verb` is a method of the core. A call
that stores a record returns once the record is durable. Operations with several steps have separate methods
in `LiveBroker` or `receivers`. All methods may raise any `TidewheelError` of the core. A call that stores
records also raises `ResultUnknown` if the disk fails before the records are confirmed to be durable.

    caller -> verb -> core (runs to completion) -> answer is held until durable -> caller
                        |                               ^
                        +-> flush in a worker thread ---+-> effects: wake receivers, check back
                        +-> alarm at the next due time of the core -> tick -> effects

Rules:
- All calls in one event loop iteration share one flush (`services.live.flushing`).
- If a tick cannot complete all due work, the remaining work is done in another tick after a short delay.
  Between two such ticks, the event loop runs long enough to serve a call.
- After a disk failure, all waiting calls fail with `ResultUnknown`. The core is rebuilt from the data on disk
  (`services.live.rebuilding`).
- Callers use real time, and the core uses broker time. This module converts timestamps between the two
  (`services.live.clock`).
- An internal error in the core stops the broker. The exception is set on the future `broken`, and the owner
  of the broker is expected to exit the process.

Limitation: the core may be replaced during any `await`, which invalidates all objects of the previous core.
After an `await`, a method must read `core` again, or report its result only to the core that it used before.
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

from commitlog import layout, limits
from commitlog.disk.disk import Disk, SyncFailed
from commitlog.errors import DiskFailed, disk_error
from commitlog.log.flush import Flush
from commitlog.log.recovery import trusted_until
from commitlog.log.retention import Retirement
from commitlog.records.message import Message
from commitlog.snapshots import snapshot
from services.broker.broker import Broker
from services.broker.spine.finding import FoundMessages
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import (
    CheckBackRequest,
    DamagedPart,
    Delivery,
    Effect,
    LogWarning,
    PendingTimer,
    RetireSegments,
    RunTimersJob,
    SendReceipt,
    TimerFilter,
    TimerName,
    TimerPage,
    TimersJob,
    TimerVerdict,
    WakeReceivers,
)
from services.live.access import LiveAccess
from services.live.advancing import ClockAdvancer
from services.live.alarm import Alarm, CallLater
from services.live.append_quota import AppendQuota
from services.live.clients.check_back_polls import CheckBackPolls, Read
from services.live.clients.long_polls import LongPolls
from services.live.clients.receivers import Receivers
from services.live.clock import Clock, StoredClockOffset
from services.live.created_topics import CreatedTopics
from services.live.durability import OWN_MS, Answers, LeadershipProofs, required_offset
from services.live.errors import BrokerBroken, DiskBehind, ResultUnknown, StoreUnavailable
from services.live.flushing import LogFlusher, log_checkpoint
from services.live.groups import LiveGroups
from services.live.rebuilding import StoreRebuilder
from services.live.transactions import LiveTransactions
from tidewheel.errors import Busy, TidewheelError

CheckBackSender = Callable[[CheckBackRequest, Read], str]
"""Sends a transaction check-back to a producer, and returns the client id of the producer.

If the topic has no producer, the function does not read the half message and returns "".
"""
Share = Callable[[bool], None]
"""Callback that is called with True when a crowded period begins, and with False when the period ends."""
Present = Callable[[], Iterable[str]]
"""Returns the ids of all connected clients."""
Check = Callable[[], None]
"""Raises an error if a change must be refused."""


TURNS_BETWEEN_FULL_TICKS = 80
"""Number of event loop iterations between two ticks in a crowded period.

A send needs about ten iterations. Further iterations run while the gRPC thread waits for the interpreter
lock.
"""

Answer = TypeVar("Answer")
Given = ParamSpec("Given")


class DurableAnswer(Protocol):
    """A response that may be sent once the log is durable up to the offset `durable_at`."""

    @property
    def durable_at(self) -> int:
        """The log offset that must be durable before the response is sent."""


Resting = TypeVar("Resting", bound=DurableAnswer | int)


log = structlog.get_logger()


def ignore_health(is_well: bool) -> None:
    """Ignore a change in disk health."""


def ignore_crowding(is_crowded: bool) -> None:
    """Ignore the start or end of a crowded period (`is_crowded` of the core)."""


def log_damage(found: DamagedPart) -> None:
    """Log an error for a damaged part of the store."""
    given = {"rebuilt": found.rebuilt_count, "lost": found.lost_count} if found.part == "partition" else {}
    log.error("store damaged", part=found.part, path=found.path, what=found.what, **given)


class LiveBroker:
    """The asynchronous interface of the broker. An instance must be created and used in the same event loop.

    `clock` returns real time in milliseconds. If `kept` is given, the broker uses a virtual clock. The
    monotonic clock `counted_ms` is used to detect steps of `clock`. A cluster leader passes its existing
    `core`. If `stepped_down` is given, it is called after a disk failure, and the core is not rebuilt.
    `proving` provides proofs of leadership.
    """

    def __init__(
        self,
        disk: Disk,
        settings: BrokerSettings,
        clock: Callable[[], int],
        call_later: CallLater,
        executor: Executor,
        kept: StoredClockOffset | None = None,
        core: Broker | None = None,
        stepped_down: Callable[[OSError], None] | None = None,
        proving: LeadershipProofs | None = None,
        counted_ms: Callable[[], float] | None = None,
    ) -> None:
        self._disk, self.settings, self._executor = disk, settings, executor
        self.clock = Clock(clock, kept, counted_ms)
        self.clock.set_step_callback(self._report_clock_step)
        self._clock = self.clock.now_ms
        self._unreported_step_ms = 0
        """Total of the clock steps not yet reported to the core, in milliseconds."""
        self._loop, self._call_later = asyncio.get_running_loop(), call_later
        self._core: Broker | None = core or self._open()
        self._core.damage.add_listener(log_damage)
        self._stepped_down = stepped_down
        self._void_reason: OSError | None = None
        self._lite_before, self._begun_ahead_before_ms = self._core.lite, self.clock.lead_at_begin_ms
        self.answers = Answers(self.core.durable_offset, proving, self._schedule_own_refusals)
        self._is_own_limited = False
        self.room = AppendQuota(self._waiting_bytes)
        long_polls = LongPolls()
        self.receivers = Receivers(
            lambda: self.core, self.call_with_time, self.call, self.clock, self.answers, long_polls
        )
        self.check_back_polls = CheckBackPolls(long_polls, self.send_check_backs)
        self._alarm = Alarm(self._run_due_tick, self._clock, call_later)
        self._is_alarm_stale = self._is_crowded = False
        self._share_callback: Share = ignore_crowding
        self._flushing = LogFlusher(self, disk, executor)
        self._rebuilding = StoreRebuilder(self, self._open, call_later, executor, self._must_rebuild_queues)
        self.warnings: Callable[[], Sequence[str]] = tuple
        """Returns the warnings of the owner for the `/readyz` response."""
        self._health_callback: Callable[[bool], None] = ignore_health
        self._well = asyncio.Event()
        self._well.set()
        self._askers: list[CheckBackSender] = [self.check_back_polls.add_check_back]
        self._present_clients: Present = tuple
        self._advancing = ClockAdvancer(self, self.clock)
        self.transactions = LiveTransactions(lambda: self.core, self.call, self._ask, self.room)
        self.transactions.set_producer_views(self.check_back_polls.producer_views)
        self.groups = LiveGroups(
            lambda: self.core,
            self.call,
            self.receivers.notify,
            self.room,
            self.offset_at,
            self.clock.to_real_time,
        )
        self.access = LiveAccess(lambda: self.core.access, self.call, self.clock)
        self._retiring: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self.broken: asyncio.Future[None] = self._loop.create_future()
        self._flush_and_plan()

    @property
    def core(self) -> Broker:
        """Return the current core, which is replaced after a disk failure. Callers must not modify the core.

        Raise `StoreUnavailable` or `BrokerBroken` if the core is unavailable.
        """
        if self._core is None:
            raise self.disk_failure or BrokerBroken("Its log says more; start it again.")
        return self._core

    @property
    def disk_failure(self) -> StoreUnavailable | None:
        """Return the error that calls raise while a disk failure makes the broker unavailable, or None."""
        return self._rebuilding.disk_failure

    def refuse_new_messages(self, why: Busy | None) -> None:
        """Reject new messages with the error `why`, or accept new messages again if `why` is None.

        Calls that store no new messages are not affected.
        """
        if self._core is not None:
            self._core.housekeeping.stopped = why

    @contextmanager
    def refusing_new_messages(self, why: Busy) -> Iterator[None]:
        """Reject new messages with the error `why` within the block.

        A message that is already stored may be sent again, because a repeated send needs no log space
        (`services.broker.sending`).
        """
        core = self._core
        if core is None:  # Without a core, all calls are rejected.
            yield
            return
        stopped, core.housekeeping.stopped = core.housekeeping.stopped, why
        try:
            yield
        finally:
            core.housekeeping.stopped = stopped

    def set_health_callback(self, told: Callable[[bool], None]) -> None:
        """Set the disk health callback, which is called with False on failure and with True on recovery."""
        self._health_callback = told

    async def wait_until_available(self) -> None:
        """Wait until the disk works and a core is available."""
        await self._well.wait()

    def schedule_call(self, seconds: float, call: Callable[[], None]) -> None:
        """Schedule `call` to run after `seconds`."""
        self._call_later(seconds, call)

    # These methods change the state of the core.

    def call(
        self, verb: Callable[..., Resting], *arguments: object, check: Check | None = None
    ) -> Coroutine[Any, Any, Resting]:
        """Call a method of the core, and return an awaitable for the result or error of the method.

        The method runs before `call` returns, so `verb` always belongs to the current core. The awaitable
        completes once the required records are durable. `check` is called immediately before the method. If
        it raises an error, the method is not called.
        """
        try:
            if check is not None:
                check()
            answer = self.call_with_time(verb, *map(self.clock.to_broker_time, arguments))
        except TidewheelError as refusal:
            return self._raise_when_durable(refusal)
        return self._await_durable(answer)

    def query(self, verb: Callable[Given, Answer], *arguments: Given.args, **named: Given.kwargs) -> Answer:
        """Call a read-only method of the core."""
        inward = map(self.clock.to_broker_time, arguments)
        return self.clock.to_real_time(cast(Callable[..., Answer], verb)(*inward, **named))

    async def send(self, message: Message, created: CreatedTopics | None = None) -> SendReceipt:
        """Store a normal, FIFO, delayed, or half message. Return a receipt once the message is durable.

        If the send creates the topic, the topic is added to `created`. If the message is then refused, the
        error names the topic.
        """
        if created is None and self.room.has_room_for(len(message.body)):
            return await self.call(self.core.sending.send, message)
        with await self._wait_for_room(len(message.body)), self._record_created_topics([message], created):
            told = self.call(self.core.sending.send, message)
        try:
            return await told
        except TidewheelError as refusal:
            named = refusal if created is None else created.with_created_topic_note(refusal, message.topic)
            if named is refusal:
                raise
            raise named from refusal

    async def send_many(
        self, messages: list[Message], created: CreatedTopics | None = None
    ) -> list[SendReceipt | TidewheelError]:
        """Store several messages.

        Return a receipt or an error for each message once all messages are durable. Topics that are created
        for the messages are added to `created`.
        """
        body_bytes = sum(len(message.body) for message in messages)
        room = await self._wait_for_room(
            max(body_bytes, len(messages) * limits.CALLERS_UNFLUSHED_RECORD_BYTES)
        )
        with room, self._record_created_topics(messages, created):
            answers = self.call_with_time(self.core.sending.send_many, self.clock.to_broker_time(messages))
        offsets = [
            one.durable_at if isinstance(one, SendReceipt) else required_offset(one) for one in answers
        ]
        await self.answers.wait_until_durable(max(offsets, default=0))
        return answers

    def _record_created_topics(
        self, messages: Sequence[Message], created: CreatedTopics | None
    ) -> AbstractContextManager[None]:
        """Return a context manager that adds topics created for the messages to `created`."""
        if created is None:
            return nullcontext()
        return created.recording(self.core.topics, (one.topic for one in messages))

    async def _wait_for_room(self, new_bytes: int) -> AbstractContextManager[None]:
        """Wait until `new_bytes` bytes may be appended. Return a context manager for the append.

        If too many calls are waiting, do not wait, and return a context manager that rejects new messages.
        """
        try:
            await self.room.wait(new_bytes)
        except DiskBehind as behind:
            return self.refusing_new_messages(behind)
        return nullcontext()

    async def wait_until_all_durable(self) -> None:
        """Wait until all appended records are durable."""
        await self.answers.wait_until_durable(self.core.store.log.end_offset)

    async def move_timer(
        self, name: TimerName, due_ms: int, reason: str = "", check: Check | None = None
    ) -> TimerVerdict:
        """Change the due time of a delayed message."""
        await self.room.wait_for_copy()
        move = partial(self.core.timers.move, reason=reason)
        return await self.call(move, name, due_ms + self.clock.offset_ms, check=check)

    async def fire_timer(self, name: TimerName, reason: str = "", check: Check | None = None) -> TimerVerdict:
        """Deliver a delayed message immediately."""
        await self.room.wait_for_copy()
        return await self.call(partial(self.core.timers.fire, reason=reason), name, check=check)

    def call_with_time(self, verb: Callable[..., Answer], *arguments: object) -> Answer:
        """Call a method of the core with the current broker time as the last argument."""
        try:
            return verb(*arguments, self._clock())
        except TidewheelError:
            raise
        except OSError as error:
            self._flushing.fail(error)
            raise StoreUnavailable(f"{error}. Send again once it works.") from error
        except Exception as bug:
            self.stop_on_internal_error(bug)
            raise
        finally:  # An error may depend on an unflushed record, so a flush is scheduled even after an error.
            if not (self._is_alarm_stale and self._flushing.will_flush):
                self._flush_and_plan()

    async def _await_durable(self, answer: Resting) -> Resting:
        await self.answers.wait_until_durable(answer if isinstance(answer, int) else answer.durable_at)
        return self.clock.to_real_time(answer)

    async def _raise_when_durable(self, refusal: TidewheelError) -> Any:
        await self.answers.wait_until_durable(required_offset(refusal))
        raise refusal

    def _schedule_own_refusals(self) -> None:
        """Schedule a call in OWN_MS milliseconds that fails the local refusals still waiting for a proof."""
        if not self._is_own_limited:
            self._is_own_limited = True
            self._call_later(OWN_MS / 1000, self._fail_own_refusals)

    def _fail_own_refusals(self) -> None:
        why = self._core and (self._core.housekeeping.stopped or self._core.housekeeping.refusal())
        said = (
            f"this one was refused: {type(why).code} {why}" if why else "send again with the same message id."
        )
        self._is_own_limited = False
        if self.answers.fail_local_refusals(ResultUnknown(f"An earlier call may have stored it; {said}")):
            self._schedule_own_refusals()

    # These methods query the state of the core.

    def now_ms(self) -> int:
        """Return the current real time in milliseconds."""
        return self.clock.real_ms()

    def find(self, topic: str, key: str, count_max: int) -> FoundMessages:
        """Return up to `count_max` messages with the given key or message id, newest first.

        If the messages are large, fewer messages are returned.
        """
        found = self.core.finding.find(topic, key, count_max)
        return FoundMessages(self.clock.to_real_time(found.messages), found.is_cut)

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """Return the queue offset of the first message that was stored at or after `store_ms` (real time)."""
        return self.core.finding.offset_at(topic, queue_id, store_ms + self.clock.offset_ms)

    def timer(self, name: TimerName) -> PendingTimer | TimerVerdict:
        """Return the pending timer of a delayed message, or the outcome of a timer that has ended."""
        return self.query(self.core.timers.get_timer, name, self.clock.now_ms())

    def find_timer_verdict(self, timer: Delivery) -> TimerVerdict | None:
        """Return the outcome of a timer, or None if the timer is still pending."""
        return self.query(self.core.timers.find_verdict, timer, self.clock.now_ms())

    def timers(self, wanted: TimerFilter, after: tuple[int, int] | None, count_max: int) -> TimerPage:
        """Return a page of pending timers, sorted by due time. `after` is a cursor in broker time."""
        return self.query(self.core.timer_views.read_page, wanted, after, count_max)

    # These methods advance the clock and run due work.

    async def advance(self, by_ms: int) -> None:
        """Advance a virtual clock by `by_ms` milliseconds.

        Raise `IllegalAdvance`, or `ClockIsReal` if the clock is not virtual.
        """
        await self._advancing.advance(by_ms)

    def set_present_clients(self, present: Present) -> None:
        """Set the function that returns the ids of the clients whose leases are renewed during an advance."""
        self._present_clients = present

    def renew_present(self) -> None:
        """Renew the leases of connected clients, and end waiting calls with an expired token."""
        self.access.check_waiting_calls()
        for client_id in self._present_clients():
            self.core.receiving.renew_client(client_id, self._clock())

    def record_answer(self, transaction_id: str, answer: str = "UNKNOWN") -> None:
        """Record the answer of a producer to a transaction check-back."""
        self.transactions.log.record_answer(transaction_id, answer, self.clock.real_ms())
        self._advancing.end_wait_for_answer(transaction_id)

    def tick(self) -> bool:
        """Run the due work of the core. Return whether the work had any effects."""
        if self._core is None:
            return False
        try:
            effects = self._core.tick(self._clock())
            self._apply_effects(effects)
        except OSError as error:
            self._flushing.fail(error)
            return False
        except Exception as bug:
            self.stop_on_internal_error(bug)
            raise
        self._flush_and_plan()
        return bool(effects)

    async def wait_until_durable(self, offset: int) -> None:
        """Wait until the log is durable up to `offset`.

        Raise `ResultUnknown` if the disk fails. If an internal error has stopped the core, raise that error.
        """
        await self.answers.wait_until_durable(offset)
        if self.broken.done():
            self.broken.result()

    async def wait_until_timers_ready(self) -> None:
        """Wait until no timers are being read from disk and no checkpoint is due."""
        while self.core.is_checkpoint_due or (self._reading is not None and not self._reading.done()):
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

    # These methods are used during startup and shutdown.

    def add_check_back_sender(self, asker: CheckBackSender) -> None:
        """Add a function that sends transaction check-backs.

        A function that has sent a check-back moves to the end of the list, so that the functions are used in
        rotation.
        """
        self._askers.append(asker)

    def topics_awaiting_producers(self) -> list[str]:
        """Return the topics with half messages whose check-backs wait for a producer.

        Return an empty list if the core is unavailable.
        """
        return [] if self._core is None else self._core.transactions.waiting_check_backs.topics()

    def send_check_backs(self, topic: str) -> None:
        """Send the pending transaction check-backs of a topic to a newly connected producer.

        If the core is unavailable, do nothing, because the next core sends all due check-backs.
        """
        if self._core is not None:
            self.call_with_time(self._core.transactions.schedule_waiting_check_backs, topic)

    def set_share_callback(self, share: Share) -> None:
        """Set the callback for the beginning and the end of a crowded period."""
        self._share_callback = share

    async def close(self) -> None:
        """Flush all appends, write a snapshot for the next startup, and stop.

        The disk remains open. Raise a `StoreError` if a disk failure prevents a clean shutdown.
        """
        self.receivers.close()
        self._alarm.close()  # No tick runs after the alarm has been closed.
        self.answers.stop_proofs(ResultUnknown("This node leads no more. Call again."))
        self._flush_and_plan()
        await self._flushing.idle()
        await self._rebuilding.close()
        # A retirement or a timer read may trigger a flush and a further retirement or read.
        while (under_way := self._current_retirement_task() or self._current_read_task()) is not None:
            await under_way
            await self._flushing.idle()
        if self.disk_failure is not None and self._stepped_down is not None:
            return  # The cluster elects another leader.
        if self.disk_failure is not None:
            raise DiskFailed(
                f"{self.disk_failure.detail} The broker ends all the same; start it once the disk works."
            )
        self._flushing.stop()
        if self._core is not None and self._core.is_quiet:
            self._write_final_snapshot(self._core)

    def _write_final_snapshot(self, core: Broker) -> None:
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
        """Schedule a flush and an update of the alarm, each at most once per event loop iteration.

        This method is called after the log or a due time has changed.
        """
        self._flushing.flush_soon()
        self._schedule_tick()

    def _report_clock_step(self, from_ms: int, until_ms: int) -> None:
        """Report a system clock step to the core.

        A clock step does not change the duration of leases, but timers may fire early or late.
        """
        if abs(until_ms - from_ms) >= limits.CLOCK_JUMP_MS_MIN:
            log.warning("the clock was set", by_seconds=(until_ms - from_ms) / 1000)
        if self._core is None:
            self._unreported_step_ms += until_ms - from_ms
        else:
            self._core.record_clock_jump(from_ms, until_ms)
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
        if self._core.is_crowded:  # Consecutive ticks without a delay would block other calls.
            self._count_down_turns(TURNS_BETWEEN_FULL_TICKS)
        else:
            self._is_alarm_stale = False
            self._alarm.set(self._core.next_due_ms())

    def _share_interpreter(self) -> None:
        """Call the share callback if a crowded period has begun or ended."""
        is_crowded = self._core is not None and self._core.is_crowded
        if self._is_crowded != is_crowded:
            self._is_crowded = is_crowded
            self._share_callback(self._is_crowded)

    def _count_down_turns(self, left: int) -> None:
        """Set the alarm after `left` more event loop iterations, so that calls are served between ticks."""
        if left > 0:
            self._loop.call_soon(self._count_down_turns, left - 1)
        else:
            self._is_alarm_stale = False
            if self._core is not None:
                self._alarm.set(self._core.next_due_ms())

    def apply_flush(self, flush: Flush) -> None:
        """Send the responses that waited for a completed flush, and wake waiting receives."""
        core = self.core
        effects = core.complete_flush(flush, self._clock())
        assert core.durable_offset >= self.answers.offset, "what was told as durable is not any more"
        self.answers.advance(core.durable_offset)
        self.room.admit_waiting()
        self._rebuilding.reset_failures()
        self._apply_effects(effects)
        self._schedule_tick()

    def close_failed_core(self, error: OSError) -> None:
        """Discard the core after a disk failure, and fail all waiting calls."""
        core, self._void_reason = self.core, error
        self._lite_before, self._begun_ahead_before_ms = core.lite, self.clock.lead_at_begin_ms
        self._rebuilding.refuse_callers(core, error)
        self._drop_core(
            core, f"Writing to the store failed ({error}). Send again with the same message id once it works."
        )

    def rebuild(self) -> None:
        """Rebuild the core from the durable part of the log or, in a cluster, step down as leader.

        No write may be running.
        """
        if self._stepped_down is None:
            self._rebuilding.begin()
        else:
            assert self._void_reason is not None, "a core is made anew though none was let go"
            self._stepped_down(self._void_reason)

    def fail(self, error: OSError) -> None:
        """Discard the core after a disk failure, because its appends may not be durable."""
        self._flushing.fail(error)

    def adopt(self, core: Broker) -> None:
        """Resume service with a reopened core, which adopts the lite subscriptions of the previous core."""
        assert self._core is None, "two cores over one store"
        core.lite.adopt_subscriptions(
            self._lite_before, self.clock.lead_at_begin_ms - self._begun_ahead_before_ms
        )
        self._core = core
        if self._unreported_step_ms:
            now_ms = self._clock()
            core.record_clock_jump(now_ms - self._unreported_step_ms, now_ms)
            self._unreported_step_ms = 0
        core.damage.add_listener(log_damage)
        self.answers.advance(core.durable_offset)
        self._well.set()
        self._health_callback(True)
        self._flushing.resume_with_core()
        self.receivers.notify_all()
        self._schedule_tick()

    def unflushed_bytes(self) -> int:
        """Return the number of unflushed log bytes, or 0 if the core is unavailable."""
        return 0 if self._core is None else self._core.end_offset - self._core.durable_offset

    def _waiting_bytes(self) -> int:
        """Return the unflushed bytes, but at least CALLERS_UNFLUSHED_RECORD_BYTES per unflushed record."""
        if self._core is None:
            return 0
        log, unflushed_count = self._core.store.log, self._core.store.unflushed_count
        return max(
            log.end_offset - log.durable_offset, unflushed_count * limits.CALLERS_UNFLUSHED_RECORD_BYTES
        )

    def _drop_core(self, core: Broker, refusal: str) -> None:
        """Discard the core, and fail all calls that are waiting for a flush."""
        assert core is self._core, "a core is let go that serves nobody"
        self._core = None
        self._well.clear()
        self._health_callback(False)
        self._alarm.stop()
        self.answers.refuse(ResultUnknown(refusal), core.durable_offset)
        self.room.admit_waiting()

    @property
    def is_retiring(self) -> bool:
        """Return whether segments are being deleted. A rebuild starts only after the deletion has ended."""
        return self._current_retirement_task() is not None

    def broker_ms(self) -> int:
        """Return the current broker time in milliseconds."""
        return self._clock()

    async def _read_timers(self, core: Broker, job: TimersJob, before: asyncio.Task[None] | None) -> None:
        """Read the files that contain timers due soon and the files that may be damaged.

        The core may already be discarded when the read begins. The method also awaits the previous read,
        `before`, so a caller needs to await only the last read.
        """
        try:
            await self._loop.run_in_executor(self._executor, job.run, self._disk)
        except OSError as error:
            log.warning("timers could not be read ahead", reason=str(error))
            core.requeue_timers_job(job)
        else:
            core.complete_timers_job(job)
        self._flush_and_plan()
        if before is not None:
            await before

    def _current_retirement_task(self) -> asyncio.Task[None] | None:
        return None if self._retiring is None or self._retiring.done() else self._retiring

    def _current_read_task(self) -> asyncio.Task[None] | None:
        return None if self._reading is None or self._reading.done() else self._reading

    async def _retire(self, core: Broker, retirement: Retirement) -> None:
        """Run a retirement once the log is durable up to its `durable_at`."""
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
        """Apply a retirement to the core, a few queues per event loop iteration."""
        try:
            while self._core is core and not core.continue_retirement(retirement, self._clock()):
                await asyncio.sleep(0)
        except OSError as error:
            self._flushing.fail(error)
        except Exception as bug:
            self.stop_on_internal_error(bug)
            raise

    def stop_on_internal_error(self, bug: BaseException) -> None:
        """Stop all writes, and reject all calls, after an internal error in the core.

        The owner of the broker is expected to exit the process.
        """
        self._flushing.stop()
        if self._core is not None:
            self._drop_core(self._core, "The broker has met a bug and ends. Send again once it is back.")
        if not self.broken.done():
            self.broken.set_exception(bug)

    def _open(self, acknowledged_offset: int | None = None) -> Broker:
        """Open the store. If the disk is full, delete the reserve file and retry."""
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
        """Return whether opening the store requires a scan of the whole log.

        If the disk fails, return False, because opening the store reports the failure.
        """
        with suppress(OSError):
            return bool(snapshot.offsets(self._disk)) and self._disk.size(layout.QUEUES_WHOLE) < 0
        return False

    def _run_due_tick(self) -> None:
        with suppress(Exception):  # `stop_on_internal_error` has already handled the exception.
            self.tick()

    def _ask(self, question: CheckBackRequest) -> str:
        """Send a transaction check-back to a producer.

        Return the client id of the producer, or "" if the topic has no producer.
        """
        transaction_id, topic = question.transaction_id, question.topic

        def read() -> Message | None:
            message = self.core.transactions.message(question.half_offset)
            return None if message is None else self.clock.to_real_time(message)

        client_id = self._ask_next_sender(question, read)
        self.transactions.log.record_check_back(transaction_id, topic, client_id, self.clock.real_ms())
        self.core.statistics.checks_asked[topic] += bool(client_id)
        if client_id:
            self._advancing.expect_answer(transaction_id)
        self.core.transactions.complete_check_back(transaction_id, bool(client_id), self._clock())
        self._flush_and_plan()
        return client_id

    def _ask_next_sender(self, question: CheckBackRequest, read: Read) -> str:
        for asker in list(self._askers):
            if client_id := asker(question, read):
                self._askers.remove(asker)
                self._askers.append(asker)
                return client_id
        return ""

    def _apply_effects(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case WakeReceivers(keys):
                    self.receivers.notify(*keys)
                case RetireSegments(retirement):
                    assert not self.is_retiring, "two retirements at once"
                    self._retiring = self._loop.create_task(self._retire(self.core, retirement))
                case LogWarning(text):
                    log.warning(text)
                case RunTimersJob(job):
                    reading = self._read_timers(self.core, job, self._current_read_task())
                    self._reading = self._loop.create_task(reading)
                case CheckBackRequest():
                    self._ask(effect)
