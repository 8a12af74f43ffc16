"""The commands against a broker process: serve, topic, send, tail; and what they say when they cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from commitlog import store_format
from tests.command import tidewheel

TIDEWHEEL = [sys.executable, "-m", "services.cli.main"]


@dataclass
class Serving:
    """A broker process and what its ready file says."""

    process: subprocess.Popen[str]
    store: Path
    ready: Path
    listen: str
    http: str


def start(folder: Path, *options: str) -> Serving:
    store, ready = folder / "store", folder / "ready"
    where = ["--store", str(store), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    small = ["--segment-bytes", str(1 << 24), "--ready-file", str(ready)]
    command = [*TIDEWHEEL, "serve", *where, *small, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not ready.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    facts = json.loads(ready.read_text())
    assert facts["pid"] == process.pid
    return Serving(process, store, ready, facts["listen"], facts["http"])


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    broker = start(tmp_path_factory.mktemp("cli"))
    yield broker
    broker.process.terminate()
    broker.process.communicate()


def run(*arguments: str, broker: Serving | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command, told by the environment which broker to talk to."""
    told = {"TIDEWHEEL_HTTP": broker.http} if broker else {}
    return tidewheel(*arguments, environment={"NO_COLOR": "1"} | told)


@pytest.mark.parametrize(
    "how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["SIGTERM", "Ctrl-C", "SIGHUP"]
)
def test_a_broker_says_where_it_is_and_ends_cleanly(tmp_path: Path, how: signal.Signals) -> None:
    broker = start(tmp_path)
    broker.process.send_signal(how)
    said, logged = broker.process.communicate()
    assert broker.process.returncode == 0
    assert '"stopped"' in logged
    for told in (broker.listen, f"http://{broker.http}", "next:  tidewheel send"):
        assert told in said
    assert not broker.ready.exists()


def test_a_virtual_clock_is_announced_and_stays_with_its_store(tmp_path: Path) -> None:
    broker = start(tmp_path, "--clock", "virtual")
    broker.process.terminate()
    assert "clock   VIRTUAL" in broker.process.communicate()[0]
    refused = run("serve", "--store", str(broker.store), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert (refused.returncode, refused.stderr[:7]) == (5, "TW-106 ")
    assert "serve it with --clock virtual" in refused.stderr


def test_a_message_is_found_by_its_key(serving: Serving) -> None:
    assert run("send", "found", "hello", "--key", "order:1", broker=serving).returncode == 0
    shown = run("msg", "show", "order:1", "--topic", "found", broker=serving)
    assert "keys order:1" in shown.stdout
    assert "hello" in shown.stdout
    (one,) = json.loads(run("msg", "show", "order:1", "--topic", "found", "--json", broker=serving).stdout)
    assert one["stored_topic"] == "found"
    none = run("msg", "show", "order:2", "--topic", "found", broker=serving)
    assert (none.returncode, none.stdout) == (4, "")
    assert "order:2" in none.stderr


def test_a_message_sent_for_later_is_seen_by_tail(serving: Serving) -> None:
    assert run("topic", "create", "later", "--type", "delay", broker=serving).returncode == 0
    sent = run(
        *("send", "later", "hello", "--key", "k1", "--tag", "a", "--property", "colour=blue=dark"),
        *("--in", "300ms", "--json"),
        broker=serving,
    )
    seen = run("tail", "later", "--from-start", "--key", "k1", "--limit", "1", "--json", broker=serving)
    message = json.loads(seen.stdout)
    assert message["message_id"] == json.loads(sent.stdout)["message_id"]
    assert (message["body"], message["tag"], message["properties"]) == ("hello", "a", {"colour": "blue=dark"})
    assert int(message["store_ms"]) >= int(message["delivery_ms"])
    assert "lite topics" not in run("topic", "show", "later", broker=serving).stdout
    shown = run("topic", "show", "later", "--json", broker=serving)
    assert sum(int(queue["end_offset"]) for queue in json.loads(shown.stdout)["queues"]) == 1


def test_topics_are_listed_for_people_and_for_programs(serving: Serving) -> None:
    run("topic", "create", "listed", "--type", "transaction", "--queues", "2", broker=serving)
    assert "listed" in run("topic", "ls", broker=serving).stdout
    listed = json.loads(run("topic", "ls", "--json", broker=serving).stdout)
    assert {
        "name": "listed",
        "message_type": "TRANSACTION",
        "queue_count": 2,
        "hold": None,
        "message_count": 0,
    } in listed
    assert "retention: nothing is deleted" in run("topic", "show", "listed", broker=serving).stdout


def test_tail_begins_with_the_last_messages(serving: Serving) -> None:
    for number in range(5):
        run("send", "lasting", f"body {number}", broker=serving)
    seen = run("tail", "lasting", "--last", "2", "--limit", "2", broker=serving)
    assert [line.split()[-1] for line in seen.stdout.splitlines()] == ["3", "4"]
    twice = run("tail", "lasting", "--last", "2", "--from-start", broker=serving)
    assert (twice.returncode, "give one" in twice.stderr) == (2, True)


def test_many_topics_are_created_from_arguments_a_file_and_stdin(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "names").write_text("many-1\n\n  many-2\r\nmany-3")
    said = subprocess.run(
        [*TIDEWHEEL, "topic", "create", "many-0", f"@{tmp_path / 'names'}", "-", "--queues", "2"],
        input="many-4\nmany-5\n", capture_output=True, text=True, check=False,
        env=os.environ | {"TIDEWHEEL_HTTP": serving.http},
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == [f"many-{number} takes mixed, 2 queues" for number in range(6)]
    again = run("topic", "create", "many-1", "many-6", "--queues", "2", "--json", broker=serving)
    assert [one["name"] for one in json.loads(again.stdout)] == ["many-1", "many-6"]


def test_of_many_topics_those_that_are_refused_are_named(serving: Serving) -> None:
    run("topic", "create", "other-1", "--queues", "7", broker=serving)
    said = run("topic", "create", "other-0", "no no", "other-1", "other-2", "--queues", "2", broker=serving)
    assert said.returncode == 2
    assert [line.split()[0] for line in said.stdout.splitlines()] == ["other-0", "other-2"]
    assert "TW-131 no no: " in said.stderr
    assert " other-1: " in said.stderr
    assert "2 of 4 topics are there, 2 refused" in said.stderr
    missing = run("topic", "create", "@/nowhere/at/all", broker=serving)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "/nowhere/at/all: No such file" in missing.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (("topic", "create", "no no"), "TW-131", 2),
        (("topic", "show", "nope"), "TW-151", 4),
        (("tail", "nope"), "TW-151", 4),
        (("send", "t", "x", "--tag", "a|b"), "TW-133", 2),
        (("send", "t", "x", "--property", "UNIQ_KEY=1"), "TW-135", 2),
        (("send", "t", "x", "--property", "colour"), "TW-135", 2),
        (("send", "t", "x", "--in", "soon"), "TW-120", 2),
        (("send", "t", ""), "TW-141", 2),
        (("topic", "ls", "--http", "localhost"), "TW-120", 2),
        (("topic", "ls", "--http", "127.0.0.1:1"), "TW-123", 3),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_a_code(
    serving: Serving, arguments: tuple[str, ...], code: str, exit_code: int
) -> None:
    refused = run(*arguments, broker=serving)
    assert refused.returncode == exit_code
    assert refused.stderr.startswith(f"{code} ")
    assert refused.stderr.count("\n") == 1
    assert refused.stdout == ""


def test_a_grpc_port_is_not_mistaken_for_the_http_one(serving: Serving) -> None:
    refused = run("topic", "ls", "--http", serving.listen)
    assert (refused.returncode, refused.stderr[:7]) == (3, "TW-123 ")


@pytest.mark.parametrize("flag", ["--listen", "--http"])
def test_a_taken_port_is_refused_and_names_who_has_it(serving: Serving, tmp_path: Path, flag: str) -> None:
    taken = serving.listen if flag == "--listen" else serving.http
    free = "--http" if flag == "--listen" else "--listen"
    refused = run("serve", "--store", str(tmp_path / "other"), flag, taken, free, "127.0.0.1:0")
    assert refused.returncode == 3
    assert refused.stderr.startswith(f"TW-101 The port is in use. {taken} ")
    assert f"process {serving.process.pid}" in refused.stderr
    assert not (tmp_path / "other").exists()


def test_a_store_that_is_open_is_refused_and_names_who_has_it(serving: Serving) -> None:
    refused = run("serve", "--store", str(serving.store), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert refused.returncode == 3
    assert refused.stderr.startswith("TW-102 ")
    assert str(serving.process.pid) in refused.stderr


def test_a_store_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "format").write_text(f"tidewheel {store_format.VERSION + 1}\n")
    refused = run("serve", "--store", str(tmp_path), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert (refused.returncode, refused.stderr[:7]) == (5, "TW-105 ")
    assert not (tmp_path / "commitlog").exists()


def test_every_command_has_help_with_an_example() -> None:
    for command in (("serve",), ("send",), ("tail",), ("version",), ("topic", "create"), ("topic", "ls")):
        shown = run(*command, "--help")
        assert shown.returncode == 0
        assert "Example: tidewheel" in shown.stdout


def test_a_topic_of_lite_topics_is_created_sent_to_and_shown(serving: Serving) -> None:
    made = run("topic", "create", "chats", "--type", "lite", broker=serving)
    assert made.stdout.startswith("chats takes lite")
    assert run("send", "chats", "hello", "--lite-topic", "session-17", broker=serving).returncode == 0
    assert run("topic", "show", "chats", broker=serving).stdout.startswith("chats takes lite, lite topics: 1")
    refused = run("send", "chats", "hello", broker=serving)
    assert (refused.returncode, "TW-144" in refused.stderr) == (2, True)
