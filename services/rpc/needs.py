"""The rights that each RPC requires on topics and groups.

Rights are checked for stored names (`services.rpc.wire.names`), so that the split of a name into namespace
and name does not matter. A message that carries a timer operation also requires the right to send to the
timer's topic (`services.broker.spine.verb_properties`). A half message also requires the right to end it. An
RPC that is not in the table cannot be served with access control (`services.rpc.guard`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from commitlog.limits import ENTRIES_PER_REQUEST_MAX
from services.auth.rights import Kind, Need, Verb
from services.broker.spine import verb_properties
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated.definition_pb2 import Resource
from services.rpc.metrics.metrics_export import OPENCENSUS, OTLP
from services.rpc.wire.messages import stored_properties
from services.rpc.wire.names import stored_name

NeedsOf = Callable[[Any], Iterator[Need]]


def on_topic(verb: Verb | None, topic: Resource) -> Need:
    """Return the required right on a topic."""
    return Need(verb, Kind.TOPIC, stored_name(topic))


def sending(request: Any) -> Iterator[Need]:
    """Yield the rights for the topic of every message, and for the topics of the timers in their
    operations.
    """
    for message in request.messages[:ENTRIES_PER_REQUEST_MAX]:  # larger requests are refused later
        yield on_topic(Verb.SEND, message.topic)
        if message.system_properties.message_type == wire.MessageType.TRANSACTION:
            yield on_topic(Verb.TRANSACT, message.topic)
        if verb_properties.TOPIC in message.user_properties:
            named = stored_properties(dict(message.user_properties), message.topic.resource_namespace)
            yield Need(Verb.SEND, Kind.TOPIC, named[verb_properties.TOPIC])


def ending(request: Any) -> Iterator[Need]:
    """Yield the right to end a transaction of the topic."""
    yield on_topic(Verb.TRANSACT, request.topic)


def recalling(request: Any) -> Iterator[Need]:
    """Yield the right to recall a message of the topic."""
    yield on_topic(Verb.SEND, request.topic)


def receiving(request: Any) -> Iterator[Need]:
    """Yield the rights to receive from the topic as the group."""
    yield on_topic(Verb.RECEIVE, request.message_queue.topic)
    yield Need(Verb.RECEIVE, Kind.GROUP, stored_name(request.group))


def answering(request: Any) -> Iterator[Need]:
    """Yield the rights to acknowledge deliveries or to subscribe to lite topics."""
    yield on_topic(Verb.RECEIVE, request.topic)
    yield Need(Verb.RECEIVE, Kind.GROUP, stored_name(request.group))


def querying(request: Any) -> Iterator[Need]:
    """Yield a requirement that any right on the topic satisfies. The query may create the topic."""
    yield on_topic(None, request.topic)


def no_needs(request: Any) -> Iterator[Need]:
    """Yield nothing, because authentication is sufficient."""
    yield from ()


NEEDS: Final[dict[str, NeedsOf]] = {
    "QueryRoute": querying,
    "QueryAssignment": querying,
    "SendMessage": sending,
    "EndTransaction": ending,
    "RecallMessage": recalling,
    "ReceiveMessage": receiving,
    "AckMessage": answering,
    "ChangeInvisibleDuration": answering,
    "ForwardMessageToDeadLetterQueue": answering,
    "SyncLiteSubscription": answering,
    "Telemetry": no_needs,
    "Heartbeat": no_needs,
    "NotifyClientTermination": no_needs,
    OTLP: no_needs,
    OPENCENSUS: no_needs,
}
