"""Receives with long polling, the release of undelivered messages, and lease renewal.

receive --> lease in the core --> no messages: wait in a line (`long_polls`), then lease again
                              --> scan unfinished: wait for budget (`scan_budget`), then lease again
                              --> messages: wait until the lease is durable --> delivered
                                                                            --> cancelled: released
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from commitlog import limits
from consumequeue.filters.filter import Filter
from services.broker.broker import Broker
from services.broker.groups.group_values import ReceivedMessages
from services.broker.groups.lite_subscribing import SubscriptionResult
from services.broker.spine.values import Delivery, Subscriber, WakeUpKey
from services.live.clients.long_polls import LongPolls
from services.live.clients.scan_budget import ScanBudget
from services.live.clock import Clock
from services.live.created_topics import CreatedTopics
from services.live.durability import Answers
from services.live.errors import AnswersUnread, BrokerBroken, StoreUnavailable
from tidewheel.errors import TidewheelError


class Receivers:
    """The receive operations of clients. The live broker provides `core`, `decide`, and `call`."""

    def __init__(
        self,
        core: Callable[[], Broker],
        decide: Callable[..., Any],
        call: Callable[..., Coroutine[Any, Any, Any]],
        clock: Clock,
        answers: Answers,
        long_polls: LongPolls,
    ) -> None:
        self._core, self._decide, self._call = core, decide, call
        self._clock, self._answers, self._loop = clock, answers, asyncio.get_running_loop()
        self._long_polls, self._slices = long_polls, ScanBudget()
        self.notify, self.notify_all = self._long_polls.notify, self._long_polls.notify_all
        self.unread_bytes = 0
        """Number of message bytes in responses that clients have not yet read."""

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
        created: CreatedTopics | None = None,
    ) -> list[Delivery]:
        """Lease up to `batch_size` messages. Wait up to `wait_seconds` for the first message.

        Return an empty list if no message arrives in time. Leased messages count towards `unread_bytes` until
        this method returns. From then on, the caller must count them. A retry after a lost response must use
        the same `attempt_id`. If the receive creates the topic, the topic is added to `created`.
        """
        wish = (group, topic, wanted, batch_size, invisible_ms, client_id, auto_renew)

        def lease(now_ms: int) -> ReceivedMessages:
            self.check_unread_limit()
            core = self._core()
            if created is None:  # calls over gRPC, whose clients show no created topics
                received = core.receiving.receive(*wish, now_ms, attempt_id)
            else:
                with created.recording(core.topics, [topic]):
                    received = core.receiving.receive(*wish, now_ms, attempt_id)
            self._slices.count_work(received.work)
            if received.has_set_aside:
                self._long_polls.notify_others(key, line)
            return received

        ends, line = self._loop.time() + wait_seconds, (group, wanted)
        key = self._core().lite.wake_up_key(group, topic, client_id)
        if not self._slices.has_room:
            await self._slices.wait_for_first_scan()
        received = self._decide(lease)
        try:
            while not received.deliveries and await self._wait_to_scan_again(key, line, received, ends):
                received = self._decide(lease)
        except asyncio.CancelledError:  # The cancelled receive may have consumed a notification.
            self._long_polls.notify_next(key, line)
            raise
        if received.is_unfinished:
            self._long_polls.notify_next(key, line)
        with self._count_unread(received.deliveries):
            await self._wait_until_durable(group, topic, received)
        return self._clock.to_real_time(received.deliveries)

    def check_unread_limit(self) -> None:
        """Raise `AnswersUnread` if unread responses have reached the byte limit."""
        if self.unread_bytes >= limits.ANSWERS_BYTES_MAX:
            raise AnswersUnread(
                f"{self.unread_bytes} bytes of messages wait to be read; {limits.ANSWERS_BYTES_MAX} may. "
                "Read them, or ask for fewer messages at once."
            )

    async def wait_for_arrival(self, topic: str, seconds: float) -> bool:
        """Wait up to `seconds` for a message in `topic`. Return whether a message has arrived."""
        return await self._long_polls.wait(topic, seconds)

    @property
    def is_closed(self) -> bool:
        """Return whether receives end without waiting because the broker is stopping."""
        return self._long_polls.is_closed

    def close(self) -> None:
        """End all current and future long polls, including those for transaction check-backs."""
        self._long_polls.close()

    def release(self, group: str, topic: str, receipt_handle: str) -> None:
        """Release the lease on a message that was not delivered to its consumer."""
        self._decide(self._core().receiving.release, group, topic, receipt_handle)
        self._long_polls.notify(topic)

    def release_all_leases(self, group: str, topic: str, receipt_handles: Iterable[str]) -> None:
        """Release the leases on messages that were not delivered to their consumer. Ignore ended leases."""
        for handle in receipt_handles:
            with suppress(TidewheelError):
                self.release(group, topic, handle)

    def renew_client_leases(self, client_id: str) -> None:
        """Renew the auto-renewed leases of a client. Do nothing if the core is unavailable."""
        with suppress(StoreUnavailable, BrokerBroken):
            self._decide(self._core().receiving.renew_client, client_id)

    def record_subscription(self, client_id: str, group: str, topic: str, wanted: Filter) -> None:
        """Record the filter of a client subscription. Do nothing if the core is unavailable."""
        with suppress(StoreUnavailable, BrokerBroken):
            self._decide(self._core().receiving.record_subscription, client_id, group, topic, wanted)

    def release_client_leases(self, client_id: str) -> None:
        """Release the auto-renewed leases of a lost client. Do nothing if the core is unavailable."""
        with suppress(StoreUnavailable, BrokerBroken):
            self._decide(self._core().receiving.expire_client, client_id)

    def subscribe(
        self, verb: Callable[..., SubscriptionResult], subscriber: Subscriber, *arguments: object
    ) -> Coroutine[Any, Any, SubscriptionResult]:
        """Change a lite topic subscription, and notify the waiting receives of the subscriber."""
        subscribed = self._call(verb, subscriber, *arguments)
        self._long_polls.notify(subscriber)
        return subscribed

    def remove_subscriptions(self, client_id: str) -> None:
        """Remove the subscriptions of a terminated client. Do nothing if the core is unavailable."""
        with suppress(StoreUnavailable, BrokerBroken):
            self._decide(self._core().lite.remove_client, client_id)

    async def _wait_to_scan_again(
        self, key: WakeUpKey, line: Hashable, received: ReceivedMessages, ends: float
    ) -> bool:
        """Wait until a receive without messages may scan again. Return False if the receive must end.

        A receive that has read a damaged file may scan again after its timeout, because other queues may
        contain messages.
        """
        if received.is_unfinished:
            await self._slices.wait_for_next_scan()
            return received.has_read_damage or self._loop.time() < ends
        if not await self._long_polls.wait(key, ends - self._loop.time(), line):
            return False
        if not self._slices.has_room:
            await self._slices.wait_for_first_scan()
        return True

    @contextmanager
    def _count_unread(self, deliveries: list[Delivery]) -> Iterator[None]:
        held_bytes = sum(len(one.record.body) for one in deliveries)
        self.unread_bytes += held_bytes
        try:
            yield
        finally:
            self.unread_bytes -= held_bytes

    async def _wait_until_durable(self, group: str, topic: str, received: ReceivedMessages) -> None:
        """Wait until the leases are durable. If the wait fails or is cancelled, release the leases."""
        try:
            await self._answers.wait_until_durable(received.durable_at)
        except BaseException:
            self.release_all_leases(group, topic, [one.receipt_handle for one in received.deliveries])
            raise
