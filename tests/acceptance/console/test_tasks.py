"""Tasks: listed with their progress, and one that runs stopped."""

from __future__ import annotations

from tests.acceptance.console.test_dead_letters import give_up
from tests.console_process import Browser
from tidewheel.testing.process import BrokerProcess


def test_no_task_says_how_one_begins(browser: Browser) -> None:
    page = browser.open("/tasks").text
    assert "tidewheel timer cancel --all" in page
    assert "tidewheel dlq redrive" in page


def test_tasks_of_all_kinds_are_listed_and_one_is_stopped(broker: BrokerProcess, browser: Browser) -> None:
    broker.post("/api/timers", {"topic": "late", "body": "x", "in": "1h"})
    cancel = {"verb": "cancel", "filter": {"topic": "late"}, "reason": "<b>over"}
    done = broker.post("/api/timers/tasks", cancel)["id"]
    give_up(broker, "slow", 3)
    redrive = {"verb": "redrive", "group": "slow", "rate_per_second": 0.01, "reason": "mended"}
    running = broker.post("/api/dead-letters/tasks", redrive)["id"]
    while browser.model(f"/tasks/one?kind=timers&id={done}")["task"]["state"] == "running":
        pass
    listed = browser.model("/tasks")["tasks"]
    assert [(one["id"], one["kind"], one["state"]) for one in listed] == [
        (running, "dead-letters", "running"),
        (done, "timers", "done"),
    ]
    page = browser.open("/tasks").text
    assert "&lt;b&gt;over" in page
    assert "<progress" in page
    assert page.count(" so far") == 1, "of the task that runs"
    assert " so far" in browser.open(f"/tasks/one?kind=dead-letters&id={running}").text
    stopped = browser.post("/tasks/one/stop", kind="dead-letters", id=running)
    assert " so far" not in browser.open(f"/tasks/one?kind=dead-letters&id={running}").text
    assert f"Task {running} is stopped: " in stopped.text
    again = browser.post("/tasks/one/stop", kind="timers", id=done)
    assert f"Task {done} had already ended (done): " in again.text
    assert browser.open(f"/tasks/one?kind=timers&id={running}").status == 404
    assert browser.open(f"/tasks/one?kind=nothing&id={running}").status == 400
    assert browser.post("/tasks/one/stop", kind="timers", id="none").status == 404


def test_a_move_of_messages_is_shown_with_its_items(broker: BrokerProcess, browser: Browser) -> None:
    for name in ("from-here", "to-there"):
        broker.post("/api/topics", {"name": name})
    broker.post("/api/messages", {"topic": "from-here", "body": "x", "keys": ["moved-key"]})
    task = broker.post("/api/moves/tasks", {"source": "from-here", "target": "to-there", "reason": "why <b>"})
    page = f"/tasks/one?kind=moves&id={task['id']}"
    while browser.model(page)["task"]["state"] == "running":
        pass
    [item] = browser.model(page)["items"]
    assert (item["topic"], item["verdict"]) == ("from-here", "MOVED")
    text = browser.open(page).text
    assert "why &lt;b&gt;" in text
    assert "to-there" in text
    assert task["id"] in browser.open("/tasks").text
