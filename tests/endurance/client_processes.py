"""Processes with the official client beside a test, which itself holds our own protocol stubs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
PAGE = 500


def start(module: str, broker: Any, *arguments: str) -> subprocess.Popen[str]:
    """Start a module of this folder with the broker's address as its first argument."""
    command = [sys.executable, "-m", f"tests.endurance.{module}", broker.listen, *arguments]
    environment = {**os.environ, "PYTHONPATH": python_path(), "HOME": str(broker.store.parent)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdin=pipe, stdout=pipe)


def python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


@contextmanager
def running(module: str, broker: Any, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The same, killed at the end."""
    with start(module, broker, *arguments) as process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the process ended: {process.args}"
    return line.strip()


def stored(http: httpx.Client, topic: str) -> list[dict[str, Any]]:
    """Every message that a topic holds, delivered or not; each queue's in order."""
    queues = http.get(f"/api/topics/{topic}").json()["queues"]
    after = ",".join(f"{queue['queue_id']}:{queue['min_offset']}" for queue in queues)
    found: list[dict[str, Any]] = []
    while True:
        page = http.get(f"/api/topics/{topic}/arrivals", params={"after": after, "limit": PAGE}).json()
        if not page["messages"]:
            return found
        found += page["messages"]
        after = page["after"]


@contextmanager
def serving(broker: Any) -> Iterator[httpx.Client]:
    """Run a broker; it must end cleanly when asked to, and does not outlive a test that fails."""
    broker.start()
    try:
        with httpx.Client(base_url=f"http://{broker.http}", timeout=60) as http:
            yield http
        assert broker.stop() == 0
    finally:
        broker.kill()
