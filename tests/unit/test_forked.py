"""Processes out of the nursery are processes like any other."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.command import tidewheel
from tests.forked import COMMANDS, Forked, words_of

VERSION = [*COMMANDS[0], "version"]


def test_exit_code_and_output_are_those_of_the_command() -> None:
    done = subprocess.run([*COMMANDS[1], "topic", "ls", "--http", "nonsense"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("TW-120 ")
    here = tidewheel("topic", "ls", "--http", "nonsense")
    assert (here.returncode, here.stdout, here.stderr) == (done.returncode, done.stdout, done.stderr)


def test_folder_and_environment_are_those_asked_for(tmp_path: Path) -> None:
    told = os.environ | {"TIDEWHEEL_HTTP": "here:nowhere"}
    done = subprocess.run(
        [*COMMANDS[0], "topic", "ls"], env=told, cwd=tmp_path, capture_output=True, text=True
    )
    assert "here:nowhere" in done.stderr


def test_several_at_once_are_several_and_each_is_waited_for() -> None:
    with ThreadPoolExecutor(4) as threads:
        ended = list(threads.map(lambda _: subprocess.run(VERSION, capture_output=True, text=True), range(4)))
    assert [one.returncode for one in ended] == [0] * 4
    assert len({one.stdout for one in ended}) == 1


def test_one_that_is_killed_says_so(tmp_path: Path) -> None:
    where = ("--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    command = [*COMMANDS[0], "serve", *where, "--segment-bytes", str(1 << 20)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    assert isinstance(process, Forked)
    assert process.poll() is None
    assert Path(f"/proc/{process.pid}").exists()
    process.kill()
    assert process.wait() == -9


@pytest.mark.parametrize(
    "command", ["tidewheel version", [sys.executable, "-c", ""], [sys.executable, "-m", "services.cli"], []]
)
def test_other_commands_are_no_business_of_the_nursery(command: str | list[str]) -> None:
    assert words_of(command) is None
