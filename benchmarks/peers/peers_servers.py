"""A server under test: processes that are started, frozen while the other one is measured, and always ended.

Two servers share the machine, and one that idles still works: it sweeps, flushes and collects garbage (and a
thread of RocketMQ's spins once it has had transactions). So only the one that is measured may run, the other
is stopped with SIGSTOP. What a server has used is its processes' user and system time.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from peers_machine import ROOT, commit, python_of

QUEUES: Final = 8
START_SECONDS, STOP_SECONDS = 120.0, 30.0
THAW_SECONDS: Final = 0.3
CPUCLOCK_SCHED: Final = 2
"""Of Linux, the clock of what a process has run for, in ns; `/proc` has the same in steps of 10 ms."""
PENDING: Final = re.compile(r"^rocketmq_timing_messages(?:{[^}]*})? (\S+)$", re.M)
PR_SET_PDEATHSIG: Final = 1


class CannotRun(Exception):
    """Something is missing; the text says what to do."""


class Server(ABC):
    """A server under test."""

    name: str
    address: str
    warm_turns: int
    """How often all rows are run before anything counts."""
    is_compiled_as_it_runs = False
    """Whether the server wants a long run of sends before that."""

    def __init__(self, folder: Path, flush: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.flush = folder, flush
        self.start_seconds = 0.0
        self._processes: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    async def start(self) -> None:
        """Start the server and wait until it serves; the process launched last is the one that counts."""

    @abstractmethod
    def make_topic(self, topic: str, message_type: str) -> None:
        """Make a topic of eight queues for messages of one type."""

    @abstractmethod
    def make_group(self, group: str) -> None:
        """Make a consumer group."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what the server is: versions."""

    def processor_seconds(self) -> float:
        """Return the user and system time of all its threads so far."""
        return time.clock_gettime(~self.pid << 3 | CPUCLOCK_SCHED)

    def resident_bytes(self) -> int:
        """Return the resident memory, the pages of files included that are mapped."""
        return self._rollup("Rss")

    def anonymous_bytes(self) -> int:
        """Return the resident memory that is in no file: what the machine cannot take back."""
        return self._rollup("Anonymous")

    def _rollup(self, name: str) -> int:
        found = re.search(rf"^{name}: +(\d+) kB$", Path(f"/proc/{self.pid}/smaps_rollup").read_text(), re.M)
        assert found is not None, f"Linux says no {name} of process {self.pid}"
        return int(found[1]) * 1024

    @property
    def pid(self) -> int:
        """The process that counts."""
        return self._processes[-1].pid

    def freeze(self) -> None:
        """Let the server stand still."""
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)

    async def thaw(self) -> None:
        """Let the server go on, and catch up."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
        await asyncio.sleep(THAW_SECONDS)

    def kill(self) -> None:
        """End the server as a power cut would."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    def stop(self) -> None:
        """End the server as an operator would; by force if that takes too long."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def launch(self, command: Sequence[str], log: str, environment: Mapping[str, str] | None = None) -> None:
        """Start a process that dies with this one, however this one ends."""
        with (self.folder / log).open("ab") as said:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=ROOT,
                env=os.environ | (environment or {}),
                preexec_fn=die_with_parent,
            )
        self._processes.append(process)

    async def wait_for(self, is_there: Any, log: str) -> None:
        """Wait until `is_there()`; raise `CannotRun` with what a process that ends or is slow said last."""
        ends = time.monotonic() + START_SECONDS
        while not is_there():
            if self._processes[-1].poll() is not None or time.monotonic() > ends:
                last = (self.folder / log).read_text(errors="replace")[-1_500:]
                raise CannotRun(f"{self.name} did not start. It said last:\n{last}")
            await asyncio.sleep(0.02)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Tidewheel(Server):
    """`tidewheel serve` of this tree."""

    name = "tidewheel"
    warm_turns = 1
    http: str
    """The address of its HTTP interface."""

    def __init__(self, folder: Path, flush: str, *options: str) -> None:
        super().__init__(folder, flush)
        self._options = options

    async def start(self) -> None:
        """Serve a store in the folder."""
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "services.cli.main", "serve", "--store", str(self.folder / "store"),
            "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--ready-file", str(ready), "--no-banner",
            "--queue-count", str(QUEUES), "--flush", self.flush, "--log-level", "warning",
            *self._options,
        ]  # fmt: skip
        began = time.monotonic()
        self.launch(command, "tidewheel.log")
        await self.wait_for(ready.exists, "tidewheel.log")
        self.start_seconds = time.monotonic() - began
        addresses = json.loads(ready.read_text())
        self.address, self.http = addresses["listen"], addresses["http"]

    def make_topic(self, topic: str, message_type: str) -> None:
        """Do nothing: topics are made by the first send."""

    def make_group(self, group: str) -> None:
        """Do nothing: groups are made by the first call."""

    def pending_timers(self) -> int:
        """Return how many delayed messages are not delivered, as its metrics say."""
        with urllib.request.urlopen(f"http://{self.http}/metrics") as answer:
            found = PENDING.search(answer.read().decode())
        assert found is not None, "the metrics name no timers"
        return int(float(found[1]))

    def facts(self) -> dict[str, Any]:
        """Return the commit and the Python."""
        return {"commit": commit(), "python": python_of()}


def free_port(*beside: int) -> int:
    """Return a free port; the ports at these distances are free too."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port: int = probe.getsockname()[1]
        try:
            for distance in beside:
                socket.create_server(("127.0.0.1", port + distance)).close()
        except OSError:
            continue
        return port
