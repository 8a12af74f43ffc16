"""`tidewheel explain` as its users meet it: a broker that runs, its store in use and at rest, an order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.explain.life import DISCARDED_BY
from tests.command import tidewheel
from tests.served import serve


class Serving:
    """A broker process, and commands against it."""

    def __init__(self, folder: Path) -> None:
        self.store, self._served = folder / "store", serve(folder, "--clock", "virtual")
        self.process, self.http = self._served.process, self._served.http

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a command; returns what it printed."""
        done = tidewheel(*arguments, environment={"TIDEWHEEL_HTTP": self.http, "NO_COLOR": "1"})
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def told(self, *arguments: str) -> Any:
        """Return what `explain --json` says."""
        return json.loads(self.run("explain", *arguments, "--json"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path)
    yield serving
    serving.process.kill()
    serving.process.wait()


def acknowledge(broker: Serving, topic: str, group: str, *, verb: str = "ack") -> None:
    """Receive a message for a group, and acknowledge it or hand it back."""
    calls = f"http://{broker.http}/api/groups/{group}"
    [got] = httpx.post(f"{calls}/receive", json={"topic": topic, "wait": "5s"}).json()["messages"]
    httpx.post(f"{calls}/{verb}", json={"receipt_handles": [got["receipt_handle"]]}).raise_for_status()


def happened(told: Any) -> list[str]:
    return [event["what"] for event in told["events"]]


def test_a_broker_tells_what_its_store_says_before_and_after_it_ends(broker: Serving) -> None:
    broker.run("send", "timeouts", "pay me", "--key", "order-7", "--in", "1h", "--timer-key", "order:7")
    waiting = broker.told("order-7")
    assert happened(waiting) == ["armed"]
    assert waiting["messages"][0]["state"] == "pending: waits for its time"
    name = ("--topic", "timeouts", "--timer-key", "order:7")
    broker.run("timer", "move", *name, "--to", "2h")
    broker.run("timer", "cancel", *name, "--reason", "it was paid")
    by_broker = broker.told("order:7")
    assert happened(by_broker) == ["armed", "moved", "armed", "cancelled"]
    assert "because: it was paid" in by_broker["events"][-1]["note"]
    in_use = broker.told("order:7", "--store", str(broker.store))
    broker.process.terminate()
    broker.process.wait()
    at_rest = broker.told("order:7", "--store", str(broker.store))
    assert in_use["events"] == at_rest["events"]
    assert in_use["messages"] == by_broker["messages"] == at_rest["messages"]
    assert [one["physical_offset"] for one in by_broker["events"]] == [
        one["physical_offset"] for one in at_rest["events"]
    ]


def test_a_purged_message_is_told_to_be_discarded(broker: Serving) -> None:
    broker.run("topic", "create", "orders", "--queues", "1")
    broker.run("send", "orders", "x", "--key", "order-7")
    shown = ("msg", "show", "order-7", "--topic", "orders")
    assert json.loads(broker.run(*shown, "--json"))[0]["state"] == "stored"
    broker.run("topic", "purge", "orders", "--discard", "--yes")
    found = json.loads(broker.run(*shown, "--json"))[0]
    assert (found["state"], found["note"]) == ("discarded", DISCARDED_BY)
    assert f"DISCARDED  orders queue 0 offset 0  {DISCARDED_BY}" in broker.run(*shown)
    broker.run("send", "orders", "y", "--key", "order-8")
    told = broker.told("order-7")
    assert happened(told) == ["stored", "discarded"]
    assert (
        told["messages"][0]["state"]
        == "discarded: by a purge, a deletion, a move or the retention of its topic"
    )
    assert broker.told("order-8")["messages"][0]["state"] == "acknowledged by nobody yet"
    broker.run("topic", "delete", "orders", "--discard", "--yes")
    assert happened(broker.told("order-8")) == ["stored", "discarded"]


def test_a_moved_message_is_told_to_be_moved_and_not_acknowledged(broker: Serving) -> None:
    for topic in ("src", "dst", "apart"):
        broker.run("topic", "create", topic, "--queues", "1")
    broker.run("send", "apart", "x", "--key", "order-8")
    broker.run("topic", "move", "apart", "dst", "--yes")
    assert [one["state"] for one in broker.told("order-8")["messages"]] == [
        "moved to dst",
        "acknowledged by nobody yet",
    ]
    broker.run("group", "create", "g1", "src")
    broker.run("group", "create", "g2", "src")
    broker.run("send", "src", "x", "--key", "order-7")
    acknowledge(broker, "src", "g2")
    broker.run("topic", "move", "src", "dst", "--yes")
    told = broker.told("order-7")
    assert happened(told) == ["stored", "acknowledged", "moved away", "sent back", "finished"]
    assert told["events"][-1]["note"] == "for group g1, since it was moved to dst"
    moved = "moved to dst; before that it was acknowledged by g2"
    assert [(one["topic"], one["state"]) for one in told["messages"]] == [
        ("src", moved),
        ("dst", "acknowledged by nobody yet"),
    ]
    assert broker.told("order-7", "--topic", "src")["messages"][0]["state"] == moved
    broker.run("topic", "purge", "src", "--discard", "--yes")
    assert broker.told("order-7")["messages"][0]["state"] == moved


def test_a_dead_letter_is_told_to_be_given_up_and_not_acknowledged(broker: Serving) -> None:
    broker.run("topic", "create", "orders", "--queues", "1")
    broker.run("group", "create", "gd", "orders", "--attempts", "1")
    broker.run("send", "orders", "x", "--key", "order-7")
    acknowledge(broker, "orders", "gd", verb="nack")
    told = broker.told("order-7")
    assert (happened(told)[-2:], told["events"][-1]["note"]) == (
        ["dead letter", "finished"],
        "for group gd, which had given it up",
    )
    broker.run("topic", "purge", "orders", "--discard", "--yes")
    state = broker.told("order-7")["messages"][0]["state"]
    assert state == f"discarded: {DISCARDED_BY}; before that it was given up by gd"


def test_what_a_broker_does_not_know_exits_with_4_and_says_where_it_looked(broker: Serving) -> None:
    broker.run("send", "t", "x", "--key", "k")
    said = broker.run("explain", "nobody", code=4)
    assert "TW-152" in said
    assert "Log offsets 0 to" in said


def test_an_order_of_the_real_shop_from_half_to_cleared_cart(shop: Any, eventually: Any) -> None:
    """The order service sends by the official client, the cart service consumes: explained while both run."""
    shop.start("orders")
    shop.start("carts")
    shop.place("O1")

    def explained() -> Any:
        done = tidewheel("explain", "O1", "--http", shop.http, "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {"events": []}

    eventually(lambda: "acknowledged" in happened(explained()))
    events = [(one["topic"], one["what"]) for one in explained()["events"]]
    assert set(events) == {
        ("order-created", "half"),
        ("order-created", "committed"),
        ("order-created", "acknowledged"),
        ("order-timeouts", "half"),
        ("order-timeouts", "armed"),
    }
