"""`tidewheel schedule` against a broker process: what people read, exit codes, a broker that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.command import tidewheel
from tests.served import serve

SET = ["schedule", "set", "report", "--cron", "30 9 * * 1-5", "--zone", "Europe/Berlin", "--topic", "reports"]


@dataclass
class Broker:
    """A broker process on a store that outlives it."""

    folder: Path
    options: tuple[str, ...] = ()

    def start(self) -> None:
        served = serve(self.folder, *self.options)
        self.process, self.http = served.process, served.http

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command that talks to this broker."""
        environment = {"NO_COLOR": "1", "COLUMNS": "160", "TIDEWHEEL_HTTP": self.http}
        return tidewheel(*arguments, environment=environment)

    def told(self, *arguments: str) -> Any:
        """Return what a command prints as JSON."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def occurrences(self, topic: str) -> list[int]:
        """Return the times of the occurrences that a topic holds, queue by queue."""
        queues = self.asked(f"/api/topics/{topic}")["queues"]
        pages = [
            self.asked(f"/api/topics/{topic}/messages?limit=1000&queue={number}")
            for number in range(len(queues))
        ]
        found = [message for page in pages for message in page["messages"]]
        return [int(one["properties"]["TW_OCCURRENCE_MS"]) for one in found]

    def asked(self, path: str, body: object = None) -> Any:
        """Ask the HTTP interface for something, or hand something in."""
        data = None if body is None else json.dumps(body).encode()
        with urlopen(
            Request(f"http://{self.http}{path}", data, {"Content-Type": "application/json"})
        ) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = Broker(tmp_path_factory.mktemp("schedule"))
    started.start()
    yield started
    started.end()


def test_a_schedule_from_set_to_rm(broker: Broker) -> None:
    done = broker.run(
        *SET, "--body", "go", "--key", "k", "--property", "shop=eu", "--end", "2099-01-01T00:00"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("report set, next 20")
    listed = broker.run("schedule", "ls")
    assert listed.stdout.splitlines()[0].split() == [
        "schedule",
        "cron",
        "zone",
        "topic",
        "state",
        "next",
        "sent",
    ]
    assert "30 9 * * 1-5" in listed.stdout
    assert " 09:30:00+0" in listed.stdout
    shown = broker.run("schedule", "show", "report", "--count", "3").stdout
    for line in ("state    active", "cron     30 9 * * 1-5   Europe/Berlin", "message  keys k  shop=eu"):
        assert line in shown
    assert "end      2099-01-01 00:00:00+01:00" in shown
    assert shown.count("09:30:00+0") == 3
    assert broker.run("schedule", "pause", "report").stdout == "report paused\n"
    assert broker.told("schedule", "ls")[0]["state"] == "PAUSED"
    assert broker.run("schedule", "resume", "report").stdout.startswith("report goes on, next 20")
    assert broker.run("schedule", "rm", "report").stdout.startswith("report removed")
    empty = broker.run("schedule", "ls")
    assert (empty.stdout, empty.stderr[:12]) == ("", "no schedules")


def test_a_preview_shows_the_gap_in_spring(broker: Broker) -> None:
    arguments = ("--zone", "Europe/Berlin", "--start", "2027-03-27T12:00", "--count", "2")
    done = broker.run("schedule", "preview", "30 2 * * *", *arguments)
    assert done.stdout == "2027-03-28 03:00:00+02:00\n2027-03-29 02:30:00+02:00\n"


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("2026-03-28T12:00", "2026-03-29 03:00:00+02:00"),
        ("2020-01-01", "2020-01-01 02:30:00+01:00"),
        ("2026-03", "2026-03-01 02:30:00+01:00"),
        ("2026-03-28T12:00Z", "2026-03-29 03:00:00+02:00"),
        ("1774699200000", "2026-03-29 03:00:00+02:00"),
    ],
)
def test_a_preview_looks_back_to_a_start_that_has_been(broker: Broker, start: str, first: str) -> None:
    """It was passed over: what came next from now on was shown."""
    arguments = ("--zone", "Europe/Berlin", "--start", start, "--count", "1")
    assert broker.run("schedule", "preview", "30 2 * * *", *arguments).stdout == f"{first}\n"


def test_a_preview_takes_spans_as_every_command_does(broker: Broker) -> None:
    done = broker.run("schedule", "preview", "* * * * *", "--start", "1h ago", "--end", "58m ago")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    for start in ("in 90d", "90d", "-1d"):
        assert broker.run("schedule", "preview", "* * * * *", "--start", start).returncode == 0
    gone = broker.run("schedule", "preview", "* * * * *", "--end", "1h ago")
    assert (gone.returncode, "which is past" in gone.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("show", "nothing"), 4, "TW-153 The schedule does not exist. There is no 'nothing'"),
        (("rm", "nothing"), 4, "TW-153"),
        (("pause", "nothing"), 4, "TW-153"),
        (
            ("preview", "0 0 30 2 *"),
            2,
            "TW-149 The schedule is illegal. '0 0 30 2 *' in UTC never occurs",
        ),
        (("preview", "* * * * *", "--zone", "Mars/Base"), 2, "TW-149"),
        (
            ("preview", "* * * * *", "--start", "soon"),
            2,
            "TW-120 A setting cannot be used. --start is 'soon'",
        ),
        (("preview", "* * * * *", "--start", "2026-12-01", "--zone", "Mars/Base"), 2, "TW-120"),
        (("set", "a b", "--cron", "* * * * *", "--topic", "t", "--body", "x"), 2, "TW-149"),
        (("set", "s", "--cron", "* * * * *", "--topic", "t", "--body", ""), 2, "TW-141"),
        (("set", "s", "--cron", "* * * * *", "--topic", "t", "--body", "x", "--property", "p"), 2, "TW-135"),
        (("ls", "--http", "127.0.0.1:1"), 3, "TW-123"),
    ],
)
def test_what_cannot_be_is_one_line_and_an_exit_code(
    broker: Broker, arguments: tuple[str, ...], exit_code: int, words: str
) -> None:
    done = broker.run("schedule", *arguments)
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert done.stderr.startswith(words)
    assert done.stderr.count("\n") == 1


def test_a_broker_that_is_killed_again_and_again_sends_no_occurrence_twice(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.start()
    begun_s = time.time()
    every_second = ("--cron", "* * * * * *", "--topic", "beats", "--body", "b", "--missed", "all")
    assert broker.run("schedule", "set", "beat", *every_second).returncode == 0
    for _ in range(3):
        time.sleep(1.3)
        broker.end(signal.SIGKILL)
        broker.start()
    time.sleep(1.1)
    broker.run("schedule", "pause", "beat")
    found, view = sorted(broker.occurrences("beats")), broker.told("schedule", "show", "beat")
    broker.end()
    assert found == list(range(found[0], found[-1] + 1, 1000)), "one is missing or there twice"
    assert begun_s * 1000 <= found[0] <= (begun_s + 5) * 1000
    assert (view["sent_count"], view["last_ms"]) == (len(found), str(found[-1]))
    assert len(found) >= 5


def test_a_virtual_clock_runs_through_a_year_of_a_schedule(tmp_path: Path) -> None:
    broker = Broker(tmp_path, ("--clock", "virtual"))
    broker.start()
    monthly = ("--cron", "0 0 1 * *", "--zone", "America/New_York", "--topic", "rent", "--body", "due")
    assert broker.run("schedule", "set", "rent", *monthly).returncode == 0
    broker.asked("/api/clock/advance", {"by": "366d"})
    assert broker.told("schedule", "show", "rent")["sent_count"] in (12, 13)
    broker.end()
