"""The official Python client against a real `tidewheel serve`: one broker for most tests, one topic each."""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

CLIENT_LOGS = tempfile.mkdtemp(prefix="tidewheel-client-logs-")
atexit.register(shutil.rmtree, CLIENT_LOGS, ignore_errors=True)

with patch.dict(os.environ, HOME=CLIENT_LOGS):
    from rocketmq import (
        ClientConfiguration,
        Credentials,
        FilterExpression,
        LitePushConsumer,
        Message,
        Producer,
        PushConsumer,
        SimpleConsumer,
    )

# The client goes on exporting metrics when a test's broker is gone, and says so on standard error.
logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)

logging.getLogger("rocketmq-python-client").propagate = False

SEGMENT_BYTES = 16 * 1024 * 1024
START_SECONDS = 30
ARRIVE_SECONDS = 30
AWAIT_SECONDS = 5
LEASE_SECONDS = 15


class BrokerProcess:
    """A broker that can be killed and started again on the same store and the same ports."""

    def __init__(self, store: Path, *options: str, program: str = "services.cli.main") -> None:
        self.store, self.options, self.program = store, options, program
        self.listen = self.http = "127.0.0.1:0"
        self._ready = store.with_suffix(".ready")
        self._log = store.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it serves."""
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", self.program, "serve", "--store", str(self.store)]
        where = ["--listen", self.listen, "--http", self.http, "--ready-file", str(self._ready)]
        size = ["--segment-bytes", str(SEGMENT_BYTES)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*command, *where, *size, *self.options], stderr=log)
        wait_until(lambda: self._ready.exists() or self._process.poll() is not None, START_SECONDS)
        assert self._process.poll() is None, self._log.read_text()
        facts = json.loads(self._ready.read_text())
        self.listen, self.http = facts["listen"], facts["http"]

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it as an operator would, and return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait()

    def stored(self, topic: str) -> list[dict[str, Any]]:
        """Return every message that the topic holds, delivered or not, as the HTTP interface shows it."""
        address = f"http://{self.http}/api/topics/{topic}"
        with urlopen(address) as answer:
            queues = json.load(answer)["queues"]
        after = ",".join(f"{queue['queue_id']}:{queue['min_offset']}" for queue in queues)
        with urlopen(f"{address}/arrivals?after={after}&limit=1000") as answer:
            return list(json.load(answer)["messages"])

    def metric(self, name: str, label: str = "") -> list[float]:
        """Return the values of a metric's series that carry the label."""
        with urlopen(f"http://{self.http}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return [
            float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{") and label in line
        ]

    def dialled_as(self, host: str) -> BrokerProcess:
        """Return the same broker under another name of its host."""
        return self.dialled_at(f"{host}:{self.listen.rpartition(':')[2]}")

    def dialled_at(self, address: str) -> BrokerProcess:
        """Return the same broker at another address."""
        alias = copy(self)
        alias.listen = address
        return alias

    def create_topic(self, name: str, message_type: str) -> str:
        """Create a topic and return its name."""
        body = json.dumps({"name": name, "message_type": message_type}).encode()
        urlopen(Request(f"http://{self.http}/api/topics", body, {"Content-Type": "application/json"})).close()
        return name


class Clients:
    """Makes official clients and shuts them down."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.credentials = Credentials()

    def signing_as(self, access_key: str, secret: str) -> Clients:
        """Return what makes clients of this user."""
        signing = copy(self)
        signing.credentials = Credentials(access_key, secret)
        return signing

    def producer(
        self, broker: BrokerProcess, *topics: str, checker: Any = None, namespace: str = ""
    ) -> Producer:
        """Return a started producer."""
        return self._started(Producer(self._configuration(broker, namespace), topics, checker=checker))

    def simple(
        self, broker: BrokerProcess, topic: str, group: str, tags: str = "*", namespace: str = ""
    ) -> SimpleConsumer:
        """Return a started simple consumer."""
        subscriptions = {topic: FilterExpression(tags)}
        configuration = self._configuration(broker, namespace)
        return self._started(SimpleConsumer(configuration, group, subscriptions, AWAIT_SECONDS))

    def push(self, broker: BrokerProcess, topic: str, group: str, listener: Any) -> PushConsumer:
        """Return a started push consumer."""
        subscriptions = {topic: FilterExpression()}
        return self._started(PushConsumer(self._configuration(broker), group, listener, subscriptions))

    def lite_push(self, broker: BrokerProcess, topic: str, group: str, listener: Any) -> LitePushConsumer:
        """Return a started push consumer of lite topics."""
        return self._started(LitePushConsumer(self._configuration(broker), group, topic, listener))

    def _configuration(self, broker: BrokerProcess, namespace: str = "") -> ClientConfiguration:
        return ClientConfiguration(broker.listen, self.credentials, namespace)

    def _started(self, client: Any) -> Any:
        client.startup()
        self._stack.callback(lambda: client.is_running and client.shutdown())
        return client


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Return as soon as the condition holds; fail after `seconds`."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"nothing happened within {seconds} s"
        time.sleep(0.02)


def take(consumer: SimpleConsumer, count: int, seconds: float = ARRIVE_SECONDS) -> list[Message]:
    """Receive and acknowledge `count` messages."""
    taken: list[Message] = []
    ends = time.monotonic() + seconds
    while len(taken) < count:
        assert time.monotonic() < ends, f"{len(taken)} of {count} messages came within {seconds} s"
        for message in consumer.receive(32, LEASE_SECONDS):
            consumer.ack(message)
            taken.append(message)
    return taken


def new_message(topic: str, body: str, **attributes: Any) -> Message:
    """Return a message of the official client."""
    message = Message()
    message.topic, message.body = topic, body.encode()
    for name, value in attributes.items():
        setattr(message, name, value)
    return message


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The session's broker, in a hurry: it checks back and gives up leases sooner than in production."""
    hurry = ["--check-immunity-ms", "500", "--check-interval-ms", "1000", "--invisible-ms-min", "1000"]
    yield from serving(BrokerProcess(tmp_path_factory.mktemp("broker") / "store", *hurry))


@pytest.fixture(scope="session")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that creates no topics by itself."""
    yield from serving(BrokerProcess(tmp_path_factory.mktemp("strict") / "store", "--no-auto-create"))


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker for one test, with the settings of production; the test may kill it."""
    yield from serving(BrokerProcess(tmp_path / "store"))


def serving(process: BrokerProcess) -> Iterator[BrokerProcess]:
    """Run a broker; it must end cleanly when asked to."""
    process.start()
    try:
        yield process
    finally:
        code = process.stop()
    assert code == 0


@pytest.fixture(name="serving", scope="session")
def serving_fixture() -> Callable[..., Iterator[BrokerProcess]]:
    """Run a broker of a test's own: see `serving`."""
    return lambda store, *options, **program: serving(BrokerProcess(store, *options, **program))


@pytest.fixture(autouse=True)
def loop_for_the_official_client(main_loop: None) -> None:
    """Have one in each test."""


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Official clients, shut down after the test."""
    with ExitStack() as stack:
        yield Clients(stack)


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return f"topic-{uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    """A consumer group that no other test uses."""
    return f"group-{uuid4().hex[:12]}"


@pytest.fixture(name="take")
def take_fixture() -> Callable[..., list[Message]]:
    """See `take`."""
    return take


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    """See `wait_until`."""
    return wait_until


@pytest.fixture(name="new_message")
def new_message_fixture() -> Callable[..., Message]:
    """See `new_message`."""
    return new_message
