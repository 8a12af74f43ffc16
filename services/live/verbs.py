"""What can be asked of a broker in an asyncio loop: every verb of the core, as callers know it.

A verb that stores answers once its record is durable. Times in and out are those of callers; the core has
the broker's (`services.live.clock`). `services.live.live_broker` lets the core live.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from commitlog import limits
from commitlog.errors import AnswersUnread, BrokerBroken, RefusedByState, StoreUnwell, TidewheelError
from commitlog.limits import RECEIVE_BATCH_MAX
from commitlog.message import Message, MessageType
from consumequeue.filter import Filter
from services.broker.broker import Broker
from services.broker.finding import Found, Wanted, anything
from services.broker.group_values import Received
from services.broker.lite_subscribing import LiteFrom, LiteStart, Subscribed
from services.broker.values import (
    Bell,
    Delivery,
    EndReceipt,
    PendingTimer,
    Resolution,
    SendReceipt,
    Subscriber,
    TimerFilter,
    TimerName,
    TimerPage,
    TimerVerdict,
    Topic,
)
from services.live.arrivals import Arrivals
from services.live.clock import Clock
from services.live.durability import Answers
from services.live.room import Room
from txn.checkback import CheckBackPolicy

Answer = TypeVar("Answer")


class RestsOnRecord(Protocol):
    """An answer that may be given once the log is durable up to `durable_at`."""

    @property
    def durable_at(self) -> int:
        """A physical offset."""


Resting = TypeVar("Resting", bound=RestsOnRecord)


class LiveVerbs(ABC):
    """The verbs of a broker.

    Errors are the core's `TidewheelError`s; those that store raise `ResultUnknown` too, when the disk failed
    before the record was known to be durable.
    """

    clock: Clock
    _loop: asyncio.AbstractEventLoop
    answers: Answers
    _arrivals: Arrivals
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

    # Verbs that store: the answer is given once it is durable.

    async def send(self, message: Message) -> SendReceipt:
        """Store a message (normal, FIFO, delayed or half)."""
        if not self.room.has(len(message.body)):
            await self.room.wait(len(message.body))
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
        await self.room.for_copy()
        return self.clock.outward(await self._told(self._broker.move_timer, name, inward_ms))

    async def fire_timer(self, name: TimerName) -> TimerVerdict:
        """Deliver a delayed message at once."""
        await self.room.for_copy()
        return self.clock.outward(await self._told(self._broker.fire_timer, name))

    async def send_many(self, messages: list[Message]) -> list[SendReceipt | TidewheelError]:
        """Store many messages; each has its own answer, and they come when all are durable."""
        await self.room.wait(sum(len(message.body) for message in messages))
        inward = [self.clock.inward(message) for message in messages]
        answers = self.decide(self._broker.send_many, inward)
        stored = [answer.durable_at for answer in answers if isinstance(answer, SendReceipt)]
        await self.answers.reach(max(stored, default=0))
        return answers

    async def set_check_back(self, topic: str, policy: CheckBackPolicy | None) -> Topic:
        """Say how a topic's half messages are asked about; None: as the settings say."""
        return await self._told(self._broker.set_check_back, topic, policy)

    async def end_transaction(
        self, topic: str, transaction_id: str, message_id: str, resolution: Resolution
    ) -> EndReceipt:
        """Commit or roll back a half message."""
        await self.room.for_copy()
        return await self._told(self._broker.end_transaction, topic, transaction_id, message_id, resolution)

    async def ack(self, group: str, topic: str, receipt_handle: str) -> None:
        """Acknowledge a delivery."""
        await self._settled(self._broker.ack, group, topic, receipt_handle)

    async def forward_to_dead_letter(self, group: str, topic: str, receipt_handle: str) -> None:
        """Put a delivery into the group's dead letters and acknowledge it."""
        await self.room.for_copy()
        await self._settled(self._broker.forward_to_dead_letter, group, topic, receipt_handle)

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
            return self._broker.receive(*wish, now_ms, attempt_id)

        ends, line = self._loop.time() + wait_seconds, (group, wanted)
        received = self.decide(look)
        bell = self._broker.lite.bell(group, topic, client_id)
        try:
            while not received.deliveries and await self._may_look_again(bell, line, received, ends):
                received = self.decide(look)
        except asyncio.CancelledError:  # the ring that this one may have heard is another's now
            self._arrivals.ring(bell, line)
            raise
        if received.is_unfinished or len(received.deliveries) >= min(batch_size, RECEIVE_BATCH_MAX):
            self._arrivals.ring(bell, line)
        await self._show(group, topic, received)
        if not self.clock.offset_ms:
            return received.deliveries
        return [self.clock.outward(delivery) for delivery in received.deliveries]

    async def change_invisible(
        self, group: str, topic: str, receipt_handle: str, invisible_ms: int, *, suspend: bool = False
    ) -> str:
        """Lease a delivery anew for `invisible_ms` from now; the old handle is void.

        With `suspend` the attempt will not have counted.
        """
        handle, durable_at = self.decide(
            self._broker.change_invisible, group, topic, receipt_handle, invisible_ms, suspend
        )
        await self.answers.reach(durable_at)
        return handle

    def refuse_unread(self) -> None:
        """Raise `AnswersUnread` while answers wait to be read that have as many bytes as they may."""
        if self.unread_bytes >= limits.ANSWERS_BYTES_MAX:
            raise AnswersUnread(
                f"{self.unread_bytes} bytes of messages wait to be read; {limits.ANSWERS_BYTES_MAX} may. "
                "Read them, or ask for fewer messages at once."
            )

    def release(self, group: str, topic: str, receipt_handle: str) -> None:
        """Take a delivery back that its consumer never heard of."""
        self.decide(self._broker.release, group, topic, receipt_handle)
        self._arrivals.wake(topic)

    def client_alive(self, client_id: str) -> None:
        """Renew the leases that are renewed for this client; a core that is void has none."""
        with suppress(StoreUnwell, BrokerBroken):
            self.decide(self._broker.client_alive, client_id)

    def client_gone(self, client_id: str) -> None:
        """Give up the leases of a client that has left; a core that is void has none."""
        with suppress(StoreUnwell, BrokerBroken):
            self.decide(self._broker.client_gone, client_id)

    async def subscribe_lite(
        self, subscriber: Subscriber, lite_topics: list[str], start: LiteStart
    ) -> list[tuple[str, str]]:
        """Subscribe to lite topics, too; return which clients have lost which of them."""
        at = start.at + self.clock.offset_ms if start.kind is LiteFrom.TIME else start.at
        wanted = (subscriber, lite_topics, replace(start, at=at))
        return await self._subscribed(subscriber, self._broker.lite.subscribe, *wanted)

    async def unsubscribe_lite(self, subscriber: Subscriber, lite_topics: list[str]) -> None:
        """Subscribe to these no longer."""
        await self._subscribed(subscriber, self._broker.lite.unsubscribe, subscriber, lite_topics)

    async def replace_lite(self, subscriber: Subscriber, lite_topics: list[str]) -> list[tuple[str, str]]:
        """Subscribe to just these; return which the client cannot have."""
        return await self._subscribed(subscriber, self._broker.lite.replace, subscriber, lite_topics)

    async def forget_lite(self, subscriber: Subscriber) -> None:
        """Subscribe to nothing any more."""
        await self._subscribed(subscriber, self._broker.lite.forget, subscriber)

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

    def read(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[Delivery]:
        """Look at messages without leasing them."""
        found = self._broker.read(topic, queue_id, queue_offset, count)
        return [self.clock.outward(delivery) for delivery in found]

    def read_after(self, topic: str, places: Mapping[int, int], count: int) -> list[Delivery]:
        """Look at messages of several queues, each from a place on, in the order of the log."""
        return [self.clock.outward(one) for one in self._broker.read_after(topic, places, count)]

    def find(self, topic: str, key: str, count_max: int, wanted: Wanted = anything) -> Found:
        """Look messages up by key or message id, newest first; they are fewer if they are large."""
        found = self._broker.find_wanted(topic, key, count_max, lambda one: wanted(self.clock.outward(one)))
        return Found([self.clock.outward(one) for one in found.messages], found.is_cut)

    def offset_at(self, topic: str, queue_id: int, store_ms: int) -> int:
        """Return the first queue offset stored at or after a time."""
        return self._broker.offset_at(topic, queue_id, store_ms + self.clock.offset_ms)

    def pending_timers(self, topic_prefix: str, count_max: int) -> list[PendingTimer]:
        """Look at delayed messages that wait for topics with that prefix, the first due first."""
        return [self.clock.outward(one) for one in self._broker.pending_timers(topic_prefix, count_max)]

    def timer(self, name: TimerName) -> PendingTimer | TimerVerdict:
        """Look at one delayed message: waiting, or what became of it."""
        found = self._broker.timer(name, self.clock.now_ms())
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

    def _inward(self, wanted: TimerFilter) -> TimerFilter:
        """Return a filter in the broker's time; no bound stays none."""
        offset_ms, nothing = self.clock.offset_ms, TimerFilter()
        from_ms = wanted.from_ms + offset_ms if wanted.from_ms != nothing.from_ms else wanted.from_ms
        until_ms = wanted.until_ms + offset_ms if wanted.until_ms != nothing.until_ms else wanted.until_ms
        return replace(wanted, from_ms=from_ms, until_ms=until_ms)

    async def _may_look_again(self, bell: Bell, line: Hashable, received: Received, ends: float) -> bool:
        """Whether a receive that found nothing may look again, now or when something has arrived."""
        if received.is_unfinished:
            await asyncio.sleep(0)
            return self._loop.time() < ends
        return await self._arrivals.wait(bell, ends - self._loop.time(), line)

    async def _show(self, group: str, topic: str, received: Received) -> None:
        """Return once what was leased may be shown; who is no longer there to see it gives it back."""
        try:
            await self.answers.reach(received.durable_at)
        except BaseException:
            for delivery in received.deliveries:
                with suppress(TidewheelError):
                    self.release(group, topic, delivery.receipt_handle)
            raise

    async def _subscribed(
        self, subscriber: Subscriber, verb: Callable[..., Subscribed], *arguments: object
    ) -> list[tuple[str, str]]:
        """Call a verb on subscriptions; who waits to receive looks again."""
        subscribed = self.decide(verb, *arguments)
        self._arrivals.wake(subscriber)
        await self.answers.reach(subscribed.durable_at)
        return subscribed.lost

    async def _settled(self, verb: Callable[..., int], *arguments: object) -> None:
        """Call a verb and return once what it says is durable."""
        await self.answers.reach(self.decide(verb, *arguments))

    async def _told(self, verb: Callable[..., Resting], *arguments: object) -> Resting:
        """The verb's answer, or its refusal, once what either rests on is durable."""
        try:
            answer = self.decide(verb, *arguments)
        except RefusedByState as refusal:
            await self.answers.reach(refusal.durable_at)
            raise
        await self.answers.reach(answer.durable_at)
        return answer
