"""Callers who are not who they say, and names that try to leave their namespace, at a real broker.

Each is answered with a status, listed where it was sent away; a caller who does all as it should is served.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.auth.signature import headers, sign
from services.rpc.generated import definition_pb2 as wire
from services.rpc.generated import service_pb2 as service
from services.rpc.generated.definition_pb2 import Code, Resource
from tests.endurance.conftest import SERVICE, BrokerProcess

SECONDS = 20
CLIENT = ("x-mq-client-id", "caller")
USER = "orders"
Headers = tuple[tuple[str, str], ...]

LONG = "n" * 300
NAMESPACES = [
    "..", "../shop", "%", "a%b", "shop%", "%RETRY", "%RETRY%g", "%DLQ", "%DLQ%g", "TW_SYS_ACK", "rmq_sys_x",
    "SCHEDULE_TOPIC_XXXX", "TBW102", LONG, "\n", "\x00", "\x7f", "sh op", "shöp", "*", "shop*",
]  # fmt: skip
NAMES = ["", "..", "../shop%t", "a/b", LONG, "\r\n", "\x01", "*", "t t"]


class Caller:
    """A client of our own stubs, which signs as it is told to."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker, self.secret = broker, b""
        self._channel = grpc.insecure_channel(broker.listen)

    def http(self, path: str, body: object = None) -> Any:
        """Call the JSON interface."""
        data = None if body is None else json.dumps(body).encode()
        with urlopen(
            Request(f"http://{self.broker.http}/api/{path}", data, {"Content-Type": "application/json"})
        ) as answer:
            return json.load(answer)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def signed(self, date: str = "", secret: bytes = b"", user: str = USER) -> Headers:
        """The headers of a call at a date, which is now if nothing else is said."""
        return headers(user, secret or self.secret, date or written())

    def call(self, name: str, request: Any, signed: Headers = ()) -> Any:
        """The status of a call."""
        method = service.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name[name]
        reply = getattr(service, method.output_type.name)
        codec = (type(request).SerializeToString, reply.FromString)
        metadata = (CLIENT, *signed)
        if name == "ReceiveMessage":
            stream = self._channel.unary_stream(SERVICE + name, *codec)
            return next(iter(stream(request, metadata=metadata, timeout=SECONDS))).status
        if name == "Telemetry":
            both = self._channel.stream_stream(SERVICE + name, *codec)
            return next(iter(both(iter([request]), metadata=metadata, timeout=SECONDS))).status
        return self._channel.unary_unary(SERVICE + name, *codec)(
            request, metadata=metadata, timeout=SECONDS
        ).status

    def send(self, topic: Resource, signed: Headers = ()) -> Any:
        """The status of a send."""
        return self.call("SendMessage", sending(topic), signed)

    def counts(self) -> dict[str, int]:
        """Who was sent away, by reason."""
        return dict(self.http("refused")["counts"])


def written(ahead: timedelta = timedelta()) -> str:
    """A date as clients write it."""
    return (datetime.now(UTC) + ahead).strftime("%Y%m%dT%H%M%SZ")


def sending(topic: Resource) -> Any:
    properties = wire.SystemProperties(message_id=uuid4().hex, body_encoding=wire.IDENTITY)
    return service.SendMessageRequest(
        messages=[wire.Message(topic=topic, body=b"x", system_properties=properties)]
    )


def calling(folder: Path, *options: str) -> Iterator[Caller]:
    broker = BrokerProcess(folder / "store", "--segment-bytes", str(1 << 24), *options)
    broker.start()
    caller = Caller(broker)
    yield caller
    caller.close()
    assert broker.stop() == 0


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """A user of a broker that asks, who may send to everything."""
    for caller in calling(tmp_path_factory.mktemp("asked"), "--auth"):
        caller.secret = caller.http("auth/users", {"name": USER})["secret"].encode()
        caller.http("auth/rules", {"user": USER, "topics": ["*"], "verbs": ["send"], "effect": "allow"})
        yield caller


@pytest.fixture(scope="module")
def anybody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """Somebody at a broker that asks nobody."""
    yield from calling(tmp_path_factory.mktemp("anybody"))


def is_fine(caller: Caller) -> None:
    assert caller.send(Resource(name="fine"), caller.signed()).code == Code.OK


def is_refused(caller: Caller, signed: Headers, reason: str) -> None:
    """The call is answered and listed with this reason, and nobody else notices."""
    before = caller.counts().get(reason, 0)
    status = caller.send(Resource(name="t"), signed)
    assert (status.code, status.message[:6]) == (Code.UNAUTHORIZED, "TW-181"), status
    assert reason in status.message.lower()
    assert caller.counts()[reason] == before + 1
    is_fine(caller)


@pytest.mark.parametrize(
    ("ahead", "reason"),
    [
        (timedelta(hours=-20), "replayed"), (timedelta(minutes=-7), "replayed"),
        (timedelta(days=-400), "replayed"), (timedelta(hours=20), "skewed"),
        (timedelta(minutes=7), "skewed"), (timedelta(days=400), "skewed"),
    ],
)  # fmt: skip
def test_a_date_of_another_time_is_refused(asked: Caller, ahead: timedelta, reason: str) -> None:
    is_refused(asked, asked.signed(written(ahead)), reason)


def test_a_signature_is_good_again_within_its_window_as_docs_access_says(asked: Caller) -> None:
    overheard = asked.signed()
    assert [asked.send(Resource(name="t"), overheard).code for _ in range(3)] == [Code.OK] * 3


def test_an_unknown_key_a_wrong_secret_and_nobody_are_told_apart(asked: Caller) -> None:
    is_refused(asked, asked.signed(user="nobody"), "unknown key")
    is_refused(asked, asked.signed(secret=b"wrong"), "wrong signature")
    is_refused(asked, (), "unsigned")
    is_refused(asked, headers("", b"", written()), "unsigned")


STILL_GOOD = re.compile(
    r" *MQv2-HMAC-SHA1 +Credential=orders(?:/[^,\s]*)?, *SignedHeaders=x-mq-date-time, *Signature=([^ ]*) *"
)
"""What differs from a good one in nothing that counts: blanks, a credential's end, the case of digits."""

header_texts = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=120)


@given(header=header_texts, is_scheme=st.booleans(), place=st.integers(0, 200))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_authorization_that_no_client_writes_is_malformed(
    asked: Caller, header: str, is_scheme: bool, place: int
) -> None:
    date = written()
    good = dict(asked.signed(date))["authorization"]
    authorization = "MQv2-HMAC-SHA1 " + header if is_scheme else good[:place] + header + good[place + 1 :]
    status = asked.send(Resource(name="t"), (("x-mq-date-time", date), ("authorization", authorization)))
    still = STILL_GOOD.fullmatch(authorization)
    is_still_good = still is not None and good.lower().endswith(f"={still[1].lower()}")
    assert status.code == (Code.OK if is_still_good else Code.UNAUTHORIZED), (authorization, status)


@pytest.mark.parametrize(
    "authorization",
    [
        "MQv2-HMAC-SHA1", "Basic b3JkZXJzOng=", "Bearer x", "MQv2-HMAC-SHA1 Credential=orders",
        "MQv2-HMAC-SHA1 Credential=orders, SignedHeaders=x-mq-date-time, Signature=", "x" * 4_000,
        "MQv2-HMAC-SHA1 Credential=a/../../b, SignedHeaders=authorization, Signature=" + "0" * 40,
    ],
)  # fmt: skip
def test_malformed_authorizations_are_listed(asked: Caller, authorization: str) -> None:
    is_refused(asked, (("x-mq-date-time", written()), ("authorization", authorization)), "malformed")


@pytest.mark.parametrize("date", ["", "now", "0", "20261322T060000Z", "9" * 4_000])
def test_a_date_that_is_none_is_malformed(asked: Caller, date: str) -> None:
    proof = f"Credential={USER}, SignedHeaders=x-mq-date-time, Signature={sign(asked.secret, date)}"
    is_refused(asked, (("x-mq-date-time", date), ("authorization", f"MQv2-HMAC-SHA1 {proof}")), "malformed")


def every_call(topic: Resource, group: Resource) -> dict[str, Any]:
    """Every RPC that names a topic or a group, with these."""
    receiving = service.ReceiveMessageRequest(
        group=group, message_queue=wire.MessageQueue(topic=topic), batch_size=1
    )
    receiving.invisible_duration.seconds = 30
    return {
        "SendMessage": sending(topic),
        "QueryRoute": service.QueryRouteRequest(topic=topic),
        "QueryAssignment": service.QueryAssignmentRequest(topic=topic, group=group),
        "ReceiveMessage": receiving,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("namespace", "name"),
    [*((namespace, "t") for namespace in NAMESPACES), *(("shop", name) for name in NAMES), ("", "")],
)
def test_a_topic_that_tries_to_leave_its_namespace_is_illegal(
    anybody: Caller, namespace: str, name: str
) -> None:
    topics = anybody.http("topics")
    topic = Resource(resource_namespace=namespace, name=name)
    for rpc, request in every_call(topic, Resource(name="g")).items():
        status = anybody.call(rpc, request)
        assert status.code == Code.ILLEGAL_TOPIC, (rpc, status)
        assert "TW-131" in status.message
    assert anybody.http("topics") == topics
    is_fine(anybody)


@pytest.mark.parametrize(
    ("namespace", "name"),
    [*((namespace, "g") for namespace in NAMESPACES), *(("shop", name) for name in NAMES if name)],
)
def test_a_group_that_tries_to_leave_its_namespace_is_illegal(
    anybody: Caller, namespace: str, name: str
) -> None:
    anybody.send(Resource(name="fine"))
    group = Resource(resource_namespace=namespace, name=name)
    status = anybody.call("ReceiveMessage", every_call(Resource(name="fine"), group)["ReceiveMessage"])
    assert status.code in (Code.ILLEGAL_TOPIC, Code.ILLEGAL_CONSUMER_GROUP), status
    described = wire.Settings(client_type=wire.SIMPLE_CONSUMER, subscription=wire.Subscription(group=group))
    if "%" in namespace:
        status = anybody.call("Telemetry", service.TelemetryCommand(settings=described))
        assert (status.code, status.message[:6]) == (Code.ILLEGAL_TOPIC, "TW-131")
        assert anybody.call("Heartbeat", service.HeartbeatRequest(group=group)).code == Code.ILLEGAL_TOPIC
    is_fine(anybody)


def test_a_namespace_reaches_no_dead_letters_and_no_topic_of_another(anybody: Caller) -> None:
    for namespace in ("a", "b", "", "a-b"):
        assert anybody.send(Resource(resource_namespace=namespace, name="mine")).code == Code.OK
    before = stored(anybody)
    for name in ("%DLQ%g", "%RETRY%g", "TW_SYS_ACK", "b%mine", "%mine", "mine%", "a%mine"):
        assert anybody.send(Resource(resource_namespace="a", name=name)).code == Code.OK
    after = stored(anybody)
    assert {name for name in after if name not in before} == {
        "a%%DLQ%g", "a%%RETRY%g", "a%TW_SYS_ACK", "a%b%mine", "a%%mine", "a%mine%", "a%a%mine",
    }  # fmt: skip
    assert {name: after[name] for name in before} == before


def stored(caller: Caller) -> dict[str, Any]:
    """Every topic, with where its queues end."""
    return {
        one["name"]: caller.http(f"topics/{one['name'].replace('%', '%25')}")["queues"]
        for one in caller.http("topics")["topics"]
    }
