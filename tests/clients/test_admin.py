"""RocketMQ's Admin service as an operator's tool calls it: a real broker with official clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import Queue
from time import time
from typing import Any

import grpc
import pytest
from rocketmq.v5.client.metrics import ClientMetrics
from rocketmq.v5.consumer import ConsumeResult, MessageListener

from services.auth.signature import headers
from services.rpc.admin import METHODS
from services.rpc.generated import admin_pb2 as admin
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code
from services.rpc.service import ADMIN, NAME
from tests.clients.test_rights import Operator

SECONDS = 60


class Desk:
    """An operator's channel to a broker; `metadata` says who it is."""

    def __init__(self, channel: grpc.Channel, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._channel, self._metadata = channel, metadata

    def ask(self, name: str, **request: Any) -> Any:
        """Call an RPC; whatever it answers."""
        return self.asking(name, **request).result()

    def asking(self, name: str, **request: Any) -> Any:
        """Begin to call an RPC."""
        method = METHODS[name]
        kind, reply = (getattr(admin, one.name) for one in (method.input_type, method.output_type))
        call = self._channel.unary_unary(f"/{ADMIN}/{name}", kind.SerializeToString, reply.FromString)
        return call.future(kind(**request), metadata=self._metadata, timeout=SECONDS)

    def fine(self, name: str, **request: Any) -> Any:
        """Call an RPC that answers OK."""
        reply = self.ask(name, **request)
        assert reply.status.code == Code.OK, reply.status
        return reply

    @contextmanager
    def consumer(self, client_id: str, group: str, topic: str, tag: str = "*") -> Iterator[Listening]:
        """A push consumer that answers what it is asked, as Java's does."""
        listening = Listening(self._channel, client_id, group, topic, tag)
        try:
            yield listening
        finally:
            listening.stream.cancel()


class Listening:
    """The Telemetry stream of a push consumer."""

    def __init__(self, channel: grpc.Channel, client_id: str, group: str, topic: str, tag: str) -> None:
        self._said: Queue[Any] = Queue()
        entry = wire.SubscriptionEntry(
            topic=named(topic), expression=wire.FilterExpression(type="TAG", expression=tag)
        )
        settings = wire.Settings(
            client_type="PUSH_CONSUMER",
            user_agent=wire.UA(hostname="box"),
            subscription=wire.Subscription(group=named(group), subscriptions=[entry]),
        )
        self._said.put(service.TelemetryCommand(settings=settings))
        telemetry = channel.stream_stream(
            f"/{NAME}/Telemetry",
            service.TelemetryCommand.SerializeToString,
            service.TelemetryCommand.FromString,
        )
        metadata = (
            ("x-mq-client-id", client_id),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.2.0"),
        )
        self.stream = telemetry(iter(self._said.get, None), metadata=metadata)
        assert next(self.stream).HasField("settings")

    def answer(self) -> str:
        """Answer the next question; returns what was asked."""
        asked = next(self.stream)
        kind = asked.WhichOneof("command")
        nonce = getattr(asked, kind).nonce
        if kind == "print_thread_stack_trace_command":
            said = wire_answer(
                thread_stack_trace=service.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: waits")
            )
        else:
            said = wire_answer(verify_message_result=service.VerifyMessageResult(nonce=nonce))
        self._said.put(said)
        return str(kind)


def wire_answer(**command: Any) -> Any:
    return service.TelemetryCommand(status=wire.Status(code=Code.OK), **command)


def named(name: str) -> wire.Resource:
    return wire.Resource(name=name)


@pytest.fixture
def desk(broker: Any) -> Iterator[Desk]:
    """An operator at the session's broker."""
    with grpc.insecure_channel(broker.listen) as channel:
        yield Desk(channel)


@pytest.fixture
def group_of_two(
    broker: Any,
    clients: Any,
    topic: str,
    group: str,
    new_message: Callable[..., Any],
    take: Callable[..., Any],
) -> str:
    """A group that has consumed two of its topic's three messages, and holds none; returns its name."""
    broker.create_topic(topic, "NORMAL")
    producer, consumer = clients.producer(broker, topic), clients.simple(broker, topic, group)
    for body in ("1", "2"):
        producer.send(new_message(topic, body, keys="both", tag="paid"))
    take(consumer, 2)
    consumer.shutdown()
    producer.send(new_message(topic, "3", keys="third"))
    return group


def test_what_a_topic_takes(desk: Desk, broker: Any, topic: str) -> None:
    broker.create_topic(topic, "DELAY")
    told = desk.fine("DescribeTopicStatus", topic=named(topic))
    assert told.topic_message_type == wire.MessageType.DELAY
    assert dict(told.tags)["message_type"] == "DELAY"
    unknown = desk.ask("DescribeTopicStatus", topic=named("nowhere"))
    assert unknown.status.code == Code.TOPIC_NOT_FOUND


def test_where_a_topic_is(desk: Desk, broker: Any, topic: str) -> None:
    broker.create_topic(topic, "NORMAL")
    data = json.loads(desk.fine("GetTopicRoute", topic=named(topic)).topic_route_data)
    assert data["brokerDatas"][0]["brokerAddrs"] == {"0": broker.listen}
    assert data["queueDatas"][0]["readQueueNums"] > 0
    assert desk.ask("GetTopicRoute", topic=named("nowhere")).status.code == Code.TOPIC_NOT_FOUND


def test_messages_are_found_by_key_and_id_within_a_time(desk: Desk, topic: str, group_of_two: str) -> None:
    found = desk.fine("QueryMessage", topic=named(topic), message_key="both").messages
    assert sorted(one.body for one in found) == [b"1", b"2"]
    [first] = (one for one in found if one.body == b"1")
    by_id = {"topic": named(topic), "message_id": first.system_properties.message_id}
    assert [one.body for one in desk.fine("QueryMessage", **by_id).messages] == [b"1"]
    assert (
        len(desk.fine("QueryMessage", topic=named(topic), message_key="both", max_message_nums=1).messages)
        == 1
    )
    for bound, count in (("begin_timestamp", 0), ("end_timestamp", 1)):
        found = desk.fine("QueryMessage", **by_id, **{bound: {"seconds": int(time()) + 60}}).messages
        assert len(found) == count
    other_queue = 1 + first.system_properties.queue_id
    assert not desk.fine("QueryMessage", **by_id, queue_id=other_queue).messages
    assert desk.ask("QueryMessage", topic=named(topic), subscription="*").status.code == Code.BAD_REQUEST


def test_an_operator_sends_a_message(desk: Desk, broker: Any, topic: str) -> None:
    broker.create_topic(topic, "NORMAL")
    sent = desk.fine(
        "AdminSendMessage", topic=named(topic), body=b"a test", tag="t", key="k", user_properties={"p": "v"}
    )
    [stored] = broker.stored(topic)
    assert (stored["message_id"], stored["body"], stored["tag"]) == (sent.message_id, "a test", "t")
    assert (stored["keys"], stored["properties"]) == (["k"], {"p": "v"})
    half = wire.SystemProperties(message_type="TRANSACTION")
    refused = desk.ask("AdminSendMessage", topic=named(topic), body=b"x", system_properties=half)
    assert refused.status.code == Code.BAD_REQUEST


def test_who_subscribes_what_and_whether_they_agree(desk: Desk, topic: str, group_of_two: str) -> None:
    group = group_of_two

    def listed(**asked: Any) -> Any:
        [info] = desk.fine("ListSubscription", **asked).subscription_info
        return info

    told = listed(topic=named(topic))
    assert (told.group.name, told.topic.name, told.online) == (group, topic, False)
    with desk.consumer("java-1", group, topic, "paid"):
        told = listed(group=named(group), topic=named(topic))
        assert (told.online, told.expression.expression, told.message_model) == (
            True,
            "paid",
            admin.CLUSTERING,
        )
        assert told.subscription_consistency
        assert told.last_update_timestamp.seconds > 0
        with desk.consumer("java-2", group, topic, "new"):
            assert not listed(group=named(group)).subscription_consistency
            each = desk.fine("DescribeSubscription", group=named(group)).client_subscription_info
            assert {
                one.client_info.client_id: one.subscription_info.expression.expression for one in each
            } == {"java-1": "paid", "java-2": "new"}
    assert desk.ask("ListSubscription").status.code == Code.BAD_REQUEST


def test_a_group_leaves_a_topic(desk: Desk, topic: str, group_of_two: str) -> None:
    desk.fine("DeleteSubscription", group=named(group_of_two), topic=named(topic))
    assert not desk.fine("ListSubscription", group=named(group_of_two)).subscription_info
    again = desk.ask("DeleteSubscription", group=named(group_of_two), topic=named(topic))
    assert again.status.code == Code.NOT_FOUND
    assert desk.ask("DeleteSubscription", group=named(group_of_two)).status.code == Code.BAD_REQUEST


def test_how_far_a_group_is(desk: Desk, topic: str, group_of_two: str) -> None:
    told = desk.fine("DescribeGroupAccumulation", group=named(group_of_two), topics=[named(topic)])
    assert told.topic_accumulation[topic] == told.accumulation
    counts = told.accumulation
    assert (counts.inflight_messages, counts.ready_messages, counts.accumulation) == (0, 1, 1)
    assert not desk.fine("DescribeGroupAccumulation", group=named(group_of_two)).topic_accumulation
    for asked, code in (
        ({"group": named("nobody")}, Code.NOT_FOUND),
        ({"group": named(group_of_two), "topics": [named("nowhere")]}, Code.NOT_FOUND),
        ({"group": named(group_of_two), "lite_topic": "a"}, Code.NOT_IMPLEMENTED),
    ):
        assert desk.ask("DescribeGroupAccumulation", **asked).status.code == code


def test_from_when_a_groups_messages_are(desk: Desk, topic: str, group_of_two: str) -> None:
    spans = desk.fine("QueryTimeSpan", group=named(group_of_two), topics=[named(topic)]).queue_time_span_list
    held = [one for one in spans if one.min_timestamp]
    assert held
    assert all(one.min_timestamp <= one.max_timestamp for one in held)
    assert sum(one.delay_time_ms > 0 for one in spans) == 1, "one queue holds the third"
    assert any(one.consume_timestamp for one in held)


def test_a_group_is_set_back_to_a_time(desk: Desk, topic: str, group_of_two: str) -> None:
    asked = {"group": named(group_of_two), "topic": named(topic)}
    desk.fine("ResetGroupOffset", **asked, reset_timestamp={"seconds": int(time()) - 3_600})
    assert desk.fine("DescribeGroupAccumulation", group=named(group_of_two)).accumulation.accumulation == 3
    desk.fine("ResetGroupOffset", **asked, reset_timestamp={"seconds": int(time()) + 3_600})
    assert desk.fine("DescribeGroupAccumulation", group=named(group_of_two)).accumulation.accumulation == 0
    nobody = desk.ask("ResetGroupOffset", group=named("nobody"), topic=named(topic))
    assert nobody.status.code == Code.NOT_FOUND


def test_who_consumes_and_what_is_known_of_it(desk: Desk, topic: str, group: str) -> None:
    with desk.consumer(f"java-{group}", group, topic, "paid"):
        [client] = desk.fine("ListConsumerConnection", group=named(group)).client_info
        assert (client.client_id, client.language, client.version) == (f"java-{group}", "JAVA", "5.2.0")
        assert (client.hostname, client.egress_ip) == ("box", "127.0.0.1")
        assert not desk.fine("ListConsumerConnection", group=named(group), topic=named("other")).client_info
        asked = {"group": named(group), "client_id": f"java-{group}"}
        info = desk.fine("GetConsumerRunningInfo", **asked).consumer_running_info
        assert info.properties["client_type"] == "PUSH_CONSUMER"
        assert info.subscriptions[topic].expression == "paid"
        other = desk.ask("GetConsumerRunningInfo", **(asked | {"group": named("other")}))
        assert other.status.code == Code.NOT_FOUND


class Failing(MessageListener):
    """Consumes nothing."""

    def consume(self, message: Any) -> Any:
        return ConsumeResult.FAILURE


def test_what_a_consumer_measured_is_part_of_what_is_known_of_it(
    desk: Desk,
    broker: Any,
    clients: Any,
    topic: str,
    group: str,
    new_message: Callable[..., Any],
    wait_until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ClientMetrics, "METRIC_READER_INTERVAL", 500)  # the client's own is a minute

    clients.push(broker, topic, group, Failing())
    clients.producer(broker, topic).send(new_message(topic, "one"))
    [client] = desk.fine("ListConsumerConnection", group=named(group)).client_info

    def failed() -> bool:
        asked = {"group": named(group), "client_id": client.client_id}
        info = desk.fine("GetConsumerRunningInfo", **asked).consumer_running_info
        return topic in info.consume_status_table and info.consume_status_table[topic].consume_failed_msgs > 0

    wait_until(failed, SECONDS)


def test_a_client_tells_what_its_threads_do_and_tries_a_message(
    desk: Desk, topic: str, group_of_two: str
) -> None:
    group = group_of_two
    found = desk.fine("QueryMessage", topic=named(topic), message_key="third").messages
    asked = {"client_id": f"java-{group}", "group": named(group)}
    message = {"topic": named(topic), "message_id": found[0].system_properties.message_id}
    with desk.consumer(f"java-{group}", group, topic) as client:
        stack = desk.asking("PrintThreadStackTrace", **asked)
        assert client.answer() == "print_thread_stack_trace_command"
        assert stack.result(SECONDS).thread_stack_trace == "main: waits"
        tried = desk.asking("VerifyMessage", **asked, **message)
        assert client.answer() == "verify_message_command"
        assert tried.result(SECONDS).status.code == Code.OK
        none = desk.ask("VerifyMessage", **asked, topic=named(topic), message_id="none")
        assert none.status.code == Code.MESSAGE_NOT_FOUND
        other = desk.ask("PrintThreadStackTrace", client_id=f"java-{group}", group=named("other"))
        assert other.status.code == Code.NOT_FOUND


def test_who_is_connected_and_which_broker_it_is(desk: Desk, broker: Any, topic: str, group: str) -> None:
    for attempt in range(5):  # clients of other tests on this broker may be forgotten between two looks
        before = desk.fine("GetProxyRuntimeStats")
        with desk.consumer(f"java-{attempt}-{group}", group, topic):
            told = desk.fine("GetProxyRuntimeStats")
        if told.consumers - before.consumers == 1:
            break
    assert (told.proxy_name, told.consumers - before.consumers) == ("tidewheel", 1)
    assert told.connections > before.connections
    assert told.version


def test_the_level_of_the_log_stays(desk: Desk) -> None:
    assert "stays" in desk.ask("ChangeLogLevel", level="DEBUG").remark


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory, serving: Any) -> Iterator[Any]:
    """A broker that asks everybody who they are."""
    yield from serving(tmp_path_factory.mktemp("asking") / "store", "--auth")


def signed(operator: Operator) -> tuple[tuple[str, str], ...]:
    """What an operator's tool signs."""
    date = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return headers(operator.user, operator.secret.encode(), date)


def test_operators_need_the_right_to_what_they_name(
    asking: Any, clients: Any, topic: str, group: str
) -> None:
    operator = Operator(asking, clients, topic, group)
    asking.create_topic(topic, "NORMAL")
    with grpc.insecure_channel(asking.listen) as channel:
        stranger, desk = Desk(channel), Desk(channel, signed(operator))
        asked = {"topic": named(topic)}
        assert stranger.ask("DescribeTopicStatus", **asked).status.code == Code.UNAUTHORIZED
        with pytest.raises(grpc.RpcError) as refused:
            stranger.ask("ChangeLogLevel")
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        operator.allow("send", "receive", "transact")
        assert desk.ask("DescribeTopicStatus", **asked).status.code == Code.FORBIDDEN
        operator.allow("admin")
        desk.fine("DescribeTopicStatus", **asked)
        for name, request in (
            ("DescribeTopicStatus", {"topic": named("other")}),
            ("GetProxyRuntimeStats", {}),
            ("ListSubscription", {}),
            ("ListSubscription", {"topic": named(topic), "group": named(group)}),
            ("DescribeGroupAccumulation", {"group": named(group), "topics": [named(topic)]}),
            ("ResetGroupOffset", {"group": named(group), "topic": named(topic)}),
            ("QueryMessage", {"topic": wire.Resource(resource_namespace=topic), "message_key": "k"}),
            ("PrintThreadStackTrace", {"client_id": "x"}),
        ):
            assert desk.ask(name, **request).status.code == Code.FORBIDDEN, name


def test_where_operators_show_a_token_over_http_nobody_is_one_without_a_name(
    tmp_path: Any, serving: Any
) -> None:
    for broker in serving(tmp_path / "store", "--http-token", str(tmp_path / "token")):
        with grpc.insecure_channel(broker.listen) as channel, pytest.raises(grpc.RpcError) as refused:
            Desk(channel).ask("GetProxyRuntimeStats")
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
