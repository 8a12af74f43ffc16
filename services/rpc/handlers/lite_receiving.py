"""SyncLiteSubscription: subscriptions to lite topics.

    PARTIAL_ADD       adds lite topics; `offset_option` sets the start position of the group
    PARTIAL_REMOVE    removes lite topics
    COMPLETE_ADD      replaces all lite topics; sent every 30 s, which restores them after a restart
    COMPLETE_REMOVE   removes all lite topics

If a lite topic of an exclusive group is taken over by another client, the previous client gets
NotifyUnsubscribeLite over its Telemetry stream. The clients for Java, Go and Node then remove the lite topic.
Other clients continue to list it and are notified again.

Compatibility: Python's client (5.1.2) adds one lite topic at a time, and sends each of its characters as a
separate lite topic. The characters are joined, because otherwise the subscription would be missing until the
next complete list, up to 30 s later.
"""

from __future__ import annotations

import asyncio

from services.broker.groups.lite_subscribing import LiteStart, LiteStartPosition, SubscriptionResult
from services.broker.spine.errors import MessageTypeConflict
from services.broker.spine.values import Subscriber
from services.live.live_broker import LiveBroker
from services.rpc.clients.session import Session
from services.rpc.clients.sessions import Sessions
from services.rpc.generated.definition_pb2 import ClientType, LiteSubscriptionAction, OffsetOption
from services.rpc.generated.service_pb2 import (
    NotifyUnsubscribeLiteCommand,
    SyncLiteSubscriptionRequest,
    SyncLiteSubscriptionResponse,
    TelemetryCommand,
)
from services.rpc.wire.caller import Caller
from services.rpc.wire.names import stored_name
from services.rpc.wire.statuses import OK
from tidewheel.errors import ClientMistake

POLICIES = {
    OffsetOption.Policy.LAST: LiteStartPosition.LAST,
    OffsetOption.Policy.MIN: LiteStartPosition.MIN,
    OffsetOption.Policy.MAX: LiteStartPosition.MAX,
}
KINDS = {
    "offset": LiteStartPosition.OFFSET,
    "tail_n": LiteStartPosition.TAIL,
    "timestamp": LiteStartPosition.TIME,
}
STRANGERS = (ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, ClientType.PULL_CONSUMER)


MOVED_AT_ONCE = 250
"""Maximum number of lite topics whose start position is set in one event loop iteration.

Each takes at least 16 us.
"""


class LiteHandlers:
    """Handles subscriptions to lite topics."""

    def __init__(self, live: LiveBroker, sessions: Sessions) -> None:
        self._live, self._sessions = live, sessions

    async def sync_lite_subscription(
        self, request: SyncLiteSubscriptionRequest, caller: Caller
    ) -> SyncLiteSubscriptionResponse:
        """Change the subscriptions of a client."""
        self._sessions.seen(caller)
        who = Subscriber(stored_name(request.group), stored_name(request.topic), caller.client_id)
        lite_topics = list(request.lite_topic_set)
        live, lite = self._live, self._live.core.lite
        match request.action:
            case LiteSubscriptionAction.PARTIAL_ADD:
                added = merge_lite_topics(lite_topics) if caller.language == "PYTHON" else lite_topics
                await self._add(who, added, start(request))
            case LiteSubscriptionAction.PARTIAL_REMOVE:
                await live.receivers.subscribe(lite.unsubscribe, who, lite_topics)
            case LiteSubscriptionAction.COMPLETE_ADD:
                self._notify(await live.receivers.subscribe(lite.replace, who, lite_topics))
            case LiteSubscriptionAction.COMPLETE_REMOVE:
                await live.receivers.subscribe(lite.remove_all, who)
            case _:
                raise ClientMistake(f"{request.action} is no action on a subscription that we know.")
        return SyncLiteSubscriptionResponse(status=OK)

    async def _add(self, who: Subscriber, lite_topics: list[str], place: LiteStart) -> None:
        """Add lite topics.

        If a start position is set, the topics are added in several event loop iterations.
        """
        live, at_once = self._live, max(1, len(lite_topics))
        if place.kind is not LiteStartPosition.LAST and at_once > MOVED_AT_ONCE:
            # check first, so that either all or none are added
            await live.receivers.subscribe(live.core.lite.check, who, lite_topics)
            at_once = MOVED_AT_ONCE
        for first in range(0, max(1, len(lite_topics)), at_once):
            if first:
                await asyncio.sleep(0)
            some = lite_topics[first : first + at_once]
            self._notify(await live.receivers.subscribe(live.core.lite.subscribe, who, some, place))

    def _notify(self, subscribed: SubscriptionResult) -> None:
        """Notify clients of lite topics that were taken over by another client."""
        for client_id, lite_topic in subscribed.lost:
            session = self._sessions.find(client_id)
            if session is not None and session.streams:
                command = NotifyUnsubscribeLiteCommand(lite_topic=lite_topic)
                session.streams[-1].write(TelemetryCommand(notify_unsubscribe_lite_command=command))


def merge_lite_topics(lite_topics: list[str]) -> list[str]:
    """Join single characters to one lite topic. A list of longer names is returned unchanged."""
    is_spelled = bool(lite_topics) and all(len(one) == 1 for one in lite_topics)
    return ["".join(lite_topics)] if is_spelled else lite_topics


def start(request: SyncLiteSubscriptionRequest) -> LiteStart:
    """Return the start position of the group for the added lite topics."""
    option = request.offset_option
    kind = option.WhichOneof("offset_type")
    if kind is None:
        return LiteStart()
    if kind == "policy":
        if option.policy not in POLICIES:
            raise ClientMistake(f"{option.policy} is no offset policy that we know.")
        return LiteStart(POLICIES[option.policy])
    at = getattr(option, kind)
    if at < 0:
        raise ClientMistake(f"{kind} is {at}: count from 0.")
    return LiteStart(KINDS[kind], at)


def refuse_unsubscribed_clients(session: Session, topic: str, live: LiveBroker) -> None:
    """Raise `MessageTypeConflict` for a consumer type that cannot subscribe to lite topics.

    A client whose type is unknown after a broker restart is accepted and waits until it has subscribed.
    """
    if session.client_type in STRANGERS and live.core.lite.is_lite(topic):
        raise MessageTypeConflict(
            f"{topic!r} holds lite topics. Receive from it with a LitePushConsumer or LiteSimpleConsumer."
        )
