"""A node's port while others lead, over real sockets: what a client says, and what the next leader knows."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

import grpc
import pytest
from grpc import aio

from commitlog import limits
from commitlog.records.message import MessageType
from services.auth.refusals import Refusals
from services.auth.rights import Need
from services.auth.signature import headers
from services.broker.spine.settings import BrokerSettings
from services.broker.spine.values import Subscriber
from services.cluster.election.reach import LeaderReachability
from services.cluster.errors import EngineTrouble
from services.cluster.forwarding import calls as forwarding
from services.cluster.forwarding import channel_pool, connected_clients
from services.cluster.forwarding.calls import FORWARDED, CallForwarder
from services.cluster.forwarding.origin_signatures import ARRIVAL, verify_origin
from services.cluster.forwarding.switch import ServiceSwitch
from services.cluster.identity import Member
from services.cluster.node import ClusterNode
from services.cluster.peers import Identity
from services.front.admission import Limits
from services.front.connection import Connection, ServerState
from services.front.grpc_calls import CallReceived
from services.front.grpc_wire import Refused, Status
from services.front.header_fields import Head
from services.front.port import Port
from services.live.live_broker import LiveBroker
from services.process.event_loop import new_event_loop
from services.rpc.clients.session import Session
from services.rpc.clients.sessions import Sessions
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import ClientType, Code
from services.rpc.guard import Guard
from services.rpc.rpcs import all_rpcs
from services.rpc.serving.service import NAME
from services.rpc.serving.serving import Serving
from services.rpc.serving.turns import CallScheduler
from services.rpc.wire.endpoints import Advertised
from tests.memory_disk import MemoryDisk

SCENARIO_SECONDS: Final = 60
SETTINGS: Final = BrokerSettings(segment_bytes=limits.SEGMENT_BYTES_SMALL)
SECRET: Final = b"a secret"
KEY: Final = bytes(32)
MINE: Final = (("x-mq-client-id", "c"), ("x-mq-language", "PYTHON"))
HOUR_MS: Final = 3_600_000
END: Final = cast(Any, aio).EOF


def wall_clock_ms() -> int:
    """Return wall time in whole milliseconds."""
    return time.time_ns() // 1_000_000


class Access:
    """Users of all nodes: one, who may do everything, as long as its secret holds."""

    def __init__(self) -> None:
        self.secrets = {"shop": SECRET}

    def secret_of(self, user: str) -> bytes | None:
        return self.secrets.get(user)

    def allows(self, user: str, need: Need) -> bool:
        return user in self.secrets


class LeaderTerm:
    """Who leads, as all nodes have read."""

    def __init__(self) -> None:
        self.epoch, self.leader = 1, cast("Machine | None", None)
        self._changed = asyncio.Event()

    def say(self, leader: Machine | None) -> None:
        """Let a node lead from now on, or nobody."""
        self.epoch += leader is not None
        self.leader = leader
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()


class Node:
    """What a node's port knows of its cluster."""

    def __init__(self, lead: LeaderTerm, me: Member) -> None:
        self._lead, self.me = lead, me
        self.actions, self.election = (
            SimpleNamespace(identity=Identity()),
            SimpleNamespace(reachability=LeaderReachability()),
        )

    async def wait_for_leader(self, seconds: float) -> tuple[int, Member]:
        async with asyncio.timeout(seconds):
            await self._lead.until(lambda: self._lead.leader is not None)
        assert self._lead.leader is not None
        return self._lead.epoch, self._lead.leader.member

    async def wait_for_other_epoch(self, epoch: int) -> None:
        await self._lead.until(lambda: self._lead.epoch != epoch)


class Machine:
    """A node's port, its client's channel, and its broker while it leads."""

    def __init__(self, lead: LeaderTerm, name: str, world: World) -> None:
        self.world = world
        self.listening = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.member = Member(name, address, "http://h")
        node = cast(ClusterNode, Node(lead, self.member))
        self.forwarding = CallForwarder(node, KEY, world.clock)
        self.switch = ServiceSwitch(self.forwarding)
        self.port = Port(ServerState(self.switch), Limits(), "http://h", lambda *_: None, None)
        self.port.start(self.listening)
        self.channel = aio.insecure_channel(address)
        self.lives: list[LiveBroker] = []
        self.leads()

    def leads(self) -> None:
        """Make a broker that this node serves once it leads."""
        loop = asyncio.get_running_loop()
        self.live = LiveBroker(MemoryDisk(), SETTINGS, wall_clock_ms, loop.call_later, self.world.workers)
        self.lives.append(self.live)
        self.sessions = Sessions(wall_clock_ms)
        refusals = Refusals(self.world.clock)
        guard = Guard(cast(Any, self.world.access), refusals, self.world.clock) if self.world.asks else None
        rpcs = all_rpcs(self.live, self.sessions, Advertised("127.0.0.1", 1, boot=0), guard)
        self.serving = Serving(rpcs, CallScheduler(self.live), lambda *_: None, partial(verify_origin, KEY))

    async def close(self) -> None:
        self.live.receivers.close()
        self.sessions.close()
        self.forwarding.end_telemetry()
        await self.port.shut_down(1.0)
        await self.channel.close(None)
        await self.forwarding.close()
        for live in self.lives:  # each lead has one, whose timers go on until it is closed
            await live.close()


class World:
    """Three nodes, of which one leads."""

    def __init__(self, workers: ThreadPoolExecutor, *, asks: bool) -> None:
        self.workers, self.asks = workers, asks
        self.began_ms, self.later_ms, self.access = wall_clock_ms(), 0, Access()
        self.leader_term = LeaderTerm()
        self.a, self.b, self.c = (Machine(self.leader_term, name, self) for name in "abc")

    def clock(self) -> int:
        """Return real time, or later: only what is signed is held against it."""
        return wall_clock_ms() + self.later_ms

    async def follow(self, leader: Machine) -> None:
        """Let a node lead; who led before steps down."""
        before = self.leader_term.leader
        if before is not None:
            before.switch.forward()
            before.live.receivers.close()
            before.sessions.close()
            self.leader_term.say(None)
            before.leads()
        for topic, kind in (("t", MessageType.TRANSACTION), ("lite", MessageType.LITE)):
            await leader.live.call(leader.live.core.topics.create, topic, kind, 1)
        leader.switch.serve(leader.serving)
        self.leader_term.say(leader)


def run(scenario: Callable[[World], Coroutine[Any, Any, None]], *, asks: bool = False) -> None:
    """Play a scenario in a world of its own."""

    async def play() -> None:
        async with a_world(asks) as world:
            await asyncio.wait_for(scenario(world), SCENARIO_SECONDS)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(play())


@asynccontextmanager
async def a_world(asks: bool) -> AsyncIterator[World]:
    with ThreadPoolExecutor(4) as workers:
        world = World(workers, asks=asks)
        try:
            yield world
        finally:
            for machine in (world.a, world.b, world.c):
                await machine.close()


async def until(holds: Callable[..., Any], *of_these: Any) -> None:
    """Wait until something holds."""
    while not holds(*of_these):
        await asyncio.sleep(0.005)


def talk(machine: Machine, metadata: tuple[tuple[str, str], ...] = MINE) -> Any:
    """Open a client's Telemetry stream at a node."""
    return machine.channel.stream_stream(
        f"/{NAME}/Telemetry",
        lambda one: one.SerializeToString(),
        service.TelemetryCommand.FromString,
    )(None, metadata=metadata)


def settings(*topics: str, group: str = "") -> service.TelemetryCommand:
    """What a producer of these topics, or a consumer of the group, says of itself."""
    told = wire.Settings(client_type=ClientType.LITE_PUSH_CONSUMER if group else ClientType.PRODUCER)
    if group:
        told.subscription.group.name = group
    else:
        told.publishing.topics.extend(wire.Resource(name=one) for one in topics)
    return service.TelemetryCommand(settings=told)


async def ask(machine: Machine, name: str, request: Any, metadata: tuple[tuple[str, str], ...] = MINE) -> Any:
    """Call a node once; return what it says."""
    reply = getattr(service, type(request).__name__.replace("Request", "Response"))
    call = machine.channel.unary_unary(
        f"/{NAME}/{name}", lambda one: one.SerializeToString(), reply.FromString
    )
    return await call(request, metadata=metadata, timeout=SCENARIO_SECONDS)


def half(topic: str) -> service.SendMessageRequest:
    """A message that may still be rolled back."""
    properties = wire.SystemProperties(message_id="M", message_type=wire.MessageType.TRANSACTION)
    resource = wire.Resource(name=topic)
    return service.SendMessageRequest(
        messages=[wire.Message(topic=resource, body=b"x", system_properties=properties)]
    )


def sync(action: str, *lite_topics: str, group: str = "g") -> service.SyncLiteSubscriptionRequest:
    """What a client says of its lite topics."""
    return service.SyncLiteSubscriptionRequest(
        action=action,
        topic=wire.Resource(name="lite"),
        group=wire.Resource(name=group),
        lite_topic_set=lite_topics,
    )


def declared_by(session: Session) -> list[str]:
    """The topics that a client declared, as a leader keeps that."""
    return [] if session.described is None else [one.name for one in session.described.publishing.topics]


def producers(machine: Machine) -> list[tuple[str, str, bool]]:
    """Who may be asked by a leader how its transactions ended."""
    return [(one.topic, one.client_id, one.is_connected) for one in machine.live.transactions.producers("")]


@pytest.mark.parametrize("begins_at", ["the leader", "another node"])
def test_the_next_leader_knows_who_talks_to_a_node_and_can_ask_it(begins_at: str) -> None:
    async def scenario(world: World) -> None:
        await world.follow(world.a)
        here = world.a if begins_at == "the leader" else world.b
        call = talk(here)
        await call.write(settings("declared"))
        assert (await call.read()).settings.publishing.max_body_size
        assert (await ask(here, "SendMessage", half("t"))).status.code == Code.OK
        answer = service.TelemetryCommand(thread_stack_trace=service.ThreadStackTrace(nonce="tidewheel-1"))
        await call.write(answer)
        assert producers(world.a) == [("declared", "c", True), ("t", "c", True)]
        for leader in (world.c, world.a, world.b):
            await world.follow(leader)
            await until(lambda one: len(producers(one)) == 2, leader)
            assert producers(leader) == [("declared", "c", True), ("t", "c", True)]
            session = leader.sessions.find("c")
            assert session is not None
            assert len(session.streams) == 1
            await until(lambda one: declared_by(one) == ["declared"], session)
            session.streams[-1].write(
                service.TelemetryCommand(
                    print_thread_stack_trace_command=service.PrintThreadStackTraceCommand(nonce="n")
                )
            )
            while not (said := await call.read()).HasField("print_thread_stack_trace_command"):
                assert said.HasField("settings")
        call.cancel()
        await until(lambda: not world.b.sessions.find("c").streams)  # type: ignore[union-attr]

    run(scenario)


def test_a_leader_counts_the_clients_of_other_nodes_by_their_own_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CLIENTS_PER_CONNECTION_MAX", 3)

    async def scenario(world: World) -> None:
        await world.follow(world.a)
        for number in range(3):
            call = talk(world.b, (("x-mq-client-id", f"c{number}"),))
            await call.write(settings("t"))
            await call.read()
        refused = await ask(world.b, "Heartbeat", service.HeartbeatRequest(), (("x-mq-client-id", "d"),))
        assert refused.status.code == Code.TOO_MANY_REQUESTS
        assert "its connection (127.0.0.1) has 3 clients" in refused.status.message
        async with aio.insecure_channel(
            world.b.member.listen, [("grpc.use_local_subchannel_pool", 1)]
        ) as other:
            world.b.channel, mine = other, world.b.channel
            taken = await ask(world.b, "Heartbeat", service.HeartbeatRequest(), (("x-mq-client-id", "d"),))
            world.b.channel = mine
        assert taken.status.code == Code.OK

    run(scenario)


def test_who_has_hung_up_is_told_to_nobody() -> None:
    async def scenario(world: World) -> None:
        await world.follow(world.a)
        stays, goes = talk(world.b, (("x-mq-client-id", "stays"),)), talk(world.b)
        for call in (stays, goes):
            await call.write(settings("t"))
            await call.read()
        goes.cancel()
        await until(lambda: world.b.forwarding.connected_clients.find("c") is None)
        await world.follow(world.c)
        await until(lambda: producers(world.c))
        assert [one.client_id for one in world.c.sessions] == ["stays"]
        stays.cancel()
        await until(lambda: world.b.forwarding.connected_clients.find("stays") is None)

    run(scenario)


@pytest.mark.parametrize("at", ["the leader", "another node"])
def test_a_stream_that_the_leader_ends_is_over(at: str) -> None:
    async def scenario(world: World) -> None:
        await world.follow(world.a)
        here = world.a if at == "the leader" else world.b
        call = talk(here)
        await call.write(settings("t"))
        await call.read()
        gone = await ask(here, "NotifyClientTermination", service.NotifyClientTerminationRequest())
        assert gone.status.code == Code.OK
        assert await call.read() == END
        assert await call.code() == grpc.StatusCode.OK

    run(scenario)


@pytest.mark.parametrize("at", ["the leader", "another node"])
def test_a_client_that_says_all_is_answered_and_over(at: str) -> None:
    async def scenario(world: World) -> None:
        await world.follow(world.a)
        call = talk(world.a if at == "the leader" else world.b)
        await call.write(settings("t"))
        await call.done_writing()
        assert (await call.read()).HasField("settings")
        assert await call.read() == END

    run(scenario)


@pytest.mark.parametrize("at", ["the leader", "another node"])
def test_the_next_leader_knows_lite_topics_but_those_that_the_client_lost(at: str) -> None:
    async def scenario(world: World) -> None:
        await world.follow(world.a)
        here = world.a if at == "the leader" else world.b
        java = (("x-mq-client-id", "c"), ("x-mq-language", "JAVA"))
        call = talk(here, java)
        await call.write(settings(group="g"))
        await call.read()
        for request in (
            sync("COMPLETE_ADD", "one", "two"),
            sync("PARTIAL_ADD", "three", "four"),
            sync("PARTIAL_REMOVE", "two"),
            sync("COMPLETE_ADD", "five", group="gone"),
            sync("COMPLETE_REMOVE", group="gone"),
        ):
            assert (await ask(here, "SyncLiteSubscription", request, java)).status.code == Code.OK
        too_long = sync("PARTIAL_ADD", "x" * 300)
        assert (await ask(here, "SyncLiteSubscription", too_long, java)).status.code != Code.OK
        lost = service.NotifyUnsubscribeLiteCommand(lite_topic="four")
        session = world.a.sessions.find("c")
        assert session is not None
        session.streams[-1].write(service.TelemetryCommand(notify_unsubscribe_lite_command=lost))
        while not (await call.read()).HasField("notify_unsubscribe_lite_command"):
            pass
        for leader in (world.c, world.a):
            await world.follow(leader)
            lite, who = leader.live.core.lite, Subscriber("g", "lite", "c")
            await until(lite.lite_topics_of, who)
            assert lite.lite_topics_of(who) == ["one", "three"]
            assert not lite.lite_topics_of(replace_group(who, "gone"))
        call.cancel()
        await until(lambda: here.forwarding.connected_clients.find("c") is None)
        assert not here.forwarding.connected_clients._lite_bytes

    run(scenario)


@pytest.mark.parametrize("at", ["the leader", "another node"])
def test_a_subscription_that_the_next_leader_refuses_holds_up_no_other(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: World) -> None:
        await world.follow(world.a)
        here = world.c if at == "the leader" else world.b
        call = talk(here)
        await call.write(settings(group="g"))
        await call.read()
        for group in ("one", "other"):
            request = sync("COMPLETE_ADD", "x", group=group)
            assert (await ask(here, "SyncLiteSubscription", request)).status.code == Code.OK
        kept = here.forwarding.connected_clients.find("c")
        assert kept is not None
        for key, lite_topics in kept.lite.items():  # the first and the last alike
            refused = key, dict(lite_topics)
            lite_topics["x" * 300] = None
            await world.follow(world.c if world.leader_term.leader is world.a else world.a)
            lite = cast(Machine, world.leader_term.leader).live.core.lite
            whole = next(one for one in kept.lite if one != key)
            who = Subscriber(wire.Resource.FromString(whole[1]).name, "lite", "c")
            await until(lite.lite_topics_of, who)
            kept.lite[key] = refused[1]
        call.cancel()

    monkeypatch.setattr(forwarding, "REPEAT_SECONDS", 3_600.0)
    run(scenario)


def test_what_is_no_subscription_is_refused_by_leader_and_node() -> None:
    async def scenario(world: World) -> None:
        await world.follow(world.a)
        for here, more in ((world.a, ()), (world.b, ()), (world.a, ((FORWARDED, "1"),))):
            call = here.channel.unary_unary(f"/{NAME}/SyncLiteSubscription", None, None)
            with pytest.raises(aio.AioRpcError, match="The request is none") as raised:
                await call(b"\xff", metadata=(*MINE, *more), timeout=SCENARIO_SECONDS)
            assert raised.value.code() == grpc.StatusCode.INTERNAL

    run(scenario)


def replace_group(who: Subscriber, group: str) -> Subscriber:
    """The same client in another group."""
    return Subscriber(group, who.topic, who.client_id)


def signed(began_ms: int) -> tuple[tuple[str, str], ...]:
    """What the client of a user sends with its calls."""
    date = datetime.fromtimestamp(began_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    return (*MINE, *headers("shop", SECRET, date))


@pytest.mark.parametrize("at", ["the leader", "another node"])
def test_what_was_signed_long_ago_holds_while_the_stream_stands(at: str) -> None:
    async def scenario(world: World) -> None:
        await world.follow(world.a)
        here = world.a if at == "the leader" else world.b
        call = talk(here, signed(world.began_ms))
        await call.write(settings(group="g"))
        await call.read()
        added = await ask(here, "SyncLiteSubscription", sync("COMPLETE_ADD", "one"), signed(world.began_ms))
        assert added.status.code == Code.OK
        world.later_ms = 20 * HOUR_MS
        for leader in (world.c, world.b, world.a):
            await world.follow(leader)
            lite, who = leader.live.core.lite, Subscriber("g", "lite", "shop/c")
            await until(lite.lite_topics_of, who)
            assert [one.client_id for one in leader.sessions] == ["shop/c"]
        late = talk(here, signed(world.began_ms))
        assert (await late.read()).status.code == Code.UNAUTHORIZED
        world.access.secrets["shop"] = b"another"
        await world.follow(world.c)
        while not (said := await call.read()).HasField("status") or said.status.code == Code.OK:
            pass
        assert said.status.code == Code.UNAUTHORIZED
        assert await call.read() == END, "who is refused is told once"

    run(scenario, asks=True)


def test_nobody_but_a_node_can_vouch_for_a_call() -> None:
    async def scenario(world: World) -> None:
        await world.follow(world.a)
        world.later_ms = 20 * HOUR_MS
        no_proof = f"{world.began_ms}.{world.clock()}.{'0' * 64}"
        for value in ("", "1.2", no_proof, "a.b.c", f"{world.began_ms}..", "1.1.1.1"):
            call = talk(world.a, (*signed(world.began_ms), (FORWARDED, "2"), (ARRIVAL, value)))
            assert (await call.read()).status.code == Code.UNAUTHORIZED
        assert not list(world.a.sessions)

    run(scenario, asks=True)


def test_more_calls_than_a_connection_takes_go_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        monkeypatch.setattr(channel_pool, "CALLS_MAX", 3)
        await world.follow(world.a)
        calls = [talk(world.b, (("x-mq-client-id", f"c{number}"),)) for number in range(10)]
        for call in calls:
            await call.write(settings("t"))
            await call.read()
        assert (await ask(world.b, "SendMessage", half("t"))).status.code == Code.OK
        (opened,) = world.b.forwarding._channels._channels.values()
        assert [one.calls for one in opened] == [3, 3, 3, 1]
        for call in calls:
            call.cancel()
        await until(lambda: not any(one.calls for one in opened))

    run(scenario)


def test_a_node_that_stops_ends_its_streams() -> None:
    async def scenario(world: World) -> None:
        await world.follow(world.a)
        calls = [talk(here) for here in (world.a, world.b)]
        for call, here in zip(calls, (world.a, world.b), strict=True):
            await call.write(settings("t"))
            await call.read()
            here.forwarding.end_telemetry()
            assert await call.read() == END
            assert here.forwarding.connected_clients.find("c") is None

    run(scenario)


class Answered:
    """A connection, as far as who answers a call of one message needs it."""

    host, number, is_encrypted, is_authenticated = "127.0.0.1", 1, False, False

    def __init__(self) -> None:
        self.callers: dict[int, Any] = {}
        self.answer: asyncio.Future[bytes | Status] = asyncio.get_running_loop().create_future()

    def reply(self, stream_id: int, message: bytes) -> None:
        self.answer.set_result(message)

    def end(self, stream_id: int, status: Status = Status.OK, text: str = "") -> None:
        self.answer.set_result(status)

    def start(self, stream_id: int, serving: Coroutine[Any, Any, None]) -> None:
        self.serving = asyncio.ensure_future(serving)


def test_a_call_whose_message_comes_when_the_lead_has_moved_is_answered() -> None:
    """Its method was looked up when its head came, by who was to answer then."""

    async def scenario(world: World) -> None:
        await world.follow(world.a)
        for leader in (world.b, world.c):
            for path, answer in ((f"/{NAME}/SendMessage", None), ("/none/Such", Status.UNIMPLEMENTED)):
                method = world.b.switch.method_of(f"/{NAME}/SendMessage")
                assert method is not None
                await world.follow(leader)
                connection, head = Answered(), Head({":path": path, "x-mq-client-id": "c"}, {})
                received = CallReceived(1, method, head, half("t").SerializeToString())
                world.b.switch.call_received(cast(Connection, connection), received)
                told = await connection.answer
                if isinstance(told, bytes):
                    assert service.SendMessageResponse.FromString(told).status.code == Code.OK
                else:
                    assert told is answer
                await world.follow(world.a if leader is world.b else world.b)

    run(scenario)


def test_a_refusal_behind_an_attempt_without_an_answer_says_that_nobody_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka kill round, seed 3009: sends that a leader had stored were refused by the next, and came."""
    taken, asked_of = [], forwarding._call_leader

    async def scenario(world: World) -> None:
        async def last_answer_is_lost(*call: Any) -> bytes:
            reply = await asked_of(*call)
            if world.leader_term.leader is not world.a:
                return reply
            taken.append(service.SendMessageResponse.FromString(reply).status.code)
            await world.follow(world.c)
            world.c.live.refuse_new_messages(EngineTrouble("Kafka has lost its quorum."))
            return cast(bytes, await asyncio.get_running_loop().create_future())

        monkeypatch.setattr(forwarding, "_call_leader", last_answer_is_lost)
        await world.follow(world.a)
        with pytest.raises(aio.AioRpcError, match=r"Nobody knows.*has lost its quorum") as told:
            await ask(world.b, "SendMessage", half("t"))
        assert told.value.code() is grpc.StatusCode.UNAVAILABLE
        assert taken == [Code.OK]
        assert (await ask(world.b, "SendMessage", half("t"))).status.code == Code.TOO_MANY_REQUESTS

    run(scenario)


def test_every_call_of_one_message_is_known_to_write_or_to_leave_all_as_it_is() -> None:
    asks = ("QueryRoute", "QueryAssignment", "GetOffset", "QueryOffset")
    # Of these a refusal is no promise: they tell of a client.
    tells = ("Heartbeat", "NotifyClientTermination", "SyncLiteSubscription", "Export")
    shapes = [
        one for one in forwarding._rpc_methods() if not (one.has_request_stream or one.has_response_stream)
    ]
    assert {one.method for one in shapes} - {*asks, *tells} == forwarding.WRITES
    for name in forwarding.WRITES:
        reply = getattr(service, f"{name}Response")
        refused = reply(status=wire.Status(code=Code.NOT_FOUND, message="why")).SerializeToString()
        with pytest.raises(Refused, match="why"):
            forwarding._raise_if_refused(refused)


def test_the_topic_of_a_send_is_found_as_protobuf_finds_it() -> None:
    for length in (1, 100, 127, 128, 300):
        request = half("t" * length)
        request.messages[0].topic.resource_namespace = "n"
        request.messages.add().CopyFrom(half("other").messages[0])
        found = connected_clients.first_topic(request.SerializeToString())
        assert wire.Resource.FromString(found) == request.messages[0].topic
    whole = half("topic").SerializeToString()
    for cut in range(len(whole)):
        found = connected_clients.first_topic(whole[:cut])
        assert not found or not connected_clients.is_topic(found) or b"topic"[: len(found)] in found
    assert connected_clients.first_topic(service.SendMessageRequest().SerializeToString()) == b""
    assert connected_clients.first_topic(half("t" * 1_000).SerializeToString()) == b""


def test_what_is_kept_of_a_client_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        kept_of = connected_clients.ConnectedClients()
        kept = kept_of.add_stream("c")
        for number in range(2 * connected_clients.TOPICS_MAX):
            kept_of.record_topic("c", half(f"t{number}").SerializeToString())
        assert len(kept.topics) == connected_clients.TOPICS_MAX
        monkeypatch.setattr(connected_clients, "KEPT_BYTES_MAX", 10 * (connected_clients.LITE_BYTES + 1))
        for count, known in ((5, 5), (11, 0), (10, 10)):
            message = sync("COMPLETE_ADD", *map(chr, range(97, 97 + count))).SerializeToString()
            kept_of.record_subscription("c", kept, "", "JAVA", message)
            assert sum(map(len, kept.lite.values())) == known
        kept_of.remove_stream("c")
        assert kept_of.find("c") is None
        assert not kept_of._lite_bytes

    asyncio.run(scenario())


def test_a_call_that_failed_is_kept_by_nobody_since_grpc_would_dial_on_for_it() -> None:
    class Call:
        """What gRPC has of a call."""

    made: list[weakref.ref[Call]] = []

    async def fail() -> None:
        call = Call()
        made.append(weakref.ref(call))
        await asyncio.sleep(0)
        raise aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, aio.Metadata(), aio.Metadata(), "nobody is there")

    async def scenario() -> None:
        forever = asyncio.get_running_loop().create_future()
        node: Any = SimpleNamespace(wait_for_other_epoch=lambda _: forever)
        channel: Any = None
        attempt = forwarding.ForwardAttempt(channel, (), 1.0, 1, LeaderReachability(), 0)
        with attempt.retry_on_failure():
            await CallForwarder(node, b"", wall_clock_ms)._run_while_leader(attempt, fail())

    gc.disable()
    try:
        asyncio.run(scenario())
        assert made[0]() is None
    finally:
        gc.enable()
