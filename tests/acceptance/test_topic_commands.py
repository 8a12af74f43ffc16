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
