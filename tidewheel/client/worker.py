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

8. Consumers beyond `polls_max` take turns (`tidewheel.client.turns`).

Cost: a long poll for each consumer, up to `polls_max`; ends that come while an acknowledgement is under way
share the next. A request costs the same whether there is one consumer or thousands.
Weak spot: a thread cannot be cancelled. A function that hangs in one keeps its slot, and the process alive
until a second signal.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidewheel.client.clients import AsyncClient, Client, for_another_loop
from tidewheel.client.consumer import Consumer
from tidewheel.client.running import Hands, Running
from tidewheel.client.spans import span_ms
from tidewheel.client.turns import Turns
from tidewheel.errors import ConfigurationError
from tidewheel.extras import missing

if TYPE_CHECKING:
    from tidewheel.client.endings import Backoff
    from tidewheel.client.spans import Span

Function = TypeVar("Function", bound=Callable[..., Any])

CONCURRENCY: Final = 8
CONCURRENCY_MAX: Final = 1_000
LEASE: Final = "60s"
LONGEST: Final = "1h"
BYTES_MAX: Final = 64 * 1024 * 1024
POLLS_MAX: Final = 200
POLLS_MAX_MAX: Final = 1_000
"""A broker has 1,152 long polls for one address; a follower passes 256 calls on at once."""
THREADS_MAX: Final = 1_000
"""Threads for functions, of all consumers; a message beyond waits for one, its lease renewed."""

log = logging.getLogger("tidewheel.worker")


class Worker:
    """Consumers of one broker; `client` says which, as `Client()` does without one.

    `bytes_max` bounds the bodies in hand, but for the answers under way (8 MiB each). `polls_max` bounds the
    long polls that are open; more consumers than that take turns (`tidewheel.client.turns`).

    Raises:
        ConfigurationError: for a `polls_max` out of range.
    """

    def __init__(
        self,
        client: Client | AsyncClient | None = None,
        *,
        bytes_max: int = BYTES_MAX,
        polls_max: int = POLLS_MAX,
    ) -> None:
        if not 1 <= polls_max <= POLLS_MAX_MAX:
            raise ConfigurationError(
                f"polls_max is {polls_max}: give 1 to {POLLS_MAX_MAX}; a broker has no more for one address."
            )
        self._client = client if client is not None else Client()
        self.consumers: list[Consumer] = []
        self.bytes_max, self.polls_max = bytes_max, polls_max

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
            raise missing("models", "pydantic")
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
        client = for_another_loop(self._client)
        slots = sum(one.concurrency for one in self.consumers)
        threads = ThreadPoolExecutor(min(slots, THREADS_MAX), "tidewheel")
        hands = Hands(self.bytes_max)
        turns = Turns(len(self.consumers), self.polls_max, partial(for_another_loop, self._client))
        if turns.latest_s:
            log.info(
                "%d consumers take turns at %d long polls: a message waits for its turn, up to %.0f s. "
                "Worker(polls_max) sets how many, up to %d.",
                len(self.consumers), self.polls_max, turns.latest_s, POLLS_MAX_MAX,
            )  # fmt: skip
        running = [Running(one, client, threads, hands, turns, stop) for one in self.consumers]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one.run()) for one in running]
        finally:
            threads.shutdown(wait=False)
            await turns.close()
            await client.close()
        for error in filter(None, (one.result() for one in tasks)):
            raise error


@contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set an event at the first SIGTERM, SIGINT or SIGHUP; let the second end the process.

    By the system's own action: KeyboardInterrupt would wait at the exit for a thread that hangs. A SIGHUP
    that is ignored, as under `nohup`, stays so.
    """
    loop, all_three = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    signals = [one for one in all_three if signal.getsignal(one) is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def set_once() -> None:
        for one in signals:  # before the log line, which a second signal may follow at once
            loop.remove_signal_handler(one)
            signal.signal(one, signal.SIG_DFL)
        stop.set()
        log.info("The worker stops when its running functions have ended. A second signal ends it at once.")

    before = [signal.getsignal(one) for one in signals]
    for one in signals:
        loop.add_signal_handler(one, set_once)
    try:
        yield
    finally:
        for one, handler in zip(signals, before, strict=True):
            loop.remove_signal_handler(one)
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
