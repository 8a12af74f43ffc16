"""grpcurl as docs/clients.md has it: reflection, health and calls in JSON, in plaintext and within TLS.

It is played where it is installed: go install github.com/fullstorydev/grpcurl/cmd/grpcurl@latest
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.clients.conftest import BrokerProcess

SECONDS = 30
SERVICE = "apache.rocketmq.v2.MessagingService"
CLIENT_ID = ("-H", "x-mq-client-id: grpcurl")

pytestmark = pytest.mark.skipif(shutil.which("grpcurl") is None, reason="grpcurl is not installed")


def grpcurl(*arguments: str) -> str:
    """What it prints."""
    done = subprocess.run(["grpcurl", *arguments], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(params=["-plaintext", "-insecure", "-cacert"])
def how(request: pytest.FixtureRequest, broker: BrokerProcess) -> tuple[str, ...]:
    """Plaintext, TLS with any certificate, TLS with the broker's own."""
    authority = str(broker.store / "tls" / "certificate.pem")
    return (request.param, authority) if request.param == "-cacert" else (request.param,)


def test_services_and_messages_are_described(how: tuple[str, ...], broker: BrokerProcess) -> None:
    assert {SERVICE, "grpc.health.v1.Health"} <= set(grpcurl(*how, broker.listen, "list").split())
    assert f"{SERVICE}.SendMessage" in grpcurl(*how, broker.listen, "list", SERVICE)
    assert "bytes body = 4;" in grpcurl(*how, broker.listen, "describe", "apache.rocketmq.v2.Message")


def test_health_is_told_for_everything_and_for_the_service(
    how: tuple[str, ...], broker: BrokerProcess
) -> None:
    for service in ("", SERVICE):
        asked = ("-d", json.dumps({"service": service}))
        told = json.loads(grpcurl(*how, *asked, broker.listen, "grpc.health.v1.Health/Check"))
        assert told == {"status": "SERVING"}


def test_a_message_is_sent_and_received_as_json(
    how: tuple[str, ...], broker: BrokerProcess, topic: str, group: str
) -> None:
    def call(rpc: str, request: object) -> str:
        return grpcurl(*how, *CLIENT_ID, "-d", json.dumps(request), broker.listen, f"{SERVICE}/{rpc}")

    system = {"messageId": "by-hand", "bodyEncoding": "IDENTITY"}
    message = {"topic": {"name": topic}, "body": "aGVsbG8=", "systemProperties": system}
    [entry] = json.loads(call("SendMessage", {"messages": [message]}))["entries"]
    assert entry["messageId"] == "by-hand"
    wanted = {"messageQueue": {"topic": {"name": topic}}, "group": {"name": group}, "batchSize": 1}
    waits = {"invisibleDuration": "30s", "longPollingTimeout": "5s"}
    [received] = [one["message"] for one in every(call("ReceiveMessage", wanted | waits)) if "message" in one]
    assert (received["body"], received["systemProperties"]["messageId"]) == ("aGVsbG8=", "by-hand")


def every(text: str) -> list[Any]:
    """The JSON values of a text, one behind the other."""
    values, place = [], 0
    while text[place:].strip():
        place += len(text[place:]) - len(text[place:].lstrip())
        value, place = json.JSONDecoder().raw_decode(text, place)
        values.append(value)
    return values
