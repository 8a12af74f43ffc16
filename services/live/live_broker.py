"""The broker inside an asyncio loop: the only owner of the core, and the only one that moves its time.

What can be asked of it: `call(verb, ...)` and `query(verb, ...)`, with a verb of the core. A verb that
stores answers once its record is durable; one that takes more than a call has a method here or in
`receivers`. Errors are the core's `TidewheelError`s; verbs that store raise `ResultUnknown` too, when the
disk failed before the record was known to be durable.

    caller -> verb -> core (runs to completion) -> answer waits for its offset -> caller
                        |                               ^
                        +-> flush in a worker thread ---+-> effects: wake receivers, ask producers
                        +-> alarm at the core's next due time -> tick -> effects

Rules:
- The callers of one turn of the loop share one flush, however many they are (`services.live.flushing`).
- A tick that has more to do than its slice is due again soon; the loop serves callers in between, for as many
  turns as a call needs.
- A disk that fails refuses every waiting caller (`ResultUnknown`); the core is void from then on, and made
  anew from the disk (`services.live.rebuilding`).
- Callers speak of real time, the core of the broker's time: this is the border (`services.live.clock`).
- A bug in the core is not survived: `broken` gets the exception, and the process is expected to end.

Weak spot: after each `await` the core may be another, or none. Whatever was taken from the core before is
void then; so methods ask for `_broker` anew, or hold the core that they began with and tell that one alone.
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
from services.broker.spine.finding import Found
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
from services.live.durability import OWN_MS, Answers, Proving, rests_on
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
"""Ask a producer how its transaction ended; return the producer's client id, empty when there is none.

The message is read only for a producer that can be asked."""
Share = Callable[[bool], None]
"""Learn when a crowded moment begins (True) and ends."""
Present = Callable[[], Iterable[str]]
"""Return the ids of the clients that are heard from."""


TURNS_BETWEEN_FULL_TICKS = 80
"""A send needs about ten turns of the loop, in some of which gRPC's thread has yet to get the interpreter."""

Answer = TypeVar("Answer")
Given = ParamSpec("Given")


class RestsOnRecord(Protocol):
    """An answer that may be given once the log is durable up to `durable_at`."""

    @property
    def durable_at(self) -> int:
        """A physical offset."""


Resting = TypeVar("Resting", bound=RestsOnRecord | int)


log = structlog.get_logger()


def ignore_health(is_well: bool) -> None:
    """Tell nobody."""


def always_alike(is_crowded: bool) -> None:
    """Share the interpreter as ever."""


def log_damage(found: Damaged) -> None:
    """Tell the log of something that is not what was written."""
    given = {"rebuilt": found.rebuilt_count, "lost": found.lost_count} if found.part == "partition" else {}
    log.error("store damaged", part=found.part, path=found.path, what=found.what, **given)


class LiveBroker:
    """A broker that answers coroutines. Make it and use it in one running loop.

    `clock` is real time in milliseconds; with a `kept` offset the broker's clock is virtual. `counted_ms` is
    a clock that is never set, by which steps of the other are seen; without it there are none. A node of a
    cluster gives the `core` that it leads with, is told by `stepped_down` when that is void (it is not made
    anew here), and says by `proving` how it proves that it leads.
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
        proving: Proving | None = None,
        counted_ms: Callable[[], float] | None = None,
    ) -> None:
        self._disk, self.settings, self._executor = disk, settings, executor
        self.clock = Clock(clock, kept, counted_ms)
        self.clock.step_with(self._clock_was_set)
        self._clock = self.clock.now_ms
        self._untold_ms = 0
        """By how much the clock was set while there was no core, since the next one was begun."""
        self._loop, self._call_later = asyncio.get_running_loop(), call_later
        self._core: Broker | None = core or self._open()
        self._core.damage.listen(log_damage)
        self._stepped_down = stepped_down
        self._why_void: OSError | None = None
        self._lite_before, self._begun_ahead_before_ms = self._core.lite, self.clock.begun_ahead_ms
        self.answers = Answers(self._broker.durable_offset, proving, self._limit_own)
        self._is_own_limited = False
        self.room = Room(self._waiting_bytes)
        long_polls = LongPolls()
        self.receivers = Receivers(
            lambda: self._broker, self.decide, self.call, self.clock, self.answers, long_polls
        )
        self.check_back_polls = CheckBackPolls(long_polls, self.producer_came)
        self._alarm = Alarm(self._tick_due, self._clock, call_later)
        self._is_alarm_stale = self._is_crowded = False
        self._share: Share = always_alike
        self._flushing = Flushing(self, disk, executor)
        self._rebuilding = Rebuilding(self, self._open, call_later, executor, self._makes_queues_anew)
        self.warnings: Callable[[], Sequence[str]] = tuple
        """Return sentences that the owner of the core adds to `/readyz`."""
        self._told_of_health: Callable[[bool], None] = ignore_health
        self._well = asyncio.Event()
        self._well.set()
        self._askers: list[Asker] = [self.check_back_polls.ask]
        self._present: Present = tuple
        self._advancing = Advancing(self, self.clock)
        self.transactions = LiveTransactions(lambda: self._broker, self.call, self._ask, self.room)
        self.transactions.list_with(self.check_back_polls.views)
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
        """The core; while there is none, raises what callers are to be told."""
        if self._core is None:
            raise self.unwell or BrokerBroken("Its log says more; start it again.")
        return self._core

    @property
    def unwell(self) -> StoreUnwell | None:
        """Why nothing is served because of the disk; None when the disk is no reason."""
        return self._rebuilding.unwell

    def stop_new(self, why: Busy | None) -> None:
        """Refuse new messages with `why`, and let all else go on; None takes them again."""
        if self._core is not None:
            self._core.housekeeping.stopped = why

    @contextmanager
    def refusing_new(self, why: Busy) -> Iterator[None]:
        """Refuse new messages with `why` within the block, and none that were stored before.

        So does who has no room for a message: its sender may have tried before (`services.broker.sending`).
        """
        core = self._core
        if core is None:  # so everything is refused
            yield
            return
        stopped, core.housekeeping.stopped = core.housekeeping.stopped, why
        try:
            yield
        finally:
            core.housekeeping.stopped = stopped

    def tell_health_to(self, told: Callable[[bool], None]) -> None:
        """Tell `told` when the disk fails (False), and when it works again."""
        self._told_of_health = told

    async def well(self) -> None:
        """Return when the disk has not failed, or works again."""
        await self._well.wait()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call back after so many seconds."""
        self._call_later(seconds, call)

    # Verbs.

    def call(self, verb: Callable[..., Resting], *arguments: object) -> Coroutine[Any, Any, Resting]:
        """Call a verb of the core at once; its answer or refusal comes when what it rests on is durable.

        So the verb is one of the core that there is: nothing is awaited before it is called.
        """
        try:
            answer = self.decide(verb, *map(self.clock.inward, arguments))
        except TidewheelError as refusal:
            return self._refused(refusal)
        return self._await_durable(answer)

    def query(self, verb: Callable[Given, Answer], *arguments: Given.args, **named: Given.kwargs) -> Answer:
        """Look at something in the core, which changes nothing."""
        inward = map(self.clock.inward, arguments)
        return self.clock.outward(cast(Callable[..., Answer], verb)(*inward, **named))

    async def send(self, message: Message) -> SendReceipt:
        """Store a message (normal, FIFO, delayed or half)."""
        if self.room.has(len(message.body)):
            return await self.call(self._broker.sending.send, message)
        with await self._let_in(len(message.body)):
            told = self.call(self._broker.sending.send, message)
        return await told

    async def send_many(self, messages: list[Message]) -> list[SendReceipt | TidewheelError]:
        """Store many messages; each has its own answer, and they come when all are durable."""
        body_bytes = sum(len(message.body) for message in messages)
        with await self._let_in(max(body_bytes, len(messages) * limits.CALLERS_UNFLUSHED_RECORD_BYTES)):
            answers = self.decide(self._broker.sending.send_many, self.clock.inward(messages))
        rests = [one.durable_at if isinstance(one, SendReceipt) else rests_on(one) for one in answers]
        await self.answers.reach(max(rests, default=0))
        return answers

    async def _let_in(self, new_bytes: int) -> AbstractContextManager[None]:
        """Wait for room; return the block in which to decide: without room new messages are refused in it."""
        try:
            await self.room.wait(new_bytes)
        except DiskBehind as behind:
            return self.refusing_new(behind)
        return nullcontext()

    async def move_timer(self, name: TimerName, due_ms: int, reason: str = "") -> TimerVerdict:
        """Give a delayed message another time."""
        await self.room.for_copy()
        move = partial(self._broker.timers.move, reason=reason)
        return await self.call(move, name, due_ms + self.clock.offset_ms)

    async def fire_timer(self, name: TimerName, reason: str = "") -> TimerVerdict:
        """Deliver a delayed message at once."""
        await self.room.for_copy()
        return await self.call(partial(self._broker.timers.fire, reason=reason), name)

    def decide(self, verb: Callable[..., Answer], *arguments: object) -> Answer:
        """Call a verb of the core with the broker's time behind its arguments."""
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
        finally:  # also after a refusal, which may rest on a record; thousands of calls a turn stir once
            if not (self._is_alarm_stale and self._flushing.will_flush):
                self._flush_and_plan()

    async def _await_durable(self, answer: Resting) -> Resting:
        await self.answers.reach(answer if isinstance(answer, int) else answer.durable_at)
        return self.clock.outward(answer)

    async def _refused(self, refusal: TidewheelError) -> Any:
        await self.answers.reach(rests_on(refusal))
        raise refusal

    def _limit_own(self) -> None:
        """Give up what is refused for want of own means, and waits, after a while."""
        if not self._is_own_limited:
            self._is_own_limited = True
            self._call_later(OWN_MS / 1000, self._give_up_own)

    def _give_up_own(self) -> None:
        why = self._core and (self._core.housekeeping.stopped or self._core.housekeeping.refusal())
        said = (
            f"this one was refused: {type(why).code} {why}" if why else "send again with the same message id."
        )
        self._is_own_limited = False
        if self.answers.give_up_own(ResultUnknown(f"An earlier call may have stored it; {said}")):
            self._limit_own()

    # Queries.

    @property
    def core(self) -> Broker:
        """The core, to look at only; it is another one after the disk has failed.

        Raises `StoreUnwell` while there is none.
        """
        return self._broker

    def now_ms(self) -> int:
        """Return real time, the time of callers."""
        return self.clock.real_ms()

    def find(self, topic: str, key: str, count_max: int) -> Found:
        """Look messages up by key or message id, newest first; they are fewer if they are large."""
        found = self._broker.finding.find(topic, key, count_max)
        return Found(self.clock.outward(found.messages), found.is_cut)

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """Return the first queue offset stored at or after a time."""
        return self._broker.finding.offset_at(topic, queue_id, store_ms + self.clock.offset_ms)

    def timer(self, name: TimerName) -> PendingTimer | TimerVerdict:
        """Look at one delayed message: waiting, or what became of it."""
        return self.query(self._broker.timers.get, name, self.clock.now_ms())

    def timer_ended(self, timer: Delivery) -> TimerVerdict | None:
        """Return what became of the timer of one timer record that was looked at; None while it waits."""
        return self.query(self._broker.timers.ended, timer, self.clock.now_ms())

    def timers(self, wanted: TimerFilter, after: tuple[int, int] | None, count_max: int) -> TimerPage:
        """Look at delayed messages that wait, by due time."""
        sort_key = None if after is None else (after[0] + self.clock.offset_ms, after[1])
        return self.query(self._broker.timer_views.page, wanted, sort_key, count_max)

    def timer_histogram(self, wanted: TimerFilter, width_ms: int) -> list[tuple[int, int]]:
        """Count delayed messages that wait by windows of due time."""
        found = self.query(self._broker.timer_views.histogram, wanted, width_ms)
        return [(start_ms - self.clock.offset_ms, count) for start_ms, count in found]

    # Time.

    async def advance(self, by_ms: int) -> None:
        """Let `by_ms` pass on a virtual clock; raise `ClockIsReal` or `IllegalAdvance`."""
        await self._advancing.advance(by_ms)

    def renew_with(self, present: Present) -> None:
        """Learn from `present` whose leases are renewed while the clock is advanced."""
        self._present = present

    def renew_present(self) -> None:
        """Renew the leases of clients that are heard from; end what waits by a token that has expired."""
        self.access.look_again()
        for client_id in self._present():
            self._broker.receiving.client_alive(client_id, self._clock())

    def answered(self, transaction_id: str, answer: str = "UNKNOWN") -> None:
        """Note a producer's answer to a check-back, if only that the producer does not know."""
        self.transactions.log.answered(transaction_id, answer, self.clock.real_ms())
        self._advancing.answered(transaction_id)

    def tick(self) -> bool:
        """Let the core do what is due now; False if nothing came of it."""
        if self._core is None:
            return False
        try:
            effects = self._core.tick(self._clock())
            self._carry_out(effects)
        except OSError as error:
            self._flushing.fail(error)
            return False
        except Exception as bug:
            self.break_down(bug)
            raise
        self._flush_and_plan()
        return bool(effects)

    async def durable(self, offset: int) -> None:
        """Return when the log is durable so far; raise `ResultUnknown`, or what broke the core."""
        await self.answers.reach(offset)
        if self.broken.done():
            self.broken.result()

    async def timers_ready(self) -> None:
        """Return when no timers are being read ahead, nor files rewritten for them."""
        while self._broker.is_checkpoint_due or (self._reading is not None and not self._reading.done()):
            if self._reading is not None:
                await self._reading
            self._flushing.flush_soon()
            await self._flushing.idle()
            if self.broken.done():
                return

    def time_has_moved(self) -> None:
        """Plan the next tick anew."""
        self._alarm.stop()
        self._schedule_tick()

    # Life.

    def ask_with(self, asker: Asker) -> None:
        """Let `asker` take check-backs to producers, too; those that reach one are asked in turn."""
        self._askers.append(asker)

    def unasked_topics(self) -> list[str]:
        """Return the topics of which halves wait for a producer that can be asked; none without a core."""
        return [] if self._core is None else self._core.transactions.unasked.topics()

    def producer_came(self, topic: str) -> None:
        """Ask about the halves that wait for a producer of a topic: one can be asked, perhaps again.

        Without a core nothing is to be done: the next one looks at every half that is due.
        """
        if self._core is not None:
            self.decide(self._core.transactions.producer_came, topic)

    def share_with(self, share: Share) -> None:
        """Let `share` give loop and workers their parts of the interpreter."""
        self._share = share

    async def close(self) -> None:
        """Flush what is left, leave a snapshot for the next start, and let the core go.

        The disk stays the caller's. Raise a `StoreError` if it keeps the end from being a clean one.
        """
        self.receivers.close()
        self._alarm.close()  # no tick begins anything from here on
        self.answers.prove_no_more(ResultUnknown("This node leads no more. Call again."))
        self._flush_and_plan()
        await self._flushing.idle()
        await self._rebuilding.close()
        # Each may want the next one, and a flush.
        while (under_way := self._retiring_still() or self._reading_still()) is not None:
            await under_way
            await self._flushing.idle()
        if self.unwell is not None and self._stepped_down is not None:
            return  # what it had appended is the next leader's to tell
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
        """See, once a turn, to the flush and the alarm, after anything that may have appended or planned."""
        self._flushing.flush_soon()
        self._schedule_tick()

    def _clock_was_set(self, from_ms: int, until_ms: int) -> None:
        """Tell the core when somebody set the clock: leases last, and timers are late or early for it."""
        if abs(until_ms - from_ms) >= limits.CLOCK_JUMP_MS_MIN:
            log.warning("the clock was set", by_seconds=(until_ms - from_ms) / 1000)
        if self._core is None:
            self._untold_ms += until_ms - from_ms
        else:
            self._core.clock_jumped(from_ms, until_ms)
            self.time_has_moved()

    def _schedule_tick(self) -> None:
        if not self._is_alarm_stale:
            self._is_alarm_stale = True
            self._loop.call_soon(self._set_alarm)

    def _set_alarm(self) -> None:
        if self._core is None:
            self._is_alarm_stale = False
            return
        self._share_interpreter()
        if self._core.is_crowded:  # else tick after tick would be due at once, and nobody else be served
            self._turn(TURNS_BETWEEN_FULL_TICKS)
        else:
            self._is_alarm_stale = False
            self._alarm.set(self._core.next_due_ms())

    def _share_interpreter(self) -> None:
        """Tell whoever shares out the interpreter when a crowded moment begins and ends."""
        is_crowded = self._core is not None and self._core.is_crowded
        if self._is_crowded != is_crowded:
            self._is_crowded = is_crowded
            self._share(self._is_crowded)

    def _turn(self, left: int) -> None:
        """Let callers have `left` turns of the loop in a crowded moment, before the next tick."""
        if left > 0:
            self._loop.call_soon(self._turn, left - 1)
        else:
            self._is_alarm_stale = False
            if self._core is not None:
                self._alarm.set(self._core.next_due_ms())

    def settle(self, flush: Flush) -> None:
        """Give the answers that waited for a flush, which is on disk, and wake receivers."""
        core = self._broker
        effects = core.flushed(flush, self._clock())
        assert core.durable_offset >= self.answers.offset, "what was told as durable is not any more"
        self.answers.advance(core.durable_offset)
        self.room.freed()
        self._rebuilding.went_well()
        self._carry_out(effects)
        self._schedule_tick()

    def void(self, error: OSError) -> None:
        """Refuse everybody who waits, and let the core go: the disk has failed."""
        core, self._why_void = self._broker, error
        self._lite_before, self._begun_ahead_before_ms = core.lite, self.clock.begun_ahead_ms
        self._rebuilding.let_go(core, error)
        self._drop_core(
            core, f"Writing to the store failed ({error}). Send again with the same message id once it works."
        )

    def rebuild(self) -> None:
        """Start again from what is surely on disk; nothing is being written any more."""
        if self._stepped_down is None:
            self._rebuilding.begin()
        else:
            assert self._why_void is not None, "a core is made anew though none was let go"
            self._stepped_down(self._why_void)

    def fail(self, error: OSError) -> None:
        """Let the core go: what it has appended is not known to be kept."""
        self._flushing.fail(error)

    def adopt(self, core: Broker) -> None:
        """Go on with a core that was opened again, and with the subscriptions of the one before."""
        assert self._core is None, "two cores over one store"
        core.lite.take_over(self._lite_before, self.clock.begun_ahead_ms - self._begun_ahead_before_ms)
        self._core = core
        if self._untold_ms:
            now_ms = self._clock()
            core.clock_jumped(now_ms - self._untold_ms, now_ms)
            self._untold_ms = 0
        core.damage.listen(log_damage)
        self.answers.advance(core.durable_offset)
        self._well.set()
        self._told_of_health(True)
        self._flushing.go_on()
        self.receivers.notify_all()
        self._schedule_tick()

    def unflushed_bytes(self) -> int:
        """Return how much waits for the disk; without a core each call is refused by itself."""
        return 0 if self._core is None else self._core.end_offset - self._core.durable_offset

    def _waiting_bytes(self) -> int:
        """Return how much waits for the disk, a record as no less than it costs then."""
        if self._core is None:
            return 0
        counted = self._core.store.unflushed_count * limits.CALLERS_UNFLUSHED_RECORD_BYTES
        return max(self.unflushed_bytes(), counted)

    def _drop_core(self, core: Broker, refusal: str) -> None:
        """Let nobody use the core again; what waits for it is refused."""
        assert core is self._core, "a core is let go that serves nobody"
        self._core = None
        self._well.clear()
        self._told_of_health(False)
        self._alarm.stop()
        self.answers.refuse(ResultUnknown(refusal), core.durable_offset)
        self.room.freed()

    @property
    def is_retiring(self) -> bool:
        """Whether segments are being deleted: the core is not to be rebuilt meanwhile."""
        return self._retiring_still() is not None

    def broker_ms(self) -> int:
        """Return the broker's time."""
        return self._clock()

    async def _read_timers(self, core: Broker, job: TimersJob, before: asyncio.Task[None] | None) -> None:
        """Read files of timers: what will soon be due, or what may be damaged.

        `core` is the one that wants it, which may be void when the read begins. `before` is the read under
        way: it is awaited, too, so that who awaits the last has awaited all.
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

    def _retiring_still(self) -> asyncio.Task[None] | None:
        return None if self._retiring is None or self._retiring.done() else self._retiring

    def _reading_still(self) -> asyncio.Task[None] | None:
        return None if self._reading is None or self._reading.done() else self._reading

    async def _retire(self, core: Broker, retirement: Retirement) -> None:
        """Take a step to let segments go, once it is sure what of them is still needed."""
        try:
            await self.answers.reach(retirement.durable_at)
            await self._loop.run_in_executor(self._executor, retirement.run, self._disk)
        except (OSError, ResultUnknown) as error:
            log.warning("segments were not deleted", reason=str(error))
            core.retirement_failed()
            if isinstance(error, SyncFailed):
                self._flushing.fail(error)
        else:
            await self._cut(core, retirement)
        self._loop.call_soon(self._flushing.resume)

    async def _cut(self, core: Broker, retirement: Retirement) -> None:
        """Let the core take a retirement over, some queues in each turn of the loop."""
        try:
            while self._core is core and not core.retired(retirement, self._clock()):
                await asyncio.sleep(0)
        except OSError as error:
            self._flushing.fail(error)
        except Exception as bug:
            self.break_down(bug)
            raise

    def break_down(self, bug: BaseException) -> None:
        """Write nothing more, serve nothing more, and let the process end: the core has a bug."""
        self._flushing.stop()
        if self._core is not None:
            self._drop_core(self._core, "The broker has met a bug and ends. Send again once it is back.")
        if not self.broken.done():
            self.broken.set_exception(bug)

    def _open(self, acknowledged_offset: int | None = None) -> Broker:
        """Open the store; on a full disk with the room of the reserve, which is there for that."""
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
        self._untold_ms = 0
        return Broker.open(self._disk, self.settings, self.clock.begin(), until)

    def _makes_queues_anew(self) -> bool:
        """Return whether a start reads the whole log; it tells of a disk that fails otherwise."""
        with suppress(OSError):
            return bool(snapshot.offsets(self._disk)) and self._disk.size(layout.QUEUES_WHOLE) < 0
        return False

    def _tick_due(self) -> None:
        with suppress(Exception):  # what it raises has broken us down already
            self.tick()

    def _ask(self, question: CheckBack) -> str:
        """Ask a producer how its transaction ended; return whom."""
        transaction_id, topic = question.transaction_id, question.topic

        def read() -> Message | None:
            message = self._broker.transactions.message(question.half_offset)
            return None if message is None else self.clock.outward(message)

        client_id = self._ask_next(question, read)
        self.transactions.log.asked(transaction_id, topic, client_id, self.clock.real_ms())
        self._broker.statistics.checks_asked[topic] += bool(client_id)
        if client_id:
            self._advancing.asked(transaction_id)
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

    def _carry_out(self, effects: Iterable[Effect]) -> None:
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
                    reading = self._read_timers(self._broker, job, self._reading_still())
                    self._reading = self._loop.create_task(reading)
                case CheckBack():
                    self._ask(effect)
