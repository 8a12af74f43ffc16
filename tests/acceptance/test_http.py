"""Applications that use nothing but HTTP, over a broker that stops, is killed and starts again."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.endurance.conftest import BrokerProcess

SECONDS = 30


def post(broker: BrokerProcess, path: str, body: object = None, status: int = 200) -> Any:
    """Call the broker; the status must be as expected."""
    calling = http.client.HTTPConnection(broker.http, timeout=SECONDS)
    try:
        calling.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = calling.getresponse()
        said = answer.read()
        assert answer.status == status, said
        return json.loads(said)
    finally:
        calling.close()


def receive(broker: BrokerProcess, **more: Any) -> list[Any]:
    found: list[Any] = post(broker, "/api/groups/g/receive", {"topic": "t"} | more)["messages"]
    return found


def ack(broker: BrokerProcess, *messages: Any) -> int:
    handles = {"receipt_handles": [one["receipt_handle"] for one in messages]}
    return int(post(broker, "/api/groups/g/ack", handles)["done"])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    one = BrokerProcess(tmp_path / "store", "--segment-bytes", str(8 << 20))
    one.start()
    yield one
    assert one.process is not None
    if one.process.poll() is None:
        assert one.stop() == 0, one.log()[-3_000:]


def test_a_broker_that_stops_answers_every_poll_with_one_error(broker: BrokerProcess) -> None:
    post(broker, "/api/topics", {"name": "t"}, 201)
    with ThreadPoolExecutor(20) as callers:
        body = {"topic": "t", "wait": "20s"}
        receives = [callers.submit(post, broker, "/api/groups/g/receive", body, 503) for _ in range(10)]
        asks = {"topics": ["t"], "client": "shop"}
        polls = [callers.submit(post, broker, "/api/transactions/check-backs", asks, 503) for _ in range(10)]
        deadline = time.monotonic() + SECONDS
        while producers(broker) < len(polls):
            assert time.monotonic() < deadline, "the polls do not come"
        assert broker.stop() == 0
        for one in (*receives, *polls):
            assert one.result()["code"] == "TW-224"
    assert "Traceback" not in broker.log()


def producers(broker: BrokerProcess) -> int:
    """How many polls for check-backs are open: those began after the receives."""
    calling = http.client.HTTPConnection(broker.http, timeout=SECONDS)
    calling.request("GET", "/api/transactions/producers")
    found = len(json.loads(calling.getresponse().read())["producers"])
    calling.close()
    return found


def test_what_was_acknowledged_stays_done_when_the_broker_is_killed(broker: BrokerProcess) -> None:
    messages = [{"topic": "t", "body": str(number)} for number in range(100)]
    messages += [{"topic": "t", "body": f"in order {number}", "message_group": "one"} for number in range(5)]
    assert post(broker, "/api/messages", {"messages": messages})["sent"] == 105
    done, got = set[str](), list[Any]()
    while len(done) < 60:
        got = receive(broker, count=20, lease="30s")
        done |= {one["body"] for one in got}
        assert ack(broker, *got) == len(got)
    left = receive(broker, count=10, lease="10s")
    half = post(broker, "/api/transactions", {"topic": "t", "body": "half"}, 201)["transaction_id"]
    broker.kill()
    broker.start()
    assert post(broker, f"/api/transactions/{half}/commit")["resolution"] == "COMMIT"
    again = list[str]()
    deadline = time.monotonic() + SECONDS
    while len(done) + len(again) < 106:
        assert time.monotonic() < deadline, (sorted(done), again)
        got = receive(broker, count=32, wait="1s")
        again += [one["body"] for one in got]
        assert ack(broker, *got) == len(got)
    assert len(set(again)) == len(again)
    assert done.isdisjoint(again), "what was acknowledged came again"
    assert {one["body"] for one in left} <= set(again)
    in_order = [body for body in again if body.startswith("in order")]
    assert in_order == sorted(in_order)


def test_a_thousand_polls_are_open_and_each_gets_a_message(broker: BrokerProcess) -> None:
    post(broker, "/api/topics", {"name": "t"}, 201)
    said = json.dumps({"topic": "t", "wait": "20s", "count": 1}).encode()
    calls = [http.client.HTTPConnection(broker.http, timeout=SECONDS) for _ in range(1_000)]
    for call in calls:
        call.request("POST", "/api/groups/g/receive", said, {"content-type": "application/json"})
    messages = [{"topic": "t", "body": str(number)} for number in range(1_000)]
    assert post(broker, "/api/messages", {"messages": messages})["sent"] == 1_000
    bodies = list[str]()
    for call in calls:
        answer = json.loads(call.getresponse().read())
        bodies += [one["body"] for one in answer["messages"]]
        call.close()
    assert sorted(map(int, bodies)) == list(range(1_000))
