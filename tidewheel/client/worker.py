"""A worker, which runs functions for messages and ends each message according to the outcome.

    worker = Worker(Client())

    @worker.consume("orders", group="shop", model=Order, retry=Backoff("1s", longest="10m"))
    def handle(order: Order) -> None: ...        # or async def

    worker.run()                                 # until SIGTERM

    received --> runs, its lease renewed --> returns -----------> acknowledged
                                         --> raises ------------> delivered again after a delay
                                         --> raises `dead_on` --> dead letter
                                         --> takes too long ----> lease expires, delivered again
    received, but the worker stops --> returned to the broker

Rules
1. A lease is renewed three times per lease duration, from the receive until the message is ended, for at most
   `longest`. A message is ended only after a pending renewal has completed, because the renewal invalidates
   the receipt handle.
2. Messages of a message group are processed in order. If a message is not acknowledged, the later messages of
   its lane are returned to the broker, which delivers the failed message first.
3. A consumer requests only as many messages as it has free slots, so only messages of a message group wait in
   the worker. The worker requests no messages while it holds `bytes_max` bytes of bodies.
4. At SIGTERM or Ctrl-C, open receives are cancelled, which releases their leases. Running functions are
   completed and their messages are ended. A second signal ends the process immediately.
5. If the broker is unreachable or busy, receives are repeated, and the end of a message is repeated for the
   duration of its lease. Any other error of the broker, such as a missing permission, stops the worker.
6. If a message is delivered again while it is in progress, for example after a broker restart or a lost
   lease, the worker continues with the new lease and does not run the function twice at the same time.
7. A function is run at least once for each message, not exactly once (`tidewheel.idempotence`).

8. Consumers beyond `polls_max` take turns (`tidewheel.client.turns`).

Cost: each consumer has an open long poll, up to `polls_max` in total. Acknowledgements that arrive during a
call share the next call. The cost of a request does not depend on the number of consumers. Limitation: a
thread cannot be cancelled. A function that hangs in a thread occupies its slot, and keeps the process alive
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
"""A broker accepts 1,152 long polls from one address, and a follower forwards at most 256 calls at a time."""
THREADS_MAX: Final = 1_000
"""Maximum number of threads, shared by all consumers.

Further messages wait for a thread while their leases are renewed.
"""

log = logging.getLogger("tidewheel.worker")


class Worker:
    """Consumers of one broker. The default `client` is `Client()`.

    `bytes_max` limits the total size of the bodies in progress, not counting answers in transit (8 MiB each).
    `polls_max` limits the number of open long polls. If there are more consumers, they take turns
    (`tidewheel.client.turns`).

    Raises:
        ConfigurationError: If `polls_max` is out of range.
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
        """Return a decorator that registers a function for the messages that a group receives from a topic.

        The function is called with the `Message`. With a `model`, it is called with the body as that type,
        and also with the message if it has a second parameter. If the function returns, the message is
        acknowledged. If the function raises an exception, the message is redelivered after the delay set by
        `retry` or, by default, the group's policy. An exception listed in `dead_on`, or a body that does not
        match the model, makes the message a dead letter. An `async def` function runs in the event loop.
        Other functions run in a thread.

        Raises:
            ConfigurationError: If the concurrency is out of range, or `dead_on` contains a value that is not
                an exception class.
            ClientMistake: If a time span is invalid.
            LibraryMissing: If a model is given and pydantic is not installed.
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
        """Process messages until SIGTERM or Ctrl-C, then wait for running functions.

        Raises:
            ConfigurationError: If no consumer is registered.
            TidewheelError: If the broker returns a permanent error.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        stop = asyncio.Event()
        with stopped_by_signals(stop):
            await self.run_until(stop)

    async def run_until(self, stop: asyncio.Event) -> None:
        """Process messages in the current event loop until an event is set. Raises the errors of `run`."""
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
    """Set an event at the first SIGTERM, SIGINT or SIGHUP. The second signal ends the process.

    The second signal has its default action: KeyboardInterrupt would wait at exit for a thread that hangs. If
    SIGHUP is ignored, as under `nohup`, it remains ignored.
    """
    loop, all_three = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    signals = [one for one in all_three if signal.getsignal(one) is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def set_once() -> None:
        for one in signals:  # before the log message, because a second signal may follow immediately
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
