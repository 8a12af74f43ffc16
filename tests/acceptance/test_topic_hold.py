"""A topic's timers are held and released by an operator, across a broker that is killed and started again."""

from __future__ import annotations

import json
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


def said(done: Any, code: int = 0) -> str:
    """Return what a command printed; it must end with the code."""
    assert done.returncode == code, done.stdout + done.stderr
    return str(done.stdout + done.stderr)


def test_held_timers_survive_a_kill_and_are_released_once(broker: Serving, eventually: Any) -> None:
    said(broker.run("topic", "create", "payments", "--queues", "1"))
    timers = [
        {"topic": "payments", "body": str(number), "timer_key": f"k:{number}", "in": f"{500 + number}ms"}
        for number in range(60)
    ]
    preview = said(broker.run("topic", "hold", "payments", "--reason", "the bank is closed"))
    assert "nothing was done: add --yes" in preview
    held = said(broker.run("topic", "hold", "payments", "--reason", "the bank is closed", "--yes"))
    assert "the timers of payments are held" in held
    again = said(broker.run("topic", "hold", "payments"))
    assert "the timers of payments are held since " in again
    assert "by no sign-in (the bank is closed): nothing to do." in again
    assert "tidewheel topic release payments" in again
    assert "add --yes" not in again
    refused = said(broker.run("topic", "hold", "payments", "--yes"), 4)
    assert "TW-169" in refused
    assert broker.ask("POST", "timers", {"timers": timers})[0] == 200

    def held_count() -> int:
        return int(broker.ask("GET", "topics/payments")[1]["hold"]["held"])

    eventually(lambda: held_count() == 60)
    assert broker.delivered("payments") == []
    assert "held" in said(broker.run("timer", "ls", "--held", "--limit", "1"))
    assert "HELD" in said(broker.run("timer", "show", "--topic", "payments", "--timer-key", "k:7"))
    status = said(broker.run("status"), 1)
    assert "payments holds 60 timers" in status
    assert "the bank is closed" in status
    assert broker.ask("POST", "timers", {"topic": "payments", "body": "later", "in": "1h"})[0] == 201
    many = ("timer", "cancel", "--all", "--topic", "payments")
    assert said(broker.run(*many, "--dry-run")) == "would cancel 61 timers\n"
    assert said(broker.run(*many, "--dry-run", "--held")) == "would cancel 60 timers\n"
    order = {"verb": "fire", "filter": {"topic": "payments", "held": False}, "dry_run": True}
    assert broker.ask("POST", "timers/tasks", order)[1]["matched"] == 1
    histogram = ("timer", "histogram", "--topic", "payments", "--width", "1d", "--json")
    assert json.loads(said(broker.run(*histogram, "--held")))["count"] == 60
    assert "--held is for many timers" in said(broker.run(*many[:2], "--timer-key", "k:1", "--held"), 2)
    broker.kill()
    broker.start()
    assert (held_count(), broker.delivered("payments")) == (60, [])
    said(broker.run("timer", "cancel", "--topic", "payments", "--timer-key", "k:7"))
    said(broker.run("timer", "fire", "--topic", "payments", "--timer-key", "k:9"))
    assert broker.delivered("payments") == ["9"]

    released = said(broker.run("topic", "release", "payments", "--rate", "20/s", "--reason", "it is open"))
    assert "payments is released; 58 held messages are delivered, 20 per second" in released
    eventually(lambda: len(broker.delivered("payments")) >= 10)
    broker.kill()
    broker.start()
    eventually(lambda: len(broker.delivered("payments")) == 59)
    expected = [str(number) for number in range(60) if number not in (7, 9)]
    assert broker.delivered("payments") == ["9", *expected]
    assert "TW-169" in said(broker.run("topic", "release", "payments"), 4)
    assert broker.ask("GET", "topics/payments")[1]["hold"] is None
    late = broker.ask("GET", "timers/summary")[1]["lateness_by_topic"]["payments"]
    assert 0 < late["after_hold"] < 60, "some were delivered since the restart"
    assert late["delivered"] == 0
    for command in (("status",), ("timer", "summary")):
        assert f"{late['after_hold']} delivered after a hold" in broker.run(*command).stdout
    life = said(broker.run("explain", "k:3"))
    assert "held" in life
    assert "since its topic was held" in life
    noted = json.loads(said(broker.run("journal", "--about", "payments", "--json")))
    table = said(broker.run("journal", "--about", "payments"))
    assert "no sign-in" in table
    assert "the broker" not in table
    entries = noted if isinstance(noted, list) else noted["entries"]
    acts = [(one["verb"], one["reason"]) for one in entries if one["verdict"] == "done"]
    assert ("topics hold", "the bank is closed") in acts
    assert ("topics release", "it is open") in acts


def test_a_release_offers_only_the_rates_that_it_takes(broker: Serving) -> None:
    said(broker.run("topic", "create", "payments"))
    taken = "a whole number of at least 1 per second"
    help_text = " ".join(said(broker.run("topic", "release", "--help")).replace("│", " ").split())
    assert (taken in help_text, "/m" in help_text, "/h" in help_text) == (True, False, False)
    for rate in ("fast", "30/m", "1.5"):
        refused = said(broker.run("topic", "release", "payments", "--rate", rate), 2)
        assert (taken in refused, "100/h" in refused) == (True, False)


@pytest.mark.parametrize("when", [("--at", "2020-01-01T00:00"), ("--in", "0s")])
def test_a_send_for_a_past_time_to_a_held_topic_says_that_it_is_held(
    broker: Serving, when: tuple[str, str]
) -> None:
    said(broker.run("topic", "create", "payments"))
    late = ("send", "payments", "late", *when)
    assert ", delivered at once" in said(broker.run(*late))
    said(broker.run("topic", "hold", "payments", "--yes"))
    sent = said(broker.run(*late))
    assert ", HELD until:  tidewheel topic release payments" in sent
    assert "delivered at once" not in sent
    said(broker.run("topic", "release", "payments"))
    assert ", delivered at once" in said(broker.run(*late))
