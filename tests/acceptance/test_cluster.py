"""A cluster as an operator runs it: made, joined, looked at, its leader killed; and mistakes."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from queue import Queue
from shutil import rmtree
from threading import Event, Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

import grpc
import psycopg
import pytest

from services.rpc.generated import definition_pb2, service_pb2
from services.rpc.generated.timestamp_pb2 import Timestamp
from sharedlog import postgres
from sharedlog.versions import SUPPORTED
from tests.command import tidewheel
from tests.endurance import sick_clock, sick_disk
from tests.endurance.conftest import BrokerProcess
from tests.endurance.sick_clock import SickClock
from tests.endurance.sick_disk import NoCompiler, SickDisk
from tests.postgresql import running_postgresql, running_standby

SERVICE = "/apache.rocketmq.v2.MessagingService/"
METADATA = (("x-mq-client-id", "acceptance"),)
SEGMENT_BYTES = 8 << 20
SECONDS = 30


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with running_postgresql(syncs=True) as url:
        yield url.replace("postgresql+psycopg", "postgresql")


class Node(BrokerProcess):
    """A node of a cluster, as a process."""

    def __init__(self, folder: Path, name: str, cluster: str) -> None:
        asks_soon = ("--check-immunity-ms", "2000")
        super().__init__(folder / name, "--cluster", cluster, "--node", name, *asks_soon)
        self.name = name

    def view(self) -> dict[str, Any]:
        """What the node says of itself."""
        with urlopen(f"http://{self.http}/api/cluster", timeout=5) as answer:
            return dict(json.load(answer))

    def role(self) -> str:
        """What the node says that it does."""
        return str(self.view()["role"])

    def receive(self, topic: str) -> list[tuple[str, bytes]]:
        """Receive what there is, in the name of a group; message ids and bodies."""
        request = service_pb2.ReceiveMessageRequest(
            group=definition_pb2.Resource(name="workers"),
            message_queue=definition_pb2.MessageQueue(topic=definition_pb2.Resource(name=topic)),
            batch_size=32,
        )
        request.invisible_duration.FromMilliseconds(30_000)
        request.long_polling_timeout.FromMilliseconds(10_000)
        with grpc.insecure_channel(self.listen) as channel:
            call = channel.unary_stream(
                SERVICE + "ReceiveMessage",
                request_serializer=service_pb2.ReceiveMessageRequest.SerializeToString,
                response_deserializer=service_pb2.ReceiveMessageResponse.FromString,
            )(request, metadata=METADATA, timeout=30)
            found = [reply.message for reply in call if reply.HasField("message")]
        return [(one.system_properties.message_id, one.body) for one in found]


@pytest.fixture
def nodes(tmp_path: Path, database: str) -> Iterator[list[Node]]:
    url = f"{database}&log={tmp_path.name}"
    assert tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    both = [Node(tmp_path, name, url) for name in "ab"]
    for node in both:
        node.start()
    yield both
    for node in both:
        assert node.process is not None
        if node.process.poll() is None:
            assert node.stop() == 0, node.log()[-3_000:]


def leader_of(nodes: list[Node], eventually: Any) -> Node:
    """The node that leads, once one does."""
    eventually(lambda: any(node.role() == "leading" for node in nodes))
    return next(node for node in nodes if node.role() == "leading")


def test_what_any_node_was_told_is_there_when_the_leader_is_gone(nodes: list[Node], eventually: Any) -> None:
    leader = leader_of(nodes, eventually)
    other = next(node for node in nodes if node is not leader)
    for node in nodes:
        sent = tidewheel("send", "orders", f"by {node.store.name}", "--http", node.http)
        assert sent.returncode == 0, sent.stderr
    later = tidewheel("send", "orders", "later", "--timer-key", "k", "--in", "3s", "--http", other.http)
    assert later.returncode == 0, later.stderr
    cancelled = tidewheel("send", "orders", "never", "--timer-key", "n", "--in", "3s", "--http", other.http)
    assert cancelled.returncode == 0
    gone = tidewheel("timer", "cancel", "--topic", "orders", "--timer-key", "n", "--http", other.http)
    assert "CANCELLED" in gone.stdout
    status = tidewheel("cluster", "status", "--http", other.http)
    assert f"leader   {leader.store.name} at {leader.listen}" in status.stdout
    assert f"node     {other.store.name}, following" in status.stdout
    with urlopen(f"http://{other.http}/readyz") as answer:
        assert answer.read() == f"ready\nfollows {leader.store.name}\n".encode()
    for node, role in ((other, "following"), (leader, "leading")):
        with urlopen(f"http://{node.http}/metrics") as answer:
            scraped = answer.read().decode()
        assert f'tidewheel_cluster_role{{role="{role}"}} 1' in scraped
        for name in (
            "lag_records",
            "lag_seconds",
            "clock_skew_seconds",
            "unaccepted_bytes",
            "beyond_checkpoint_bytes",
            "engine_trouble",
        ):
            assert f"\ntidewheel_cluster_{name} " in scraped
        shown = tidewheel("cluster", "status", "--http", node.http).stdout
        assert " bytes after the newest checkpoint" in shown
        for line in ("0 are due and have no producer", "0 message groups wait"):
            assert (line in shown) == (node is leader)
        took_over = 'tidewheel_cluster_last_takeover_timestamp_seconds{why="nobody led"}'
        assert (took_over in scraped) == (node is leader)

    leader.kill()
    eventually(lambda: other.role() == "leading")
    silence = f"silence of node {leader.store.name}"
    assert other.view()["took_over"]["why"] == silence
    assert silence in tidewheel("cluster", "status", "--http", other.http).stdout
    found: dict[str, bytes] = {}
    eventually(lambda: found.update(other.receive("orders")) or len(found) == 3)
    assert sorted(found.values()) == [b"by a", b"by b", b"later"]
    again = tidewheel("timer", "cancel", "--topic", "orders", "--timer-key", "n", "--http", other.http)
    assert "ALREADY" in again.stdout
    leader.start()
    eventually(lambda: leader.role() == "following")
    assert tidewheel("send", "orders", "by whom was killed", "--http", leader.http).returncode == 0


def test_an_application_with_http_alone_may_dial_any_node(nodes: list[Node], eventually: Any) -> None:
    leader = leader_of(nodes, eventually)
    other = next(node for node in nodes if node is not leader)

    def post(path: str, body: Any, node: Node = other) -> Any:
        asked = Request(f"http://{node.http}{path}", json.dumps(body).encode(), method="POST")
        asked.add_header("content-type", "application/json")
        try:
            with urlopen(asked, timeout=SECONDS) as answer:
                return json.load(answer)
        except HTTPError as refused:
            return json.load(refused) | {"status": refused.code}

    def receive(wait: str = "20s") -> Any:
        return post("/api/groups/g/receive", {"topic": "orders", "wait": wait})

    post("/api/topics", {"name": "orders", "queue_count": 1})
    with ThreadPoolExecutor(4) as callers:
        waiting = callers.submit(receive)
        assert post("/api/messages", {"topic": "orders", "body": "first"})["verdict"] is None
        [got] = waiting.result()["messages"]
        handles = {"receipt_handles": [got["receipt_handle"]]}
        assert post("/api/groups/g/ack", handles, leader)["done"] == 1

        # A caller that hangs up at a follower leaves no poll at the leader that takes the next message.
        with closing(connection(other)) as calling:
            body = json.dumps({"topic": "orders", "wait": "20s"})
            calling.request("POST", "/api/groups/g/receive", body, {"content-type": "application/json"})
            asked = {"topics": ["orders"], "client": "gone", "wait": "20s"}
            polling = connection(other)
            polling.request(
                "POST",
                "/api/transactions/check-backs",
                json.dumps(asked),
                {"content-type": "application/json"},
            )
            eventually(lambda: producers(leader) == ["http@gone"])
            polling.close()
            eventually(lambda: producers(leader) == [])
        half = post("/api/transactions", {"topic": "orders", "body": "second"})["transaction_id"]
        assert post(f"/api/transactions/{half}/commit", None)["resolution"] == "COMMIT"
        [second] = receive()["messages"]
        assert (second["body"], second["attempt"]) == ("second", 1)

        # A poll whose leader leaves has one clear answer; what was leased and not acknowledged comes again.
        waiting = callers.submit(receive)
        polling = callers.submit(post, "/api/transactions/check-backs", asked)
        eventually(lambda: polls(leader) == {"receive": 1, "check_back": 1})
        assert leader.stop() == 0
        for told in (waiting.result(), polling.result()):
            assert told["status"] == 503, told
            assert told["code"] == "TW-224", told
    eventually(lambda: other.role() == "leading")
    handles = {"receipt_handles": [second["receipt_handle"]]}
    assert post("/api/groups/g/ack", handles)["done"] == 1, "another epoch's plain message"
    assert receive("1s")["messages"] == []


def connection(node: Node) -> HTTPConnection:
    """A connection to a node's HTTP interface."""
    return HTTPConnection(node.http, timeout=SECONDS)


def producers(node: Node) -> list[str]:
    """Who waits at a node for questions about transactions."""
    with urlopen(f"http://{node.http}/api/transactions/producers", timeout=SECONDS) as answer:
        return [one["client_id"] for one in json.load(answer)["producers"]]


def polls(node: Node) -> dict[str, int]:
    """Count the long polls that are open at a node, by kind."""
    with urlopen(f"http://{node.http}/metrics", timeout=SECONDS) as answer:
        told = re.findall(r'^mq_http_polls\{.*kind="(\w+)".*\} (\d+)', answer.read().decode(), re.MULTILINE)
    return {kind: int(count) for kind, count in told if int(count)}


def test_a_leader_sees_how_far_its_followers_lag_also_one_that_is_gone(
    nodes: list[Node], eventually: Any
) -> None:
    leader = leader_of(nodes, eventually)
    other = next(node for node in nodes if node is not leader)
    name = other.store.name

    def lag() -> dict[str, Any]:
        return dict(leader.view()["followers"].get(name, {}))

    assert tidewheel("send", "orders", "x" * 4_000, "--http", leader.http).returncode == 0
    eventually(lambda: lag().get("heard_ms_ago") is not None and lag()["lag_bytes"] == 0)
    assert lag()["lag_ms"] < 60_000
    assert other.view()["followers"] == {}
    other.kill()
    sent = 0
    while lag()["lag_bytes"] < 3 * 4_000:
        assert tidewheel("send", "orders", "x" * 4_000, "--http", leader.http).returncode == 0
        sent += 1
        assert sent < 10, lag()
    before = lag()
    eventually(lambda: lag()["lag_ms"] > before["lag_ms"] + 1_000)
    assert lag()["lag_bytes"] == before["lag_bytes"]
    for verb in ("status", "nodes"):
        shown = tidewheel("cluster", verb, "--http", leader.http).stdout
        assert f"{before['lag_bytes']} bytes" in shown, shown
        assert " had all " in shown
    with urlopen(f"http://{leader.http}/metrics") as answer:
        scraped = answer.read().decode()
    assert f'tidewheel_cluster_follower_lag_bytes{{node="{name}"}} {before["lag_bytes"]}.0' in scraped
    assert f'tidewheel_cluster_follower_lag_seconds{{node="{name}"}} ' in scraped
    other.start()
    eventually(lambda: lag()["lag_bytes"] == 0 and lag()["lag_ms"] < 1_500)
    said = tidewheel("cluster", "nodes", "--http", other.http)
    assert f"the leader sees: --http http://{leader.http}" in said.stderr

    # A stranger tells nothing.
    for body in (b"{", b'{"node": "b", "end_offset": 1}', b"[1]"):
        with pytest.raises(HTTPError) as raised:
            urlopen(Request(f"http://{leader.http}/api/cluster/position", body, method="POST"))
        assert raised.value.code == 401


class Client:
    """A client of one node, by the stubs of the protocol; what it is told on its stream is in `told`."""

    def __init__(self, node: Node, client_id: str, settings: definition_pb2.Settings) -> None:
        self.metadata = (("x-mq-client-id", client_id), ("x-mq-language", "JAVA"))
        self.channel = grpc.insecure_channel(node.listen)
        self.told: Queue[service_pb2.TelemetryCommand] = Queue()
        self._said: Queue[service_pb2.TelemetryCommand | None] = Queue()
        self._stream = self.channel.stream_stream(
            SERVICE + "Telemetry",
            request_serializer=service_pb2.TelemetryCommand.SerializeToString,
            response_deserializer=service_pb2.TelemetryCommand.FromString,
        )(iter(self._said.get, None), metadata=self.metadata)
        Thread(target=self._hear, daemon=True).start()
        self._said.put(service_pb2.TelemetryCommand(settings=settings))
        assert self.told.get(timeout=SECONDS).HasField("settings")

    def _hear(self) -> None:
        with suppress(grpc.RpcError):
            for command in self._stream:
                self.told.put(command)

    def asked(self) -> service_pb2.RecoverOrphanedTransactionCommand:
        """Return the next question how a transaction ended."""
        while not (command := self.told.get(timeout=SECONDS)).HasField(
            "recover_orphaned_transaction_command"
        ):
            assert command.HasField("settings")
        return command.recover_orphaned_transaction_command

    def call(self, request: Any) -> Any:
        """Call the RPC of a request; return its reply."""
        name = type(request).__name__.removesuffix("Request")
        reply = getattr(service_pb2, f"{name}Response")
        call = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        answer = call(request, metadata=self.metadata, timeout=SECONDS)
        assert answer.status.code == definition_pb2.Code.OK, answer
        return answer

    def send(self, topic: str, message_id: str, **system: Any) -> service_pb2.SendResultEntry:
        """Send a message; return what it is told."""
        properties = definition_pb2.SystemProperties(message_id=message_id, **system)
        resource = definition_pb2.Resource(name=topic)
        message = definition_pb2.Message(topic=resource, body=b"x", system_properties=properties)
        return self.call(service_pb2.SendMessageRequest(messages=[message])).entries[0]

    def receive(
        self, topic: str, group: str, wanted: definition_pb2.FilterExpression | None = None
    ) -> list[definition_pb2.Message]:
        """Receive what there is, or comes within some seconds."""
        request = service_pb2.ReceiveMessageRequest(
            group=definition_pb2.Resource(name=group),
            message_queue=definition_pb2.MessageQueue(topic=definition_pb2.Resource(name=topic)),
            batch_size=32,
            filter_expression=wanted,
        )
        request.invisible_duration.FromMilliseconds(60_000)
        request.long_polling_timeout.FromMilliseconds(10_000)
        call = self.channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=service_pb2.ReceiveMessageRequest.SerializeToString,
            response_deserializer=service_pb2.ReceiveMessageResponse.FromString,
        )(request, metadata=self.metadata, timeout=SECONDS)
        return [reply.message for reply in call if reply.HasField("message")]

    def close(self) -> None:
        """Hang up."""
        self._stream.cancel()
        self._said.put(None)
        self.channel.close()


def told_routes(client: Client, node: Node) -> list[tuple[str, int, str]]:
    """Return brokers and queues of a topic as a node tells them, all at the address that was dialled."""
    host, _, port = node.listen.rpartition(":")
    dialled = definition_pb2.Endpoints(
        scheme=definition_pb2.AddressScheme.IPv4,
        addresses=[definition_pb2.Address(host=host, port=int(port))],
    )
    topic = definition_pb2.Resource(name="orders")
    group = definition_pb2.Resource(name="workers")
    route = client.call(service_pb2.QueryRouteRequest(topic=topic, endpoints=dialled)).message_queues
    assigned = client.call(
        service_pb2.QueryAssignmentRequest(topic=topic, group=group, endpoints=dialled)
    ).assignments
    queues = [*route, *(one.message_queue for one in assigned)]
    assert all(one.broker.endpoints == dialled for one in queues)
    return [(one.broker.name, one.id, one.topic.name) for one in queues]


def row_of(name: str, *addresses: str) -> dict[str, Any]:
    """A line of `tidewheel status`, asked at these addresses."""
    status = tidewheel("status", "--json", "--http", ",".join(addresses))
    assert status.returncode in (0, 1, 2), status.stderr
    rows = {one["name"]: one for one in json.loads(status.stdout)["rows"]}
    return dict(rows[name])


def test_the_status_tells_of_copies_and_of_a_node_that_is_gone(nodes: list[Node], eventually: Any) -> None:
    leader = leader_of(nodes, eventually)
    other = next(node for node in nodes if node is not leader)
    eventually(lambda: row_of("copies", leader.http)["state"] == "OK")
    led = f"node {leader.name} leads, 1 follower"
    eventually(lambda: row_of("copies", other.http, leader.http)["said"] == led)
    assert row_of("copies", other.http)["state"] == "OK"
    room = row_of("room", other.http)
    assert (room["state"], room["see"]) == ("UNKNOWN", f"tidewheel status --http http://{leader.http}")
    assert row_of("room", other.http, leader.http)["state"] != "UNKNOWN"
    assert tidewheel("check", "cluster", "--http", leader.http).stdout.startswith("OK - cluster: ")
    other.kill()
    gone = row_of("copies", leader.http, other.http)
    assert gone["state"] != "OK"
    assert f"{other.http} gives no status" in gone["said"]
    eventually(lambda: f"follower {other.name} is behind for" in row_of("copies", leader.http)["said"])
    probe = tidewheel("check", "cluster", "--http", leader.http)
    assert (probe.returncode, probe.stdout.split()[0]) in ((1, "WARNING"), (2, "CRITICAL"))


@pytest.mark.parametrize("how", ["killed", "moved"])
def test_the_next_leader_knows_clients_and_what_they_were_told(
    nodes: list[Node], how: str, eventually: Any
) -> None:
    """The clients say nothing after the takeover but what they would say without one."""
    leader = leader_of(nodes, eventually)
    other = next(node for node in nodes if node is not leader)
    here = other if how == "killed" else leader
    for name, kind in (("bought", "transaction"), ("later", "delay"), ("chat", "lite"), ("orders", "normal")):
        made = tidewheel("topic", "create", name, "--type", kind, "--http", leader.http)
        assert made.returncode == 0, made.stderr
    produces = definition_pb2.Settings(client_type=definition_pb2.ClientType.PRODUCER)
    produces.publishing.validate_message_type = True
    consumes = definition_pb2.Settings(client_type=definition_pb2.ClientType.LITE_PUSH_CONSUMER)
    consumes.subscription.group.name = "readers"
    producer, consumer = Client(here, "producer", produces), Client(here, "consumer", consumes)
    lite_topic = service_pb2.SyncLiteSubscriptionRequest(
        action=definition_pb2.LiteSubscriptionAction.COMPLETE_ADD,
        topic=definition_pb2.Resource(name="chat"),
        group=consumes.subscription.group,
        lite_topic_set=["mine"],
    )
    consumer.call(lite_topic)
    kinds = definition_pb2.MessageType
    in_an_hour = Timestamp(seconds=int(time.time()) + 3_600)
    recall = producer.send(
        "later", "L", message_type=kinds.DELAY, delivery_timestamp=in_an_hour
    ).recall_handle
    producer.send("orders", "P")
    (lent,) = consumer.receive("orders", "workers")
    before = told_routes(producer, here)
    half = producer.send("bought", "H", message_type=kinds.TRANSACTION)

    if how == "killed":
        leader.kill()
    else:
        assert tidewheel("cluster", "move", "--http", leader.http).returncode == 0
    eventually(lambda: other.role() == "leading")
    producer.send("chat", "C", message_type=kinds.LITE, lite_topic="mine")
    (read,) = consumer.receive("chat", "readers")
    assert read.system_properties.message_id == "C"
    asked = producer.asked()
    assert (asked.transaction_id, asked.message.system_properties.message_id) == (half.transaction_id, "H")
    known = tidewheel("client", "ls", "--http", other.http).stdout
    assert all(name in known for name in ("producer", "consumer")), known
    assert "consumer" in tidewheel("group", "clients", "readers", "--http", other.http).stdout
    end = service_pb2.EndTransactionRequest(
        topic=definition_pb2.Resource(name="bought"),
        message_id="H",
        transaction_id=asked.transaction_id,
        resolution=definition_pb2.TransactionResolution.COMMIT,
        source=definition_pb2.TransactionSource.SOURCE_SERVER_CHECK,
    )
    producer.call(end)
    (bought,) = consumer.receive("bought", "workers")
    assert bought.system_properties.message_id == "H"
    producer.call(
        service_pb2.RecallMessageRequest(topic=definition_pb2.Resource(name="later"), recall_handle=recall)
    )
    taken = service_pb2.AckMessageEntry(message_id="P", receipt_handle=lent.system_properties.receipt_handle)
    consumer.call(
        service_pb2.AckMessageRequest(
            topic=definition_pb2.Resource(name="orders"),
            group=definition_pb2.Resource(name="workers"),
            entries=[taken],
        )
    )
    assert told_routes(producer, here) == before
    for one in nodes if how == "moved" else [other]:
        stranger = Client(one, "stranger", produces)
        assert told_routes(stranger, one) == before
        stranger.close()
    for client in (producer, consumer):
        client.close()
    eventually(lambda: "producer" not in tidewheel("client", "ls", "--http", other.http).stdout)


def test_a_node_that_is_told_to_stop_hands_over(nodes: list[Node], eventually: Any) -> None:
    leader = leader_of(nodes, eventually)
    other = next(node for node in nodes if node is not leader)
    assert tidewheel("send", "orders", "before", "--http", leader.http).returncode == 0
    assert leader.stop() == 0
    assert tidewheel("send", "orders", "after", "--http", other.http).returncode == 0
    assert other.view()["took_over"]["why"] == "the leader left"
    found: dict[str, bytes] = {}
    eventually(lambda: found.update(other.receive("orders")) or len(found) == 2)


def changed(database: str, *commands: str) -> None:
    """Change settings of the server, and have it read them."""
    with psycopg.connect(database, autocommit=True) as connection:
        for command in (*commands, "SELECT pg_reload_conf()"):
            connection.execute(command.encode())


def found_by_doctor(url: str, code: int) -> list[tuple[str, str, str]]:
    """What `cluster doctor` finds: step, verdict, sentence and advice."""
    done = tidewheel("cluster", "doctor", url, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return [
        (one["step"], one["verdict"], f"{one['seen']} {one['advice']}") for one in json.loads(done.stdout)
    ]


def test_a_setting_that_turned_bad_stops_new_messages_until_it_is_mended(
    nodes: list[Node], database: str, eventually: Any
) -> None:
    leader = leader_of(nodes, eventually)
    other = next(node for node in nodes if node is not leader)
    later = tidewheel("send", "orders", "later", "--timer-key", "k", "--in", "1h", "--http", leader.http)
    assert later.returncode == 0, later.stderr
    try:
        changed(database, "ALTER SYSTEM SET fsync = off")
        leader.kill()
        eventually(lambda: other.view()["engine_trouble"])
        (trouble,) = other.view()["engine_trouble"]
        command = trouble.partition("Set it: ")[2].partition(";")[0]
        assert command == "ALTER SYSTEM SET fsync = on"
        refused = tidewheel("send", "orders", "new", "--http", other.http)
        assert refused.returncode == 1
        assert "TW-259" in refused.stderr
        assert trouble in refused.stderr
        for path in ("metrics", "readyz"):
            with urlopen(f"http://{other.http}/{path}") as answer:
                said = answer.read().decode()
            assert {"metrics": "tidewheel_cluster_engine_trouble 1", "readyz": trouble}[path] in said
        assert trouble in tidewheel("cluster", "status", "--http", other.http).stdout
        gone = tidewheel("timer", "cancel", "--topic", "orders", "--timer-key", "k", "--http", other.http)
        assert "CANCELLED" in gone.stdout
        assert ("settings", "WRONG", f"{trouble} ") in found_by_doctor(other.options[1], 1)
        changed(database, command)
        eventually(lambda: not other.view()["engine_trouble"])
        assert tidewheel("send", "orders", "new", "--http", other.http).returncode == 0
        assert trouble in other.log()
    finally:
        changed(database, "ALTER SYSTEM RESET ALL")


def unready(node: Node) -> str:
    """Return why a node is not ready, or "" if it is ready."""
    try:
        with urlopen(f"http://{node.http}/readyz"):
            return ""
    except HTTPError as refusal:
        return str(refusal.read().decode()) if refusal.code == 503 else ""


def test_any_node_says_why_the_shared_log_does_not_answer(
    nodes: list[Node], database: str, eventually: Any
) -> None:
    leader = leader_of(nodes, eventually)
    assert tidewheel("send", "orders", "before", "--http", leader.http).returncode == 0
    why = "'ANY 1 (gone)' and needs 1 in step; now: none"
    try:
        changed(database, "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (gone)'")
        for node in nodes:  # the leader beats, the other stands, and both wait for the standby
            # mypy infers no type for a lambda's default.
            eventually(lambda node=node: why in node.view()["unanswered"])  # type: ignore[misc]
            eventually(lambda node=node: why in unready(node))  # type: ignore[misc]  # as above
            shown = tidewheel("cluster", "status", "--http", node.http).stdout
            assert "UNANSWERED" in shown
            assert "ALTER SYSTEM SET synchronous_standby_names = ''" in shown
            with urlopen(f"http://{node.http}/metrics") as answer:
                scraped = answer.read().decode()
            assert "\ntidewheel_cluster_engine_unanswered_seconds 0.0" not in scraped
            assert why in node.log()
        findings = found_by_doctor(leader.options[1], 1)
        assert [one[:2] for one in findings[-2:]] == [("write", "WRONG"), ("settings", "WRONG")]
        assert why in findings[-1][2]
        refused = tidewheel("send", "orders", "refused", "--http", leader.http)
        assert (refused.returncode, "TW-259" in refused.stderr) == (1, True), refused
    finally:
        changed(database, "ALTER SYSTEM RESET ALL")
    eventually(lambda: not any(node.view()["unanswered"] for node in nodes))
    leader_of(nodes, eventually)
    eventually(lambda: tidewheel("send", "orders", "after", "--http", leader.http).returncode == 0)


def test_the_doctor_says_what_lies_there_and_what_is_wrong(tmp_path: Path, database: str) -> None:
    url = f"{database}&log={tmp_path.name}"
    connect, cluster, _ = found_by_doctor(url, 1)
    assert connect == ("connect", "ok", f"{url} answers ")
    assert cluster[:2] == ("cluster", "WRONG")
    assert f"tidewheel cluster create '{url}'" in cluster[2]
    made = tidewheel("cluster", "create", url)
    assert "look:  What is acknowledged is on one machine" in made.stderr
    _, cluster, records, write, settings = found_by_doctor(url, 0)
    assert records == ("records", "ok", "each is there once, and each matches its CRC ")
    assert cluster[:2] == ("cluster", "ok")
    assert cluster[2].startswith(made.stderr.split()[1])
    assert "the last a GENESIS of epoch 0" in cluster[2]
    assert write[:2] == ("write", "ok")
    assert settings[1] == "look"
    with running_standby(database, "s1") as standby:
        findings = found_by_doctor(f"{standby}&log={tmp_path.name}", 1)
        assert [one[:2] for one in findings if one[1] != "ok"] == [("write", "WRONG"), ("settings", "WRONG")]
        assert "Name the primary in the URL" in findings[-1][2]


def rows_of(database: str, name: str, command: str) -> list[Any]:
    """Run a statement on a log's tables, as an operator does; return its rows."""
    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(command.format(log=name).encode())
        return [] if cursor.description is None else cursor.fetchall()


def test_rows_that_postgresql_has_doubled_stop_no_node(
    nodes: list[Node], tmp_path: Path, database: str, eventually: Any
) -> None:
    leader = leader_of(nodes, eventually)
    assert tidewheel("send", "orders", "before", "--http", leader.http).returncode == 0
    for node in nodes:
        assert node.stop() == 0
    for command in (
        "DROP INDEX {log}_record_record_idx",
        "CREATE INDEX ON {log}_record (record)",  # not unique, as an operator may make it
        "INSERT INTO {log}_record SELECT * FROM {log}_record",
    ):
        rows_of(database, tmp_path.name, command)
    for node in nodes:
        node.start()
    leader = leader_of(nodes, eventually)
    assert tidewheel("send", "orders", "after", "--http", leader.http).returncode == 0

    def faults() -> str:
        """Return the faults of the shared log that the leader reports."""
        return " ".join((leader.view()["scrub"] or {}).get("faults", ()))

    eventually(lambda: "more than once" in faults() and "no valid unique index" in faults())
    for node in nodes:
        # mypy infers no type for a default of a lambda.
        eventually(lambda node=node: node.role() in ("leading", "following"))  # type: ignore[misc]
        with urlopen(f"http://{node.http}/metrics") as answer:
            assert "\ntidewheel_cluster_repeated_records " in answer.read().decode()


def test_a_row_that_postgresql_has_lost_is_named_by_all(
    tmp_path: Path, database: str, eventually: Any
) -> None:
    url = f"{database}&log={tmp_path.name}"
    assert tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    leader, other = (Node(tmp_path, name, url) for name in "ab")
    leader.start()
    eventually(lambda: leader.role() == "leading")
    assert tidewheel("send", "orders", "before", "--http", leader.http).returncode == 0
    assert leader.stop() == 0  # it goes on from its checkpoint, and looks at the log as it leads
    rows_of(database, tmp_path.name, "DELETE FROM {log}_record WHERE record = 1")
    leader.start()
    eventually(lambda: leader.role() == "leading")
    eventually(lambda: (leader.view()["scrub"] or {}).get("faults"))
    said = f"Record 1 of {tmp_path.name}_record is missing: 2 follows 0."
    assert leader.view()["scrub"]["faults"] == [said]
    for path, wanted in (
        ("readyz", f"ready\nthe shared log is damaged: {said}"),
        ("metrics", "_log_faults 1"),
    ):
        with urlopen(f"http://{leader.http}/{path}") as answer:
            assert wanted in answer.read().decode()
    assert "DAMAGED" in tidewheel("cluster", "status", "--http", leader.http).stdout
    eventually(lambda: said in leader.log())
    assert any(one[:2] == ("records", "WRONG") and said in one[2] for one in found_by_doctor(url, 1))
    other.start()  # it gets the leader's copy, which lies behind the record
    eventually(lambda: other.role() == "following")
    assert (leader.stop(), other.stop()) == (0, 0)


@pytest.mark.parametrize("was_read", [False, True])
def test_a_follower_gets_a_copy_behind_a_row_that_postgresql_has_lost(
    nodes: list[Node], tmp_path: Path, database: str, eventually: Any, was_read: bool
) -> None:
    newest = "SELECT max(record) FROM {log}_record WHERE get_byte(stored, 20) = 3"  # of BYTES
    leader = leader_of(nodes, eventually)
    other = next(node for node in nodes if node is not leader)
    assert tidewheel("send", "orders", "first", "--http", leader.http).returncode == 0
    eventually(lambda: other.view()["end_offset"] == leader.view()["end_offset"])
    assert other.stop() == 0
    ((read,),) = rows_of(database, tmp_path.name, newest)
    for number in range(5):
        assert tidewheel("send", "orders", f"behind {number}", "--http", leader.http).returncode == 0
    ((unread,),) = rows_of(database, tmp_path.name, newest)
    record = read if was_read else unread
    rows_of(database, tmp_path.name, f"DELETE FROM {{log}}_record WHERE record = {record}")
    other.start()
    eventually(lambda: f"Record {record} is missing" in leader.log())
    eventually(lambda: other.role() == "following" and not leader.view()["broken_records"])
    eventually(lambda: tidewheel("send", "orders", "last", "--http", leader.http).returncode == 0)
    eventually(lambda: other.view()["end_offset"] == leader.view()["end_offset"])
    leader.kill()
    eventually(lambda: other.role() == "leading")
    found: set[bytes] = set()
    wanted = {b"first", b"last", *(b"behind %d" % number for number in range(5))}
    eventually(lambda: wanted <= (found.update(body for _, body in other.receive("orders")) or found))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("postgresql://shop:secret@127.0.0.1:9/orders", "psql postgresql://shop@127.0.0.1:9/orders"),
        ("postgresql://shop:secret@no.such.host.invalid/orders", "no.such.host.invalid"),
    ],
)
def test_the_doctor_says_what_does_not_answer_and_no_password(given: str, said: str) -> None:
    (connect,) = found_by_doctor(given, 1)
    assert connect[:2] == ("connect", "WRONG")
    assert said in connect[2]
    assert "secret" not in connect[2]


def test_a_node_with_another_key_does_not_join(tmp_path: Path, database: str, eventually: Any) -> None:
    url = f"{database}&log={tmp_path.name}"
    assert tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    keys = [tmp_path / "key-a", tmp_path / "key-b"]
    first, other = Node(tmp_path, "a", url), Node(tmp_path, "b", url)
    first.options += ("--auth-key", str(keys[0]))
    first.start()
    eventually(lambda: first.role() == "leading")
    added = tidewheel("auth", "user", "add", "orders", "--http", first.http)
    assert added.returncode == 0, added.stderr
    without = other.options
    for options, said in (
        (("--auth-key", str(keys[1])), "This node has another --auth-key than node a, which leads epoch 1"),
        ((), "Node a, which leads epoch 1, has an --auth-key, and this node has none"),
    ):
        other.options = (*without, *options)
        other.start()
        eventually(lambda: other.role() == "halted")
        assert said in tidewheel("cluster", "status", "--http", other.http).stdout
        assert other.stop() == 0
    keys[1].write_text(keys[0].read_text())
    other.options = (*without, "--auth-key", str(keys[1]))
    other.start()
    eventually(lambda: other.role() == "following")
    assert first.stop() == 0
    eventually(lambda: other.role() == "leading")
    assert keys[0].read_text().strip() not in json.dumps(other.view())
    assert "orders" in tidewheel("auth", "user", "ls", "--http", other.http).stdout
    assert other.stop() == 0


def test_users_of_a_cluster_need_a_key_that_all_nodes_have(nodes: list[Node], eventually: Any) -> None:
    leader = leader_of(nodes, eventually)
    refused = tidewheel("auth", "user", "add", "orders", "--http", leader.http)
    assert refused.returncode != 0
    assert "--auth-key FILE" in refused.stderr
    assert not (leader.store / "users.key").exists()


def test_mistakes_are_answered_with_what_to_do(tmp_path: Path, database: str) -> None:
    url = f"{database}&log={tmp_path.name}"

    def refusal(*arguments: object) -> tuple[int, str]:
        done = tidewheel(*arguments)
        return done.returncode, done.stderr

    serve = ("serve", "--store", tmp_path / "s", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    code, said = refusal(*serve, "--cluster", url, "--node", "a")
    assert (code, "TW-255" in said, "tidewheel cluster create" in said) == (4, True, True), said
    assert refusal("cluster", "create", "redis://here/1")[0] == 2
    assert tidewheel("cluster", "create", url).returncode == 0
    code, said = refusal("cluster", "create", url)
    assert (code, "TW-256" in said, "?log=" in said) == (4, True, True), said
    code, said = refusal(*serve, "--cluster", url)
    assert (code, "--node NAME" in said) == (2, True), said
    code, said = refusal(*serve, "--cluster", url, "--node", "a", "--auth")
    assert (code, "--auth-key FILE" in said) == (2, True), said
    everywhere = ("serve", "--store", tmp_path / "s", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0")
    code, said = refusal(*everywhere, "--insecure", "--cluster", url, "--node", "a")
    assert (code, "--http 0.0.0.0 is no address" in said) == (2, True), said
    code, said = refusal(*serve, "--cluster", url, "--node", "a", "--clock", "virtual")
    assert (code, "--clock virtual" in said) == (2, True), said
    nowhere = "postgresql://nobody@127.0.0.1:9/none"
    code, said = refusal("cluster", "create", nowhere)
    assert (code, "PostgreSQL did not answer" in said) == (1, True), said
    assert "tidewheel cluster doctor" in said, said


def test_a_store_is_of_one_node_of_one_cluster(tmp_path: Path, nodes: list[Node], database: str) -> None:
    node = nodes[0]
    assert node.stop() == 0
    alone = ("serve", "--store", node.store, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    other = f"{database}&log={tmp_path.name}_other"
    assert tidewheel("cluster", "create", other).returncode == 0
    for wrong in (("--cluster", other, "--node", "a"), ("--cluster", node.options[1], "--node", "c")):
        refused = tidewheel(*alone, *wrong)
        assert (refused.returncode, "another --store" in refused.stderr) == (2, True), refused.stderr
    assert tidewheel("store", "verify", "--store", node.store).returncode == 0
    assert tidewheel("store", "repair", "--store", node.store).returncode == 2
    refused = tidewheel(*alone)
    assert (refused.returncode, "--cluster and --node" in refused.stderr) == (2, True), refused.stderr


class SmallNode(Node):
    """A node that takes a checkpoint, and lets the log be trimmed, after a few records."""

    module = "tests.endurance.small_checkpoint_node"


@pytest.fixture
def small_nodes(tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SmallNode]]:
    monkeypatch.setattr(postgres, "PARTITION_RECORDS", 20)
    url = f"{database}&log={tmp_path.name}"
    assert tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    three = [SmallNode(tmp_path, name, url) for name in "abc"]
    for node in three:
        node.start()
    yield three
    for node in three:
        assert node.process is not None
        if node.process.poll() is None:
            assert node.stop() == 0, node.log()[-3_000:]


def test_a_leader_whose_disk_fails_leaves_and_follows_once_it_is_well(
    tmp_path: Path, database: str, eventually: Any
) -> None:
    try:
        library = sick_disk.build(tmp_path)
    except NoCompiler:
        pytest.skip("a disk that fails is a C library, and there is no compiler")
    url = f"{database}&log={tmp_path.name}"
    assert tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    both = [Node(tmp_path, name, url) for name in "ab"]
    disks = {node.name: SickDisk(library, node.store, tmp_path / f"{node.name}.disk") for node in both}
    try:
        for node in both:
            node.environment = disks[node.name].environment()
            node.start()
        leader = leader_of(both, eventually)
        other = next(node for node in both if node is not leader)
        eventually(lambda: other.role() == "following")
        disks[leader.name].set(write=1_000_000, armed=1)
        tidewheel("send", "orders", "nobody knows", "--http", other.http)
        eventually(lambda: other.role() == "leading")
        assert other.view()["took_over"]["why"] == "the leader left"
        assert tidewheel("send", "orders", "told", "--http", other.http).returncode == 0
        disks[leader.name].heal()
        eventually(lambda: leader.role() == "following")
        assert b"told" in [body for _, body in leader.receive("orders")]
    finally:
        for node in both:
            if node.process is not None:
                node.kill()


def tells_of_copy(leader: Node, other: Node) -> bool:
    """Whether the leader knows how to ask the other one, and that follows."""
    return bool(leader.view()["copies"].get(other.name, {}).get("http")) and other.role() == "following"


def test_a_leader_whose_clock_steps_hands_over_and_says_so(
    tmp_path: Path, database: str, eventually: Any
) -> None:
    try:
        library = sick_clock.build(tmp_path)
    except NoCompiler:
        pytest.skip("a clock that steps is a C library, and there is no compiler")
    url = f"{database}&log={tmp_path.name}"
    assert tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    both: dict[Node, SickClock] = {
        SmallNode(tmp_path, name, url): SickClock(library, tmp_path / f"{name}.clock") for name in "ab"
    }
    try:
        for node, clock in both.items():
            node.environment = {**os.environ, **clock.variables(), "CHECKPOINT_RECORDS": "5"}
            node.start()
        for offset_ms in (10_000, -3_600_000):
            leader = leader_of(list(both), eventually)
            other = next(node for node in both if node is not leader)
            eventually(lambda leader=leader, other=other: tells_of_copy(leader, other))
            both[leader].be_off_by(offset_ms)
            eventually(lambda other=other: other.role() == "leading")
            view = leader.view()
            assert view["clock_is_off"], view
            assert abs(view["clock_skew_ms"] - offset_ms) < 1_000, view
            said = tidewheel("cluster", "status", "--http", leader.http).stdout
            assert "its clock is off: it leads only while no other can" in said, said
            assert "hands over to a node that is fit" in leader.log()
            both[leader].be_off_by(0)
            eventually(lambda leader=leader: not leader.view()["clock_is_off"])
    finally:
        for node in both:
            if node.process is not None:
                node.kill()


def test_a_node_whose_disk_is_lost_or_spoiled_gets_the_copy_of_another(
    small_nodes: list[SmallNode], eventually: Any
) -> None:
    leader = leader_of(list(small_nodes), eventually)
    others = [node for node in small_nodes if node is not leader]
    for number in range(40):
        sent = tidewheel("send", "orders", f"{number}", "--http", leader.http) if number % 10 == 0 else None
        assert sent is None or sent.returncode == 0
    assert tidewheel("send", "orders", "timed", "--timer-key", "k", "--in", "1h", "--http", leader.http)
    eventually(lambda: leader.view()["trimmed_below"] > 20)

    def are_all_told_of() -> bool:
        """Whether the last to start has told of itself, too: the others' words let trim before."""
        told = tidewheel("cluster", "nodes", "--http", others[0].http).stdout
        return all(f"\n{name} " in told for name in "abc")

    eventually(are_all_told_of)

    # One loses its disk, another throws its copy away: the log does not reach back to its beginning.
    lost, thrown = others
    assert lost.stop() == 0
    assert tidewheel("cluster", "forget", lost.store.name, "--http", thrown.http).returncode == 0
    for path in lost.store.iterdir():
        if path.is_dir():
            rmtree(path)
        else:
            path.unlink()
    lost.start()
    eventually(lambda: "copied" in lost.log() and lost.view()["role"] == "following")
    assert thrown.stop() == 0
    assert tidewheel("cluster", "refetch", "--store", thrown.store).returncode == 0
    thrown.start()
    eventually(lambda: "copied" in thrown.log() and thrown.view()["role"] == "following")

    # The leader's own log is spoiled: it finds that when it reads, hands over and heals.
    leader.kill()
    eventually(lambda: any(node.view()["role"] == "leading" for node in others))
    now = next(node for node in others if node.view()["role"] == "leading")
    found: dict[str, bytes] = {}
    eventually(lambda: found.update(now.receive("orders")) or len(found) == 4)

    def is_cancelled() -> bool:
        """Whether the timer is cancelled, asked again where a busy machine let the lease end once more."""
        done = tidewheel("timer", "cancel", "--topic", "orders", "--timer-key", "k", "--http", others[0].http)
        return "CANCELLED" in done.stdout

    eventually(is_cancelled)
    segment = next((leader.store / "commitlog").iterdir())
    spoiled = bytearray(segment.read_bytes())
    spoiled[100:300] = bytes(200)
    segment.write_bytes(spoiled)
    for path in (leader.store / "snapshots").iterdir():
        path.write_bytes(b"spoiled")
    leader.start()
    eventually(lambda: "needs a copy" in leader.log() and leader.view()["role"] == "following")
    assert tidewheel("cluster", "move", leader.store.name, "--http", others[0].http).returncode == 0
    # The node that was asked may read the new epoch before the node that begins it.
    eventually(lambda: leader.role() == "leading")
    for node in small_nodes:
        assert node.stop() == 0
        verified = tidewheel("store", "verify", "--store", node.store)
        assert verified.returncode == 0, verified.stdout


class VersionedNode(Node):
    """A node whose program supports another version than this one, by the variable `SUPPORTED_VERSION`."""

    module = "tests.endurance.node_of_version"


def test_a_version_is_finalized_once_all_nodes_support_it_and_shuts_older_programs_out(
    tmp_path: Path, database: str, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{database}&log={tmp_path.name[-20:]}"
    assert tidewheel("cluster", "create", url, "--segment-bytes", SEGMENT_BYTES).returncode == 0
    older, newer = VersionedNode(tmp_path, "a", url), VersionedNode(tmp_path, "b", url)

    def started(node: Node, supported: int) -> None:
        monkeypatch.setenv("SUPPORTED_VERSION", str(supported))
        node.start()

    def set_version(*wanted: int) -> tuple[int, str]:
        done = tidewheel("cluster", "set-version", *wanted, "--http", newer.http)
        return done.returncode, done.stderr

    started(older, SUPPORTED)
    started(newer, SUPPORTED + 1)
    leader_of([older, newer], eventually)
    eventually(lambda: newer.view()["copies"].keys() == {"a", "b"})
    assert tidewheel("send", "orders", "of a mixed cluster", "--http", newer.http).returncode == 0
    assert set_version() == (0, f"Version {SUPPORTED} is finalized.\n"), "the highest that both support"
    code, said = set_version(SUPPORTED + 1)
    assert (code, "TW-258" in said, f"a supports up to {SUPPORTED}. Upgrade" in said) == (4, True, True), said
    code, said = set_version(SUPPORTED - 1)
    assert (code, "never goes down" in said) == (4, True), said
    assert set_version(0)[0] == 2
    told = tidewheel("cluster", "nodes", "--http", newer.http).stdout
    versions = [["version", str(version)] for version in (SUPPORTED, SUPPORTED + 1)]
    assert [line.split()[-3:-1] for line in told.splitlines()[-2:]] == versions

    assert older.stop() == 0
    started(older, SUPPORTED + 1)
    eventually(lambda: newer.view()["copies"]["a"]["supports"] == SUPPORTED + 1)
    assert set_version() == (0, f"Version {SUPPORTED + 1} is finalized.\n")
    eventually(lambda: [one.view()["finalized_version"] for one in (older, newer)] == [SUPPORTED + 1] * 2)
    status = tidewheel("cluster", "status", "--http", newer.http).stdout
    assert f" {SUPPORTED + 1} is finalized, the node supports up to {SUPPORTED + 1}" in status

    # One that goes back to an older program does not join, nor does one that never was here.
    assert older.stop() == 0
    third = VersionedNode(tmp_path, "c", url)
    for node in (older, third):
        started(node, SUPPORTED)
        # mypy infers no type for a lambda's default.
        eventually(lambda node=node: node.role() == "halted")  # type: ignore[misc]
        status = tidewheel("cluster", "status", "--http", node.http).stdout
        assert f"finalized version is {SUPPORTED + 1}, and this program supports up to {SUPPORTED}" in status
        assert node.stop() == 0
    assert tidewheel("send", "orders", "goes on", "--http", newer.http).returncode == 0
    assert newer.stop() == 0


def test_a_move_fails_no_call(nodes: list[Node], eventually: Any) -> None:
    leader_of(nodes, eventually)
    outcomes: list[int] = []
    is_over = Event()

    def go_on(node: Node, name: str) -> None:
        with grpc.insecure_channel(node.listen) as channel:
            call = channel.unary_unary(
                SERVICE + "SendMessage",
                request_serializer=service_pb2.SendMessageRequest.SerializeToString,
                response_deserializer=service_pb2.SendMessageResponse.FromString,
            )
            while not is_over.is_set():
                reply = call(message_of(name), SECONDS, metadata=METADATA)
                outcomes.append(reply.status.code)

    def message_of(name: str) -> service_pb2.SendMessageRequest:
        topic = definition_pb2.Resource(name="orders")
        properties = definition_pb2.SystemProperties(message_id=f"{name}-{uuid4().hex}")
        message = definition_pb2.Message(topic=topic, body=b"x", system_properties=properties)
        return service_pb2.SendMessageRequest(messages=[message])

    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(go_on, node, f"{node.store.name}{n}-") for node in nodes for n in range(2)]
        try:
            for _ in range(4):
                leader = leader_of(nodes, eventually)
                other = next(node for node in nodes if node is not leader)
                before = len(outcomes)
                moved = tidewheel("cluster", "move", "--http", leader.http)
                while "No other node stood in time" in moved.stderr:  # the machine is crowded; no call fails
                    moved = tidewheel("cluster", "move", "--http", leader_of(nodes, eventually).http)
                assert moved.stderr.startswith(f"Node {other.store.name} leads, at "), moved
                # mypy infers no type for a lambda's default.
                eventually(lambda before=before: len(outcomes) > before + 50)  # type: ignore[misc]
        finally:
            is_over.set()
        for one in working:
            one.result()
    assert set(outcomes) == {definition_pb2.Code.OK}


def test_what_an_operator_tells_that_cannot_be_is_refused_with_a_sentence(
    nodes: list[Node], eventually: Any
) -> None:
    leader = leader_of(nodes, eventually)
    other = next(node for node in nodes if node is not leader)
    for verb, name, said in (
        ("move", leader.store.name, "leads already"),
        ("move", "nobody", "There is no node nobody to lead"),
        ("forget", "nobody", "Nothing is kept for a node 'nobody'"),
        ("forget", leader.store.name, "stop it first"),
    ):
        refused = tidewheel("cluster", verb, name, "--http", other.http)
        assert (refused.returncode, "TW-258" in refused.stderr, said in refused.stderr) == (4, True, True), (
            refused
        )
    with pytest.raises(HTTPError) as raised:
        urlopen(f"http://{other.http}/api/cluster/copy")
    assert raised.value.code == 401
    refused = tidewheel("cluster", "refetch", "--store", leader.store)
    assert (refused.returncode, "TW-102" in refused.stderr) == (3, True), refused
    refused = tidewheel("cluster", "refetch", "--store", leader.store.parent)
    assert (refused.returncode, "TW-104" in refused.stderr) == (5, True), refused


def test_a_broker_becomes_a_cluster_and_what_is_left_of_one_another(
    tmp_path: Path, database: str, eventually: Any
) -> None:
    alone = BrokerProcess(tmp_path / "alone", "--segment-bytes", str(SEGMENT_BYTES))
    alone.start()
    for words in (("before",), ("timed", "--timer-key", "k", "--in", "1h")):
        assert tidewheel("send", "orders", *words, "--http", alone.http).returncode == 0
    url = f"{database}&log={tmp_path.name[-20:]}"
    running = tidewheel("cluster", "create", url, "--from", alone.store)
    assert (running.returncode, "TW-102" in running.stderr) == (3, True), running
    assert alone.stop() == 0
    made = tidewheel("cluster", "create", url, "--from", alone.store)
    assert (made.returncode, "now the store of node a" in made.stderr) == (0, True), made
    first, second = Node(tmp_path, "a", url), Node(tmp_path, "b", url)
    first.store = alone.store
    for node in (first, second):
        node.start()
    leader_of([first], eventually)
    assert tidewheel("send", "orders", "after", "--http", second.http).returncode == 0
    eventually(lambda: "copied" in second.log() and second.role() == "following")
    first.kill()
    eventually(lambda: second.role() == "leading")
    found: dict[str, bytes] = {}
    eventually(lambda: found.update(second.receive("orders")) or len(found) == 2)
    assert sorted(found.values()) == [b"after", b"before"]

    # Its database is gone: it begins anew with the newest checkpoint of the node that is left.
    assert second.stop() == 0
    lost = f"{database}&log={tmp_path.name[-20:]}_again"
    again = ("cluster", "restore", lost, "--from", second.store, "--node", "c")
    refused = tidewheel(*again)
    assert (refused.returncode, "TW-261" in refused.stderr) == (4, True), refused
    offset = refused.stderr.split("--accept-loss-after ")[1].split(".")[0]
    restored = tidewheel(
        "cluster", "restore", lost, "--from", second.store, "--node", "c", "--accept-loss-after", offset
    )
    assert restored.returncode == 0, restored
    third = Node(tmp_path, "c", lost)
    third.store = second.store
    third.start()
    leader_of([third], eventually)
    gone = tidewheel("timer", "cancel", "--topic", "orders", "--timer-key", "k", "--http", third.http)
    assert "CANCELLED" in gone.stdout, gone
    assert third.stop() == 0
    no_store = tidewheel("cluster", "create", lost, "--from", tmp_path)
    assert (no_store.returncode, "TW-104" in no_store.stderr) == (5, True), no_store
