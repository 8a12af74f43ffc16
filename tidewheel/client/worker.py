"""A worker: runs functions for messages, and ends each message by the outcome of its function.

    worker = Worker(Client())

    @worker.consume("orders", group="shop", model=Order, retry=Backoff("1s", longest="10m"))
    def handle(order: Order) -> None: ...        # or async def

    worker.run()                                 # until SIGTERM

    received --> runs, its lease renewed --> returns -----------> acknowledged
                                         --> raises ------------> again after a pause
                                         --> raises `dead_on` --> dead letter
                                         --> stays too long ----> its lease ends; it comes again
    received, and the worker stops --> given back

Rules
1. A lease is renewed at each third of it, from the receive until the message is ended, for `longest` at most.
   An end waits for a renewal under way: the renewal voids the handle.
2. Messages of a message group are run one after the other, in order. After one that was not acknowledged
   the rest of its run is given back: the broker gives out that message first.
3. A consumer asks for as many messages as it has free slots, so nothing waits here but a run's rest. The
   worker asks for nothing while it holds `bytes_max`.
4. At SIGTERM or Ctrl-C open receives are cut off, which releases their leases; running functions end,
   and their messages are ended. A second signal ends the process at once.
5. A broker that is gone or busy is asked again, and each end of a message for as long as its lease. Anything
   else that it refuses (a right, a name) stops the worker with that error.
6. A message that comes again while it is in hand (its broker was restarted, its lease was lost) goes on with
   the new lease; its function is not run twice at once.
7. A function is run at least once for each message, not exactly once (`tidewheel.idempotence`).

Cost: one long poll for each consumer; ends that come while an acknowledgement is under way share the next.
Weak spot: a thread cannot be cancelled. A function that hangs in one keeps its slot, and the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidewheel.client import calls
from tidewheel.client.clients import AsyncClient, Client
from tidewheel.client.endings import Ack, Backoff, Dead, End, Retried, end_after
from tidewheel.client.handles import Message
from tidewheel.client.spans import span_ms
from tidewheel.errors import (
    AnswerLate,
    AnswerLost,
    BrokerUnreachable,
    Busy,
    ClientMistake,
    ConfigurationError,
    InvalidReceiptHandle,
    RefusedByState,
    TidewheelError,
)
from tidewheel.extras import missing

if TYPE_CHECKING:
    from tidewheel.client.exchange import Steps
    from tidewheel.client.spans import Span

Function = TypeVar("Function", bound=Callable[..., Any])
Received = Message[Awaitable[None]]

CONCURRENCY: Final = 8
CONCURRENCY_MAX: Final = 1_000
LEASE: Final = "60s"
LONGEST: Final = "1h"
BYTES_MAX: Final = 64 * 1024 * 1024
RECEIVE_COUNT_MAX: Final = 32
ACK_COUNT_MAX: Final = 1_024
RENEWALS: Final = 3
"""Renewals in the time of a lease."""
PAUSES_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses between calls while the broker is gone or busy; the last one repeats."""
PASSING: Final = (Busy, BrokerUnreachable, AnswerLate, AnswerLost)
"""Errors that may pass by themselves."""

log = logging.getLogger("tidewheel.worker")


class Unfit(Exception):
    """A body does not fit its consumer's model."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A function, and which messages it is run for."""

    function: Callable[..., Any]
    topic: str
    group: str
    model: type[Any] | None
    concurrency: int
    lease: Span
    longest_s: float
    retry: Backoff | None
    dead_on: tuple[type[Exception], ...]
    filter: str
    sql: str

    @property
    def lease_s(self) -> float:
        """The lease in seconds."""
        return span_ms(self.lease, "lease") / 1000

    def arguments(self, message: Received) -> tuple[Any, ...]:
        """Return the function's arguments; raise `Unfit`, or an exception of the model's own code."""
        handed = message.bound(owned)
        if self.model is None:
            return (handed,)
        try:
            value = handed.json(self.model)
        except ClientMistake as error:
            raise Unfit(error.detail) from None
        takes_both = len(inspect.signature(self.function).parameters) > 1
        return (value, handed) if takes_both else (value,)


class Worker:
    """Consumers of one broker; `client` says which, as `Client()` does without one.

    `bytes_max` bounds the bodies in hand, but for the answer under way of each consumer (8 MiB).
    """

    def __init__(self, client: Client | AsyncClient | None = None, *, bytes_max: int = BYTES_MAX) -> None:
        self._client = client if client is not None else Client()
        self.consumers: list[Consumer] = []
        self.bytes_max = bytes_max

    def consume(
        self,
        topic: str,
        *,
        group: str,
        model: type[Any] | None = None,
        concurrency: int = CONCURRENCY,
        lease: Span = LEASE,
        longest: Span = LONGEST,
        retry: Backoff | None = None,
        dead_on: Iterable[type[Exception]] = (),
        filter: str = "",  # noqa: A002 # the word of the HTTP interface
        sql: str = "",
    ) -> Callable[[Function], Function]:
        """Return a decorator: the function is run for each message of a topic that the group gets.

        It gets the `Message`; with a `model` the body as that type, and the message if it has a second
        parameter. A return acknowledges. An exception has it come again after `retry`'s pause, without one
        as the group's policy says; one of `dead_on`, or a body that does not fit the model, makes it a dead
        letter. An `async def` runs in the loop, any other function in a thread.

        Raises:
            ConfigurationError: for a concurrency out of range, or a `dead_on` that is no exception.
            ClientMistake: for an unreadable span.
            LibraryMissing: for a model without pydantic.
        """
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise ConfigurationError(f"concurrency is {concurrency}: give 1 to {CONCURRENCY_MAX}.")
        for kind in (dead := tuple(dead_on)):
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise ConfigurationError(f"dead_on has {kind!r}, which is no class of exceptions.")
        if model is not None and find_spec("pydantic") is None:
            raise missing("client", "pydantic")
        span_ms(lease, "lease")
        longest_s = span_ms(longest, "longest") / 1000

        def register(function: Function) -> Function:
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise ConfigurationError(f"{function.__name__} is a generator: a call would run none of it.")
            self.consumers.append(
                Consumer(
                    function, topic, group, model, concurrency, lease, longest_s, retry, dead,
                    filter, sql,
                )
            )  # fmt: skip
            return function

        return register

    def run(self) -> None:
        """Consume until SIGTERM or Ctrl-C; finish running functions.

        Raises:
            ConfigurationError: when there is no consumer.
            TidewheelError: a refusal that no wait can mend.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        stop = asyncio.Event()
        with stopped_by_signals(stop):
            await self.run_until(stop)

    async def run_until(self, stop: asyncio.Event) -> None:
        """Consume in this loop until an event is set; raise the same."""
        if not self.consumers:
            raise ConfigurationError("The worker has no consumer: decorate a function with @worker.consume.")
        broker = self._client.broker
        client = AsyncClient(
            ",".join(broker.urls),
            token=broker.token,
            authorities=broker.authorities,
            namespace=self._client.namespace,
            timeout=self._client.timeout,
        )
        threads = ThreadPoolExecutor(sum(one.concurrency for one in self.consumers), "tidewheel")
        hands = Hands(self.bytes_max)
        running = [Running(one, client, threads, hands, stop) for one in self.consumers]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one.run()) for one in running]
        finally:
            threads.shutdown(wait=False)
            await client.close()
        for error in filter(None, (one.result() for one in tasks)):
            raise error


@contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set an event at the first SIGTERM or SIGINT; leave the second one its usual effect."""
    loop, both = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def set_once() -> None:
        log.info("The worker stops when its running functions have ended. A second signal ends it at once.")
        stop.set()
        for one in both:
            loop.remove_signal_handler(one)

    for one in both:
        loop.add_signal_handler(one, set_once)
    try:
        yield
    finally:
        for one in both:
            loop.remove_signal_handler(one)


class Hands:
    """Bodies in hand, of all consumers of a worker.

    `dropped` has an event for each consumer, set when a message is counted out; its consumer clears it.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self.dropped: list[asyncio.Event] = []

    @property
    def are_full(self) -> bool:
        """Whether nothing more may be asked for."""
        return self._held_bytes >= self._bytes_max

    def take(self, message: Received) -> None:
        """Count a message in."""
        self._held_bytes += len(message.bytes)

    def drop(self, message: Received) -> None:
        """Count a message out."""
        self._held_bytes -= len(message.bytes)
        for one in self.dropped:
            one.set()


@dataclass(slots=True)
class Held:
    """A message in hand: the renewal of its lease, and from `ended` on how it ends."""

    message: Received
    end: End | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    renewal: asyncio.Task[None] | None = None


class Running:
    """One consumer at work."""

    def __init__(
        self,
        consumer: Consumer,
        client: AsyncClient,
        threads: ThreadPoolExecutor,
        hands: Hands,
        stop: asyncio.Event,
    ) -> None:
        self._consumer, self._client, self._threads = consumer, client, threads
        self._hands, self._stop = hands, stop
        self._acks = Acks(client, calls.spaced(client.namespace, consumer.group))
        self._count = self._failures = 0
        self._in_hand: dict[tuple[int, int], Held] = {}
        self._dropped = asyncio.Event()
        hands.dropped.append(self._dropped)
        self._name = f"{consumer.topic} of group {consumer.group}"

    async def run(self) -> TidewheelError | None:
        """Receive and run until the worker stops; return when all messages in hand have ended.

        A refusal that no wait can mend stops the worker and is returned.
        """
        async with asyncio.TaskGroup() as tasks:
            while not self._stop.is_set():
                try:
                    received = await self._received()
                except TidewheelError as error:
                    self._stop.set()
                    return error
                for lane in lanes(one for one in received if not self._goes_on(one)):
                    tasks.create_task(self._run_lane([self._taken(one, tasks) for one in lane]))
        return None

    def _goes_on(self, message: Received) -> bool:
        """Return whether a message is in hand already; if so, it takes over the new lease."""
        held = self._in_hand.get(message.place)
        if held is None or held.renewal is None:
            return False
        is_running = held.end is None and not held.renewal.done()
        if is_running or isinstance(held.end, Ack):
            held.message.take_over(message)
            log.info("%s: message %s came again and is in hand: it has a new lease", self._name, message.id)
            return True
        return False

    def _taken(self, message: Received, tasks: asyncio.TaskGroup) -> Held:
        """Count a message in, and begin to renew its lease."""
        self._count += 1
        self._hands.take(message)
        held = self._in_hand[message.place] = Held(message)
        held.renewal = tasks.create_task(self._renew(held))
        return held

    async def _received(self) -> list[Received]:
        """Return messages for the free slots; none if there are no slots, or the worker stops."""
        free = self._consumer.concurrency - self._count
        if free <= 0 or self._hands.are_full:
            self._dropped.clear()
            await self._or_stop(self._dropped.wait())
            return []
        one = self._consumer
        receive = self._client.receive(
            one.topic,
            one.group,
            count=min(free, RECEIVE_COUNT_MAX),
            lease=one.lease,
            filter=one.filter,
            sql=one.sql,
        )
        return await self._or_stop(self._patiently(receive)) or []

    async def _patiently(self, receive: Awaitable[list[Received]]) -> list[Received]:
        """Receive; after a failure that may pass, pause and return nothing."""
        try:
            found = await receive
        except PASSING as error:
            log.warning("%s: nothing is received now: %s", self._name, error)
            await asyncio.sleep(PAUSES_S[min(self._failures, len(PAUSES_S) - 1)])
            self._failures += 1
            return []
        self._failures = 0
        return found

    async def _or_stop(self, waiting: Any) -> Any:
        """Return the result of a wait; if the worker stops first, cancel the wait and return None."""
        work, stop = asyncio.ensure_future(waiting), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        finally:
            for one in (work, stop):
                one.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)

    async def _run_lane(self, lane: list[Held]) -> None:
        """Run messages one after the other; give back those after one that was not acknowledged."""
        is_open = True
        for held in lane:
            try:
                if is_open and not self._stop.is_set():
                    is_open = await self._run_one(held)
                else:
                    await self._end(held, Retried(0))
            finally:
                held.ended.set()
                self._drop(held)

    def _drop(self, held: Held) -> None:
        """Count a message out."""
        self._count -= 1
        self._hands.drop(held.message)
        if self._in_hand.get(held.message.place) is held:
            del self._in_hand[held.message.place]

    async def _run_one(self, held: Held) -> bool:
        """Run the function for a message, and end the message; return whether it was acknowledged."""
        one, message = self._consumer, held.message
        end: End = Ack()
        try:
            await self._call(one.arguments(message))
        except Unfit as error:
            log.error("%s: message %s cannot be read: %s", self._name, message.id, error)
            end = Dead(str(error))
        except (Exception, asyncio.CancelledError) as error:  # whatever the function raises
            if is_cancelled_from_outside(error):
                raise
            end = end_after(error, message.attempt, one.retry, one.dead_on)
            log.error(
                "%s: message %s failed at attempt %d, %s", self._name, message.id, message.attempt, end,
                exc_info=error,
            )  # fmt: skip
        return await self._end(held, end) and isinstance(end, Ack)

    async def _call(self, arguments: tuple[Any, ...]) -> None:
        function = self._consumer.function
        if inspect.iscoroutinefunction(function):
            async with asyncio.timeout(self._consumer.longest_s):
                await function(*arguments)
            return
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, lambda: context.run(function, *arguments))
        if inspect.isawaitable(result):  # of a callable that does not say so
            async with asyncio.timeout(self._consumer.longest_s):
                await result

    async def _end(self, held: Held, end: End) -> bool:
        """End a message; return whether the broker has it so. One that it has not comes again."""
        held.end = end
        held.ended.set()
        if held.renewal is not None:
            await held.renewal
        try:
            async with asyncio.timeout(self._consumer.lease_s):
                await self._try_end(held.message, end)
        except InvalidReceiptHandle as error:
            log.warning(
                "%s: message %s was not ended in time, it may come again: %s",
                self._name, held.message.id, error,
            )  # fmt: skip
            return False
        except (TidewheelError, TimeoutError) as error:
            log.error(
                "%s: message %s cannot be ended, it comes again: %s",
                self._name, held.message.id, error or "the broker is gone",
            )  # fmt: skip
            return False
        return True

    async def _try_end(self, message: Received, end: End) -> None:
        for pause_s in pauses():
            handle = message.handle
            try:
                match end:
                    case Ack():
                        await self._acks.ack(message)
                    case Retried():
                        await message.retry(end.after)
                    case Dead():
                        await message.reject(end.reason)
            except PASSING as error:
                log.warning("%s: message %s is not ended yet: %s", self._name, message.id, error)
                await asyncio.sleep(pause_s)
            except InvalidReceiptHandle:
                if message.handle == handle:
                    raise
            else:
                return

    async def _renew(self, held: Held) -> None:
        """Renew a lease until its message has ended; one that was lost may be replaced (`_goes_on`)."""
        one, message, lost = self._consumer, held.message, ""
        clock_s = asyncio.get_running_loop().time
        ends_s = clock_s() + one.longest_s
        while (left_s := ends_s - clock_s()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, one.lease_s / RENEWALS)):
                    await held.ended.wait()
            if held.ended.is_set():
                return
            handle = message.handle
            if handle == lost:
                continue
            try:
                await message.extend(one.lease)
            except InvalidReceiptHandle as error:
                lost = handle
                log.warning("%s: the lease of message %s was lost: %s", self._name, message.id, error)
            except TidewheelError as error:
                log.warning("%s: the lease of message %s is not renewed: %s", self._name, message.id, error)
        log.error("%s: message %s takes too long: its lease ends, it comes again", self._name, message.id)


def is_cancelled_from_outside(error: BaseException) -> bool:
    """Return whether the running task is cancelled, rather than something that it awaits."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def owned(steps: Steps[None]) -> None:
    """Refuse to end a message within its function."""
    steps.close()
    raise RefusedByState("The worker ends this message: return, or raise Retry or Reject.")


def pauses() -> Iterator[float]:
    """Yield pauses between tries, without end."""
    yield from PAUSES_S
    while True:
        yield PAUSES_S[-1]


def lanes(messages: Iterable[Received]) -> list[list[Received]]:
    """Return messages in lists; each list is run in order: the messages of a message group."""
    found: dict[str, list[Received]] = {}
    for one in messages:
        found.setdefault(f"group {one.group}" if one.group else f"message {one.id}", []).append(one)
    return list(found.values())


class Acks:
    """Acknowledgements of one group: those that come while a call is under way share the next."""

    def __init__(self, client: AsyncClient, group: str) -> None:
        self._client, self._group = client, group  # the group's name on the wire
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._calling: asyncio.Task[None] | None = None

    async def ack(self, message: Received) -> None:
        """Acknowledge a message; raise the refusal."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((message.handle, done))
        if self._calling is None:
            self._calling = asyncio.ensure_future(self._call())
        await done

    async def _call(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:ACK_COUNT_MAX], self._waiting[ACK_COUNT_MAX:]
                errors = await self._errors([handle for handle, _ in some])
                for (_, done), error in zip(some, errors, strict=True):
                    if done.done():
                        continue
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(error)
        finally:
            self._calling = None

    async def _errors(self, handles: list[str]) -> list[TidewheelError | None]:
        try:
            return await self._client.run(calls.ack(self._group, handles))
        except TidewheelError as error:
            return [error] * len(handles)
