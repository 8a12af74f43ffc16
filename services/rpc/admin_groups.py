"""What operators ask about consumer groups: a part of `services.rpc.admin`.

A subscription is a group and a topic that it receives; which filter it has is known from the clients that are
there, as they describe themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from commitlog.limits import ENTRIES_PER_REQUEST_MAX
from services.broker.group_values import From, GroupView, QueueView, Start
from services.live.group_lag import age_ms, in_flight, lag, next_ms, ready
from services.live.live_broker import LiveBroker
from services.live.pauses import Pauses
from services.rpc.caller import Caller
from services.rpc.generated import admin_pb2 as wire
from services.rpc.generated.definition_pb2 import Broker, Code, FilterExpression, MessageQueue, Status
from services.rpc.messages import duration, timestamp, wall_ms
from services.rpc.names import stored_name, wire_name
from services.rpc.sessions import Session, Sessions
from services.rpc.statuses import OK
from tidewheel.errors import ClientMistake, NotFound

NO_LITE_TOPICS = Status(code=Code.NOT_IMPLEMENTED, message="Of single lite topics nothing is told here.")


class Subscription(NamedTuple):
    """A group, a topic that it receives, and the clients that subscribe it, each with its filter."""

    group: str
    topic: str
    subscribers: Sequence[tuple[Session, FilterExpression]]


class AdminGroups:
    """Answers about consumer groups."""

    def __init__(self, live: LiveBroker, sessions: Sessions) -> None:
        self._live, self._sessions = live, sessions

    async def list_subscription(self, request: Any, caller: Caller) -> Any:
        """Return the subscriptions of a topic, of a group, or of both."""
        namespace = namespace_of(request)
        found = [self._info(one, namespace) for one in await self._subscriptions(request)]
        return wire.ListSubscriptionResponse(status=OK, subscription_info=found)

    async def describe_subscription(self, request: Any, caller: Caller) -> Any:
        """Return the same once for each client that subscribes."""
        namespace = namespace_of(request)
        found = [
            wire.DescribeSubscriptionResponse.ClientSubscriptionInfo(
                client_info=client_info(session),
                subscription_info=self._info(one, namespace, (session, expression)),
            )
            for one in await self._subscriptions(request)
            for session, expression in one.subscribers
        ]
        return wire.DescribeSubscriptionResponse(status=OK, client_subscription_info=found)

    async def delete_subscription(self, request: Any, caller: Caller) -> Any:
        """Let a group leave a topic; clients that go on receiving bring it back."""
        group, topic = stored_name(request.group), stored_name(request.topic)
        if not topic:
            raise ClientMistake("Give the topic that the group is to leave.")
        await self._live.call(self._live.core.group_views.delete, group, topic)
        return wire.DeleteSubscriptionResponse(status=OK)

    async def describe_accumulation(self, request: Any, caller: Caller) -> Any:
        """Say how far a group is, over all and for each topic that is asked for."""
        if request.lite_topic:
            return wire.DescribeGroupAccumulationResponse(status=NO_LITE_TOPICS)
        view, now_ms = self._group(request), self._live.now_ms()  # one moment for all of the answer
        by_topic = {
            asked.name: self._accumulation(queues_of(view, stored_name(asked)), now_ms)
            for asked in some(request.topics)
        }
        return wire.DescribeGroupAccumulationResponse(
            status=OK, accumulation=self._accumulation(view.queues, now_ms), topic_accumulation=by_topic
        )

    async def query_time_span(self, request: Any, caller: Caller) -> Any:
        """Say from when the messages of each queue are, and the last one below which all is done."""
        view = self._group(request)
        asked = [stored_name(one) for one in some(request.topics)]
        queues = [queue for one in asked for queue in queues_of(view, one)] if asked else view.queues
        namespace = request.group.resource_namespace
        now_ms = self._live.now_ms()
        spans = [self._span(queue, namespace, now_ms) for queue in queues]
        return wire.QueryTimeSpanResponse(status=OK, queue_time_span_list=spans)

    async def reset_offset(self, request: Any, caller: Caller) -> Any:
        """Have a group go on in a topic from what was stored at a time."""
        group, topic = stored_name(request.group), stored_name(request.topic)
        if not topic:
            raise ClientMistake("Give the topic in which the group is to go on from elsewhere.")
        start = Start(From.TIME, wall_ms(request.reset_timestamp))
        await self._live.groups.reset(group, topic, start, dry_run=False)
        return wire.ResetGroupOffsetResponse(status=OK)

    def _group(self, request: Any) -> GroupView:
        return self._live.query(self._live.core.group_views.one, stored_name(request.group))

    async def _subscriptions(self, request: Any) -> list[Subscription]:
        group, topic = stored_name(request.group), stored_name(request.topic)
        if not group and not topic:
            raise ClientMistake("Give a topic, a group, or both.")
        subscribers: dict[tuple[str, str], list[tuple[Session, FilterExpression]]] = {}
        groups, pauses = self._live.core.groups, Pauses()
        for name in [group] if group else list(groups.unsorted_names()):
            received = [topic] if topic else groups.topics_of(name)
            subscribers |= {(name, one): [] for one in received if groups.receives(name, one)}
            await pauses.pause()
        for session in list(self._sessions):
            for name, expression in subscribed(session) if group in ("", session.group) else ():
                if topic in ("", name):
                    subscribers.setdefault((session.group, name), []).append((session, expression))
            await pauses.pause()
        return [Subscription(*pair, subscribers[pair]) for pair in sorted(subscribers)]

    def _info(
        self, one: Subscription, namespace: str, by: tuple[Session, FilterExpression] | None = None
    ) -> Any:
        """Return a subscription as all its clients have it, or as one does."""
        subscribers = [by] if by else one.subscribers
        info = wire.SubscriptionInfo(
            group=wire_name(one.group, namespace),
            topic=wire_name(one.topic, namespace),
            online=bool(subscribers),
            message_model=wire.CLUSTERING,
            subscription_consistency=self._agree(one),
        )
        if subscribers:
            latest, expression = max(subscribers, key=lambda each: each[0].seen_ms)
            info.expression.CopyFrom(expression)
            info.last_update_timestamp.CopyFrom(timestamp(latest.seen_ms))
        return info

    def _agree(self, one: Subscription) -> bool:
        """Return whether all clients of the group have the same filter for the topic."""
        members = sum(session.group == one.group and not session.is_producer for session in self._sessions)
        filters = {(expression.type, expression.expression) for _, expression in one.subscribers}
        return len(filters) <= 1 and members == len(one.subscribers)

    def _accumulation(self, queues: list[QueueView], now_ms: int) -> Any:
        fresh = [next_ms(self._live, queue) for queue in queues]
        return wire.DescribeGroupAccumulationResponse.GroupAccumulation(
            inflight_messages=in_flight(queues),
            ready_messages=ready(queues),
            accumulation=lag(queues),
            deliver_delay_time=duration(age_ms(fresh, now_ms)),
        )

    def _span(self, queue: QueueView, namespace: str, now_ms: int) -> Any:
        broker = Broker(name=self._live.settings.broker_name)
        return wire.QueryTimeSpanResponse.QueueTimeSpan(
            message_queue=MessageQueue(
                topic=wire_name(queue.topic, namespace), id=queue.queue_id, broker=broker
            ),
            min_timestamp=self._stored_ms(queue, queue.min_offset),
            max_timestamp=self._stored_ms(queue, queue.end_offset - 1),
            consume_timestamp=self._stored_ms(queue, queue.committed_offset - 1),
            delay_time_ms=age_ms([queue.oldest_ms], now_ms),
        )

    def _stored_ms(self, queue: QueueView, offset: int) -> int:
        """Return when a message of a queue was stored; 0 if it is not there."""
        if not queue.min_offset <= offset < queue.end_offset:
            return 0
        found = self._live.query(self._live.core.finding.read, queue.topic, queue.queue_id, offset, 1)
        return found[0].store_ms if found else 0


def namespace_of(request: Any) -> str:
    """Return the namespace of what a request names."""
    return str(request.group.resource_namespace or request.topic.resource_namespace)


def some(resources: Any) -> Any:
    """Return as many as a request may name; raise `ClientMistake`."""
    if len(resources) > ENTRIES_PER_REQUEST_MAX:
        raise ClientMistake(f"{len(resources)} topics; at most {ENTRIES_PER_REQUEST_MAX} may be asked about.")
    return resources


def queues_of(view: GroupView, topic: str) -> list[QueueView]:
    """Return the queues of one topic of a group; raise `NotFound`."""
    queues = [queue for queue in view.queues if queue.topic == topic]
    if not queues:
        raise NotFound(f"{view.name} does not receive {topic[:255]!r}. See: tidewheel group show {view.name}")
    return queues


def subscribed(session: Session) -> Iterator[tuple[str, FilterExpression]]:
    """Yield what a consumer subscribes: topics, each with its filter."""
    if session.group and session.described is not None:
        for entry in session.described.subscription.subscriptions:
            yield stored_name(entry.topic), entry.expression


def client_info(session: Session) -> Any:
    """Return a client as it said of itself; its address is the one that its calls come from."""
    described = session.described
    return wire.ClientInfo(
        client_id=session.client_id,
        version=session.version,
        language=session.language,
        hostname=described.user_agent.hostname if described else "",
        egress_ip=session.host,
        message_model=wire.MESSAGE_MODEL_UNSPECIFIED if session.is_producer else wire.CLUSTERING,
    )
