"""Previews whose time is over before all items are counted: HTTP, commands and pages say up to where."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.command import tidewheel
from tests.console_process import Browser
from tests.hurried_broker import HurriedBroker
from tidewheel.testing.process import BrokerProcess

ASKED = {"verb": "cancel", "tag": "unpaid", "reason": "campaign over"}
TIMERS, MESSAGES = 400, 100


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = HurriedBroker(tmp_path_factory.mktemp("hurried"))
    process.start()
    timers = [
        {"topic": "deadlines", "body": "x", "in": f"{number + 60}m", "tag": "unpaid"}
        for number in range(TIMERS)
    ]
    assert process.post("/api/timers", {"timers": timers})["refused"] == 0
    fill(process, "orders")
    fill(process, "mail")
    give_up_all(process, "mail", "shop")
    yield process
    process.stop()


def fill(broker: BrokerProcess, topic: str) -> None:
    """Send messages to a topic with one queue."""
    broker.post("/api/topics", {"name": topic, "queue_count": 1})
    messages = [{"topic": topic, "body": "x", "tag": "unpaid"} for _ in range(MESSAGES)]
    assert broker.post("/api/messages", {"messages": messages})["refused"] == 0


def give_up_all(broker: BrokerProcess, topic: str, group: str) -> None:
    """Let a group give up the messages of a topic."""
    receive = {"topic": topic, "count": 32, "lease": "1h"}
    while received := broker.post(f"/api/groups/{group}/receive", receive)["messages"]:
        handles = [one["receipt_handle"] for one in received]
        broker.post(f"/api/groups/{group}/nack", {"receipt_handles": handles, "dead_letter": True})


def command(broker: BrokerProcess, *words: str, code: int = 0) -> tuple[str, str]:
    """Run a command; return what it prints to stdout and to stderr."""
    done = tidewheel(*words, "--http", broker.http, environment={"NO_COLOR": "1", "COLUMNS": "200"})
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def preview(broker: BrokerProcess, noun: str, order: dict[str, Any]) -> Any:
    return broker.post(f"/api/{noun}/tasks", order | {"dry_run": True})


def test_a_preview_of_timers_says_up_to_which_due_time_it_counted(broker: BrokerProcess) -> None:
    found = preview(broker, "timers", {"verb": "cancel", "filter": {"tag": "unpaid"}})
    assert 0 < found["matched"] < TIMERS
    page = broker.get("/api/timers", tag="unpaid", until=found["counted_until_ms"], limit="1000")
    assert len(page["timers"]) <= found["matched"]
    words = ("timer", "cancel", "--all", "--tag", "unpaid")
    shown, said = command(broker, *words)
    first, second = shown.splitlines()
    assert re.fullmatch(r"would cancel at least \d+ timers?", first)
    assert re.fullmatch(
        r"  counted up to [-\d: ]+, which took 2 s; the task counts and processes all that match", second
    )
    assert "add --yes" in said
    shown, _ = command(broker, *words, "--dry-run", "--json")
    assert int(json.loads(shown)["counted_until_ms"]) > 0
    shown, _ = command(broker, *words, "--limit", "1000", "--dry-run")
    assert shown.startswith("would cancel at most 1,000 of at least ")
    assert "the task counts all that match, and processes at most 1,000\n" in shown
    shown, _ = command(broker, *words, "--limit", "1", "--dry-run")
    assert shown.startswith("would cancel 1 of at least ")


def test_nothing_found_in_the_time_is_not_called_nothing(broker: BrokerProcess, browser: Browser) -> None:
    shown, said = command(broker, "timer", "cancel", "--all", "--tag", "unpaid", "--until", "30m")
    assert (shown, said) == ("would cancel 0 timers\n", "nothing matches: nothing to do\n")
    both = {"tag": "unpaid", "body": "paid late", "in": "900h", "topic": "far"}
    broker.post("/api/timers", both | {"properties": {"was": "late"}})
    shown, said = command(broker, "timer", "cancel", "--all", "--property", "was=late")
    assert shown.startswith("would cancel no timer so far\n  counted up to ")
    assert "add --yes" in said
    asked = {"verb": "cancel", "property": "was=late", "reason": "over"}
    text = browser.open("/timers/all?" + urlencode(asked)).text
    assert "At least 0 pending timers match" in text
    assert "Type all, to cancel all that match, because: over" in text


def test_a_page_says_up_to_where_and_starts_the_task_for_all(broker: BrokerProcess, browser: Browser) -> None:
    path = "/timers/all?" + urlencode(ASKED)
    model = browser.model(path)
    assert (model["is_cut_off"], model["changed"]) == (True, model["matched"])
    text = browser.open(path).text
    assert "At least " in text
    assert "They were counted up to " in text
    assert ": a count ends after 2 seconds. The task counts and processes all that match." in text
    assert "Type all, to cancel all that match, because: campaign over" in text
    for count in (str(TIMERS), str(model["changed"]), "0", "many"):
        wrong = browser.post("/timers/all/start", **ASKED, at_least=count, count=count)
        assert wrong.status == 400
        assert re.search(rf"{count} was typed, and at least \d+ timers? would change now", wrong.text)
    limited = browser.open(path + "&limit=1000").text
    assert "At most 1,000 of them would change." in limited
    assert "Type all, to cancel at most 1,000 of them, because: campaign over" in limited
    assert browser.model("/timers?tag=unpaid")["tasks"] == []
    started = browser.post("/timers/all/start", **ASKED, count="all")
    assert re.search(r"has started: cancel all that match, at least \d+ timers?\.", started.text)
    while browser.model("/timers?tag=unpaid")["tasks"][0]["state"] == "running":
        pass
    assert browser.model("/timers?tag=unpaid")["tasks"][0]["by_verdict"]["CANCELLED"] >= TIMERS


def test_a_preview_of_dead_letters_says_up_to_when_they_were_given_up(
    broker: BrokerProcess, browser: Browser
) -> None:
    found = preview(broker, "dead-letters", {"verb": "purge", "group": "shop"})
    assert (found["matched"], found["counted_until_ms"] is None) == (32, False)
    shown, _ = command(broker, "dlq", "redrive", "shop", "--dry-run")
    assert re.fullmatch(
        r"would redrive at least 32 dead letters of shop\n  counted up to those given up at [-\d: ]+, which "
        r"took 2 s; the task counts and processes all that match\n",
        shown,
    )
    path = "/dead-letters/redrive?" + urlencode({"group": "shop", "why": "again"})
    text = browser.open(path).text
    assert "At least 32 dead letters match. They were counted up to those given up at " in text
    assert "Redrive all that match</button>" in text
    assert "Redrive at most 50</button>" in browser.open(path + "&limit=50").text
    assert "Redrive 5</button>" in browser.open(path + "&limit=5").text


def test_a_preview_of_a_move_says_up_to_which_message_it_counted(broker: BrokerProcess) -> None:
    broker.post("/api/topics", {"name": "slow"})
    found = preview(broker, "moves", {"source": "orders", "target": "slow"})
    assert (found["matched"], found["counted_until"]) == (32, {"queue_id": 0, "queue_offset": "32"})
    shown, _ = command(broker, "topic", "move", "orders", "slow", "--dry-run")
    assert shown == (
        "would move at least 32 messages of orders to slow\n  counted up to queue 0, offset 32, which took 2 "
        "s; the task counts and processes all that match\n"
    )
    all_of_one_page = preview(broker, "moves", {"source": "slow", "target": "orders"})
    assert (all_of_one_page["matched"], all_of_one_page["counted_until"]) == (0, None)
