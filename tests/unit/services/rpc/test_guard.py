"""Behind a guard every RPC asks who calls and what it may; what is refused is noted and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.auth.refusals import Refusals
from services.auth.rights import Effect, Kind, Need, Rule, Verb
from services.auth.signature import headers
from services.auth.vault import KEY_BYTES
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.guard import Guard
from services.rpc.metrics.metrics_export import OPENCENSUS, OTLP
from services.rpc.needs import NEEDS
from services.rpc.rpcs import all_rpcs
from services.rpc.serving.service import Streaming
from services.rpc.wire.caller import Caller
from services.rpc.wire.endpoints import Advertised
from services.rpc.wire.statuses import name_of
from tidewheel.errors import TidewheelError

Scenario = Callable[["Watched"], Awaitable[None]]
ORDERS, GROUP = wire.Resource(name="orders"), wire.Resource(name="g")


class Watched:
    """A front behind a guard, with the users `orders` and `carts`."""

    def __init__(self, front: Any) -> None:
        self.front, self.live, self.access = front, front.live, front.live.access
        self.refusals = Refusals(lambda: front.now_ms)
        self.access.set_key_source(lambda may_make: bytes(KEY_BYTES))
        guard = Guard(self.access, self.refusals, lambda: front.now_ms)
        advertised = Advertised("127.0.0.1", 8081, boot=0)
        front.rpcs = all_rpcs(front.live, front.sessions, advertised, guard, metrics=front.measured)
        self.callers: dict[str, Caller] = {}

    async def add(self, *names: str) -> None:
        """Make users."""
        for name in names:
            secret = await self.access.add_user(name, replaces_secret=False)
            date = datetime.fromtimestamp(self.front.now_ms // 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
            authorization = dict(headers(name, secret.encode(), date))["authorization"]
            self.callers[name] = Caller("client", authorization=authorization, date=date, seconds_left=0.6)

    async def allow(
        self, user: str, verb: Verb, kind: Kind, pattern: str, effect: Effect = Effect.ALLOW
    ) -> None:
        """Set a rule."""
        await self.access.set_rules([Rule(user, kind, pattern, verb, effect)])

    async def call(self, name: str, request: Any, caller: Caller | str = "orders") -> Any:
        """Call an RPC and return its status, of a stream the first."""
        caller = self.callers[caller] if isinstance(caller, str) else caller
        if not isinstance(self.front.rpcs[name], Streaming):
            return (await self.front.call(name, request, caller)).status
        replies = [reply async for reply in self.front.stream(name, request, caller)]
        return replies[0].status

    async def send(self, topic: wire.Resource, caller: str = "orders", **system: Any) -> Any:
        """Send a message and return the reply."""
        properties = system.pop("user_properties", {})
        message = wire.Message(
            topic=topic,
            body=b"x",
            user_properties=properties,
            system_properties=wire.SystemProperties(**{"message_id": "M"} | system),
        )
        request = service.SendMessageRequest(messages=[message])
        return await self.front.call("SendMessage", request, self.callers[caller])


@pytest.fixture
def watch(play: Any) -> Callable[[Scenario], None]:
    """Run a scenario behind a guard."""

    def run(scenario: Scenario) -> None:
        async def guarded(front: Any) -> None:
            watched = Watched(front)
            await watched.add("orders", "carts")
            await scenario(watched)

        play(guarded)

    return run


def requests() -> dict[str, Any]:
    """Return a request for each RPC, about topic `orders` and group `g`."""
    message = wire.Message(topic=ORDERS, body=b"x", system_properties=wire.SystemProperties(message_id="M"))
    return {
        "QueryRoute": service.QueryRouteRequest(topic=ORDERS),
        "QueryAssignment": service.QueryAssignmentRequest(topic=ORDERS, group=GROUP),
        "SendMessage": service.SendMessageRequest(messages=[message]),
        "EndTransaction": service.EndTransactionRequest(topic=ORDERS),
        "RecallMessage": service.RecallMessageRequest(topic=ORDERS),
        "ReceiveMessage": service.ReceiveMessageRequest(
            message_queue=wire.MessageQueue(topic=ORDERS), group=GROUP, batch_size=1
        ),
        "AckMessage": service.AckMessageRequest(topic=ORDERS, group=GROUP),
        "ChangeInvisibleDuration": service.ChangeInvisibleDurationRequest(topic=ORDERS, group=GROUP),
        "ForwardMessageToDeadLetterQueue": service.ForwardMessageToDeadLetterQueueRequest(
            topic=ORDERS, group=GROUP
        ),
        "SyncLiteSubscription": service.SyncLiteSubscriptionRequest(topic=ORDERS, group=GROUP),
        "Heartbeat": service.HeartbeatRequest(),
        "NotifyClientTermination": service.NotifyClientTerminationRequest(),
    }


RIGHTS = {
    "QueryRoute": [(Verb.ADMIN, Kind.TOPIC)],
    "QueryAssignment": [(Verb.RECEIVE, Kind.TOPIC)],
    "SendMessage": [(Verb.SEND, Kind.TOPIC)],
    "EndTransaction": [(Verb.TRANSACT, Kind.TOPIC)],
    "RecallMessage": [(Verb.SEND, Kind.TOPIC)],
    "ReceiveMessage": [(Verb.RECEIVE, Kind.TOPIC), (Verb.RECEIVE, Kind.GROUP)],
    "AckMessage": [(Verb.RECEIVE, Kind.TOPIC), (Verb.RECEIVE, Kind.GROUP)],
    "ChangeInvisibleDuration": [(Verb.RECEIVE, Kind.TOPIC), (Verb.RECEIVE, Kind.GROUP)],
    "ForwardMessageToDeadLetterQueue": [(Verb.RECEIVE, Kind.TOPIC), (Verb.RECEIVE, Kind.GROUP)],
    "SyncLiteSubscription": [(Verb.RECEIVE, Kind.TOPIC), (Verb.RECEIVE, Kind.GROUP)],
    "Heartbeat": [],
    "NotifyClientTermination": [],
}
REFUSED = (Code.UNAUTHORIZED, Code.FORBIDDEN)


def test_for_every_rpc_it_is_known_what_it_needs(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        others = {"Telemetry", OTLP, OPENCENSUS}
        assert watched.front.rpcs.keys() == NEEDS.keys() == {*RIGHTS, *others}

    watch(scenario)


@pytest.mark.parametrize("name", RIGHTS)
def test_an_rpc_takes_all_of_its_rights_and_no_others(watch: Any, name: str) -> None:
    request = requests()[name]

    async def scenario(watched: Watched) -> None:
        for number, (verb, kind) in enumerate(RIGHTS[name]):
            status = await watched.call(name, request)
            assert status.code == Code.FORBIDDEN, number
            await watched.allow("orders", verb, kind, "orders" if kind is Kind.TOPIC else "g")
        assert (await watched.call(name, request)).code not in REFUSED
        assert watched.refusals.counts["no right"] == len(RIGHTS[name])

    watch(scenario)


@pytest.mark.parametrize("name", RIGHTS)
def test_nobody_calls_without_saying_who_it_is(watch: Any, name: str) -> None:
    async def scenario(watched: Watched) -> None:
        await watched.allow("orders", Verb.SEND, Kind.TOPIC, "*")
        known = watched.callers["orders"]
        ciphered = replace(known, authorization=known.authorization.replace("=orders,", "=carts,"))
        for caller, reason in (
            (replace(known, authorization=""), "unsigned"),
            (replace(known, authorization="Bearer x"), "malformed"),
            (replace(known, authorization=known.authorization.replace("=orders", "=nobody")), "unknown key"),
            (ciphered, "wrong signature"),
            (replace(known, date="20200101T000000Z"), "wrong signature"),
        ):
            status = await watched.call(name, requests()[name], caller)
            assert status.code == Code.UNAUTHORIZED
            assert status.message.startswith("TW-181 ")
            assert watched.refusals.latest(1)[0].reason == reason
        assert watched.live.core.topics.all() == []
        assert not list(watched.front.sessions)

    watch(scenario)


def test_a_stream_is_refused_to_whoever_is_not_known(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        stranger = replace(watched.callers["orders"], authorization="")
        replies = [reply async for reply in watched.front.stream("Telemetry", None, stranger)]
        assert [reply.status.code for reply in replies] == [Code.UNAUTHORIZED]

    watch(scenario)


def test_old_and_early_dates_are_told_apart(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        for by_ms, reason in (
            (7 * 60_000, "replayed"),
            (-14 * 60_000, "skewed"),
            (20 * 3_600_000, "replayed"),
        ):
            watched.front.now_ms += by_ms
            assert (await watched.call("Heartbeat", service.HeartbeatRequest())).code == Code.UNAUTHORIZED
            assert watched.refusals.latest(1)[0].reason == reason

    watch(scenario)


def test_a_removed_user_and_an_old_secret_are_refused_at_once(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        beat = partial(watched.call, "Heartbeat", service.HeartbeatRequest())
        assert (await beat()).code == Code.OK
        await watched.access.add_user("orders", replaces_secret=True)
        assert (await beat()).code == Code.UNAUTHORIZED
        assert (await beat("carts")).code == Code.OK
        await watched.access.remove_user("carts")
        assert (await beat("carts")).code == Code.UNAUTHORIZED
        assert watched.refusals.counts == {"wrong signature": 1, "unknown key": 1}

    watch(scenario)


def test_a_namespace_is_part_of_the_name_however_it_is_split(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        await watched.allow("orders", Verb.SEND, Kind.TOPIC, "ours%*")
        await watched.allow("orders", Verb.SEND, Kind.TOPIC, "ours%secret%*", Effect.DENY)
        for namespace, name, code in (
            ("ours", "t", Code.OK),
            ("", "ours%t", Code.OK),
            ("", "t", Code.FORBIDDEN),
            ("theirs", "t", Code.FORBIDDEN),
            ("theirs%ours", "t", Code.ILLEGAL_TOPIC),
            ("our", "s%t", Code.FORBIDDEN),
            ("ours", "secret%t", Code.FORBIDDEN),
            ("ours%secret", "t", Code.ILLEGAL_TOPIC),
        ):
            reply = await watched.send(wire.Resource(resource_namespace=namespace, name=name))
            assert reply.status.code == code, (namespace, name)
        assert [topic.name for topic in watched.live.core.topics.all()] == ["ours%t"]

    watch(scenario)


def test_a_request_is_refused_as_a_whole_and_stores_nothing(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        await watched.allow("orders", Verb.SEND, Kind.TOPIC, "orders")
        request = requests()["SendMessage"]
        other = request.messages.add()
        other.CopyFrom(request.messages[0])
        other.topic.name = "carts"
        assert (await watched.call("SendMessage", request)).code == Code.FORBIDDEN
        assert watched.live.core.topics.all() == []

    watch(scenario)


def test_a_verb_on_a_timer_takes_the_right_to_its_topic(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        await watched.allow("orders", Verb.SEND, Kind.TOPIC, "orders")
        names = {"TW_TIMER_CANCEL": "k", "TW_TIMER_TOPIC": "carts"}
        refused = await watched.send(ORDERS, user_properties=names)
        assert refused.status.code == Code.FORBIDDEN
        assert "'carts'" in refused.status.message
        await watched.allow("orders", Verb.SEND, Kind.TOPIC, "carts")
        assert (await watched.send(ORDERS, user_properties=names)).status.code == Code.OK

    watch(scenario)


def test_a_half_takes_the_right_to_end_it_and_is_shown_only_to_those_who_have_it(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        for user in ("orders", "carts"):
            await watched.allow(user, Verb.SEND, Kind.TOPIC, "orders")
        assert (await watched.send(ORDERS, message_type="TRANSACTION")).status.code == Code.FORBIDDEN
        await watched.allow("orders", Verb.TRANSACT, Kind.TOPIC, "orders")
        heard = {user: await listen(watched, user) for user in ("carts", "orders")}
        [half] = (await watched.send(ORDERS, message_type="TRANSACTION")).entries
        assert half.status.code == Code.OK
        watched.front.pass_time(10_000)
        asked = await anext(heard["orders"])
        assert asked.recover_orphaned_transaction_command.transaction_id == half.transaction_id
        for stream in heard.values():
            await stream.aclose()

    watch(scenario)


async def listen(watched: Watched, user: str) -> Any:
    """Open a user's stream, declare topic `orders`, and return it behind the answer to that."""
    settings = wire.Settings(client_type=wire.ClientType.PRODUCER)
    settings.publishing.topics.add().CopyFrom(ORDERS)
    ended = asyncio.Event()

    async def commands() -> Any:
        yield service.TelemetryCommand(settings=settings)
        await ended.wait()

    stream = watched.front.stream("Telemetry", commands(), watched.callers[user])
    assert (await anext(stream)).HasField("settings")
    return stream


def test_nobody_ends_the_client_of_another_user_by_its_id(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        for kind, name in ((Kind.TOPIC, "orders"), (Kind.GROUP, "g")):
            await watched.allow("orders", Verb.RECEIVE, kind, name)
        await watched.allow("carts", Verb.SEND, Kind.TOPIC, "orders")
        await watched.send(ORDERS, "carts")
        request = requests()["ReceiveMessage"]
        request.auto_renew = True
        assert (await watched.call("ReceiveMessage", request)).code == Code.OK
        goodbye = service.NotifyClientTerminationRequest()
        assert (await watched.call("NotifyClientTermination", goodbye, "carts")).code == Code.OK
        [client] = watched.front.sessions
        assert (client.client_id, client.user) == ("orders/client", "orders")
        assert watched.live.core.groups.leased_counts() == {("orders", "g"): 1}

    watch(scenario)


def test_only_a_client_that_may_receive_holds_a_filter_by_its_settings(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        watched.access.enable_authentication()
        await watched.allow("carts", Verb.SEND, Kind.TOPIC, "orders")
        for kind in Kind:
            await watched.allow("orders", Verb.RECEIVE, kind, "*")
        await watched.send(ORDERS, "carts")
        assert (await watched.call("ReceiveMessage", requests()["ReceiveMessage"])).code == Code.OK
        settings = wire.Settings(client_type=wire.ClientType.SIMPLE_CONSUMER)
        settings.subscription.group.CopyFrom(GROUP)
        settings.subscription.subscriptions.add().topic.CopyFrom(ORDERS)
        for user in ("carts", "orders"):
            caller = replace(watched.callers[user], client_id="another")
            stream = watched.front.stream("Telemetry", said_once(settings), caller)
            assert (await anext(stream)).HasField("settings")
            await stream.aclose()
        [known] = watched.live.core.group_views.view_group("g").filters
        assert known.clients == ("orders/client", "orders/another")

    watch(scenario)


async def said_once(settings: wire.Settings) -> Any:
    """Say settings, and no more."""
    yield service.TelemetryCommand(settings=settings)
    await asyncio.Event().wait()


def test_a_receive_that_waited_while_its_right_was_taken_away_gets_nothing(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        await watched.allow("carts", Verb.SEND, Kind.TOPIC, "orders")
        for kind in Kind:
            await watched.allow("orders", Verb.RECEIVE, kind, "*")
        await watched.send(ORDERS, "carts")
        patient = replace(watched.callers["orders"], seconds_left=20)
        assert (await watched.call("ReceiveMessage", requests()["ReceiveMessage"], patient)).code == Code.OK
        waiting = asyncio.create_task(watched.call("ReceiveMessage", requests()["ReceiveMessage"], patient))
        while not any(session.receives for session in watched.front.sessions):
            await asyncio.sleep(0)
        await watched.allow("orders", Verb.RECEIVE, Kind.GROUP, "*", Effect.DENY)
        await watched.send(ORDERS, "carts", message_id="M2")
        assert (await waiting).code == Code.FORBIDDEN
        assert sum(watched.live.core.groups.leased_counts().values()) == 1, "the second was given back"

    watch(scenario)


@pytest.mark.parametrize("how", ["removed", "another secret"])
def test_whoever_has_no_valid_secret_any_more_loses_its_streams_and_leases(watch: Any, how: str) -> None:
    async def scenario(watched: Watched) -> None:
        await watched.allow("orders", Verb.SEND, Kind.TOPIC, "orders")
        for kind in Kind:
            await watched.allow("orders", Verb.RECEIVE, kind, "*")
        streams = {user: await listen(watched, user) for user in ("orders", "carts")}
        await watched.send(ORDERS)
        request = requests()["ReceiveMessage"]
        request.auto_renew = True
        assert (await watched.call("ReceiveMessage", request)).code == Code.OK
        if how == "removed":
            await watched.access.remove_user("orders")
        else:
            await watched.access.add_user("orders", replaces_secret=True)
        assert [reply async for reply in streams["orders"]] == []
        assert [session.user for session in watched.front.sessions] == ["carts"]
        watched.front.pass_time(1_000)
        assert sum(watched.live.core.groups.leased_counts().values()) == 0
        await streams["carts"].aclose()

    watch(scenario)


def test_what_was_signed_is_in_no_refusal(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        known = watched.callers["orders"]
        signature = known.authorization.rpartition("=")[2]
        await watched.call("Heartbeat", service.HeartbeatRequest(), replace(known, date="20200101T000000Z"))
        await watched.call("QueryRoute", requests()["QueryRoute"])
        assert watched.refusals.counts == {"wrong signature": 1, "no right": 1}
        assert signature not in repr(watched.refusals.latest()) + repr(known)

    watch(scenario)


namespaces, names = st.text("ab|", max_size=3), st.text("ab%|", min_size=1, max_size=3)


@given(st.lists(st.tuples(namespaces, names), max_size=5))
def test_every_message_of_a_request_is_judged_by_the_name_that_is_stored(given_names: Any) -> None:
    request = service.SendMessageRequest(
        messages=[
            wire.Message(topic=wire.Resource(resource_namespace=namespace, name=name))
            for namespace, name in given_names
        ]
    )
    expected = [
        Need(Verb.SEND, Kind.TOPIC, f"{namespace}%{name}" if namespace else name)
        for namespace, name in given_names
    ]
    assert list(NEEDS["SendMessage"](request)) == expected


def test_acknowledgements_of_one_turn_are_let_through_each_by_itself(watch: Any) -> None:
    async def scenario(watched: Watched) -> None:
        await watched.allow("carts", Verb.RECEIVE, Kind.TOPIC, "orders")
        await watched.allow("carts", Verb.RECEIVE, Kind.GROUP, "g")
        rpc = watched.front.rpcs["AckMessage"]
        entry = service.AckMessageEntry(message_id="M", receipt_handle="nonsense")
        request = service.AckMessageRequest(group=GROUP, topic=ORDERS, entries=[entry])
        unsigned = replace(watched.callers["carts"], authorization="")
        callers = [watched.callers["orders"], watched.callers["carts"], unsigned, watched.callers["carts"]]
        answers = rpc.decide([(request, caller) for caller in callers])
        codes = [
            name_of(type(answer)) if isinstance(answer, TidewheelError) else answer.code for answer in answers
        ]
        assert codes == ["FORBIDDEN", "INVALID_RECEIPT_HANDLE", "UNAUTHORIZED", "INVALID_RECEIPT_HANDLE"]

    watch(scenario)
