"""How a broker in an asyncio loop is asked: `call(verb, ...)` and `look(verb, ...)`, with a verb of the core.

A verb that stores answers once its record is durable; one that takes more than a call has a method here.
Times in and out are those of callers; the core has the broker's (`services.live.clock`).
`services.live.live_broker` lets the core live.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from commitlog import limits
from commitlog.limits import RECEIVE_BATCH_MAX
from commitlog.message import Message
from consumequeue.filter import Filter
from services.broker.broker import Broker
from services.broker.finding import Found, Wanted, anything
from services.broker.group_values import Received
from services.broker.lite_subscribing import Subscribed
from services.broker.values import (
    Delivery,
    PendingTimer,
    SendReceipt,
    Subscriber,
    TimerFilter,
    TimerName,
    TimerPage,
    TimerVerdict,
    WakeUpKey,
)
from services.live.clock import Clock
from services.live.durability import Answers
from services.live.errors import AnswersUnread, BrokerBroken, StoreUnwell
from services.live.long_polls import LongPolls
from services.live.room import Room
from tidewheel.errors import RefusedByState, TidewheelError

Answer = TypeVar("Answer")
Given = ParamSpec("Given")


class RestsOnRecord(Protocol):
    """An answer that may be given once the log is durable up to `durable_at`."""

    @property
    def durable_at(self) -> int:
        """A physical offset."""


Resting = TypeVar("Resting", bound=RestsOnRecord | int)


class LiveVerbs(ABC):
    """The verbs of a broker.

    Errors are the core's `TidewheelError`s; those that store raise `ResultUnknown` too, when the disk failed
    before the record was known to be durable.
    """

    clock: Clock
    _loop: asyncio.AbstractEventLoop
    answers: Answers
    _long_polls: LongPolls
    room: Room
    unread_bytes = 0
    """Of messages in answers to receives that their clients have not read yet."""

    @property
    @abstractmethod
    def _broker(self) -> Broker:
        """The core; raises `StoreUnwell` or `BrokerBroken` while there is none."""

    @abstractmethod
    def decide(self, verb: Callable[..., Answer], *arguments: object) -> Answer:
        """Call a verb of the core with the broker's time behind its arguments."""

    def call(self, verb: Callable[..., Resting], *arguments: object) -> Coroutine[Any, Any, Resting]:
        """Call a verb of the core at once; its answer or refusal comes when what it rests on is durable.

        So the verb is one of the core that there is: nothing is awaited before it is called.
        """
        try:
            answer = self.decide(verb, *map(self.clock.inward, arguments))
        except RefusedByState as refusal:
            return self._refused(refusal)
        return self._await_durable(answer)

    def query(self, verb: Callable[Given, Answer], *arguments: Given.args, **named: Given.kwargs) -> Answer:
        """Look at something in the core, which changes nothing."""
        inward = map(self.clock.inward, arguments)
        return self.clock.outward(cast(Callable[..., Answer], verb)(*inward, **named))

    async def send(self, message: Message) -> SendReceipt:
        """Store a message (normal, FIFO, delayed or half)."""
        if not self.room.has(len(message.body)):
            await self.room.wait(len(message.body))
        return await self.call(self._broker.sending.send, message)

    async def send_many(self, messages: list[Message]) -> list[SendReceipt | TidewheelError]:
        """Store many messages; each has its own answer, and they come when all are durable."""
        await self.room.wait(sum(len(message.body) for message in messages))
        answers = self.decide(self._broker.sending.send_many, self.clock.inward(messages))
        rests = (one.durable_at for one in answers if isinstance(one, (SendReceipt, RefusedByState)))
        await self.answers.reach(max(rests, default=0))
        return answers

    async def move_timer(self, name: TimerName, due_ms: int) -> TimerVerdict:
        """Give a delayed message another time."""
        await self.room.for_copy()
        return await self.call(self._broker.timers.move, name, due_ms + self.clock.offset_ms)

    async def fire_timer(self, name: TimerName) -> TimerVerdict:
        """Deliver a delayed message at once."""
        await self.room.for_copy()
        return await self.call(self._broker.timers.fire, name)

    # Verbs that lease.

    async def receive(
        self,
        group: str,
        topic: str,
        wanted: Filter,
        batch_size: int,
        invisible_ms: int,
        client_id: str,
        auto_renew: bool,
        wait_seconds: float,
        attempt_id: str = "",
    ) -> list[Delivery]:
        """Lease up to `batch_size` messages; wait up to `wait_seconds` for the first, then return none.

        `attempt_id` is what the caller calls this receive, and again one whose answer it did not get.
        """
        wish = (group, topic, wanted, batch_size, invisible_ms, client_id, auto_renew)

        def look(now_ms: int) -> Received:
            self.refuse_unread()
            return self._broker.receiving.receive(*wish, now_ms, attempt_id)

        ends, line = self._loop.time() + wait_seconds, (group, wanted)
        received = self.decide(look)
        key = self._broker.lite.wake_up_key(group, topic, client_id)
        try:
            while not received.deliveries and await self._may_look_again(key, line, received, ends):
                received = self.decide(look)
        except asyncio.CancelledError:  # a notification that this one may have had is another's now
            self._long_polls.notify_next(key, line)
            raise
        if received.is_unfinished or len(received.deliveries) >= min(batch_size, RECEIVE_BATCH_MAX):
            self._long_polls.notify_next(key, line)
        await self._show(group, topic, received)
        return self.clock.outward(received.deliveries)

    def refuse_unread(self) -> None:
        """Raise `AnswersUnread` while answers wait to be read that have as many bytes as they may."""
        if self.unread_bytes >= limits.ANSWERS_BYTES_MAX:
            raise AnswersUnread(
                f"{self.unread_bytes} bytes of messages wait to be read; {limits.ANSWERS_BYTES_MAX} may. "
                "Read them, or ask for fewer messages at once."
            )

    def release(self, group: str, topic: str, receipt_handle: str) -> None:
        """Take a delivery back that its consumer never heard of."""
        self.decide(self._broker.receiving.release, group, topic, receipt_handle)
        self._long_polls.notify(topic)

    def client_alive(self, client_id: str) -> None:
        """Renew the leases that are renewed for this client; a core that is void has none."""
        with suppress(StoreUnwell, BrokerBroken):
            self.decide(self._broker.receiving.client_alive, client_id)

    def client_gone(self, client_id: str) -> None:
        """Give up the leases of a client that has left; a core that is void has none."""
        with suppress(StoreUnwell, BrokerBroken):
            self.decide(self._broker.receiving.client_gone, client_id)

    def subscribe(
        self, verb: Callable[..., Subscribed], subscriber: Subscriber, *arguments: object
    ) -> Coroutine[Any, Any, Subscribed]:
        """Call a verb on subscriptions to lite topics; who waits to receive looks again."""
        subscribed = self.call(verb, subscriber, *arguments)
        self._long_polls.notify(subscriber)
        return subscribed

    def said_goodbye(self, client_id: str) -> None:
        """Forget what a client subscribed to that has left for good."""
        with suppress(StoreUnwell, BrokerBroken):
            self.decide(self._broker.lite.said_goodbye, client_id)

    # Looks.

    @property
    def core(self) -> Broker:
        """The core, to look at only; it is another one after the disk has failed.

        Raises `StoreUnwell` while there is none.
        """
        return self._broker

    def now_ms(self) -> int:
        """Return real time, the time of callers."""
        return self.clock.real_ms()

    def find(self, topic: str, key: str, count_max: int, wanted: Wanted = anything) -> Found:
        """Look messages up by key or message id, newest first; they are fewer if they are large."""
        found = self._broker.finding.find(topic, key, count_max, lambda one: wanted(self.clock.outward(one)))
        return Found(self.clock.outward(found.messages), found.is_cut)

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """Return the first queue offset stored at or after a time."""
        return self._broker.finding.offset_at(topic, queue_id, store_ms + self.clock.offset_ms)

    def timer(self, name: TimerName) -> PendingTimer | TimerVerdict:
        """Look at one delayed message: waiting, or what became of it."""
        return self.query(self._broker.timers.get, name, self.clock.now_ms())

    def timers(self, wanted: TimerFilter, after: tuple[int, int] | None, count_max: int) -> TimerPage:
        """Look at delayed messages that wait, by due time."""
        sort_key = None if after is None else (after[0] + self.clock.offset_ms, after[1])
        return self.query(self._broker.timer_views.page, wanted, sort_key, count_max)

    def timer_histogram(self, wanted: TimerFilter, width_ms: int) -> list[tuple[int, int]]:
        """Count delayed messages that wait by windows of due time."""
        found = self.query(self._broker.timer_views.histogram, wanted, width_ms)
        return [(start_ms - self.clock.offset_ms, count) for start_ms, count in found]

    async def _may_look_again(self, key: WakeUpKey, line: Hashable, received: Received, ends: float) -> bool:
        """Whether a receive that found nothing may look again, now or when something has arrived."""
        if received.is_unfinished:
            await asyncio.sleep(0)
            return self._loop.time() < ends
        return await self._long_polls.wait(key, ends - self._loop.time(), line)

    async def _show(self, group: str, topic: str, received: Received) -> None:
        """Return once what was leased may be shown; who is no longer there to see it gives it back."""
        try:
            await self.answers.reach(received.durable_at)
        except BaseException:
            for delivery in received.deliveries:
                with suppress(TidewheelError):
                    self.release(group, topic, delivery.receipt_handle)
            raise

    async def _await_durable(self, answer: Resting) -> Resting:
        await self.answers.reach(answer if isinstance(answer, int) else answer.durable_at)
        return self.clock.outward(answer)

    async def _refused(self, refusal: RefusedByState) -> Any:
        await self.answers.reach(refusal.durable_at)
        raise refusal
