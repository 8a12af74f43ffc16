"""Timers as their owners use them: HTTP and commands, deliveries, a broker that is stopped and killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from tests.command import tidewheel
from tests.served import serve

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "services.cli.main")


class Serving:
    """A broker process on one store; it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.start()

    def start(self) -> None:
        """Start it and wait until it serves."""
        served = serve(self._folder)
        self.process, self.http, self.kill = served.process, served.http, served.kill

    def ask(self, method: str, path: str, body: object = None, **query: object) -> tuple[int, Any]:
        """Return status and answer."""
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        request = Request(f"http://{self.http}/api/{path}?{urlencode(query)}", data, kind, method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except HTTPError as refusal:
            return refusal.code, json.load(refusal)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command against it."""
        return tidewheel(*arguments, environment={"TIDEWHEEL_HTTP": self.http, "NO_COLOR": "1"})

    def delivered(self, topic: str) -> list[str]:
        """Return the bodies that lie in a topic."""
        _, answer = self.ask("GET", f"topics/{topic}/arrivals", after="0:0,1:0,2:0,3:0", limit=1000)
        return [message["body"] for message in answer["messages"]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path)
    yield serving
    serving.kill()


def test_an_order_is_paid_in_time_or_not(broker: Serving, eventually: Any) -> None:
    timeouts = [
        {"topic": "timeouts", "body": order, "timer_key": f"order:{order}", "in": "4s"}
        for order in ("7", "8")
    ]
    assert broker.ask("POST", "timers", {"timers": timeouts})[1]["set"] == 2
    status, paid = broker.ask(
        "POST", "timers/cancel", {"topic": "timeouts", "key": "order:7", "reason": "paid"}
    )
    assert (status, paid["verdict"]) == (200, "CANCELLED")
    eventually(lambda: broker.delivered("timeouts"))
    late = broker.run("timer", "cancel", "--topic", "timeouts", "--timer-key", "order:8")
    assert (late.returncode, late.stdout.split()[0]) == (4, "TOO_LATE")
    assert broker.delivered("timeouts") == ["8"]
    _, summary = broker.ask("GET", "timers/summary")
    assert (summary["pending"], summary["lateness"]["delivered"]) == (0, 1)
    assert summary["lateness"]["early_count"] == 0


def test_every_verdict_holds_after_kill_9(broker: Serving) -> None:
    timers = [{"topic": "t", "body": str(n), "in": "1h", "timer_key": f"k{n}"} for n in range(6)]
    assert broker.ask("POST", "timers", {"timers": timers})[1]["set"] == 6
    name = [{"topic": "t", "key": f"k{number}"} for number in range(6)]
    _, cancelled = broker.ask("POST", "timers/cancel", name[0])
    _, moved = broker.ask("POST", "timers/move", name[1] | {"to": "2h"})
    _, fired = broker.ask("POST", "timers/fire", name[2])
    answers = [cancelled, moved, fired]
    assert [answer["verdict"] for answer in answers] == ["CANCELLED", "MOVED", "FIRED"]
    broker.kill()
    broker.start()
    expected = [(200, "ALREADY"), (200, "CANCELLED"), (409, "TOO_LATE"), (200, "CANCELLED")]
    for number, (status, verdict) in enumerate(expected):
        answered, answer = broker.ask("POST", "timers/cancel", name[number])
        assert (answered, answer["verdict"]) == (status, verdict), number
        if number in (0, 2):
            assert answer["ended_offset"] == answers[number]["ended_offset"]
        if number == 1:
            assert answer["due_ms"] == moved["ended_ms"]
    assert broker.delivered("t") == ["2"]
    assert [one["timer_key"] for one in broker.ask("GET", "timers")[1]["timers"]] == ["k4", "k5"]


def test_what_a_task_has_changed_is_listed_after_kill_9(broker: Serving) -> None:
    timers = [
        {"topic": "t", "body": "x", "in": f"{n + 1}h", "timer_key": f"k{n}", "properties": {"n": str(n % 2)}}
        for n in range(120)
    ]
    assert broker.ask("POST", "timers", {"timers": timers})[1]["set"] == 120
    command = ("timer", "cancel", "--all", "--topic", "t", "--property", "n=1", "--limit", "55")
    assert broker.run(*command).stdout == "would cancel 55 of 60 timers\n"
    done = broker.run(*command, "--yes", "--reason", "over").stdout
    assert done.startswith("done  cancel  55 of 55 (60 match)  CANCELLED 55  task ")
    task = done.split()[-1]
    broker.kill()
    broker.start()
    assert broker.run("timer", "tasks", task).returncode != 0, "the task itself is gone"
    listed = broker.run("timer", "tasks", task, "--items", "--json", "--limit", "20")
    page = json.loads(listed.stdout)
    assert [one["name"] for one in page["items"]] == [f"k{n}" for n in range(1, 41, 2)]
    rest = broker.run("timer", "tasks", task, "--items", "--after", page["after"]).stdout.splitlines()
    assert len(rest) == 36
    assert rest[0].split() == ["at", "topic", "timer", "key", "id", "verdict"]
    assert rest[-1].endswith("CANCELLED")
    assert "k109 " in rest[-1]


def test_a_task_that_a_restart_ended_is_said_to_be_gone_and_can_be_begun_again(broker: Serving) -> None:
    for batch in range(5):
        timers = [{"topic": "t", "body": f"{batch}-{n}", "in": "1h"} for n in range(1000)]
        assert broker.ask("POST", "timers", {"timers": timers})[1]["set"] == 1000
    wanted = {"verb": "cancel", "filter": {"topic": "t"}, "reason": "over"}
    status, task = broker.ask("POST", "timers/tasks", wanted)
    assert (status, task["state"]) == (202, "running")
    broker.kill()
    broker.start()
    status, gone = broker.ask("GET", f"timers/tasks/{task['id']}")
    assert status == 404
    assert "a crash interrupted it: count the timers" in gone["message"]
    left = broker.ask("GET", "timers/count", topic="t")[1]["count"]
    done = broker.run("timer", "cancel", "--all", "--topic", "t", "--yes")
    assert done.stdout.startswith(f"done  cancel  {left:,} of {left:,}"), done
    assert broker.ask("GET", "timers/count")[1]["count"] == 0


def test_others_are_served_while_ten_thousand_are_moved(broker: Serving, eventually: Any) -> None:
    for batch in range(10):
        timers = [{"topic": "many", "body": str(n), "in": f"{3600 + n}s"} for n in range(1000)]
        assert broker.ask("POST", "timers", {"timers": timers})[1]["set"] == 1000, batch
    _, task = broker.ask("POST", "timers/tasks", {"verb": "move", "by": "1h", "filter": {"topic": "many"}})
    path = f"timers/tasks/{task['id']}"
    sent_during = 0
    while broker.ask("GET", path)[1]["state"] == "running":
        sent = {"topic": "now", "body": str(sent_during), "in": "10ms"}
        assert broker.ask("POST", "timers", sent)[0] == 201
        sent_during += 1
    assert sent_during > 3
    assert broker.ask("GET", path)[1]["by_verdict"] == {"MOVED": 10_000}
    eventually(lambda: len(broker.delivered("now")) == sent_during)
    _, histogram = broker.ask("GET", "timers/histogram", topic="many", width="1h", **{"from": "90m"})
    assert histogram["count"] == 10_000


def test_the_page_s_commands_for_timers_run_as_printed(broker: Serving) -> None:
    section = (ROOT / "docs" / "timers.md").read_text().partition("\n## ")[0]
    lines = re.findall(r"^tidewheel (.*?)(?:  +#.*)?$", section, re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        done = subprocess.run(
            f"{' '.join(COMMAND)} {line}",
            shell=True,
            capture_output=True,
            text=True,
            env={**os.environ, "TIDEWHEEL_HTTP": broker.http},
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)


def test_a_mistyped_topic_is_no_success(broker: Serving) -> None:
    assert broker.ask("POST", "timers", {"topic": "pushes", "body": "x", "in": "1h"})[0] == 201
    for command in (
        *(("cancel", "--all", "--yes"), ("fire", "--all", "--yes"), ("move", "--all", "--by", "1h", "--yes")),
        *(("cancel", "--all"), ("ls",), ("ls", "--json"), ("histogram",)),
    ):
        verb, *others = command
        refused = broker.run("timer", verb, "--topic", "pushs", *others)
        assert (refused.returncode, refused.stdout) == (4, ""), refused
        assert refused.stderr == broker.run("topic", "show", "pushs").stderr
        assert refused.stderr.startswith("TW-151 ")
    assert broker.ask("GET", "timers/tasks")[1]["tasks"] == [], "no task was started"


def test_a_search_names_what_it_leaves_out(broker: Serving) -> None:
    assert broker.ask("POST", "timers", {"topic": "pushes", "body": "x", "in": "1h"})[0] == 201
    none = broker.run("msg", "search", "pushes", "--text", "x")
    assert (none.returncode, none.stdout) == (4, "")
    listing = "tidewheel timer ls --topic pushes"
    assert none.stderr == f"0 of 0 messages match\npending timers are not searched:  {listing}\n"
    window = ("--from", "1m ago", "--until", "2m ago")
    reversed_ = broker.run("msg", "search", "pushes", "--text", "x", *window)
    assert (reversed_.returncode, reversed_.stdout) == (2, "")
    assert "The window is reversed or empty" in reversed_.stderr


def test_a_verb_for_all_timers_counts_their_topics(broker: Serving) -> None:
    for topic in ("a", "b", "b"):
        assert broker.ask("POST", "timers", {"topic": topic, "body": "x", "in": "1h"})[0] == 201
    assert broker.run("timer", "cancel", "--all").stdout == "would cancel 3 timers in 2 topics\n"
    assert broker.run("timer", "fire", "--all", "--limit", "1").stdout == (
        "would fire 1 of 3 timers in 2 topics\n"
    )
    assert broker.run("timer", "cancel", "--all", "--topic", "b").stdout == "would cancel 2 timers\n"
    assert broker.run("timer", "cancel", "--all", "--yes").stdout.startswith("done  cancel  3 of 3")


def test_a_move_of_many_to_a_past_time_says_that_they_are_delivered_at_once(broker: Serving) -> None:
    for topic, due in (("a", "1h"), ("a", "2h"), ("b", "5h"), ("held", "1h")):
        assert broker.ask("POST", "timers", {"topic": topic, "body": "x", "in": due})[0] == 201
    assert broker.run("topic", "hold", "held", "--yes").returncode == 0
    move = ("timer", "move", "--all")
    assert broker.run(*move, "--topic", "a", "--to", "in 1h").stdout == "would move 2 timers\n"
    assert broker.run(*move, "--topic", "a", "--by", "-30m").stdout == "would move 2 timers\n"
    for many, said in (
        (("--topic", "a", "--by", "-90m"), "of 1 of them has passed, so it is delivered at once"),
        (("--topic", "a", "--by", "-90m", "--from", "in 100m"), ""),
        (("--topic", "a", "--to", "5d ago"), "has passed, so they are delivered at once"),
        (("--to", "5d ago"), "delivered at once, or held if the timers of their topic are held"),
        (("--topic", "held", "--to", "5d ago"), "so they are held until the release of held"),
        (("--topic", "a", "--tag", "none", "--to", "5d ago"), ""),
    ):
        shown = broker.run(*move, *many).stdout
        assert shown.startswith("would move ")
        assert ("has passed" in shown, shown.endswith(f"{said}\n")) == (bool(said), True), shown
        assert ("has passed" in broker.run(*move, *many, "--json").stderr) == bool(said)
    done = broker.run(*move, "--topic", "a", "--to", "5d ago", "--yes")
    assert done.stdout.startswith("done  move  2 of 2  MOVED 2")
    assert "(5d ago) has passed, so they are delivered at once" in done.stderr
    assert "has passed" not in broker.run(*move, "--topic", "b", "--by", "1h", "--yes").stderr


def test_the_spans_of_a_summary_exclude_each_other_and_say_so(broker: Serving) -> None:
    for due in ("30m", "2h", "3h", "2d"):
        assert broker.ask("POST", "timers", {"topic": "t", "body": "x", "in": due})[0] == 201
    [line] = [one for one in broker.run("timer", "summary").stdout.splitlines() if "due in" in one]
    assert line == "due in    <1m 0 | 1m to 5m 0 | 5m to 1h 1 | 1h to 1d 2 | later 1"
