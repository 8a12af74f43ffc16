"""Subscriptions to lite topics, and the lite topics that may have messages for each subscriber.

A subscriber is a client of a group under a topic. Subscriptions are not durable, because every client sends
all its subscriptions every 30 s. A subscription ends when the client removes it, leaves, or sends no
heartbeat for `LITE_SILENT_MS_MAX`.

A lite topic becomes *ready* for a subscriber when a message arrives, when a lease on one of its messages
ends, or when the subscriber subscribes to it. A receive examines only ready lite topics, in the order in
which they became ready. The cost of a receive therefore depends on the number of available messages, not on
the number of subscriptions.

Several clients of a group may share a lite topic. If the policy of the group sets `is_lite_exclusive`, a new
subscription takes over the lite topic from other clients. A periodic full update never takes over a lite
topic.

Invariants: every ready lite topic has a subscription, `_subscribers` and `_subscriptions` contain the same
(subscriber, lite topic) pairs, and `_count` is the number of these pairs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from commitlog import limits
from services.broker.spine.errors import TooManyLiteSubscriptions
from services.broker.spine.lease_clock import LeaseClock
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Subscriber


@dataclass(slots=True)
class Subscription:
    """The lite topics of a subscriber, each with an offset below which all its messages are finished.

    `heard_ms` is the elapsed time of the last heartbeat. A clock step therefore does not end a subscription.
    """

    heard_ms: int
    lite_topics: dict[str, int] = field(default_factory=dict)
    ready: OrderedDict[str, None] = field(default_factory=OrderedDict)


class LiteSubscriptions:
    """The lite topic subscriptions of all clients."""

    def __init__(self, settings: BrokerSettings, clock: LeaseClock) -> None:
        self._clock = clock
        self._quota = settings.lite_subscriptions_per_client_max
        self._subscriptions: dict[Subscriber, Subscription] = {}
        self._subscribers: dict[tuple[str, str], dict[Subscriber, None]] = {}
        self._of_client: dict[str, dict[Subscriber, None]] = {}
        self._count = 0
        self.woken: dict[Subscriber, None] = {}
        """The subscribers with newly ready lite topics.

        This table is cleared when waiting receives are notified.
        """

    def find(self, subscriber: Subscriber) -> Subscription | None:
        """Return the subscription of a subscriber, or None."""
        return self._subscriptions.get(subscriber)

    def check(self, subscriber: Subscriber, lite_topics: Iterable[str]) -> None:
        """Raise `TooManyLiteSubscriptions` if additional lite topics would exceed a limit."""
        known = self._subscriptions.get(subscriber)
        wanted = dict.fromkeys(lite_topics)
        self._check_limits(
            subscriber, known.lite_topics.keys() | wanted.keys() if known else wanted.keys(), known
        )

    def add_lite_topics(self, subscriber: Subscriber, lite_topics: Iterable[str], now_ms: int) -> None:
        """Add lite topics to a subscription.

        Raise `TooManyLiteSubscriptions` before any change.
        """
        wanted = dict.fromkeys(lite_topics)
        self.check(subscriber, wanted)
        subscription = self._renew(subscriber, now_ms)
        for lite_topic in [one for one in wanted if one not in subscription.lite_topics]:
            self._link(subscriber, subscription, lite_topic)

    def set_lite_topics(self, subscriber: Subscriber, lite_topics: Iterable[str], now_ms: int) -> None:
        """Replace the lite topics of a subscription.

        Raise `TooManyLiteSubscriptions` before any change.
        """
        wanted = dict.fromkeys(lite_topics)
        known = self._subscriptions.get(subscriber)
        self._check_limits(subscriber, wanted.keys(), known)
        if known is not None:
            self.remove_lite_topics(subscriber, [one for one in known.lite_topics if one not in wanted])
        self.add_lite_topics(subscriber, wanted, now_ms)

    def remove_lite_topics(self, subscriber: Subscriber, lite_topics: Iterable[str]) -> None:
        """Remove lite topics from a subscription. Ignore lite topics that are not in the subscription."""
        subscription = self._subscriptions.get(subscriber)
        for lite_topic in lite_topics if subscription else ():
            self._unlink(subscriber, lite_topic)

    def remove_all(self, subscriber: Subscriber) -> None:
        """Remove a subscriber and its subscription."""
        subscription = self._subscriptions.get(subscriber)
        if subscription is not None:
            self.remove_lite_topics(subscriber, list(subscription.lite_topics))
            assert not subscription.lite_topics, "a lite topic keeps a subscriber that is forgotten"
            del self._subscriptions[subscriber]
            self.woken.pop(subscriber, None)
            self._of_client[subscriber.client_id].pop(subscriber)
            if not self._of_client[subscriber.client_id]:
                del self._of_client[subscriber.client_id]

    def remove_client(self, client_id: str) -> None:
        """Remove the subscriptions of a client."""
        for subscriber in list(self._of_client.get(client_id, ())):
            self.remove_all(subscriber)

    def record_heartbeat(self, subscriber: Subscriber, now_ms: int) -> Subscription | None:
        """Record a heartbeat of a subscriber. Return its subscription, or None."""
        subscription = self._subscriptions.get(subscriber)
        if subscription is not None:
            subscription.heard_ms = self._clock.to_elapsed_time(now_ms)
        return subscription

    def renew_client(self, client_id: str, now_ms: int) -> None:
        """Renew the subscriptions of a client after a heartbeat."""
        for subscriber in self._of_client.get(client_id, ()):
            self.record_heartbeat(subscriber, now_ms)

    def remove_silent_subscribers(self, now_ms: int) -> None:
        """Remove subscribers that have sent no heartbeat for `LITE_SILENT_MS_MAX`."""
        since_ms = self._clock.to_elapsed_time(now_ms) - limits.LITE_SILENT_MS_MAX
        for subscriber in [who for who, one in self._subscriptions.items() if one.heard_ms < since_ms]:
            self.remove_all(subscriber)

    def subscribers(self, topic: str, lite_topic: str, group: str = "") -> list[Subscriber]:
        """Return the subscribers to a lite topic in `group`, or in all groups if `group` is empty."""
        found = self._subscribers.get((topic, lite_topic), ())
        return [one for one in found if group in ("", one.group)]

    def of_group(self, group: str) -> Iterator[tuple[Subscriber, Subscription]]:
        """Yield each subscriber in a group with its subscription."""
        return ((who, one) for who, one in self._subscriptions.items() if who.group == group)

    def mark_ready(self, topic: str, lite_topic: str, group: str = "") -> None:
        """Mark a lite topic as ready for `group`, or for all groups if `group` is empty."""
        for subscriber in self.subscribers(topic, lite_topic, group):
            self._subscriptions[subscriber].ready[lite_topic] = None
            self.woken[subscriber] = None

    def mark_all_ready(self, group: str, topic: str = "") -> None:
        """Mark all lite topics of a group as ready. The next search of each lite topic begins at offset 0.

        If `topic` is not empty, mark only lite topics under this topic.
        """
        for subscriber, subscription in self.of_group(group):
            if topic in ("", subscriber.topic):
                subscription.lite_topics = dict.fromkeys(subscription.lite_topics, 0)
                subscription.ready = OrderedDict.fromkeys(subscription.lite_topics)
                self.woken[subscriber] = None

    def adopt_subscriptions(self, before: LiteSubscriptions, by_ms: int) -> None:
        """Adopt the subscriptions of the core that is being replaced.

        Clock steps can put the elapsed time of this core up to `by_ms` ahead of that of the previous core.
        Heartbeat times are adjusted by `by_ms`.
        """
        for subscriber, subscription in before._subscriptions.items():
            heard_ms = self._clock.to_broker_time(subscription.heard_ms + by_ms)
            for lite_topic in subscription.lite_topics:
                self._link(subscriber, self._renew(subscriber, heard_ms), lite_topic)

    def _renew(self, subscriber: Subscriber, now_ms: int) -> Subscription:
        heard_ms = self._clock.to_elapsed_time(now_ms)
        subscription = self._subscriptions.setdefault(subscriber, Subscription(heard_ms))
        self._of_client.setdefault(subscriber.client_id, {})[subscriber] = None
        subscription.heard_ms = heard_ms
        return subscription

    def _link(self, subscriber: Subscriber, subscription: Subscription, lite_topic: str) -> None:
        assert lite_topic not in subscription.lite_topics, "subscribed twice, and counted twice"
        subscription.lite_topics[lite_topic] = 0
        subscription.ready[lite_topic] = None
        self._subscribers.setdefault((subscriber.topic, lite_topic), {})[subscriber] = None
        self.woken[subscriber] = None
        self._count += 1

    def _unlink(self, subscriber: Subscriber, lite_topic: str) -> None:
        subscription, name = self._subscriptions[subscriber], (subscriber.topic, lite_topic)
        if subscription.lite_topics.pop(lite_topic, None) is None:
            return
        subscription.ready.pop(lite_topic, None)
        self._count -= 1
        del self._subscribers[name][subscriber]
        if not self._subscribers[name]:
            del self._subscribers[name]
        assert self._count >= 0, "more subscriptions ended than there were"

    def _check_limits(
        self, subscriber: Subscriber, wanted: Iterable[str], known: Subscription | None
    ) -> None:
        count = len(list(wanted))
        if count > self._quota:
            raise TooManyLiteSubscriptions(
                f"{subscriber.client_id} would have {count} under {subscriber.topic}, the limit is "
                f"{self._quota}. Unsubscribe from what is no longer read, or raise --lite-subscriptions."
            )
        if self._count + count - (len(known.lite_topics) if known else 0) > limits.LITE_SUBSCRIPTIONS_MAX:
            raise TooManyLiteSubscriptions(
                f"All clients together have {self._count}, the limit is {limits.LITE_SUBSCRIPTIONS_MAX}."
            )
