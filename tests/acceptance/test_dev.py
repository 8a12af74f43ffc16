"""`tidewheel dev`: what it prints works when pasted, Ctrl-C ends it clean, the next start goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.conftest import Serving
from tests.command import TIDEWHEEL, tidewheel

SECONDS = 60


@contextmanager
def running(folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run it on free ports; give the process and the lines of its banner."""
    command = [*TIDEWHEEL, "dev", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *more]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline()]
        while "curl" not in lines[-1] and "no samples" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        yield process, lines
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def pasted(line: str, bin_folder: Path) -> str:
    """Run a line as a shell does that finds the command `tidewheel`; return what it prints."""
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    ran = subprocess.run(
        line, shell=True, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False
    )
    assert ran.returncode == 0, ran
    return ran.stdout


def ended(process: subprocess.Popen[str]) -> str:
    """End it as Ctrl-C does; return the last it says."""
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    return said


def test_what_it_prints_works_when_pasted_and_its_data_stays(tmp_path: Path) -> None:
    bin_folder = Path(sys.executable).parent
    with running(tmp_path) as (process, lines):
        assert "(new)" in lines[0]
        tail, timer, receive = (line.strip() for line in lines[-3:])
        assert "ten seconds have passed" in pasted(tail, bin_folder)
        assert "CANCELLED" in pasted(timer, bin_folder)
        (message,) = json.loads(pasted(receive, bin_folder))["messages"][:1]
        assert (message["topic"], message["body"]) == ("ticks", "ten seconds have passed")
        said = ended(process)
    assert "Stopped. The data is in tidewheel-dev: the next start goes on with it." in said
    assert "Traceback" not in said
    with running(tmp_path) as (process, lines):
        assert "(start 2)" in lines[0]
        (http,) = re.findall(r"http://(\S+)/api/groups", lines[-1])
        topics = json.loads(tidewheel("topic", "ls", "--json", "--http", http).stdout)
        assert {"orders", "deadlines", "ticks"} <= {one["name"] for one in topics}
        ended(process)


def test_what_it_prints_works_if_it_asks_for_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_HTTP_TOKEN", str(tmp_path / "token"))
    with running(tmp_path) as (process, lines):
        receive = lines[-1].strip()
        assert '-H "Authorization: Bearer $(cat "$TIDEWHEEL_HTTP_TOKEN")"' in receive
        (message,) = json.loads(pasted(receive, Path(sys.executable).parent))["messages"][:1]
        assert message["topic"] == "ticks"
        ended(process)


def test_a_store_of_another_gets_no_samples(tmp_path: Path) -> None:
    serving = Serving(tmp_path)
    try:
        serving.run("send", "payments", "order 7 is paid")
        serving.process.terminate()
        serving.process.wait(SECONDS)
    finally:
        serving.process.kill()
    with running(tmp_path, "--store", "store") as (process, lines):
        (http,) = re.findall(r"HTTP +http://(\S+)", "".join(lines))
        topics = json.loads(tidewheel("topic", "ls", "--json", "--http", http).stdout)
        assert {one["name"] for one in topics} == {"payments"}
        assert json.loads(tidewheel("schedule", "ls", "--json", "--http", http).stdout) == []
        assert "no samples" in lines[-1]
        assert "rm -r" not in ended(process)


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("x")
    for command in ("dev", "serve"):
        doors = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
        refused = tidewheel(command, "--store", str(tmp_path / "notes"), *doors)
        assert (refused.returncode, refused.stderr[:7]) == (5, "TW-104 ")
        assert refused.stderr.count("\n") == 1
        assert [one.name for one in (tmp_path / "notes").iterdir()] == ["todo.txt"]


def test_a_port_that_is_taken_is_a_sentence(tmp_path: Path) -> None:
    with running(tmp_path) as (_, lines):
        (http,) = re.findall(r"http://(\S+)/api/groups", lines[-1])
        taken = tidewheel("dev", "--store", tmp_path / "other", "--listen", "127.0.0.1:0", "--http", http)
        assert taken.returncode != 0
        assert "Traceback" not in taken.stderr
        assert http in taken.stderr
