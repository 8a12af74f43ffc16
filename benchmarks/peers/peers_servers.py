"""A server under test: processes that are started, frozen while another is measured, and always ended.

The servers share the machine, and an idle one still works: it sweeps, flushes and collects garbage (and a
thread of RocketMQ spins after the first transaction). Therefore only the measured server runs, the others are
stopped with SIGSTOP. The cost of a server is the user and system time of its main process.
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
"""Linux's clock of a process's run time, in ns; `/proc` has it in steps of 10 ms."""
PENDING: Final = re.compile(r"^rocketmq_timing_messages(?:{[^}]*})? (\S+)$", re.M)
PR_SET_PDEATHSIG: Final = 1


class CannotRun(Exception):
    """A requirement is missing; the text contains the remedy."""


class Server(ABC):
    """A server under test."""

    name: str
    address: str
    warm_turns: int
    """Number of warm-up runs of all rows."""
    is_compiled_as_it_runs = False
    """Whether the server needs a long run of sends before these."""

    def __init__(self, folder: Path, flush: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.flush = folder, flush
        self.start_seconds = 0.0
        self._processes: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    async def start(self) -> None:
        """Start the server and wait until it serves; the process launched last is the measured one."""

    @abstractmethod
    def make_topic(self, topic: str, message_type: str) -> None:
        """Create a topic of eight queues for messages of one type."""

    @abstractmethod
    def make_group(self, group: str) -> None:
        """Create a consumer group."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the versions of the server."""

    def processor_seconds(self) -> float:
        """Return the user and system time of the measured process so far."""
        return time.clock_gettime(~self.pid << 3 | CPUCLOCK_SCHED)

    def resident_bytes(self) -> int:
        """Return the resident memory, including pages of mapped files."""
        return self._rollup("Rss")

    def anonymous_bytes(self) -> int:
        """Return the anonymous resident memory, which the system cannot reclaim."""
        return self._rollup("Anonymous")

    def _rollup(self, name: str) -> int:
        found = re.search(rf"^{name}: +(\d+) kB$", Path(f"/proc/{self.pid}/smaps_rollup").read_text(), re.M)
        assert found is not None, f"Linux says no {name} of process {self.pid}"
        return int(found[1]) * 1024

    @property
    def pid(self) -> int:
        """The id of the measured process."""
        return self._processes[-1].pid

    def freeze(self) -> None:
        """Stop the server's processes with SIGSTOP."""
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)

    async def thaw(self) -> None:
        """Continue the server's processes, and wait for pending work."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
        await asyncio.sleep(THAW_SECONDS)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    def stop(self) -> None:
        """Stop the server with SIGTERM, and with SIGKILL after `STOP_SECONDS`."""
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
        """Start a process that is killed when this one ends for any reason."""
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
        """Wait until `is_there()`; raise `CannotRun` with the log's end if the process ends or is slow."""
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
        """Start a broker on a store in the folder; raise `CannotRun`."""
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
        """Do nothing: the first send creates a topic."""

    def make_group(self, group: str) -> None:
        """Do nothing: the first receive creates a group."""

    def pending_timers(self) -> int:
        """Return the number of pending delayed messages, from the metrics."""
        with urllib.request.urlopen(f"http://{self.http}/metrics") as answer:
            found = PENDING.search(answer.read().decode())
        assert found is not None, "the metrics name no timers"
        return int(float(found[1]))

    def facts(self) -> dict[str, Any]:
        """Return the commit and the version of Python."""
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
