"""A node of a cluster as a process, on a disk and by a clock of its own that are sick on command."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.endurance.conftest import BrokerProcess
from tests.endurance.hosts import Hosts
from tests.endurance.sick_clock import SickClock
from tests.endurance.sick_disk import SickDisk

JSON = {"Content-Type": "application/json"}
OPTIONS = ("--invisible-ms-min", "500", "--attempts-max", "1000", "--housekeeping-ms", "500")
OPEN = ("--insecure", "--http-tls", "off")
DEATH_SECONDS = 20.0
SMALL_CHECKPOINTS, PLAIN_CHECKPOINTS = "tests.endurance.small_checkpoint_node", "services.cli.main"
"""Programs that a node may be: the second is what an operator starts, with production's intervals."""


class Node(BrokerProcess):
    """A node of a cluster. Without `libraries` (disk, clock) its disk and its clock are the machine's.

    With `hosts` it runs on the one of its name.
    """

    module = SMALL_CHECKPOINTS

    def __init__(
        self,
        folder: Path,
        name: str,
        cluster: str,
        libraries: tuple[Path, Path] | None = None,
        seed: int = 0,
        hosts: Hosts | None = None,
    ) -> None:
        super().__init__(folder / name, "--cluster", cluster, "--node", name, *OPTIONS)
        self.name = name
        if hosts is not None:
            self.place, self.options = hosts.command(name), (*self.options, *OPEN)
            self.listen = self.http = f"{hosts.address(name)}:0"
        if libraries is not None:
            self._disk = SickDisk(libraries[0], self.store, folder / f"{name}.disk")
            self._disk.set(seed=seed, power=1, tell_room=1)
            self._clock = SickClock(libraries[1], folder / f"{name}.clock")
            both = {"LD_PRELOAD": ":".join(map(str, libraries))}
            self.environment = self._disk.environment() | self._clock.variables() | both

    @property
    def disk(self) -> SickDisk:
        """Its disk, if that can be sick."""
        return self._disk

    @property
    def clock(self) -> SickClock:
        """Its clock, if that can step."""
        return self._clock

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def pause(self) -> None:
        """Let it stand still."""
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after a pause."""
        self.signal(signal.SIGCONT)

    def wait_for_death(self) -> None:
        """Wait until its process has ended; its disk is well then."""
        assert self.process is not None
        self.process.wait(DEATH_SECONDS)
        if self.environment is not None:
            self.disk.heal()

    def terminate(self) -> None:
        """Tell it to stop, as an operator does."""
        self.signal(signal.SIGTERM)

    def move(self, name: str = "") -> None:
        """Let another one lead, or the one of that name, where that can be."""
        body = json.dumps({"node": name} if name else {}).encode()
        try:
            urlopen(Request(f"http://{self.http}/api/cluster/move", body, JSON), timeout=30).close()
        except HTTPError as refused:  # the other one may be down still, or get a copy
            said = refused.read().decode()
            assert "leads again" in said or "There is no node" in said or "no node leads" in said.lower(), (
                said
            )

    def forget(self, name: str) -> str:
        """Forget a node that has ended; return why that was refused, if it was."""
        body = json.dumps({"node": name}).encode()
        try:
            urlopen(Request(f"http://{self.http}/api/cluster/forget", body, JSON), timeout=30).close()
        except OSError as refused:
            said = refused.read().decode() if isinstance(refused, HTTPError) else str(refused)
            return "" if "Nothing is kept" in said else said
        return ""

    def lose_disk(self) -> None:
        """Delete its store; it does not run."""
        rmtree(self.store)

    def end(self) -> None:
        """End it, if a failure has left it running."""
        if self.runs():
            self.kill()

    def runs(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None

    def role(self) -> str:
        """What it says that it does; empty if it does not answer."""
        return str(self.view().get("role", ""))

    def view(self) -> dict[str, Any]:
        """What it says of its cluster; nothing if it does not answer."""
        with suppress(OSError), urlopen(f"http://{self.http}/api/cluster", timeout=2) as answer:
            return dict(json.load(answer))
        return {}
