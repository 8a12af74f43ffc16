"""How many clients one connection and one address may have: over a real port, and by the table alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from grpc import aio
from structlog.testing import capture_logs

from commitlog import limits
from services.auth.refusals import Refusals
from services.cluster.forwarding.origin_signatures import ORIGIN, sign_origin, verify_origin
from services.live.errors import TooManyPolls
from services.rpc.clients.client_room import CHECK_INTERVAL_MS
from services.rpc.clients.session import Session
from services.rpc.clients.sessions import Sessions
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.serving.service import NAME
from services.rpc.wire.caller import Caller, Origin
from services.rpc.wire.errors import TooManyClients
from tests.unit.services.rpc.serving.test_serving import Stage, a_stage

IN_FLIGHT = 200


def of(client_id: str) -> tuple[tuple[str, str], ...]:
    return (("x-mq-client-id", client_id), ("x-mq-language", "PYTHON"))


def unary(channel: aio.Channel, name: str, reply: Any) -> Any:
    return channel.unary_unary(f"/{NAME}/{name}", lambda one: one.SerializeToString(), reply.FromString)


async def heartbeats(stage: Stage, ids: list[str]) -> list[int]:
    """Send a heartbeat for each id over the connection of the stage; return the codes."""
    call, codes = unary(stage.channel, "Heartbeat", service.HeartbeatResponse), []
    for first in range(0, len(ids), IN_FLIGHT):
        some = ids[first : first + IN_FLIGHT]
        replies = await asyncio.gather(*(call(service.HeartbeatRequest(), metadata=of(one)) for one in some))
        codes += [one.status.code for one in replies]
    return codes


async def send_and_receive(stage: Stage, client_id: str) -> tuple[wire.Status, list[str]]:
    """Send a message and receive it as a newcomer on a connection of its own."""
    async with aio.insecure_channel(stage.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        sent = wire.Message(
            topic=wire.Resource(name="t"),
            body=b"x",
            system_properties=wire.SystemProperties(message_id="M"),
        )
        call = unary(channel, "SendMessage", service.SendMessageResponse)
        reply = await call(service.SendMessageRequest(messages=[sent]), metadata=of(client_id))
        wanted = service.ReceiveMessageRequest(
            group=wire.Resource(name="g"),
            message_queue=wire.MessageQueue(topic=wire.Resource(name="t")),
            batch_size=32,
        )
        wanted.invisible_duration.seconds = 60
        stream = channel.unary_stream(
            f"/{NAME}/ReceiveMessage",
            lambda one: one.SerializeToString(),
            service.ReceiveMessageResponse.FromString,
        )
        call = stream(wanted, metadata=of(client_id), timeout=5)
        got = [one.message.system_properties.message_id async for one in call if one.HasField("message")]
        return reply.status, got


def on_stage(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    async def play() -> None:
        async with a_stage() as stage:
            await scenario(stage)

    asyncio.run(play())


def test_invented_ids_of_one_connection_lock_no_newcomer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENTS_MAX", 200)

    async def scenario(stage: Stage) -> None:
        await heartbeats(stage, [f"invented-{number}" for number in range(300)])
        status, got = await send_and_receive(stage, "newcomer")
        assert status.code == wire.Code.OK, status.message
        assert got == ["M"]

    on_stage(scenario)


@pytest.fixture(autouse=True)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give tests of the table small bounds."""
    if "invented" not in request.node.name:
        monkeypatch.setattr(limits, "CLIENTS_MAX", 40)
        monkeypatch.setattr(limits, "CLIENTS_PER_ADDRESS_MAX", 20)
        monkeypatch.setattr(limits, "CLIENTS_PER_CONNECTION_MAX", 8)


class Table:
    """Sessions, and a clock that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.sessions = Sessions(lambda: self.now_ms)
        self.refusals = Refusals(lambda: self.now_ms)
        self.sessions.room.set_refusal_callback(self.refusals.add)

    def call(self, client_id: str, connection: int = 0, host: str = "h") -> Session:
        self.now_ms += 1
        return self.sessions.seen(Caller(client_id, host=host, connection=connection))

    def connect(self, client_id: str, connection: int = 0, host: str = "h") -> Any:
        self.now_ms += 1
        return self.sessions.open_stream(Caller(client_id, host=host, connection=connection))

    @property
    def there(self) -> set[str]:
        return {one.client_id for one in self.sessions}


@pytest.mark.parametrize("is_connected", [False, True])
def test_invented_ids_of_one_connection_leave_room_by_the_real_bounds(is_connected: bool) -> None:
    table, refused = Table(), 0
    for number in range(limits.CLIENTS_MAX + 1_000):
        try:
            (table.connect if is_connected else table.call)(f"invented-{number}", connection=1)
        except TooManyClients:
            refused += 1
    assert bool(refused) == is_connected
    table.call("newcomer", connection=2)
    assert "newcomer" in table.there


def test_a_connection_displaces_its_own_idle_clients_the_longest_silent_first() -> None:
    table = Table()
    for name in ("other", "another"):
        table.call(name, connection=2)
    for number in range(8):
        table.call(f"c{number}", connection=1)
    table.call("c0", connection=1)
    for number in range(8, 10):
        table.call(f"c{number}", connection=1)
    assert table.there == {"other", "another", "c0", *(f"c{number}" for number in range(3, 10))}


def test_a_connected_client_a_receive_and_a_lease_are_not_idle_and_settings_count_for_more() -> None:
    table = Table()
    table.connect("connected", connection=1)
    receiving = table.call("receiving", connection=1)
    receiving.receives = 1
    table.call("leasing", connection=1).lent["g", "t"] = None  # type: ignore[assignment]
    table.call("settled", connection=1).described = wire.Settings()
    for number in range(40):
        table.call(f"c{number}", connection=1)
    assert {"connected", "receiving", "leasing", "settled"} <= table.there
    assert len(table.there) == 8


def test_a_connection_whose_clients_are_all_connected_is_refused_and_others_are_not() -> None:
    table = Table()
    for number in range(8):
        table.connect(f"c{number}", connection=1)
    with capture_logs() as logged:
        for number in range(3):
            with pytest.raises(TooManyClients, match=r"its connection \(h\) has 8 clients"):
                table.call(f"new{number}", connection=1)
    assert [(one["event"], one["full"], one["host"]) for one in logged] == [
        ("too many clients", "connection", "h")
    ]
    last = table.refusals.latest()[0]
    assert (last.reason, last.host, last.who) == ("too many clients", "h", "new2")
    table.call("c0", connection=1)
    table.call("newcomer", connection=2)
    assert "newcomer" in table.there


def test_an_address_may_have_half_of_all_clients_so_that_others_have_room() -> None:
    table = Table()
    for number in range(20):
        table.connect(f"c{number}", connection=1 + number // 8)
    with pytest.raises(TooManyClients, match="the address h has 20 clients"):
        table.call("new", connection=9)
    table.call("newcomer", connection=10, host="elsewhere")


def test_a_full_broker_forgets_the_idle_of_any_address_before_it_refuses() -> None:
    table = Table()
    for number in range(40):
        table.call(f"c{number}", connection=number + 1, host=f"h{number}")
    table.call("newcomer", connection=99, host="elsewhere")
    assert "newcomer" in table.there
    assert "c39" in table.there
    assert "c0" not in table.there
    assert table.sessions.room.forgotten["broker"] == 2


def test_what_connects_and_goes_leaves_nothing_behind() -> None:
    table = Table()
    for number in range(200):
        stream = table.connect(f"c{number}", connection=number + 1, host=f"h{number}")
        table.sessions.close_stream(stream)
        table.sessions.gone(f"c{number}")
    assert not table.sessions.room._populations


def test_a_client_counts_where_it_calls_from() -> None:
    table = Table()
    for number in range(8):
        table.connect(f"c{number}", connection=1)
    for number in range(8):
        table.call(f"c{number}", connection=2)
    table.call("new", connection=1)
    with pytest.raises(TooManyClients):
        table.call("newer", connection=2)


def test_a_look_for_idle_clients_that_found_none_is_not_made_again_at_once() -> None:
    table = Table()
    streams = [table.connect(f"c{number}", connection=1) for number in range(8)]
    with pytest.raises(TooManyClients):
        table.call("new", connection=1)
    table.sessions.close_stream(streams[0])
    with pytest.raises(TooManyClients):
        table.call("new", connection=1)
    table.now_ms += CHECK_INTERVAL_MS
    table.call("new", connection=1)


def test_receives_of_one_address_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "POLLS_PER_ADDRESS_MAX", 2)
    table = Table()
    here = [table.call(f"c{number}", connection=number) for number in range(3)]
    with table.sessions.receiving(here[0]), table.sessions.receiving(here[1]):
        with pytest.raises(TooManyPolls, match="its address h 2"), table.sessions.receiving(here[2]):
            pass
        with table.sessions.receiving(table.call("elsewhere", host="i")):
            pass
    with table.sessions.receiving(here[2]):
        pass


def test_a_node_tells_where_a_forwarded_call_came_from_and_no_client_can() -> None:
    said = sign_origin(b"key", "a", "fe80::1", 7)
    assert verify_origin(b"key", {ORIGIN: said}) == Origin("fe80::1", "a.7")
    for forged in ("", "h a.7", "h a.7 ", said.replace("7 ", "8 "), sign_origin(b"other", "a", "h", 7), " x"):
        assert verify_origin(b"key", {ORIGIN: forged}) is None
    assert verify_origin(b"key", {}) is None
