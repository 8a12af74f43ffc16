"""Mistakes of new users, at the commands and over HTTP: each answer says what to write instead."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.command import tidewheel
from tests.served import serve

SECONDS: Final = 60
BODY_BYTES: Final = 5_000_000


class Serving:
    """A broker as a process, with a topic of each type."""

    def __init__(self, http: str, folder: Path) -> None:
        self.http, self.folder = http, folder

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {"TIDEWHEEL_HTTP": self.http, "NO_COLOR": "1", "COLUMNS": "200"}
        return tidewheel(*words, environment=environment, folder=self.folder)

    def said(self, code: int, *words: str) -> str:
        """Run a command that ends with a code; return what it says, without the frame of usage errors."""
        ended = self.run(*words)
        assert ended.returncode == code, ended
        return " ".join(re.sub("[│╭╮╰╯─]", " ", ended.stderr).split())

    def post(self, path: str, body: object) -> tuple[int, dict[str, Any]]:
        """Return the status and the answer of a call."""
        request = Request(f"http://{self.http}/api/{path}", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        try:
            with urlopen(request, timeout=SECONDS) as answer:
                return answer.status, json.load(answer)
        except HTTPError as refusal:
            return refusal.code, json.load(refusal)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("mistakes")
    served = serve(folder)
    broker = Serving(served.http, folder)
    for kind in ("normal", "fifo", "delay", "transaction", "priority", "lite"):
        broker.said(0, "topic", "create", kind, "--type", kind)
    (folder / "binary").write_bytes(b"ok\xff")
    (folder / "big").write_bytes(b"x" * BODY_BYTES)
    yield broker
    served.stop()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("send orders hi --delay 5m", "No such option: --delay. Write --in."),
        ("send orders hi --deliver-at 5m", "Write --at."),
        ("send orders hi --message-group g", "Write --group."),
        ("send hi --topic orders", "Give the topic without an option, as the usage shows."),
        ("send orders hi --in 30", "it has no unit; write 30s for seconds, 30ms for milliseconds"),
        (
            "send orders hi --in -5m",
            "a span is not negative; write 5m. Without --in it is delivered at once.",
        ),
        ("send orders hi --in=30min", "write 30m"),
        ("send orders hi --property a=1 --property a=2", "--property a is given twice"),
        ("send orders @big", "Keep what is larger in a file or an object store, and send where it is."),
        (
            "send normal @binary",
            "--data-binary @binary http://HOST:PORT/api/topics/TOPIC/messages",
        ),
        ("send fifo hi", "Give it a message group (send --group"),
        (
            "send fifo hi --in 5m --group g",
            "A message is not FIFO and DELAY at once. Name a topic of type delay",
        ),
        ("send normal hi --in 5m", "create one: tidewheel topic create NAME --type delay"),
        ("send normal hi --group g", "create one: tidewheel topic create NAME --type fifo"),
        ("send delay hi", "Say when it is due (send --in 30m"),
        ("send transaction hi", "Send it in a transaction (POST /api/transactions)"),
        ("send priority hi", "Give it a priority (send --priority 2"),
        ("send lite hi", "Name its lite topic (send --lite-topic"),
        ("timer show order:7", "takes options only, such as --topic ... --timer-key ... --id ..."),
        ("timer cancel order:7", "takes options only, such as --topic"),
        ("timer move --topic orders --timer-key k --in 5m", "Write --to."),
        (
            "timer move --topic orders --timer-key k --by 5m",
            "--by is for many timers: add --all; or say when",
        ),
        ("timer move --topic orders --all --by 30", "it has no unit; write 30s for seconds, 30ms"),
        ("timer histogram --width 10", "width is '10': it has no unit; write 10s for seconds"),
        ("timer ls -n 5", "Write --limit."),
        ("schedule preview 0 9 1 3 *", "A value that has blanks is written in quotes"),
        ("timer tasks 3f2a9c01b7de extra", "tasks takes one argument, task. A value with blanks is quoted."),
        ("send normal order 7", "tidewheel send takes two arguments, topic and body. A value with blanks is"),
        ("msg search normal --json id=3", "--json takes no value. Write --json-path id=3 to search in JSON"),
        ("msg search normal id=3", "tidewheel msg search takes one argument, topic."),
        ("timer tasks show 3f2a9c01b7de", "Write tidewheel timer tasks 3f2a9c01b7de."),
        ("dlq tasks stop 3f2a9c01b7de", "Write tidewheel dlq tasks 3f2a9c01b7de --stop."),
        ("topic tasks show", "'show' is no id of a task. Write tidewheel topic tasks ID."),
        ("schedule preview '0 9 1 3 *' --from 2027-03", "Write --start."),
        ("schedule preview '0 9 1 3 *' --start soon", "2026-12-01 and 2026-12 will do, too."),
        ("txn check s1", "'s1' is no transaction id (24 hex digits). To look a key up, give --topic, too."),
        ("txn resolve s1 commit --reason x", "'s1' is no transaction id (24 hex digits)"),
        ("timer ls --limit x", "Invalid value for '--limit': it must be a whole number"),
        ("store verify ./store", "takes options only, such as --store ..."),
        ("debug bundle --output x", "Give the file without an option, as the usage shows."),
        ("auth add a", "There are: whoami, role, user, acl, token."),
        ("doctor localhost:1", "No such command 'localhost:1'. There are: client"),
        ("tail orders --from 5m", "Write --since."),
        (
            "group reset g --topic t --to soon",
            "write it as 2026-11-22T09:00, 30m ago, or milliseconds since 1970",
        ),
        ("timer cancel --all --from 30", "--from is '30': that is long ago; perhaps seconds"),
        ("timer ls --until 1763700000", "perhaps seconds were given where milliseconds are meant"),
        ("dlq purge g --from 30", "perhaps seconds were given where milliseconds are meant"),
        ("msg search normal --text x --from 30", "perhaps seconds were given where milliseconds"),
        ("group reset g --topic normal --to 5", "as in 30m. For an offset, write offset:5."),
        ("group create g normal --from 30", "as in 30m. For an offset, write offset:30."),
        ("txn ls --older-than 10", "it has no unit; write 10s for seconds"),
    ],
)
def test_a_command_says_what_to_write_instead(broker: Serving, line: str, said: str) -> None:
    words = [quoted or plain for quoted, plain in re.findall(r"'([^']*)'|(\S+)", line)]
    assert said in broker.said(2, *words)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("@0",), "No message begins at log offset 0 of the broker's log, whose log offsets are 0 to "),
        (("@99,999,999",), "No message begins at log offset 99999999 of the broker's log"),
        (("@99999999", "--topic", "normal"), "No message of topic normal begins at log offset 99999999 of"),
        (("@x",), "timer key or transaction id '@x'. After @, a log offset is a number, such as @4096. Log"),
    ],
)
def test_a_log_offset_without_a_message_is_told_as_such(
    broker: Serving, options: tuple[str, ...], said: str
) -> None:
    told = broker.said(4, "explain", *options)
    assert told.startswith("TW-152 ")
    assert said in told


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("messages", {"topic": "t", "body": "x", "in": 30}, "write 30s for seconds, 30ms for milliseconds"),
        ("timers", {"topic": "t", "body": "x", "in": "30"}, "write 30s for seconds, 30ms for milliseconds"),
        ("messages", {"topic": "t", "body": "x", "delay": "5m"}, "delay is not known here: write in."),
        ("timers", {"topic": "t", "body": "x", "delay": "5m"}, "delay is not known here: write in."),
        ("messages", {"topic": "t", "payload": "x"}, "payload is not known here: write body."),
        ("messages", {"topic": "t", "body": "x", "propertys": {}}, "write properties."),
        ("messages", {"topic": "t", "body": "x", "colour": "b"}, "There are topic, body, body_json,"),
        ("messages", {"topic": "t", "body": {"id": 7}}, "for JSON write body_json"),
        ("messages", [{"topic": "t", "body": "x"}], 'write {"messages": [...]}'),
        ("timers", [{"topic": "t", "body": "x", "in": "5m"}], 'write {"timers": [...]}'),
        ("groups/g/ack", ["handle"], 'write {"receipt_handles": [...]}'),
        ("groups/g/ack", {"handles": ["x"]}, "handles is not known here: write receipt_handles."),
        ("groups/g/receive", {"topic": "t", "wait": 5}, "wait is '5': it has no unit"),
        ("groups/g/receive", {"topic": "t", "visibility_timeout": "5m"}, "write lease."),
        *(
            (f"{noun}/tasks", body | {"filter": {field: ""}, "dry_run": True}, f"filter.{field} is empty")
            for noun, body, fields in (
                ("timers", {"verb": "cancel"}, ("topic", "topic-prefix", "key", "tag", "from")),
                ("dead-letters", {"verb": "purge", "group": "g"}, ("topic", "key", "tag", "reason", "until")),
                ("moves", {"source": "normal", "target": "fifo"}, ("key", "tag", "property")),
            )
            for field in fields
        ),
        ("groups/g/reset", {"to": "earliest", "topic": ""}, "topic is empty: leave it out, or give a value."),
        ("timers", {"topic": "delay", "body": "x", "in": "5m", "timer_key": ""}, "timer_key is empty: leave"),
        (
            "messages",
            {"messages": [{"topic": "delay", "body": "x", "in": "5m", "timer_key": ""}]},
            "messages.0.timer_key is empty: leave it out, or give a value.",
        ),
        ("topics/delay/messages?in=5m&timer_key=", {}, "timer_key is empty: leave it out, or give a value."),
        (
            "timers/tasks",
            {"verb": "cancel", "filter": {"from": "30"}, "dry_run": True},
            "from is '30': that is long ago; perhaps seconds were given where milliseconds are meant, "
            "or the unit is missing, as in 30m.",
        ),
        (
            "dead-letters/tasks",
            {"verb": "purge", "group": "g", "filter": {"until": 30}, "dry_run": True},
            "until is '30': that is long ago",
        ),
        ("groups/g/reset", {"to": 5}, "offset:NUMBER or a moment (that is long ago"),
        (
            "timers/move",
            {"topic": "t", "key": "k", "in": "5m"},
            "to is missing. in is not known here: write to.",
        ),
    ],
)
def test_http_says_what_to_write_instead(broker: Serving, path: str, body: object, said: str) -> None:
    status, answer = broker.post(path, body)
    assert status == 400, answer
    assert said in answer["message"]


def test_a_time_that_has_passed_is_told(broker: Serving) -> None:
    assert "delivered at once: " in broker.said(0, "send", "orders", "hi", "--at", "2020-01-01T00:00")
    assert ", due " in broker.said(0, "send", "orders", "hi", "--at", "in 1h", "--timer-key", "k")
    moved = broker.run("timer", "move", "--topic", "orders", "--timer-key", "k", "--to", "5m ago")
    assert re.search(r"now delivered: .* \(5m\d?s? ago\) has passed", moved.stdout), moved


@pytest.mark.parametrize("by", ["key", "handle"])
def test_a_timer_that_is_moved_into_the_past_of_a_held_topic_is_held(broker: Serving, by: str) -> None:
    broker.post("topics", {"name": "bills"})
    broker.run("topic", "hold", "bills", "--reason", "closed", "--yes")
    _, sent = broker.post("timers", {"topic": "bills", "body": "x", "in": "1h", "timer_key": "k"})
    name = ("--handle", sent["recall_handle"]) if by == "handle" else ("--topic", "bills", "--timer-key", "k")
    assert "now due " in broker.run("timer", "move", *name, "--to", "in 2h").stdout
    moved = broker.run("timer", "move", *name, "--to", "5m ago").stdout
    assert re.search(r"now held until the release of bills: .* \(5m\d?s? ago\) has passed", moved), moved
    assert broker.run("timer", "show", *name).stdout.startswith("HELD  k  bills")


def test_the_spans_of_commands_are_understood_by_the_broker(broker: Serving) -> None:
    """A command that hands a number on is refused for want of a unit, as a caller is."""
    broker.said(0, "auth", "user", "add", "shop")
    broker.said(0, "auth", "token", "add", "shop", "--expires", "30d")
    broker.said(0, "timer", "histogram", "--width", "1h")
    broker.said(0, "timer", "move", "--all", "--topic", "delay", "--by", "-30m")
    broker.said(0, "txn", "ls", "--older-than", "10m")
    broker.said(0, "txn", "policy", "transaction", "--immunity", "10s", "--interval", "30s")
    broker.said(0, "group", "create", "g")
    broker.said(0, "group", "set", "g", "--retry-after", "1s,30s")


def test_a_preview_begins_when_it_is_told_to(broker: Serving) -> None:
    for start in ("2027-03", "2027-03-01", "2027-03-01T00:00"):
        shown = broker.run("schedule", "preview", "0 9 * * *", "--start", start, "--count", "2").stdout
        assert shown.split("\n")[:2] == ["2027-03-01 09:00:00+00:00", "2027-03-02 09:00:00+00:00"]
    assert broker.run("schedule", "preview", "0 9 * * *", "--start", "in 90d").returncode == 0


def test_a_transaction_is_asked_about_and_resolved_by_its_key(broker: Serving) -> None:
    def begun(key: str) -> str:
        status, answer = broker.post("transactions", {"topic": "s", "body": "x", "keys": [key]})
        assert status == 201, answer
        return str(answer["transaction_id"])

    one = begun("s1")
    assert "No producer of s is connected" in broker.said(4, "txn", "check", "s1", "--topic", "s")
    resolve = ("txn", "resolve", "s1", "commit", "--reason", "paid", "--topic", "s")
    assert broker.run(*resolve).stdout.startswith(f"{one} COMMITTED")
    assert "it had ended so before" in broker.run(*resolve).stdout
    two, three = begun("s1"), begun("s1")
    told = broker.said(2, *resolve)
    assert f"{two} (OPEN)" in told
    assert f"{three} (OPEN)" in told
    assert "No transaction of s has the key s2" in broker.said(4, "txn", "check", "s2", "--topic", "s")
    assert "s1 names no half message" in broker.post("transactions/s1/check", {})[1]["message"]


def test_a_task_does_not_fill_a_pipe_with_lines() -> None:
    program = """
import itertools
from services.cli.terminal import bulk
bulk.LOOK_AGAIN_SECONDS = 0
class Api:
    done = 0
    def get(self, *path):
        self.done += 1
        state = "running" if self.done < 80 else "done"
        return {"state": state, "verb": "cancel", "done": self.done, "matched": 80, "id": "t"}
first = {"state": "running", "verb": "cancel", "done": 0, "matched": None, "id": "t"}
bulk.Bulk("timers", "timer", "").wait_for_end(Api(), first)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert ended.stderr == "cancel  counting\n"
