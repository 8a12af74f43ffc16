"""`tidewheel timer` against a broker process: what people see, what programs get, and the exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.command import tidewheel
from tests.served import serve


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's HTTP address."""
    served = serve(tmp_path_factory.mktemp("timer"))
    yield served.http
    served.stop()


class Commands:
    """`tidewheel` commands for one topic of one broker."""

    def __init__(self, http: str, topic: str) -> None:
        self.topic = topic
        self._environment = {"NO_COLOR": "1", "COLUMNS": "200", "TIDEWHEEL_HTTP": http}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return tidewheel(*arguments, environment=self._environment)

    def told(self, *arguments: str, code: int = 0) -> str:
        """Run `tidewheel timer` and return what it prints; the exit code must be as expected."""
        done = self.run("timer", *arguments)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout

    def of_topic(self, verb: str, *arguments: str, code: int = 0) -> str:
        return self.told(verb, "--topic", self.topic, *arguments, code=code)

    def json(self, verb: str, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.of_topic(verb, *arguments, "--json", code=code))

    def send(self, *arguments: str) -> Any:
        sent = self.run("send", self.topic, "hello", *arguments, "--json")
        assert sent.returncode == 0, sent.stderr
        return json.loads(sent.stdout)


@pytest.fixture
def commands(http: str, request: pytest.FixtureRequest) -> Commands:
    return Commands(http, request.node.name.replace("[", "-").replace("]", "")[:100])


def test_what_is_damaged_is_listed(commands: Commands) -> None:
    assert commands.told("ls", "--damaged").startswith("nothing was found damaged")
    assert json.loads(commands.told("ls", "--damaged", "--json"))["count"] == 0
    assert commands.run("timer", "ls", "--damaged", "--topic", "t").returncode == 2


def test_a_timer_lives_and_ends(commands: Commands) -> None:
    sent = commands.send("--in", "30m", "--timer-key", "pay:7", "--key", "order:7", "--tag", "unpaid")
    listed = commands.of_topic("ls")
    for told in ("in 29m5", commands.topic, "pay:7", "order:7", "unpaid", sent["message_id"]):
        assert told in listed
    shown = commands.of_topic("show", "--timer-key", "pay:7")
    assert shown.startswith(f"PENDING  pay:7  {commands.topic}  due ")
    assert "hello" in shown
    moved = commands.of_topic("move", "--timer-key", "pay:7", "--to", "45m", "--reason", "asked for")
    assert moved.startswith(f"MOVED  pay:7  {commands.topic}  was due ")
    assert "now due" in moved
    assert "(in 44m5" in moved
    cancelled = commands.of_topic("cancel", "--timer-key", "pay:7", "--reason", "paid")
    assert cancelled.startswith(f"CANCELLED  pay:7  {commands.topic}  was due ")
    assert f"id {sent['message_id']}  log@" in cancelled
    assert commands.of_topic("cancel", "--timer-key", "pay:7").startswith("ALREADY ")
    shown = commands.of_topic("show", "--timer-key", "pay:7", code=4)
    assert shown.startswith(f"CANCELLED  pay:7  {commands.topic}  ")
    assert "by a call, because: paid" in shown
    assert commands.of_topic("move", "--timer-key", "pay:7", "--to", "1h", code=4).startswith("ALREADY ")
    assert commands.of_topic("ls") == ""


@pytest.mark.parametrize("end", ["cancelled", "carried", "replaced", "fired", "hurried"])
def test_every_command_tells_the_same_end_of_a_timer(commands: Commands, end: str) -> None:
    """Before, `timer show` said "ended before", `explain` why, and `msg show` neither, not even "waits"."""
    topic = commands.topic
    sent = commands.send("--in", "30m", "--timer-key", "pay:9")
    listed = commands.run("msg", "show", "pay:9", "--topic", topic).stdout
    assert listed.startswith(f"PENDING  {topic}  due ")
    assert "(in 29m" in listed
    assert "timer key pay:9" in listed
    what, note = {
        "cancelled": ("cancelled", "by a call, because: paid"),
        "carried": ("cancelled", "by the message of orders-paid that carries it"),
        "replaced": ("replaced", "by message "),
        "fired": ("fired", "before its time, on request"),
        "hurried": ("fired", "before its time, on request, because: the customer waits"),
    }[end]
    verbs = {
        "cancelled": ("timer", "cancel", "--topic", topic, "--timer-key", "pay:9", "--reason", "paid"),
        "carried": (
            *("send", "orders-paid", "x", "--property", "TW_TIMER_CANCEL=pay:9"),
            *("--property", f"TW_TIMER_TOPIC={topic}"),
        ),
        "replaced": ("send", topic, "x", "--in", "1h", "--timer-key", "pay:9"),
        "fired": ("timer", "fire", "--topic", topic, "--timer-key", "pay:9"),
        "hurried": (
            "timer",
            "fire",
            "--topic",
            topic,
            "--timer-key",
            "pay:9",
            "--reason",
            "the customer waits",
        ),
    }
    assert commands.run(*verbs[end]).returncode == 0
    shown = commands.of_topic("show", "--id", sent["message_id"], code=4)
    assert shown.startswith(what.upper())
    assert note in shown
    again = commands.of_topic("cancel", "--id", sent["message_id"], code=4 if what == "fired" else 0)
    assert f"was {what}" in again
    assert note in again
    explained = commands.run("explain", sent["message_id"]).stdout
    assert f"{what}: {note}" in explained
    found = json.loads(commands.run("msg", "show", sent["message_id"], "--topic", topic, "--json").stdout)
    timer = found[-1]
    assert timer["state"] == what
    assert note in timer["note"]
    told = commands.run("msg", "show", sent["message_id"], "--topic", topic).stdout
    assert what.upper() in told
    assert note in told
    assert re.search(r"ended 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", told)


def test_every_command_tells_that_a_timer_was_moved_and_why(commands: Commands) -> None:
    """The reason was in a line of the broker's log alone; once fired, each time it had was told as FIRED."""
    topic, name = commands.topic, ("--topic", commands.topic, "--timer-key", "pay:12")
    sent = commands.send("--in", "30m", "--timer-key", "pay:12")
    for to, reason in (("1h", "no stock"), ("2h", "still none")):
        assert commands.run("timer", "move", *name, "--to", to, "--reason", reason).returncode == 0
    moved, note = "to another time, because: no stock", "moved to this time, because: still none"
    assert note in commands.of_topic("show", "--timer-key", "pay:12")
    assert commands.json("show", "--timer-key", "pay:12")["note"] == note
    found = json.loads(commands.run("msg", "show", "pay:12", "--topic", topic, "--json").stdout)
    last, middle, first = found
    assert (last["state"], last["note"], last["ended_ms"]) == ("pending", note, None)
    assert (first["state"], first["note"], first["ended_ms"]) == ("moved", moved, middle["store_ms"])
    explained = commands.run("explain", sent["message_id"]).stdout
    assert f"moved: {moved}\n" in explained
    assert explained.count("because") == 2, "each reason once"
    commands.of_topic("fire", "--timer-key", "pay:12", "--reason", "stock")
    found = json.loads(commands.run("msg", "show", "pay:12", "--topic", topic, "--json").stdout)
    assert [one["state"] for one in found] == ["stored", "fired", "moved", "moved"]
    assert [one["note"] for one in found[1:]] == [
        "before its time, on request, because: stock",
        "to another time, because: still none",
        moved,
    ]
    got = commands.run("tail", topic, "--from-start", "--limit", "1", "--json").stdout
    assert "stock" not in got, "consumers are not told"


def test_a_message_is_found_by_its_timer_key_however_it_ended(commands: Commands) -> None:
    commands.send("--in", "30m", "--timer-key", "pay:10", "--key", "order-10")
    assert (
        commands.run(
            "timer", "move", "--topic", commands.topic, "--timer-key", "pay:10", "--to", "1h"
        ).returncode
        == 0
    )
    told = commands.run("msg", "show", "pay:10", "--topic", commands.topic).stdout
    assert told.startswith("PENDING  ")
    assert "\nMOVED  " in told
    assert "to another time" in told
    commands.of_topic("fire", "--timer-key", "pay:10")
    told = commands.run("msg", "show", "pay:10", "--topic", commands.topic).stdout
    assert told.startswith(f"{commands.topic} queue ")
    missing = commands.run("msg", "show", "pay:11", "--topic", commands.topic)
    assert (missing.returncode, "timer key 'pay:11'" in missing.stderr) == (4, True)


def test_a_send_tells_what_came_of_the_verb_that_it_carries(commands: Commands) -> None:
    """It was stored without a word, whether the timer was cancelled or never there."""
    commands.send("--in", "1h", "--timer-key", "pay:13")
    carrying = ("orders-paid", "x", "--property", "TW_TIMER_CANCEL=pay:13")
    topic = ("--property", f"TW_TIMER_TOPIC={commands.topic}")
    never = commands.run("send", *carrying).stderr
    assert "\nthe timer that it names: NEVER_SET; without TW_TIMER_TOPIC it is looked for in" in never
    done = commands.run("send", *carrying, *topic).stderr
    assert done.endswith("\nthe timer that it names: CANCELLED\n")
    again = commands.run("send", *carrying, *topic).stderr.splitlines()[-1]
    assert re.fullmatch(r"the timer that it names: ALREADY  ended .* \(.* ago\)  log@\d+", again)
    answer = json.loads(commands.run("send", *carrying, *topic, "--json").stdout)
    assert answer["verdict"]["verdict"] == "ALREADY"
    assert "timer that" not in commands.run("send", "orders-paid", "x").stderr


def test_too_late_says_when_it_was_delivered(commands: Commands) -> None:
    sent = commands.send("--in", "1h")
    assert commands.told("fire", "--handle", sent["recall_handle"]).startswith("FIRED  ")
    late = commands.of_topic("cancel", "--id", sent["message_id"], code=4)
    assert late.startswith("TOO_LATE ")
    assert "was fired" in late
    assert " ago)" in late
    answer = commands.json("cancel", "--id", sent["message_id"], code=4)
    assert (answer["verdict"], answer["message_id"]) == ("TOO_LATE", sent["message_id"])
    tail = commands.run("tail", commands.topic, "--from-start", "--limit", "1", "--json")
    assert json.loads(tail.stdout)["message_id"] == sent["message_id"]


def test_a_key_is_a_message_key_and_a_timer_key_is_named_as_such(commands: Commands) -> None:
    commands.send("--in", "1h", "--key", "order:8")
    commands.send("--in", "2h", "--timer-key", "order:8", "--key", "other")
    by_key, by_timer_key = (
        commands.json("ls", "--key", "order:8"),
        commands.json("ls", "--timer-key", "order:8"),
    )
    assert [one["keys"] for one in by_key["timers"]] == [["order:8"]]
    assert [one["timer_key"] for one in by_timer_key["timers"]] == ["order:8"]
    assert commands.json("ls", "--message-key", "order:8") == by_key
    assert commands.json("ls", "--timer-key", "order:8", "--key", "order:8")["timers"] == []
    assert commands.json("histogram", "--timer-key", "order:8")["count"] == 1
    assert commands.of_topic("cancel", "--all", "--key", "order:8") == "would cancel 1 timer\n"
    assert commands.of_topic("cancel", "--all", "--timer-key", "order:8") == "would cancel 1 timer\n"
    for verb in (("cancel",), ("fire",), ("move", "--to", "1h")):
        refused = commands.run("timer", *verb, "--topic", commands.topic, "--key", "order:8")
        assert refused.returncode == 2
        assert "--key is a message key, which selects many timers: add --all. " in refused.stderr
        assert "A single timer is named by --timer-key order:8" in refused.stderr
    shown = commands.run("timer", "show", "--topic", commands.topic, "--key", "order:8")
    assert (shown.returncode, "Write --timer-key." in shown.stderr) == (2, True), shown.stderr


def test_who_gives_a_message_key_for_a_timer_key_is_told_the_difference(commands: Commands) -> None:
    commands.send("--in", "1h", "--key", "order:8")
    done = commands.run("timer", "cancel", "--topic", commands.topic, "--timer-key", "order:8")
    assert (done.returncode, done.stdout[:9]) == (4, "NEVER_SET")
    listing = done.stderr.partition("tidewheel timer ")[2].split()
    assert "order:8" in commands.told(*listing)


FILTERS = [
    *("--topic", "--topic-prefix", "--timer-key", "--key", "--message-key", "--tag", "--property"),
    *("--from", "--until"),
]


@pytest.mark.parametrize("verb", [("cancel", "--all"), ("fire", "--all"), ("move", "--all", "--by", "1h")])
def test_an_empty_filter_of_a_bulk_change_is_refused(commands: Commands, verb: tuple[str, ...]) -> None:
    commands.send("--in", "1h")
    for flag in FILTERS:
        others = () if flag == "--topic" else ("--topic", commands.topic)
        done = commands.run("timer", *verb, *others, flag, "", "--yes")
        assert (done.returncode, done.stdout) == (2, ""), flag
        shown = "--key" if flag == "--message-key" else flag
        assert f"{shown} is empty: is a variable of the shell unset? " in done.stderr, flag
    assert len(commands.json("ls")["timers"]) == 1


@pytest.mark.parametrize("verb", ["ls", "histogram"])
def test_an_empty_filter_of_a_list_is_refused(commands: Commands, verb: str) -> None:
    for flag in FILTERS:
        assert "is empty: " in commands.run("timer", verb, flag, "").stderr
    for other in (("txn", "ls", "--topic"), ("txn", "ls", "--key"), ("msg", "search", "t", "--text")):
        assert "is empty: " in commands.run(*other, "").stderr


@pytest.mark.parametrize("verb", ["ls", "histogram"])
def test_who_gives_a_timer_key_for_a_message_key_is_told_the_difference(
    commands: Commands, verb: str
) -> None:
    commands.send("--in", "1h", "--timer-key", "order:8")
    done = commands.run("timer", verb, "--topic", commands.topic, "--key", "order:8")
    assert (done.returncode, done.stdout) == (0, "")
    assert "--key is a message key; a timer key is given as --timer-key order:8\n" in done.stderr
    asked = commands.run("timer", "cancel", "--all", "--topic", commands.topic, "--key", "order:8")
    assert asked.stdout == "would cancel 0 timers\n"
    assert "--key is a message key; a timer key is given as --timer-key order:8\n" in asked.stderr
    run = ("timer", "cancel", "--all", "--topic", commands.topic, "--yes", "--key")
    ended = commands.run(*run, "order:8")
    assert (ended.returncode, " 0 of 0 " in ended.stdout) == (0, True), ended.stdout
    assert "--key is a message key; a timer key is given as --timer-key order:8\n" in ended.stderr
    commands.send("--in", "1h", "--key", "order:9")
    assert "a timer key is given" not in commands.run(*run, "order:9").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ("cancel", "--timer-key", "a b"),
            ("fire", "--timer-key", "k"),
            ("show", "--id", "M"),
            ("ls",),
            ("histogram",),
        ),
        *(("ls", "--json"), ("histogram", "--json"), ("cancel", "--all"), ("fire", "--all", "--yes")),
    ],
)
def test_a_topic_that_does_not_exist_is_named(commands: Commands, arguments: tuple[str, ...]) -> None:
    """Before, a slip in its name was a timer that was never set, or a list without any."""
    verb, *others = arguments
    done = commands.run("timer", verb, "--topic", "deadlines-nowhere", *others)
    assert done.returncode == 4
    assert done.stderr.startswith("TW-151 The topic does not exist. ")
    assert "deadlines-nowhere" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_send_names_its_time_and_its_timer(commands: Commands) -> None:
    noon, evening = (f"{datetime.now(UTC) + timedelta(days=9):%Y-%m-%d}T{hour}:00Z" for hour in (12, 20))
    first = commands.send("--at", evening, "--timer-key", "k")
    second = commands.send("--at", noon, "--timer-key", "k")
    (timer,) = commands.json("ls")["timers"]
    assert timer["message_id"] == second["message_id"]
    assert int(timer["due_ms"]) == datetime.fromisoformat(noon).timestamp() * 1000
    assert first["message_id"] != second["message_id"]
    refused = commands.run("send", commands.topic, "x", "--in", "1h", "--timer-key", "k", "--unique")
    assert (refused.returncode, refused.stdout) == (4, "")


def test_many_are_counted_then_cancelled_and_the_task_is_listed(commands: Commands) -> None:
    for number in range(3):
        commands.send("--in", f"{number + 1}h")
    asked = commands.run("timer", "cancel", "--all", "--topic", commands.topic, "--until", "150m")
    assert (asked.returncode, asked.stdout) == (0, "would cancel 2 timers\n")
    assert "add --yes" in asked.stderr
    counted = {"dry_run": True, "matched": 3, "limit": None, "counted_until_ms": None}
    assert commands.json("cancel", "--all", "--dry-run") == counted
    done = commands.of_topic("cancel", "--all", "--until", "150m", "--yes", "--reason", "over")
    assert done.startswith("done  cancel  2 of 2  CANCELLED 2  task ")
    task = done.split()[-1]
    moved = commands.json("move", "--all", "--by", "-30m", "--yes")
    assert (moved["state"], moved["by_verdict"]) == ("done", {"MOVED": 1})
    assert commands.told("tasks", task) == commands.told("tasks", task, "--stop") == done
    late = commands.run("timer", "tasks", task, "--stop")
    assert late.stderr == "the task had already ended: nothing was stopped\n"
    assert task in commands.told("tasks")
    (left,) = commands.json("ls")["timers"]
    assert int(left["due_ms"]) < (time.time() + 2.6 * 3600) * 1000


def test_a_filter_by_key_tag_and_property_selects_and_a_limit_bounds(commands: Commands) -> None:
    for number, who in enumerate(["ann", "ann", "ann", "bob"]):
        commands.send(
            "--in", f"{number + 1}h", "--key", f"order:{number % 2}", "--tag", who, "--property", f"who={who}"
        )
    ann = ("--property", "who=ann")
    assert len(commands.json("ls", *ann)["timers"]) == 3
    assert len(commands.json("ls", *ann, "--message-key", "order:0", "--tag", "ann")["timers"]) == 2
    assert commands.json("ls", *ann, "--property", "who=bob")["timers"] == []
    assert commands.json("histogram", *ann, "--width", "1d")["count"] == 3
    preview = commands.of_topic("fire", "--all", *ann, "--limit", "2")
    assert preview == "would fire 2 of 3 timers\n"
    fired = commands.of_topic("fire", "--all", *ann, "--limit", "2", "--yes", "--reason", "two first")
    assert fired.startswith("done  fire  2 of 2 (3 match)  FIRED 2  task ")
    assert [one["tag"] for one in commands.json("ls")["timers"]] == ["ann", "bob"]


def test_lists_are_cut_with_a_word_about_the_rest(commands: Commands) -> None:
    for number in range(3):
        commands.send("--in", f"{number + 1}h")
    first = commands.run("timer", "ls", "--topic", commands.topic, "--limit", "2")
    assert "3 in all" in first.stderr
    after = first.stderr.split()[-1]
    (last,) = commands.json("ls", "--after", after)["timers"]
    assert int(last["due_ms"]) > (time.time() + 2.9 * 3600) * 1000
    histogram = commands.run("timer", "histogram", "--topic", commands.topic, "--width", "1m", "--limit", "1")
    assert histogram.stdout.count("#" * 40) == 1
    assert "2 more windows" in histogram.stderr


def test_a_summary_is_for_people_and_for_programs(commands: Commands) -> None:
    commands.send("--in", "30m")
    told = commands.told("summary")
    assert told.startswith("pending ")
    assert "due in    <1m " in told
    assert commands.topic in told
    summary = json.loads(commands.told("summary", "--json"))
    assert summary["pending_by_topic"][commands.topic] == 1
    assert sum(due["count"] for due in summary["due"]) == summary["pending"]


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (("cancel",), "TW-120", 2),
        (("cancel", "--timer-key", "k"), "TW-120", 2),
        (("cancel", "--topic", "t", "--timer-key", "k", "--id", "1"), "TW-120", 2),
        (("cancel", "--topic", "t", "--timer-key", "k", "--until", "1h"), "TW-120", 2),
        (("cancel", "--all", "--handle", "x"), "TW-120", 2),
        (("cancel", "--limit", "5", "--timer-key", "x"), "TW-120", 2),
        (("fire", "--property", "a=b", "--timer-key", "x"), "TW-120", 2),
        (("cancel", "--all", "--property", "a"), "TW-130", 2),
        (("cancel", "--handle", "forged"), "TW-147", 2),
        (("move", "--topic", "t", "--timer-key", "k"), "TW-120", 2),
        (("move", "--topic", "t", "--timer-key", "k", "--by", "1h"), "TW-120", 2),
        (("move", "--topic", "t", "--timer-key", "k", "--to", "soon"), "TW-120", 2),
        (("move", "--topic", "t", "--timer-key", "k", "--to", "1763700000"), "TW-120", 2),
        (("move", "--topic", "t", "--timer-key", "k", "--to", "99999d"), "TW-138", 2),
        (("ls", "--from", "2h", "--until", "1h"), "TW-130", 2),
        (("ls", "--until", "9" * 40), "TW-120", 2),
        (("histogram", "--width", "0"), "TW-130", 2),
        (("histogram", "--width", "wide"), "TW-130", 2),
        (("tasks", "0123456789ab"), "TW-150", 4),
        (("tasks", "--stop"), "TW-120", 2),
        (("summary", "--http", "127.0.0.1:1"), "TW-123", 3),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_a_code(
    commands: Commands, arguments: tuple[str, ...], code: str, exit_code: int
) -> None:
    refused = commands.run("timer", *arguments)
    assert refused.returncode == exit_code
    assert refused.stderr.startswith(f"{code} ")
    assert refused.stderr.count("\n") == 1
    assert refused.stdout == ""


@pytest.mark.parametrize("verb", ["summary", "histogram", "ls", "show", "cancel", "move", "fire", "tasks"])
def test_every_verb_has_help_with_an_example(commands: Commands, verb: str) -> None:
    assert "Example: tidewheel timer" in commands.told(verb, "--help")
