"""A real broker, and a small client of our own protocol stubs that keeps many calls in flight."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.rpc.generated import definition_pb2, service_pb2

START_SECONDS = 30
LOG_SHOWN_CHARACTERS = 8_000
OK = definition_pb2.Code.OK
METADATA = (("x-mq-client-id", "endurance"),)
SERVICE = "/apache.rocketmq.v2.MessagingService/"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=3, help="how often to kill the broker")
    parser.addoption("--deaths", type=int, default=2, help="how often a broker on a sick disk dies")
    parser.addoption("--disk-seed", type=int, default=1, help="what its disk does, and when it dies")
    parser.addoption("--fault", default="", help="only faults of a cluster whose name has this in it")
    parser.addoption("--sabotage", default="", help="only sabotages with one of these words in their names")
    parser.addoption("--bit-step", type=int, default=0, help="flip every so many bits of a store; 0: none")
    parser.addoption(
        "--engine", default="postgresql", help="shared log: postgresql, postgresql2, kafka, kafka3"
    )
    parser.addoption("--nodes", type=int, default=2, help="how many nodes a cluster has")
    parser.addoption("--clients", type=int, default=1, help="how many processes of clients a cluster has")
    parser.addoption(
        "--checkpoints",
        default="small",
        choices=["small", "plain", "both"],
        help="nodes with small checkpoint intervals, with production's, or each in every second round",
    )
    parser.addoption("--hosts", action="store_true", help="run a cluster on hosts, and cut them off (root)")
    parser.addoption("--seconds", type=float, default=8.0, help="how long to be hostile")
    parser.addoption("--soak-seconds", type=float, default=3.0, help="how long all clients go on")


class BrokerProcess:
    """A broker process over a store; started again it keeps its ports."""

    module = "services.cli.main"

    def __init__(self, store: Path, *options: str, soft_limits: str = "") -> None:
        self.store, self.options, self.soft_limits = store, options, soft_limits
        self.listen = self.http = "127.0.0.1:0"
        self._ready = store.with_name(f"{store.name}.ready")
        self._log = store.with_name(f"{store.name}.log")
        self.environment: dict[str, str] | None = None
        """Its environment, if that is not ours."""
        self.place: list[str] = []
        """What stands before its command: the host where it runs, if that is not ours."""
        self.process: subprocess.Popen[bytes] | None = None
        self._launched_at = 0
        """Where its log ended when it was launched."""

    def start(self) -> None:
        """Starts it and waits until it serves."""
        self.launch()
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Waits until it serves, once it was launched.

        Started again it keeps its ports, which another test's process may hold for a moment as the port of a
        connection: then it is launched again.
        """
        deadline = time.monotonic() + START_SECONDS
        while not self.has_come_up():
            assert self.process is not None
            if self.process.poll() is not None:
                text = self._log.read_text()
                assert "TW-101" in text[self._launched_at :], text
                self.launch()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)

    def launch(self) -> None:
        """Starts it; whether it comes up is another thing."""
        self._ready.unlink(missing_ok=True)
        self._launched_at = len(self._log.read_text()) if self._log.exists() else 0
        command = [sys.executable, "-m", self.module, "serve", "--store", str(self.store)]
        where = ["--listen", self.listen, "--http", self.http, "--ready-file", str(self._ready)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.place, *command, *where, *self.options], stderr=log, stdout=log, env=self.environment
            )

    def has_come_up(self) -> bool:
        """Returns whether it serves."""
        if not self._ready.exists() or not (told := self._ready.read_text()):
            return False
        facts = json.loads(told)
        self.listen, self.http = facts["listen"], facts["http"]
        return True

    def log(self) -> str:
        """Returns what it has said."""
        return self._log.read_text()

    def kill(self) -> None:
        """Ends it as `kill -9` does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ends it as an operator does."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(30)


@contextmanager
def logs_shown(*brokers: BrokerProcess) -> Iterator[None]:
    """Add the last lines of each broker's log to whatever the block raises."""
    try:
        yield
    except BaseException as error:
        for broker in brokers:
            error.add_note(f"{broker.store.name} has logged:\n{broker.log()[-LOG_SHOWN_CHARACTERS:]}")
        raise


class Client:
    """Calls of the protocol, without the official client's own retries."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close(None)

    async def send(self, topic: str, message_id: str, body: bytes, **system: Any) -> int:
        """Sends a message; returns the status code."""
        properties = definition_pb2.SystemProperties(message_id=message_id, **system)
        message = definition_pb2.Message(
            topic=definition_pb2.Resource(name=topic), body=body, system_properties=properties
        )
        request = service_pb2.SendMessageRequest(messages=[message])
        reply = await self._call("SendMessage", request, service_pb2.SendMessageResponse)
        return int(reply.status.code)

    async def receive(self, topic: str, group: str, seconds: float = 5) -> list[Any]:
        """Receives up to 32 messages, waiting for the first."""
        resource = definition_pb2.Resource(name=topic)
        request = service_pb2.ReceiveMessageRequest(
            group=definition_pb2.Resource(name=group),
            message_queue=definition_pb2.MessageQueue(topic=resource),
            batch_size=32,
        )
        request.invisible_duration.FromMilliseconds(20_000)
        request.long_polling_timeout.FromMilliseconds(int(seconds * 1000))
        call = self._channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=service_pb2.ReceiveMessageRequest.SerializeToString,
            response_deserializer=service_pb2.ReceiveMessageResponse.FromString,
        )(request, metadata=METADATA, timeout=30)
        return [reply.message async for reply in call if reply.HasField("message")]

    async def ack(self, topic: str, group: str, message: Any) -> int:
        """Acknowledges one message; returns the status code."""
        entry = service_pb2.AckMessageEntry(
            message_id=message.system_properties.message_id,
            receipt_handle=message.system_properties.receipt_handle,
        )
        request = service_pb2.AckMessageRequest(
            group=definition_pb2.Resource(name=group),
            topic=definition_pb2.Resource(name=topic),
            entries=[entry],
        )
        reply = await self._call("AckMessage", request, service_pb2.AckMessageResponse)
        return int(reply.entries[0].status.code)

    async def _call(self, name: str, request: Any, reply: Any) -> Any:
        call = self._channel.unary_unary(
            SERVICE + name,
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return await call(request, metadata=METADATA, timeout=30)


async def eventually(attempt: Any) -> Any:
    """Repeats a call until the broker answers it."""
    for _ in range(300):
        try:
            return await attempt()
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.1)
    raise AssertionError("the broker does not come back")


@pytest.fixture
def endurance() -> dict[str, Any]:
    return {"BrokerProcess": BrokerProcess, "Client": Client, "eventually": eventually, "OK": OK}
