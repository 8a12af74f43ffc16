"""QueryRoute and QueryAssignment: the broker of a topic, and the queues that a consumer receives from."""

from __future__ import annotations

from commitlog.records.message import MessageType
from services.broker.spine.values import Topic
from services.live.live_broker import LiveBroker
from services.rpc.clients.producers import Producers
from services.rpc.clients.sessions import Sessions
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated.service_pb2 import (
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    QueryRouteRequest,
    QueryRouteResponse,
)
from services.rpc.wire.caller import Caller
from services.rpc.wire.endpoints import DECODES_PERCENT, Advertised
from services.rpc.wire.names import stored_name
from services.rpc.wire.statuses import OK

MASTER = 0
EVERY_QUEUE = -1
APART = (MessageType.MIXED, MessageType.PRIORITY, MessageType.LITE)
ACCEPTED = [kind.value for kind in MessageType if kind not in APART]


class RouteHandlers:
    """Answers route and assignment queries."""

    def __init__(
        self, live: LiveBroker, sessions: Sessions, advertised: Advertised, producers: Producers
    ) -> None:
        self._live, self._sessions, self._advertised = live, sessions, advertised
        self._producers = producers

    async def query_route(self, request: QueryRouteRequest, caller: Caller) -> QueryRouteResponse:
        """Return all queues of a topic.

        A producer that sends this query becomes available for check-backs.
        """
        topic = await self._live.call(self._live.core.topics.get_or_create, stored_name(request.topic))
        if self._sessions.seen(caller).asks_for(topic.name, request.topic.resource_namespace):
            self._producers.add(topic.name, caller.client_id, request.topic.resource_namespace)
        broker = self._broker(request.endpoints, caller)
        queues = [
            self._queue(request.topic, topic, broker, queue_id) for queue_id in range(topic.queue_count)
        ]
        return QueryRouteResponse(status=OK, message_queues=queues)

    async def query_assignment(
        self, request: QueryAssignmentRequest, caller: Caller
    ) -> QueryAssignmentResponse:
        """Return one assignment that stands for all queues, because a receive takes messages from all queues.

        The endpoints are those of the request, so that route and assignment agree for the client.
        """
        topic = await self._live.call(self._live.core.topics.get_or_create, stored_name(request.topic))
        self._sessions.seen(caller)
        broker = wire.Broker(name=self._live.settings.broker_name, id=MASTER, endpoints=request.endpoints)
        if not request.endpoints.addresses:
            broker = self._broker(request.endpoints, caller)
        queue = self._queue(request.topic, topic, broker, EVERY_QUEUE)
        return QueryAssignmentResponse(status=OK, assignments=[wire.Assignment(message_queue=queue)])

    def _broker(self, dialled: wire.Endpoints, caller: Caller) -> wire.Broker:
        endpoints = self._advertised.endpoints(
            dialled,
            self._sessions.redials(caller),
            decodes_percent=caller.language in DECODES_PERCENT,
            known=self._sessions.dialled(caller),
        )
        return wire.Broker(name=self._live.settings.broker_name, id=MASTER, endpoints=endpoints)

    @staticmethod
    def _queue(
        resource: wire.Resource, topic: Topic, broker: wire.Broker, queue_id: int
    ) -> wire.MessageQueue:
        return wire.MessageQueue(
            topic=resource,
            id=queue_id,
            permission=wire.Permission.READ_WRITE,
            broker=broker,
            accept_message_types=accepted(topic.message_type),
        )


def accepted(message_type: MessageType) -> list[str]:
    """Return the message types that a topic accepts. Clients refuse to send other types."""
    return ACCEPTED if message_type is MessageType.MIXED else [message_type.value]
