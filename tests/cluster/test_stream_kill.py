"""Broker and streaming query are killed while both are busy: every answered message arrives once, in the end.

Each round starts two processes and a Spark anew.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

ROUNDS = 2
SECONDS_MAX = 180
PROGRAM = Path(__file__).with_name("stream_process.py")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`started(verb, path, ...)` is a process in a group of its own, killed with its children at the end."""
    with ExitStack() as stack:

        def start(*arguments: object) -> subprocess.Popen[bytes]:
            log = stack.enter_context((tmp_path / "processes.log").open("ab"))
            command = [sys.executable, str(PROGRAM), *map(str, arguments)]
            environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
            stack.callback(kill, process)
            return process

        yield start


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and what it started as `kill -9` does."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def commits(folder: Path) -> int:
    found = folder / "checkpoint" / "commits"
    return sum(path.name.isdigit() for path in found.iterdir()) if found.is_dir() else 0


def test_every_answered_message_arrives_once_whoever_is_killed(
    started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    store, folder, acked = tmp_path / "store", tmp_path / "query", tmp_path / "acked"
    for _ in range(ROUNDS):
        writer = started("write", store, acked)
        wait_for(acked.exists, writer)
        reader, before = started("read", store, folder), commits(folder)
        wait_for(lambda before=before: commits(folder) > before + 2, reader)  # type: ignore[misc] # mypy infers no lambda with a default
        kill(writer)
        kill(reader)
    answer = tmp_path / "answer"
    drain = started("drain", store, folder, answer)
    assert drain.wait(SECONDS_MAX) == 0, (tmp_path / "processes.log").read_text()
    rows = json.loads(answer.read_text())
    assert [row for row in rows if row[1]] == []
    arrived = [row[0] for row in rows]
    assert len(arrived) == len(set(arrived))
    assert set((tmp_path / "acked.ids").read_text().split()) <= set(arrived)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < deadline
        time.sleep(0.05)
