"""Telemetry, heartbeats and goodbyes without a transport; whom check-backs go to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from commitlog.limits import AUTO_RENEW_LEASE_MS, BODY_BYTES_MAX, CHECK_IMMUNITY_MS
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.wire.caller import Caller
from services.rpc.wire.endpoints import Advertised

PRODUCER = wire.Settings(
    client_type="PRODUCER", publishing=wire.Publishing(topics=[wire.Resource(name="declared")])
)
PUSH = wire.Settings(
    client_type="PUSH_CONSUMER", subscription=wire.Subscription(group=wire.Resource(name="g"))
)
SIMPLE = wire.Settings(client_type="SIMPLE_CONSUMER", subscription=wire.Subscription())


class Telemetry:
    """A client's end of a Telemetry stream."""

    def __init__(self, front: Any, client_id: str) -> None:
        self._outgoing: asyncio.Queue[service.TelemetryCommand] = asyncio.Queue()
        self.is_read = True
        self.incoming = front.stream("Telemetry", self._said(), Caller(client_id))

    async def introduce(self, settings: wire.Settings) -> Any:
        """Send settings and return the answer."""
        self._outgoing.put_nowait(service.TelemetryCommand(settings=settings))
        return await self.next()

    async def next(self) -> Any:
        """Return the next command from the server."""
        return await asyncio.wait_for(anext(self.incoming), 60)

    async def hang_up(self) -> None:
        """Lose the stream."""
        await self.incoming.aclose()

    async def _said(self) -> AsyncIterator[service.TelemetryCommand]:
        try:
            while True:
                yield await self._outgoing.get()
        finally:
            self.is_read = False


@pytest.mark.parametrize("settings", [PRODUCER, PUSH, SIMPLE], ids=["producer", "push", "simple"])
def test_the_answer_to_settings_has_what_clients_fail_without(play: Any, settings: wire.Settings) -> None:
    async def scenario(front: Any) -> None:
        answer = await Telemetry(front, "c").introduce(settings)
        assert answer.status.code == Code.OK
        assert answer.settings.WhichOneof("pub_sub") == settings.WhichOneof("pub_sub")
        assert answer.settings.metric.on
        assert answer.settings.metric.endpoints == Advertised("127.0.0.1", 8081, boot=0).steady(
            wire.Endpoints()
        )
        if settings is PRODUCER:
            assert answer.settings.publishing.max_body_size == BODY_BYTES_MAX
            assert answer.settings.publishing.validate_message_type
        else:
            assert answer.settings.backoff_policy.WhichOneof("strategy") == "customized_backoff"
            assert answer.settings.subscription.long_polling_timeout.seconds == 20

    play(scenario)


def test_a_check_back_goes_to_a_producer_that_declared_the_topic(play: Any) -> None:
    async def scenario(front: Any) -> None:
        telemetry = Telemetry(front, "declaring")
        await telemetry.introduce(PRODUCER)
        [half] = (await front.send("declared", b"half", message_type="TRANSACTION")).entries
        front.pass_time(CHECK_IMMUNITY_MS)
        command = (await telemetry.next()).recover_orphaned_transaction_command
        assert command.transaction_id == half.transaction_id
        assert command.message.body == b"half"
        assert command.message.system_properties.body_encoding == wire.Encoding.IDENTITY

    play(scenario)


def test_several_producers_are_asked_in_turn(play: Any) -> None:
    async def scenario(front: Any) -> None:
        asked: list[str] = []
        streams = {name: Telemetry(front, name) for name in ("one", "two")}
        for telemetry in streams.values():
            await telemetry.introduce(PRODUCER)
        listening = [asyncio.create_task(note(name, stream, asked)) for name, stream in streams.items()]
        await front.send("declared", b"half", message_type="TRANSACTION")
        for count in (1, 2, 3):
            front.pass_time(600_000)
            while len(asked) < count:
                await asyncio.sleep(0)
        assert asked == ["one", "two", "one"]
        for task in listening:
            task.cancel()

    async def note(name: str, telemetry: Telemetry, asked: list[str]) -> None:
        async for command in telemetry.incoming:
            assert command.HasField("recover_orphaned_transaction_command")
            asked.append(name)

    play(scenario)


def test_without_a_producer_the_question_waits_and_is_not_counted(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("declared", b"half", message_type="TRANSACTION")
        for _ in range(20):
            front.pass_time(600_000)
        assert front.live.core.gauges().open_halves == 1
        telemetry = Telemetry(front, "late")
        await telemetry.introduce(PRODUCER)
        front.pass_time(600_000)
        assert (await telemetry.next()).HasField("recover_orphaned_transaction_command")

    play(scenario, attempts_max=3)


def test_a_client_we_do_not_know_may_beat(play: Any) -> None:
    async def scenario(front: Any) -> None:
        beat = service.HeartbeatRequest(client_type="PUSH_CONSUMER", group=wire.Resource(name="g"))
        assert (await front.call("Heartbeat", beat)).status.code == Code.OK
        assert [session.group for session in front.sessions] == ["g"]

    play(scenario)


def test_a_client_that_has_not_received_counts_for_the_filter_of_its_settings(play: Any) -> None:
    async def scenario(front: Any) -> None:
        await front.send("orders")
        for tag in ("red", "blue"):
            await front.receive("orders", filter_expression=wire.FilterExpression(expression=tag))
        filters = [("orders", "blue"), ("orders", "red"), ("orders || ", "red"), ("carts", "a | b")]
        for number, (topic, expression) in enumerate(filters):
            subscription = wire.Subscription(group=wire.Resource(name="g"))
            entry = subscription.subscriptions.add(topic=wire.Resource(name="orders"))
            entry.expression.expression = "green"
            entry = subscription.subscriptions.add(topic=wire.Resource(name=topic))
            entry.expression.expression = expression
            settings = wire.Settings(client_type="SIMPLE_CONSUMER", subscription=subscription)
            await Telemetry(front, f"busy-{number}").introduce(settings)
        found = front.live.core.group_views.view_group("g").filters
        assert {one.text.expression: len(one.clients) for one in found} == {"red": 1, "blue": 2}

    play(scenario)


def test_settings_that_are_refused_are_counted(play: Any) -> None:
    async def scenario(front: Any) -> None:
        telemetry = Telemetry(front, "client-1")
        topic = wire.Resource(resource_namespace="a%b", name="t")
        settings = wire.Settings(client_type="PRODUCER", publishing=wire.Publishing(topics=[topic]))
        assert (await telemetry.introduce(settings)).status.code == Code.ILLEGAL_TOPIC
        assert front.observed == [("Telemetry", "ILLEGAL_TOPIC")]

    play(scenario)


@pytest.mark.parametrize(
    "beat",
    [
        service.HeartbeatRequest(),
        service.HeartbeatRequest(group=wire.Resource(name="g")),
        service.HeartbeatRequest(client_type="PRODUCER", group=wire.Resource(name="another")),
    ],
    ids=["nothing", "only its group", "something else"],
)
def test_a_heartbeat_never_erases_what_the_settings_said(play: Any, beat: Any) -> None:
    """Java's client says no type in its heartbeats before 5.0.4."""

    async def scenario(front: Any) -> None:
        telemetry = Telemetry(front, "client-1")
        await telemetry.introduce(PUSH)
        [session] = front.sessions
        said = session.client_type, session.group
        assert all(said)
        assert (await front.call("Heartbeat", beat)).status.code == Code.OK
        assert (session.client_type, session.group) == said

    play(scenario)


def test_a_goodbye_frees_leases_and_ends_the_stream(play: Any) -> None:
    async def scenario(front: Any) -> None:
        telemetry = Telemetry(front, "client-1")
        await telemetry.introduce(PUSH)
        await front.send("t")
        assert len(await front.receive("t", auto_renew=True)) == 3
        assert len(await front.receive("t", auto_renew=True)) == 1
        goodbye = asyncio.create_task(
            front.call("NotifyClientTermination", service.NotifyClientTerminationRequest())
        )
        assert not (await telemetry.next()).settings.metric.on, "its exporter ends before it is told to go"
        assert not goodbye.done()
        with pytest.raises(StopAsyncIteration):
            await telemetry.next()
        assert (await goodbye).status.code == Code.OK
        front.pass_time(1)
        assert len(await front.receive("t", auto_renew=True)) == 3

    play(scenario)


def test_a_stream_that_has_ended_is_read_no_more(play: Any) -> None:
    async def scenario(front: Any) -> None:
        telemetry = Telemetry(front, "client-1")
        await telemetry.introduce(PUSH)
        await front.call("NotifyClientTermination", service.NotifyClientTerminationRequest())
        assert not (await telemetry.next()).settings.metric.on
        with pytest.raises(StopAsyncIteration):
            await telemetry.next()
        while telemetry.is_read:
            await asyncio.sleep(0)

    play(scenario)


def test_what_a_client_says_after_its_goodbye_is_not_heard(play: Any) -> None:
    async def scenario(front: Any) -> None:
        telemetry = Telemetry(front, "client-1")
        await telemetry.introduce(PUSH)
        await front.call("NotifyClientTermination", service.NotifyClientTerminationRequest())
        assert (await telemetry.introduce(PRODUCER)).settings.client_type == PUSH.client_type, "a farewell"
        with pytest.raises(StopAsyncIteration):
            await telemetry.next()
        assert not list(front.sessions)

    play(scenario)


def test_a_client_that_died_is_gone_after_a_while_but_not_one_that_called_again(play: Any) -> None:
    async def scenario(front: Any) -> None:
        for name in ("dead", "back"):
            telemetry = Telemetry(front, name)
            await telemetry.introduce(PUSH)
            await telemetry.hang_up()
        front.now_ms += 1_000
        await front.call("Heartbeat", service.HeartbeatRequest(), Caller("back"))
        front.pass_time(2_000)
        assert {session.client_id for session in front.sessions} == {"back"}

    play(scenario)


def test_a_client_without_a_stream_that_died_while_it_waited_is_gone_too(play: Any) -> None:
    async def scenario(front: Any) -> None:
        waiting = asyncio.create_task(front.receive("t", auto_renew=True))
        while not any(session.receives for session in front.sessions):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        front.pass_time(2_000)
        assert not list(front.sessions)

    play(scenario)


def test_while_a_client_is_connected_its_leases_last_though_it_does_not_beat(play: Any) -> None:
    async def scenario(front: Any) -> None:
        telemetry = Telemetry(front, "client-1")
        await telemetry.introduce(PUSH)
        await front.send("t")
        assert len(await front.receive("t", auto_renew=True)) == 3
        for _ in range(20):
            front.pass_time(AUTO_RENEW_LEASE_MS // 3)
        assert front.live.core.groups.leased_counts() == {("t", "g"): 1}
        await telemetry.hang_up()
        front.pass_time(2_000)
        await asyncio.sleep(0)
        front.pass_time(1)
        assert len(await front.receive("t", auto_renew=True)) == 3

    play(scenario)
