"""The official client and a broker that asks who calls: each verb allowed and refused, no secret seen."""

from __future__ import annotations

import json
import os
import time
from base64 import b64encode
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from rocketmq import TransactionChecker, TransactionResolution
from rocketmq.v5.exception import ClientException, ForbiddenException

from services.auth.errors import Unauthorized
from services.shop.messaging import open_producer
from services.shop.pushes.schedules import PushSchedules
from tests.clients.libraries import LIBRARIES, require
from tests.clients.official import OfficialClient, Refused
from tests.clients.process_client import ProcessClient
from tests.clients.python_client import PythonClient
from tests.clients.scenarios import CANNOT
from tests.command import tidewheel
from tidewheel.errors import BrokerUnreachable

REFUSED = r"TW-182 .*'u-.*' has not "


class Operator:
    """Somebody at the HTTP interface of a broker, who makes a user and says what it may do."""

    def __init__(self, broker: Any, clients: Any, topic: str, group: str) -> None:
        self.broker, self.topic, self.group = broker, topic, group
        self.user = f"u-{topic}"
        self.secret = self.call("auth/users", {"name": self.user})["secret"]
        self.clients = clients.signing_as(self.user, self.secret)

    def call(self, path: str, body: object = None) -> Any:
        """Call the JSON interface."""
        data = None if body is None else json.dumps(body).encode()
        with urlopen(
            Request(f"http://{self.broker.http}/api/{path}", data, {"Content-Type": "application/json"})
        ) as answer:
            return json.load(answer)

    def allow(self, *verbs: str, effect: str = "allow") -> None:
        """Allow verbs on the test's topic and, what fits, on its group."""
        groups = [self.group] if "receive" in verbs else []
        wanted = {"user": self.user, "topics": [self.topic], "groups": groups, "verbs": verbs}
        self.call("auth/rules", wanted | {"effect": effect})

    def deny(self, *verbs: str) -> None:
        """Deny verbs."""
        self.allow(*verbs, effect="deny")

    def last_refused(self) -> str:
        """Return what this user was refused last."""
        refused = self.call("refused?limit=1000")["refused"]
        return next(str(one["detail"]) for one in refused if one["who"] == self.user)

    def reasons(self) -> list[str]:
        """Return why this user was refused, the last reason first."""
        refused = self.call("refused?limit=1000")["refused"]
        return [one["reason"] for one in refused if one["who"] == self.user]


@pytest.fixture(scope="module")
def asking_broker(tmp_path_factory: pytest.TempPathFactory, serving: Any) -> Iterator[Any]:
    """A broker that asks everybody who they are."""
    yield from serving(tmp_path_factory.mktemp("asking") / "store", "--auth", "--invisible-ms-min", "1000")


@pytest.fixture
def operator(asking_broker: Any, clients: Any, topic: str, group: str) -> Operator:
    """A user of the test's own, who may do nothing yet."""
    return Operator(asking_broker, clients, topic, group)


@pytest.fixture(params=["python", *LIBRARIES])
def member(request: pytest.FixtureRequest, operator: Operator, tmp_path: Path) -> Iterator[OfficialClient]:
    """The library of a language, in the name of the test's user."""
    operator.call("auth/rules", {"user": operator.user, "topics": ["first"], "verbs": ["admin"]})  # Go's
    client: PythonClient | ProcessClient
    if request.param == "python":
        client = PythonClient(operator.broker.listen, operator.user, operator.secret)
    else:
        library = LIBRARIES[request.param]
        require(library)
        named = {"TIDEWHEEL_CLIENT_ACCESS_KEY": operator.user, "TIDEWHEEL_CLIENT_SECRET": operator.secret}
        environment = os.environ | named | {"HOME": str(tmp_path)}
        client = ProcessClient(library, operator.broker.listen, environment)
    yield client
    client.close()
    client.stop()


def test_each_verb_is_allowed_and_refused_in_every_language(
    member: OfficialClient, operator: Operator
) -> None:
    topic, cannot = operator.topic, CANNOT.get(member.name, {})
    operator.allow("admin")
    refused("send on topic", member.send, topic, "no")
    operator.allow("send")
    member.send(topic, "yes")
    if "recall" not in cannot:
        handle = member.send(topic, "later", deliver_at_s=int(time.time()) + 600).recall_handle
        operator.deny("send")
        refused("send on topic", member.recall, topic, handle)
        operator.allow("send")
        member.recall(topic, handle)
    refused("transact on topic", member.send_half, topic, "no")
    operator.allow("transact")
    member.send_half(topic, "half")
    operator.deny("transact")
    refused("transact on topic", member.end_half, "half", "commit")
    operator.allow("transact", "receive")
    consumer = member.simple(topic, operator.group)
    [got] = consumer.receive(32, 20)
    operator.deny("receive")
    if "foreign ack refused" in cannot:  # its library does not tell what becomes of acknowledgements
        consumer.ack(got)
        assert "AckMessage: receive on topic" in operator.last_refused()
    else:
        refused("receive on topic", consumer.ack, got)
    if "nack" not in cannot:
        refused("receive on topic", consumer.change_invisible, got, 30)
    refused("receive on topic", consumer.receive)
    operator.allow("receive")
    consumer.ack(got)
    assert [one["body"] for one in operator.broker.stored(topic)] == ["yes"]
    assert set(operator.reasons()) == {"no right"}


def refused(lacking: str, call: Any, *arguments: Any) -> None:
    """Call what is to be refused for want of a right."""
    with pytest.raises(Refused, match=f"{REFUSED}{lacking}"):
        call(*arguments)


class Never(TransactionChecker):
    """Leaves every transaction open."""

    def check(self, message: Any) -> int:
        return int(TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED)


def test_without_any_right_a_topic_is_out_of_reach(operator: Operator, new_message: Any) -> None:
    producer = operator.clients.producer(operator.broker)
    with pytest.raises(Exception, match="failed to fetch topic"):
        producer.send(new_message(operator.topic, "no"))
    assert operator.reasons()[0] == "no right"
    assert operator.topic not in [one["name"] for one in operator.call("topics")["topics"]]


def test_to_send_takes_the_right_to_send(operator: Operator, new_message: Any) -> None:
    operator.allow("receive")
    producer = operator.clients.producer(operator.broker, operator.topic)
    with pytest.raises(ForbiddenException, match=REFUSED + "send on topic"):
        producer.send(new_message(operator.topic, "no"))
    operator.allow("send")
    producer.send(new_message(operator.topic, "yes"))
    assert [one["body"] for one in operator.broker.stored(operator.topic)] == ["yes"]


def test_to_recall_takes_the_right_to_send(operator: Operator, new_message: Any) -> None:
    operator.allow("send")
    producer = operator.clients.producer(operator.broker, operator.topic)
    later = new_message(operator.topic, "later", delivery_timestamp=int(time.time()) + 600)
    handle = producer.send(later).recall_handle
    operator.deny("send")
    with pytest.raises(ForbiddenException, match=REFUSED + "send on topic"):
        producer.recall_message(operator.topic, handle)
    operator.allow("send")
    producer.recall_message(operator.topic, handle)
    assert operator.call(f"timers/count?topic={operator.topic}")["count"] == 0


def test_a_transaction_takes_the_right_to_it(operator: Operator, new_message: Any) -> None:
    operator.allow("send")
    producer = operator.clients.producer(operator.broker, operator.topic, checker=Never())
    with pytest.raises(ForbiddenException, match=REFUSED + "transact on topic"):
        producer.send(new_message(operator.topic, "no"), producer.begin_transaction())
    operator.allow("transact")
    transaction = producer.begin_transaction()
    producer.send(new_message(operator.topic, "yes"), transaction)
    operator.deny("transact")
    with pytest.raises(ClientException, match=REFUSED + "transact on topic"):
        transaction.commit()
    assert operator.broker.stored(operator.topic) == []
    operator.allow("transact")
    transaction.commit()
    assert [one["body"] for one in operator.broker.stored(operator.topic)] == ["yes"]


def test_to_consume_takes_the_right_to_topic_and_group(
    operator: Operator, new_message: Any, take: Any
) -> None:
    operator.allow("send", "receive")
    operator.clients.producer(operator.broker, operator.topic).send(new_message(operator.topic, "m"))
    consumer = operator.clients.simple(operator.broker, operator.topic, operator.group)
    other = operator.clients.simple(operator.broker, operator.topic, f"{operator.group}-other")
    with pytest.raises(ForbiddenException, match=REFUSED + "receive on group"):
        other.receive(32, 15)
    [message] = consumer.receive(32, 15)
    operator.deny("receive")
    for refused in (
        lambda: consumer.ack(message),
        lambda: consumer.change_invisible_duration(copy(message), 20),
        lambda: consumer.receive(32, 15),
    ):
        with pytest.raises(ForbiddenException, match=REFUSED + "receive on topic"):
            refused()
    operator.allow("receive")
    consumer.change_invisible_duration(message, 1)
    assert [one.body for one in take(consumer, 1)] == [b"m"]


def test_a_client_without_or_with_wrong_credentials_is_refused(
    operator: Operator, clients: Any, new_message: Any
) -> None:
    operator.allow("send")
    for signing, reason in (
        (clients, "unsigned"),
        (clients.signing_as("nobody", operator.secret), "unknown key"),
        (clients.signing_as(operator.user, "wrong"), "wrong signature"),
    ):
        before = operator.call("refused")["counts"].get(reason, 0)
        with pytest.raises(Exception, match="failed to fetch topic"):
            signing.producer(operator.broker).send(new_message(operator.topic, "no"))
        assert operator.call("refused")["counts"][reason] > before
    assert operator.broker.metric("tidewheel_refused_total", 'reason="unknown key"')[0] > 0


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "America/St_Johns", "Pacific/Kiritimati"])
def test_a_client_whose_clock_shows_local_time_is_welcome(
    operator: Operator, new_message: Any, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    operator.allow("send")
    try:
        with monkeypatch.context() as patched:
            patched.setenv("TZ", zone)
            time.tzset()
            operator.clients.producer(operator.broker, operator.topic).send(new_message(operator.topic, zone))
    finally:
        time.tzset()
    assert [one["body"] for one in operator.broker.stored(operator.topic)] == [zone]


def test_rights_stand_again_after_a_kill(
    clients: Any, topic: str, group: str, new_message: Any, tmp_path: Path, serving: Any
) -> None:
    for broker in serving(tmp_path / "store", "--auth"):
        operator = Operator(broker, clients, topic, group)
        operator.allow("send")
        broker.kill()
        broker.start()
        operator.clients.producer(broker, topic).send(new_message(topic, "after"))
        assert [one["body"] for one in broker.stored(topic)] == ["after"]


def test_the_shop_says_who_it_is_and_bears_the_token(
    clients: Any, topic: str, group: str, new_message: Any, tmp_path: Path, serving: Any, monkeypatch: Any
) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    for broker in serving(tmp_path / "store", "--auth", "--http-token", str(token)):
        schedules = {"cron": "0 9 * * *", "topic": topic, "body": "x"}
        with pytest.raises(BrokerUnreachable):
            PushSchedules("127.0.0.1:1").keep("s", schedules)
        with pytest.raises(Unauthorized):
            PushSchedules(broker.http).keep("s", schedules)
        monkeypatch.setenv("TIDEWHEEL_HTTP_TOKEN", str(token))
        assert PushSchedules(broker.http).keep("s", schedules) > 0
        run("auth", "user", "add", "shop", "--http", broker.http)
        made = json.loads(run("auth", "user", "add", "shop", "--new-secret", "--json", "--http", broker.http))
        run("auth", "acl", "allow", "shop", "send", "--topic", "*", "--http", broker.http)
        monkeypatch.setenv("TIDEWHEEL_ACCESS_KEY", "shop")
        monkeypatch.setenv("TIDEWHEEL_SECRET_KEY_FILE", str(tmp_path / "secret"))
        (tmp_path / "secret").write_text(made["secret"])
        with open_producer(broker.listen, [topic]) as producer:
            assert producer.send(new_message(topic, "m")).message_id


def test_no_secret_is_found_in_store_logs_metrics_and_dumps(
    clients: Any, topic: str, group: str, new_message: Any, take: Any, tmp_path: Path, serving: Any
) -> None:
    seen: dict[str, bytes] = {}
    for broker in serving(tmp_path / "store", "--auth"):
        operator = Operator(broker, clients, topic, group)
        operator.allow("send", "receive", "transact", "admin")
        operator.clients.producer(broker, topic).send(new_message(topic, "m"))
        take(operator.clients.simple(broker, topic, group), 1)
        with pytest.raises(Exception, match="failed to fetch topic"):
            clients.signing_as(operator.user, "wrong").producer(broker).send(new_message(topic, "no"))
        for path in ("metrics", "api/refused", "api/auth/users", "api/auth/rules", "api/groups"):
            seen[path] = urlopen(f"http://{broker.http}/{path}").read()
        seen["tail"] = run("tail", topic, "--from-start", "--limit", "1", "--json", "--http", broker.http)
    store = str(tmp_path / "store")
    run("store", "export", str(tmp_path / "exported"), "--store", store)
    seen["dump"] = run("store", "dump", "log", "--store", store)
    assert b"TW_SYS_AUTH" in seen["dump"]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            seen[str(path.relative_to(tmp_path))] = path.read_bytes()
    assert {"store/users.key", "store.log"} <= seen.keys()
    key = seen.pop("store/users.key").strip()
    secret = operator.secret.encode()
    for name, content in seen.items():
        for hidden in (secret, b64encode(secret).rstrip(b"="), secret.hex().encode(), key):
            assert hidden not in content, name


def run(*arguments: str) -> bytes:
    """Run a command and return all that it says."""
    done = tidewheel(*arguments, environment={"NO_COLOR": "1"})
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).encode()
