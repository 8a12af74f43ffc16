"""`tidewheel topic` against a broker process that is killed: a retention, messages that are moved."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.test_timers import Serving


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path)
    yield serving
    serving.kill()


def shown(broker: Serving, topic: str) -> Any:
    """Return a topic as `topic show` has it."""
    return json.loads(broker.run("topic", "show", topic, "--json").stdout)


def kept(broker: Serving, topic: str) -> int:
    """Return how many messages a topic keeps."""
    return sum(int(one["end_offset"]) - int(one["min_offset"]) for one in shown(broker, topic)["queues"])


def test_a_retention_is_previewed_and_holds_after_kill_9(broker: Serving) -> None:
    for number in range(3):
        broker.ask("POST", "messages", {"topic": "prices", "body": str(number)})
    time.sleep(1.2)
    broker.ask("POST", "messages", {"topic": "prices", "body": "new"})
    preview = broker.run("topic", "alter", "prices", "--retention", "1s")
    assert (preview.returncode, preview.stdout) == (
        2,
        "3 of 4 messages would be discarded at once, 3 of them unfinished\n",
    )
    assert "add --yes" in preview.stderr
    assert kept(broker, "prices") == 4
    command = ("topic", "alter", "prices", "--retention", "1s", "--reason", "only new prices")
    done = broker.run(*command, "--yes")
    assert done.returncode == 0, done.stderr
    assert "prices takes mixed, 4 queues, messages up to 1s old" in done.stdout
    assert kept(broker, "prices") <= 1
    broker.kill()
    broker.start()
    assert shown(broker, "prices")["retention_ms"] == "1000"
    assert kept(broker, "prices") <= 1
    assert (
        broker.run("topic", "show", "prices").stdout.splitlines()[1].startswith("retention: 1s of this topic")
    )
    journal = broker.run("journal", "--about", "only new prices").stdout
    assert "topics alter" in journal
    young = broker.run("topic", "alter", "prices", "--retention", "7d")
    assert young.returncode == 0, "nothing is lost, so it needs no --yes"
    none = broker.run("topic", "alter", "prices", "--retention", "none")
    assert "messages up to" not in none.stdout


def test_messages_are_moved_and_not_copied_twice_after_kill_9(broker: Serving) -> None:
    assert broker.run("topic", "create", "orders", "slow", "--queues", "2").returncode == 0
    assert broker.run("group", "create", "shop", "orders").returncode == 0
    for batch in range(3):
        messages = [
            {"topic": "orders", "body": f"{batch}-{n}", "tag": "bulk" if n % 2 else "", "keys": ["k"]}
            for n in range(500)
        ]
        broker.ask("POST", "messages", {"messages": messages})
    command = ("topic", "move", "orders", "slow", "--tag", "bulk")
    preview = broker.run(*command, "--limit", "5")
    assert preview.stdout == "would move 5 of 750 messages of orders to slow\n"
    first = broker.run(*command, "--limit", "5", "--yes", "--reason", "a trial").stdout
    assert first.startswith("done  move  5 of 5 (750 match)  MOVED 5  task ")
    detached = json.loads(broker.run(*command, "--yes", "--detach", "--json").stdout)
    while broker.ask("GET", f"moves/tasks/{detached['id']}")[1]["done"] < 50:
        time.sleep(0.01)
    broker.kill()
    broker.start()
    items = json.loads(
        broker.run("topic", "tasks", detached["id"], "--items", "--limit", "1000", "--json").stdout
    )["items"]
    assert {one["verdict"] for one in items} == {"MOVED"}
    assert len(items) >= 50
    assert broker.run(*command, "--yes").stdout.startswith("done  move")
    bodies = broker.delivered("slow")
    assert len(bodies) == len({*bodies}) == 750, "each is there once"
    use = broker.ask("GET", "topics/orders/use")[1]
    assert use["unfinished"] == 750
    assert "move" in broker.run("topic", "tasks").stdout
    assert "a trial" in broker.run("journal", "--about", "a trial").stdout
    message_id = items[0]["message_id"]
    life = broker.run("explain", message_id, "--topic", "slow").stdout
    assert f"moved from orders:{items[0]['name']}" in life
