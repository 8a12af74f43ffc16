"""Execution of one consumer: it receives messages, renews their leases, and ends them.

The rules are listed in `tidewheel.client.worker`.

    receive --> Held --+-- its lease is renewed ----------------+
                       +-- its lane runs the function --> end --+--> ended at the broker --> removed

A lane is a single message, or the messages of one message group in order. All tasks of a consumer belong to
one TaskGroup.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from tidewheel.client import calls
from tidewheel.client.acks import Acks
from tidewheel.client.clients import AsyncClient
from tidewheel.client.consumer import Consumer, Received, Unfit
from tidewheel.client.endings import Ack, Dead, End, Retried, end_after
from tidewheel.client.patience import PASSING, pause_after, pauses, unless
from tidewheel.client.turns import Turn, Turns
from tidewheel.errors import InvalidReceiptHandle, TidewheelError

RECEIVE_COUNT_MAX: Final = 32
RENEWALS: Final = 3
"""Number of renewals per lease duration."""

log = logging.getLogger("tidewheel.worker")


class Hands:
    """Total size of the message bodies that the consumers of a worker hold.

    `have_room` contains an event for each consumer. The event is set when the consumer may receive again, and
    the consumer clears it.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self.have_room: list[asyncio.Event] = []

    @property
    def are_full(self) -> bool:
        """Whether the size limit has been reached."""
        return self._held_bytes >= self._bytes_max

    def take(self, message: Received) -> None:
        """Add the body size of a message."""
        self._held_bytes += len(message.bytes)

    def drop(self, message: Received) -> None:
        """Subtract the body size of a message."""
        were_full = self.are_full
        self._held_bytes -= len(message.bytes)
        if were_full and not self.are_full:
            for one in self.have_room:
                one.set()


@dataclass(slots=True)
class Held:
    """A message in progress and its lease renewal. `end` is the outcome, and is set together with `ended`."""

    message: Received
    end: End | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    renewal: asyncio.Task[None] | None = None


class Running:
    """Execution of one consumer."""

    def __init__(
        self,
        consumer: Consumer,
        client: AsyncClient,
        threads: ThreadPoolExecutor,
        hands: Hands,
        turns: Turns,
        stop: asyncio.Event,
    ) -> None:
        self._consumer, self._client, self._threads = consumer, client, threads
        self._hands, self._turns, self._stop = hands, turns, stop
        self._acks = Acks(client, calls.spaced(client.namespace, consumer.group))
        self._count = self._failures = 0
        self._in_hand: dict[tuple[int, int], Held] = {}
        self._has_room = asyncio.Event()
        hands.have_room.append(self._has_room)
        self._name = f"{consumer.topic} of group {consumer.group}"

    async def run(self) -> TidewheelError | None:
        """Receive and process messages until the worker stops.

        Returns when all messages in progress have ended.

        A permanent error stops the worker and is returned.
        """
        async with asyncio.TaskGroup() as tasks:
            while not self._stop.is_set():
                try:
                    if self._free > 0:
                        await self._take_turn(tasks)
                    else:
                        await self._wait_for_room()
                except TidewheelError as error:
                    self._stop.set()
                    return error
        return None

    async def _take_turn(self, tasks: asyncio.TaskGroup) -> None:
        """Wait for a turn to poll, then poll."""
        turn = await unless(self._stop, self._turns.begin())
        if turn is None:
            return
        try:
            await self._poll(turn, tasks)
        finally:
            self._turns.end(turn)

    @property
    def _free(self) -> int:
        """The number of messages that may be requested."""
        return 0 if self._hands.are_full else self._consumer.concurrency - self._count

    async def _wait_for_room(self) -> None:
        self._has_room.clear()
        await unless(self._stop, self._has_room.wait())

    async def _poll(self, turn: Turn, tasks: asyncio.TaskGroup) -> None:
        """Receive messages and start their functions until the turn is over or the worker stops.

        A turn continues while all slots are occupied, because fast functions free slots during the turn.
        """
        while not self._stop.is_set() and (wait := turn.wait()) is not None:
            if self._free <= 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait.total_seconds()):
                        await self._wait_for_room()
                continue
            received = await self._received(turn.client, wait)
            for lane in lanes(one for one in received if not self._goes_on(one)):
                tasks.create_task(self._run_lane([self._taken(one, tasks) for one in lane]))

    def _goes_on(self, message: Received) -> bool:
        """Return whether a message is already in progress.

        In that case the message in progress takes over the new lease.
        """
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
        """Register a message and start to renew its lease."""
        self._count += 1
        self._hands.take(message)
        held = self._in_hand[message.place] = Held(message)
        held.renewal = tasks.create_task(self._renew(held))
        return held

    async def _received(self, client: AsyncClient, wait: timedelta) -> list[Received]:
        """Return messages for the free slots. The list is empty if no message arrives or the worker stops."""
        one = self._consumer
        receive = partial(
            client.receive,
            one.topic,
            one.group,
            count=min(self._free, RECEIVE_COUNT_MAX),
            wait=wait,
            lease=one.lease,
            filter=one.filter,
            sql=one.sql,
        )
        found = await unless(self._stop, self._patiently(receive)) or []
        return [message.bound(self._client.run) for message in found]

    async def _patiently(self, receive: Callable[[], Awaitable[list[Received]]]) -> list[Received]:
        """Receive messages after pending acknowledgements have been sent.

        After a transient error, pause and return an empty list.
        """
        await self._client.wait_for_room()
        try:
            found = await receive()
        except PASSING as error:
            log.warning("%s: nothing is received now: %s", self._name, error)
            await asyncio.sleep(pause_after(self._failures))
            self._failures += 1
            return []
        self._failures = 0
        return found

    async def _run_lane(self, lane: list[Held]) -> None:
        """Process messages in order.

        If a message is not acknowledged, the remaining messages are returned to the broker.
        """
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
        """Unregister a message."""
        self._count -= 1
        self._has_room.set()
        self._hands.drop(held.message)
        if self._in_hand.get(held.message.place) is held:
            del self._in_hand[held.message.place]

    async def _run_one(self, held: Held) -> bool:
        """Run the function for a message and end the message. Returns whether it was acknowledged."""
        one, message = self._consumer, held.message
        end: End = Ack()
        try:
            raised = await self._call(one.arguments(message))
        except Unfit as error:
            raised, end = None, Dead(str(error))
            log.error("%s: message %s cannot be read, %s: %s", self._name, message.id, end, error)
        except BaseException as error:
            if is_for_the_loop(error):
                raise
            raised = error
        if raised is not None:
            end = end_after(raised, message.attempt, one.retry, one.dead_on)
            log.error(
                "%s: message %s failed at attempt %d, %s", self._name, message.id, message.attempt, end,
                exc_info=raised,
            )  # fmt: skip
        return await self._end(held, end) and isinstance(end, Ack)

    async def _call(self, arguments: tuple[Any, ...]) -> BaseException | None:
        """Run the function.

        An exception from a thread is returned; an exception from the event loop is raised.
        """
        function = self._consumer.function
        if inspect.iscoroutinefunction(function):
            async with asyncio.timeout(self._consumer.longest_s):
                await function(*arguments)
            return None
        context = contextvars.copy_context()
        called = partial(context.run, caught, function, arguments)
        result, raised = await asyncio.get_running_loop().run_in_executor(self._threads, called)
        # the result of a callable that is not declared as a coroutine function
        if inspect.isawaitable(result):
            async with asyncio.timeout(self._consumer.longest_s):
                await result
        return raised

    async def _end(self, held: Held, end: End) -> bool:
        """End a message and return whether the broker confirmed it.

        An unconfirmed message is delivered again.
        """
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
        log.debug(
            "%s: message %s has ended at attempt %d: %s",
            self._name,
            held.message.id,
            held.message.attempt,
            end,
        )
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
        """Renew a lease until the message has ended. A lost lease may be replaced (`_goes_on`)."""
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


def caught(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, None] | tuple[None, BaseException]:
    """Run a function in the current thread. Returns its result and the exception that it raised.

    The exception is returned as a value, because a future cannot carry StopIteration, and SystemExit in a
    future ends the event loop.
    """
    try:
        return function(*arguments), None
    except BaseException as error:
        return None, error


def is_for_the_loop(error: BaseException) -> bool:
    """Return whether an exception ends the current task instead of only the message.

    These exceptions are a cancellation of the task itself, GeneratorExit, and KeyboardInterrupt.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit | KeyboardInterrupt)


def lanes(messages: Iterable[Received]) -> list[list[Received]]:
    """Group messages into lanes. The messages of a message group share a lane and are processed in order."""
    found: dict[str, list[Received]] = {}
    for one in messages:
        found.setdefault(f"group {one.group}" if one.group else f"message {one.id}", []).append(one)
    return list(found.values())
