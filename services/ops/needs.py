"""The rights that each route of the HTTP interface requires on topics and groups, in the table `NEEDS`.

The verbs are those of the protocol port (`services.auth.rights`, `services.rpc.needs`):

    send       send; show, cancel, move and fire a timer by key or id
    transact   begin (with send) and end transactions, poll for check-backs
    receive    receive, and end or extend leases, on the topic and the group
    any        show a topic, as QueryRoute does
    admin      changes by operators, on the named topic or group, or on all if none is named; for operations
               on the whole broker, on all topics and all groups
    view       queries by operators, with the same scope, which are the GET operations with `admin` in the
               table, except those for users, rules and tokens (`as_query`)

Names come from the path, the query or the body, which is parsed once for the authorization and the handler. A
name that is not text is treated as missing, and the handler refuses the request. A route without an entry
cannot be served (`admitted`). The token of the administrator requires no rights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from services.auth.errors import Forbidden
from services.auth.rights import WILD, Kind, Need, Verb
from services.broker.halves.transactions import unknown_half_error
from services.broker.spine import verb_properties
from services.broker.timers import recall
from services.live.live_broker import LiveBroker
from services.ops.messages.receiving import parted
from services.ops.requests.callers import Caller, caller_of
from services.ops.requests.operation import Endpoint, Operation
from services.ops.requests.request import said_by
from services.ops.transactions.transactions import id_of

CARRIED: Final = ("cancel", "move", "fire")
"""Fields of a message that name another timer."""


OF_ACCESS: Final = "/api/auth/"
SOME_TOPIC: Final = "TOPIC"
"""Placeholder in a refusal for an undisclosed topic."""


class Asked(NamedTuple):
    """A request of a user, its JSON body (None if it has none), and the broker."""

    request: Request
    said: Any
    live: LiveBroker
    caller: Caller

    def in_path(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def in_query(self, name: str) -> str:
        """Return a query parameter as the handler reads it, or "" if it is missing."""
        return dict(self.request.query_params).get(name, "")

    def in_body(self, *path: str) -> str:
        """Return a text in the body, or "" if it is missing."""
        found = self.said
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return text(found)


NeedsOf = Callable[[Asked], Iterator[Need]]


def text(value: Any) -> str:
    """Return a text, or "" for a value of any other type."""
    return value if isinstance(value, str) else ""


def each(value: Any) -> list[Any]:
    """Return a list, or an empty list for a value of any other type."""
    return value if isinstance(value, list) else []


def on_topic(verb: Verb | None, name: str) -> Need:
    """Return the need of a verb on a topic."""
    return Need(verb, Kind.TOPIC, name)


def on_group(verb: Verb, name: str) -> Need:
    """Return the need of a verb on a group."""
    return Need(verb, Kind.GROUP, name)


VIEW_OF_ALL: Final = (on_topic(Verb.VIEW, WILD), on_group(Verb.VIEW, WILD))
"""Needs of queries about the whole broker or cluster."""
WHOLE_BROKER: Final = (on_topic(Verb.ADMIN, WILD), on_group(Verb.ADMIN, WILD))
"""Needs of changes of the whole broker or cluster."""

# The following needs are shared by several routes.


def no_needs(asked: Asked) -> Iterator[Need]:
    """Yield no needs, so that any authenticated user may call."""
    yield from ()


def whole_broker(asked: Asked) -> Iterator[Need]:
    """Yield admin on all topics and all groups."""
    yield from WHOLE_BROKER


def all_topics(asked: Asked) -> Iterator[Need]:
    """Yield admin on all topics."""
    yield on_topic(Verb.ADMIN, WILD)


def all_groups(asked: Asked) -> Iterator[Need]:
    """Yield admin on all groups."""
    yield on_group(Verb.ADMIN, WILD)


def topic_of_path(verb: Verb | None) -> NeedsOf:
    """Return a function that yields a verb on the topic in the path."""
    return lambda asked: iter((on_topic(verb, asked.in_path("topic")),))


def group_of_path(asked: Asked) -> Iterator[Need]:
    """Yield admin on the group in the path."""
    yield on_group(Verb.ADMIN, asked.in_path("group"))


def queried_topic(asked: Asked) -> Iterator[Need]:
    """Yield admin on the topic in the query, or on all topics."""
    yield on_topic(Verb.ADMIN, asked.in_query("topic") or WILD)


# The following needs belong to single routes.


def new_topic(asked: Asked) -> Iterator[Need]:
    """Yield admin on the new topic."""
    yield on_topic(Verb.ADMIN, asked.in_body("name"))


def new_group(asked: Asked) -> Iterator[Need]:
    """Yield admin on the new group and on its first topic."""
    yield on_group(Verb.ADMIN, asked.in_body("name"))
    if topic := asked.in_body("topic"):
        yield on_topic(Verb.ADMIN, topic)


def sending(asked: Asked) -> Iterator[Need]:
    """Yield send on the topics of all messages and of the timers that they name."""
    said = asked.said if isinstance(asked.said, dict) else {}
    for one in (said, *each(said.get("messages")), *each(said.get("timers"))):
        if isinstance(one, dict):
            yield from topics_sent_to(one)


def topics_sent_to(message: dict[str, Any]) -> Iterator[Need]:
    """Yield send on the topics of a message and of the timers that it names."""
    if topic := text(message.get("topic")):
        yield on_topic(Verb.SEND, topic)
    carried = [message.get(verb) for verb in CARRIED]
    named = [one.get("topic") for one in carried if isinstance(one, dict)]
    if isinstance(properties := message.get("properties"), dict):
        named.append(properties.get(verb_properties.TOPIC))
    yield from (on_topic(Verb.SEND, one) for one in map(text, named) if one)


def beginning(asked: Asked) -> Iterator[Need]:
    """Yield the needs of a send, and transact on the topic of the message."""
    yield from sending(asked)
    yield on_topic(Verb.TRANSACT, asked.in_body("topic"))


def ending(asked: Asked) -> Iterator[Need]:
    """Yield transact on the topic of the transaction in the path."""
    yield of_half(asked, Verb.TRANSACT)


def shown_topic(asked: Asked) -> Iterator[Need]:
    """Yield view on the topic in the path if the user has this right, or else any right on the topic."""
    yield either(asked, on_topic(Verb.VIEW, asked.in_path("topic")), None)


def either(asked: Asked, need: Need, verb: Verb | None) -> Need:
    """Return a need if the user has the right, or else the same need with another verb."""
    return need if asked.caller.may([need]) else need._replace(verb=verb)


def shown_half(asked: Asked) -> Iterator[Need]:
    """Yield view on the topic of the transaction in the path."""
    yield of_half(asked, Verb.VIEW)


def half(asked: Asked) -> Iterator[Need]:
    """Yield admin on the topic of the transaction in the path."""
    yield of_half(asked, Verb.ADMIN)


def of_half(asked: Asked, verb: Verb) -> Need:
    """Return the need on the topic of the transaction in the path, which is found by its id.

    A caller without the right receives the answer for an unknown id (`InvalidTransactionId`). A caller
    without the verb on any topic is refused for every id. Therefore, a caller cannot find topics by guessing
    ids. The list of refusals contains the topic.
    """
    if not asked.caller.may_somewhere(verb, Kind.TOPIC):
        return on_topic(verb, SOME_TOPIC)
    transaction_id = id_of(asked.request)
    view = asked.live.query(asked.live.core.half_views.get_half, transaction_id)
    need = on_topic(verb, view.topic or WILD)
    try:
        asked.caller.ask([need])
    except Forbidden as error:
        raise unknown_half_error(transaction_id) from error
    return need


def asking_back(asked: Asked) -> Iterator[Need]:
    """Yield transact on all topics of a poll for check-backs."""
    topics = each(asked.said.get("topics") if isinstance(asked.said, dict) else None)
    yield from (on_topic(Verb.TRANSACT, one) for one in map(text, topics) if one)


def receiving(asked: Asked) -> Iterator[Need]:
    """Yield receive on the topic and the group."""
    yield on_topic(Verb.RECEIVE, asked.in_body("topic"))
    yield on_group(Verb.RECEIVE, asked.in_path("group"))


def answering(asked: Asked) -> Iterator[Need]:
    """Yield receive on the topics of the receipt handles, and on the group."""
    handles = each(asked.said.get("receipt_handles") if isinstance(asked.said, dict) else None)
    yield from (on_topic(Verb.RECEIVE, parted(one)[0]) for one in map(text, handles))
    yield on_group(Verb.RECEIVE, asked.in_path("group"))


def one_timer(asked: Asked) -> Iterator[Need]:
    """Yield view on the topic of the timer in the query if the user has this right, or else send."""
    for need in timer_named(asked.in_query("topic"), asked.in_query("handle")):
        yield either(asked, need._replace(verb=Verb.VIEW), Verb.SEND)


def timer_verb(asked: Asked) -> Iterator[Need]:
    """Yield send on the topic of the timer in the body."""
    yield from timer_named(asked.in_body("topic"), asked.in_body("handle"))


def timer_named(topic: str, handle: str) -> Iterator[Need]:
    """Yield send on the given topic and on the topic of the recall handle. Raise `InvalidRecallHandle`."""
    if handle:
        yield on_topic(Verb.SEND, recall.decode(handle).topic)
    if topic or not handle:
        yield on_topic(Verb.SEND, topic)


def timers(asked: Asked) -> Iterator[Need]:
    """Yield admin on the topics of a filter in the query."""
    yield filtered(asked.in_query("topic"), asked.in_query("topic-prefix"))


def timer_task(asked: Asked) -> Iterator[Need]:
    """Yield admin on the topics of a filter in the body."""
    yield filtered(asked.in_body("filter", "topic"), asked.in_body("filter", "topic-prefix"))


def filtered(topic: str, prefix: str) -> Need:
    """Return the need of a timer filter on its topic, on its topic prefix, or on all topics."""
    return on_topic(Verb.ADMIN, topic or f"{prefix}{WILD}")


def redriving(asked: Asked) -> Iterator[Need]:
    """Yield admin on the group in the path, and send on the target topic."""
    yield from group_of_path(asked)
    yield from target(asked)


def dead_letter_task(asked: Asked) -> Iterator[Need]:
    """Yield admin on the group in the body, and send on the target topic."""
    yield on_group(Verb.ADMIN, asked.in_body("group"))
    yield from target(asked)


def move_task(asked: Asked) -> Iterator[Need]:
    """Yield admin on the topic in the body from which messages are moved, and send on the target topic."""
    yield on_topic(Verb.ADMIN, asked.in_body("source"))
    yield from target(asked)


def target(asked: Asked) -> Iterator[Need]:
    """Yield send on the target topic of dead letters or messages, if it is given."""
    if topic := asked.in_body("target"):
        yield on_topic(Verb.SEND, topic)


NEEDS: Final[dict[tuple[str, str], NeedsOf]] = {
    ("GET", "/livez"): no_needs,
    ("GET", "/readyz"): no_needs,
    ("GET", "/metrics"): whole_broker,
    ("GET", "/openapi.json"): no_needs,
    ("GET", "/api/topics"): all_topics,
    ("POST", "/api/topics"): new_topic,
    ("GET", "/api/topics/{topic}"): shown_topic,
    ("PUT", "/api/topics/{topic}"): topic_of_path(Verb.ADMIN),
    ("DELETE", "/api/topics/{topic}"): topic_of_path(Verb.ADMIN),
    ("GET", "/api/topics/{topic}/use"): topic_of_path(Verb.ADMIN),
    ("POST", "/api/topics/{topic}/purge"): topic_of_path(Verb.ADMIN),
    ("POST", "/api/topics/{topic}/hold"): topic_of_path(Verb.ADMIN),
    ("POST", "/api/topics/{topic}/release"): topic_of_path(Verb.ADMIN),
    ("GET", "/api/topics/{topic}/messages"): topic_of_path(Verb.ADMIN),
    ("GET", "/api/topics/{topic}/arrivals"): topic_of_path(Verb.ADMIN),
    ("GET", "/api/topics/{topic}/newest"): topic_of_path(Verb.ADMIN),
    ("GET", "/api/topics/{topic}/search"): topic_of_path(Verb.ADMIN),
    ("PUT", "/api/topics/{topic}/check-back"): topic_of_path(Verb.ADMIN),
    ("POST", "/api/topics/{topic}/messages"): topic_of_path(Verb.SEND),
    ("GET", "/api/messages"): queried_topic,
    ("POST", "/api/messages"): sending,
    ("GET", "/api/clock"): no_needs,
    ("POST", "/api/clock/advance"): whole_broker,
    ("GET", "/api/timers"): timers,
    ("POST", "/api/timers"): sending,
    ("GET", "/api/timers/count"): timers,
    ("GET", "/api/timers/histogram"): timers,
    ("GET", "/api/timers/summary"): all_topics,
    ("GET", "/api/timers/damaged"): all_topics,
    ("GET", "/api/timers/one"): one_timer,
    ("POST", "/api/timers/cancel"): timer_verb,
    ("POST", "/api/timers/move"): timer_verb,
    ("POST", "/api/timers/fire"): timer_verb,
    ("GET", "/api/timers/tasks"): all_topics,
    ("POST", "/api/timers/tasks"): timer_task,
    ("GET", "/api/timers/tasks/{id}"): all_topics,
    ("DELETE", "/api/timers/tasks/{id}"): all_topics,
    ("GET", "/api/timers/tasks/{id}/items"): all_topics,
    ("GET", "/api/transactions"): queried_topic,
    ("POST", "/api/transactions"): beginning,
    ("GET", "/api/transactions/summary"): all_topics,
    ("GET", "/api/transactions/log"): queried_topic,
    ("GET", "/api/transactions/producers"): queried_topic,
    ("POST", "/api/transactions/check-backs"): asking_back,
    ("GET", "/api/transactions/{id}"): shown_half,
    ("POST", "/api/transactions/{id}/check"): half,
    ("POST", "/api/transactions/{id}/resolve"): half,
    ("POST", "/api/transactions/{id}/commit"): ending,
    ("POST", "/api/transactions/{id}/rollback"): ending,
    ("POST", "/api/transactions/{id}/unknown"): ending,
    ("GET", "/api/schedules"): all_topics,
    ("POST", "/api/schedules/preview"): no_needs,
    ("GET", "/api/schedules/{name}"): all_topics,
    ("PUT", "/api/schedules/{name}"): all_topics,
    ("DELETE", "/api/schedules/{name}"): all_topics,
    ("POST", "/api/schedules/{name}/pause"): all_topics,
    ("POST", "/api/schedules/{name}/resume"): all_topics,
    ("GET", "/api/explain"): whole_broker,
    ("GET", "/api/groups"): all_groups,
    ("POST", "/api/groups"): new_group,
    ("GET", "/api/groups/{group}"): group_of_path,
    ("PUT", "/api/groups/{group}"): group_of_path,
    ("DELETE", "/api/groups/{group}"): group_of_path,
    ("POST", "/api/groups/{group}/pause"): group_of_path,
    ("POST", "/api/groups/{group}/resume"): group_of_path,
    ("POST", "/api/groups/{group}/reset"): group_of_path,
    ("GET", "/api/groups/{group}/clients"): group_of_path,
    ("POST", "/api/groups/{group}/receive"): receiving,
    ("POST", "/api/groups/{group}/ack"): answering,
    ("POST", "/api/groups/{group}/nack"): answering,
    ("POST", "/api/groups/{group}/extend"): answering,
    ("GET", "/api/dead-letters"): all_groups,
    ("GET", "/api/dead-letters/groups/{group}"): group_of_path,
    ("GET", "/api/dead-letters/groups/{group}/{offset}"): group_of_path,
    ("DELETE", "/api/dead-letters/groups/{group}/{offset}"): group_of_path,
    ("POST", "/api/dead-letters/groups/{group}/{offset}/redrive"): redriving,
    ("GET", "/api/dead-letters/tasks"): all_groups,
    ("POST", "/api/dead-letters/tasks"): dead_letter_task,
    ("GET", "/api/dead-letters/tasks/{id}"): all_groups,
    ("DELETE", "/api/dead-letters/tasks/{id}"): all_groups,
    ("GET", "/api/dead-letters/tasks/{id}/items"): all_groups,
    ("GET", "/api/moves/tasks"): all_topics,
    ("POST", "/api/moves/tasks"): move_task,
    ("GET", "/api/moves/tasks/{id}"): all_topics,
    ("DELETE", "/api/moves/tasks/{id}"): all_topics,
    ("GET", "/api/moves/tasks/{id}/items"): all_topics,
    ("GET", "/api/whoami"): no_needs,
    ("GET", "/api/auth/users"): whole_broker,
    ("POST", "/api/auth/users"): whole_broker,
    ("DELETE", "/api/auth/users/{name}"): whole_broker,
    ("GET", "/api/auth/rules"): whole_broker,
    ("POST", "/api/auth/rules"): whole_broker,
    ("POST", "/api/auth/rules/remove"): whole_broker,
    ("GET", "/api/auth/tokens"): whole_broker,
    ("POST", "/api/auth/tokens"): whole_broker,
    ("DELETE", "/api/auth/tokens/{id}"): whole_broker,
    ("GET", "/api/refused"): whole_broker,
    ("GET", "/api/journal"): whole_broker,
    ("GET", "/api/clients"): whole_broker,
    ("GET", "/api/clients/show"): whole_broker,
    ("POST", "/api/clients/stack"): whole_broker,
    ("POST", "/api/clients/verify"): whole_broker,
    ("POST", "/api/clients/reconnect"): whole_broker,
    ("GET", "/api/cluster"): whole_broker,
    ("POST", "/api/cluster/move"): whole_broker,
    ("POST", "/api/cluster/forget"): whole_broker,
    ("POST", "/api/cluster/set-version"): whole_broker,
}
"""Needs of each route, by method and path."""


def as_query(one: Operation, need: Need) -> Need:
    """Return the need of an operation, with `view` instead of `admin` for a query."""
    is_query = one.method == "GET" and not one.path.startswith(OF_ACCESS)
    return need._replace(verb=Verb.VIEW) if is_query and need.verb is Verb.ADMIN else need


def admitted(one: Operation, handler: Endpoint, live: LiveBroker) -> Endpoint:
    """Wrap a handler with the authorization of its route. The operation must have an entry in the table."""
    needs_of = NEEDS[one.method, one.path]

    async def endpoint(request: Request) -> Response:
        if (caller := caller_of(request)) is not None:
            said = await said_by(request) if one.bodies else None
            # A missing name requires no right, because the handler reports the missing name.
            needs = needs_of(Asked(request, said, live, caller))
            caller.ask(as_query(one, need) for need in needs if need.name)
        return await handler(request)

    return endpoint
