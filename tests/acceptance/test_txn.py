"""Tests `tidewheel txn`, including the resolution of expired transactions and the reports of mistakes."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.request import Request, urlopen

import pytest

from tests.command import tidewheel
from tests.served import serve

with patch.dict(os.environ, HOME=tempfile.mkdtemp(prefix="tidewheel-client-logs-")):
    from rocketmq import (
        ClientConfiguration,
        Credentials,
        Message,
        Producer,
        TransactionChecker,
        TransactionResolution,
    )
    from rocketmq.v5.exception import ClientException

logging.getLogger("rocketmq-python-client").propagate = False

TOPIC = "orders"
CLIENT_MISTAKE, REFUSED, NO_BROKER = 2, 4, 3


class Shop(TransactionChecker):
    """A producer that uses the official client and responds to check-backs with `resolution`."""

    def __init__(self, listen: str) -> None:
        self.resolution = TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        self.producer = Producer(ClientConfiguration(listen, Credentials()), (TOPIC,), checker=self)
        self.producer.startup()

    def check(self, message: Message) -> int:
        return self.resolution

    def half(self, key: str) -> Any:
        """Send a half message without ending the transaction."""
        transaction, message = self.producer.begin_transaction(), Message()
        message.topic, message.body, message.keys, message.tag = TOPIC, b"an order", key, "paid"
        self.producer.send(message, transaction)
        return transaction


class Serving:
    """A broker that sends at most two transaction check-backs, and functions that run its commands."""

    def __init__(self, folder: Path, eventually: Any) -> None:
        self._eventually = eventually
        hurry = ("--check-immunity-ms", "500", "--check-interval-ms", "300", "--check-count-max", "2")
        served = serve(folder, *hurry)
        self.process, self.listen, self.http = served.process, served.listen, served.http

    def txn(self, *arguments: str, code: int = 0) -> str:
        """Run `tidewheel txn` in a terminal with 80 columns, and return the complete output."""
        environment = {"TIDEWHEEL_HTTP": self.http, "NO_COLOR": "1", "COLUMNS": "80"}
        done = tidewheel("txn", *arguments, environment=environment)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert "Traceback" not in said
        return said

    def listed(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the transactions listed by `txn ls --json`."""
        return list(json.loads(self.txn("ls", "--json", *arguments)))

    def expired(self, count: int) -> list[str]:
        """Wait until `count` transactions have expired, and return their IDs."""
        self._eventually(lambda: len(self.listed("--state", "expired")) == count)
        return [one["transaction_id"] for one in self.listed("--state", "expired")]


@pytest.fixture
def broker(tmp_path: Path, eventually: Any) -> Iterator[Serving]:
    serving = Serving(tmp_path, eventually)
    yield serving
    serving.process.kill()
    serving.process.wait()


@pytest.fixture
def shop(broker: Serving) -> Iterator[Shop]:
    shop = Shop(broker.listen)
    yield shop
    if shop.producer.is_running:
        shop.producer.shutdown()


def test_a_stuck_order_is_found_understood_and_ended_by_hand(broker: Serving, shop: Shop) -> None:
    assert "no transaction is open or has expired" in broker.txn("ls")
    stuck = shop.half("order-7")
    shop.half("order-8")
    shop.half("order-9").commit()
    seventh, eighth = broker.expired(2)

    listed = broker.txn("ls")
    assert re.search(rf"^{seventh} +orders +order-7 .* expired +2/2 +needs you", listed, re.MULTILINE), listed
    assert f"2 need you: tidewheel txn show {seventh}" in listed
    summary = broker.txn("summary")
    assert "open 0" in summary
    assert "expired 2" in summary
    assert "1 committed, 0 rolled back" in summary
    with pytest.raises(ClientException, match="EXPIRED"):
        stuck.commit()

    shown = broker.txn("show", "order-7", "--topic", TOPIC)
    assert shown.splitlines()[0] == f"{seventh}  EXPIRED  orders"
    assert re.search(r"^  checks +2 of 2 +UNKNOWN x2$", shown, re.MULTILINE), shown
    assert re.search(r"^  too late +COMMIT was asked for", shown, re.MULTILINE), shown
    assert len(re.findall(r"^  asked +.*: UNKNOWN after \d+", shown, re.MULTILINE)) == 2
    assert f"tidewheel txn resolve {seventh}" in shown

    assert f"{seventh} COMMITTED" in broker.txn(
        "resolve", seventh, "commit", "--reason", "it is in the database"
    )
    assert f"{eighth} ROLLED_BACK" in broker.txn("resolve", eighth, "ROLLBACK", "--reason", "it is not")
    assert "ended so before" in broker.txn("resolve", seventh, "commit", "--reason", "again")
    shown = broker.txn("show", seventh.lower())
    assert "COMMITTED" in shown
    assert re.search(r"^  reason +it is in the database$", shown, re.MULTILINE), shown
    assert "needs you" not in shown
    assert "no transaction is open or has expired" in broker.txn("ls")
    [ninth] = broker.listed("--topic", TOPIC, "--key", "order-9")
    assert ninth["state"] == "COMMITTED"


def test_an_operator_is_told_what_came_of_the_verb_of_a_half(broker: Serving) -> None:
    def posted(path: str, **wanted: object) -> Any:
        head = {"Content-Type": "application/json"}
        request = Request(f"http://{broker.http}/api/{path}", json.dumps(wanted).encode(), head)
        with urlopen(request) as answer:
            return json.load(answer)

    posted("timers", topic="deadlines", body="x", timer_key="order:7", **{"in": "1h"})
    verb = {"TW_TIMER_CANCEL": "order:7", "TW_TIMER_TOPIC": "deadlines"}
    half = posted("transactions", topic=TOPIC, body="paid", properties=verb, check_after="10m")
    half_id = half["transaction_id"]
    said = broker.txn("resolve", half_id, "commit", "--reason", "it is paid")
    assert "the timer that it names: CANCELLED\n" in said
    answer = json.loads(broker.txn("resolve", half_id, "commit", "--reason", "again", "--json"))
    assert answer["repeated"]
    assert answer["verdict"]["verdict"] == "CANCELLED"


def test_who_can_be_asked_who_was_and_asking_now(broker: Serving, shop: Shop, eventually: Any) -> None:
    assert "no producer was asked" in broker.txn("log")
    assert re.search(r"^orders +\S+ +connected", broker.txn("producers"), re.MULTILINE)
    assert "first after 10m" in broker.txn("policy", TOPIC, "--immunity", "10m", "--count", "3")
    shop.half("order-1")
    [first] = broker.listed()
    assert (first["state"], first["check_count"], first["check_count_max"]) == ("OPEN", 0, 3)
    shop.resolution = TransactionResolution.COMMIT
    assert "asked" in broker.txn("check", first["transaction_id"])
    eventually(lambda: not broker.listed())
    assert re.search(
        rf"^{first['transaction_id']} +orders .*: COMMIT", broker.txn("log", "--topic", TOPIC), re.M
    )

    shop.half("order-2")
    [second] = broker.listed()
    shop.producer.shutdown()
    eventually(lambda: " gone" in broker.txn("producers"))
    assert f"No producer of {TOPIC} is connected" in broker.txn(
        "check", second["transaction_id"], code=REFUSED
    )
    assert re.search(rf"^{second['transaction_id']} .* open +0/3 +no producer", broker.txn("ls"), re.M)
    assert "one needs you" in broker.txn("ls")
    assert "nobody to ask" in broker.txn("show", second["transaction_id"])
    assert "as the broker's settings say" in broker.txn("policy", TOPIC, "--default")


def test_every_mistake_gets_one_clear_sentence(broker: Serving, shop: Shop) -> None:
    shop.half("order-1")
    [one] = broker.expired(1)
    mistakes = {
        ("show", "order-1"): "To look a key up, give --topic",
        ("show", "0" * 24): "names no half message of this store",
        ("resolve", "F" * 24, "commit", "--reason", "why"): "names no half message of this store",
        ("resolve", one, "maybe", "--reason", "why"): "'commit'",
        ("resolve", one, "commit"): "--reason",
        ("resolve", one, "commit", "--reason", " "): "--reason is empty",
        ("resolve", one, "commit", "--reason", "x" * 1001): "at most 1000 characters",
        ("check", "nonsense"): "To look a key up, give --topic",
        ("ls", "--key", "order-1"): "Give --topic",
        ("ls", "--older-than", "soon"): "write it as 500ms, 30s",
        ("ls", "--state", "gone"): "'expired'",
        ("policy", TOPIC): "--default",
        ("policy", TOPIC, "--immunity", "soon"): "--immunity is 'soon'",
        ("policy", TOPIC, "--immunity", "9d"): "between 0 and 1440 minutes",
    }
    for arguments, sentence in mistakes.items():
        said = " ".join(broker.txn(*arguments, code=CLIENT_MISTAKE).split())
        assert sentence in said, (arguments, said)
    assert "No transaction of orders has the key order-5" in broker.txn(
        "show", "order-5", "--topic", TOPIC, code=REFUSED
    )
    assert "There is no 'nope'" in broker.txn("policy", "nope", "--count", "3", code=REFUSED)
    for look in ("ls", "log", "producers"):
        assert "TW-151" in broker.txn(look, "--topic", "orderss", code=REFUSED)
    assert "was EXPIRED" in broker.txn("check", one, code=REFUSED)
    broker.txn("resolve", one, "commit", "--reason", "it is in the database")
    assert "was COMMITTED" in broker.txn("resolve", one, "rollback", "--reason", "no", code=REFUSED)
    broker.process.kill()
    broker.process.wait()
    assert "Start a broker" in broker.txn("ls", code=NO_BROKER)
