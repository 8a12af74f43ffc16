"""Which right each RPC needs, on which topic and which group.

Names are judged as the store has them (`services.rpc.wire.names`), so that it does not matter how a caller
splits a name into namespace and rest. A message that carries a verb on a timer needs the right to send to
that timer's topic, too (`services.broker.spine.verb_properties`); a half needs the right to end it. An RPC
that is not in the table cannot be served behind a guard (`services.rpc.guard`).
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
    """Return what is needed on a topic."""
    return Need(verb, Kind.TOPIC, stored_name(topic))


def sending(request: Any) -> Iterator[Need]:
    """Yield every message's topic, and those of the timers that they name."""
    for message in request.messages[:ENTRIES_PER_REQUEST_MAX]:  # with more it is refused anyway
        yield on_topic(Verb.SEND, message.topic)
        if message.system_properties.message_type == wire.MessageType.TRANSACTION:
            yield on_topic(Verb.TRANSACT, message.topic)
        if verb_properties.TOPIC in message.user_properties:
            named = stored_properties(dict(message.user_properties), message.topic.resource_namespace)
            yield Need(Verb.SEND, Kind.TOPIC, named[verb_properties.TOPIC])


def ending(request: Any) -> Iterator[Need]:
    """Yield the topic whose transaction is ended."""
    yield on_topic(Verb.TRANSACT, request.topic)


def recalling(request: Any) -> Iterator[Need]:
    """Yield the topic whose message is taken back."""
    yield on_topic(Verb.SEND, request.topic)


def receiving(request: Any) -> Iterator[Need]:
    """Yield the topic that is received from, as the group."""
    yield on_topic(Verb.RECEIVE, request.message_queue.topic)
    yield Need(Verb.RECEIVE, Kind.GROUP, stored_name(request.group))


def answering(request: Any) -> Iterator[Need]:
    """Yield the same for what becomes of a delivery, and for a subscription to lite topics."""
    yield on_topic(Verb.RECEIVE, request.topic)
    yield Need(Verb.RECEIVE, Kind.GROUP, stored_name(request.group))


def querying(request: Any) -> Iterator[Need]:
    """Yield a topic that a user has to do with in any way; a look may create it."""
    yield on_topic(None, request.topic)


def no_needs(request: Any) -> Iterator[Need]:
    """Nothing: it is enough to be known."""
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
